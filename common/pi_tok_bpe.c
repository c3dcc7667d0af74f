#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tok_int.h"
#include "common/pi_utf8.h"

#include <stdlib.h>
#include <string.h>

/* The byte alphabet of GPT-2: printable Latin-1 bytes are written as themselves, the other 68 as U+0100 and up, in order. */
static int byte_of_char(const char *s, unsigned len)
{
    unsigned b0 = (uint8_t)s[0], c;

    if (len == 1)
        return b0 >= 0x21 && b0 <= 0x7e ? (int)b0 : -1;
    if (len != 2)
        return -1;
    c = (b0 & 0x1f) << 6 | ((uint8_t)s[1] & 0x3f);
    if ((c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff))
        return (int)c;
    if (c < 0x100 || c > 0x143)
        return -1;
    c -= 0x100;
    if (c <= 0x20)
        return (int)c;
    if (c <= 0x42)
        return (int)(c - 0x21 + 0x7f);
    return 0xad;
}

bool pi_tok_bpe_unescape(char *s, size_t n, size_t *n_out)
{
    size_t out = 0;
    unsigned len;

    for (size_t i = 0; i < n; i += len) {
        len = pi_utf8_char(s + i, n - i);
        if (len == 0 || byte_of_char(s + i, len) < 0)
            return false;
    }
    for (size_t i = 0; i < n; i += len) {
        len = pi_utf8_char(s + i, n - i);
        s[out++] = (char)byte_of_char(s + i, len);
    }
    *n_out = out;
    return true;
}

/* The symbol of n bytes; a new one behind the vocabulary when there is none yet. */
static enum pi_code intern_symbol(struct pi_tokenizer *t, const char *s, size_t n,
                                  uint32_t *sym_out, struct pi_err *err)
{
    uint32_t sym = pi_tok_find(t, s, n);
    enum pi_code rc = PI_OK;

    if (sym == PI_NO_SYMBOL) {
        PI_TRY(pi_grow_array(&t->syms, &t->cap_syms, t->n_syms + 1, sizeof(*t->syms), err));
        PI_TRY(pi_grow_array(&t->arena, &t->cap_arena, t->n_arena + n, 1, err));
        sym = (uint32_t)t->n_syms;
        memcpy(t->arena + t->n_arena, s, n);
        t->syms[sym] =
            (struct pi_tok_sym){.off = t->n_arena, .len = (uint32_t)n, .type = PI_TOK_UNUSED};
        t->n_arena += n;
        t->n_syms++;
        (void)pi_tok_enter(t, sym);
    }
    *sym_out = sym;
out:
    return rc;
}

/* One line of the list of merges: "left right" in the byte alphabet. buf holds it and is overwritten. */
static enum pi_code enter_merge(struct pi_tokenizer *t, uint32_t rank, char *buf, size_t n,
                                struct pi_err *err)
{
    struct pi_tok_pair pair = {.rank = rank};
    char *gap = n > 1 ? memchr(buf + 1, ' ', n - 1) : NULL;
    size_t n_left, n_right;
    enum pi_code rc = PI_OK;

    if (gap == NULL || gap == buf + n - 1)
        PI_FAIL(err, PI_E_CORRUPT,
                "tokenizer.ggml.merges: entry %u \"%.*s\" is not two symbols with a space between",
                rank, (int)(n < 60 ? n : 60), buf);
    /* Symbols outside the byte alphabet cannot come up in a text. */
    if (!pi_tok_bpe_unescape(buf, (size_t)(gap - buf), &n_left) ||
        !pi_tok_bpe_unescape(gap + 1, n - 1 - (size_t)(gap - buf), &n_right))
        return PI_OK;
    PI_TRY(intern_symbol(t, buf, n_left, &pair.left, err));
    PI_TRY(intern_symbol(t, gap + 1, n_right, &pair.right, err));
    memmove(buf + n_left, gap + 1, n_right);
    PI_TRY(intern_symbol(t, buf, n_left + n_right, &pair.merged, err));
    pi_tok_enter_pair(t, pair);
out:
    return rc;
}

static enum pi_code load_merges(struct pi_tokenizer *t, const struct pi_gguf_kv *merges,
                                struct pi_err *err)
{
    char *buf = NULL;
    size_t cap = 0;
    enum pi_code rc = PI_OK;

    PI_TRY(pi_tok_pairs_init(&t->pairs, merges->n, err));
    for (uint32_t i = 0; i < merges->n; i++) {
        struct pi_str s = merges->strs[i];

        if (s.n == 0 || s.n > PI_TOK_MAX_BYTES)
            PI_FAIL(err, PI_E_CORRUPT, "tokenizer.ggml.merges: entry %u has %zu bytes", i, s.n);
        PI_TRY(pi_grow_array(&buf, &cap, s.n, 1, err));
        memcpy(buf, s.p, s.n);
        PI_TRY(enter_merge(t, i, buf, s.n, err));
    }
out:
    free(buf);
    return rc;
}

