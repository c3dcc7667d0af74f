#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tok_int.h"
#include "common/pi_utf8.h"

#include <math.h>
#include <string.h>

#define SPACE_MARK \
    "\xe2\x96\x81" /* U+2581, which stands for a space in SentencePiece vocabularies */

size_t pi_tok_spm_unescape(char *s, size_t n)
{
    size_t out = 0;

    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && memcmp(s + i, SPACE_MARK, 3) == 0) {
            s[out++] = ' ';
            i += 3;
        } else {
            s[out++] = s[i++];
        }
    }
    return out;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

/* "<0xAB>", nothing else -> 0xAB; -1 otherwise. */
static int parse_byte_token(struct pi_str s)
{
    int hi, lo;

    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>')
        return -1;
    hi = hex_digit(s.p[3]);
    lo = hex_digit(s.p[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* A byte token's text becomes the byte, so that decoding needs no special case. */
static enum pi_code enter_byte_token(struct pi_tokenizer *t, uint32_t id, struct pi_err *err)
{
    struct pi_tok_sym *sym = &t->syms[id];
    struct pi_str s = pi_tok_text(t, id);
    int byte = parse_byte_token(s);

    if (byte < 0)
        return pi_err_set(err, PI_E_CORRUPT,
                          "token %u: byte token \"%.*s\" is not of the form <0xAB>", id,
                          (int)(s.n < 40 ? s.n : 40), s.p);
    if (t->byte_sym[byte] != PI_NO_SYMBOL)
        return pi_err_set(err, PI_E_CORRUPT, "tokens %u and %u both stand for byte 0x%02X",
                          t->byte_sym[byte], id, (unsigned)byte);
    t->byte_sym[byte] = id;
    t->arena[sym->off] = (char)byte;
    sym->len = 1;
    return PI_OK;
}

/* Order-preserving map of scores to priorities, the highest score to the smallest number. */
static uint32_t score_priority(float score)
{
    float f = score + 0.0f; /* -0 is 0 */
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits & UINT32_C(0x80000000) ? bits : ~(bits | UINT32_C(0x80000000));
}

/* Whether a space is never behind another character, so that words can be merged one by one. */
static bool spaces_lead(struct pi_str s)
{
    for (size_t i = 1; i < s.n; i++)
        if (s.p[i] == ' ' && s.p[i - 1] != ' ')
            return false;
    return true;
}

enum pi_code pi_tok_spm_init(struct pi_tokenizer *t, const struct pi_gguf *g, struct pi_err *err)
{
    const struct pi_gguf_kv *scores = NULL;
    enum pi_code rc = PI_OK;

    PI_TRY(pi_gguf_bool(g, "tokenizer.ggml.add_space_prefix", false, &t->add_space_prefix, err));
    PI_TRY(pi_gguf_array(g, "tokenizer.ggml.scores", PI_GGUF_F32, true, &scores, err));
    if (scores->n != t->n_vocab)
        PI_FAIL(err, PI_E_CORRUPT, "tokenizer.ggml.scores has %llu entries for %u tokens",
                (unsigned long long)scores->n, t->n_vocab);
    PI_ALLOC(t->prio, t->n_vocab, err);
    PI_TRY(pi_tok_table_init(&t->table, t->n_vocab, err));
    t->words_apart = true;
    for (uint32_t i = 0; i < t->n_vocab; i++) {
        float score = pi_gguf_elem_f32(scores, i);

        if (isnan(score))
            PI_FAIL(err, PI_E_CORRUPT, "token %u: its score is not a number", i);
        t->prio[i] = score_priority(score);
        if (t->syms[i].type == PI_TOK_BYTE)
            PI_TRY(enter_byte_token(t, i, err));
        if (!t->syms[i].mergeable)
            continue;
        if (pi_tok_enter(t, i) != i)
            PI_FAIL(err, PI_E_CORRUPT, "tokens %u and %u are the same text",
                    pi_tok_find(t, pi_tok_text(t, i).p, t->syms[i].len), i);
        t->words_apart = t->words_apart && spaces_lead(pi_tok_text(t, i));
    }
out:
    return rc;
}

/* Merges one word and appends its tokens. */
static enum pi_code encode_word(struct pi_tok_work *w, const char *word, size_t n,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    if (n >= UINT32_MAX)
        PI_FAIL(err, PI_E_RANGE, "a word of %zu bytes is too long", n);
    w->n_nodes = 0;
    for (size_t i = 0, len; i < n; i += len) {
        len = pi_utf8_char(word + i, n - i);
        len = len > 0 ? len : 1;
        PI_TRY(pi_tok_add_node(w, (uint32_t)len, pi_tok_find(w->t, word + i, len), err));
    }
    PI_TRY(pi_tok_merge(w, word, err));
    for (size_t i = 0; i < w->n_nodes; i++) {
        const struct pi_tok_node *node = &w->nodes[i];

        if (node->len > 0 && node->sym != PI_NO_SYMBOL)
            PI_TRY(pi_tokens_push(w->out, (int32_t)node->sym, err));
        else
            for (uint32_t k = 0; k < node->len; k++)
                PI_TRY(pi_tok_emit_byte(w, (uint8_t)word[node->off + k], err));
    }
out:
    return rc;
}

enum pi_code pi_tok_spm_encode(struct pi_tok_work *w, const char *text, size_t n, bool prefix,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (size_t begin = 0, end; begin < n; begin = end) {
        end = w->t->words_apart ? begin + 1 : n;
        while (end < n && (text[end] != ' ' || text[end - 1] == ' '))
            end++;
        if (begin > 0 || !prefix) {
            PI_TRY(encode_word(w, text + begin, end - begin, err));
            continue;
        }
        PI_TRY(pi_grow_array(&w->buf, &w->cap_buf, end + 1, 1, err));
        w->buf[0] = ' ';
        memcpy(w->buf + 1, text, end);
        PI_TRY(encode_word(w, w->buf, end + 1, err));
    }
out:
    return rc;
}
