/* bench_kernels: q, k and v, attention, products, top-k, and a chain of them as a layer has it. */
#include "config.h"

#include "bench/bench_kernels.h"
#include "runtime/cuda/pi_k_mat.h"

#include <stdio.h>
#include <string.h>

#define N_EMBD  4096u
#define N_HEAD  32u
#define WIDTH   512u /* of a predictor */
#define N_VOCAB 32000u
#define N_CTX   4096u

struct mat_bench {
    const struct bench_rig *r;
    enum pi_type type;
    uint32_t n_tok, rows, cols;
    struct pi_shape shape;
    struct pi_k_norm norm;
    struct pi_k_step *step;
    float *x, *q, *out, *inv_freq, *values;
    uint32_t *ids;
    void *scratch, *topk, *cache;
    uint32_t k;
    size_t kv_bytes;    /* keys or values of a layer */
    size_t layer_bytes; /* the chain's weights */
    struct pi_k_mat_geometry g;
};

static void set_step(struct mat_bench *b, uint32_t context)
{
    struct pi_k_step s = {.step = 1, .n_tok = b->n_tok, .n_want = b->n_tok};
    struct pi_dev_buf to = {b->step, sizeof(s)};

    for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++) {
        s.pos[t] = (int32_t)context - 1;
        s.want[t] = t;
    }
    BENCH_DO(pi_gpu_upload(&to, 0, &s, sizeof(s), &err_));
}

static void open_bench(struct mat_bench *b, struct bench_rig *r, enum pi_type type, uint32_t n_tok)
{
    const size_t vec = (size_t)PI_K_MAX_TOKENS * N_EMBD * sizeof(float);

    memset(b, 0, sizeof(*b));
    bench_reset(r);
    b->r = r;
    b->type = type;
    b->n_tok = n_tok;
    b->shape = (struct pi_shape){.n_embd = N_EMBD,
                                 .n_head = N_HEAD,
                                 .n_head_kv = N_HEAD,
                                 .head_dim = N_EMBD / N_HEAD,
                                 .n_rot = N_EMBD / N_HEAD,
                                 .rope_neox = true};
    b->step = bench_scratch(r, sizeof(*b->step));
    b->x = bench_scratch(r, vec);
    b->q = bench_scratch(r, vec);
    b->out = bench_scratch(r, (size_t)PI_K_MAX_TOKENS * N_VOCAB * sizeof(float));
    b->inv_freq = bench_scratch(r, N_EMBD * sizeof(float));
    b->norm = (struct pi_k_norm){.w = bench_scratch(r, N_EMBD * sizeof(float)), .eps = 1e-5f};
    b->scratch = bench_scratch(r, pi_k_attn_scratch(&b->shape, n_tok));
    b->topk = bench_scratch(r, pi_k_topk_scratch(n_tok, N_VOCAB, 256));
    b->values = bench_scratch(r, (size_t)PI_K_MAX_TOKENS * 256 * sizeof(float));
    b->ids = bench_scratch(r, (size_t)PI_K_MAX_TOKENS * 256 * sizeof(uint32_t));
    b->kv_bytes = (size_t)N_CTX * N_EMBD * 2;
    b->cache = bench_scratch(r, 2 * b->kv_bytes);
    set_step(b, 256);
}

static size_t mat_bytes(const struct mat_bench *b, uint32_t rows, uint32_t cols)
{
    return (size_t)bench_mat(b->r, b->type, rows, cols, 0).row_bytes * rows;
}

static void launch_matvec(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;
    struct pi_dmat w = bench_mat(b->r, b->type, b->rows, b->cols, i);

    pi_k_matvec_as(&b->g, &w, NULL, NULL, b->x, b->out, true, false, b->n_tok, stream);
}

static void launch_fc1(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;
    struct pi_dmat w = bench_mat(b->r, b->type, WIDTH, N_EMBD, i);

    pi_k_matvec(&w, NULL, &b->norm, b->x, b->out, false, true, b->n_tok, stream);
}

static void launch_output(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;
    struct pi_dmat w = bench_mat(b->r, b->type, N_VOCAB, N_EMBD, i);

    pi_k_output(&w, &b->norm, b->x, b->step, b->out, b->n_tok, stream);
}

