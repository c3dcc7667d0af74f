/*
 * The CPU's share of a split layer.
 *
 * What is done for a chunk: the activation of its neurons for the tokens that want them, the second matrix where it is not 0, and in the one-pass form
 * the down rows. With many tokens each neuron has its own set of them, and kernels take rows with their masks.
 *
 * Values of a list are packed: neuron after neuron, of each its tokens in ascending order.
 */
#include "config.h"

#include "runtime/pi_cold.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TILE \
    192 /* neurons taken through gate, up and down together: all of a chunk of a long list, few of which fire */
#define COLS      32   /* columns are cut at multiples of it: whole blocks of quantised rows */
#define PARTS     48   /* partial sums of a list at most */
#define CHUNKS    45   /* of a list for many tokens: three for each of 15 threads, or... */
#define TEAM      15   /* ... one, if a chunk has less than... */
#define PART_ROWS 2    /* ... so many neurons for each token */
#define FEW       128  /* a short list: a chunk for each of 16 threads */
#define MANY      2048 /* a long list: mostly gate rows, few of which fire (exact mode) */
#define LINE      64
#define SKEW \
    96 /* floats between partial sums: equal columns of two tokens do not lie at the same place of a page */
#define PAYS \
    200 /* neurons for each token from which partial sums are less than what is gained by whole rows */
#define STREAMS 4   /* rows that the kernels read side by side */
#define HEAD    512 /* bytes of a row that start the hardware's prefetcher */

struct pi_cold_scratch {
    alignas(LINE) atomic_uint drawn; /* chunks drawn beyond each thread's first; 0 between jobs */
    atomic_uint dropped_rows, dropped_pairs; /* by the activation of up; 0 between jobs */
    alignas(LINE) uint32_t n_max;
    uint32_t n_tok_max, n_parts; /* n_parts: partial sums of one token there is room for */
    size_t ld;                   /* floats from one partial sum to the next */
    uint32_t *fired;             /* (n_max) tokens for which the neuron's product stands in prod */
    float *prod;   /* (n_max, n_tok_max) packed, a chunk's from its first neuron's place on */
    uint8_t *used; /* (n_parts) the partial sum is not empty */
    float *part;   /* (n_parts, ld) */
};

/* Some neurons with their tokens. */
struct list {
    uint32_t n;
    uint32_t id[TILE], mask[TILE];
};

struct chunk {
    uint32_t begin, end;
};

/* One thread's way through the chunks. */
struct walk {
    const struct pi_cold_job *job;
    struct pi_cold_form form;
    uint32_t n_one, n_chunks; /* chunks with a partial sum; of both kinds */
    uint32_t n_threads;
    uint32_t next; /* the chunk drawn for later */
};

/* ---- scratch ---- */

static uint32_t parts_for(uint32_t n_max, uint32_t n_tok_max)
{
    uint32_t chunks = n_max < PARTS ? n_max : PARTS;

    return chunks * n_tok_max;
}

uint64_t pi_cold_scratch_bytes(uint32_t n_max, uint32_t n_tok_max, uint32_t n_embd)
{
    uint64_t per_neuron = sizeof(uint32_t) + (uint64_t)n_tok_max * sizeof(float);
    uint64_t per_part = ((uint64_t)n_embd + SKEW) * sizeof(float) + 1, a = 0, b = 0, sum = 0;

    if (!pi_size_mul(per_neuron, n_max, &a) ||
        !pi_size_mul(per_part, parts_for(n_max, n_tok_max), &b) || !pi_size_add(a, b, &sum) ||
        !pi_size_add(sum, sizeof(struct pi_cold_scratch) + (uint64_t)4 * LINE, &sum))
        return UINT64_MAX;
    return sum;
}

enum pi_code pi_cold_scratch_create(uint32_t n_max, uint32_t n_tok_max, uint32_t n_embd,
                                    struct pi_cold_scratch **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_cold_scratch *s = NULL;

    if (n_tok_max < 1 || n_tok_max > PI_COLD_TOKENS)
        return pi_err_set(err, PI_E_RANGE, "%u tokens in a split layer: expected 1 to %d",
                          n_tok_max, PI_COLD_TOKENS);
    PI_ALLOC_ALIGNED(s, 1, err);
    s->n_max = n_max;
    s->n_tok_max = n_tok_max;
    s->ld = (size_t)n_embd + SKEW;
    s->n_parts = parts_for(n_max, n_tok_max);
    PI_ALLOC_ALIGNED(s->fired, n_max, err);
    PI_ALLOC_ALIGNED(s->prod, (size_t)n_max * n_tok_max, err);
    PI_ALLOC_ALIGNED(s->used, s->n_parts, err);
    PI_ALLOC_ALIGNED(s->part, (size_t)s->n_parts * s->ld, err);
    *out = s;
    return PI_OK;
out:
    pi_cold_scratch_free(s);
    return rc;
}

