/*
 * pi_ops.h - the operators of a step on the CPU, and the state they work on. Private to the engine.
 *
 * Two tables: team operators (decode: few tokens, all threads of the pool inside one run, each output element computed by one thread in a fixed
 * order) and solo operators (prompt chunks: products of many tokens through BLAS). What is private to a thread is in
 * its lane; what one unit's feed-forward block makes is in the unit, so that units may run at the same time.
 * Rows and columns are cut into spans by (thread, n_threads) alone; where an operator does not join, its successor reads only
 * what the same thread wrote.
 */
#ifndef PI_OPS_H
#define PI_OPS_H

#include "common/pi_placement.h"
#include "common/pi_pool.h"
#include "common/pi_predictor.h"
#include "common/pi_schedule.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_cold.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_engine.h"
#include "runtime/pi_exec_cpu.h"
#include "runtime/pi_kv.h"
#include "runtime/pi_model.h"

#define PI_OP_KINDS  (PI_OP_OUTPUT + 1)
#define PI_CPU_UNITS 2
#define PI_SPAN_COLS \
    32 /* columns of the residual are cut at multiples of it: whole blocks of quantised rows */
#define PI_CACHE_ROWS \
    144 /* rows of products of several tokens that are made at a time: a multiple of those that kernels take side by side, 3, 4, 8 or 16 */
#define PI_SPAN_ROWS 16  /* rows: whole cache lines of F32 results */
#define PI_DOWN_TILE 256 /* neurons converted to F32 at a time in the prompt's down product */

/* A unit's neurons in one layer. */
struct pi_unit_layer {
    uint32_t n;
    /* (n) original neuron of each local index, ascending; NULL: all neurons in order */
    const uint32_t *ids;
    bool predicted; /* decode runs the predictor for this unit's neurons */
};

struct pi_unit {
    struct pi_unit_layer *layers; /* (n_layer) */
    uint32_t n_max;               /* largest n of a layer */
    /* decode scratch; a thread's entries stand from the begin of its span of local indices on */
    uint32_t *wanted; /* (n_max) bit t: the neuron is predicted to fire for token t */
    float *gate;      /* (n_tok, n_max) scores of the predictor, activations of a dense block */
    float *prod;      /* (n_tok, n_max) what a down projection as stored is given */
    uint32_t *n_cand; /* (n_threads, PI_COUNT_STRIDE) neurons predicted in the thread's span */
    struct pi_cold_scratch *cold;
    float *hidden;  /* (n_tok, widest predictor) */
    float *partial; /* (n_tok, n_embd) */
};

/* Most tokens of a decode step: bits of a mask; larger batches are cut. */
#define PI_DECODE_TOKENS PI_COLD_TOKENS
#define PI_COUNT_STRIDE  PI_DECODE_TOKENS

/* What belongs to one thread of the team. */
struct pi_lane {
    float *normed; /* (decode tokens, wider of n_embd and n_embd_tok) */
    float *embd;   /* (decode tokens, n_embd_tok) behind embd_out, where there is one */
    struct pi_q8 *
        q8; /* (decode tokens, widest input) what products read now, quantised; NULL with F32 activations */
    float *scores; /* (n_ctx, PI_ATTEND_TOKENS) */
    float *head;   /* (decode tokens, head_dim) */
};

/* Makes products of a prompt chunk in pi_blas_products()'s place, as far as tolerances go. */
typedef enum pi_code (*pi_products_fn)(void *ctx, const struct pi_blas_in *in,
                                       const struct pi_blas_out *outs, uint32_t n_outs,
                                       struct pi_err *err);

