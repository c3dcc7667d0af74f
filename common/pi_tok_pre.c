#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tok_int.h"

#include <string.h>

/* White space as Unicode defines it (property White_Space). PCRE2's \s also takes U+180E, which lost the property in
 * Unicode 6.3. */
#define WS \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES "[" WS "]+(?![^" WS "])|[" WS "]+"

/* The patterns of published tokenizers. Repeats that can give nothing back are possessive: matching then takes no
 * memory that grows with the text. */
#define GPT2 "'(?:s|t|re|ve|m|ll|d)| ?\\p{L}++| ?\\p{N}++| ?[^" WS "\\p{L}\\p{N}]++|" SPACES
#define LLAMA3_LIKE(digits)                                                        \
    "(?i:'(?:s|t|re|ve|m|ll|d))|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|" digits "| ?[^" WS \
    "\\p{L}\\p{N}]++[\\r\\n]*+|"                                                   \
    "[" WS "]*[\\r\\n]++|" SPACES

struct pre {
    const char *names; /* values of tokenizer.ggml.pre, a space around each */
    bool ignore_merges, add_bos;
    const char *patterns
        [PI_TOK_MAX_PATTERNS]; /* applied one after the other, each to the pieces the one before left */
};

static const struct pre pres[] = {
    {" gpt-2 gpt2 default mpt olmo jais trillion phi-2 gigachat mellum a.x-4.0 jina-es jina-de jina-v1-en jina-v2-es "
     "jina-v2-de jina-v2-code roberta-bpe opt gpt-neox ",
     false,
     false,
     {GPT2}},
    {" falcon ", false, false, {"[\\p{P}$+<=>^~|`]++", GPT2, "[0-9]{3}"}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ",
     false,
     false,
     {"\\p{N}", GPT2}},
    {" llama3 llama-v3 llama-bpe falcon3 ", true, true, {LLAMA3_LIKE("\\p{N}{1,3}+")}},
    {" qwen2 stablelm2 deepseek-r1-qwen megrez ", false, false, {LLAMA3_LIKE("\\p{N}")}},
};

/* Whether the list names holds the word name. */
static bool names_have(const char *names, struct pi_str name)
{
    if (memchr(name.p, ' ', name.n) != NULL)
        return false;
    for (const char *p = names + 1; *p != '\0'; p = strchr(p, ' ') + 1)
        if (strncmp(p, name.p, name.n) == 0 && p[name.n] == ' ')
            return true;
    return false;
}

static enum pi_code compile(const char *pattern, pcre2_code **out, struct pi_err *err)
{
    int code = 0;
    PCRE2_SIZE at = 0;

    *out = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code,
                         &at, NULL);
    if (*out == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "PCRE2 cannot compile a pre-tokeniser pattern (error %d at %zu)", code,
                          at);
    return PI_OK;
}

enum pi_code pi_tok_pre_init(struct pi_tokenizer *t, struct pi_str name, struct pi_str arch,
                             struct pi_err *err)
{
    const struct pre *pre = NULL;
    enum pi_code rc = PI_OK;

    if (name.n == 0)
        name =
            pi_str_eq(arch, "falcon") ? (struct pi_str){"falcon", 6} : (struct pi_str){"gpt-2", 5};
    for (size_t i = 0; i < sizeof(pres) / sizeof(pres[0]) && pre == NULL; i++)
        if (names_have(pres[i].names, name))
            pre = &pres[i];
    if (pre == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "tokenizer.ggml.pre: no pre-tokeniser \"%.*s\" here",
                          (int)(name.n < 60 ? name.n : 60), name.p);
    t->ignore_merges = pre->ignore_merges;
    t->add_bos = pre->add_bos || pi_str_eq(arch, "opt");
    while (t->n_patterns < PI_TOK_MAX_PATTERNS && pre->patterns[t->n_patterns] != NULL) {
        PI_TRY(compile(pre->patterns[t->n_patterns], &t->patterns[t->n_patterns], err));
        t->n_patterns++;
    }
out:
    return rc;
}

static enum pi_code add_cut(struct pi_tok_work *w, unsigned which, size_t end, struct pi_err *err)
{
    size_t n = w->n_cuts[which];
    enum pi_code rc = PI_OK;

    if (n == w->cap_cuts[which])
        PI_TRY(pi_grow_array(&w->cuts[which], &w->cap_cuts[which], n < 64 ? 64 : n + 1,
                             sizeof(size_t), err));
    w->cuts[which][w->n_cuts[which]++] = end;
out:
    return rc;
}

/* Cuts the piece text[begin, end) into the matches of a pattern and what lies between them. The pattern sees the piece
 * alone: its end is the end of the text. */
static enum pi_code cut_piece(struct pi_tok_work *w, const pcre2_code *pattern, const char *text,
                              size_t begin, size_t end, unsigned to, struct pi_err *err)
{
    PCRE2_SPTR piece = (PCRE2_SPTR)text + begin;
    size_t n = end - begin, done = 0;
    enum pi_code rc = PI_OK;

    while (done < n) {
        /* The text is known to be valid; checking it for every match would take quadratic time. */
        int k = pcre2_match(pattern, piece, n, done, PCRE2_NO_UTF_CHECK, w->match, w->limits);
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->match);

        if (k == PCRE2_ERROR_NOMATCH || (k >= 0 && at[1] <= at[0]))
            break;
        if (k < 0)
            PI_FAIL(err, k == PCRE2_ERROR_NOMEMORY ? PI_E_NOMEM : PI_E_RANGE,
                    "cannot cut %zu bytes of text into words (PCRE2 error %d)", n, k);
        if (at[0] > done)
            PI_TRY(add_cut(w, to, begin + at[0], err));
        PI_TRY(add_cut(w, to, begin + at[1], err));
        done = at[1];
    }
    if (done < n)
        PI_TRY(add_cut(w, to, end, err));
out:
    return rc;
}

static enum pi_code prepare_match(struct pi_tok_work *w, struct pi_err *err)
{
    if (w->match == NULL)
        w->match = pcre2_match_data_create(1, NULL);
    if (w->limits == NULL)
        w->limits = pcre2_match_context_create(NULL);
    if (w->match == NULL || w->limits == NULL)
        return pi_err_set(err, PI_E_NOMEM, "cannot allocate PCRE2 match data");
    /* Backtracking over a run of white space counts as one try a character; there is no other in the patterns. */
    (void)pcre2_set_match_limit(w->limits, UINT32_MAX);
    return PI_OK;
}

enum pi_code pi_tok_pre_split(struct pi_tok_work *w, const char *text, size_t n, unsigned *which,
                              struct pi_err *err)
{
    unsigned from = 0;
    enum pi_code rc = PI_OK;

    PI_TRY(prepare_match(w, err));
    w->n_cuts[from] = 0;
    if (n > 0)
        PI_TRY(add_cut(w, from, n, err));
    for (unsigned k = 0; k < w->t->n_patterns; k++, from = !from) {
        w->n_cuts[!from] = 0;
        for (size_t i = 0, begin = 0; i < w->n_cuts[from]; i++) {
            PI_TRY(cut_piece(w, w->t->patterns[k], text, begin, w->cuts[from][i], !from, err));
            begin = w->cuts[from][i];
        }
    }
    *which = from;
out:
    return rc;
}
