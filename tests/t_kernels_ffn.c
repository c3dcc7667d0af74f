/*
 * The feed-forward kernels of a GPU against their meaning in double precision: predictor and exact gate with the sets they make, gate and up,
 * down. Every kernel is launched three times over outputs full of NaN and must give the same bytes each time.
 */
#include "config.h"

#include "tests/ffn_layer.h"

#define N_RUNS 3

/* All combinations where larger cases are wanted (PI_SHARED); else each value of each thing. */
static bool thorough(void)
{
    return tap_shared() != NULL;
}

/* ---- sets ---- */

static void check_ticket(const struct layer *l, const char *kernel)
{
    uint32_t ticket = 1;

    rig_get(&ticket, l->set.ticket, sizeof(ticket));
    words_all((const uint32_t[]){0}, &ticket, 1, what(l, kernel, "ticket"));
}

static void poison_set(const struct layer *l)
{
    rig_poison(l->set.n, sizeof(uint32_t));
    rig_poison(l->set.local, l->t->n_hot * sizeof(uint32_t));
    rig_poison(l->set.tokens, l->t->n_hot * sizeof(uint32_t));
    rig_poison(l->set.marks, n_rows(l) * sizeof(uint32_t));
    rig_poison(l->set.gate, (size_t)l->t->n_tok * l->t->n_hot * sizeof(float));
    memset(l->map.host, 0xee, l->map.bytes);
}

/* The device's hot set is that of tokens (n_hot). */
static void check_hot(const struct layer *l, const uint32_t *tokens, const char *kernel)
{
    const size_t bytes = l->t->n_hot * sizeof(uint32_t);
    uint32_t *ids = rig_alloc(bytes), *bits = rig_alloc(bytes), *got = rig_alloc(bytes), n_got = 0;
    uint32_t n = compacted(tokens, l->t->n_hot, ids, bits);

    rig_get(&n_got, l->set.n, sizeof(n_got));
    words_all(&n, &n_got, 1, what(l, kernel, "count"));
    rig_get(got, l->set.local, bytes);
    words_all(ids, got, n, what(l, kernel, "hot set"));
    rig_get(got, l->set.tokens, bytes);
    words_all(bits, got, n, what(l, kernel, "hot tokens"));
    free(ids);
    free(bits);
    free(got);
}

static void check_cold(const struct layer *l, const uint32_t *tokens)
{
    const uint32_t n_cold = l->t->n_cold;
    const uint32_t *map = l->map.host;
    uint32_t *ids = rig_alloc(n_cold * sizeof(*ids)), *bits = rig_alloc(n_cold * sizeof(*ids));
    uint32_t n = compacted(tokens + l->t->n_hot, n_cold, ids, bits);

    for (uint32_t i = 0; i < n; i++)
        ids[i] = l->cold_ids[ids[i]];
    words_all(&l->step.step, map, 1, what(l, "predict", "slot"));
    words_all(&n, map + 16, 1, what(l, "predict", "cold count"));
    words_all(ids, map + 32, n, what(l, "predict", "cold set"));
    words_all(bits, map + 32 + n_cold, n, what(l, "predict", "cold tokens"));
    free(ids);
    free(bits);
}

static void test_predict(struct layer *l, uint32_t *tokens)
{
    predicted_tokens(l, tokens);
    for (int run = 0; run < N_RUNS; run++) {
        poison_set(l);
        pi_k_predict(&l->dev, l->d_hidden, l->d_step, &l->set, &l->cold, l->t->n_tok,
                     l->rig.stream);
        rig_wait(&l->rig);
        check_hot(l, tokens, "predict");
        check_cold(l, tokens);
        check_ticket(l, "predict");
    }
}

