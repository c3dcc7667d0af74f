/* pi_estimate_gpu.c - what a run takes of a GPU's memory. */
#include "config.h"

#include "common/pi_estimate.h"

#include "common/pi_estimate_int.h"
#include "common/pi_prompt_size.h"

#include <string.h>

/* The driver hands out memory in blocks of 2 MiB; allocations below half of that share one, which is taken as part of the context. */
#define ALLOC_BLOCK ((uint64_t)2 << 20)

/* Kernel launches of a captured step, and what the driver keeps of each on the device. */
#define NODES_LAYER 12
#define NODES_OUTER 8
#define NODE_BYTES  8192

#define STEP_BYTES 1024 /* struct pi_k_step, clocks and tickets */

static uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

bool pi_dev_matrix_bytes(uint64_t n_rows, uint64_t row_bytes, uint64_t *out)
{
    uint64_t v;

    return pi_size_mul(n_rows, row_bytes, &v) && pi_size_pad(v, PI_DEV_ALIGN, out);
}

/* ---- buffers ---- */

/* What the predictors need of a step: the width of the widest, vectors of n_embd that are kept for their inputs. */
static uint32_t predictor_needs(const struct pi_predictor *p, uint64_t *kept)
{
    uint32_t r = 1;
    bool layer = false, prev = false;

    for (uint32_t l = 0; p != NULL && l < p->n_layer; l++) {
        const struct pi_predictor_layer *y = &p->layers[l];

        r = y->width > r ? y->width : r;
        layer = layer || (y->width > 0 && y->input == PI_PRED_IN_LAYER);
        prev = prev || (y->width > 0 && y->input == PI_PRED_IN_PREV_ATTN);
    }
    *kept = (layer ? 1 : 0) + (prev ? 2 : 0);
    return r;
}

static void add_f32(struct pi_tally *t, uint64_t times, uint64_t n_tok, uint64_t width)
{
    for (uint64_t i = 0; i < times; i++)
        pi_tally_add_padded(t, n_tok, 4 * width);
}

/* As many pieces of the context as make 1,024 blocks, 4 to 64; for each token, head and piece head_dim sums, a maximum and a total; tickets. */
uint64_t pi_dev_attn_scratch(const struct pi_shape *s, uint32_t n_tok)
{
    const uint64_t blocks = max_u64((uint64_t)s->n_head_kv * n_tok, 1);
    uint64_t pieces = (1024 + blocks - 1) / blocks, rows;

    pieces = pieces < 4 ? 4 : pieces > 64 ? 64 : pieces;
    rows = (uint64_t)n_tok * s->n_head * pieces; /* shapes are checked: nothing overflows */
    return rows * (s->head_dim + 2) * sizeof(float) +
           (uint64_t)PI_DEV_MAX_TOKENS * s->n_head * sizeof(float) + 2 * (uint64_t)PI_DEV_ALIGN;
}

/* In the order of lay_out_device() there. */
static void sum_decode(const struct pi_shape *s, const struct pi_predictor *pred, uint64_t n,
                       struct pi_tally *t)
{
    const uint64_t d = s->n_embd, ff = s->n_ff, q = (uint64_t)s->n_head * s->head_dim;
    uint64_t kept;
    const uint32_t width = predictor_needs(pred, &kept);

    pi_tally_add(t, 1, STEP_BYTES);
    add_f32(t, 2 + kept, n, d);
    add_f32(t, 2, n, q);
    pi_tally_add_padded(t, 1, pi_dev_attn_scratch(s, (uint32_t)n));
    add_f32(t, 1, n, width);
    add_f32(t, 1, 1, s->n_layer);
    add_f32(t, 1, 1, 3 * (uint64_t)s->n_layer + 2); /* slots: at most three cross in a layer */
    add_f32(t, 3, 1, ff);
    add_f32(t, 2, n, ff);
    add_f32(t, 1, n, PI_DEV_DOWN_PARTS * d);
    add_f32(t, 1, n, s->n_vocab);
}

static uint64_t graphs_bytes(const struct pi_model_bytes *b, uint32_t n_dec)
{
    uint64_t n = 0;

    for (uint32_t bucket = 1; bucket <= n_dec; bucket *= 2)
        n++;
    return n * ((uint64_t)b->n_layer * NODES_LAYER + NODES_OUTER) * NODE_BYTES;
}

