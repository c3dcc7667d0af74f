#include "config.h"

#include "runtime/pi_chat.h"

#include "common/pi_alloc.h"

#include <stdlib.h>
#include <string.h>

/* What stands around a turn's text: "{" and "}" enclose a control token, everything else is text. */
struct around {
    const char *before, *after;
};

struct pi_chat_format {
    const char *name;
    const char *sign;  /* in a template that makes this format; NULL: none does */
    const char *start; /* in front of everything */
    struct around role[3];
    const char *answer; /* in front of an answer that is to come */
    bool
        no_system; /* the system's text stands inside the user's first turn, after system_in and before its text */
    const char *stop;
};

/* In the order of looking: the first whose sign the template holds. */
static const struct pi_chat_format formats[] = {
    {.name = "llama3",
     .sign = "<|start_header_id|>",
     .start = "{<|begin_of_text|>}",
     .role = {{"{<|start_header_id|>}system{<|end_header_id|>}\n\n", "{<|eot_id|>}"},
              {"{<|start_header_id|>}user{<|end_header_id|>}\n\n", "{<|eot_id|>}"},
              {"{<|start_header_id|>}assistant{<|end_header_id|>}\n\n", "{<|eot_id|>}"}},
     .answer = "{<|start_header_id|>}assistant{<|end_header_id|>}\n\n"},
    {.name = "chatml",
     .sign = "<|im_start|>",
     .start = "",
     .role = {{"{<|im_start|>}system\n", "{<|im_end|>}\n"},
              {"{<|im_start|>}user\n", "{<|im_end|>}\n"},
              {"{<|im_start|>}assistant\n", "{<|im_end|>}\n"}},
     .answer = "{<|im_start|>}assistant\n"},
    {.name = "phi3",
     .sign = "<|end|>",
     .start = "",
     .role = {{"{<|system|>}\n", "{<|end|>}\n"},
              {"{<|user|>}\n", "{<|end|>}\n"},
              {"{<|assistant|>}\n", "{<|end|>}\n"}},
     .answer = "{<|assistant|>}\n"},
    {.name = "zephyr",
     .sign = "<|user|>",
     .start = "",
     .role = {{"<|system|>\n", "{</s>}\n"},
              {"<|user|>\n", "{</s>}\n"},
              {"<|assistant|>\n", "{</s>}\n"}},
     .answer = "<|assistant|>\n"},
    {.name = "llama2",
     .sign = "<<SYS>>",
     .start = "",
     .role = {{"<<SYS>>\n", "\n<</SYS>>\n\n"}, {"{<s>}[INST] ", " [/INST]"}, {" ", " {</s>}"}},
     .answer = "",
     .no_system = true},
    {.name = "mistral",
     .sign = "[INST]",
     .start = "{<s>}",
     .role = {{"", "\n\n"}, {"[INST] ", " [/INST]"}, {" ", "{</s>}"}},
     .answer = "",
     .no_system = true},
    {.name = "vicuna",
     .sign = "USER:",
     .start = "{<s>}",
     .role = {{"", " "}, {"USER: ", " "}, {"ASSISTANT: ", "{</s>}"}},
     .answer = "ASSISTANT:",
     .stop = "USER:"},
    {.name = "alpaca",
     .sign = "### Instruction",
     .start = "{<s>}",
     .role = {{"", "\n\n"}, {"### Instruction:\n", "\n\n"}, {"### Response:\n", "\n\n"}},
     .answer = "### Response:\n",
     .stop = "### Instruction:"},
    {.name = "plain",
     .start = "",
     .role = {{"", "\n\n"}, {"User: ", "\n"}, {"Assistant: ", "\n"}},
     .answer = "Assistant:",
     .stop = "\nUser:"},
};

#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

enum pi_code pi_chat_find(const char *name, const struct pi_chat_format **out, struct pi_err *err)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (strcmp(formats[i].name, name) == 0) {
            *out = &formats[i];
            return PI_OK;
        }
    }
    return pi_err_set(err, PI_E_USAGE, "chat format %s: expected " PI_CHAT_NAMES, name);
}

const struct pi_chat_format *pi_chat_detect(const struct pi_gguf *g, bool *known_out)
{
    struct pi_str t = {NULL, 0};

    if (pi_gguf_string(g, "tokenizer.chat_template", false, &t, NULL) != PI_OK)
        t.n = 0;
    for (size_t i = 0; i < N_FORMATS && t.n > 0; i++) {
        if (formats[i].sign != NULL &&
            memmem(t.p, t.n, formats[i].sign, strlen(formats[i].sign)) != NULL) {
            *known_out = true;
            return &formats[i];
        }
    }
    *known_out = false;
    return &formats[N_FORMATS - 1];
}

const char *pi_chat_name(const struct pi_chat_format *f)
{
    return f->name;
}

const char *pi_chat_stop(const struct pi_chat_format *f)
{
    return f->stop;
}

/* ---- tokens --------------------------------------------------------------------------------- */

struct writer {
    const struct pi_tokenizer *tok;
    struct pi_tokens *out;
    char *text; /* (n) not encoded yet: text of the format and of people, side by side */
    size_t n, cap;
    bool began; /* something was encoded */
    bool
        inside; /* the last token was a marker that is no control token: a text goes on behind it */
};

