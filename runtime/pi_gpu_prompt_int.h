/*
 * pi_gpu_prompt_int.h - what prompt chunks on a GPU are made of; private to runtime/pi_gpu_prompt*.c.
 */
#ifndef PI_GPU_PROMPT_INT_H
#define PI_GPU_PROMPT_INT_H

#include "runtime/cuda/pi_k_prompt.h"
#include "runtime/pi_cold.h"
#include "runtime/pi_gpu.h"
#include "runtime/pi_gpu_prompt.h"
#include "runtime/pi_patience.h"

#include <stdatomic.h>

#define PI_GP_MAX_SLOTS 16
#define PI_GP_MARKS     16

/* Device arrays, all inside one allocation; attention's and the pieces' share memory: a layer needs them one after the other. */
struct pi_gp_dev {
    float *residual, *x32, *tmp;  /* (n_batch, n_embd) */
    void *x16;                    /* (n_batch, max(n_embd, n_embd_q)) F16 */
    float *x_scale, *prod_scale;  /* (n_batch) */
    float *q, *attn, *k, *v;      /* (n_batch, n_embd_q | n_embd_q | n_embd_kv | n_embd_kv) */
    float *gate, *up;             /* (n_batch, piece) */
    void *prod16;                 /* (n_batch, piece) F16 */
    struct pi_kp_tile *tiles;     /* (n_batch) */
    struct pi_kp_token *tokens;   /* (n_batch) */
    uint32_t *rows;               /* (n_batch) tokens whose logits are wanted */
    void *tile;                   /* size.tile bytes */
    struct pi_dev_buf workspace;  /* inside the allocation */
    void *slots[PI_GP_MAX_SLOTS]; /* (dev_slots) of size.slot_bytes */
};

/* Pinned arrays. */
struct pi_gp_host {
    float *residual, *normed, *part; /* (n_batch, n_embd) */
    float *out[2]; /* (n_batch, piece) what comes down: logits; h and prod of a piece */
    /* with far_pieces: (n_batch, n_embd_q | n_embd_q | n_embd_kv | n_embd_kv | n_embd) */
    float *q, *attn, *k, *v, *tmp;
    struct pi_kp_tile *tiles;
    struct pi_kp_token *tokens;
    uint32_t *rows;
    uint8_t *slots[PI_GP_MAX_SLOTS]; /* (pin_slots) */
};

/* Neighbouring cold neurons of a layer, or rows of a matrix, that cross together. */
struct pi_gp_piece {
    uint32_t layer, first, n;
    const struct pi_mat
        *mat; /* rows [first, first + n) of this one; NULL: the layer's cold neurons */
};

/* Where the arrays of a piece are in its slot. */
struct pi_gp_slot_map {
    size_t gate, up, down, bias, bytes;
};

/* The ring, while a run of streamed layers is on. Pieces have numbers from 0 on; piece i uses pinned slot i % pin_slots and device slot
 * i % dev_slots. */
struct pi_gp_ring {
    const struct pi_gp_piece *pieces; /* of this run */
    uint32_t n;
    uint32_t parts;                      /* most parts of a piece; a part is filled by one thread */
    atomic_uint next;                    /* part to fill, over all pieces */
    atomic_uint filled[PI_GP_MAX_SLOTS]; /* parts done in a pinned slot */
    atomic_uint freed;                   /* pieces whose slots may be filled again */
    atomic_bool stop;
    void *started[PI_GP_MAX_SLOTS];  /* events in front of copies, by pinned slot; with times */
    void *copied[PI_GP_MAX_SLOTS];   /* and behind them */
    void *computed[PI_GP_MAX_SLOTS]; /* events, by device slot */
    void *begin, *end;               /* of the copies of a run; with times */
    uint64_t bytes;
    double copying; /* seconds of copies that have ended */
};

/* What uses the ring: pieces are filled by all threads but the calling one, which runs body. */
struct pi_gp_run {
    struct pi_gpu_prompt *p;
    enum pi_code (*body)(struct pi_gp_run *u, struct pi_err *err);
    void *ctx;
    struct pi_err *err;
    enum pi_code rc;
    uint32_t n_issued; /* pieces whose copy was launched */
};

