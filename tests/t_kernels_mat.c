/*
 * The matrix-vector kernels (q, k and v; output projection and predictor; logits) against double precision, on the emulated device or a real one. Outputs
 * are poisoned before; each call is made twice and must give the same bytes.
 *
 * A sum is compared with the root mean square of all sums of its call (REL of it), since one sum alone may cancel to nothing.
 */
#include "config.h"

#include "tests/kernel_rig.h"

#define REL 1e-5

static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0};
static const uint32_t tokens[] = {1, 2, 4, 8, 16, 32};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- the twin ---- */

static double dot_ref(const float *w, const double *x, uint32_t n)
{
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

/* Norm weights and biases, in host and device memory; kind 0: none, 1: RMSNorm, 2: LayerNorm, 3: LayerNorm without biases. */
struct norm_case {
    float *w, *b;
    struct pi_k_norm k;
};

static struct norm_case norm_make(struct rig *r, int kind, uint32_t n)
{
    struct norm_case c = {0};

    c.k.eps = 1e-5f;
    c.k.layer_norm = kind >= 2;
    if (kind > 0) {
        c.w = rig_vector(r, n, 1.0f);
        c.k.w = rig_dev(r, c.w, n * sizeof(float));
    }
    if (kind == 2) {
        c.b = rig_vector(r, n, 0.5f);
        c.k.b = rig_dev(r, c.b, n * sizeof(float));
    }
    return c;
}

static void norm_free(struct norm_case *c)
{
    free(c->w);
    free(c->b);
}

/* ---- plain products ---- */

struct plain {
    enum pi_type type;
    uint32_t rows, cols, n_tok;
    int norm;
    bool bias, add, relu;
};

static void plain_ref(const struct plain *p, const struct rig_mat *w, const float *bias,
                      const struct norm_case *norm, const float *x, const float *before,
                      double *out)
{
    double *y = rig_alloc(p->cols * sizeof(*y));

    for (uint32_t t = 0; t < p->n_tok; t++) {
        norm_exact(x + (size_t)t * p->cols, norm->w, norm->b, norm->k.layer_norm, norm->k.eps,
                   p->cols, y);
        for (uint32_t i = 0; i < p->rows; i++) {
            double v = dot_ref(w->f + (size_t)i * p->cols, y, p->cols);

            v += p->bias ? (double)bias[i] : 0.0;
            v += p->add ? (double)before[(size_t)t * p->rows + i] : 0.0;
            out[(size_t)t * p->rows + i] = p->relu && v < 0.0 ? 0.0 : v;
        }
    }
    free(y);
}

static void plain_case(const struct plain *p)
{
    size_t n = (size_t)p->n_tok * p->rows, bytes = n * sizeof(float);
    struct rig r;
    struct rig_mat w;
    struct pi_dmat d;
    struct norm_case norm;
    float *x, *bias, *before, *got = rig_alloc(bytes), *again = rig_alloc(bytes);
    void *d_x, *d_bias, *d_out;
    double *want = rig_alloc(n * sizeof(*want));
    char what[160];

    rig_open(&r, p->rows * 31u + p->cols + p->n_tok + (uint32_t)p->type);
    w = rig_mat(&r, p->type, p->rows, p->cols, 1.0f);
    d = rig_dmat(&r, &w);
    norm = norm_make(&r, p->norm, p->cols);
    x = rig_vector(&r, (size_t)p->n_tok * p->cols, 3.0f);
    bias = rig_vector(&r, p->rows, 5.0f);
    before = rig_vector(&r, n, 20.0f);
    d_x = rig_dev(&r, x, (size_t)p->n_tok * p->cols * sizeof(float));
    d_bias = rig_dev(&r, bias, p->rows * sizeof(float));
    d_out = rig_dev(&r, NULL, bytes);
    for (int run = 0; run < 2; run++) {
        if (p->add)
            rig_put(d_out, before, bytes);
        else
            rig_poison(d_out, bytes);
        pi_k_matvec(&d, p->bias ? d_bias : NULL, p->norm > 0 ? &norm.k : NULL, d_x, d_out, p->add,
                    p->relu, p->n_tok, r.stream);
        rig_wait(&r);
        rig_get(run == 0 ? got : again, d_out, bytes);
    }
    plain_ref(p, &w, bias, &norm, x, before, want);
    (void)snprintf(what, sizeof(what), "%s (%u, %u), %u tokens, norm %d%s%s%s",
                   pi_type_name(p->type), p->rows, p->cols, p->n_tok, p->norm,
                   p->bias ? ", bias" : "", p->add ? ", add" : "", p->relu ? ", relu" : "");
    rms_all(want, got, n, REL, what);
    tap_ok(memcmp(got, again, bytes) == 0, __FILE__, __LINE__, "the same bytes again");
    norm_free(&norm);
    rig_mat_free(&w);
    rig_close(&r);
    free(x);
    free(bias);
    free(before);
    free(got);
    free(again);
    free(want);
}

static void plain_cases(void)
{
    static const uint32_t cols[] = {32, 96, 1024, 4128};
    static const uint32_t rows[] = {1, 5, 67, 260};
    int turn = 0;

    for (size_t i = 0; i < COUNT(types); i++) {
        for (size_t k = 0; k < COUNT(tokens); k++) {
            for (size_t c = 0; c < COUNT(cols); c++, turn++) {
                struct plain p = {.type = types[i],
                                  .rows = rows[(size_t)turn % COUNT(rows)],
                                  .cols = cols[c],
                                  .n_tok = tokens[k],
                                  .norm = turn % 4,
                                  .bias = turn % 2 == 0,
                                  .add = turn % 3 == 0,
                                  .relu = turn % 5 == 0};

                plain_case(&p);
            }
        }
    }
    plain_case(&(struct plain){PI_TYPE_F32, 7, 37, 3, 2, true, false, false}); /* odd lengths */
    plain_case(&(struct plain){PI_TYPE_F16, 9, 101, 2, 1, true, true, false});
    plain_case(&(struct plain){PI_TYPE_BF16, 3, 1, 1, 0, false, false, true});
    plain_case(&(struct plain){PI_TYPE_F16, 2050, 64, 1, 0, true, false, true}); /* many rounds */
    plain_case(&(struct plain){PI_TYPE_Q8_0, 1030, 64, 8, 1, false, false, false});
    plain_case(&(struct plain){PI_TYPE_F16, 12, 30000, 1, 1, false, false, false}); /* tiles */
    plain_case(&(struct plain){PI_TYPE_Q4_0, 20, 16384, 2, 2, false, true, false});
}

/* ---- logits ---- */

static void output_case(enum pi_type type, uint32_t n_tok, uint32_t real, uint32_t every,
                        int norm_kind)
{
    const uint32_t rows = 203, cols = 160;
    struct rig r;
    struct rig_mat w;
    struct pi_dmat d;
    struct norm_case norm;
    struct pi_k_step step = {.step = 3, .n_tok = real};
    float *x, *got, *again;
    double *want, *y = rig_alloc(cols * sizeof(*y));
    void *d_x, *d_step, *d_out;
    size_t bytes;
    char what[96];

    rig_open(&r, n_tok * 7 + every);
    w = rig_mat(&r, type, rows, cols, 1.0f);
    d = rig_dmat(&r, &w);
    norm = norm_make(&r, norm_kind, cols);
    x = rig_vector(&r, (size_t)n_tok * cols, 2.0f);
    for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++)
        step.want[t] = t < real && t % every == 0 ? step.n_want++ : UINT32_MAX;
    bytes = (size_t)n_tok * rows * sizeof(float); /* of which n_want rows are written */
    got = rig_alloc(bytes);
    again = rig_alloc(bytes);
    want = rig_alloc((size_t)n_tok * rows * sizeof(*want));
    for (uint32_t t = 0; t < real; t++) {
        if (step.want[t] == UINT32_MAX)
            continue;
        norm_exact(x + (size_t)t * cols, norm.w, norm.b, norm.k.layer_norm, norm.k.eps, cols, y);
        for (uint32_t i = 0; i < rows; i++)
            want[(size_t)step.want[t] * rows + i] = dot_ref(w.f + (size_t)i * cols, y, cols);
    }
    d_x = rig_dev(&r, x, (size_t)n_tok * cols * sizeof(float));
    d_step = rig_dev(&r, &step, sizeof(step));
    d_out = rig_dev(&r, NULL, bytes);
    for (int run = 0; run < 2; run++) {
        rig_poison(d_out, bytes);
        pi_k_output(&d, &norm.k, d_x, d_step, d_out, n_tok, r.stream);
        rig_wait(&r);
        rig_get(run == 0 ? got : again, d_out, bytes);
    }
    (void)snprintf(what, sizeof(what), "logits %s, %u of %u tokens, every %u. wanted",
                   pi_type_name(type), real, n_tok, every);
    rms_all(want, got, (size_t)step.n_want * rows, REL, what);
    tap_ok(memcmp(got, again, bytes) == 0, __FILE__, __LINE__, "the same bytes again");
    for (size_t i = (size_t)step.n_want * rows; i < (size_t)n_tok * rows; i++) {
        if (!isnan(got[i])) {
            OK(!"nothing is written behind the wanted rows");
            break;
        }
    }
    norm_free(&norm);
    rig_mat_free(&w);
    rig_close(&r);
    free(x);
    free(y);
    free(got);
    free(again);
    free(want);
}

