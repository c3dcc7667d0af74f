/*
 * The CPU's share of a split layer.
 *
 * What is done for a chunk: the activation of its neurons for the tokens that want them, the second matrix where it is not 0 (pi_cold_tile.c), and in the
 * one-pass form the down rows.
 */
#include "config.h"

#include "runtime/pi_cold_int.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

#define COLS      32   /* columns are cut at multiples of it: whole blocks of quantised rows */
#define CHUNKS    45   /* of a list for many tokens: three for each of 15 threads, or... */
#define TEAM      15   /* ... one, if a chunk has less than... */
#define PART_ROWS 2    /* ... so many neurons for each token */
#define FEW       128  /* a short list: a chunk for each of 16 threads */
#define MANY      2048 /* a long list: mostly gate rows, few of which fire (exact mode) */
#define SKEW \
    96 /* floats between partial sums: equal columns of two tokens do not lie at the same place of a page */
#define PAYS \
    200 /* neurons for each token from which partial sums are less than what is gained by whole rows */
#define SHARES      2  /* a thread draws at most one in so many shares of what is left */
#define JOIN        4  /* chunks whose sums are added up first */
#define GROUP       8  /* chunks that a thread takes together, at most, where... */
#define SPARSE      4  /* ... less than one neuron in so many is wanted */
#define ROWS        12 /* rows that choose among vectors and that kernels take together */
#define LEAST_CHUNK 4  /* neurons of a chunk of products of tokens' own lists */

/* ---- scratch ---- */

static uint32_t parts_for(uint32_t n_max, uint32_t n_tok_max)
{
    uint32_t chunks = n_max < PI_COLD_PARTS ? n_max : PI_COLD_PARTS;

    return chunks * n_tok_max;
}

uint64_t pi_cold_scratch_bytes(uint32_t n_max, uint32_t n_tok_max, uint32_t n_embd)
{
    uint64_t per_neuron = sizeof(uint32_t) + (uint64_t)n_tok_max * sizeof(float);
    uint64_t per_part = ((uint64_t)n_embd + SKEW) * sizeof(float) + 1, a = 0, b = 0, sum = 0;
    uint64_t counts = ((uint64_t)n_max / LEAST_CHUNK + 1) * n_tok_max;

    if (!pi_size_mul(per_neuron, n_max, &a) ||
        !pi_size_mul(per_part, parts_for(n_max, n_tok_max), &b) || !pi_size_add(a, b, &sum) ||
        !pi_size_add(sum, counts, &sum) ||
        !pi_size_add(sum, sizeof(struct pi_cold_scratch) + (uint64_t)5 * PI_COLD_LINE, &sum))
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
    PI_ALLOC_ALIGNED(s->n_wanted, ((size_t)n_max / LEAST_CHUNK + 1) * n_tok_max, err);
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
    free(s->n_wanted);
    free(s);
}

/* ---- form and chunks ---- */

static uint32_t clamp(uint32_t v, uint32_t low, uint32_t high)
{
    if (v < low)
        return low;
    return v < high ? v : high;
}

/* Neurons of each of n_chunks chunks at most, in whole groups of the rows that kernels read side by side. */
static uint32_t whole_groups(uint32_t n, uint32_t n_chunks)
{
    return pi_cold_chunks_in(pi_cold_chunks_in(n, n_chunks), PI_COLD_STREAMS) * PI_COLD_STREAMS;
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
        f.chunk_one = whole_groups(f.n_one, PI_COLD_PARTS);
    else if (n > FEW)
        f.chunk_one = clamp(PART_ROWS * n_tok, f.n_one / CHUNKS + 1, f.n_one / TEAM + 1);
    f.chunk_two = clamp(n / 512, 1, 4) * PI_COLD_STREAMS;
    return f;
}

/* One pass alone: down's rows are read whole to the end. Chunks become smaller instead, down to a 96th, so that all threads end together; and who takes some that join
 * adds up their sums in its cache, so that few threads make few partial sums. Only where rows are few: where all are read, memory is fastest when threads are near each other in it (F16, two threads:
 * 36 GB/s, and 29 with groups). Twice as many, half as large make no difference with 15 threads; from 24 on threads begin to go without one of the largest. */
