/*
 * pi_ilp_list.c - the list of undominated partial solutions.
 *
 * After layer l the list holds every (bytes, gain) that some choice for layers 0..l reaches, that no other beats in both, and that can
 * still end in a solution losing at most `gap` against the bound. The loss of a partial solution is the sum of its options' regrets; what
 * capacity must stay unused whatever follows is charged at the price of a byte.
 */
#include "config.h"

#include "solver/pi_ilp_int.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <stdlib.h>
#include <string.h>

struct state {
    uint64_t bytes;
    double gain;
    uint32_t parent; /* in the list before */
    uint32_t option; /* of the layer that this list is after */
};

struct list {
    struct state *s; /* bytes and gain both strictly rising */
    size_t n, cap;
};

/* What decides whether a partial solution lives on. */
struct cut {
    uint64_t capacity, suffix; /* the most that layers to come can still use */
    double price, best_sum;    /* best of the layers so far */
    double limit;              /* gap and rounding */
    size_t room;               /* states that the next list may have */
};

static bool lives(const struct cut *c, uint64_t bytes, double gain)
{
    double loss = c->best_sum - gain + c->price * (double)bytes;

    if (bytes > c->capacity)
        return false;
    if (c->suffix < c->capacity - bytes)
        loss += c->price * (double)(c->capacity - bytes - c->suffix);
    return loss <= c->limit;
}

/* Appends a state unless the last one, which takes no more bytes, gains as much. */
static void push(struct list *to, const struct state *s)
{
    if (to->n > 0 && to->s[to->n - 1].gain >= s->gain)
        return;
    if (to->n > 0 && to->s[to->n - 1].bytes == s->bytes)
        to->n--;
    to->s[to->n++] = *s;
}

/* to = acc merged with `from` moved by option o. */
static enum pi_code merge(const struct list *acc, const struct list *from,
                          const struct pi_ilp_option *o, uint32_t index, const struct cut *c,
                          struct list *to, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t i = 0;

    to->n = 0;
    PI_TRY(pi_grow_array(&to->s, &to->cap, acc->n + from->n, sizeof(*to->s), err));
    for (size_t j = 0; j < from->n; j++) {
        struct state m = {from->s[j].bytes + o->bytes, from->s[j].gain + o->gain, (uint32_t)j,
                          index};

        if (!lives(c, m.bytes, m.gain))
            continue;
        while (i < acc->n && acc->s[i].bytes <= m.bytes)
            push(to, &acc->s[i++]);
        push(to, &m);
    }
    while (i < acc->n)
        push(to, &acc->s[i++]);
out:
    return rc;
}

/* lists[l + 1] out of lists[l]; the last two lists are scratch. full: it would have more states than there is room for. */
static enum pi_code extend(const struct ilp *p, size_t l, const struct cut *c, struct list *lists,
                           bool *full, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct ilp_set *s = &p->sets[l];
    struct list *to = &lists[l + 1], *now = &lists[p->n + 1], *next = now + 1;

    now->n = 0;
    for (size_t i = 0; i < s->n && !*full; i++) {
        struct list *last = now;

        if (s->regret[i] > c->limit)
            continue;
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(merge(now, &lists[l], &s->opt[i], (uint32_t)i, c, next, err));
        now = next;
        next = last;
        *full = now->n > c->room;
    }
    if (now->n == 0 || *full)
        return PI_OK;
    PI_TRY(pi_grow_array(&to->s, &to->cap, now->n, sizeof(*to->s), err));
    memcpy(to->s, now->s, now->n * sizeof(*to->s));
    to->n = now->n;
out:
    return rc;
}

/* The best state is the last one: gain rises along a list. */
static void adopt(struct ilp *p, const struct list *lists)
{
    size_t at = lists[p->n].n - 1;

    p->gain = lists[p->n].s[at].gain;
    p->bytes = lists[p->n].s[at].bytes;
    for (size_t l = p->n; l-- > 0;) {
        p->pick[l] = lists[l + 1].s[at].option;
        at = lists[l + 1].s[at].parent;
    }
}

enum pi_code pi_ilp_list(struct ilp *p, double gap, size_t max_states, bool *found, bool *full,
                         size_t *n_states, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct list *lists = NULL; /* (n + 1), and two for scratch */
    struct cut c = {.capacity = p->capacity, .price = p->price, .limit = gap + p->tol};
    size_t used = 1;

    *found = *full = false;
    PI_ALLOC(lists, p->n + 3, err);
    PI_TRY(pi_grow_array(&lists[0].s, &lists[0].cap, 1, sizeof(*lists[0].s), err));
    lists[0].n = 1;
    for (size_t l = 0; l < p->n; l++)
        c.suffix += p->sets[l].opt[p->sets[l].n - 1].bytes;
    for (size_t l = 0; l < p->n && lists[l].n > 0 && !*full; l++) {
        c.suffix -= p->sets[l].opt[p->sets[l].n - 1].bytes;
        c.best_sum += p->sets[l].best;
        c.room = max_states > used ? max_states - used : 0;
        c.room = c.room < UINT32_MAX / 2 ? c.room : UINT32_MAX / 2; /* parents are 32 bits wide */
        PI_TRY(extend(p, l, &c, lists, full, err));
        used += lists[l + 1].n;
    }
    *n_states += used;
    *found = !*full && lists[p->n].n > 0 && lists[p->n].s[lists[p->n].n - 1].gain >= p->gain;
    if (*found)
        adopt(p, lists);
out:
    for (size_t l = 0; lists != NULL && l < p->n + 3; l++)
        free(lists[l].s);
    free(lists);
    return rc;
}