/* With neurons of one owner only, the other's set stays as it is. */
static void test_predict_one_owner(struct layer *l, bool hot)
{
    struct layer one = *l;
    const uint32_t n = hot ? l->t->n_hot : l->t->n_cold, skip = hot ? 0 : l->t->n_hot;
    uint32_t *tokens = rig_alloc(n_rows(l) * sizeof(*tokens)), n_set = 0;
    const uint32_t untouched = 0xffffffffu, untouched_map = 0xeeeeeeeeu;

    one.dev.pred.predict_hot = hot;
    one.dev.pred.predict_cold = !hot;
    one.dev.pred.fc2.n_rows = n;
    one.dev.pred.fc2.data = (const char *)l->dev.pred.fc2.data + skip * l->dev.pred.fc2.row_bytes;
    one.dev.pred.bias = l->dev.pred.bias + skip;
    predicted_tokens(l, tokens);
    poison_set(l);
    pi_k_predict(&one.dev, l->d_hidden, l->d_step, &l->set, &l->cold, l->t->n_tok, l->rig.stream);
    rig_wait(&l->rig);
    rig_get(&n_set, l->set.n, sizeof(n_set));
    if (hot) {
        check_hot(l, tokens, "predict hot");
        words_all(&untouched_map, l->map.host, 1, what(l, "predict hot", "slot"));
    } else {
        words_all(&untouched, &n_set, 1, what(l, "predict cold", "count"));
        check_cold(l, tokens);
    }
    check_ticket(l, "predict one");
    free(tokens);
}

static void test_gate_exact(struct layer *l, uint32_t *tokens)
{
    const size_t n = (size_t)l->t->n_tok * l->t->n_hot;
    struct val *want = rig_alloc(n * sizeof(*want));
    float *got = rig_alloc(n * sizeof(*got)), *before = rig_alloc(n * sizeof(*got));

    for (size_t i = 0; i < n; i++)
        want[i] = first_output(l, (uint32_t)(i % l->t->n_hot), (uint32_t)(i / l->t->n_hot));
    exact_tokens(l, tokens);
    for (int run = 0; run < N_RUNS; run++) {
        poison_set(l);
        pi_k_gate_exact(&l->shape, &l->dev, l->d_x, l->d_step, &l->set, l->t->n_tok, l->rig.stream);
        rig_wait(&l->rig);
        check_hot(l, tokens, "gate_exact");
        check_ticket(l, "gate_exact");
        rig_get(got, l->set.gate, n * sizeof(*got));
        val_all(want, got, n, what(l, "gate_exact", "gate"));
        if (run > 0)
            tap_ok(memcmp(got, before, n * sizeof(*got)) == 0, __FILE__, __LINE__,
                   what(l, "gate_exact", "same bytes"));
        memcpy(before, got, n * sizeof(*got));
    }
    free(want);
    free(got);
    free(before);
}

/* ---- products ---- */

static const char *kind_name(enum pi_k_ffn_kind k)
{
    return k == PI_K_FFN_DENSE ? "dense" : k == PI_K_FFN_EXACT ? "exact" : "predicted";
}

/* (n_tok, n_hot) by position, from tokens (n_hot); returns how many neurons. */
static uint32_t expect_h(const struct layer *l, enum pi_k_ffn_kind kind, const uint32_t *tokens,
                         uint32_t *ids, struct val *h)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < l->t->n_hot; i++) {
        if (kind != PI_K_FFN_DENSE && tokens[i] == 0)
            continue;
        for (uint32_t t = 0; t < l->t->n_tok; t++) {
            bool wanted = kind == PI_K_FFN_DENSE || (tokens[i] >> t & 1) != 0;

            h[(size_t)t * l->t->n_hot + n] =
                wanted ? product(l, i, t, kind == PI_K_FFN_DENSE) : (struct val){0.0, 0.0};
        }
        ids[n++] = i;
    }
    return n;
}

/* What stands behind the set's end is nobody's. */
static void check_h(const struct layer *l, enum pi_k_ffn_kind kind, const struct val *h,
                    const float *got, uint32_t n)
{
    struct val *want = rig_alloc((size_t)l->t->n_tok * n * sizeof(*want));
    float *have = rig_alloc((size_t)l->t->n_tok * n * sizeof(*have));
    char text[64];

    for (uint32_t t = 0; t < l->t->n_tok; t++) {
        for (uint32_t i = 0; i < n; i++) {
            want[(size_t)t * n + i] = h[(size_t)t * l->t->n_hot + i];
            have[(size_t)t * n + i] = got[(size_t)t * l->t->n_hot + i];
        }
    }
    (void)snprintf(text, sizeof(text), "h %s", kind_name(kind));
    val_all(want, have, (size_t)l->t->n_tok * n, what(l, "ffn_up", text));
    free(want);
    free(have);
}

