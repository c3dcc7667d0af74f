/*
 * pi_kernels.h - the device kernels of a decode step, as C functions that launch them into a stream.
 *
 * No CUDA type: streams are opaque. Launchers allocate nothing and never wait, so that all of them may be captured in a graph; errors of launches show in
 * pi_gpu_launched(). All pointers are device pointers (or device addresses of mapped host memory where a name ends in _map). All
 * arithmetic and sums are F32, each sum in an order that depends on shapes, n_tok, the set and the device alone: equal inputs give equal bytes. A token's sums are not those of a step of its own: n_tok decides how columns, contexts and
 * sets are cut, and down's slices follow the set, which is the union of what all tokens want. n_tok is the graph's batch bucket (1..PI_K_MAX_TOKENS); tokens
 * from step->n_tok on are padding: computed like the others, their keys and values go to the cache's spare row.
 *
 * Every kernel has a twin on the CPU in tests/ (the scalar operators of runtime/cpu and runtime/pi_ops*.c).
 */
#ifndef PI_KERNELS_H
#define PI_KERNELS_H

#include "common/pi_shape.h"
#include "runtime/pi_dev_model.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PI_K_MAX_TOKENS 32
#define PI_K_SLOT_BYTES 64 /* a slot of a hand-over has a cache line of its own */

/* What changes from step to step; lives in device memory, written by pi_k_begin(). */
struct pi_k_step {
    uint32_t step;  /* the epoch that slots carry; set by the host before each launch, never repeats */
    uint32_t n_tok; /* tokens that are real */
    int32_t pos[PI_K_MAX_TOKENS];
    uint32_t seq[PI_K_MAX_TOKENS];
    uint32_t want[PI_K_MAX_TOKENS]; /* logits wanted: index among the wanted ones, or UINT32_MAX */
    uint32_t n_want;
};

/* ---- outer ---- */

/* First kernel: *step = *step_map; residual (n_tok, n_embd) = embd_map. */
void pi_k_begin(const struct pi_k_step *step_map, struct pi_k_step *step, const float *embd_map,
                float *residual, uint32_t n_tok, uint32_t n_embd, void *stream);

struct pi_k_norm {
    const float *w, *b; /* (n_embd); w NULL: no norm, the input as it is; b NULL without bias */
    bool layer_norm;    /* else RMSNorm */
    /* the result is rounded to the grid of quantised activations (--act q8); n_embd is a multiple of 32 then. For pi_k_norm_publish() and pi_kp_norm() alone: a
     * product with such an input is given it ready made */
    bool q8;
    float eps;
};

/* out[t] = norm(in[t]); in, out (n_tok, n_embd); with norm->w NULL out may be in. out_map: the same to mapped memory, or NULL; raw_map: in itself to mapped memory, or NULL. Then,
 * unless slot_map is NULL, the slot takes step->step (release, system scope) after all of that is visible to the host. */
void pi_k_norm_publish(const struct pi_k_norm *norm, const float *in, float *out, float *out_map,
                       float *raw_map, uint32_t *slot_map, const struct pi_k_step *step,
                       uint32_t n_tok, uint32_t n_embd, void *stream);

/* ---- attention ---- */

struct pi_k_qkv {
    struct pi_k_norm norm;
    const struct pi_dmat *q, *k, *v;
    const float *q_b, *k_b, *v_b; /* or NULL */
    const struct pi_shape *shape;
    const float *inv_freq; /* or NULL */
    float rope_mscale;
    enum pi_type kv_type;
    void *k_cache, *v_cache;
    uint32_t n_ctx, n_seq; /* spare row: n_seq * n_ctx */
};
/* q (n_tok, n_embd_q) = rope(Wq norm(residual) + b) / sqrt(head_dim); keys (rotated) and values into the cache at row seq * n_ctx + pos. Rotation as
 * pi_ops_rotation() and pi_ops_rope() have it (cos and sin of F32 pos * inv_freq, times rope_mscale). One kernel. */
void pi_k_qkv(const struct pi_k_qkv *a, const float *residual, const struct pi_k_step *step,
              float *q, uint32_t n_tok, void *stream);

