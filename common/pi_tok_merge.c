#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_tok_int.h"

#include <string.h>

#define NONE UINT32_MAX

enum pi_code pi_tok_add_node(struct pi_tok_work *w, uint32_t len, uint32_t sym, struct pi_err *err)
{
    size_t i = w->n_nodes;
    struct pi_tok_node *node;
    enum pi_code rc = PI_OK;

    if (i == w->cap_nodes)
        PI_TRY(
            pi_grow_array(&w->nodes, &w->cap_nodes, i < 64 ? 64 : i + 1, sizeof(*w->nodes), err));
    node = &w->nodes[i];
    node->prev = i > 0 ? (uint32_t)i - 1 : NONE;
    node->next = NONE;
    node->off = i > 0 ? node[-1].off + node[-1].len : 0;
    node->len = len;
    node->sym = sym;
    if (i > 0)
        node[-1].next = (uint32_t)i;
    w->n_nodes++;
out:
    return rc;
}

/* Children of entry i: WAYS * i + 1 and up. Four of them lie in one cache line, which halves the time on long words. */
#define WAYS 4

static enum pi_code push_cand(struct pi_tok_work *w, struct pi_tok_cand c, struct pi_err *err)
{
    size_t i = w->n_heap;
    enum pi_code rc = PI_OK;

    if (i == w->cap_heap)
        PI_TRY(pi_grow_array(&w->heap, &w->cap_heap, i < 64 ? 64 : i + 1, sizeof(*w->heap), err));
    w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / WAYS].key > c.key) {
        w->heap[i] = w->heap[(i - 1) / WAYS];
        i = (i - 1) / WAYS;
    }
    w->heap[i] = c;
out:
    return rc;
}

static struct pi_tok_cand pop_cand(struct pi_tok_work *w)
{
    struct pi_tok_cand *heap = w->heap, top = heap[0], last = heap[--w->n_heap];
    size_t i = 0, child;

    while ((child = WAYS * i + 1) < w->n_heap) {
        size_t end = child + WAYS < w->n_heap ? child + WAYS : w->n_heap, best = child;

        while (++child < end)
            if (heap[child].key < heap[best].key)
                best = child;
        if (heap[best].key >= last.key)
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = last;
    return top;
}

/* Queues the merge of node left with its neighbour, if there is one. */
static enum pi_code queue_pair(struct pi_tok_work *w, const char *word, uint32_t left,
                               struct pi_err *err)
{
    const struct pi_tokenizer *t = w->t;
    const struct pi_tok_node *a = &w->nodes[left], *b;
    struct pi_tok_cand c = {0};
    uint32_t prio;

    if (a->next == NONE)
        return PI_OK;
    b = &w->nodes[a->next];
    if (t->algo == PI_TOK_SPM) {
        c.sym = pi_tok_find(t, word + a->off, (size_t)a->len + b->len);
        if (c.sym == PI_NO_SYMBOL)
            return PI_OK;
        prio = t->prio[c.sym];
    } else {
        const struct pi_tok_pair *pair = pi_tok_find_pair(t, a->sym, b->sym);

        if (pair == NULL)
            return PI_OK;
        c.sym = pair->merged;
        prio = pair->rank;
    }
    c.key = (uint64_t)prio << 32 | left;
    c.len = a->len + b->len;
    return push_cand(w, c, err);
}

enum pi_code pi_tok_merge(struct pi_tok_work *w, const char *word, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    w->n_heap = 0;
    for (size_t i = 0; i + 1 < w->n_nodes; i++)
        PI_TRY(queue_pair(w, word, (uint32_t)i, err));
    while (w->n_heap > 0) {
        struct pi_tok_cand c = pop_cand(w);
        uint32_t left = (uint32_t)c.key;
        struct pi_tok_node *a = &w->nodes[left], *b;

        /* Nodes only grow, so a pair that is still as long is the one that was queued. */
        if (a->len == 0 || a->next == NONE || a->len + w->nodes[a->next].len != c.len)
            continue;
        b = &w->nodes[a->next];
        a->len = c.len;
        a->sym = c.sym;
        a->next = b->next;
        b->len = 0;
        if (a->next != NONE)
            w->nodes[a->next].prev = left;
        PI_TRY(queue_pair(w, word, left, err));
        if (a->prev != NONE)
            PI_TRY(queue_pair(w, word, a->prev, err));
    }
out:
    return rc;
}

/* U+FFFD in bytes, each of which has a token; false when one has none. */
static bool replacement(const struct pi_tokenizer *t, uint32_t id[3])
{
    static const uint8_t bytes[3] = {0xef, 0xbf, 0xbd};

    for (unsigned i = 0; i < 3; i++) {
        id[i] = t->byte_sym[bytes[i]];
        if (id[i] >= t->n_vocab)
            return false;
    }
    return true;
}

enum pi_code pi_tok_emit_byte(struct pi_tok_work *w, uint8_t byte, struct pi_err *err)
{
    const struct pi_tokenizer *t = w->t;
    uint32_t id = t->byte_sym[byte], instead[3];
    enum pi_code rc = PI_OK;

    if (id < t->n_vocab)
        return pi_tokens_push(w->out, (int32_t)id, err);
    /* The unknown token of byte-level vocabularies is as a rule the end of a text, so it comes last. */
    if (t->algo == PI_TOK_BPE && replacement(t, instead)) {
        for (unsigned i = 0; i < 3; i++)
            PI_TRY(pi_tokens_push(w->out, (int32_t)instead[i], err));
        return PI_OK;
    }
    if (t->unk >= 0)
        return pi_tokens_push(w->out, t->unk, err);
    PI_FAIL(err, PI_E_UNSUPPORTED, "the vocabulary has no token for byte 0x%02X of the text", byte);
out:
    return rc;
}
