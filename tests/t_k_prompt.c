/* t_k_prompt.c - kernels and products of prompt chunks against plain C. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"
#include "runtime/cuda/pi_k_prompt.h"

#include "tests/gpu_rig.h"

#define MAX 40000

static float in[MAX], more[MAX], extra[MAX], out[MAX], want[MAX];
static uint16_t half[MAX];

static double worst(const float *a, const float *b, size_t n)
{
    double most = 0.0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        most = d > most || isnan(d) ? d : most;
    }
    return most;
}

static double largest(const float *a, size_t n)
{
    double most = 0.0;

    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)a[i]));
    return most;
}

/* ---- products ---- */

static float rounded(int type, float x)
{
    return type == PI_TYPE_F16    ? pi_f16_to_f32(pi_f32_to_f16(x))
           : type == PI_TYPE_BF16 ? pi_bf16_to_f32(pi_f32_to_bf16(x))
                                  : x;
}

static void *up_typed(struct gpu_rig *g, int type, const float *x, size_t n)
{
    if (type == PI_TYPE_F32)
        return up(g, x, n * 4);
    for (size_t i = 0; i < n; i++)
        half[i] = type == PI_TYPE_F16 ? pi_f32_to_f16(x[i]) : pi_f32_to_bf16(x[i]);
    return up(g, half, n * 2);
}

static void check_gemm(int type, bool ta, bool tb, float alpha, float beta)
{
    enum {
        M = 13,
        N = 37,
        K = 50,
        LD = 64
    };
    struct pi_dev_buf workspace = {NULL, 1 << 20};
    struct gpu_rig g;
    void *blas = NULL, *a, *b, *c;

    gpu_open(&g);
    fill(in, LD * LD, 1.0f, 1);
    fill(more, LD * LD, 1.0f, 2);
    fill(extra, M * LD, 1.0f, 3);
    a = up_typed(&g, type, in, LD * LD);
    b = up_typed(&g, type, more, LD * LD);
    c = up(&g, extra, sizeof(float) * M * LD);
    workspace.ptr = up(&g, NULL, workspace.bytes);
    PASSES(pi_gpu_blas_create(g.stream, &workspace, &blas, &g.e), g.e);
    PASSES(pi_gpu_gemm(blas, ta, tb, M, N, K, alpha, type, a, LD, b, LD, beta, c, LD, &g.e), g.e);
    down(&g, out, c, sizeof(float) * M * LD);
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < LD; j++) {
            double sum = 0.0;

            want[i * LD + j] = extra[i * LD + j];
            for (int k = 0; j < N && k < K; k++)
                sum += (double)rounded(type, in[ta ? k * LD + i : i * LD + k]) *
                       (double)rounded(type, more[tb ? j * LD + k : k * LD + j]);
            if (j < N)
                want[i * LD + j] =
                    (float)((double)alpha * sum + (double)beta * (double)want[i * LD + j]);
        }
    }
    NEAR(worst(out, want, M * LD), 0.0, 2e-5);
    FAILS(pi_gpu_gemm(blas, ta, tb, M, N, K, alpha, PI_TYPE_Q8_0, a, LD, b, LD, beta, c, LD, &g.e),
          PI_E_UNSUPPORTED, "type 8", g.e);
    pi_gpu_blas_destroy(blas);
    gpu_close(&g);
}

static void test_gemm(void)
{
    static const int types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16};

    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < 4; t++)
            check_gemm(types[i], t & 1, t >> 1, t == 2 ? 0.5f : 1.0f, t == 0 ? 0.0f : 1.0f);
    }
}

/* ---- conversion ---- */

