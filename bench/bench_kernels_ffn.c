/* bench_kernels: the feed-forward block of a layer with half of the model in fast memory, and with all of it. */
#include "config.h"

#include "bench/bench_kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_EMBD 4096u
#define N_FF   11008u
#define WIDTH  512u /* of the predictor */
#define N_SETS 4u   /* sets of neurons taken in turn: what one set touches might stay in the L2 */

/* How many neurons are in VRAM, and how many of them, and of the CPU's, a token wants. */
struct split {
    uint32_t n_hot, active, cold_active;
};

struct ffn_bench {
    const struct bench_rig *r;
    enum pi_type type;
    uint32_t n_tok;
    struct split split;
    enum pi_k_ffn_kind kind;
    struct pi_shape shape;
    struct pi_k_step *step;
    struct pi_k_set set; /* arrays of N_SETS times N_FF where they are read */
    struct pi_k_cold_map cold;
    uint32_t copies; /* of the weights */
    float *x, *hidden, *h, *ones, *parts, *residual, *bias;
    float *cold_map; /* mapped */
    uint32_t *cold_ids;
    size_t layer_bytes;
};

static size_t mat_bytes(const struct ffn_bench *b, uint32_t rows, uint32_t cols)
{
    return (size_t)bench_mat(b->r, b->type, rows, cols, 0).row_bytes * rows;
}

static void put(void *dev, const void *src, size_t n)
{
    struct pi_dev_buf to = {dev, n};

    BENCH_DO(pi_gpu_upload(&to, 0, src, n, &err_));
}

/* n of n_all, evenly spread: is i one of them? Sets are shifted against each other. */
static bool picked(uint32_t i, uint32_t n, uint32_t n_all, uint32_t set)
{
    uint64_t at = ((uint64_t)i + 2 * set) % n_all;

    return (at + 1) * n / n_all != at * n / n_all;
}

/* The predictor's input is zero, so that biases alone decide; and the set, as if it had run. */
static void fill_set(struct ffn_bench *b, uint32_t set)
{
    const uint32_t n_hot = b->split.n_hot, n_cold = N_FF - n_hot;
    const uint32_t bits = b->n_tok > 31 ? ~0u : (1u << b->n_tok) - 1u;
    float *bias = malloc(N_FF * sizeof(*bias));
    uint32_t *local = malloc(N_FF * sizeof(*local)), *tokens = malloc(N_FF * sizeof(*tokens)),
             n = 0;

    if (bias == NULL || local == NULL || tokens == NULL)
        bench_die(__FILE__, __LINE__, "malloc", "out of memory");
    for (uint32_t i = 0; i < N_FF; i++) {
        bool hot = i < n_hot;
        bool on = hot ? picked(i, b->split.active, n_hot, set)
                      : picked(i - n_hot, b->split.cold_active, n_cold, set);

        bias[i] = on ? 1.0f : -1.0f;
        if (hot && on)
            local[n++] = i;
        tokens[i] = bits;
    }
    put(b->bias + set * N_FF, bias, N_FF * sizeof(*bias));
    put(b->set.local + set * N_FF, local, n * sizeof(*local));
    put(b->set.tokens + set * N_FF, tokens, N_FF * sizeof(*tokens));
    put(b->set.n + set, &n, sizeof(n));
    for (uint32_t i = 0; i < n_cold; i++)
        local[i] = n_hot + i;
    put(b->cold_ids, local, n_cold * sizeof(*local));
    free(bias);
    free(local);
    free(tokens);
}

/* The set of call i. */
static struct pi_k_set set_at(const struct ffn_bench *b, uint32_t i)
{
    const uint32_t k = i / b->copies % N_SETS;
    struct pi_k_set s = b->set;

    s.n += k;
    s.local += (size_t)k * N_FF;
    s.tokens += (size_t)k * N_FF;
    return s;
}