enum pi_code pi_tok_bpe_init(struct pi_tokenizer *t, const struct pi_gguf *g, struct pi_err *err)
{
    const struct pi_gguf_kv *merges = NULL;
    struct pi_str pre = {"", 0}, arch = {"", 0};
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_string(g, "general.architecture", false, &arch, err));
    PI_TRY(pi_gguf_string(g, "tokenizer.ggml.pre", false, &pre, err));
    PI_TRY(pi_tok_pre_init(t, pre, arch, err));
    PI_TRY(pi_gguf_array(g, "tokenizer.ggml.merges", PI_GGUF_STR, true, &merges, err));
    if (merges->n > PI_TOK_MAX_MERGES)
        PI_FAIL(err, PI_E_CORRUPT, "tokenizer.ggml.merges has %llu entries",
                (unsigned long long)merges->n);
    PI_TRY(pi_tok_table_init(&t->table, t->n_vocab + 3 * merges->n, err));
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        if (t->syms[i].mergeable && pi_tok_enter(t, i) != i)
            PI_FAIL(err, PI_E_CORRUPT, "tokens %u and %u are the same text",
                    pi_tok_find(t, pi_tok_text(t, i).p, t->syms[i].len), i);
    }
    PI_TRY(load_merges(t, merges, err));
    for (unsigned b = 0; b < 256; b++) {
        char c = (char)b;

        t->byte_sym[b] = pi_tok_find(t, &c, 1);
    }
out:
    return rc;
}

/* Merges one word and appends its tokens. */
static enum pi_code encode_word(struct pi_tok_work *w, const char *word, size_t n,
                                struct pi_err *err)
{
    const struct pi_tokenizer *t = w->t;
    enum pi_code rc = PI_OK;

    if (n >= UINT32_MAX)
        PI_FAIL(err, PI_E_RANGE, "a word of %zu bytes is too long", n);
    if (t->ignore_merges) {
        uint32_t whole = pi_tok_find(t, word, n);

        if (whole < t->n_vocab)
            return pi_tokens_push(w->out, (int32_t)whole, err);
    }
    w->n_nodes = 0;
    for (size_t i = 0; i < n; i++)
        PI_TRY(pi_tok_add_node(w, 1, t->byte_sym[(uint8_t)word[i]], err));
    PI_TRY(pi_tok_merge(w, word, err));
    for (size_t i = 0; i < w->n_nodes; i++) {
        const struct pi_tok_node *node = &w->nodes[i];

        if (node->len > 0 && node->sym < t->n_vocab)
            PI_TRY(pi_tokens_push(w->out, (int32_t)node->sym, err));
        else
            for (uint32_t k = 0; k < node->len; k++)
                PI_TRY(pi_tok_emit_byte(w, (uint8_t)word[node->off + k], err));
    }
out:
    return rc;
}

/* The patterns need valid UTF-8: every byte that is none is replaced by one that is no letter, digit, space or
 * punctuation (U+0001), in a copy, so that offsets stay; words are then taken from the text itself. */
static enum pi_code make_valid(struct pi_tok_work *w, const char *text, size_t n,
                               const char **valid_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t i = 0;
    unsigned len;

    while (i < n && (len = pi_utf8_char(text + i, n - i)) > 0)
        i += len;
    *valid_out = text;
    if (i == n)
        return PI_OK;
    PI_TRY(pi_grow_array(&w->buf, &w->cap_buf, n, 1, err));
    memcpy(w->buf, text, n);
    while (i < n) {
        len = pi_utf8_char(text + i, n - i);
        if (len == 0) {
            w->buf[i] = 1;
            len = 1;
        }
        i += len;
    }
    *valid_out = w->buf;
out:
    return rc;
}

enum pi_code pi_tok_bpe_encode(struct pi_tok_work *w, const char *text, size_t n,
                               struct pi_err *err)
{
    const char *valid;
    unsigned which = 0;
    enum pi_code rc = PI_OK;

    PI_TRY(make_valid(w, text, n, &valid, err));
    PI_TRY(pi_tok_pre_split(w, valid, n, &which, err));
    for (size_t i = 0, begin = 0; i < w->n_cuts[which]; i++) {
        PI_TRY(encode_word(w, text + begin, w->cuts[which][i] - begin, err));
        begin = w->cuts[which][i];
    }
out:
    return rc;
}