static void check_convert(enum pi_type type, uint32_t n_rows, uint32_t n_cols)
{
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint64_t file_row = 0;
    const size_t row = (size_t)pi_dev_row_bytes(type, n_cols), n = (size_t)n_rows * n_cols;
    struct pi_dmat d = {.type = type, .n_rows = n_rows, .n_cols = n_cols, .row_bytes = row};
    struct pi_mat m = {.type = type, .n_rows = n_rows, .n_cols = n_cols};
    uint8_t *rows, *packed = malloc(row * n_rows);
    struct gpu_rig g;
    void *to;
    int bad = 0;

    gpu_open(&g);
    OK(pi_type_row_bytes(type, n_cols, &file_row));
    rows = malloc(file_row * n_rows);
    m.data = rows;
    m.row_bytes = file_row;
    fill(in, n, 3.0f, n_cols);
    for (uint32_t r = 0; r < n_rows; r++) {
        k->from_f32(in + (size_t)r * n_cols, rows + r * file_row, n_cols);
        k->to_f32(rows + r * file_row, want + (size_t)r * n_cols, n_cols);
    }
    pi_dev_pack_rows(&m, NULL, n_rows, packed);
    d.data = up(&g, packed, row * n_rows);
    to = up(&g, NULL, n * 4);
    pi_kp_convert(&d, 1, n_rows - 1, PI_TYPE_F32, to, g.stream);
    down(&g, out, to, (n - n_cols) * 4);
    NEAR(worst(out, want + n_cols, n - n_cols), 0.0, 0.0);
    to = up(&g, NULL, n * 2);
    pi_kp_convert(&d, 0, n_rows, PI_TYPE_F16, to, g.stream);
    down(&g, half, to, n * 2);
    for (size_t i = 0; i < n; i++)
        bad += half[i] != pi_f32_to_f16(want[i]);
    EQ(bad, 0);
    gpu_close(&g);
    free(rows);
    free(packed);
}

static void test_convert(void)
{
    static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                         PI_TYPE_Q4_0};

    for (int i = 0; i < 5; i++) {
        check_convert(types[i], 3, 32);
        check_convert(types[i], 2, 2080);
        if (i < 3) {
            check_convert(types[i], 3, 81);
            check_convert(types[i], 3, 2);
        }
    }
}

/* ---- norms ---- */

/* A row whose F16 form must be right within F16's step of the row's largest element. */
static void check_half(const float *full, const uint16_t *h, float scale, uint32_t n)
{
    double most = 0.0, diff = 0.0;

    for (uint32_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)full[i]));
        diff = fmax(diff, fabs((double)pi_f16_to_f32(h[i]) * (double)scale - (double)full[i]));
    }
    OK(diff <= most * 0x1p-11);
}

static void check_norm(bool layer_norm, bool weights, uint32_t n)
{
    enum {
        T = 5
    };
    static const float range[T] = {1.0f, 1e-30f, 1e30f, 3e5f, 1e-3f};
    static const uint32_t rows[T] = {4, 0, 2, 1, 3};
    struct pi_k_norm norm = {.layer_norm = layer_norm, .eps = 1e-5f};
    struct gpu_rig g;
    float scale[T], *d32, *d_scale;
    const float *x, *w = more, *b = more + n;
    const uint32_t *d_rows;
    void *d16;

    gpu_open(&g);
    fill(more, 2 * n, 2.0f, 5);
    for (uint32_t t = 0; t < T; t++)
        fill(in + (size_t)t * n, n, layer_norm && weights && range[t] > 1e20f ? 1e15f : range[t],
             t);
    x = up(&g, in, sizeof(float) * T * n);
    if (weights)
        norm.w = up(&g, w, sizeof(float) * n);
    if (weights && layer_norm)
        norm.b = up(&g, b, sizeof(float) * n);
    d_rows = up(&g, rows, sizeof(rows));
    d32 = up(&g, NULL, sizeof(float) * T * n);
    d16 = up(&g, NULL, sizeof(uint16_t) * T * n);
    d_scale = up(&g, NULL, sizeof(scale));
    pi_kp_norm(&norm, x, d_rows, d32, d16, d_scale, T, n, g.stream);
    down(&g, out, d32, sizeof(float) * T * n);
    down(&g, half, d16, sizeof(uint16_t) * T * n);
    down(&g, scale, d_scale, sizeof(scale));
    for (uint32_t t = 0; t < T; t++) {
        const float *from = in + (size_t)rows[t] * n, *got = out + (size_t)t * n;
        float *expect = want + (size_t)t * n;
        int e;

        if (!weights)
            memcpy(expect, from, n * sizeof(float));
        else if (layer_norm)
            pi_layer_norm(from, w, b, 1e-5f, expect, n);
        else if (range[rows[t]] > 1e20f) /* its squares are infinite, there and here */
            memset(expect, 0, n * sizeof(float));
        else
            pi_rms_norm(pi_cpu_get(PI_ISA_SCALAR), from, w, 1e-5f, expect, n);
        NEAR(worst(got, expect, n), 0.0, weights ? 4e-6 : 0.0);
        check_half(got, half + (size_t)t * n, scale[t], n);
        OK(frexpf(scale[t], &e) == 0.5f); /* a power of two */
    }
    gpu_close(&g);
}