/* Standard deviation of a product of a row of the pool's bytes with the input. */
static double spread(const struct ffn_bench *b)
{
    const double half = 0.44; /* root mean square of the pool's halves */
    const double weight = b->type == PI_TYPE_Q8_0   ? 74.0 * half
                          : b->type == PI_TYPE_Q4_0 ? 4.6 * half
                                                    : half;

    return 0.01 * sqrt(N_EMBD) * weight;
}

static void fill_vectors(struct ffn_bench *b)
{
    const size_t n = (size_t)PI_K_MAX_TOKENS * N_FF;
    float *v = malloc(n * sizeof(*v));
    struct pi_k_step step = {.step = 1, .n_tok = b->n_tok};

    if (v == NULL)
        bench_die(__FILE__, __LINE__, "malloc", "out of memory");
    for (size_t i = 0; i < n; i++)
        v[i] = i % 3 == 0 ? 0.01f : -0.01f;
    put(b->x, v, (size_t)PI_K_MAX_TOKENS * N_EMBD * sizeof(*v));
    for (size_t i = 0; i < n; i++)
        v[i] = 1.0f;
    put(b->ones, v, n * sizeof(*v));
    put(b->step, &step, sizeof(step));
    free(v);
}

static void open_bench(struct ffn_bench *b, struct bench_rig *r, enum pi_type type, uint32_t n_tok,
                       const struct pi_pinned *map, struct split split)
{
    const size_t vec = (size_t)PI_K_MAX_TOKENS * N_EMBD * sizeof(float);
    const size_t wide = (size_t)PI_K_MAX_TOKENS * N_FF * sizeof(float),
                 ids = N_FF * sizeof(uint32_t);
    uint32_t *words = map->dev;

    memset(b, 0, sizeof(*b));
    bench_reset(r);
    b->r = r;
    b->type = type;
    b->n_tok = n_tok;
    b->split = split;
    b->shape = (struct pi_shape){.n_embd = N_EMBD, .n_ff = N_FF, .gated = true, .act = PI_ACT_SILU};
    b->step = bench_scratch(r, sizeof(*b->step));
    b->set = (struct pi_k_set){.n = bench_scratch(r, N_SETS * sizeof(uint32_t)),
                               .local = bench_scratch(r, N_SETS * ids),
                               .tokens = bench_scratch(r, N_SETS * ids),
                               .marks = bench_scratch(r, ids),
                               .ticket = bench_scratch(r, 4),
                               .gate = bench_scratch(r, wide)};
    b->cold = (struct pi_k_cold_map){words + 16, words + 32, words + 32 + N_FF, words};
    b->cold_map = (float *)(words + 32 + 2 * N_FF);
    b->x = bench_scratch(r, vec);
    b->hidden = bench_scratch(r, vec);
    b->residual = bench_scratch(r, vec);
    b->h = bench_scratch(r, wide);
    b->ones = bench_scratch(r, wide);
    b->bias = bench_scratch(r, N_SETS * ids);
    b->cold_ids = bench_scratch(r, ids);
    b->parts =
        bench_scratch(r, (size_t)pi_k_down_parts(PI_K_FFN_PREDICTED, split.n_hot, N_EMBD, n_tok) *
                             n_tok * N_EMBD * sizeof(float));
    b->layer_bytes = mat_bytes(b, N_FF, WIDTH) + 3 * mat_bytes(b, split.n_hot, N_EMBD);
    fill_vectors(b);
    for (uint32_t k = 0; k < N_SETS; k++)
        fill_set(b, k);
}

/* Everything of a layer in the copy, of so many bytes, of call i. */
static struct pi_dev_layer layer_at(const struct ffn_bench *b, size_t bytes, uint32_t i)
{
    char *p = bench_copy(b->r, bytes, i % b->copies);
    const uint32_t n_hot = b->split.n_hot;
    const size_t each = mat_bytes(b, n_hot, N_EMBD);
    struct pi_dev_layer l = {.n_hot = n_hot, .n_cold = N_FF - n_hot, .cold_ids = b->cold_ids};