/* The largest neuron of a layer, as rows are streamed. */
static uint64_t largest_bundle(const struct pi_model_bytes *b)
{
    uint64_t most = 0;

    for (uint32_t l = 0; l < b->n_layer; l++) {
        const struct pi_layer_bytes *y = &b->layers[l];

        most =
            max_u64(most, y->dev_gate_row + y->dev_up_row + y->dev_down_row + (y->up_bias ? 4 : 0));
    }
    return most;
}

enum pi_code pi_estimate_buffers(const struct pi_shape *shape, const struct pi_predictor *pred,
                                 const struct pi_run_size *run, struct pi_model_bytes *b,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_prompt_want want = {.n_batch = run->n_batch, .bundle = largest_bundle(b)};
    const uint32_t n_dec = pi_dev_decode_tokens(run->n_seq);
    struct pi_prompt_size prompt;
    struct pi_tally decode = {0}, rope = {0};

    sum_decode(shape, pred, n_dec, &decode);
    PI_TRY(pi_tally_end(&decode, "buffers", &b->dev.decode, err));
    PI_TRY(pi_prompt_size(shape, &want, &prompt, err));
    b->dev.prompt = prompt.activations + prompt.tile;
    b->dev.workspace = prompt.workspace;
    b->dev.staging = prompt.staging;
    b->dev.graphs = graphs_bytes(b, n_dec);
    pi_tally_add_padded(&rope, shape->n_rot / 2, sizeof(float));
    b->dev.frequencies = rope.sum;
out:
    return rc;
}

/* ---- placements ---- */

enum pi_code pi_estimate_check(const struct pi_model_bytes *b, const struct pi_placement *p,
                               struct pi_err *err)
{
    if (p->n_layer != b->n_layer || p->n_ff != b->n_ff)
        return pi_err_set(err, PI_E_MISMATCH,
                          "placement for %u layers of %u neurons, the model has %u of %u",
                          p->n_layer, p->n_ff, b->n_layer, b->n_ff);
    return PI_OK;
}

/* What the driver takes beyond bytes for a block of them. */
static uint64_t slack(uint64_t bytes)
{
    return bytes < ALLOC_BLOCK / 2 ? 0 : (ALLOC_BLOCK - bytes % ALLOC_BLOCK) % ALLOC_BLOCK;
}

static enum pi_code add_up(struct pi_gpu_budget *g, struct pi_err *err)
{
    const uint64_t parts[] = {g->context, g->weights, g->predictors, g->kv,      g->activations,
                              g->tables,  g->graphs,  g->workspace,  g->staging, g->rounding};
    struct pi_tally t = {0};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        pi_tally_add(&t, 1, parts[i]);
    return pi_tally_end(&t, "placement", &g->total, err);
}

enum pi_code pi_estimate_gpu_base(const struct pi_model_bytes *b, uint64_t context_bytes,
                                  bool staged, struct pi_gpu_budget *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_dev_buffers *d = &b->dev;
    struct pi_gpu_budget g = {.context = context_bytes,
                              .tables = d->frequencies,
                              .graphs = d->graphs,
                              .workspace = d->workspace,
                              .staging = staged ? d->staging : 0};
    struct pi_tally weights = {0}, act = {0};

    for (uint32_t l = 0; l < b->n_layer; l++) /* wherever a merge runs, its bias is at hand */
        pi_tally_add(&weights, 1, b->layers[l].dev_ffn_fixed);
    PI_TRY(pi_tally_end(&weights, "placement", &g.weights, err));
    pi_tally_add(&act, 1, d->decode);
    pi_tally_add(&act, 1, d->prompt);
    PI_TRY(pi_tally_end(&act, "buffers", &g.activations, err));
    g.rounding = slack(d->decode) + slack(d->prompt + d->workspace + g.staging);
    PI_TRY(add_up(&g, err));
    *out = g;
out:
    return rc;
}

uint64_t pi_estimate_gpu_room(const struct pi_gpu_budget *base, uint64_t limit)
{
    const uint64_t fixed = base->weights + base->tables; /* of the device model's allocation */
    uint64_t block;

    if (base->total > limit)
        return 0;
    block = limit - base->total + fixed;
    if (block >= ALLOC_BLOCK)
        block -= block % ALLOC_BLOCK;
    else if (block >= ALLOC_BLOCK / 2)
        block = ALLOC_BLOCK / 2 - 1;
    return block > fixed ? block - fixed : 0;
}

