/*
 * pi_gpu_prompt_stream.c - cold neurons on their way to the GPU: a ring of pinned slots between worker threads and copies.
 *
 * A run of layers whose attention is on the GPU is one run of the pool. Thread 0 launches everything, layer by layer; the others fill slots, piece
 * after piece through all the layers, so that copies go on while the GPU is busy with attention. A piece's parts are drawn by number; who
 * draws a part of a piece whose slot is still being copied waits. Nothing of the arithmetic depends on who fills what, or when.
 */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include "common/pi_alloc.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define PART_NEURONS 16u         /* that a thread packs at a time */
#define MAX_BOUNCE   (64u << 10) /* longest row that can go past the caches */
#define BOUNCE_BYTES \
    (16u << 10) /* rows on their way there at a time: they stay in the first cache */

/* ---- pieces ---- */

static size_t pad(size_t n)
{
    return (n + PI_PROMPT_ALIGN - 1) / PI_PROMPT_ALIGN * PI_PROMPT_ALIGN;
}

static size_t row_bytes(const struct pi_mat *w)
{
    return w->data != NULL ? (size_t)pi_dev_row_bytes(w->type, w->n_cols) : 0;
}

static struct pi_gp_slot_map slot_map(const struct pi_gpu_prompt *p, const struct pi_gp_piece *g)
{
    const struct pi_layer_weights *w = &p->m->layers[g->layer];
    struct pi_gp_slot_map m = {.gate = 0};

    if (g->mat != NULL) {
        m.bytes = g->n * row_bytes(g->mat);
        return m;
    }
    m.up = pad(g->n * row_bytes(&w->gate));
    m.down = m.up + pad(g->n * row_bytes(&w->up));
    m.bias = m.down + pad(g->n * row_bytes(&w->down_t));
    m.bytes = m.bias + (w->up_b != NULL ? g->n * sizeof(float) : 0);
    return m;
}

/* The GPU reads the rows itself. */
static bool is_direct(const struct pi_gpu_prompt *p, const struct pi_gp_piece *g)
{
    return g->mat == NULL && pi_gp_is_direct(p, g->layer);
}

bool pi_gp_can_stream(const struct pi_gpu_prompt *p, uint32_t layer)
{
    const struct pi_layer_weights *w = &p->m->layers[layer];

    return (w->gate.data == NULL || pi_dev_type_ok(w->gate.type)) && pi_dev_type_ok(w->up.type) &&
           pi_dev_type_ok(w->down_t.type);
}

enum pi_code pi_gp_stream_create(struct pi_gpu_prompt *p, struct pi_err *err)
{
    const uint32_t n_layer = p->dm->n_layer;
    size_t cap = 0, n = 0;
    enum pi_code rc = PI_OK;

    PI_ALLOC(p->first_piece, n_layer + (size_t)1, err);
    for (uint32_t l = 0; l < n_layer; l++) {
        const uint32_t n_cold = p->dm->layers[l].n_cold, each = p->size.slot_neurons;

        p->first_piece[l] = (uint32_t)n;
        for (uint32_t i = 0; each > 0 && pi_gp_can_stream(p, l) && i < n_cold; i += each) {
            PI_TRY(pi_grow_array(&p->pieces, &cap, n + 1, sizeof(*p->pieces), err));
            p->pieces[n++] = (struct pi_gp_piece){
                .layer = l, .first = i, .n = n_cold - i < each ? n_cold - i : each};
        }
    }
    p->first_piece[n_layer] = (uint32_t)n;
    if (n == 0)
        goto out;
    for (uint32_t i = 0; i < p->opt.pin_slots; i++) {
        PI_TRY(pi_gpu_event_create(true, &p->ring.started[i], err));
        PI_TRY(pi_gpu_event_create(true, &p->ring.copied[i], err));
    }
    for (uint32_t i = 0; i < p->opt.dev_slots; i++)
        PI_TRY(pi_gpu_event_create(false, &p->ring.computed[i], err));
    PI_TRY(pi_gpu_event_create(true, &p->ring.begin, err));
    PI_TRY(pi_gpu_event_create(true, &p->ring.end, err));
out:
    return rc;
}

void pi_gp_stream_destroy(struct pi_gpu_prompt *p)
{
    for (uint32_t i = 0; i < PI_GP_MAX_SLOTS; i++) {
        if (p->ring.started[i] != NULL)
            pi_gpu_event_destroy(p->ring.started[i]);
        if (p->ring.copied[i] != NULL)
            pi_gpu_event_destroy(p->ring.copied[i]);
        if (p->ring.computed[i] != NULL)
            pi_gpu_event_destroy(p->ring.computed[i]);
    }
    if (p->ring.begin != NULL)
        pi_gpu_event_destroy(p->ring.begin);
    if (p->ring.end != NULL)
        pi_gpu_event_destroy(p->ring.end);
    free(p->pieces);
    free(p->first_piece);
    free(p->far_pieces);
}