    l.gate = l.up = l.down_t = bench_mat(b->r, b->type, n_hot, N_EMBD, 0);
    l.gate.data = p;
    l.up.data = p + each;
    l.down_t.data = p + 2 * each;
    l.pred.fc2 = bench_mat(b->r, b->type, N_FF, WIDTH, 0);
    l.pred.fc2.data = p + 3 * each;
    l.pred.width = WIDTH;
    l.pred.bias = b->bias + (size_t)(i / b->copies % N_SETS) * N_FF;
    l.pred.predict_hot = true;
    l.pred.predict_cold = l.n_cold > 0;
    return l;
}

/* Nothing is fetched ahead for kernels that do not come: no L2 holds rows of that size. */
static void alone(struct pi_dev_layer *l)
{
    l->up.row_bytes = l->down_t.row_bytes = (size_t)1 << 40;
}

static void launch_predict(const void *arg, uint32_t i, void *stream)
{
    const struct ffn_bench *b = arg;
    struct pi_dev_layer l = layer_at(b, mat_bytes(b, N_FF, WIDTH), i);
    struct pi_k_set set = set_at(b, i);

    l.pred.fc2.data = l.gate.data;
    l.gate.data = NULL;
    alone(&l);
    pi_k_predict(&l, b->hidden, b->step, &set, &b->cold, b->n_tok, stream);
}

static void launch_gate(const void *arg, uint32_t i, void *stream)
{
    const struct ffn_bench *b = arg;
    struct pi_dev_layer l = layer_at(b, 3 * mat_bytes(b, b->split.n_hot, N_EMBD), i);
    struct pi_k_set set = set_at(b, i);

    alone(&l);
    pi_k_gate_exact(&b->shape, &l, b->x, b->step, &set, b->n_tok, stream);
}

static void launch_up(const void *arg, uint32_t i, void *stream)
{
    const struct ffn_bench *b = arg;
    struct pi_dev_layer l = layer_at(b, 3 * mat_bytes(b, b->split.n_hot, N_EMBD), i);
    struct pi_k_set set = set_at(b, i);

    l.down_t.row_bytes = (size_t)1 << 40; /* as alone() */
    pi_k_ffn_up(&b->shape, &l, b->kind, NULL, b->x, b->step, &set, b->h, b->n_tok, stream);
}

static void launch_down(const void *arg, uint32_t i, void *stream)
{
    const struct ffn_bench *b = arg;
    struct pi_dev_layer l = layer_at(b, 3 * mat_bytes(b, b->split.n_hot, N_EMBD), i);
    struct pi_k_set set = set_at(b, i);

    pi_k_ffn_down(&l, b->kind, b->ones, &set, b->parts, b->n_tok, N_EMBD, stream);
}

static void merge(const struct ffn_bench *b, void *stream)
{
    const struct pi_k_wait no_wait = {0};

    pi_k_merge(b->residual, NULL, b->parts,
               pi_k_down_parts(b->kind, b->split.n_hot, N_EMBD, b->n_tok),
               b->split.n_hot < N_FF ? b->cold_map : NULL, &no_wait, b->step, NULL, b->n_tok,
               N_EMBD, stream);
}

static void launch_merge(const void *arg, uint32_t i, void *stream)
{
    (void)i;
    merge(arg, stream);
}

/* The block as a decode step has it, the CPU's share never waited for. */
static void launch_block(const void *arg, uint32_t i, void *stream)
{
    const struct ffn_bench *b = arg;
    struct pi_dev_layer l = layer_at(b, b->layer_bytes, i);
    struct pi_k_set set = set_at(b, i);

    if (b->kind == PI_K_FFN_PREDICTED)
        pi_k_predict(&l, b->hidden, b->step, &set, &b->cold, b->n_tok, stream);
    else if (b->kind == PI_K_FFN_EXACT)
        pi_k_gate_exact(&b->shape, &l, b->x, b->step, &set, b->n_tok, stream);
    pi_k_ffn_up(&b->shape, &l, b->kind, NULL, b->x, b->step, &set, b->h, b->n_tok, stream);
    pi_k_ffn_down(&l, b->kind, b->h, &set, b->parts, b->n_tok, N_EMBD, stream);
    merge(b, stream);
}

