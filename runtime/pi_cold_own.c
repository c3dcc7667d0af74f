/*
 * pi_cold_own.c - the sums of a list in which each token has a list of its own, so that a token's sum is the one it has alone.
 *
 * Alone, a token's list is cut into partial sums by its length. Among others the rows of gate and up are read once for all that want them, which leaves no trace; then
 * the partial sums of one number, of each token as its own list has them, are made by one thread. Most of their neurons are the same, since
 * equal shares of lists are near each other: rows of down are read once, but for some at the ends.
 *
 * Who has which place in a token's list is told by the masks, from what each chunk of products counted.
 */
#include "config.h"

#include "runtime/pi_cold_int.h"

#include <string.h>

/* What each thread knows of all tokens' lists. */
struct lists {
    const struct pi_cold_walk *w;
    struct pi_cold_form form[PI_COLD_TOKENS];
    uint32_t n_parts[PI_COLD_TOKENS], n_parts_max;
};

void pi_cold_own_count(const struct pi_cold_job *job, struct pi_cold_span c, uint32_t i)
{
    uint8_t *n = job->scratch->n_wanted + (size_t)i * job->n_tok;

    memset(n, 0, job->n_tok);
    for (uint32_t k = c.begin; k < c.end; k++) {
        for (uint32_t rest = job->tokens[k] & pi_cold_all_tokens(job); rest != 0; rest &= rest - 1)
            n[__builtin_ctz(rest)]++;
    }
}

static struct lists read_lists(const struct pi_cold_walk *w)
{
    const struct pi_cold_job *job = w->job;
    const uint8_t *counts = job->scratch->n_wanted;
    uint32_t n[PI_COLD_TOKENS] = {0};
    struct lists l = {.w = w};

    for (uint32_t i = 0; i < w->n_chunks; i++) {
        for (uint32_t t = 0; t < job->n_tok; t++)
            n[t] += *counts++;
    }
    for (uint32_t t = 0; t < job->n_tok; t++) {
        l.form[t] = pi_cold_form_within(job->scratch, pi_cold_form_of(n[t], 1), n[t], job->n_tok);
        l.n_parts[t] = pi_cold_chunks_in(l.form[t].n_one, l.form[t].chunk_one);
        if (l.n_parts[t] > l.n_parts_max)
            l.n_parts_max = l.n_parts[t];
    }
    return l;
}

/* The chunk that has a token's neuron of this place, or the number of chunks; *place becomes that in the chunk. */
static uint32_t find_chunk(const struct pi_cold_walk *w, uint32_t t, uint32_t *place)
{
    const uint32_t n_tok = w->job->n_tok;
    const uint8_t *counts = w->job->scratch->n_wanted + t;
    uint32_t i = 0;

    while (i < w->n_chunks && *place >= counts[(size_t)i * n_tok])
        *place -= counts[(size_t)i++ * n_tok];
    return i;
}

/* ---- partial sums ---- */

/* The partial sums of one number, of all tokens. */
struct sums {
    const struct pi_cold_job *job;
    float *to;                      /* (n_tok, ld) */
    uint32_t used;                  /* tokens whose sum is not empty */
    uint32_t n_waiting;             /* tokens with neurons left */
    uint32_t first[PI_COLD_TOKENS]; /* chunk that a token's neurons begin in... */
    uint32_t skip[PI_COLD_TOKENS];  /* ... behind so many others of its own */
    uint32_t left[PI_COLD_TOKENS];  /* neurons still to come */
    struct pi_cold_list list;
    float prod[PI_COLD_TILE * PI_COLD_TOKENS], *next; /* of the list */
};