struct pi_cold_form pi_cold_form_fixed(uint32_t n, uint32_t n_wanted)
{
    return (struct pi_cold_form){.n_one = n,
                                 .chunk_one = 4 * whole_groups(n, 2 * PI_COLD_PARTS),
                                 .halve = PI_COLD_PARTS / 4,
                                 .chunk_two = 1,
                                 .join = JOIN,
                                 .group = n_wanted < n / SPARSE ? GROUP : 1};
}

/* Some for each of 15 threads, of whole groups of rows as the kernels take them. There is room for chunks of at least LEAST_CHUNK, and the number of neurons
 * of one fits into a byte. */
uint32_t pi_cold_own_chunk(uint32_t n)
{
    return n <= FEW ? LEAST_CHUNK : clamp(pi_cold_chunks_in(n / 96, ROWS), 1, 5) * ROWS;
}

/* The largest power of two that is not above v > 0. */
static uint32_t low_power(uint32_t v)
{
    while ((v & (v - 1)) != 0)
        v &= v - 1;
    return v;
}

struct pi_cold_form pi_cold_form_within(const struct pi_cold_scratch *s, struct pi_cold_form f,
                                        uint32_t n, uint32_t n_tok)
{
    const uint32_t room = s->n_parts / n_tok, most = n > 0 ? n : 1;

    /* sizes beyond the list are the list's: no sum of places leaves 32 bits */
    f.n_one = f.n_one < n ? f.n_one : n;
    f.chunk_one = clamp(f.chunk_one, 1, most);
    f.chunk_two = clamp(f.chunk_two, 1, most);
    if (f.halve == 0 && pi_cold_chunks_in(f.n_one, f.chunk_one) > room)
        f.n_one = room * f.chunk_one;
    f.group = low_power(clamp(f.group, 1, PI_COLD_PARTS));
    f.join = low_power(clamp(f.join, 1, PI_COLD_PARTS));
    return f;
}

/* Where chunks with partial sums begin; as many as there is room for. */
static void cut_chunks(struct pi_cold_walk *w)
{
    const uint32_t room = w->job->scratch->n_parts / w->job->n_tok, halve = w->form.halve;
    uint32_t at = 0;

    while (at < w->form.n_one && w->n_parts < room && w->n_parts < PI_COLD_PARTS) {
        uint32_t size = w->form.chunk_one >> (halve > 0 ? clamp(w->n_parts / halve, 0, 2) : 0);

        size = clamp(size, 1, w->form.n_one - at);
        w->begin[w->n_parts++] = at;
        at += size;
    }
    w->begin[w->n_parts] = at;
    w->form.n_one = at;
}

/* They are drawn some together, powers of two, so that those that join are one draw's or several smaller ones', and fewer and fewer, so that all threads
 * end together. */
static void cut_groups(struct pi_cold_walk *w)
{
    uint32_t at = 0;

    while (at < w->n_parts) {
        uint32_t share = (w->n_parts - at) / (SHARES * w->n_threads);

        w->first[w->n_one++] = (uint8_t)at;
        at += low_power(clamp(share, 1, w->form.group));
    }
    w->first[w->n_one] = (uint8_t)at;
}

static struct pi_cold_walk walk_of(const struct pi_cold_job *job, uint32_t thread,
                                   uint32_t n_threads)
{
    struct pi_cold_walk w = {.job = job, .thread = thread, .n_threads = n_threads, .next = thread};
    struct pi_cold_form f = {.n_one = 0};

    w.own = job->form == NULL && job->tokens != NULL && job->n_tok > 1;
    if (w.own)
        f.chunk_two = pi_cold_own_chunk(job->n);
    else
        f = job->form != NULL ? *job->form : pi_cold_form_of(job->n, job->n_tok);
    w.form = pi_cold_form_within(job->scratch, f, job->n, job->n_tok);
    cut_chunks(&w);
    cut_groups(&w);
    w.n_chunks = w.n_one + pi_cold_chunks_in(job->n - w.form.n_one, w.form.chunk_two);
    return w;
}

struct pi_cold_span pi_cold_chunk(const struct pi_cold_walk *w, uint32_t i)
{
    const uint32_t size = w->form.chunk_two, n = w->job->n;
    uint32_t begin;