/* On the grid of quantised activations, in place: what the CPU's rule makes of it. */
static void test_norm_rounded(uint32_t n)
{
    enum {
        T = 3
    };
    struct pi_k_norm none = {.q8 = true};
    struct pi_q8 q[T * 640 / 32];
    struct gpu_rig g;
    float scale[T], *d, *d_scale;
    void *d16;
    int wrong = 0;

    gpu_open(&g);
    fill(in, (size_t)T * n, 3.0f, n);
    pi_cpu_get(PI_ISA_SCALAR)->quantise_q8(in, q, T * n);
    d = up(&g, in, sizeof(float) * T * n);
    d16 = up(&g, NULL, sizeof(uint16_t) * T * n);
    d_scale = up(&g, NULL, sizeof(scale));
    pi_kp_norm(&none, d, NULL, d, d16, d_scale, T, n, g.stream);
    down(&g, out, d, sizeof(float) * T * n);
    down(&g, half, d16, sizeof(uint16_t) * T * n);
    down(&g, scale, d_scale, sizeof(scale));
    for (uint32_t i = 0; i < T * n; i++)
        wrong += out[i] != q[i / 32].d * (float)q[i / 32].q[i % 32];
    EQ(wrong, 0);
    for (uint32_t t = 0; t < T; t++)
        check_half(out + (size_t)t * n, half + (size_t)t * n, scale[t], n);
    gpu_close(&g);
}

static void test_norm_odd(void)
{
    struct pi_k_norm none = {.w = NULL};
    float x[4][8] = {{0}, {1.0f, INFINITY}, {1.0f, NAN, 70000.0f}, {65504.0f * 4.0f, 1.0f}};
    float scale[4];
    struct gpu_rig g;
    const float *d;
    float *d_scale;
    void *d16;

    gpu_open(&g);
    d = up(&g, x, sizeof(x));
    d16 = up(&g, NULL, sizeof(x) / 2);
    d_scale = up(&g, NULL, sizeof(scale));
    pi_kp_norm(&none, d, NULL, NULL, d16, d_scale, 4, 8, g.stream);
    down(&g, half, d16, sizeof(x) / 2);
    down(&g, scale, d_scale, sizeof(scale));
    NEAR(scale[0], 1.0, 0.0);
    EQ(half[0], 0);
    EQ(half[8 + 1], 0x7c00); /* an infinity stays one */
    OK(isnan(pi_f16_to_f32(half[16 + 1])));
    NEAR(pi_f16_to_f32(half[16 + 2]) * scale[2], 70000.0, 70000.0 * 0x1p-11);
    NEAR(pi_f16_to_f32(half[24]) * scale[3], 65504.0 * 4.0, 0.0);
    NEAR(pi_f16_to_f32(half[25]) * scale[3], 1.0, 0.0);
    gpu_close(&g);
}

/* ---- rotation, cache ---- */