static void begin_sums(const struct lists *l, uint32_t part, struct sums *s)
{
    const struct pi_cold_job *job = l->w->job;

    s->job = job;
    s->to = job->scratch->part + (size_t)part * job->n_tok * job->scratch->ld;
    s->used = s->n_waiting = s->list.n = 0;
    s->next = s->prod;
    for (uint32_t t = 0; t < job->n_tok; t++) {
        const struct pi_cold_form *f = &l->form[t];

        s->skip[t] = part * f->chunk_one;
        s->left[t] = part < l->n_parts[t] ? f->n_one - s->skip[t] : 0;
        if (s->left[t] > f->chunk_one)
            s->left[t] = f->chunk_one;
        s->first[t] = s->left[t] > 0 ? find_chunk(l->w, t, &s->skip[t]) : l->w->n_chunks;
        s->n_waiting += s->left[t] > 0;
    }
}

static void add_list(struct sums *s)
{
    const struct pi_cold_span all = {0, s->job->w->down_t.n_cols};

    pi_cold_add_rows(s->job, &s->list, (struct pi_cold_span){0, s->list.n}, s->prod, all, s->to,
                     s->job->scratch->ld);
    s->list.n = 0;
    s->next = s->prod;
}

/* Of a neuron's products those of tokens in keep to *to, which moves on. */
static void keep_products(uint32_t fired, uint32_t keep, const float *from, float **to)
{
    for (; fired != 0; fired &= fired - 1, from++) {
        if ((fired & -fired & keep) != 0)
            *(*to)++ = *from;
    }
}

/* A neuron that fired for tokens in keep; prod: what it gives to all tokens that it fired for. */
static void add_neuron(struct sums *s, uint32_t i, uint32_t keep, const float *prod)
{
    const size_t ld = s->job->scratch->ld;

    for (uint32_t rest = keep & ~s->used; rest != 0; rest &= rest - 1)
        memset(s->to + (size_t)__builtin_ctz(rest) * ld, 0,
               s->job->w->down_t.n_cols * sizeof(*s->to));
    s->used |= keep;
    s->list.id[s->list.n] = s->job->ids[i];
    s->list.mask[s->list.n++] = keep;
    keep_products(s->job->scratch->fired[i], keep, prod, &s->next);
    if (s->list.n == PI_COLD_TILE)
        add_list(s);
}

/* Of the tokens in mask, which all want a neuron, those whose sum it is part of. */
static uint32_t count_in(struct sums *s, uint32_t mask)
{
    uint32_t in = 0;

    for (; mask != 0; mask &= mask - 1) {
        uint32_t t = (uint32_t)__builtin_ctz(mask);

        if (s->skip[t] > 0) {
            s->skip[t]--;
        } else if (s->left[t] > 0) {
            in |= 1u << t;
            s->n_waiting -= --s->left[t] == 0;
        }
    }
    return in;
}

static void take_chunk(struct sums *s, struct pi_cold_span c, uint32_t active)
{
    const struct pi_cold_job *job = s->job;
    const uint32_t *fired = job->scratch->fired;
    const float *prod = job->scratch->prod + (size_t)c.begin * job->n_tok;

    for (uint32_t i = c.begin; i < c.end; prod += pi_cold_n_set(fired[i++])) {
        uint32_t in = count_in(s, job->tokens[i] & active);

        if ((in & fired[i]) != 0)
            add_neuron(s, i, in & fired[i], prod);
    }
}

static void make_sums(const struct lists *l, uint32_t part)
{
    const struct pi_cold_walk *w = l->w;
    const uint32_t n_tok = w->job->n_tok;
    struct sums s;

    begin_sums(l, part, &s);
    for (uint32_t k = 0; k < w->n_chunks && s.n_waiting > 0; k++) {
        uint32_t active = 0;

        for (uint32_t t = 0; t < n_tok; t++)
            active |= (uint32_t)(s.first[t] <= k && s.left[t] > 0) << t;
        if (active != 0)
            take_chunk(&s, pi_cold_chunk(w, k), active);
    }
    add_list(&s);
    for (uint32_t t = 0; t < n_tok; t++)
        w->job->scratch->used[(size_t)part * n_tok + t] = s.used >> t & 1;
}