/* q, k and v at one place, one behind the other. */
static void qkv_at(const struct mat_bench *b, char *p, void *cache, void *stream)
{
    struct pi_dmat w[3];
    struct pi_k_qkv a = {.norm = b->norm,
                         .q = &w[0],
                         .k = &w[1],
                         .v = &w[2],
                         .shape = &b->shape,
                         .inv_freq = b->inv_freq,
                         .rope_mscale = 1.0f,
                         .kv_type = PI_TYPE_F16,
                         .k_cache = cache,
                         .v_cache = (char *)cache + b->kv_bytes,
                         .n_ctx = N_CTX,
                         .n_seq = 1};

    for (int i = 0; i < 3; i++) {
        w[i] = bench_mat(b->r, b->type, N_EMBD, N_EMBD, 0);
        w[i].data = p + (size_t)i * w[i].row_bytes * N_EMBD;
    }
    pi_k_qkv(&a, b->x, b->step, b->q, b->n_tok, stream);
}

static void launch_qkv(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;

    qkv_at(b, bench_copy(b->r, 3 * mat_bytes(b, N_EMBD, N_EMBD), i), b->cache, stream);
}

static void launch_attn(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;
    const char *kv = bench_copy(b->r, 2 * b->kv_bytes, i);

    pi_k_attn(&b->shape, PI_TYPE_F16, b->q, kv, kv + b->kv_bytes, N_CTX, 1, b->step, b->scratch,
              b->out, b->n_tok, stream);
}

static void launch_norm(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;

    (void)i;
    pi_k_norm_publish(&b->norm, b->x, b->q, NULL, NULL, NULL, b->step, b->n_tok, N_EMBD, stream);
}

static void launch_topk(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;

    (void)i;
    pi_k_topk(b->out, b->n_tok, N_VOCAB, b->k, b->topk, b->values, b->ids, stream);
}

/* What a layer has in front of its feed-forward block, at a context of 256. The cache stands behind the weights. */
static void launch_chain(const void *arg, uint32_t i, void *stream)
{
    const struct mat_bench *b = arg;
    char *p = bench_copy(b->r, b->layer_bytes, i);
    size_t square = mat_bytes(b, N_EMBD, N_EMBD);
    struct pi_dmat o = bench_mat(b->r, b->type, N_EMBD, N_EMBD, 0);
    struct pi_dmat fc1 = bench_mat(b->r, b->type, WIDTH, N_EMBD, 0);
    char *cache = p + 4 * square + mat_bytes(b, WIDTH, N_EMBD);

    o.data = p + 3 * square;
    fc1.data = p + 4 * square;
    qkv_at(b, p, cache, stream);
    pi_k_attn(&b->shape, PI_TYPE_F16, b->q, cache, cache + b->kv_bytes, N_CTX, 1, b->step,
              b->scratch, b->out, b->n_tok, stream);
    pi_k_matvec(&o, NULL, NULL, b->out, b->x, true, false, b->n_tok, stream);
    pi_k_norm_publish(&b->norm, b->x, b->q, NULL, NULL, NULL, b->step, b->n_tok, N_EMBD, stream);
    pi_k_matvec(&fc1, NULL, NULL, b->q, b->out, false, true, b->n_tok, stream);
}

static void line(struct bench_rig *r, const struct mat_bench *b, const char *what, uint64_t bytes,
                 void (*launch)(const void *, uint32_t, void *))
{
    char name[80];

    (void)snprintf(name, sizeof(name), "%-24s %-5s %2u token%s", what, pi_type_name(b->type),
                   b->n_tok, b->n_tok > 1 ? "s" : "");
    bench_time(r, name, bytes, bytes > 0 ? bench_copies(r, (size_t)bytes) : 1, launch, b);
}

