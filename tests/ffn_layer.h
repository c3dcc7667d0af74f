/*
 * ffn_layer.h - one layer's feed-forward block on the host and on the device, and what its kernels should give: for t_kernels_ffn.
 */
#ifndef FFN_LAYER_H
#define FFN_LAYER_H

#include "runtime/pi_model.h"
#include "tests/kernel_rig.h"

struct trial {
    enum pi_type type;
    bool gated;
    enum pi_activation act;
    uint32_t n_embd, n_hot, n_cold, width, n_tok, n_real;
    double share; /* of (neuron, token) pairs that are wanted */
    bool nan_scores, nan_input;
};

/* A layer on both sides. */
struct layer {
    const struct trial *t;
    struct rig rig;
    struct pi_shape shape;
    struct rig_mat gate, up, down, fc2;
    float *up_b, *bias, *x, *hidden; /* host */
    uint32_t *cold_ids;
    struct pi_dev_layer dev;
    struct pi_k_step step;
    struct pi_k_step *d_step;
    float *d_x, *d_hidden, *d_h, *d_parts;
    struct pi_k_set set;
    struct pi_k_cold_map cold; /* device addresses */
    struct pi_pinned map;      /* slot, n, ids, tokens */
    uint32_t n_parts;
    char name[160];
};

static inline uint32_t n_rows(const struct layer *l)
{
    return l->t->n_hot + l->t->n_cold;
}

/* ---- what should come out ---- */

static inline struct val pre(const struct layer *l, const struct rig_mat *m, uint32_t row,
                             uint32_t tok)
{
    struct val v =
        val_dot(m->f + (size_t)row * m->m.n_cols, l->x + (size_t)tok * m->m.n_cols, m->m.n_cols);

    if (!l->t->gated)
        v = val_add(v, (struct val){(double)l->up_b[row], 0.0});
    return v;
}

static inline struct val activated(const struct layer *l, struct val x)
{
    const double v = x.v;
    const double slope = 1.2 + (l->t->act == PI_ACT_RELU2 ? 2.0 * fabs(v) : 0.0);
    struct val y = {0.0, slope * x.tol + 3e-7 * fabs(v)};

    switch (l->t->act) {
    case PI_ACT_RELU:
    case PI_ACT_RELU2:
    case PI_ACT_FATRELU:
        if (v <= (l->t->act == PI_ACT_FATRELU ? (double)l->shape.act_threshold : 0.0))
            return (struct val){0.0, 0.0};
        y.v = l->t->act == PI_ACT_RELU2 ? v * v : v;
        break;
    case PI_ACT_SILU:
        y.v = v / (1.0 + exp(-v));
        break;
    case PI_ACT_GELU:
        y.v = 0.5 * v * (1.0 + erf(v * M_SQRT1_2));
        break;
    case PI_ACT_GELU_TANH:
        y.v = 0.5 * v * (1.0 + tanh(M_2_SQRTPI * M_SQRT1_2 * (v + 0.044715 * v * v * v)));
        break;
    case PI_ACT_COUNT:
        break;
    }
    return y;
}

static inline struct val first_output(const struct layer *l, uint32_t neuron, uint32_t tok)
{
    return activated(l, pre(l, l->t->gated ? &l->gate : &l->up, neuron, tok));
}

/* What the down projection is given by a neuron that is computed. */
static inline struct val product(const struct layer *l, uint32_t neuron, uint32_t tok, bool dense)
{
    struct val a = first_output(l, neuron, tok);

    if (!l->t->gated)
        return a;
    if (!dense && a.v == 0.0)
        return (struct val){0.0, 0.0};
    return val_mul(a, pre(l, &l->up, neuron, tok));
}

/* tokens (n_rows): bits of the predictor's wishes. */
static inline void predicted_tokens(const struct layer *l, uint32_t *tokens)
{
    const uint32_t r = l->t->width;

    for (uint32_t i = 0; i < n_rows(l); i++) {
        tokens[i] = 0;
        for (uint32_t t = 0; t < l->t->n_real; t++) {
            double v = val_dot(l->fc2.f + (size_t)i * r, l->hidden + (size_t)t * r, r).v +
                       (double)l->bias[i];

            if (!(v < (double)l->dev.pred.threshold))
                tokens[i] |= 1u << t;
        }
    }
}