static void add_neurons(const struct pi_layer_bytes *y, uint64_t n, struct pi_tally *weights,
                        struct pi_tally *tables)
{
    pi_tally_add_padded(weights, n, y->dev_gate_row);
    pi_tally_add_padded(weights, n, y->dev_up_row);
    pi_tally_add_padded(weights, n, y->dev_down_row);
    pi_tally_add_padded(weights, n, y->up_bias ? 4 : 0);
    pi_tally_add_padded(tables, n, 4);
}

/* The predictor of n neurons. */
static void add_predictor(const struct pi_layer_bytes *y, uint64_t n, struct pi_tally *t)
{
    if (n == 0 || y->dev_fc1 == 0)
        return;
    pi_tally_add(t, 1, y->dev_fc1);
    pi_tally_add_padded(t, n, y->dev_pred_row);
    pi_tally_add_padded(t, n, y->pred_bias ? 4 : 0);
}

enum pi_code pi_estimate_gpu_layer(const struct pi_model_bytes *b, uint32_t layer,
                                   const struct pi_place_layer *p, uint32_t unit,
                                   struct pi_gpu_budget *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_layer_bytes *y = &b->layers[layer];
    const bool attn = p->attn_unit == unit;
    const uint64_t n = p->hot_unit == unit ? p->n_hot : 0;
    const uint64_t n_cold = attn && p->mode_cpu == PI_MODE_PREDICTED ? b->n_ff - p->n_hot : 0;
    const uint64_t n_pred = (p->mode_gpu == PI_MODE_PREDICTED ? n : 0) + n_cold;
    struct pi_tally weights = {0}, pred = {0}, tables = {0};
    struct pi_gpu_budget g = {.kv = attn ? b->dev_kv : 0};

    if (attn || n > 0) {
        if (attn)
            pi_tally_add(&weights, 1, y->dev_attn);
        add_neurons(y, n, &weights, &tables);
        add_predictor(y, n_pred, &pred);
        if (y->dev_fc1 > 0)
            pi_tally_add_padded(&tables, n_cold, 4);
    }
    PI_TRY(pi_tally_end(&weights, "placement", &g.weights, err));
    PI_TRY(pi_tally_end(&pred, "placement", &g.predictors, err));
    PI_TRY(pi_tally_end(&tables, "placement", &g.tables, err));
    PI_TRY(add_up(&g, err));
    *out = g;
out:
    return rc;
}

static bool any_cold(const struct pi_placement *p)
{
    bool any = false;

    for (uint32_t l = 0; l < p->n_layer; l++)
        any = any || p->layers[l].n_hot < p->n_ff;
    return any;
}

static void accumulate(struct pi_gpu_budget *to, const struct pi_gpu_budget *g)
{
    to->weights += g->weights;
    to->predictors += g->predictors;
    to->kv += g->kv;
    to->tables += g->tables;
}

enum pi_code pi_estimate_gpu(const struct pi_model_bytes *b, const struct pi_placement *p,
                             uint32_t unit, uint64_t context_bytes, struct pi_gpu_budget *out,
                             struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gpu_budget sum = {0}, base;
    struct pi_tally total = {0}; /* no part is larger than it: no part overflows unseen */

    PI_TRY(pi_estimate_check(b, p, err));
    for (uint32_t l = 0; l < p->n_layer; l++) {
        struct pi_gpu_budget g;

        PI_TRY(pi_estimate_gpu_layer(b, l, &p->layers[l], unit, &g, err));
        accumulate(&sum, &g);
        pi_tally_add(&total, 1, g.total);
    }
    if (p->output_unit == unit) {
        sum.weights += b->dev_output;
        pi_tally_add(&total, 1, b->dev_output);
    }
    memset(out, 0, sizeof(*out));
    PI_TRY(pi_tally_end(&total, "placement", &sum.total, err));
    if (sum.total == 0)
        return PI_OK;
    PI_TRY(pi_estimate_gpu_base(b, context_bytes, any_cold(p), &base, err));
    accumulate(&base, &sum);
    base.rounding += slack(base.weights + base.predictors + base.kv + base.tables);
    PI_TRY(add_up(&base, err));
    *out = base;
out:
    return rc;
}