/* Sum of all parts, from h as the device has it: errors of before are not those of this kernel. */
static void check_down(const struct layer *l, enum pi_k_ffn_kind kind, const float *h,
                       const uint32_t *ids, uint32_t n, const float *parts)
{
    const uint32_t d = l->t->n_embd;
    const size_t each = (size_t)l->t->n_tok * d;
    struct val *want = rig_alloc(each * sizeof(*want));
    float *got = rig_alloc(each * sizeof(*got));
    char text[64];

    for (size_t k = 0; k < each; k++) {
        const uint32_t t = (uint32_t)(k / d), c = (uint32_t)(k % d);
        double sum = 0.0, size = 0.0, have = 0.0;

        for (uint32_t i = 0; i < n; i++) {
            double v = (double)h[(size_t)t * l->t->n_hot + i];

            if (v != 0.0 || kind == PI_K_FFN_DENSE) {
                sum += v * (double)l->down.f[(size_t)ids[i] * d + c];
                size += fabs(v * (double)l->down.f[(size_t)ids[i] * d + c]);
            }
        }
        for (uint32_t p = 0; p < l->n_parts; p++)
            have += (double)parts[p * each + k];
        want[k] = (struct val){sum, 2e-6 * size + 1e-9};
        got[k] = (float)have;
    }
    (void)snprintf(text, sizeof(text), "sum %s", kind_name(kind));
    val_all(want, got, each, what(l, "ffn_down", text));
    free(want);
    free(got);
}

static void test_products(struct layer *l, enum pi_k_ffn_kind kind, const uint32_t *tokens)
{
    const struct trial *t = l->t;
    const uint32_t made = pi_k_down_parts(kind, t->n_hot, t->n_embd, t->n_tok);
    const size_t n_h = (size_t)t->n_tok * t->n_hot, n_parts = (size_t)made * t->n_tok * t->n_embd;
    struct val *want = rig_alloc(n_h * sizeof(*want));
    uint32_t *ids = rig_alloc(t->n_hot * sizeof(*ids));
    float *h = rig_alloc(n_h * sizeof(*h)), *h0 = rig_alloc(n_h * sizeof(*h));
    float *parts = rig_alloc(n_parts * sizeof(*parts)),
          *parts0 = rig_alloc(n_parts * sizeof(*parts));
    uint32_t n = expect_h(l, kind, tokens, ids, want);

    l->n_parts = made;
    for (int run = 0; run < N_RUNS; run++) {
        rig_poison(l->d_h, n_h * sizeof(*h));
        rig_poison(l->d_parts, n_parts * sizeof(*parts));
        pi_k_ffn_up(&l->shape, &l->dev, kind, NULL, l->d_x, l->d_step, &l->set, l->d_h, t->n_tok,
                    l->rig.stream);
        pi_k_ffn_down(&l->dev, kind, l->d_h, &l->set, l->d_parts, t->n_tok, t->n_embd,
                      l->rig.stream);
        rig_wait(&l->rig);
        rig_get(h, l->d_h, n_h * sizeof(*h));
        rig_get(parts, l->d_parts, n_parts * sizeof(*parts));
        if (run == 0) {
            check_h(l, kind, want, h, n);
            check_down(l, kind, h, ids, n, parts);
            memcpy(h0, h, n_h * sizeof(*h));
            memcpy(parts0, parts, n_parts * sizeof(*parts));
        } else {
            tap_ok(memcmp(h, h0, n_h * sizeof(*h)) == 0 &&
                       memcmp(parts, parts0, n_parts * sizeof(*parts)) == 0,
                   __FILE__, __LINE__, what(l, "ffn", "same bytes"));
        }
    }
    free(want);
    free(ids);
    free(h);
    free(h0);
    free(parts);
    free(parts0);
}