void pi_cold_scratch_free(struct pi_cold_scratch *s)
{
    if (s == NULL)
        return;
    free(s->fired);
    free(s->prod);
    free(s->used);
    free(s->part);
    free(s);
}

/* ---- form and chunks ---- */

static uint32_t clamp(uint32_t v, uint32_t low, uint32_t high)
{
    if (v < low)
        return low;
    return v < high ? v : high;
}

/* One pass, since rows are read fastest when they are read whole, as many as the kernels take side by side; a narrow piece of a row out of each page runs at
 * a third of the speed on one core. What is left of the list when most of it is done goes in small chunks, so that all threads end together.
 * With many tokens a chunk's partial sums, a row of F32 for each, must stay less than the chunk's rows: larger chunks, but enough of them for the threads. */
struct pi_cold_form pi_cold_form_of(uint32_t n, uint32_t n_tok)
{
    struct pi_cold_form f = {.n_one = n, .chunk_one = n / 16 + (n % 16 != 0)};

    if (n_tok > 4 && n < PAYS * n_tok)
        f.n_one = 0;
    else if (n > FEW)
        f.n_one = n - n / (n > MANY && n_tok == 1 ? 4 : 8);
    if (n > FEW && n_tok <= 4)
        f.chunk_one = ((f.n_one + PARTS - 1) / PARTS + STREAMS - 1) / STREAMS * STREAMS;
    else if (n > FEW)
        f.chunk_one = clamp(PART_ROWS * n_tok, f.n_one / CHUNKS + 1, f.n_one / TEAM + 1);
    f.chunk_two = clamp(n / 512, 1, 4) * STREAMS;
    return f;
}

/* As for one token. The size of the two-pass form's chunks leaves no trace in sums: with many tokens they are larger, so that kernels have groups of rows. */
struct pi_cold_form pi_cold_form_fixed(uint32_t n, uint32_t n_tok)
{
    struct pi_cold_form f = pi_cold_form_of(n, 1);

    if (n_tok > 4)
        f.chunk_two = clamp((n - f.n_one) / 32, f.chunk_two, 4 * f.chunk_two);
    return f;
}

static uint32_t chunks_in(uint32_t n, uint32_t size)
{
    return n / size + (n % size != 0);
}

/* The job's form within what the scratch has room for. */
static struct pi_cold_form form_of(const struct pi_cold_job *job)
{
    struct pi_cold_form f = job->form != NULL ? *job->form : pi_cold_form_of(job->n, job->n_tok);
    uint32_t room = job->scratch->n_parts / job->n_tok;

    f.n_one = f.n_one < job->n ? f.n_one : job->n;
    f.chunk_one = f.chunk_one > 0 ? f.chunk_one : 1;
    f.chunk_two = f.chunk_two > 0 ? f.chunk_two : 1;
    if (chunks_in(f.n_one, f.chunk_one) > room)
        f.n_one = room * f.chunk_one;
    return f;
}

static struct walk walk_of(const struct pi_cold_job *job, uint32_t thread, uint32_t n_threads)
{
    struct walk w = {.job = job, .form = form_of(job), .n_threads = n_threads, .next = thread};

    w.n_one = chunks_in(w.form.n_one, w.form.chunk_one);
    w.n_chunks = w.n_one + chunks_in(job->n - w.form.n_one, w.form.chunk_two);
    return w;
}

static struct chunk chunk_of(const struct walk *w, uint32_t i)
{
    bool one = i < w->n_one;
    uint32_t size = one ? w->form.chunk_one : w->form.chunk_two;
    uint32_t end = one ? w->form.n_one : w->job->n;
    uint32_t begin = one ? i * size : w->form.n_one + (i - w->n_one) * size;

    return (struct chunk){begin, end - begin < size ? end : begin + size};
}

/* ---- rows ---- */

static uint32_t n_set(uint32_t mask)
{
    /* the builtin is a call where the target has no such instruction */
    return (mask & (mask - 1)) == 0 ? mask != 0 : (uint32_t)__builtin_popcount(mask);
}