/* ---- filling ---- */

/* n bytes past the caches; dst and n are multiples of 16. */
static void store_past_caches(void *dst, const void *src, size_t n)
{
#if defined(__x86_64__)
    __m128i *to = dst;
    const char *from = src;

    for (size_t i = 0; i < n / 16; i++) {
        __m128i v;

        memcpy(&v, from + 16 * i, sizeof(v));
        _mm_stream_si128(to + i, v);
    }
#else
    memcpy(dst, src, n);
#endif
}

/* Rows of one matrix into their place in a slot. */
static void fill_rows(const struct pi_gpu_prompt *p, const struct pi_mat *w, const uint32_t *ids,
                      uint32_t n, uint8_t *to)
{
    _Alignas(64) uint8_t bounce[MAX_BOUNCE];
    const size_t each = row_bytes(w);
    const uint32_t step = each < BOUNCE_BYTES ? (uint32_t)(BOUNCE_BYTES / each) : 1;

    if (p->opt.fill != PI_PROMPT_FILL_STREAMING || each > sizeof(bounce)) {
        pi_dev_pack_rows(w, ids, n, to);
        return;
    }
    for (uint32_t i = 0; i < n;) {
        const uint32_t k = n - i < step ? n - i : step;

        pi_dev_pack_rows(w, ids + i, k, bounce);
        store_past_caches(to + i * each, bounce, k * each);
        i += k;
    }
}

/* Neighbouring rows of a matrix. */
static void fill_mat(const struct pi_mat *w, uint32_t first, uint32_t n, uint8_t *to)
{
    struct pi_mat rows = *w;

    rows.data = (const uint8_t *)w->data + (size_t)first * w->row_bytes;
    pi_dev_pack_rows(&rows, NULL, n, to);
}

static void fill_part(const struct pi_gpu_prompt *p, const struct pi_gp_piece *g, uint32_t part,
                      uint8_t *slot)
{
    const struct pi_layer_weights *w = &p->m->layers[g->layer];
    const struct pi_gp_slot_map m = slot_map(p, g);
    const uint32_t i = part * PART_NEURONS;
    const uint32_t *ids;
    uint32_t n;

    if (i >= g->n)
        return;
    n = g->n - i < PART_NEURONS ? g->n - i : PART_NEURONS;
    if (g->mat != NULL) {
        fill_mat(g->mat, g->first + i, n, slot + i * row_bytes(g->mat));
        return;
    }
    ids = p->dm->layers[g->layer].host_cold_ids + g->first;
    if (w->gate.data != NULL)
        fill_rows(p, &w->gate, ids + i, n, slot + m.gate + i * row_bytes(&w->gate));
    fill_rows(p, &w->up, ids + i, n, slot + m.up + i * row_bytes(&w->up));
    fill_rows(p, &w->down_t, ids + i, n, slot + m.down + i * row_bytes(&w->down_t));
    for (uint32_t k = i; w->up_b != NULL && k < i + n; k++)
        memcpy(slot + m.bias + k * sizeof(float), &w->up_b[ids[k]], sizeof(float));
#if defined(__x86_64__)
    if (p->opt.fill == PI_PROMPT_FILL_STREAMING)
        _mm_sfence(); /* such stores are ordered by nothing else */
#endif
}

/* Draws and fills one part; false: there is none left, or the run was stopped. */
static bool fill_next(struct pi_gpu_prompt *p)
{
    struct pi_gp_ring *r = &p->ring;
    const uint32_t k = atomic_fetch_add_explicit(&r->next, 1, memory_order_relaxed),
                   piece = k / r->parts, slot = piece % p->opt.pin_slots;
    uint32_t looks = 0;

    if (piece >= r->n)
        return false;
    while (piece >= atomic_load_explicit(&r->freed, memory_order_acquire) + p->opt.pin_slots) {
        if (atomic_load_explicit(&r->stop, memory_order_relaxed))
            return false;
        pi_gp_relax(&looks);
    }
    if (!is_direct(p, &r->pieces[piece]))
        fill_part(p, &r->pieces[piece], k % r->parts, p->h.slots[slot]);
    atomic_fetch_add_explicit(&r->filled[slot], 1, memory_order_release);
    return true;
}

/* ---- launching, thread 0 ---- */

/* A piece's copy has ended: how long it took. */
static enum pi_code note_copy(struct pi_gp_ring *r, uint32_t pin, struct pi_err *err)
{
    double seconds = 0.0;
    enum pi_code rc;

    PI_TRY(pi_gpu_event_seconds(r->started[pin], r->copied[pin], &seconds, err));
    r->copying += seconds;
out:
    return rc;
}