static void make_parts(const struct lists *l)
{
    const struct pi_cold_walk *w = l->w;

    for (uint32_t k = w->thread; k < l->n_parts_max;) {
        make_sums(l, k);
        k = w->n_threads +
            atomic_fetch_add_explicit(&w->job->scratch->drawn_parts, 1, memory_order_relaxed);
    }
}

/* ---- what is left of the lists ---- */

/* Where in the job's list a token's own list leaves its partial sums: the neuron of that place, or the end. */
static uint32_t find_rest(const struct lists *l, uint32_t t)
{
    const struct pi_cold_job *job = l->w->job;
    uint32_t place = l->form[t].n_one, i = find_chunk(l->w, t, &place);
    struct pi_cold_span c;

    if (i == l->w->n_chunks)
        return job->n;
    c = pi_cold_chunk(l->w, i);
    for (i = c.begin; i < c.end; i++) {
        if ((job->tokens[i] >> t & 1) != 0 && place-- == 0)
            return i;
    }
    return job->n;
}

/* Tokens whose rest begins at neuron i; *next: where the next one's does. */
static uint32_t rests_at(const uint32_t *rest, uint32_t n_tok, uint32_t i, uint32_t *next)
{
    uint32_t tokens = 0;

    *next = UINT32_MAX;
    for (uint32_t t = 0; t < n_tok; t++) {
        tokens |= (uint32_t)(rest[t] == i) << t;
        if (rest[t] > i && rest[t] < *next)
            *next = rest[t];
    }
    return tokens;
}

/* out[cols) += rows of the neurons behind the tokens' partial sums, in ascending order. */
static void add_rest(const struct lists *l, struct pi_cold_span cols)
{
    const struct pi_cold_walk *w = l->w;
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_scratch *s = job->scratch;
    const size_t d = job->w->down_t.n_cols;
    uint32_t rest[PI_COLD_TOKENS], next = job->n, keep = 0;
    float prod[PI_COLD_TILE * PI_COLD_TOKENS], *to = prod;
    struct pi_cold_list li = {.n = 0};

    for (uint32_t t = 0; t < job->n_tok; t++) {
        rest[t] = find_rest(l, t);
        next = rest[t] < next ? rest[t] : next;
    }
    for (uint32_t k = next / w->form.chunk_two; k < w->n_chunks; k++) {
        const struct pi_cold_span c = pi_cold_chunk(w, k);
        const float *from = s->prod + (size_t)c.begin * job->n_tok;

        for (uint32_t i = c.begin; i < c.end; from += pi_cold_n_set(s->fired[i++])) {
            if (i == next)
                keep |= rests_at(rest, job->n_tok, i, &next);
            if ((s->fired[i] & keep) == 0)
                continue;
            li.id[li.n] = job->ids[i];
            li.mask[li.n++] = s->fired[i] & keep;
            keep_products(s->fired[i], keep, from, &to);
            if (li.n == PI_COLD_TILE) {
                pi_cold_add_rows(job, &li, (struct pi_cold_span){0, li.n}, prod, cols, job->out, d);
                li.n = 0;
                to = prod;
            }
        }
    }
    pi_cold_add_rows(job, &li, (struct pi_cold_span){0, li.n}, prod, cols, job->out, d);
}

void pi_cold_own_sums(const struct pi_cold_walk *w, struct pi_cold_span cols)
{
    const struct pi_cold_job *job = w->job;
    const struct lists l = read_lists(w);

    make_parts(&l);
    if (w->n_threads > 1)
        pi_pool_barrier(job->pool, w->thread);
    if (w->thread == 0)
        atomic_store_explicit(&job->scratch->drawn_parts, 0, memory_order_relaxed);
    for (uint32_t t = 0; t < job->n_tok; t++)
        pi_cold_add_parts(job, t, l.n_parts[t], cols);
    add_rest(&l, cols);
}
