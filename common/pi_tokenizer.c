#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_shape.h"
#include "common/pi_size.h"
#include "common/pi_tok_int.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tokens that end a turn in chat models whose files name no key for them. */
static const char *const end_texts[] = {"<|eot_id|>",     "<|im_end|>", "<|end|>",
                                        "<end_of_turn>",  "<|eom_id|>", "<|endoftext|>",
                                        "<|end_of_text|>"};

/* ---- loading ---- */

/* The type of every token: the file's, or what the texts say where an old file has none. */
static enum pi_code load_types(struct pi_tokenizer *t, const struct pi_gguf *g, struct pi_err *err)
{
    const char *key = "tokenizer.ggml.token_type";
    const struct pi_gguf_kv *kv = pi_gguf_find(g, key);
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_array(g, key, kv != NULL && kv->elem == PI_GGUF_U32 ? PI_GGUF_U32 : PI_GGUF_I32,
                         false, &kv, err));
    if (kv != NULL && kv->n != t->n_vocab)
        PI_FAIL(err, PI_E_CORRUPT, "%s has %llu entries for %u tokens", key,
                (unsigned long long)kv->n, t->n_vocab);
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct pi_str s = pi_tok_text(t, i);
        int64_t type = kv != NULL ? pi_gguf_elem_i64(kv, i) : PI_TOK_NORMAL;

        if (type < PI_TOK_NORMAL || type > PI_TOK_BYTE)
            PI_FAIL(err, PI_E_CORRUPT, "%s: token %u has type %lld", key, i, (long long)type);
        if (kv == NULL && t->algo == PI_TOK_SPM && s.n == 6 && memcmp(s.p, "<0x", 3) == 0 &&
            s.p[5] == '>')
            type = PI_TOK_BYTE;
        t->syms[i].type = (uint8_t)type;
    }
out:
    return rc;
}

static enum pi_code load_texts(struct pi_tokenizer *t, const struct pi_gguf *g, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    uint64_t bytes = 0;
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_array(g, "tokenizer.ggml.tokens", PI_GGUF_STR, true, &kv, err));
    if (kv->n == 0 || kv->n > PI_MAX_VOCAB)
        PI_FAIL(err, PI_E_CORRUPT, "tokenizer.ggml.tokens has %llu entries, expected 1 to %u",
                (unsigned long long)kv->n, PI_MAX_VOCAB);
    for (uint64_t i = 0; i < kv->n; i++) {
        if (kv->strs[i].n > PI_TOK_MAX_BYTES)
            PI_FAIL(err, PI_E_CORRUPT, "token %llu has %zu bytes, at most %u make sense",
                    (unsigned long long)i, kv->strs[i].n, PI_TOK_MAX_BYTES);
        if (!pi_size_add(bytes, kv->strs[i].n, &bytes))
            PI_FAIL(err, PI_E_CORRUPT, "the tokens' total size overflows");
    }
    PI_ALLOC(t->syms, kv->n, err);
    PI_ALLOC(t->arena, bytes, err);
    t->n_vocab = (uint32_t)kv->n;
    t->n_syms = t->cap_syms = kv->n;
    t->cap_arena = bytes;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        t->syms[i] = (struct pi_tok_sym){.off = t->n_arena, .len = (uint32_t)kv->strs[i].n};
        if (kv->strs[i].n > 0)
            memcpy(t->arena + t->n_arena, kv->strs[i].p, kv->strs[i].n);
        t->n_arena += kv->strs[i].n;
    }
out:
    return rc;
}

/* A token id from the metadata, -1 when there is none. */
static enum pi_code load_id(struct pi_tokenizer *t, const struct pi_gguf *g, const char *key,
                            int32_t *out, struct pi_err *err)
{
    uint32_t id = UINT32_MAX; /* some writers store this for "none" */
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_u32(g, key, false, &id, err));
    if (id != UINT32_MAX && id >= t->n_vocab)
        PI_FAIL(err, PI_E_CORRUPT, "%s is %u, the vocabulary has %u tokens", key, id, t->n_vocab);
    *out = id == UINT32_MAX ? -1 : (int32_t)id;
out:
    return rc;
}