static inline void exact_tokens(const struct layer *l, uint32_t *tokens)
{
    for (uint32_t i = 0; i < l->t->n_hot; i++) {
        tokens[i] = 0;
        for (uint32_t t = 0; t < l->t->n_real; t++)
            tokens[i] |= (uint32_t)(first_output(l, i, t).v != 0.0) << t;
    }
}

/* Indices with a bit, and the bits. Returns how many. */
static inline uint32_t compacted(const uint32_t *tokens, uint32_t n, uint32_t *ids, uint32_t *bits)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] != 0) {
            ids[k] = i;
            bits[k++] = tokens[i];
        }
    }
    return k;
}

/* ---- making a layer ---- */

/* Bits of scores must not hang on rounding: a bias moves each row away from the threshold. All or nothing where the share says so. */
static inline void separate_scores(struct layer *l)
{
    const uint32_t r = l->t->width;

    for (uint32_t i = 0; i < n_rows(l); i++) {
        for (bool again = true; again;) {
            again = false;
            l->bias[i] = 0.1f * rig_random(&l->rig) + (l->t->share >= 1.0   ? 100.0f
                                                       : l->t->share <= 0.0 ? -100.0f
                                                                            : 0.0f);
            for (uint32_t t = 0; t < l->t->n_tok; t++) {
                struct val v = val_dot(l->fc2.f + (size_t)i * r, l->hidden + (size_t)t * r, r);

                again |=
                    fabs(v.v + (double)l->bias[i] - (double)l->dev.pred.threshold) < 8.0 * v.tol;
            }
        }
        if (l->t->nan_scores && i % 7 == 3)
            l->bias[i] = NAN;
    }
}

/* Nor must what fires: rows with a doubtful activation are drawn again. */
static inline void separate_activations(struct layer *l)
{
    struct rig_mat *m = l->t->gated ? &l->gate : &l->up;
    const double edge = l->t->act == PI_ACT_FATRELU ? (double)l->shape.act_threshold : 0.0;

    for (uint32_t i = 0; i < l->t->n_hot; i++) {
        for (uint32_t t = 0; t < l->t->n_tok; t++) {
            struct val v = pre(l, m, i, t);

            if (fabs(v.v - edge) < 8.0 * v.tol) {
                rig_mat_row(&l->rig, m, i, 1.0f);
                t = UINT32_MAX;
            }
        }
    }
}

static inline void make_host(struct layer *l)
{
    const struct trial *t = l->t;
    struct rig *r = &l->rig;
    const float scale = 1.0f / sqrtf((float)t->n_embd);

    l->shape = (struct pi_shape){
        .n_embd = t->n_embd, .gated = t->gated, .act = t->act, .act_threshold = 0.2f};
    l->x = rig_vector(r, (size_t)t->n_tok * t->n_embd, 3.0f * scale);
    l->hidden = rig_vector(r, (size_t)t->n_tok * t->width, 1.0f);
    l->gate = rig_mat(r, t->type, t->gated ? t->n_hot : 0, t->n_embd, 1.0f);
    l->up = rig_mat(r, t->type, t->n_hot, t->n_embd, 1.0f);
    l->down = rig_mat(r, t->type, t->n_hot, t->n_embd, 1.0f);
    l->fc2 = rig_mat(r, t->type, n_rows(l), t->width, 1.0f);
    l->up_b = rig_vector(r, t->n_hot, 0.3f);
    l->bias = rig_vector(r, n_rows(l), 0.0f);
    l->cold_ids = rig_alloc((t->n_cold + 1) * sizeof(*l->cold_ids));
    for (uint32_t i = 0; i < t->n_cold; i++)
        l->cold_ids[i] = 3 * i + 5;
    l->dev.pred.threshold =
        (float)((1.0 - 2.0 * t->share) * 0.5) * sqrtf((float)t->width); /* about that share */
    separate_scores(l);
    separate_activations(l);
    if (t->nan_input)
        l->x[t->n_embd / 2] = NAN;
}