/* x RMSNormed with weights w, by the definition (Zhang and Sennrich 2019, eq. 4), in double precision. */
static float *normed(const struct layer *l, const float *w, float eps)
{
    const uint32_t d = l->t->n_embd;
    float *out = rig_alloc((size_t)l->t->n_tok * d * sizeof(*out));

    for (uint32_t t = 0; t < l->t->n_tok; t++) {
        const float *x = l->x + (size_t)t * d;
        double sum = 0.0;

        for (uint32_t i = 0; i < d; i++)
            sum += (double)x[i] * (double)x[i];
        for (uint32_t i = 0; i < d; i++)
            out[(size_t)t * d + i] =
                (float)((double)x[i] / sqrt(sum / d + (double)eps) * (double)w[i]);
    }
    return out;
}

/* The products norm their input themselves. */
static void test_norm(struct layer *l, enum pi_k_ffn_kind kind, const uint32_t *tokens)
{
    const struct trial *t = l->t;
    const size_t n_h = (size_t)t->n_tok * t->n_hot;
    float *w, *raw = l->x, *h;
    struct pi_k_norm norm = {.eps = 1e-5f};
    struct val *want;
    uint32_t *ids;

    if (!pi_k_ffn_up_norms(&l->shape, &l->dev, kind, t->n_tok)) {
        tap_ok(t->n_embd > 512, __FILE__, __LINE__, what(l, "ffn_up", "norms what is small"));
        return;
    }
    w = rig_vector(&l->rig, t->n_embd, 1.5f);
    norm.w = rig_dev(&l->rig, w, t->n_embd * sizeof(*w));
    want = rig_alloc(n_h * sizeof(*want));
    ids = rig_alloc(t->n_hot * sizeof(*ids));
    h = rig_alloc(n_h * sizeof(*h));
    l->x = normed(l, w, norm.eps);
    rig_poison(l->d_h, n_h * sizeof(*h));
    pi_k_ffn_up(&l->shape, &l->dev, kind, &norm, l->d_x, l->d_step, &l->set, l->d_h, t->n_tok,
                l->rig.stream);
    rig_wait(&l->rig);
    rig_get(h, l->d_h, n_h * sizeof(*h));
    check_h(l, kind, want, h, expect_h(l, kind, tokens, ids, want));
    free(l->x);
    l->x = raw;
    free(w);
    free(want);
    free(ids);
    free(h);
}

static void run_trial(const struct trial *t)
{
    struct layer l;
    uint32_t *tokens = rig_alloc((t->n_hot + t->n_cold) * sizeof(*tokens));

    layer_make(&l, t);
    test_predict(&l, tokens);
    test_products(&l, PI_K_FFN_PREDICTED, tokens);
    test_norm(&l, PI_K_FFN_PREDICTED, tokens);
    test_gate_exact(&l, tokens);
    test_products(&l, PI_K_FFN_EXACT, tokens);
    test_products(&l, PI_K_FFN_DENSE, tokens);
    test_norm(&l, PI_K_FFN_DENSE, tokens);
    if (t->n_cold > 0) {
        test_predict_one_owner(&l, true);
        test_predict_one_owner(&l, false);
    }
    layer_free(&l);
    free(tokens);
}

/* ---- trials ---- */

static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                     PI_TYPE_Q4_0};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

/* Every type with every number of tokens, gated and not. */
static void types_and_tokens(void)
{
    static const uint32_t tokens[] = {1, 2, 4, 8, 16, 32, 3, 5};

    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t k = 0; k < sizeof(tokens) / sizeof(tokens[0]); k++) {
            struct trial t = {.type = types[i],
                              .gated = (i + k) % 2 == 0,
                              .act = PI_ACT_RELU,
                              .n_embd = 96,
                              .n_hot = 65,
                              .n_cold = 40,
                              .width = 32,
                              .n_tok = tokens[k],
                              .n_real = tokens[k] - tokens[k] / 3,
                              .share = 0.3};

            run_trial(&t);
            t.gated = !t.gated;
            t.n_real = tokens[k];
            if (thorough())
                run_trial(&t);
        }
    }
}