static void store_half(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = pi_f16_to_f32(pi_f32_to_f16(x[i]));
}

struct rope_case {
    uint32_t n_head, n_head_kv, head_dim, n_rot;
    bool neox, bias;
    enum pi_type kv;
};

static void check_rope(const struct rope_case *c)
{
    enum {
        T = 3,
        CTX = 8,
        SEQ = 2
    };
    const struct pi_kp_token tokens[T] = {{7, 1}, {0, 0}, {5, 0}};
    const uint32_t nq = c->n_head * c->head_dim, nkv = c->n_head_kv * c->head_dim,
                   cells = CTX * SEQ;
    const struct pi_shape shape = {.n_head = c->n_head,
                                   .n_head_kv = c->n_head_kv,
                                   .head_dim = c->head_dim,
                                   .n_rot = c->n_rot,
                                   .rope_neox = c->neox};
    const size_t size = c->kv == PI_TYPE_F16 ? 2 : 4;
    float freq[64], scale[T] = {0.5f, 4.0f, 1.0f}, *q = in, *k = in + T * nq, *v = k + T * nkv,
                    *d_q;
    struct pi_kp_qkv a = {.shape = &shape, .rope_mscale = 1.25f, .kv_type = c->kv, .n_ctx = CTX};
    struct gpu_rig g;
    const float *d_k, *d_v;

    gpu_open(&g);
    for (uint32_t i = 0; i < c->n_rot / 2; i++)
        freq[i] = powf(100.0f, -2.0f * (float)i / (float)c->n_rot);
    fill(in, T * (nq + 2 * nkv), 1.0f, 9);
    fill(more, nq + 2 * nkv, 1.0f, 10);
    d_q = up(&g, q, sizeof(float) * T * nq);
    d_k = up(&g, k, sizeof(float) * T * nkv);
    d_v = up(&g, v, sizeof(float) * T * nkv);
    a.inv_freq = c->n_rot > 0 ? up(&g, freq, sizeof(freq)) : NULL;
    a.q_scale = a.v_scale = up(&g, scale, sizeof(scale));
    if (c->bias) {
        a.q_b = up(&g, more, sizeof(float) * nq);
        a.k_b = up(&g, more + nq, sizeof(float) * nkv);
        a.v_b = up(&g, more + nq + nkv, sizeof(float) * nkv);
    }
    a.k_cache = up(&g, NULL, size * cells * nkv);
    a.v_cache = up(&g, NULL, size * cells * nkv);
    pi_kp_rope_store(&a, d_q, d_k, d_v, up(&g, tokens, sizeof(tokens)), T, g.stream);
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < nq; i++)
            q[t * nq + i] = q[t * nq + i] * scale[t] + (c->bias ? more[i] : 0.0f);
        for (uint32_t i = 0; i < nkv; i++) {
            k[t * nkv + i] += c->bias ? more[nq + i] : 0.0f;
            v[t * nkv + i] = v[t * nkv + i] * scale[t] + (c->bias ? more[nq + nkv + i] : 0.0f);
        }
        pi_rope(q + t * nq, c->n_head, c->head_dim, c->n_rot, c->neox, tokens[t].pos, freq, 1.25f);
        pi_rope(k + t * nkv, c->n_head_kv, c->head_dim, c->n_rot, c->neox, tokens[t].pos, freq,
                1.25f);
    }
    for (uint32_t i = 0; i < T * nq; i++)
        q[i] /= sqrtf((float)c->head_dim);
    down(&g, out, d_q, sizeof(float) * T * nq);
    NEAR(worst(out, q, T * nq), 0.0, 1e-6);
    for (int which = 0; which < 2; which++) {
        const float *x = which == 0 ? k : v;

        memset(want, 0, sizeof(float) * cells * nkv);
        for (uint32_t t = 0; t < T; t++)
            memcpy(want + (tokens[t].seq * CTX + (uint32_t)tokens[t].pos) * nkv, x + t * nkv,
                   sizeof(float) * nkv);
        down(&g, c->kv == PI_TYPE_F16 ? (void *)half : out, which == 0 ? a.k_cache : a.v_cache,
             size * cells * nkv);
        for (uint32_t i = 0; c->kv == PI_TYPE_F16 && i < cells * nkv; i++)
            out[i] = pi_f16_to_f32(half[i]);
        NEAR(worst(out, want, cells * nkv), 0.0, c->kv == PI_TYPE_F16 ? 2e-3 : 1e-6);
    }
    gpu_close(&g);
}