static enum pi_code put(struct writer *w, const char *text, size_t n, struct pi_err *err)
{
    enum pi_code rc = pi_grow_array(&w->text, &w->cap, w->n + n + 1, 1, err);

    if (rc == PI_OK && n > 0)
        memcpy(w->text + w->n, text, n);
    if (rc == PI_OK)
        w->n += n;
    return rc;
}

/* A text in front of which no control token stands gets the BOS where the model says so. */
static enum pi_code flush(struct writer *w, struct pi_err *err)
{
    const bool bos = !w->began && pi_tokenizer_add_bos(w->tok);
    enum pi_code rc = PI_OK;

    if (w->n > 0) {
        rc = pi_tokenizer_encode_people(w->tok, w->text, w->n, bos, !w->inside, w->out, err);
        w->began = true;
    }
    w->n = 0;
    return rc;
}

/* A control token by its text, or one that a file lists as user-defined; "<s>" and "</s>" stand for the beginning and the end of a text, whatever the vocabulary calls
 * them: -1: none. */
static int32_t find_control(const struct writer *w, const char *name, size_t n, bool *control)
{
    int32_t id = pi_tokenizer_special(w->tok, name, n, control);

    if (id < 0 && n == 3 && memcmp(name, "<s>", n) == 0)
        id = pi_tokenizer_bos(w->tok);
    else if (id < 0 && n == 4 && memcmp(name, "</s>", n) == 0)
        id = pi_tokenizer_eos(w->tok);
    else
        return id;
    *control = true;
    return id;
}

/* What the vocabulary does not have as a special token stays text, but for the ends of texts, which are nothing then. */
static enum pi_code put_control(struct writer *w, const char *name, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    bool control = true,
         ends = n <= 4 && (memcmp(name, "<s>", 3) == 0 || memcmp(name, "</s", 3) == 0);
    const int32_t bos = pi_tokenizer_bos(w->tok), id = find_control(w, name, n, &control);

    if (id < 0)
        return ends ? PI_OK : put(w, name, n, err);
    PI_TRY(flush(w, err));
    if (!w->began && id != bos && pi_tokenizer_add_bos(w->tok))
        PI_TRY(pi_tokens_push(w->out, bos, err));
    PI_TRY(pi_tokens_push(w->out, id, err));
    w->began = true;
    w->inside = !control;
out:
    return rc;
}

/* Text of the format, with control tokens in braces. */
static enum pi_code put_format(struct writer *w, const char *f, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    while (*f != '\0') {
        const char *brace = strchr(f, '{'), *end;

        if (brace == NULL)
            return put(w, f, strlen(f), err);
        PI_TRY(put(w, f, (size_t)(brace - f), err));
        end = strchr(brace, '}');
        PI_TRY(put_control(w, brace + 1, (size_t)(end - brace - 1), err));
        f = end + 1;
    }
out:
    return rc;
}

static enum pi_code check_order(const struct pi_message *m, size_t n, struct pi_err *err)
{
    if (n == 0)
        return pi_err_set(err, PI_E_USAGE, "a conversation without a message");
    for (size_t i = 0; i < n; i++) {
        if (i > 0 && m[i].role == PI_ROLE_SYSTEM)
            return pi_err_set(err, PI_E_USAGE,
                              "message %zu: a system message that is not the first", i);
        if (m[i].role == PI_ROLE_ASSISTANT && (i == 0 || m[i - 1].role == PI_ROLE_SYSTEM))
            return pi_err_set(err, PI_E_USAGE, "message %zu: an answer to nothing", i);
        if (i > 0 && m[i].role == m[i - 1].role)
            return pi_err_set(err, PI_E_USAGE,
                              "messages %zu and %zu: two of the same role in a row", i - 1, i);
    }
    if (m[n - 1].role != PI_ROLE_USER)
        return pi_err_set(err, PI_E_USAGE, "the last message is not the user's");
    return PI_OK;
}

enum pi_code pi_chat_encode(const struct pi_chat_format *f, const struct pi_tokenizer *tok,
                            const struct pi_message *m, size_t n, struct pi_tokens *out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct writer w = {.tok = tok, .out = out};
    const struct pi_message *inside = NULL;

    PI_TRY(check_order(m, n, err));
    PI_TRY(put_format(&w, f->start, err));
    for (size_t i = 0; i < n; i++) {
        const struct around *a = &f->role[m[i].role], *s = &f->role[PI_ROLE_SYSTEM];

        if (m[i].role == PI_ROLE_SYSTEM && f->no_system) {
            inside = &m[i];
            continue;
        }
        PI_TRY(put_format(&w, a->before, err));
        if (inside != NULL) {
            PI_TRY(put_format(&w, s->before, err));
            PI_TRY(put(&w, inside->text, inside->n, err));
            PI_TRY(put_format(&w, s->after, err));
            inside = NULL;
        }
        PI_TRY(put(&w, m[i].text, m[i].n, err));
        PI_TRY(put_format(&w, a->after, err));
    }
    PI_TRY(put_format(&w, f->answer, err));
    PI_TRY(flush(&w, err));
out:
    free(w.text);
    return rc;
}