    if (i < w->n_one)
        return (struct pi_cold_span){w->begin[w->first[i]], w->begin[w->first[i + 1]]};
    begin = w->form.n_one + (i - w->n_one) * size;
    return (struct pi_cold_span){begin, n - begin < size ? n : begin + size};
}

/* ---- the first pass ---- */

/* Leaves the tile's tokens in fired. The list is a subsequence of the tile's ids. */
static void note_fired(const struct pi_cold_job *job, struct pi_cold_span tile,
                       const struct pi_cold_list *l)
{
    uint32_t k = 0;

    for (uint32_t i = tile.begin; i < tile.end; i++) {
        bool here = k < l->n && l->id[k] == job->ids[i];

        job->scratch->fired[i] = here ? l->mask[k] : 0;
        k += here;
    }
}

/* Two passes: the products, for add_products(). */
static void chunk_products(struct pi_cold_walk *w, struct pi_cold_span c)
{
    const struct pi_cold_job *job = w->job;
    float prod[PI_COLD_TILE * PI_COLD_TOKENS],
        *to = job->scratch->prod + (size_t)c.begin * job->n_tok;

    for (struct pi_cold_span tile = {c.begin, c.begin}; tile.begin < c.end; tile.begin = tile.end) {
        struct pi_cold_list l;
        size_t n;

        pi_cold_list_wanted(job, &tile, c.end, &l);
        pi_cold_products(w, tile.end == c.end, &l, prod);
        note_fired(job, tile, &l);
        n = pi_cold_n_values(job, &l);
        memcpy(to, prod, n * sizeof(*to));
        to += n;
    }
}

static float *part_at(const struct pi_cold_job *job, uint32_t part)
{
    return job->scratch->part + (size_t)part * job->n_tok * job->scratch->ld;
}

/* Does a group hold all chunks of the sums that it is part of? */
static bool joins(const struct pi_cold_walk *w, uint32_t group)
{
    return (uint32_t)(w->first[group + 1] - w->first[group]) >= w->form.join;
}

/* A chunk's sum is made in its own place; of chunks that join in the first one's, and beside it when there is one already. */
static void begin_chunk(struct pi_cold_walk *w, uint32_t part, uint32_t sum)
{
    const struct pi_cold_job *job = w->job;
    uint8_t *used = job->scratch->used + (size_t)sum * job->n_tok;

    if (part == sum)
        memset(used, 0, job->n_tok);
    else if (w->aside == NULL) /* the place of a chunk that needs none */
        w->aside = part_at(job, part);
    w->to = used[0] != 0 ? w->aside : part_at(job, sum);
    w->begun = false;
}

static void end_chunk(const struct pi_cold_walk *w, uint32_t sum)
{
    const struct pi_cold_job *job = w->job;
    const size_t ld = job->scratch->ld;
    float *to = part_at(job, sum);

    for (uint32_t t = 0; w->begun && w->to != to && t < job->n_tok; t++)
        job->cpu->axpy_f32(1.0f, w->to + t * ld, to + t * ld, job->w->down_t.n_cols);
}

/* Adds the list, whose neurons stand in tile, to the partial sums of its chunks. */
static void add_to_parts(struct pi_cold_walk *w, uint32_t group, struct pi_cold_span tile,
                         const struct pi_cold_list *l, const float *prod)
{
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_span all = {0, job->w->down_t.n_cols};
    const uint32_t n_tok = job->n_tok, join = joins(w, group) ? w->form.join : 1;
    const size_t ld = job->scratch->ld;
    uint32_t part = w->first[group], k = 0, n;

    while (w->begin[part + 1] <= tile.begin)
        part++;
    for (; w->begin[part] < tile.end; part++) {
        const uint32_t first = k, end = w->begin[part + 1], sum = part - part % join;

        if (tile.begin <= w->begin[part])
            begin_chunk(w, part, sum);
        for (n = 0; k < l->n && (end >= tile.end || l->id[k] < job->ids[end]); k++)
            n += pi_cold_n_set(l->mask[k]);
        if (k > first) {
            if (!w->begun)
                memset(w->to, 0, n_tok * ld * sizeof(*w->to));
            w->begun = true;
            memset(job->scratch->used + (size_t)sum * n_tok, 1, n_tok);
            pi_cold_add_rows(job, l, (struct pi_cold_span){first, k}, prod, all, w->to, ld);
            prod += n;
        }
        if (end <= tile.end)
            end_chunk(w, sum);
    }
}