static void test_rope(void)
{
    static const struct rope_case cases[] = {
        {4, 4, 16, 16, false, false, PI_TYPE_F32}, {4, 2, 24, 24, true, true, PI_TYPE_F16},
        {4, 1, 64, 32, false, true, PI_TYPE_F16},  {2, 2, 80, 40, true, false, PI_TYPE_F32},
        {3, 3, 16, 0, false, true, PI_TYPE_F32},   {1, 1, 256, 128, false, false, PI_TYPE_F16}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_rope(&cases[i]);
}

/* ---- attention ---- */

struct attn_case {
    uint32_t n_head, n_head_kv, head_dim, n_ctx;
    enum pi_type kv;
    struct pi_kp_tile tiles[4]; /* n 0: none */
};

/* One head of one query, in F64. */
static void attend(const struct attn_case *c, const float *q, const float *k, const float *v,
                   uint32_t seq, uint32_t pos, uint32_t head, float *to)
{
    const uint32_t hd = c->head_dim, nkv = c->n_head_kv * hd,
                   at = head / (c->n_head / c->n_head_kv) * hd;
    double max = -INFINITY, sum = 0.0, acc[256] = {0}, s[512];

    for (uint32_t j = 0; j <= pos; j++) {
        s[j] = 0.0;
        for (uint32_t i = 0; i < hd; i++)
            s[j] += (double)q[i] * (double)k[(seq * c->n_ctx + j) * nkv + at + i];
        max = fmax(max, s[j]);
    }
    for (uint32_t j = 0; j <= pos; j++) {
        double p = exp(s[j] - max);

        sum += p;
        for (uint32_t i = 0; i < hd; i++)
            acc[i] += p * (double)v[(seq * c->n_ctx + j) * nkv + at + i];
    }
    for (uint32_t i = 0; i < hd; i++)
        to[i] = (float)(acc[i] / sum);
}

static void check_attn(const struct attn_case *c)
{
    const uint32_t hd = c->head_dim, nq = c->n_head * hd, nkv = c->n_head_kv * hd;
    const struct pi_shape shape = {.n_head = c->n_head, .n_head_kv = c->n_head_kv, .head_dim = hd};
    const size_t cells = (size_t)2 * c->n_ctx * nkv;
    uint32_t n_tiles = 0, n_tok = 0;
    struct gpu_rig g;
    const void *k, *v;
    const float *d_q;
    float *d_out;

    gpu_open(&g);
    while (n_tiles < 4 && c->tiles[n_tiles].n > 0)
        n_tok += c->tiles[n_tiles++].n;
    fill(in, n_tok * nq, 2.0f, 20);
    fill(more, cells, 1.5f, 21);
    fill(extra, cells, 1.0f, 22);
    if (c->kv == PI_TYPE_F16) {
        store_half(more, cells);
        store_half(extra, cells);
    }
    k = up_typed(&g, c->kv, more, cells);
    v = up_typed(&g, c->kv, extra, cells);
    d_q = up(&g, in, sizeof(float) * n_tok * nq);
    d_out = up(&g, NULL, sizeof(float) * n_tok * nq);
    pi_kp_attn(&shape, c->kv, d_q, k, v, c->n_ctx, up(&g, c->tiles, n_tiles * sizeof(c->tiles[0])),
               n_tiles, d_out, g.stream);
    down(&g, out, d_out, sizeof(float) * n_tok * nq);
    for (uint32_t i = 0; i < n_tiles; i++) {
        const struct pi_kp_tile *t = &c->tiles[i];

        for (uint32_t j = 0; j < t->n * c->n_head; j++) {
            const uint32_t at = (t->first + j / c->n_head) * nq + j % c->n_head * hd;

            attend(c, in + at, more, extra, t->seq, t->pos + j / c->n_head, j % c->n_head,
                   want + at);
        }
    }
    printf("# %u heads of %u, %s\n", c->n_head, hd, c->kv == PI_TYPE_F16 ? "F16" : "F32");
    NEAR(worst(out, want, n_tok * nq), 0.0, 5e-6);
    gpu_close(&g);
}

static void test_attn(void)
{
    static const struct attn_case cases[] = {
        {2,
         2,
         16,
         80,
         PI_TYPE_F32,
         {{0, 32, 0, 0}, {32, 32, 32, 0}, {64, 3, 64, 0}, {67, 1, 79, 1}}},
        {4, 2, 24, 40, PI_TYPE_F16, {{0, 5, 31, 1}, {5, 9, 0, 0}}},
        {2, 1, 64, 100, PI_TYPE_F16, {{0, 32, 33, 0}, {32, 1, 99, 1}}},
        {1, 1, 77, 40, PI_TYPE_F32, {{0, 7, 2, 1}}},
        {2, 2, 128, 70, PI_TYPE_F16, {{0, 20, 31, 1}, {20, 32, 0, 0}}},
        {2, 1, 128, 64, PI_TYPE_F32, {{0, 32, 32, 0}}},
        {1, 1, 200, 40, PI_TYPE_F16, {{0, 16, 15, 1}, {16, 1, 0, 0}}},
        {2, 1, 256, 30, PI_TYPE_F32, {{0, 11, 15, 0}}}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_attn(&cases[i]);
    EQ(pi_kp_tile_size(128), 32);
    EQ(pi_kp_tile_size(129), 16);
}

/* ---- activation, sums ---- */

static void check_act(enum pi_activation act, bool gated)
{
    enum {
        T = 4,
        N = 300,
        LD = 304
    };
    const struct pi_shape shape = {.act = act, .act_threshold = 0.25f, .gated = gated};
    const float gs[T] = {1.0f, 0.25f, 2.0f, 8.0f}, us[T] = {2.0f, 1.0f, 0.5f, 1e6f};
    struct pi_kp_act a = {.shape = &shape, .n = N, .ld = LD};
    float scale[T];
    struct gpu_rig g;

    gpu_open(&g);
    fill(in, T * LD, 2.0f, 31);
    fill(more, T * LD, 2.0f, 32);
    fill(extra, N, 0.5f, 33);
    a.gate_scale = up(&g, gs, sizeof(gs));
    a.up_scale = up(&g, us, sizeof(us));
    a.gate = gated ? up(&g, in, sizeof(float) * T * LD) : NULL;
    a.up = up(&g, more, sizeof(float) * T * LD);
    a.up_b = gated ? NULL : up(&g, extra, sizeof(float) * N);
    a.prod16 = up(&g, NULL, sizeof(uint16_t) * T * LD);
    a.scale = up(&g, NULL, sizeof(scale));
    pi_kp_act(&a, T, g.stream);
    for (uint32_t t = 0; t < T; t++) {
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t at = t * LD + i;
            float h = pi_activate(&shape, gated ? in[at] * gs[t] : more[at] * us[t] + extra[i]);

            in[at] = gated ? h : in[at];
            more[at] = gated ? h * (more[at] * us[t]) : h;
        }
    }
    down(&g, out, a.up, sizeof(float) * T * LD);
    down(&g, half, a.prod16, sizeof(uint16_t) * T * LD);
    down(&g, scale, a.scale, sizeof(scale));
    for (uint32_t t = 0; t < T; t++) {
        NEAR(worst(out + t * LD, more + t * LD, N), 0.0, 2e-6 * largest(more + t * LD, N));
        check_half(out + t * LD, half + t * LD, scale[t], N);
    }
    if (gated) {
        down(&g, out, a.gate, sizeof(float) * T * LD);
        NEAR(worst(out, in, T * LD), 0.0, 4e-6);
    }
    gpu_close(&g);
}

static void test_sums(void)
{
    enum {
        T = 3,
        N = 700
    };
    const float scale[T] = {2.0f, 0.5f, 1.0f};
    struct gpu_rig g;
    float *r, *x;
    const float *s, *b;

    gpu_open(&g);
    fill(in, T * N, 1.0f, 41);
    fill(more, T * N, 1.0f, 42);
    fill(extra, N, 1.0f, 43);
    r = up(&g, in, sizeof(float) * T * N);
    x = up(&g, more, sizeof(float) * T * N);
    s = up(&g, scale, sizeof(scale));
    b = up(&g, extra, sizeof(float) * N);
    pi_kp_add(r, x, s, b, T, N, g.stream);
    pi_kp_add(r, NULL, NULL, b, T, N, g.stream);
    pi_kp_add(r, x, NULL, NULL, T, N, g.stream);
    pi_kp_scale(x, N, N - 1, s, T, g.stream);
    down(&g, out, r, sizeof(float) * T * N);
    for (int i = 0; i < T * N; i++)
        want[i] = in[i] + (more[i] * scale[i / N] + extra[i % N]) + extra[i % N] + more[i];
    NEAR(worst(out, want, T * N), 0.0, 1e-6);
    down(&g, out, x, sizeof(float) * T * N);
    for (int i = 0; i < T * N; i++)
        want[i] = i % N == N - 1 ? more[i] : more[i] * scale[i / N];
    NEAR(worst(out, want, T * N), 0.0, 0.0);
    gpu_close(&g);
}

/* ---- rows out of host memory ---- */

static void check_gather(uint32_t n_cols, uint32_t elem, size_t shift)
{
    const uint32_t ids[4] = {0, 2, 3, 9};
    const size_t row = (size_t)n_cols * elem, to_row = (row + 15) / 16 * 16;
    struct pi_pinned p = {NULL, NULL, 0};
    struct gpu_rig g;
    uint8_t *got = calloc(4, to_row), *host;
    void *d;
    int bad = 0;

    gpu_open(&g);
    PASSES(pi_gpu_pin(0, row * 10 + shift, &p, &g.e), g.e);
    host = (uint8_t *)p.host + shift;
    for (size_t i = 0; i < row * 10; i++)
        host[i] = (uint8_t)(i * 31 + i / 256);
    d = up(&g, NULL, 4 * to_row);
    pi_kp_gather((const char *)p.dev + shift, row, up(&g, ids, sizeof(ids)), 4, n_cols, elem, d,
                 to_row, g.stream);
    down(&g, got, d, 4 * to_row);
    for (int i = 0; i < 4; i++)
        bad += memcmp(got + i * to_row, host + ids[i] * row, row) != 0;
    EQ(bad, 0);
    pi_gpu_unpin(&p);
    gpu_close(&g);
    free(got);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        if (getenv("PI_REQUIRE_GPU") == NULL)
            return SKIP_ALL("no GPU");
        OK(pi_gpu_count() > 0);
        return DONE();
    }
    test_gemm();
    test_convert();
    for (int i = 0; i < 6; i++)
        check_norm(i & 1, i < 4, i % 4 < 2 ? 96 : 1001);
    test_norm_odd();
    test_norm_rounded(32);
    test_norm_rounded(640);
    test_rope();
    test_attn();
    for (int a = 0; a < PI_ACT_COUNT; a++) {
        check_act((enum pi_activation)a, true);
        check_act((enum pi_activation)a, false);
    }
    test_sums();
    check_gather(64, 2, 0);
    check_gather(33, 4, 4);
    check_gather(35, 2, 2);
    return DONE();
}