/* ---- q, k and v ---- */

struct heads {
    uint32_t n_embd, n_head, n_head_kv, head_dim, n_rot;
    bool neox, bias, layer_norm, learned;
    enum pi_type kv, type[3];
};

#define N_CTX 2050u
#define N_SEQ 3u

struct qkv_run {
    struct rig r;
    const struct heads *h;
    struct pi_shape shape;
    struct rig_mat w[3];
    struct pi_dmat d[3];
    float *bias[3], *inv_freq, *x;
    struct norm_case norm;
    struct pi_k_step step;
    struct pi_k_qkv k;
    uint32_t n_tok, n_q, n_kv;
    size_t cache_bytes, elem;
};

static void qkv_open(struct qkv_run *q, const struct heads *h, uint32_t n_tok)
{
    const void *d_bias[3] = {NULL, NULL, NULL};

    memset(q, 0, sizeof(*q));
    rig_open(&q->r, h->n_embd + 3 * h->head_dim + n_tok);
    q->h = h;
    q->n_tok = n_tok;
    q->n_q = h->n_head * h->head_dim;
    q->n_kv = h->n_head_kv * h->head_dim;
    q->elem = h->kv == PI_TYPE_F16 ? 2 : 4;
    q->cache_bytes = (size_t)(N_SEQ * N_CTX + 1) * q->n_kv * q->elem;
    q->shape = (struct pi_shape){.n_embd = h->n_embd,
                                 .n_head = h->n_head,
                                 .n_head_kv = h->n_head_kv,
                                 .head_dim = h->head_dim,
                                 .n_rot = h->n_rot,
                                 .rope_neox = h->neox};
    for (int i = 0; i < 3; i++) {
        uint32_t rows = i == 0 ? q->n_q : q->n_kv;

        q->w[i] = rig_mat(&q->r, h->type[i], rows, h->n_embd, 1.0f);
        q->d[i] = rig_dmat(&q->r, &q->w[i]);
        q->bias[i] = rig_vector(&q->r, rows, 2.0f);
        if (h->bias)
            d_bias[i] = rig_dev(&q->r, q->bias[i], rows * sizeof(float));
    }
    q->norm = norm_make(&q->r, h->layer_norm ? 2 : 1, h->n_embd);
    q->inv_freq = rig_alloc((h->n_rot / 2 + 1) * sizeof(float));
    for (uint32_t i = 0; i < h->n_rot / 2; i++)
        q->inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)h->n_rot);
    q->x = rig_vector(&q->r, (size_t)n_tok * h->n_embd, 4.0f);
    q->k = (struct pi_k_qkv){.norm = q->norm.k,
                             .q = &q->d[0],
                             .k = &q->d[1],
                             .v = &q->d[2],
                             .q_b = d_bias[0],
                             .k_b = d_bias[1],
                             .v_b = d_bias[2],
                             .shape = &q->shape,
                             .rope_mscale = 1.25f,
                             .kv_type = h->kv,
                             .n_ctx = N_CTX,
                             .n_seq = N_SEQ};
    if (!h->learned)
        q->k.inv_freq = rig_dev(&q->r, q->inv_freq, (h->n_rot / 2 + 1) * sizeof(float));
    q->k.k_cache = rig_dev(&q->r, NULL, q->cache_bytes);
    q->k.v_cache = rig_dev(&q->r, NULL, q->cache_bytes);
    /* the last quarter of the batch is padding, with positions that must not be used */
    q->step = (struct pi_k_step){.step = 9, .n_tok = n_tok - n_tok / 4};
    for (uint32_t t = 0; t < PI_K_MAX_TOKENS; t++) {
        q->step.pos[t] = t < q->step.n_tok ? (int32_t)(t * 577 % N_CTX) : 0x40000000;
        q->step.seq[t] = t < q->step.n_tok ? t % N_SEQ : UINT32_MAX;
    }
}