/* Gives slots back whose copies have ended, in order. */
static enum pi_code free_slots(struct pi_gp_run *u, struct pi_err *err)
{
    struct pi_gp_ring *r = &u->p->ring;
    uint32_t freed = atomic_load_explicit(&r->freed, memory_order_relaxed);
    bool done = true;
    enum pi_code rc = PI_OK;

    while (done && freed < u->n_issued) {
        const uint32_t pin = freed % u->p->opt.pin_slots;

        PI_TRY(pi_gpu_event_query(r->copied[pin], &done, err));
        if (done)
            PI_TRY(note_copy(r, pin, err));
        freed += done;
        atomic_store_explicit(&r->freed, freed, memory_order_release);
    }
out:
    return rc;
}

/* Waits until a piece's slot is full; fills it itself where nobody else does. As long as the slot may be filled it is the CPU that takes its time, as where rows
 * come from a disk; else the device's copy of what was in it is waited for. */
static enum pi_code wait_full(struct pi_gp_run *u, uint32_t piece, struct pi_err *err)
{
    struct pi_gpu_prompt *p = u->p;
    struct pi_gp_ring *r = &p->ring;
    atomic_uint *filled = &r->filled[piece % p->opt.pin_slots];
    const bool alone = pi_pool_size(p->pool) == 1;
    struct pi_patience patience = pi_patience(p->opt.patience);
    uint32_t looks = 0;
    enum pi_code rc = PI_OK;

    while (atomic_load_explicit(filled, memory_order_acquire) < r->parts) {
        const uint32_t freed = atomic_load_explicit(&r->freed, memory_order_relaxed);

        PI_TRY(free_slots(u, err));
        if (piece >= freed + p->opt.pin_slots &&
            freed == atomic_load_explicit(&r->freed, memory_order_relaxed))
            PI_TRY(pi_gp_look(p, &patience, err));
        else
            pi_patience_renew(&patience);
        /* parts are drawn in order: nothing but this piece's are left to draw */
        if (alone && piece < freed + p->opt.pin_slots)
            (void)fill_next(p);
        else
            pi_gp_relax(&looks);
    }
    atomic_store_explicit(filled, 0, memory_order_relaxed); /* before the slot is given back */
out:
    return rc;
}

/* The copy of a piece into its device slot, once that was computed on; the compute stream waits for it. */
static enum pi_code issue_copy(struct pi_gp_run *u, uint32_t piece, struct pi_err *err)
{
    struct pi_gpu_prompt *p = u->p;
    struct pi_gp_ring *r = &p->ring;
    const struct pi_gp_piece *g = &r->pieces[piece];
    const uint32_t pin = piece % p->opt.pin_slots, dev = piece % p->opt.dev_slots;
    const struct pi_gp_slot_map m = slot_map(p, g);
    char *to = p->d.slots[dev];
    enum pi_code rc;

    /* of this run or of one before; of none: no wait */
    PI_TRY(pi_gpu_stream_wait(p->copy_stream, r->computed[dev], err));
    if (piece == 0)
        PI_TRY(pi_gpu_event_record(r->begin, p->copy_stream, err));
    PI_TRY(pi_gpu_event_record(r->started[pin], p->copy_stream, err));
    if (is_direct(p, g)) {
        pi_gp_direct_gather(p, g, &m, to);
        p->stats.bytes_direct += m.bytes;
    } else {
        PI_TRY(pi_gpu_copy_async(to, p->h.slots[pin], m.bytes, p->copy_stream, err));
    }
    PI_TRY(pi_gpu_event_record(r->copied[pin], p->copy_stream, err));
    PI_TRY(pi_gpu_stream_wait(p->stream, r->copied[pin], err));
    r->bytes += m.bytes;
    u->n_issued = piece + 1;
out:
    return rc;
}

enum pi_code pi_gp_piece_begin(struct pi_gp_run *u, uint32_t piece, struct pi_err *err)
{
    enum pi_code rc;

    PI_TRY(wait_full(u, piece, err));
    PI_TRY(issue_copy(u, piece, err));
    PI_TRY(free_slots(u, err));
out:
    return rc;
}

enum pi_code pi_gp_piece_end(struct pi_gp_run *u, uint32_t piece, struct pi_err *err)
{
    struct pi_gpu_prompt *p = u->p;

    return pi_gpu_event_record(p->ring.computed[piece % p->opt.dev_slots], p->stream, err);
}

struct pi_dmat pi_gp_piece_rows(const struct pi_gpu_prompt *p, uint32_t piece,
                                const struct pi_mat *w, size_t offset)
{
    return (struct pi_dmat){
        .type = w->type,
        .n_rows = p->ring.pieces[piece].n,
        .n_cols = w->n_cols,
        .row_bytes = row_bytes(w),
        .data =
            w->data != NULL ? (const char *)p->d.slots[piece % p->opt.dev_slots] + offset : NULL};
}