/* A token that frames a text is never part of one: old files list it as a normal token. */
static void make_control(struct pi_tokenizer *t, int32_t id, bool eog)
{
    if (id < 0)
        return;
    if (t->syms[id].type == PI_TOK_NORMAL)
        t->syms[id].type = PI_TOK_CONTROL;
    t->syms[id].eog = t->syms[id].eog || eog;
}

static enum pi_code load_special_ids(struct pi_tokenizer *t, const struct pi_gguf *g,
                                     struct pi_err *err)
{
    int32_t eot = -1, eom = -1;
    enum pi_code rc = PI_OK;

    PI_TRY(load_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, err));
    PI_TRY(load_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, err));
    PI_TRY(load_id(t, g, "tokenizer.ggml.unknown_token_id", &t->unk, err));
    PI_TRY(load_id(t, g, "tokenizer.ggml.eot_token_id", &eot, err));
    PI_TRY(load_id(t, g, "tokenizer.ggml.eom_token_id", &eom, err));
    make_control(t, t->bos, false);
    make_control(t, t->eos, true);
    make_control(t, eot, true);
    make_control(t, eom, true);
    for (uint32_t i = 0; i < t->n_vocab; i++)
        for (size_t k = 0;
             t->syms[i].type == PI_TOK_CONTROL && k < sizeof(end_texts) / sizeof(end_texts[0]); k++)
            if (pi_str_eq(pi_tok_text(t, i), end_texts[k]))
                t->syms[i].eog = true;
out:
    return rc;
}

/* Turns the file's spelling of every token into the bytes it stands for, and says which ones merging may produce. */
static void unescape_texts(struct pi_tokenizer *t)
{
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        struct pi_tok_sym *sym = &t->syms[i];
        char *s = t->arena + sym->off;
        bool plain =
            sym->type == PI_TOK_NORMAL || (sym->type == PI_TOK_UNUSED && t->algo == PI_TOK_BPE);
        size_t n = sym->len;

        if (t->algo == PI_TOK_BPE) {
            sym->mergeable = plain && n > 0 && pi_tok_bpe_unescape(s, n, &n);
        } else if (plain || sym->type == PI_TOK_USER) {
            /* Texts have U+2581 for every space when they are merged: a token with a space never comes up. */
            sym->mergeable = plain && n > 0 && memchr(s, ' ', n) == NULL;
            n = pi_tok_spm_unescape(s, n);
        }
        sym->len = (uint32_t)n;
    }
}

/* ---- special tokens ---- */

struct by_text {
    uint32_t id, len;
    const char *s;
};

static int compare_text(const void *a, const void *b)
{
    const struct by_text *x = a, *y = b;
    int order = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);

    if (order != 0)
        return order;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool is_special(const struct pi_tok_sym *sym)
{
    return sym->len > 0 &&
           (sym->type == PI_TOK_USER || sym->type == PI_TOK_CONTROL || sym->type == PI_TOK_UNKNOWN);
}

static enum pi_code check_special(const struct by_text *list, size_t n, struct pi_err *err)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].len > PI_TOK_MAX_SPECIAL)
            return pi_err_set(err, PI_E_CORRUPT,
                              "special token %u has %u bytes, at most %u make sense", list[i].id,
                              list[i].len, PI_TOK_MAX_SPECIAL);
        if (i > 0 && list[i].len == list[i - 1].len &&
            memcmp(list[i].s, list[i - 1].s, list[i].len) == 0)
            return pi_err_set(err, PI_E_CORRUPT, "special tokens %u and %u are the same text",
                              list[i - 1].id, list[i].id);
    }
    return PI_OK;
}

static enum pi_code index_special(struct pi_tokenizer *t, struct pi_err *err)
{
    struct by_text *list = NULL;
    size_t n = 0;
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < t->n_vocab; i++)
        n += is_special(&t->syms[i]);
    PI_ALLOC(list, n, err);
    PI_ALLOC(t->special, n, err);
    n = 0;
    for (uint32_t i = 0; i < t->n_vocab; i++)
        if (is_special(&t->syms[i]))
            list[n++] = (struct by_text){i, t->syms[i].len, t->arena + t->syms[i].off};
    qsort(list, n, sizeof(*list), compare_text);
    PI_TRY(check_special(list, n, err));
    for (size_t i = 0; i < n; i++) {
        t->special[i] = list[i].id;
        t->special_at[(uint8_t)list[i].s[0] + 1] = i + 1;
    }
    for (size_t b = 1; b < 257; b++)
        if (t->special_at[b] < t->special_at[b - 1])
            t->special_at[b] = t->special_at[b - 1];
    t->n_special = n;