static void qkv_close(struct qkv_run *q)
{
    for (int i = 0; i < 3; i++) {
        rig_mat_free(&q->w[i]);
        free(q->bias[i]);
    }
    norm_free(&q->norm);
    free(q->inv_freq);
    free(q->x);
    rig_close(&q->r);
}

/* Row of matrix i for token t in double precision: with bias, rotated where it is, scaled where it is. */
static void qkv_ref(const struct qkv_run *q, int i, uint32_t t, double *out)
{
    const struct heads *h = q->h;
    uint32_t rows = q->w[i].m.n_rows, half = h->n_rot / 2;
    double *y = rig_alloc(h->n_embd * sizeof(*y));

    norm_exact(q->x + (size_t)t * h->n_embd, q->norm.w, q->norm.b, h->layer_norm, q->norm.k.eps,
               h->n_embd, y);
    for (uint32_t r = 0; r < rows; r++)
        out[r] = dot_ref(q->w[i].f + (size_t)r * h->n_embd, y, h->n_embd) +
                 (h->bias ? (double)q->bias[i][r] : 0.0);
    for (uint32_t head = 0; i < 2 && !h->learned && head < rows / h->head_dim; head++) {
        for (uint32_t p = 0; p < half; p++) {
            float angle = (float)q->step.pos[t] * q->inv_freq[p]; /* F32, as the model has it */
            double c = cos((double)angle) * 1.25, s = sin((double)angle) * 1.25;
            double *a = out + head * h->head_dim + (h->neox ? p : 2 * p);
            double *b = h->neox ? a + half : a + 1, a0 = *a;

            *a = a0 * c - *b * s;
            *b = a0 * s + *b * c;
        }
    }
    for (uint32_t r = 0; i == 0 && r < rows; r++)
        out[r] /= sqrt((double)h->head_dim);
    free(y);
}

