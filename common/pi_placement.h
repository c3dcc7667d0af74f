/*
 * pi_placement.h - the placement artifact: what lives where, for one model file and one budget.
 *
 * Units: 0 is the CPU, 1..n are GPUs. In each layer the neurons are ordered by hotness; the first n_hot of them live on hot_unit, the rest
 * on the CPU; the two sets are disjoint and complete because order is a permutation (checked at load). Because
 * the order is hottest first, a run with less memory keeps a shorter prefix.
 * Tensors of M.placement.gguf: blk.N.order (I32, n_ff). Keys, arrays over layers: pi.placement.n_hot (U32), .hot_unit, .attn_unit,
 * .mode_cpu, .mode_gpu (U8). Scalars: pi.placement.n_layer, .n_ff, .n_units, .budget, .context_bytes, .n_ctx, .n_seq, .n_batch, .kv_type, .embd_unit, .output_unit, .objective, .hardware (text).
 */
#ifndef PI_PLACEMENT_H
#define PI_PLACEMENT_H

#include "common/pi_artifact.h"
#include "common/pi_err.h"

#include <stdint.h>

#define PI_PLACEMENT_VERSION PI_ARTIFACT_VERSION(1, 1)

#define PI_UNIT_CPU  0
#define PI_MAX_UNITS 17 /* the CPU and 16 GPUs */

enum pi_mode {
    PI_MODE_DENSE,
    PI_MODE_EXACT,
    PI_MODE_PREDICTED
};
const char *pi_mode_name(enum pi_mode mode);

struct pi_place_layer {
    uint32_t *order;   /* (n_ff) neuron ids, hottest first; owned by the placement */
    uint32_t n_hot;    /* the first n_hot of order live on hot_unit */
    uint8_t hot_unit;  /* 1..n; meaningless when n_hot is 0 */
    uint8_t attn_unit; /* where attention's weights and this layer's KV cache live */
    /* Per unit, by expected time. PREDICTED: the run may predict the unit's neurons; else it does not, and has no memory for it: exact where the activation has zeros,
     * unless the run as a whole is dense. DENSE is for placements that are made for such runs. */
    enum pi_mode mode_cpu, mode_gpu;
};

struct pi_placement {
    uint32_t n_layer, n_ff;
    uint32_t n_units;              /* 1 + GPUs that are used */
    struct pi_place_layer *layers; /* (n_layer) */
    uint8_t embd_unit, output_unit;
    uint64_t budget; /* bytes of VRAM, everything counted; per GPU */
    uint64_t
        context_bytes; /* of it, what the GPU's context was taken to need; 0: not known (files before 1.1) */
    uint32_t n_ctx, n_seq, n_batch; /* what the budget was computed for */
    uint32_t kv_type;               /* enum pi_type: F16 or F32 */
    char objective[16];
    char hardware[256]; /* names and figures, for people */
    struct pi_lineage lineage;
    struct pi_fingerprint fingerprint;
};

/* All on the CPU, in natural order: what a run without a placement uses. */
enum pi_code pi_placement_cpu(uint32_t n_layer, uint32_t n_ff, struct pi_placement *out,
                              struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_placement_load(const char *path, struct pi_placement *out,
                               struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_placement_save(const char *path, const struct pi_placement *p,
                               struct pi_err *err) PI_MUST_CHECK;
/* Every order a permutation, every count and unit in range: PI_E_CORRUPT naming the layer. load calls it. */
enum pi_code pi_placement_check(const struct pi_placement *p, struct pi_err *err) PI_MUST_CHECK;
/* PI_E_MISMATCH as pi_artifact_check_model() says it; path names the placement, whose file is closed by now. */
enum pi_code pi_placement_check_model(const struct pi_placement *p, const char *path,
                                      const char *model_path, const struct pi_lineage *lineage,
                                      const struct pi_fingerprint *fp,
                                      struct pi_err *err) PI_MUST_CHECK;
void pi_placement_free(struct pi_placement *p); /* accepts a zeroed one */

#endif