/* Events behind groups of launches of the compute stream, in turn. */
struct pi_gp_marks {
    void *event[PI_GP_MARKS];
    uint32_t n, n_passed; /* recorded; of these, seen to be done */
};

struct pi_gpu_prompt {
    const struct pi_dev_model *dm;
    const struct pi_model *m;
    const struct pi_shape *shape;
    struct pi_pool *pool;
    struct pi_gpu_prompt_options opt; /* zeros resolved */
    struct pi_prompt_size size;
    struct pi_dev_buf buf;
    struct pi_pinned pinned;
    void *stream, *copy_stream, *blas;
    struct pi_gp_dev d;
    struct pi_gp_host h;
    struct pi_gp_piece *pieces;     /* (first_piece[n_layer]) */
    uint32_t *first_piece;          /* (n_layer + 1) */
    struct pi_gp_piece *far_pieces; /* of the products of one input; NULL: none */
    struct pi_gp_ring ring;
    struct pi_gp_marks marks;
    void *out_done[2];            /* events: host out[i] is complete */
    struct pi_gp_direct *direct;  /* DIRECT, where it works; else NULL */
    struct pi_cold_scratch *cold; /* NULL: no layer has cold neurons */
    float *cold_gate, *cold_up;   /* (n_batch, PI_DOWN_TILE) for long chunks on the CPU */
    struct pi_gpu_prompt_stats stats;

    /* the chunk in work */
    struct pi_state *s;
    uint32_t n_tok, n_tiles, n_rows; /* rows: of wanted logits */
    bool on_host;                    /* the residual of h is up to date, not that of d */
};

/* The input of a product, (n_tok, n_cols): in F32, or in F16 with a scale for each row. */
struct pi_gp_in {
    const float *f32;
    const void *f16;
    const float *scale;
};

/* Rows of up to three matrices that make a piece of a feed-forward block; on the device. */
struct pi_gp_ffn {
    struct pi_dmat gate, up, down_t;
    const float *up_b;   /* or NULL */
    const uint32_t *ids; /* host: original neurons, for the observer */
    uint32_t first, n;   /* rows [first, first + n) of the matrices; up_b and ids begin there */
};

/* Products of a type take F16 inputs. */
static inline bool pi_gp_half(const struct pi_gpu_prompt *p, enum pi_type t)
{
    return !p->opt.f32_gemm && (t == PI_TYPE_F16 || t == PI_TYPE_Q8_0 || t == PI_TYPE_Q4_0);
}

/* pi_gpu_prompt_wait.c: how this module waits for the device. All of it PI_E_DEVICE where nothing has moved for opt.patience; the device is given up
 * then (pi_gpu_give_up()). */