static void line(struct bench_rig *r, struct ffn_bench *b, const char *what, uint64_t bytes,
                 size_t copy_bytes, void (*launch)(const void *, uint32_t, void *))
{
    char name[96];

    (void)snprintf(name, sizeof(name), "%-24s %-5s %2u token%s", what, pi_type_name(b->type),
                   b->n_tok, b->n_tok > 1 ? "s" : "");
    b->copies = copy_bytes > 0 ? bench_copies(r, copy_bytes) : 1;
    bench_time(r, name, bytes, b->copies * N_SETS, launch, b);
}

static uint32_t set_size(const struct ffn_bench *b)
{
    struct pi_dev_buf from = {b->set.n, sizeof(uint32_t)};
    uint32_t n = 0;

    BENCH_DO(pi_gpu_download(&n, &from, 0, sizeof(n), &err_));
    return n;
}

/* Gate rows of all, the rest of about a tenth. Behind it the set is that of the last call. */
static void bench_exact(struct bench_rig *r, struct ffn_bench *b)
{
    const uint64_t all = mat_bytes(b, b->split.n_hot, N_EMBD), row = all / b->split.n_hot;
    uint32_t n;

    b->kind = PI_K_FFN_EXACT;
    b->shape.act = PI_ACT_FATRELU;
    b->shape.act_threshold = (float)(1.28 * spread(b));
    line(r, b, "exact gate", all, 3 * all, launch_gate);
    n = set_size(b);
    printf("  %u neurons in the set\n", n);
    line(r, b, "exact block", all + 2 * n * row, b->layer_bytes, launch_block);
    b->shape.act = PI_ACT_SILU;
}

static void bench_split(struct bench_rig *r, enum pi_type type, uint32_t n_tok,
                        const struct pi_pinned *map, struct split split)
{
    struct ffn_bench b;
    uint64_t row, all;

    open_bench(&b, r, type, n_tok, map, split);
    all = mat_bytes(&b, split.n_hot, N_EMBD);
    row = all / split.n_hot;
    printf("%u of %u neurons in VRAM, %u and %u active\n", split.n_hot, N_FF, split.active,
           split.cold_active);
    b.kind = PI_K_FFN_PREDICTED;
    line(r, &b, "predict", mat_bytes(&b, N_FF, WIDTH), mat_bytes(&b, N_FF, WIDTH), launch_predict);
    line(r, &b, "gate and up", 2 * split.active * row, 3 * all, launch_up);
    line(r, &b, "down", split.active * row, 3 * all, launch_down);
    line(r, &b, "merge", 0, 0, launch_merge);
    line(r, &b, "predicted block", mat_bytes(&b, N_FF, WIDTH) + 3 * split.active * row,
         b.layer_bytes, launch_block);
    bench_exact(r, &b);
    b.kind = PI_K_FFN_DENSE;
    line(r, &b, "dense gate and up", 2 * all, 3 * all, launch_up);
    line(r, &b, "dense down", all, 3 * all, launch_down);
    line(r, &b, "dense block", 3 * all, b.layer_bytes, launch_block);
}

void bench_kernels_ffn(struct bench_rig *r)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_Q4_0};
    static const struct split splits[] = {{1984, 726, 374}, {N_FF, 1100, 0}};
    struct pi_pinned map;

    BENCH_DO(pi_gpu_pin(0,
                        (32 + 2 * (size_t)N_FF + (size_t)PI_K_MAX_TOKENS * N_EMBD) * sizeof(float),
                        &map, &err_));
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (size_t k = 0; k < sizeof(splits) / sizeof(splits[0]); k++) {
            bench_split(r, types[i], 1, &map, splits[k]);
            bench_split(r, types[i], 8, &map, splits[k]);
        }
    }
    pi_gpu_unpin(&map);
}