static inline void make_device(struct layer *l)
{
    const struct trial *t = l->t;
    struct rig *r = &l->rig;
    struct pi_dev_layer *d = &l->dev;
    const size_t zero = 0;

    d->n_hot = t->n_hot;
    d->n_cold = t->n_cold;
    if (t->gated)
        d->gate = rig_dmat(r, &l->gate);
    d->up = rig_dmat(r, &l->up);
    d->down_t = rig_dmat(r, &l->down);
    d->up_b = t->gated ? NULL : rig_dev(r, l->up_b, t->n_hot * sizeof(float));
    d->cold_ids = rig_dev(r, l->cold_ids, t->n_cold * sizeof(uint32_t));
    d->pred.width = t->width;
    d->pred.fc2 = rig_dmat(r, &l->fc2);
    d->pred.bias = rig_dev(r, l->bias, n_rows(l) * sizeof(float));
    d->pred.predict_hot = d->pred.predict_cold = true;
    l->d_x = rig_dev(r, l->x, (size_t)t->n_tok * t->n_embd * sizeof(float));
    l->d_hidden = rig_dev(r, l->hidden, (size_t)t->n_tok * t->width * sizeof(float));
    l->step = (struct pi_k_step){.step = 77, .n_tok = t->n_real};
    l->d_step = rig_dev(r, &l->step, sizeof(l->step));
    l->set.n = rig_dev(r, NULL, sizeof(uint32_t));
    l->set.local = rig_dev(r, NULL, t->n_hot * sizeof(uint32_t));
    l->set.tokens = rig_dev(r, NULL, t->n_hot * sizeof(uint32_t));
    l->set.marks = rig_dev(r, NULL, n_rows(l) * sizeof(uint32_t));
    l->set.ticket = rig_dev(r, &zero, sizeof(uint32_t));
    l->set.gate = rig_dev(r, NULL, (size_t)t->n_tok * t->n_hot * sizeof(float));
    l->d_h = rig_dev(r, NULL, (size_t)t->n_tok * t->n_hot * sizeof(float));
    l->n_parts = pi_k_down_parts(PI_K_FFN_PREDICTED, t->n_hot, t->n_embd, t->n_tok);
    l->d_parts = rig_dev(r, NULL, (size_t)l->n_parts * t->n_tok * t->n_embd * sizeof(float));
    l->map = rig_pin(r, (32 + 2 * (size_t)t->n_cold) * sizeof(uint32_t));
    l->cold.slot = l->map.dev;
    l->cold.n = (uint32_t *)l->map.dev + 16;
    l->cold.ids = (uint32_t *)l->map.dev + 32;
    l->cold.tokens = (uint32_t *)l->map.dev + 32 + t->n_cold;
}

static inline void layer_make(struct layer *l, const struct trial *t)
{
    memset(l, 0, sizeof(*l));
    l->t = t;
    (void)snprintf(l->name, sizeof(l->name),
                   "%s %s act %d: %ux%u + %u, r %u, tokens %u/%u, share %.2f%s%s",
                   pi_type_name(t->type), t->gated ? "gated" : "plain", (int)t->act, t->n_hot,
                   t->n_embd, t->n_cold, t->width, t->n_real, t->n_tok, t->share,
                   t->nan_scores ? ", NaN scores" : "", t->nan_input ? ", NaN input" : "");
    rig_open(&l->rig, 1000003u * t->n_hot + 101u * t->n_embd + t->n_tok + (unsigned)t->type);
    make_host(l);
    make_device(l);
}

static inline void layer_free(struct layer *l)
{
    rig_mat_free(&l->gate);
    rig_mat_free(&l->up);
    rig_mat_free(&l->down);
    rig_mat_free(&l->fc2);
    free(l->up_b);
    free(l->bias);
    free(l->x);
    free(l->hidden);
    free(l->cold_ids);
    rig_close(&l->rig);
}

static inline const char *what(const struct layer *l, const char *kernel, const char *thing)
{
    static char text[256];

    (void)snprintf(text, sizeof(text), "%s %s (%s)", kernel, thing, l->name);
    return text;
}

#endif