static float cache_at(const struct qkv_run *q, const char *cache, size_t i)
{
    float f;

    if (q->h->kv == PI_TYPE_F16)
        return pi_f16_to_f32(((const uint16_t *)(const void *)cache)[i]);
    memcpy(&f, cache + 4 * i, 4);
    return f;
}

/* Keys (i = 1) or values (i = 2): rows of real tokens are right, the spare row may be anything, all others are as they were. */
static void qkv_cache(const struct qkv_run *q, int i, const char *cache, const char *what)
{
    double *want = rig_alloc((size_t)q->step.n_tok * q->n_kv * sizeof(*want)), scale = 0.0;
    bool *used = rig_alloc(N_SEQ * N_CTX + 1);
    size_t row_bytes = q->n_kv * q->elem, wrong = 0, touched = 0;

    for (uint32_t t = 0; t < q->step.n_tok; t++)
        qkv_ref(q, i, t, want + (size_t)t * q->n_kv);
    for (size_t k = 0; k < (size_t)q->step.n_tok * q->n_kv; k++)
        scale += want[k] * want[k] / ((double)q->step.n_tok * q->n_kv);
    scale = sqrt(scale);
    for (uint32_t t = 0; t < q->step.n_tok; t++) {
        size_t row = (size_t)q->step.seq[t] * N_CTX + (size_t)q->step.pos[t];

        used[row] = true;
        for (uint32_t e = 0; e < q->n_kv; e++) {
            double w = want[(size_t)t * q->n_kv + e];
            double round = q->h->kv == PI_TYPE_F16 ? fabs(w) / 2048 : 0.0; /* half's mantissa */
            double got = (double)cache_at(q, cache, row * q->n_kv + e);

            wrong += !(fabs(got - w) <= REL * scale + round);
        }
    }
    for (size_t row = 0; row < N_SEQ * N_CTX; row++) {
        for (size_t b = 0; !used[row] && b < row_bytes; b++)
            touched += (unsigned char)cache[row * row_bytes + b] != 0xff;
    }
    if (!tap_ok(wrong == 0 && touched == 0, __FILE__, __LINE__, what))
        printf("# %zu values wrong, %zu bytes of other rows touched\n", wrong, touched);
    free(want);
    free(used);
}