static void bench_type(struct bench_rig *r, enum pi_type type, uint32_t n_tok)
{
    struct mat_bench b;
    uint64_t cache = 2 * (uint64_t)256 * N_EMBD * 2;
    char name[80];

    open_bench(&b, r, type, n_tok);
    b.rows = b.cols = N_EMBD;
    line(r, &b, "q, k and v", 3 * mat_bytes(&b, N_EMBD, N_EMBD), launch_qkv);
    line(r, &b, "output projection", mat_bytes(&b, N_EMBD, N_EMBD), launch_matvec);
    line(r, &b, "predictor fc1, 512", mat_bytes(&b, WIDTH, N_EMBD), launch_fc1);
    line(r, &b, "logits, 32000", mat_bytes(&b, N_VOCAB, N_EMBD), launch_output);
    b.layer_bytes =
        4 * mat_bytes(&b, N_EMBD, N_EMBD) + mat_bytes(&b, WIDTH, N_EMBD) + 2 * b.kv_bytes;
    (void)snprintf(name, sizeof(name), "%-24s %-5s %2u token%s", "qkv attn o norm fc1",
                   pi_type_name(type), n_tok, n_tok > 1 ? "s" : "");
    bench_time(r, name, b.layer_bytes - 2 * b.kv_bytes + cache, bench_copies(r, b.layer_bytes),
               launch_chain, &b);
}

static void bench_rest(struct bench_rig *r, uint32_t n_tok)
{
    static const uint32_t contexts[] = {32, 256, 1024, 4096};
    struct mat_bench b;
    char name[80];

    open_bench(&b, r, PI_TYPE_F16, n_tok);
    for (int i = 0; i < 4; i++) {
        set_step(&b, contexts[i]);
        (void)snprintf(name, sizeof(name), "attention, context %-5u F16   %2u token%s", contexts[i],
                       n_tok, n_tok > 1 ? "s" : "");
        /* all tokens are of one sequence: its cache is read once from memory */
        bench_time(r, name, 2 * (uint64_t)contexts[i] * N_EMBD * 2, bench_copies(r, 2 * b.kv_bytes),
                   launch_attn, &b);
    }
    line(r, &b, "norm", 0, launch_norm);
    b.k = 40;
    line(r, &b, "top 40 of 32000", 0, launch_topk);
    b.k = 256;
    line(r, &b, "top 256 of 32000", 0, launch_topk);
}

/* Other ways to cut the work of a matrix-vector product. */
static void bench_geometry(struct bench_rig *r)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_Q4_0};
    static const uint32_t rows[] = {512, 4096, 12288}, ahead[] = {1, 4 << 20, 12 << 20, 24 << 20};
    struct mat_bench b;
    char name[80];

    for (int k = 0; k < 9; k++) {
        open_bench(&b, r, types[k / 3], 1);
        b.rows = rows[k % 3];
        b.cols = N_EMBD;
        for (uint32_t s = 1; s <= 12; s = s < 4 ? s + 1 : s + 2) {
            for (uint32_t per = 1; per <= 2; per++) {
                b.g = (struct pi_k_mat_geometry){s, per, 0};
                (void)snprintf(name, sizeof(name), "%s %u rows: %u slices, %u blocks",
                               pi_type_name(b.type), b.rows, s, per);
                bench_time(r, name, mat_bytes(&b, b.rows, b.cols),
                           bench_copies(r, mat_bytes(&b, b.rows, b.cols)), launch_matvec, &b);
            }
        }
        for (int i = 0; i < 4; i++) {
            b.g = (struct pi_k_mat_geometry){0, 0, ahead[i]};
            (void)snprintf(name, sizeof(name), "%s %u rows: %u KB ahead", pi_type_name(b.type),
                           b.rows, ahead[i] >> 10);
            bench_time(r, name, mat_bytes(&b, b.rows, b.cols),
                       bench_copies(r, mat_bytes(&b, b.rows, b.cols)), launch_matvec, &b);
        }
    }
}

void bench_kernels_mat(struct bench_rig *r, bool sweep)
{
    static const enum pi_type types[] = {PI_TYPE_F16, PI_TYPE_Q8_0, PI_TYPE_Q4_0};

    if (sweep) {
        bench_geometry(r);
        return;
    }
    for (uint32_t n_tok = 1; n_tok <= 8; n_tok += 7) {
        for (int i = 0; i < 3; i++)
            bench_type(r, types[i], n_tok);
        bench_rest(r, n_tok);
    }
}