/* Bytes of scratch that pi_k_attn() needs; the part in front of it that tickets live in must be zero before the first launch. */
size_t pi_k_attn_scratch(const struct pi_shape *shape, uint32_t n_tok);
/* out (n_tok, n_embd_q): each head of each token over cache rows seq * n_ctx + [0, pos]; softmax with its maximum taken out; context split over a fixed grid of
 * pieces that end early, partial results merged in order of pieces (flash-decoding). Padding tokens: any finite output. */
void pi_k_attn(const struct pi_shape *shape, enum pi_type kv_type, const float *q,
               const void *k_cache, const void *v_cache, uint32_t n_ctx, uint32_t n_seq,
               const struct pi_k_step *step, void *scratch, float *out, uint32_t n_tok,
               void *stream);

/* ---- products ---- */

/* out[t][r] = (add ? out[t][r] : 0) + W[r] . norm(x[t]) + bias[r], then max(0, .) if relu. x (n_tok, n_cols), out (n_tok, n_rows).
 * norm NULL or norm->w NULL: x as it is. Used for the attention's output projection (add = true, out = residual) and the predictor's first
 * layer. x and out must not overlap. */
void pi_k_matvec(const struct pi_dmat *w, const float *bias, const struct pi_k_norm *norm,
                 const float *x, float *out, bool add, bool relu, uint32_t n_tok, void *stream);

/* logits (step->n_want, n_vocab) of the wanted tokens: W norm(residual[t]), close together in the order of want[]. */
void pi_k_output(const struct pi_dmat *w, const struct pi_k_norm *norm, const float *residual,
                 const struct pi_k_step *step, float *logits, uint32_t n_tok, void *stream);

/* The k largest of each row of logits (n, n_vocab), largest first, ties by smaller index: values (n, k), ids (n, k); k <= 256. scratch: pi_k_topk_scratch(). */
size_t pi_k_topk_scratch(uint32_t n, uint32_t n_vocab, uint32_t k);
void pi_k_topk(const float *logits, uint32_t n, uint32_t n_vocab, uint32_t k, void *scratch,
               float *values, uint32_t *ids, void *stream);

/* ---- feed-forward ---- */

/* The set of neurons to compute, in device memory. Made by pi_k_predict() or pi_k_gate_exact(). */
struct pi_k_set {
    uint32_t *n;      /* (1) how many */
    uint32_t *local;  /* (n_hot) local indices, ascending */
    uint32_t *tokens; /* (n_hot) bit t: wanted for token t; entry i belongs to local[i] */
    uint32_t *marks;  /* (n_hot + n_cold) scratch: bit t: neuron wanted for token t */
    uint32_t *ticket; /* scratch; zero before the first launch, zero after each */
    float *gate;      /* (n_tok, n_hot) by local index: the activation's output, by pi_k_gate_exact() */
};

/* The cold set in mapped memory, for the CPU; what pi_cold_run() takes. */
struct pi_k_cold_map {
    uint32_t *n;      /* (1) */
    uint32_t *ids;    /* (n_cold) original ids, ascending */
    uint32_t *tokens; /* (n_cold) */
    uint32_t *slot;   /* takes step->step once the set is visible; NULL: the cold set is not published */
};

/* Second layer of the predictor: neuron i of pred->fc2 is wanted for token t where fc2[i] . hidden[t] + bias[i] >= threshold; NaN: wanted. The hot part (if
 * predict_hot) is compacted into set, the cold part (if predict_cold) into cold with original ids. hidden (n_tok, width). Only real tokens (step->n_tok) set bits. */
void pi_k_predict(const struct pi_dev_layer *layer, const float *hidden,
                  const struct pi_k_step *step, const struct pi_k_set *set,
                  const struct pi_k_cold_map *cold, uint32_t n_tok, void *stream);

/* Exact: activation of the gate (up where not gated, with its bias) of all hot neurons for x (n_tok, n_embd) normed; set: those whose output is not zero for some
 * real token; set->gate: that output for every hot neuron, by local index. */
void pi_k_gate_exact(const struct pi_shape *shape, const struct pi_dev_layer *layer, const float *x,
                     const struct pi_k_step *step, const struct pi_k_set *set, uint32_t n_tok,
                     void *stream);