out:
    free(list);
    return rc;
}

/* First of special[lo, hi), which share depth bytes and are longer, whose byte at depth is at least c. */
static size_t lower_bound(const struct pi_tokenizer *t, size_t lo, size_t hi, size_t depth,
                          unsigned c)
{
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((uint8_t)pi_tok_text(t, t->special[mid]).p[depth] < c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Which special tokens are looked for in a text. */
enum special {
    SPECIAL_USER,   /* user-defined ones */
    SPECIAL_ALL,    /* control tokens too */
    SPECIAL_PEOPLE, /* user-defined ones that are no marker of a template in disguise */
};

static bool is_wanted(const struct pi_tokenizer *t, const struct pi_tok_sym *sym,
                      enum special which)
{
    const char *s = t->arena + sym->off;

    if (which == SPECIAL_ALL)
        return true;
    return sym->type == PI_TOK_USER &&
           (which != SPECIAL_PEOPLE || sym->len < 3 || s[0] != '<' || s[sym->len - 1] != '>');
}

/* The longest special token that s starts with, or PI_NO_SYMBOL. */
static uint32_t match_special(const struct pi_tokenizer *t, const char *s, size_t n,
                              enum special which)
{
    size_t lo = t->special_at[(uint8_t)s[0]], hi = t->special_at[(uint8_t)s[0] + 1];
    uint32_t best = PI_NO_SYMBOL;

    for (size_t depth = 1; lo < hi; depth++) {
        const struct pi_tok_sym *sym = &t->syms[t->special[lo]];

        if (sym->len == depth) {
            if (is_wanted(t, sym, which))
                best = t->special[lo];
            lo++;
        }
        if (depth == n)
            break;
        lo = lower_bound(t, lo, hi, depth, (uint8_t)s[depth]);
        hi = lower_bound(t, lo, hi, depth, (uint8_t)s[depth] + 1u);
    }
    return best;
}

/* ---- create, destroy ---- */

static enum pi_code load_metaspace(struct pi_tokenizer *t, const struct pi_gguf *g,
                                   struct pi_err *err)
{
    struct pi_str s = {"", 0};
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_string(g, PI_TOK_KEY_METASPACE, false, &s, err));
    if (s.n == 0)
        goto out;
    if (!pi_str_eq(s, "first") && !pi_str_eq(s, "always"))
        PI_FAIL(err, PI_E_UNSUPPORTED, PI_TOK_KEY_METASPACE ": \"%.*s\" is not supported",
                (int)(s.n < 60 ? s.n : 60), s.p);
    t->prefix_rule = s.p[0] == 'f' ? PI_TOK_PREFIX_FIRST : PI_TOK_PREFIX_ALWAYS;
out:
    return rc;
}

static enum pi_code load(struct pi_tokenizer *t, const struct pi_gguf *g, struct pi_err *err)
{
    struct pi_str model = {"", 0};
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_string(g, "tokenizer.ggml.model", true, &model, err));
    if (!pi_str_eq(model, "llama") && !pi_str_eq(model, "gpt2"))
        PI_FAIL(err, PI_E_UNSUPPORTED,
                "tokenizer.ggml.model \"%.*s\" is not supported, only \"llama\" and \"gpt2\"",
                (int)(model.n < 60 ? model.n : 60), model.p);
    t->algo = pi_str_eq(model, "llama") ? PI_TOK_SPM : PI_TOK_BPE;
    t->add_space_prefix = t->add_bos = t->algo == PI_TOK_SPM;
    PI_TRY(load_texts(t, g, err));
    PI_TRY(load_types(t, g, err));
    PI_TRY(load_special_ids(t, g, err));
    unescape_texts(t);
    PI_TRY(index_special(t, err));
    PI_TRY(t->algo == PI_TOK_SPM ? pi_tok_spm_init(t, g, err) : pi_tok_bpe_init(t, g, err));
    PI_TRY(load_metaspace(t, g, err));
    PI_TRY(pi_gguf_bool(g, "tokenizer.ggml.add_bos_token", false, &t->add_bos, err));
    t->add_bos = t->add_bos && t->bos >= 0;
out:
    return rc;
}

