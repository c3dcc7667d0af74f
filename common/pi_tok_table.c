#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tok_int.h"

#include <string.h>

#define MIX UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * MIX;
    return h ^ h >> 29;
}

static uint64_t hash_bytes(uint64_t seed, const char *s, size_t n)
{
    uint64_t h = mix(seed, n), v;

    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&v, s, 8);
        h = mix(h, v);
    }
    v = 0;
    memcpy(&v, s, n);
    h = mix(h, v);
    return h ^ h >> 32;
}

/* A power of two that n entries fill to at most a half. */
static size_t table_size(size_t n)
{
    size_t size = 16;

    while (size / 2 < n)
        size *= 2;
    return size;
}

enum pi_code pi_tok_table_init(struct pi_tok_table *table, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t size = table_size(n);

    PI_ALLOC(table->slots, size, err);
    memset(table->slots, 0xff, size * sizeof(*table->slots)); /* PI_NO_SYMBOL */
    table->mask = size - 1;
out:
    return rc;
}

/* The slot that holds the n bytes, or the empty one where they would go. */
static size_t find_slot(const struct pi_tokenizer *t, const char *s, size_t n)
{
    size_t i = hash_bytes(t->seed, s, n) & t->table.mask;

    for (;; i = (i + 1) & t->table.mask) {
        uint32_t sym = t->table.slots[i];

        if (sym == PI_NO_SYMBOL ||
            (t->syms[sym].len == n && memcmp(t->arena + t->syms[sym].off, s, n) == 0))
            return i;
    }
}

uint32_t pi_tok_find(const struct pi_tokenizer *t, const char *s, size_t n)
{
    return n <= t->max_len ? t->table.slots[find_slot(t, s, n)] : PI_NO_SYMBOL;
}

uint32_t pi_tok_enter(struct pi_tokenizer *t, uint32_t sym)
{
    struct pi_str s = pi_tok_text(t, sym);
    size_t i = find_slot(t, s.p, s.n);

    if (t->table.slots[i] == PI_NO_SYMBOL) {
        t->table.slots[i] = sym;
        t->table.n++;
        if (s.n > t->max_len)
            t->max_len = (uint32_t)s.n;
    }
    return t->table.slots[i];
}

enum pi_code pi_tok_pairs_init(struct pi_tok_pairs *pairs, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t size = table_size(n);

    PI_ALLOC(pairs->slots, size, err);
    memset(pairs->slots, 0xff, size * sizeof(*pairs->slots));
    pairs->mask = size - 1;
out:
    return rc;
}

static size_t find_pair_slot(const struct pi_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t h = mix(t->seed, (uint64_t)left << 32 | right);
    size_t i = (h ^ h >> 32) & t->pairs.mask;

    while (t->pairs.slots[i].left != PI_NO_SYMBOL &&
           (t->pairs.slots[i].left != left || t->pairs.slots[i].right != right))
        i = (i + 1) & t->pairs.mask;
    return i;
}

const struct pi_tok_pair *pi_tok_find_pair(const struct pi_tokenizer *t, uint32_t left,
                                           uint32_t right)
{
    const struct pi_tok_pair *p;

    if (left == PI_NO_SYMBOL || right == PI_NO_SYMBOL)
        return NULL;
    p = &t->pairs.slots[find_pair_slot(t, left, right)];
    return p->left != PI_NO_SYMBOL ? p : NULL;
}

void pi_tok_enter_pair(struct pi_tokenizer *t, struct pi_tok_pair pair)
{
    size_t i = find_pair_slot(t, pair.left, pair.right);

    if (t->pairs.slots[i].left == PI_NO_SYMBOL) {
        t->pairs.slots[i] = pair;
        t->pairs.n++;
    }
}
