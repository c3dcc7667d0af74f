#include "config.h"

#include "runtime/pi_prompt.h"

#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "runtime/pi_report.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_PROMPT_BYTES ((size_t)1 << 30)

enum pi_code pi_prompt_read(const struct pi_run_options *o, struct pi_prompt *out,
                            struct pi_err *err)
{
    memset(out, 0, sizeof(*out));
    if (o->tokens != NULL)
        return PI_OK;
    if (o->text != NULL) {
        out->n = strlen(o->text);
        out->text = pi_strndup(o->text, out->n, err);
        return out->text != NULL ? PI_OK : PI_E_NOMEM;
    }
    if (o->file == NULL && isatty(STDIN_FILENO))
        return pi_err_set(err, PI_E_USAGE,
                          "no prompt: -p TEXT, -f FILE, --tokens IDS, or text on standard input");
    return pi_file_read_all(o->file != NULL ? o->file : "-", false, MAX_PROMPT_BYTES, &out->text,
                            &out->n, err);
}

static enum pi_code parse_ids(const char *s, uint32_t n_vocab, struct pi_tokens *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (;;) {
        char *end;
        unsigned long id;

        errno = 0;
        id = strtoul(s, &end, 10);
        if (*s < '0' || *s > '9' || (*end != ',' && *end != '\0'))
            PI_FAIL(err, PI_E_USAGE, "--tokens: '%.20s' is no list of ids like 1,2,3", s);
        if (errno != 0 || id >= n_vocab)
            PI_FAIL(err, PI_E_RANGE, "--tokens: %.*s is not in the vocabulary of %u",
                    (int)(end - s), s, (unsigned)n_vocab);
        PI_TRY(pi_tokens_push(out, (int32_t)id, err));
        if (*end == '\0')
            break;
        s = end + 1;
    }
out:
    return rc;
}

enum pi_code pi_prompt_encode(const struct pi_run_options *o, const struct pi_tokenizer *t,
                              struct pi_prompt *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (o->tokens != NULL)
        return parse_ids(o->tokens, pi_tokenizer_n_vocab(t), &p->tokens, err);
    PI_TRY(pi_tokenizer_encode(t, p->text, p->n, pi_tokenizer_add_bos(t), o->special, &p->tokens,
                               err));
    if (p->tokens.n == 0)
        PI_FAIL(err, PI_E_RANGE,
                "the prompt is empty, and this model has no BOS token to start from");
out:
    return rc;
}

void pi_prompt_free(struct pi_prompt *p)
{
    free(p->text);
    pi_tokens_free(&p->tokens);
    memset(p, 0, sizeof(*p));
}

enum pi_code pi_prompt_tokenize(const struct pi_run_options *o, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf g = {0};
    struct pi_tokenizer *t = NULL;
    struct pi_prompt p = {0};

    PI_TRY(pi_gguf_open(o->model, PI_GGUF_NO_DATA, &g, err));
    PI_TRY(pi_tokenizer_create(&g, &t, err));
    PI_TRY(pi_prompt_read(o, &p, err));
    PI_TRY(pi_tokenizer_encode(t, p.text, p.n, o->bos, o->special, &p.tokens, err));
    PI_TRY(
        pi_json_print(json_pack("{s:o}", "tokens", pi_json_tokens(p.tokens.ids, p.tokens.n)), err));
out:
    pi_prompt_free(&p);
    pi_tokenizer_destroy(t);
    pi_gguf_close(&g);
    return rc;
}