enum pi_code pi_tokenizer_create(const struct pi_gguf *g, struct pi_tokenizer **out,
                                 struct pi_err *err)
{
    struct pi_tokenizer *t = NULL;
    enum pi_code rc = PI_OK;

    PI_ALLOC(t, 1, err);
    t->bos = t->eos = t->unk = -1;
    memset(t->byte_sym, 0xff, sizeof(t->byte_sym)); /* PI_NO_SYMBOL */
    if (getentropy(&t->seed, sizeof(t->seed)) != 0)
        t->seed =
            (uint64_t)(uintptr_t)t; /* orders no result, only guards against made-up collisions */
    PI_TRY(load(t, g, err));
    *out = t;
    t = NULL;
out:
    /* the reader of keys names the file itself */
    if (rc != PI_OK && g->map.path != NULL && err != NULL &&
        strncmp(err->msg, g->map.path, strlen(g->map.path)) != 0)
        pi_err_wrap(err, "%s", g->map.path);
    pi_tokenizer_destroy(t);
    return rc;
}

void pi_tokenizer_destroy(struct pi_tokenizer *t)
{
    if (t == NULL)
        return;
    for (unsigned i = 0; i < t->n_patterns; i++)
        pcre2_code_free(t->patterns[i]);
    free(t->pairs.slots);
    free(t->prio);
    free(t->special);
    free(t->table.slots);
    free(t->arena);
    free(t->syms);
    free(t);
}

uint32_t pi_tokenizer_n_vocab(const struct pi_tokenizer *t)
{
    return t->n_vocab;
}

int32_t pi_tokenizer_bos(const struct pi_tokenizer *t)
{
    return t->bos;
}

int32_t pi_tokenizer_eos(const struct pi_tokenizer *t)
{
    return t->eos;
}

bool pi_tokenizer_add_bos(const struct pi_tokenizer *t)
{
    return t->add_bos;
}

bool pi_tokenizer_is_eog(const struct pi_tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->n_vocab && t->syms[id].eog;
}

/* ---- encode ---- */

void pi_tokens_free(struct pi_tokens *t)
{
    free(t->ids);
    *t = (struct pi_tokens){0};
}

enum pi_code pi_tokens_push(struct pi_tokens *t, int32_t id, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (t->n == t->cap)
        PI_TRY(pi_grow_array(&t->ids, &t->cap, t->n < 64 ? 64 : t->n + 1, sizeof(*t->ids), err));
    t->ids[t->n++] = id;
out:
    return rc;
}

static void work_free(struct pi_tok_work *w)
{
    free(w->nodes);
    free(w->heap);
    free(w->buf);
    free(w->cuts[0]);
    free(w->cuts[1]);
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->limits);
}

/* Encodes text[0, n), which holds no special token. */
static enum pi_code encode_plain(struct pi_tok_work *w, const char *text, size_t n, bool prefix,
                                 struct pi_err *err)
{
    if (n == 0)
        return PI_OK;
    if (w->t->prefix_rule != PI_TOK_PREFIX_SPM && /* a space that is there is enough */
        (text[0] == ' ' || (n >= 3 && memcmp(text, "\xe2\x96\x81", 3) == 0)))
        prefix = false;
    return w->t->algo == PI_TOK_SPM ? pi_tok_spm_encode(w, text, n, prefix, err)
                                    : pi_tok_bpe_encode(w, text, n, err);
}

static enum pi_code encode(const struct pi_tokenizer *t, const char *text, size_t n, bool add_bos,
                           enum special which, bool begins, struct pi_tokens *out,
                           struct pi_err *err)
{
    struct pi_tok_work w = {.t = t, .out = out};
    /* SentencePiece puts its space where a text starts: at the beginning and behind a control token. */
    bool prefix = t->add_space_prefix && begins;
    size_t begin = 0, n_before = out->n;
    enum pi_code rc = PI_OK;