static void qkv_case(const struct heads *h, uint32_t n_tok)
{
    struct qkv_run q;
    size_t n, kept;
    float *got[2];
    char *cache[2][2], what[160];
    double *want;
    void *d_x, *d_step, *d_q;

    qkv_open(&q, h, n_tok);
    n = (size_t)n_tok * q.n_q;
    want = rig_alloc(n * sizeof(*want));
    d_x = rig_dev(&q.r, q.x, (size_t)n_tok * h->n_embd * sizeof(float));
    d_step = rig_dev(&q.r, &q.step, sizeof(q.step));
    d_q = rig_dev(&q.r, NULL, n * sizeof(float));
    for (int run = 0; run < 2; run++) {
        void *caches[2] = {q.k.k_cache, q.k.v_cache};

        rig_poison(d_q, n * sizeof(float));
        for (int i = 0; i < 2; i++)
            rig_poison(caches[i], q.cache_bytes);
        pi_k_qkv(&q.k, d_x, d_step, d_q, n_tok, q.r.stream);
        rig_wait(&q.r);
        got[run] = rig_alloc(n * sizeof(float));
        rig_get(got[run], d_q, n * sizeof(float));
        for (int i = 0; i < 2; i++) {
            cache[run][i] = rig_alloc(q.cache_bytes);
            rig_get(cache[run][i], caches[i], q.cache_bytes);
        }
    }
    for (uint32_t t = 0; t < q.step.n_tok; t++)
        qkv_ref(&q, 0, t, want + (size_t)t * q.n_q);
    (void)snprintf(
        what, sizeof(what), "q: %u -> %u/%u heads of %u, %u rotated%s%s, %u tokens, KV %s",
        h->n_embd, h->n_head, h->n_head_kv, h->head_dim, h->learned ? 0 : h->n_rot,
        h->neox ? " (neox)" : "", h->layer_norm ? ", LayerNorm" : "", n_tok, pi_type_name(h->kv));
    rms_all(want, got[0], (size_t)q.step.n_tok * q.n_q, REL, what);
    qkv_cache(&q, 1, cache[0][0], "its keys");
    qkv_cache(&q, 2, cache[0][1], "its values");
    kept = q.cache_bytes - q.n_kv * q.elem; /* all padding tokens write to the spare row */
    tap_ok(memcmp(got[0], got[1], n * sizeof(float)) == 0 &&
               memcmp(cache[0][0], cache[1][0], kept) == 0 &&
               memcmp(cache[0][1], cache[1][1], kept) == 0,
           __FILE__, __LINE__, "the same bytes again");
    for (int run = 0; run < 2; run++) {
        free(got[run]);
        free(cache[run][0]);
        free(cache[run][1]);
    }
    free(want);
    qkv_close(&q);
}

#define SAME(t) \
    {           \
        t, t, t \
    }

static void qkv_cases(void)
{
    static const struct heads cases[] = {
        {32, 2, 1, 16, 16, true, false, false, false, PI_TYPE_F16, SAME(PI_TYPE_F32)},
        {96, 3, 3, 64, 64, false, true, false, false, PI_TYPE_F32, SAME(PI_TYPE_F16)},
        {160, 4, 2, 80, 32, true, true, true, false, PI_TYPE_F16, SAME(PI_TYPE_BF16)},
        {160, 4, 2, 80, 32, false, false, false, false, PI_TYPE_F32, SAME(PI_TYPE_Q8_0)},
        {256, 8, 2, 128, 128, true, false, false, false, PI_TYPE_F16, SAME(PI_TYPE_Q4_0)},
        {128, 2, 2, 64, 0, false, true, true, true, PI_TYPE_F16, SAME(PI_TYPE_F16)},
        {96, 6, 3, 7, 6, true, false, false, false, PI_TYPE_F32, SAME(PI_TYPE_F32)},
        {96, 6, 2, 10, 4, false, true, false, false, PI_TYPE_F16, SAME(PI_TYPE_F16)},
        {4128, 2, 1, 128, 128, true, false, false, false, PI_TYPE_F16, SAME(PI_TYPE_F16)},
        {64,
         4,
         2,
         32,
         32,
         true,
         true,
         false,
         false,
         PI_TYPE_F16,
         {PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q8_0}},
        {64,
         4,
         2,
         32,
         32,
         false,
         false,
         false,
         false,
         PI_TYPE_F32,
         {PI_TYPE_F16, PI_TYPE_Q4_0, PI_TYPE_F32}},
    };

    for (size_t i = 0; i < COUNT(cases); i++) {
        for (size_t k = i % 2; k < COUNT(tokens); k += 2)
            qkv_case(&cases[i], tokens[k]);
    }
    qkv_case(&cases[0], 2);
    qkv_case(&cases[3], 8);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    plain_cases();
    for (size_t i = 0; i < COUNT(types); i++) {
        output_case(types[i], 1, 1, 1, 1);
        output_case(types[i], 8, 7, 3, 2);
        output_case(types[i], 32, 30, 1, 1);
    }
    output_case(PI_TYPE_F16, 32, 32, 32, 1);
    qkv_cases();
    return DONE();
}