static void activations(void)
{
    for (int act = 0; act < PI_ACT_COUNT; act++) {
        struct trial t = {.type = PI_TYPE_F16,
                          .gated = true,
                          .act = (enum pi_activation)act,
                          .n_embd = 64,
                          .n_hot = 100,
                          .width = 16,
                          .n_tok = 1,
                          .n_real = 1,
                          .share = 0.5};

        run_trial(&t);
        t.gated = false;
        t.n_tok = 4;
        t.n_real = 3;
        run_trial(&t);
    }
}

/* Ragged counts and columns, none, some and all active. */
static void counts(void)
{
    static const uint32_t hot[] = {1, 63, 64, 65, 1000}, cold[] = {0, 1, 31, 33, 700};
    static const double share[] = {0.0, 0.1, 1.0};

    for (size_t i = 0; i < 5; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct trial t = {.type = i % 2 == 0 ? PI_TYPE_F16 : PI_TYPE_F32,
                              .gated = k != 1,
                              .act = PI_ACT_RELU,
                              .n_embd = 70,
                              .n_hot = hot[i],
                              .n_cold = cold[(i + k) % 5],
                              .width = 13,
                              .n_tok = k == 2 ? 2 : 1,
                              .n_real = 1,
                              .share = share[k]};

            run_trial(&t);
        }
    }
}

/* Rows that teams of warps share, of several chunks of columns. */
static void long_rows(void)
{
    static const uint32_t tokens[] = {1, 2, 8};

    for (size_t i = 0; i < N_TYPES; i++) {
        for (size_t k = 0; k < 3; k++) {
            struct trial t = {.type = types[i],
                              .gated = k != 1,
                              .act = PI_ACT_FATRELU,
                              .n_embd = k == 0 ? 8256 : 2080,
                              .n_hot = 37,
                              .n_cold = 9,
                              .width = 1056,
                              .n_tok = tokens[k],
                              .n_real = tokens[k],
                              .share = 0.4};

            if (thorough() || k == i % 3 || t.type == PI_TYPE_F16)
                run_trial(&t);
        }
    }
}

/* More words than one pass of the compaction takes. */
static void many_neurons(void)
{
    for (uint32_t n_tok = 1; n_tok <= 2; n_tok++) {
        for (int k = 0; k < 3; k++) {
            struct trial t = {.type = PI_TYPE_F32,
                              .gated = false,
                              .act = PI_ACT_RELU,
                              .n_embd = 4,
                              .n_hot = k == 0   ? 20011
                                       : k == 1 ? 33000
                                                : 70,
                              .n_cold = k == 0   ? 20000
                                        : k == 1 ? 5000
                                                 : 66001,
                              .width = 4,
                              .n_tok = n_tok,
                              .n_real = n_tok,
                              .share = k == 1 ? 0.9 : 0.2};

            if (thorough() || (k == 0) == (n_tok == 1))
                run_trial(&t);
        }
    }
}

static void no_numbers(void)
{
    struct trial t = {.type = PI_TYPE_F16,
                      .gated = true,
                      .act = PI_ACT_RELU,
                      .n_embd = 64,
                      .n_hot = 150,
                      .n_cold = 50,
                      .width = 16,
                      .n_tok = 1,
                      .n_real = 1,
                      .share = 0.2,
                      .nan_scores = true};

    run_trial(&t);
    t.nan_input = true;
    run_trial(&t);
    t.n_tok = 4;
    t.n_real = 2;
    run_trial(&t);
    t.gated = false;
    run_trial(&t);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        const char *must = getenv("PI_REQUIRE_GPU");

        if (must == NULL || strcmp(must, "1") != 0)
            return SKIP_ALL("no GPU");
    }
    types_and_tokens();
    activations();
    counts();
    no_numbers();
    long_rows();
    many_neurons();
    return DONE();
}