/* out (packed): rows of the list . x of their tokens. */
static void dots_f32(const struct pi_cold_job *job, const struct pi_mat *m, const struct list *l,
                     float *out)
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
static void dots_q8(const struct pi_cold_job *job, const struct pi_mat *m, const struct list *l,
                    float *out)
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

static void dots(const struct pi_cold_job *job, const struct pi_mat *m, const struct list *l,
                 float *out)
{
    bool q8 = job->q8 != NULL && job->cpu->type[m->type]->dot_rows_q8 != NULL;

    (q8 ? dots_q8 : dots_f32)(job, m, l, out);
}

/* y_t[cols) += the list's rows of down times their products; y (n_tok, ld). */
static void add_rows(const struct pi_cold_job *job, const struct list *l, const float *prod,
                     struct chunk cols, float *y, size_t ld)
{
    const struct pi_mat *m = &job->w->down_t;
    const struct pi_cpu_type *type = job->cpu->type[m->type];
    float *to[PI_COLD_TOKENS];

    for (uint32_t t = 0; t < job->n_tok; t++)
        to[t] = y + (size_t)t * ld;
    if (job->n_tok == 1)
        type->axpy_ids(m->data, m->row_bytes, l->id, prod, l->n, cols.begin, cols.end, to[0]);
    else
        type->axpy_masked(m->data, m->row_bytes, l->id, l->mask, l->n, 0, prod, to, job->n_tok,
                          cols.begin, cols.end);
}

/* Asks for the heads of the rows that are read first from a matrix, so that the stream from memory does not stop where one matrix or chunk
 * ends and the next begins. */
static void ask(const struct pi_mat *m, const uint32_t *ids, uint32_t n)
{
    size_t bytes = m->row_bytes < HEAD ? m->row_bytes : HEAD;

    for (uint32_t i = 0; i < n && i < STREAMS; i++) {
        const char *row = pi_mat_row(m, ids[i]);

        for (size_t b = 0; b < bytes; b += LINE)
            __builtin_prefetch(row + b, 0, 2);
    }
}

/* ---- the first pass ---- */

/* The matrix that the activation is applied to. */
static const struct pi_mat *first_mat(const struct pi_cold_job *job)
{
    return job->shape->gated ? &job->w->gate : &job->w->up;
}

static uint32_t all_tokens(const struct pi_cold_job *job)
{
    return UINT32_MAX >> (32 - job->n_tok);
}

/* The first rows of a chunk of which some are not wanted. */
static void ask_wanted(const struct pi_cold_job *job, struct chunk c)
{
    uint32_t n = 0;

    for (uint32_t i = c.begin; i < c.end && n < STREAMS; i++) {
        if ((job->tokens[i] & all_tokens(job)) != 0) {
            ask(first_mat(job), job->ids + i, 1);
            n++;
        }
    }
}

/* Draws the next chunk, not long before the one in hand ends, and asks for its first rows. */
static void draw(struct walk *w)
{
    struct pi_cold_scratch *s = w->job->scratch;
    struct chunk c;

    w->next = w->n_threads + atomic_fetch_add_explicit(&s->drawn, 1, memory_order_relaxed);
    if (w->next >= w->n_chunks)
        return;
    c = chunk_of(w, w->next);
    if (w->job->tokens == NULL)
        ask(first_mat(w->job), w->job->ids + c.begin, c.end - c.begin);
    else
        ask_wanted(w->job, c);
}

/* The next neurons that some token wants, as many as a tile holds; *tile: from where to where they stand. The chunk ends at end. */
static void list_wanted(const struct pi_cold_job *job, struct chunk *tile, uint32_t end,
                        struct list *l)
{
    uint32_t i = tile->begin;

    l->n = 0;
    for (; i < end && l->n < TILE; i++) {
        uint32_t mask = all_tokens(job) & (job->tokens != NULL ? job->tokens[i] : UINT32_MAX);

        l->id[l->n] = job->ids[i];
        l->mask[l->n] = mask;
        l->n += mask != 0;
    }
    tile->end = i;
}

static void add_bias(const struct list *l, const float *bias, float *v)
{
    for (uint32_t k = 0; k < l->n; k++) {
        uint32_t n = n_set(l->mask[k]);

        for (uint32_t j = 0; j < n; j++)
            *v++ += bias[l->id[k]];
    }
}

static size_t n_values(const struct list *l)
{
    size_t n = 0;

    for (uint32_t k = 0; k < l->n; k++)
        n += n_set(l->mask[k]);
    return n;
}

