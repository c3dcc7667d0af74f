/*
 * pi_cold_tile.c - some neurons for the tokens that want them: the activation, the second matrix where it is not 0, and their rows of down.
 *
 * With many tokens each neuron has its own set of them, and kernels take rows with their masks.
 */
#include "config.h"

#include "runtime/pi_cold_int.h"

#define HEAD 512 /* bytes of a row that start the hardware's prefetcher */

/* ---- rows ---- */

/* out (packed): rows of the list . x of their tokens. */
static void dots_f32(const struct pi_cold_job *job, const struct pi_mat *m,
                     const struct pi_cold_list *l, float *out)
{
    const struct pi_cpu_type *type = job->cpu->type[m->type];
    const float *x[PI_COLD_TOKENS];

    for (uint32_t t = 0; t < job->n_tok; t++)
        x[t] = job->x + (size_t)t * m->n_cols;
    if (job->n_tok == 1)
        type->dot_ids(m->data, m->row_bytes, l->id, l->n, x[0], m->n_cols, out);
    else
        type->dot_masked(m->data, m->row_bytes, l->id, l->mask, l->n, 0, x, job->n_tok, m->n_cols,
                         out);
}

/* The same with quantised x. */
static void dots_q8(const struct pi_cold_job *job, const struct pi_mat *m,
                    const struct pi_cold_list *l, float *out)
{
    const struct pi_cpu_type *type = job->cpu->type[m->type];
    const struct pi_q8 *x[PI_COLD_TOKENS];

    for (uint32_t t = 0; t < job->n_tok; t++)
        x[t] = job->q8 + (size_t)t * (m->n_cols / PI_Q8_BLOCK);
    if (job->n_tok == 1)
        type->dot_ids_q8(m->data, m->row_bytes, l->id, l->n, x[0], m->n_cols, out);
    else
        type->dot_masked_q8(m->data, m->row_bytes, l->id, l->mask, l->n, 0, x, job->n_tok,
                            m->n_cols, out);
}

static void dots(const struct pi_cold_job *job, const struct pi_mat *m,
                 const struct pi_cold_list *l, float *out)
{
    bool q8 = job->q8 != NULL && job->cpu->type[m->type]->dot_rows_q8 != NULL;

    (q8 ? dots_q8 : dots_f32)(job, m, l, out);
}

void pi_cold_add_rows(const struct pi_cold_job *job, const struct pi_cold_list *l,
                      struct pi_cold_span some, const float *prod, struct pi_cold_span cols,
                      float *y, size_t ld)
{
    const struct pi_mat *m = &job->w->down_t;
    const struct pi_cpu_type *type = job->cpu->type[m->type];
    const uint32_t *id = l->id + some.begin, *mask = l->mask + some.begin;
    const uint32_t n = some.end - some.begin;
    float *to[PI_COLD_TOKENS];

    for (uint32_t t = 0; t < job->n_tok; t++)
        to[t] = y + (size_t)t * ld;
    if (job->n_tok == 1)
        type->axpy_ids(m->data, m->row_bytes, id, prod, n, cols.begin, cols.end, to[0]);
    else
        type->axpy_masked(m->data, m->row_bytes, id, mask, n, 0, prod, to, job->n_tok, cols.begin,
                          cols.end);
}

/* Asks for the heads of the rows that are read first from a matrix, so that the stream from memory does not stop where one matrix or chunk
 * ends and the next begins. */
static void ask(const struct pi_mat *m, const uint32_t *ids, uint32_t n)
{
    size_t bytes = m->row_bytes < HEAD ? m->row_bytes : HEAD;

    for (uint32_t i = 0; i < n && i < PI_COLD_STREAMS; i++) {
        const char *row = pi_mat_row(m, ids[i]);

        for (size_t b = 0; b < bytes; b += PI_COLD_LINE)
            __builtin_prefetch(row + b, 0, 2);
    }
}

/* ---- the first pass ---- */

/* The matrix that the activation is applied to. */
static const struct pi_mat *first_mat(const struct pi_cold_job *job)
{
    return job->shape->gated ? &job->w->gate : &job->w->up;
}

void pi_cold_ask(const struct pi_cold_job *job, struct pi_cold_span c)
{
    uint32_t n = 0;

    for (uint32_t i = c.begin; i < c.end && n < PI_COLD_STREAMS; i++) {
        if (job->tokens == NULL || (job->tokens[i] & pi_cold_all_tokens(job)) != 0) {
            ask(first_mat(job), job->ids + i, 1);
            n++;
        }
    }
}

