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

static enum pi_code push_cand(struct pi_tok_work *w, struct pi_tok_cand c, struct pi_err *err)
{
    size_t i = w->n_heap;
    enum pi_code rc = PI_OK;

    if (i == w->cap_heap)
        PI_TRY(pi_grow_array(&w->heap, &w->cap_heap, i < 64 ? 64 : i + 1, sizeof(*w->heap), err));
    w->n_heap++;
    while (i > 0 && w->heap[(i - 1) / 2].key > c.key) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = c;
out:
    return rc;
}

static struct pi_tok_cand pop_cand(struct pi_tok_work *w)
{
    struct pi_tok_cand top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0, child;

    while ((child = 2 * i + 1) < w->n_heap) {
        if (child + 1 < w->n_heap && w->heap[child + 1].key < w->heap[child].key)
            child++;
        if (w->heap[child].key >= last.key)
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
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
    c.right = a->next;
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
        struct pi_tok_node *a = &w->nodes[left], *b = &w->nodes[c.right];

        /* Nodes only grow, so a pair is still the one that was queued if it is adjacent and as long. */
        if (a->len == 0 || a->next != c.right || a->len + b->len != c.len)
            continue;
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

enum pi_code pi_tok_emit_byte(struct pi_tok_work *w, uint8_t byte, struct pi_err *err)
{
    uint32_t id = w->t->byte_sym[byte];

    if (id < w->t->n_vocab)
        return pi_tokens_push(w->out, (int32_t)id, err);
    if (w->t->unk >= 0)
        return pi_tokens_push(w->out, w->t->unk, err);
    return pi_err_set(err, PI_E_UNSUPPORTED,
                      "the vocabulary has no token for byte 0x%02X of the text", byte);
}