/* ---- layers whose attention is on the device ---- */

struct layers {
    struct pi_gp_run run;
    uint32_t begin, end;
};

static enum pi_code compute_piece(struct pi_gpu_prompt *p, uint32_t piece, struct pi_err *err)
{
    const struct pi_gp_piece *g = &p->ring.pieces[piece];
    const struct pi_layer_weights *w = &p->m->layers[g->layer];
    const struct pi_gp_slot_map m = slot_map(p, g);
    const char *slot = p->d.slots[piece % p->opt.dev_slots];
    const struct pi_gp_ffn f = {
        .gate = pi_gp_piece_rows(p, piece, &w->gate, m.gate),
        .up = pi_gp_piece_rows(p, piece, &w->up, m.up),
        .down_t = pi_gp_piece_rows(p, piece, &w->down_t, m.down),
        .up_b = w->up_b != NULL ? (const float *)(const void *)(slot + m.bias) : NULL,
        .ids = p->dm->layers[g->layer].host_cold_ids + g->first,
        .n = g->n};

    return pi_gp_ffn_piece(p, &f, err);
}

static enum pi_code run_layers(struct pi_gp_run *u, struct pi_err *err)
{
    const struct layers *j = (struct layers *)u->ctx;
    struct pi_gpu_prompt *p = u->p;
    const uint32_t base = p->first_piece[j->begin];
    enum pi_code rc = PI_OK;

    for (uint32_t l = j->begin; l < j->end; l++) {
        if (l > j->begin)
            PI_TRY(pi_gp_attention(p, l, err));
        PI_TRY(pi_gp_ffn_begin(p, l, p->s->obs != NULL, err));
        PI_TRY(pi_gp_ffn_hot(p, l, err));
        for (uint32_t i = p->first_piece[l] - base; i < p->first_piece[l + 1] - base; i++) {
            PI_TRY(pi_gp_piece_begin(u, i, err));
            PI_TRY(compute_piece(p, i, err));
            PI_TRY(pi_gp_piece_end(u, i, err));
        }
    }
out:
    return rc;
}

enum pi_code pi_gp_stream_layers(struct pi_gpu_prompt *p, uint32_t begin, uint32_t end,
                                 struct pi_err *err)
{
    struct layers j = {.run = {.p = p, .body = run_layers, .err = err}, .begin = begin, .end = end};

    j.run.ctx = &j;
    return pi_gp_ring_run(&j.run, p->pieces + p->first_piece[begin],
                          p->first_piece[end] - p->first_piece[begin]);
}

/* ---- runs ---- */

/* Workers are done once all parts are drawn: nobody waits for thread 0 when it has launched the last piece. */
static void run_thread(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct pi_gp_run *u = ctx;

    (void)n_threads;
    if (thread != 0) {
        while (fill_next(u->p))
            ;
        return;
    }
    u->rc = u->body(u, u->err);
    if (u->rc == PI_OK && u->p->ring.n > 0)
        u->rc = pi_gpu_event_record(u->p->ring.end, u->p->copy_stream, u->err);
    if (u->rc != PI_OK)
        atomic_store(&u->p->ring.stop, true);
}

/* Both streams are idle: events may be read, slots filled from the start. */
static enum pi_code finish(struct pi_gp_run *u, struct pi_err *err)
{
    struct pi_gpu_prompt *p = u->p;
    double seconds = 0.0;
    enum pi_code rc;

    PI_TRY(pi_gp_await_stream(p, p->copy_stream, err));
    PI_TRY(free_slots(u, err));
    PI_TRY(pi_gpu_event_seconds(p->ring.begin, p->ring.end, &seconds, err));
    p->stats.seconds_streaming += seconds;
    p->stats.seconds_copying += p->ring.copying;
    p->stats.bytes_streamed += p->ring.bytes;
out:
    return rc;
}

enum pi_code pi_gp_ring_run(struct pi_gp_run *u, const struct pi_gp_piece *pieces, uint32_t n)
{
    struct pi_gpu_prompt *p = u->p;
    struct pi_gp_ring *r = &p->ring;
    uint32_t most = 1;

    for (uint32_t i = 0; i < n; i++)
        most = pieces[i].n > most ? pieces[i].n : most;
    r->pieces = pieces;
    r->n = n;
    r->parts = (most + PART_NEURONS - 1) / PART_NEURONS;
    r->bytes = 0;
    r->copying = 0.0;
    atomic_store(&r->next, 0);
    atomic_store(&r->freed, 0);
    atomic_store(&r->stop, false);
    for (uint32_t i = 0; i < PI_GP_MAX_SLOTS; i++)
        atomic_store(&r->filled[i], 0);
    pi_pool_run(p->pool, run_thread, u);
    return u->rc != PI_OK ? u->rc : finish(u, u->err);
}