/* One pass: the partial sums of a group of chunks. */
static void chunk_sums(struct pi_cold_walk *w, uint32_t group)
{
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_span c = pi_cold_chunk(w, group);
    float prod[PI_COLD_TILE * PI_COLD_TOKENS];

    for (struct pi_cold_span tile = {c.begin, c.begin}; tile.begin < c.end; tile.begin = tile.end) {
        struct pi_cold_list l;

        pi_cold_list_wanted(job, &tile, c.end, &l);
        pi_cold_products(w, false, &l, prod);
        if (tile.end == c.end)
            pi_cold_draw(w);
        else
            pi_cold_ask(job, (struct pi_cold_span){tile.end, c.end});
        add_to_parts(w, group, tile, &l, prod);
    }
}

/* ---- behind the barrier ---- */

static struct pi_cold_span columns(uint32_t d, uint32_t thread, uint32_t n_threads)
{
    uint64_t pieces = pi_cold_chunks_in(d, COLS);
    uint64_t b = pieces * thread / n_threads * COLS, e = pieces * (thread + 1) / n_threads * COLS;

    return (struct pi_cold_span){(uint32_t)(b < d ? b : d), (uint32_t)(e < d ? e : d)};
}

/* Partial sums lie in the caches of the threads that made them, a piece for this one at a time. */
static void ask_part(const float *from, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += PI_COLD_LINE / sizeof(float))
        __builtin_prefetch(from + i, 0, 3);
}

void pi_cold_add_parts(const struct pi_cold_job *job, uint32_t t, uint32_t n_parts,
                       struct pi_cold_span cols)
{
    const struct pi_cold_scratch *s = job->scratch;
    const size_t next = job->n_tok * s->ld;
    const float *from = s->part + t * s->ld + cols.begin;
    float *to = job->out + (size_t)t * job->w->down_t.n_cols + cols.begin;

    for (uint32_t p = 0; p < n_parts; p++, from += next) {
        if (p + 2 < n_parts)
            ask_part(from + 2 * next, cols.end - cols.begin);
        if (s->used[(size_t)p * job->n_tok + t])
            job->cpu->axpy_f32(1.0f, from, to, cols.end - cols.begin);
    }
}

/* The places of a token's partial sums that are not empty: (return value) numbers of chunks to part; heads[i]: whether it begins a new sum of those that join. */
static uint32_t list_parts(const struct pi_cold_walk *w, uint32_t t, uint8_t *part, bool *heads)
{
    const uint8_t *used = w->job->scratch->used + t;
    const uint32_t n_tok = w->job->n_tok, join = w->form.join;
    uint32_t n = 0;

    for (uint32_t g = 0; g < w->n_one; g++) {
        for (uint32_t p = w->first[g]; p < w->first[g + 1]; p += joins(w, g) ? join : 1) {
            if (used[(size_t)p * n_tok] == 0)
                continue;
            heads[n] = n == 0 || p / join != part[n - 1] / join;
            part[n++] = (uint8_t)p;
        }
    }
    return n;
}

/* As pi_cold_add_parts(). Sums that join are added up here where their chunks were several threads', as one thread would have done, in these columns of the first
 * one's place. */
static void add_joined(const struct pi_cold_walk *w, uint32_t t, struct pi_cold_span cols)
{
    const struct pi_cold_job *job = w->job;
    const size_t at = t * job->scratch->ld + cols.begin;
    const uint32_t n_cols = cols.end - cols.begin;
    float *out = job->out + (size_t)t * job->w->down_t.n_cols + cols.begin, *sum = NULL;
    uint8_t part[PI_COLD_PARTS];
    bool heads[PI_COLD_PARTS];
    const uint32_t n = list_parts(w, t, part, heads);

    for (uint32_t i = 0; i < n; i++) {
        float *from = part_at(job, part[i]) + at;

        if (i + 2 < n)
            ask_part(part_at(job, part[i + 2]) + at, n_cols);
        if (heads[i])
            sum = from;
        else
            job->cpu->axpy_f32(1.0f, from, sum, n_cols);
        if (i + 1 == n || heads[i + 1])
            job->cpu->axpy_f32(1.0f, sum, out, n_cols);
    }
}