enum pi_code pi_gp_marks_create(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
void pi_gp_marks_destroy(struct pi_gpu_prompt *p);
/* Behind some launches into p->stream. */
enum pi_code pi_gp_mark(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gp_await_stream(struct pi_gpu_prompt *p, void *stream,
                                struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gp_await_event(struct pi_gpu_prompt *p, void *event,
                               struct pi_err *err) PI_MUST_CHECK;
/* One look of somebody who waits for something else that the device does; *patience is theirs. */
enum pi_code pi_gp_look(struct pi_gpu_prompt *p, struct pi_patience *patience,
                        struct pi_err *err) PI_MUST_CHECK;
/* After a look that led nowhere, the n-th in a row. */
void pi_gp_relax(uint32_t *n);

/* pi_gpu_prompt_layer.c: launches into p->stream alone, but for what an observer needs. */

/* The residual is where it is asked for from here on; to the host: waits. */
enum pi_code pi_gp_to_device(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gp_to_host(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
/* Norm, attention and output projection of a layer that has them on the device. */
enum pi_code pi_gp_attention(struct pi_gpu_prompt *p, uint32_t layer,
                             struct pi_err *err) PI_MUST_CHECK;
/* The input of a layer's feed-forward block to d.x32 and d.x16, down's bias to the residual. to_host: the input to h.normed (and with an observer the
 * residual to h.residual), complete when this returns. */
enum pi_code pi_gp_ffn_begin(struct pi_gpu_prompt *p, uint32_t layer, bool to_host,
                             struct pi_err *err) PI_MUST_CHECK;
/* A piece of the block, added to the residual; with an observer its inner vectors go to s->h and s->prod, which waits. */
enum pi_code pi_gp_ffn_piece(struct pi_gpu_prompt *p, const struct pi_gp_ffn *f,
                             struct pi_err *err) PI_MUST_CHECK;
/* out (n_tok, n), rows ldo apart, = x W[first .. first + n)^T; returns in *scale what each row has yet to be multiplied by, NULL: 1. */
enum pi_code pi_gp_rows_product(struct pi_gpu_prompt *p, const struct pi_dmat *w, uint32_t first,
                                uint32_t n, const struct pi_gp_in *x, uint32_t n_tok, float *out,
                                uint32_t ldo, const float **scale,
                                struct pi_err *err) PI_MUST_CHECK;
/* All hot neurons of a layer, piece by piece. */
enum pi_code pi_gp_ffn_hot(struct pi_gpu_prompt *p, uint32_t layer,
                           struct pi_err *err) PI_MUST_CHECK;
/* Logits of the wanted tokens to s->logits; waits. */
enum pi_code pi_gp_output(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;

/* pi_gpu_prompt_stream.c */

/* The pieces of all layers. */
enum pi_code pi_gp_stream_create(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
void pi_gp_stream_destroy(struct pi_gpu_prompt *p);
/* A layer's cold neurons can be streamed: types with device kernels. */
bool pi_gp_can_stream(const struct pi_gpu_prompt *p, uint32_t layer);
/* The feed-forward blocks of layers [begin, end), and the attention of all but the first, with cold neurons streamed. Their attention is on the device; the
 * pool's threads fill slots meanwhile. */
enum pi_code pi_gp_stream_layers(struct pi_gpu_prompt *p, uint32_t begin, uint32_t end,
                                 struct pi_err *err) PI_MUST_CHECK;

/* Runs u->body while pieces are filled; body calls begin and end for each piece in turn, and launches what reads its slot between them. */
enum pi_code pi_gp_ring_run(struct pi_gp_run *u, const struct pi_gp_piece *pieces,
                            uint32_t n) PI_MUST_CHECK;
enum pi_code pi_gp_piece_begin(struct pi_gp_run *u, uint32_t piece,
                               struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_gp_piece_end(struct pi_gp_run *u, uint32_t piece, struct pi_err *err) PI_MUST_CHECK;
/* Rows of w that lie in a piece's slot on the device, from an offset on. */
struct pi_dmat pi_gp_piece_rows(const struct pi_gpu_prompt *p, uint32_t piece,
                                const struct pi_mat *w, size_t offset);

/* pi_gpu_prompt_far.c */

/* After pi_gp_stream_create(). */
enum pi_code pi_gp_far_create(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
/* A layer's attention is on the CPU, and its products can be made on the GPU. */
bool pi_gp_is_far(const struct pi_gpu_prompt *p, uint32_t layer);
/* pi_products_fn; ctx: struct pi_gpu_prompt. q, k, v at once, or the output projection alone. Inputs and results are pinned. */
enum pi_code pi_gp_far_products(void *ctx, const struct pi_blas_in *in,
                                const struct pi_blas_out *outs, uint32_t n_outs,
                                struct pi_err *err) PI_MUST_CHECK;

/* pi_gpu_prompt_direct.c */

/* Registers the part of the file that cold rows are in; where that does not work, or types are others, p->direct stays NULL or lacks
 * layers, and rows go through slots. PI_E_NOMEM, PI_E_DEVICE. */
enum pi_code pi_gp_direct_create(struct pi_gpu_prompt *p, struct pi_err *err) PI_MUST_CHECK;
void pi_gp_direct_destroy(struct pi_gpu_prompt *p);
/* The GPU reads a layer's cold rows itself. */
bool pi_gp_is_direct(const struct pi_gpu_prompt *p, uint32_t layer);
/* Rows of a piece of such a layer to a device slot, in the copy stream. */
void pi_gp_direct_gather(struct pi_gpu_prompt *p, const struct pi_gp_piece *g,
                         const struct pi_gp_slot_map *m, char *slot);

/* pi_gpu_prompt_cold.c */

/* The cold neurons of a layer on the CPU: from h.normed to h.part (n_tok, n_embd), without bias; with an observer also to s->h, s->prod. */
void pi_gp_cold_cpu(struct pi_gpu_prompt *p, uint32_t layer);

#endif