struct pi_state {
    const struct pi_model *m;
    const struct pi_predictor *pred; /* or NULL */
    const struct pi_cpu *cpu;
    struct pi_pool *pool;
    struct pi_kv kv;
    enum pi_mode *mode; /* (n_layer) of decode steps */
    enum pi_act_type act;
    uint32_t n_units;
    struct pi_unit units[PI_CPU_UNITS];
    uint32_t n_lanes;
    struct pi_lane *lanes;
    uint32_t *iota;  /* (max(n_ff, n_ctx)) 0, 1, 2 ... */
    uint32_t n_dec;  /* most tokens of a decode step */
    bool keep_input; /* some predictor, or a parallel block, reads the layer's input */
    bool keep_prev;  /* some predictor reads the residual of the layer before */

    /* the step */
    uint32_t n_tok;
    const int32_t *token, *pos;
    const uint32_t *seq; /* or NULL */
    const bool *want;    /* or NULL */
    float *logits;       /* (wanted, n_vocab) */

    /* shared scratch, for the largest chunk; (n_tok, ...) */
    float *residual, *q, *attn;  /* n_embd, n_embd_q, n_embd_q */
    float *rotation;             /* n_rot: pairs of cosine and sine */
    float *normed, *k, *v, *tmp; /* prompt: n_embd, n_embd_kv, n_embd_kv, n_embd */
    float *h, *prod;             /* prompt: n_ff; prod is h itself when not gated */
    float *down_tile;            /* prompt: (PI_DOWN_TILE, n_embd) */
    struct pi_blas_scratch blas; /* prompt */
    struct pi_q8 *q8;            /* prompt: (n_batch, widest input) with quantised activations */
    float *
        layer_input; /* (n_dec, n_embd), when kept; of the largest chunk where blocks are parallel */
    float *prev_attn[2]; /* decode: (n_dec, n_embd) of even and odd layers, when kept */

    pi_products_fn products; /* prompt: of attention, by somebody else; NULL: here */
    void *products_ctx;

    const struct pi_observer *obs;
    uint8_t *traced, *truth; /* (n_layer, n_ff) 0 or 1 a neuron; NULL: no trace */
    /* written by thread 0 */
    struct pi_engine_stats stats;
    struct pi_layer_work *work; /* (n_layer) */
};

extern const struct pi_team_op pi_team_ops[PI_OP_KINDS];
extern const pi_solo_op pi_solo_ops[PI_OP_KINDS];

struct pi_span {
    uint32_t begin, end;
};

/* A thread's share of [0, n), cut at multiples of granule. */
static inline struct pi_span pi_span(uint32_t n, uint32_t granule, uint32_t thread,
                                     uint32_t n_threads)
{
    uint64_t pieces = ((uint64_t)n + granule - 1) / granule;
    uint64_t b = pieces * thread / n_threads * granule,
             e = pieces * (thread + 1) / n_threads * granule;

    return (struct pi_span){(uint32_t)(b < n ? b : n), (uint32_t)(e < n ? e : n)};
}

static inline uint32_t pi_state_seq(const struct pi_state *s, uint32_t t)
{
    return s->seq != NULL ? s->seq[t] : 0;
}

static inline bool pi_state_wants(const struct pi_state *s, uint32_t t)
{
    return s->logits != NULL && (s->want == NULL || s->want[t]);
}

/* Pieces both tables share. */

/* Token (and position) embedding of token t -> out (n_embd); tmp: scratch as wide as n_embd and as n_embd_tok, used with learned positions or a projection
 * only. */
void pi_ops_embed(const struct pi_state *s, uint32_t t, float *out, float *tmp);
/* RMSNorm or LayerNorm as the model has it; w NULL: x as it is. */
void pi_ops_norm(const struct pi_state *s, const float *x, const float *w, const float *b,
                 float *out);