enum pi_k_ffn_kind {
    PI_K_FFN_DENSE,     /* all hot neurons; set is not read: h by local index */
    PI_K_FFN_EXACT,     /* set and set->gate as pi_k_gate_exact() left them */
    PI_K_FFN_PREDICTED, /* set by pi_k_predict(): gate and up of its members fused; up rows only matter where the activation fires for
                         * a token that wants the neuron */
};
/* h (n_tok, n_hot) by position in the set: what the down projection is given; 0 where a token does not want the neuron. Grid fixed; blocks beyond *set->n end early.
 * norm NULL or norm->w NULL: x (n_tok, n_embd) is normed already; else it is normed here, which pi_k_ffn_up_norms() must allow. Predicted: pi_k_predict() and its product are the two
 * kernels in front, and x is older than both: it is read while the prediction still runs. */
void pi_k_ffn_up(const struct pi_shape *shape, const struct pi_dev_layer *layer,
                 enum pi_k_ffn_kind kind, const struct pi_k_norm *norm, const float *x,
                 const struct pi_k_step *step, const struct pi_k_set *set, float *h, uint32_t n_tok,
                 void *stream);
/* Can it norm x itself, for n_tok tokens? RMSNorm of dense and predicted blocks whose vectors fit in shared memory. */
bool pi_k_ffn_up_norms(const struct pi_shape *shape, const struct pi_dev_layer *layer,
                       enum pi_k_ffn_kind kind, uint32_t n_tok);

/* Number of partial sums that pi_k_ffn_down() makes for a layer of n_hot neurons; n_tok of the bucket. Of all kinds PREDICTED makes the most. */
uint32_t pi_k_down_parts(enum pi_k_ffn_kind kind, uint32_t n_hot, uint32_t n_embd, uint32_t n_tok);
/* parts (pi_k_down_parts(), n_tok, n_embd): partial sums over fixed slices of the set of h * down_t rows; slices of equal size by *set->n, so that the work is
 * even; empty slices are zero. */
void pi_k_ffn_down(const struct pi_dev_layer *layer, enum pi_k_ffn_kind kind, const float *h,
                   const struct pi_k_set *set, float *parts, uint32_t n_tok, uint32_t n_embd,
                   void *stream);

/* ---- hand-over ---- */

/* What a kernel needs to wait for the CPU. */
struct pi_k_wait {
    const uint32_t *slot_map;  /* wait until it holds step->step; NULL: no wait */
    uint32_t *relay;           /* device word of this slot alone, or NULL: blocks pass on in it what the first has seen */
    const uint32_t *abort_map; /* non-zero: give up; the result is then undefined and the step failed */
    uint64_t *waited;          /* device: adds the nanoseconds (globaltimer; 0 in the emulator is allowed) that block 0 waited; or NULL */
};

/* residual[t] += down_b + sum of parts in order + cold_map[t]: parts (n_parts, n_tok, n_embd) of the hot neurons (n_parts may be 0), cold_map (n_tok, n_embd) mapped memory
 * or NULL; waits before it reads cold_map, by volatile or relaxed system loads. copy: residual's new value also to there (n_tok, n_embd), or NULL. */
void pi_k_merge(float *residual, const float *down_b, const float *parts, uint32_t n_parts,
                const float *cold_map, const struct pi_k_wait *wait, const struct pi_k_step *step,
                float *copy, uint32_t n_tok, uint32_t n_embd, void *stream);

/* out_map (n_tok, n_embd) = sum of parts in order, to mapped memory, then the slot takes step->step: for a merge on the CPU. ticket: device, zero before the
 * first launch, zero after each (that of a struct pi_k_set will do). */
void pi_k_publish_parts(const float *parts, uint32_t n_parts, float *out_map, uint32_t *slot_map,
                        const struct pi_k_step *step, uint32_t *ticket, uint32_t n_tok,
                        uint32_t n_embd, void *stream);

/* Waits, then dst[i] = src_map[i] for two arrays of n floats (dst2 may be NULL): what the CPU hands over where nothing is merged. */
void pi_k_receive(const struct pi_k_wait *wait, const struct pi_k_step *step, const float *src_map,
                  float *dst, const float *src2_map, float *dst2, size_t n, void *stream);

#ifdef __cplusplus
}
#endif
#endif