/* Adds what the chunks of the two-pass form left, in ascending order. */
static void add_products(const struct pi_cold_walk *w, struct pi_cold_span cols)
{
    const struct pi_cold_job *job = w->job;
    const struct pi_cold_form *f = &w->form;
    const struct pi_cold_scratch *s = job->scratch;
    const size_t d = job->w->down_t.n_cols;
    float prod[PI_COLD_TILE * PI_COLD_TOKENS], *to = prod;
    struct pi_cold_list l = {.n = 0};

    for (uint32_t b = f->n_one; b < job->n; b += f->chunk_two) {
        uint32_t end = job->n - b < f->chunk_two ? job->n : b + f->chunk_two;
        const float *from = s->prod + (size_t)b * job->n_tok;

        for (uint32_t i = b; i < end; i++) {
            uint32_t n = pi_cold_n_set(s->fired[i]);

            if (n == 0)
                continue;
            l.id[l.n] = job->ids[i];
            l.mask[l.n++] = s->fired[i];
            memcpy(to, from, n * sizeof(*to));
            to += n;
            from += n;
            if (l.n == PI_COLD_TILE) {
                pi_cold_add_rows(job, &l, (struct pi_cold_span){0, l.n}, prod, cols, job->out, d);
                l.n = 0;
                to = prod;
            }
        }
    }
    pi_cold_add_rows(job, &l, (struct pi_cold_span){0, l.n}, prod, cols, job->out, d);
}

static uint64_t take(atomic_ullong *n)
{
    return atomic_exchange_explicit(n, 0, memory_order_relaxed);
}

static void count(struct pi_cold_job *job)
{
    struct pi_cold_scratch *s = job->scratch;

    job->stats = (struct pi_cold_stats){.first_rows = take(&s->first_rows),
                                        .up_rows = take(&s->up_rows),
                                        .down_rows = take(&s->down_rows),
                                        .active = take(&s->active),
                                        .up_active = take(&s->up_active)};
}

/* What a thread counted, before the barrier. */
static void give_counts(struct pi_cold_scratch *s, const struct pi_cold_stats *st)
{
    atomic_fetch_add_explicit(&s->first_rows, st->first_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->up_rows, st->up_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->down_rows, st->down_rows, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->active, st->active, memory_order_relaxed);
    atomic_fetch_add_explicit(&s->up_active, st->up_active, memory_order_relaxed);
}

static void clear(const struct pi_cold_job *job, struct pi_cold_span cols)
{
    for (uint32_t t = 0; t < job->n_tok; t++)
        memset(job->out + (size_t)t * job->w->down_t.n_cols + cols.begin, 0,
               (cols.end - cols.begin) * sizeof(*job->out));
}

void pi_cold_run(struct pi_cold_job *job, uint32_t thread, uint32_t n_threads)
{
    struct pi_cold_walk w = walk_of(job, thread, n_threads);
    struct pi_cold_span cols = columns(job->w->down_t.n_cols, thread, n_threads);

    /* a thread's first chunk is its own: they do not all reach for the counter at once */
    while (w.next < w.n_chunks) {
        uint32_t i = w.next;

        if (w.own)
            pi_cold_own_count(job, pi_cold_chunk(&w, i), i);
        if (i < w.n_one)
            chunk_sums(&w, i);
        else
            chunk_products(&w, pi_cold_chunk(&w, i));
    }
    give_counts(job->scratch, &w.stats);
    if (n_threads > 1)
        pi_pool_barrier(job->pool, thread);
    if (thread == 0)
        atomic_store_explicit(&job->scratch->drawn, 0, memory_order_relaxed);
    clear(job, cols);
    if (w.own) {
        pi_cold_own_sums(&w, cols);
    } else {
        for (uint32_t t = 0; t < job->n_tok; t++)
            add_joined(&w, t, cols);
        add_products(&w, cols);
    }
    if (thread == 0)
        count(job);
}