/* Drops what is 0, values and neurons. */
static void keep_fired(struct list *l, float *v)
{
    const float *from = v;
    uint32_t n = 0;

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

/* Where up is activated too: keep_fired() once more, and a note of what up was computed for in vain. */
static void drop_more(struct pi_cold_scratch *s, struct list *l, float *v)
{
    uint32_t rows = l->n;
    size_t pairs = n_values(l);

    keep_fired(l, v);
    atomic_fetch_add_explicit(&s->dropped_rows, rows - l->n, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->dropped_pairs, (unsigned)(pairs - n_values(l)),
                              memory_order_relaxed);
}

/* A list of wanted neurons to l, prod: what of them goes into down. last: the chunk ends with them and is done then but for what comes behind the barrier. */
static void tile_products(struct walk *w, bool last, struct list *l, float *prod)
{
    const struct pi_cold_job *job = w->job;
    bool gated = job->shape->gated;
    const float *first_b = gated ? job->w->gate_b : job->w->up_b;
    float up[TILE * PI_COLD_TOKENS];
    size_t n;

    if (last && !gated)
        draw(w);
    if (gated && job->mode != PI_MODE_EXACT) /* most of them will fire */
        ask(&job->w->up, l->id, l->n);
    dots(job, first_mat(job), l, prod);
    if (first_b != NULL)
        add_bias(l, first_b, prod);
    pi_activate_n(job->shape, prod, n_values(l));
    if (job->mode != PI_MODE_DENSE)
        keep_fired(l, prod);
    if (!gated)
        return;
    if (last)
        draw(w);
    else
        ask(&job->w->down_t, l->id, l->n);
    dots(job, &job->w->up, l, up);
    n = n_values(l);
    if (job->w->up_b != NULL)
        add_bias(l, job->w->up_b, up);
    if (job->shape->act_up)
        pi_activate_n(job->shape, up, n);
    for (size_t i = 0; i < n; i++)
        prod[i] *= up[i];
    if (job->shape->act_up && job->mode != PI_MODE_DENSE)
        drop_more(job->scratch, l, prod);
}

/* Leaves the tile's tokens in fired. The list is a subsequence of the tile's ids. */
static void note_fired(const struct pi_cold_job *job, struct chunk tile, const struct list *l)
{
    uint32_t k = 0;

    for (uint32_t i = tile.begin; i < tile.end; i++) {
        bool here = k < l->n && l->id[k] == job->ids[i];

        job->scratch->fired[i] = here ? l->mask[k] : 0;
        k += here;
    }
}

/* Two passes: the products, for add_products(). */
static void chunk_products(struct walk *w, struct chunk c)
{
    const struct pi_cold_job *job = w->job;
    float prod[TILE * PI_COLD_TOKENS], *to = job->scratch->prod + (size_t)c.begin * job->n_tok;

    for (struct chunk tile = {c.begin, c.begin}; tile.begin < c.end; tile.begin = tile.end) {
        struct list l;
        size_t n;

        list_wanted(job, &tile, c.end, &l);
        tile_products(w, tile.end == c.end, &l, prod);
        note_fired(job, tile, &l);
        n = n_values(&l);
        memcpy(to, prod, n * sizeof(*to));
        to += n;
    }
}

/* One pass: the chunk's partial sum. */
static void chunk_sum(struct walk *w, struct chunk c, uint32_t part)
{
    const struct pi_cold_job *job = w->job;
    size_t ld = job->scratch->ld;
    float prod[TILE * PI_COLD_TOKENS], *y = job->scratch->part + part * job->n_tok * ld;
    bool used = false;

    for (struct chunk tile = {c.begin, c.begin}; tile.begin < c.end; tile.begin = tile.end) {
        struct list l;

        list_wanted(job, &tile, c.end, &l);
        tile_products(w, false, &l, prod);
        note_fired(job, tile, &l);
        if (tile.end == c.end)
            draw(w);
        if (l.n > 0 && !used)
            memset(y, 0, job->n_tok * ld * sizeof(*y));
        used |= l.n > 0;
        add_rows(job, &l, prod, (struct chunk){0, job->w->down_t.n_cols}, y, ld);
    }
    job->scratch->used[part] = used;
}

/* ---- behind the barrier ---- */

static struct chunk columns(uint32_t d, uint32_t thread, uint32_t n_threads)
{
    uint64_t pieces = chunks_in(d, COLS);
    uint64_t b = pieces * thread / n_threads * COLS, e = pieces * (thread + 1) / n_threads * COLS;

    return (struct chunk){(uint32_t)(b < d ? b : d), (uint32_t)(e < d ? e : d)};
}

/* Partial sums lie in the caches of the threads that made them, a piece for this one at a time. */
static void ask_part(const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LINE / sizeof(float))
        __builtin_prefetch(from + i, 0, 3);
}