    if (add_bos && t->bos < 0)
        PI_FAIL(err, PI_E_UNSUPPORTED, "the vocabulary has no token for the beginning of a text");
    if (add_bos)
        PI_TRY(pi_tokens_push(out, t->bos, err));
    for (size_t i = 0; i < n;) {
        uint32_t id = match_special(t, text + i, n - i, which);

        if (id == PI_NO_SYMBOL) {
            i++;
            continue;
        }
        PI_TRY(encode_plain(&w, text + begin, i - begin, prefix, err));
        PI_TRY(pi_tokens_push(out, (int32_t)id, err));
        prefix = t->add_space_prefix && t->prefix_rule != PI_TOK_PREFIX_FIRST &&
                 (t->prefix_rule == PI_TOK_PREFIX_ALWAYS || t->syms[id].type == PI_TOK_CONTROL);
        begin = i += t->syms[id].len;
    }
    PI_TRY(encode_plain(&w, text + begin, n - begin, prefix, err));
out:
    if (rc != PI_OK)
        out->n = n_before;
    work_free(&w);
    return rc;
}

enum pi_code pi_tokenizer_encode(const struct pi_tokenizer *t, const char *text, size_t n,
                                 bool add_bos, bool parse_special, struct pi_tokens *out,
                                 struct pi_err *err)
{
    return encode(t, text, n, add_bos, parse_special ? SPECIAL_ALL : SPECIAL_USER, true, out, err);
}

enum pi_code pi_tokenizer_encode_people(const struct pi_tokenizer *t, const char *text, size_t n,
                                        bool add_bos, bool begins, struct pi_tokens *out,
                                        struct pi_err *err)
{
    return encode(t, text, n, add_bos, SPECIAL_PEOPLE, begins, out, err);
}

int32_t pi_tokenizer_special(const struct pi_tokenizer *t, const char *text, size_t n,
                             bool *control_out)
{
    const uint32_t id = n > 0 ? match_special(t, text, n, SPECIAL_ALL) : PI_NO_SYMBOL;

    if (id == PI_NO_SYMBOL || t->syms[id].len != n)
        return -1;
    *control_out = t->syms[id].type != PI_TOK_USER;
    return (int32_t)id;
}

/* ---- decode ---- */

struct pi_str pi_tokenizer_piece(const struct pi_tokenizer *t, int32_t id)
{
    struct pi_str none = {"", 0};

    if (id < 0 || (uint32_t)id >= t->n_vocab || t->syms[id].type == PI_TOK_CONTROL ||
        t->syms[id].type == PI_TOK_UNKNOWN)
        return none;
    return pi_tok_text(t, (uint32_t)id);
}

enum pi_code pi_tokenizer_decode(const struct pi_tokenizer *t, const int32_t *ids, size_t n,
                                 char **text_out, size_t *n_out, struct pi_err *err)
{
    bool prefix = t->add_space_prefix; /* the mirror image of encode */
    size_t len = 0, cap = 0;
    char *text = NULL;
    enum pi_code rc = PI_OK;

    PI_TRY(pi_grow_array(&text, &cap, 64, 1, err));
    for (size_t i = 0; i < n; i++) {
        struct pi_str s = pi_tokenizer_piece(t, ids[i]);
        unsigned type =
            ids[i] >= 0 && (uint32_t)ids[i] < t->n_vocab ? t->syms[ids[i]].type : PI_TOK_UNUSED;

        if (prefix && s.n > 0 && s.p[0] == ' ' && (type == PI_TOK_NORMAL || type == PI_TOK_BYTE)) {
            s.p++;
            s.n--;
        }
        prefix = t->add_space_prefix && type == PI_TOK_CONTROL;
        PI_TRY(pi_grow_array(&text, &cap, len + s.n + 1, 1, err));
        memcpy(text + len, s.p, s.n);
        len += s.n;
    }
    text[len] = '\0';
    *text_out = text;
    *n_out = len;
    text = NULL;
out:
    free(text);
    return rc;
}