/* RMSNorm over each of n_heads heads, in place, where w (head_dim) is not NULL. */
void pi_ops_head_norm(const struct pi_state *s, const float *w, float *x, uint32_t n_heads);
/* What the norms of a layer read: the residual, for the feed-forward of a parallel block the layer's input. */
const float *pi_ops_ffn_input(const struct pi_state *s);
/* Cosines and sines of token t's position into s->rotation: all layers and heads share them. */
void pi_ops_rotation(const struct pi_state *s, uint32_t t);
/* Rotates token t's heads in place (RoFormer, eq. 34), as pi_rope() does; nothing without rotary embedding. */
void pi_ops_rope(const struct pi_state *s, float *x, uint32_t n_heads, uint32_t t);
/* n elements of a row of keys or values, from element first on. */
void pi_ops_kv_store(const struct pi_state *s, uint8_t *rows, uint32_t layer, uint32_t t,
                     uint32_t first, const float *x, uint32_t n);
/* One head of one token: q (head_dim, scaled) against the cache -> out (head_dim). scores: (n_ctx). */
void pi_ops_attend(const struct pi_state *s, uint32_t layer, uint32_t t, uint32_t head,
                   const float *q, float *scores, float *out);
/* Most tokens that go over the cache together. */
#define PI_ATTEND_TOKENS 8
/* The same for tokens t..t + n_tok, of s->q to s->attn; as fast as can be where their positions follow each other. scores: (n_ctx, PI_ATTEND_TOKENS). */
void pi_ops_attend_tokens(const struct pi_state *s, uint32_t layer, uint32_t t, uint32_t n_tok,
                          uint32_t head, float *scores);

/* Vectors of n elements, one for each token: as they are, and quantised (n / 32 blocks each) where the matrix may want them so; q8 NULL: it does not. */
struct pi_vecs {
    const float *x;
    const struct pi_q8 *q8;
};

/* True where products with w are to have quantised activations. */
bool pi_ops_takes_q8(const struct pi_state *s, const struct pi_mat *w);
/* x (n_tok, n) quantised to out (n_tok, n / 32) for products with w; nothing unless it takes them. */
void pi_ops_quantise(const struct pi_state *s, const struct pi_mat *w, const float *x,
                     uint32_t n_tok, struct pi_q8 *out);
/* The same for several matrices (n_mats) that read the same vectors: where one of them takes them quantised the vectors are d * q for everybody, and x is made
 * so if other matrices of the group, or others, read it too; not where norms stand behind the blocks, since x is the residual's base there. */
void pi_ops_quantise_group(const struct pi_state *s, const struct pi_mat *const *mats, int n_mats,
                           bool others, float *x, uint32_t n_tok, struct pi_q8 *out);
/* out[t][i] = row begin + i of w . x[t], or row ids[begin + i]; bias (w->n_rows) may be NULL. x (n_tok, w->n_cols); out (n_tok, ...) with
 * ldo floats from token to token. Several tokens, at most PI_DECODE_TOKENS, share a row's one read; each
 * has the bits that it has alone. */
void pi_ops_dots(const struct pi_cpu *cpu, const struct pi_mat *w, const uint32_t *ids,
                 struct pi_span rows, struct pi_vecs x, uint32_t n_tok, const float *bias,
                 float *out, size_t ldo);

/* Thread 0 counts what a step reads: n_rows rows of a matrix. */
void pi_ops_count(struct pi_state *s, uint64_t *weights, const struct pi_mat *w, uint64_t n_rows);
/* The same rows for each of n_tok tokens, in one read. */
void pi_ops_count_shared(struct pi_state *s, uint64_t *weights, const struct pi_mat *w,
                         uint64_t n_rows, uint32_t n_tok);

/* Thread 0 notes neurons of a layer that a unit has worked on in this step. */
static inline void pi_ops_note_work(struct pi_state *s, uint32_t layer, uint32_t unit, uint64_t n)
{
    s->work[layer].neurons[unit] += n;
}

/* Decode's feed-forward block (pi_ops_ffn.c). */
void pi_team_predict(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                     uint32_t n_threads);
void pi_team_ffn(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                 uint32_t n_threads);
void pi_team_merge(void *ctx, const struct pi_op *op, uint32_t n_tok, uint32_t thread,
                   uint32_t n_threads);

#endif