static void add_parts(const struct walk *w, struct chunk cols)
{
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_scratch *s = job->scratch;
    uint32_t d = job->w->down_t.n_cols;

    for (uint32_t t = 0; t < job->n_tok; t++) {
        for (uint32_t p = 0; p < w->n_one; p++) {
            const float *from = s->part + ((size_t)p * job->n_tok + t) * s->ld + cols.begin;

            if (p + 2 < w->n_one)
                ask_part(from + 2 * job->n_tok * s->ld, cols.end - cols.begin);
            if (s->used[p])
                job->cpu->axpy_f32(1.0f, from, job->out + (size_t)t * d + cols.begin,
                                   cols.end - cols.begin);
        }
    }
}

/* Adds what the chunks of the two-pass form left, in ascending order. */
static void add_products(const struct walk *w, struct chunk cols)
{
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_form *f = &w->form;
    const struct pi_cold_scratch *s = job->scratch;
    const size_t d = job->w->down_t.n_cols;
    float prod[TILE * PI_COLD_TOKENS], *to = prod;
    struct list l = {.n = 0};

    for (uint32_t b = f->n_one; b < job->n; b += f->chunk_two) {
        uint32_t end = job->n - b < f->chunk_two ? job->n : b + f->chunk_two;
        const float *from = s->prod + (size_t)b * job->n_tok;

        for (uint32_t i = b; i < end; i++) {
            uint32_t n = n_set(s->fired[i]);

            if (n == 0)
                continue;
            l.id[l.n] = job->ids[i];
            l.mask[l.n++] = s->fired[i];
            memcpy(to, from, n * sizeof(*to));
            to += n;
            from += n;
            if (l.n == TILE) {
                add_rows(job, &l, prod, cols, job->out, d);
                l.n = 0;
                to = prod;
            }
        }
    }
    add_rows(job, &l, prod, cols, job->out, d);
}

static void count(struct pi_cold_job *job)
{
    const uint32_t *fired = job->scratch->fired;
    struct pi_cold_stats st = {.first_rows = job->n};
    struct pi_cold_scratch *s = job->scratch;
    uint32_t rows = 0;

    for (uint32_t i = 0; i < job->n; i++)
        rows += fired[i] != 0;
    st.active = st.down_rows = rows;
    for (uint32_t i = 0; job->n_tok > 1 && i < job->n; i++)
        st.active += fired[i] != 0 ? n_set(fired[i]) - 1 : 0;
    for (uint32_t i = 0; job->tokens != NULL && i < job->n; i++)
        st.first_rows -= (job->tokens[i] & all_tokens(job)) == 0;
    st.up_active = st.active;
    if (job->shape->act_up) {
        rows += atomic_exchange_explicit(&s->dropped_rows, 0, memory_order_relaxed);
        st.up_active += atomic_exchange_explicit(&s->dropped_pairs, 0, memory_order_relaxed);
    }
    st.up_rows = job->shape->gated ? rows : 0;
    job->stats = st;
}

void pi_cold_run(struct pi_cold_job *job, uint32_t thread, uint32_t n_threads)
{
    struct walk w = walk_of(job, thread, n_threads);
    uint32_t d = job->w->down_t.n_cols;
    struct chunk cols = columns(d, thread, n_threads);

    /* a thread's first chunk is its own: they do not all reach for the counter at once */
    while (w.next < w.n_chunks) {
        uint32_t i = w.next;

        if (i < w.n_one)
            chunk_sum(&w, chunk_of(&w, i), i);
        else
            chunk_products(&w, chunk_of(&w, i));
    }
    if (n_threads > 1)
        pi_pool_barrier(job->pool, thread);
    if (thread == 0)
        atomic_store_explicit(&job->scratch->drawn, 0, memory_order_relaxed);
    for (uint32_t t = 0; t < job->n_tok; t++)
        memset(job->out + (size_t)t * d + cols.begin, 0,
               (cols.end - cols.begin) * sizeof(*job->out));
    add_parts(&w, cols);
    add_products(&w, cols);
    if (thread == 0)
        count(job);
}