void pi_cold_draw(struct pi_cold_walk *w)
{
    struct pi_cold_scratch *s = w->job->scratch;

    w->next = w->n_threads + atomic_fetch_add_explicit(&s->drawn, 1, memory_order_relaxed);
    if (w->next < w->n_chunks)
        pi_cold_ask(w->job, pi_cold_chunk(w, w->next));
}

void pi_cold_list_wanted(const struct pi_cold_job *job, struct pi_cold_span *tile, uint32_t end,
                         struct pi_cold_list *l)
{
    const uint32_t all = pi_cold_all_tokens(job), *ids = job->ids, *tokens = job->tokens;
    uint32_t i = tile->begin, n = 0;

    /* no branch on what is wanted: it would be guessed wrongly for nearly every neuron that is */
    for (; i < end && n < PI_COLD_TILE; i++) {
        uint32_t mask = all & (tokens != NULL ? tokens[i] : UINT32_MAX);

        l->id[n] = ids[i];
        l->mask[n] = mask;
        n += mask != 0;
    }
    l->n = n;
    tile->end = i;
}

static void add_bias(const struct pi_cold_list *l, const float *bias, float *v)
{
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t n = pi_cold_n_set(l->mask[k]);

        for (uint32_t j = 0; j < n; j++)
            *v++ += bias[l->id[k]];
    }
}

size_t pi_cold_n_values(const struct pi_cold_job *job, const struct pi_cold_list *l)
{
    size_t n = 0;

    if (job->n_tok == 1)
        return l->n;
    for (uint32_t k = 0; k < l->n; k++)
        n += pi_cold_n_set(l->mask[k]);
    return n;
}

/* Drops what is 0, values and neurons, of lists of one token. */
static void keep_fired_one(struct pi_cold_list *l, float *v)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < l->n; k++) {
        l->id[n] = l->id[k];
        l->mask[n] = l->mask[k];
        v[n] = v[k];
        n += v[k] != 0.0f;
    }
    l->n = n;
}

static void keep_fired(const struct pi_cold_job *job, struct pi_cold_list *l, float *v)
{
    const float *from = v;
    uint32_t n = 0;

    if (job->n_tok == 1) {
        keep_fired_one(l, v);
        return;
    }
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t mask = 0;

        for (uint32_t rest = l->mask[k]; rest != 0; rest &= rest - 1, from++) {
            *v = *from;
            mask |= *from != 0.0f ? rest & -rest : 0;
            v += *from != 0.0f;
        }
        l->id[n] = l->id[k];
        l->mask[n] = mask;
        n += mask != 0;
    }
    l->n = n;
}

void pi_cold_products(struct pi_cold_walk *w, bool last, struct pi_cold_list *l, float *prod)
{
    const struct pi_cold_job *job = w->job;
    bool gated = job->shape->gated;
    const float *first_b = gated ? job->w->gate_b : job->w->up_b;
    float up[PI_COLD_TILE * PI_COLD_TOKENS];
    size_t n;

    w->stats.first_rows += l->n;
    if (last && !gated)
        pi_cold_draw(w);
    if (gated && job->mode != PI_MODE_EXACT) /* most of them will fire */
        ask(&job->w->up, l->id, l->n);
    dots(job, first_mat(job), l, prod);
    if (first_b != NULL)
        add_bias(l, first_b, prod);
    pi_activate_n(job->shape, prod, pi_cold_n_values(job, l));
    if (job->mode != PI_MODE_DENSE)
        keep_fired(job, l, prod);
    n = pi_cold_n_values(job, l);
    w->stats.up_active += n;
    w->stats.up_rows += gated ? l->n : 0;
    w->stats.active += n;
    w->stats.down_rows += l->n;
    if (!gated)
        return;
    if (last)
        pi_cold_draw(w);
    else
        ask(&job->w->down_t, l->id, l->n);
    dots(job, &job->w->up, l, up);
    if (job->w->up_b != NULL)
        add_bias(l, job->w->up_b, up);
    if (job->shape->act_up)
        pi_activate_n(job->shape, up, n);
    for (size_t i = 0; i < n; i++)
        prod[i] *= up[i];
    if (job->shape->act_up && job->mode != PI_MODE_DENSE) {
        w->stats.down_rows -= l->n;
        keep_fired(job, l, prod);
        w->stats.down_rows += l->n;
        w->stats.active -= n - pi_cold_n_values(job, l);
    }
}
