/*
 * The CPU's share of a split layer: every type, activation and mode, lists with and without token masks, against F64 sums; the same bytes on
 * any number of threads and from run to run, in every form; a token's sum does not depend on the tokens beside it, nor on whose neurons its own are
 * listed with.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/pi_cold.h"
#include "tests/tap.h"

#include <stdbool.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const enum pi_type types[] = {PI_TYPE_F32,  PI_TYPE_F16,  PI_TYPE_BF16,
                                     PI_TYPE_Q8_0, PI_TYPE_Q4_0, PI_TYPE_Q4_1};
static const struct pi_cold_form forms[] = {
    {.n_one = 0, .chunk_one = 1, .chunk_two = 1},
    {.n_one = 0, .chunk_one = 1, .chunk_two = 70},
    {.n_one = 999, .chunk_one = 9, .chunk_two = 1},
    {.n_one = 999, .chunk_one = 130, .chunk_two = 1},
    {.n_one = 40, .chunk_one = 7, .chunk_two = 3},
    {.n_one = 70, .chunk_one = 3, .chunk_two = 1, .join = 2},
    {.n_one = 999, .chunk_one = 9, .halve = 2, .chunk_two = 1, .join = 8},
    {.n_one = 999, .chunk_one = 4, .halve = 9, .chunk_two = 1, .join = 2, .group = 8},
    {.n_one = 0, .chunk_one = 0, .chunk_two = 0}};
static const uint32_t teams[] = {1, 2, 3, 5};
static struct pi_pool *pools[COUNT(teams)];
static uint32_t seed = 1;
static struct pi_err e;

static uint32_t draw(void)
{
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

static float draw_float(void)
{
    return (float)draw() * 0x1p-23f - 1.0f;
}

static void *make(size_t n, size_t size)
{
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        exit(1);
    return p;
}

/* A layer whose rows of gate, up and down lie side by side, with the values that its rows stand for. */
struct layer {
    struct pi_shape shape;
    struct pi_layer_weights w;
    char *bundles;
    float *f32[3]; /* gate, up, down: (n_ff, n_embd) */
    float *up_b;
};

static void fill_rows(struct layer *l, enum pi_type type, int which, struct pi_mat *m,
                      size_t stride)
{
    const struct pi_cpu_type *k = pi_cpu_get(PI_ISA_SCALAR)->type[type];
    uint32_t d = l->shape.n_embd;
    uint64_t bytes = 0;

    if (!pi_type_row_bytes(type, d, &bytes))
        exit(1);
    *m = (struct pi_mat){type, l->shape.n_ff, d, stride, l->bundles + (size_t)which * bytes};
    l->f32[which] = make((size_t)l->shape.n_ff * d, sizeof(float));
    for (uint32_t r = 0; r < l->shape.n_ff; r++) {
        float *w = l->f32[which] + (size_t)r * d;
        char *row = l->bundles + (size_t)which * bytes + r * stride;

        for (uint32_t c = 0; c < d; c++)
            w[c] = draw_float();
        k->from_f32(w, row, d);
        k->to_f32(row, w, d);
    }
}

static struct layer make_layer(enum pi_type type, uint32_t d, uint32_t n_ff, enum pi_activation act,
                               bool gated)
{
    struct layer l = {.shape = {.n_embd = d, .n_ff = n_ff, .gated = gated, .act = act}};
    uint64_t bytes = 0;

    l.shape.act_threshold = 0.3f;
    if (!pi_type_row_bytes(type, d, &bytes))
        exit(1);
    l.bundles = make((size_t)n_ff * 3, bytes);
    fill_rows(&l, type, 0, &l.w.gate, 3 * bytes);
    fill_rows(&l, type, 1, &l.w.up, 3 * bytes);
    fill_rows(&l, type, 2, &l.w.down_t, 3 * bytes);
    if (!gated) {
        l.w.gate = (struct pi_mat){.data = NULL};
        l.w.up_b = l.up_b = make(n_ff, sizeof(float));
        for (uint32_t i = 0; i < n_ff; i++)
            l.up_b[i] = draw_float();
    }
    return l;
}

static void free_layer(struct layer *l)
{
    free(l->bundles);
    for (int i = 0; i < 3; i++)
        free(l->f32[i]);
    free(l->up_b);
}

/* A list of about one in every `of` neurons, at most n; with token masks that hold stray bits, and some that are empty. */
struct list {
    uint32_t n;
    uint32_t *ids, *tokens;
    float *x;
};

static struct list make_list(const struct layer *l, uint32_t n, uint32_t n_tok, bool masked)
{
    struct list li = {.n = n};
    uint32_t of = n > 0 ? l->shape.n_ff / n : 1, id = 0;

    li.ids = make(n, sizeof(*li.ids));
    li.tokens = masked ? make(n, sizeof(*li.tokens)) : NULL;
    li.x = make((size_t)n_tok * l->shape.n_embd, sizeof(float));
    for (uint32_t i = 0; i < n; i++, id += of) {
        li.ids[i] = id + draw() % of;
        if (masked)
            li.tokens[i] = draw() % 3 == 0 ? ~0u : draw() * draw() & draw() * 257;
    }
    for (size_t i = 0; i < (size_t)n_tok * l->shape.n_embd; i++)
        li.x[i] = draw_float();
    return li;
}

static void free_list(struct list *li)
{
    free(li->ids);
    free(li->tokens);
    free(li->x);
}

static void run_team(void *ctx, uint32_t thread, uint32_t n_threads)
{
    pi_cold_run(ctx, thread, n_threads);
}

static float *run(struct pi_cold_job *job, struct pi_pool *pool)
{
    size_t size = (size_t)job->n_tok * job->shape->n_embd;
    float *out = make(size, sizeof(float));

    memset(out, 0x7f, size * sizeof(float));
    job->pool = pool;
    job->out = out;
    pi_pool_run(pool, run_team, job);
    return out;
}

/* ---- the reference ---- */

static double dot(const float *w, const float *x, uint32_t n, double *size)
{
    double sum = 0.0;

    *size = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)w[i] * (double)x[i];
        *size += fabs((double)w[i] * (double)x[i]);
    }
    return sum;
}

/* Activation in F64, and how much a relative error of the sums below it may make of it at most. */
static double activate(const struct pi_shape *s, double v, double *size)
{
    double c = sqrt(2.0 / M_PI);

    switch (s->act) {
    case PI_ACT_RELU2:
        *size = 2.0 * *size * *size;
        return v > 0.0 ? v * v : 0.0;
    case PI_ACT_FATRELU:
        return v > (double)s->act_threshold ? v : 0.0;
    case PI_ACT_SILU:
        *size = 2.0 * *size;
        return v / (1.0 + exp(-v));
    case PI_ACT_GELU:
        *size = 2.0 * *size;
        return 0.5 * v * (1.0 + erf(v * M_SQRT1_2));
    case PI_ACT_GELU_TANH:
        *size = 2.0 * *size;
        return 0.5 * v * (1.0 + tanh(c * (v + 0.044715 * v * v * v)));
    default:
        return v > 0.0 ? v : 0.0;
    }
}

struct truth {
    double *sum, *size; /* (n_tok, n_embd) */
    struct pi_cold_stats stats;
};

/* What becomes of a neuron for a token: up is read; it fires. */
enum {
    READS_UP = 1,
    FIRES = 2
};

static unsigned add_neuron(const struct layer *l, const struct pi_cold_job *job, uint32_t id,
                           uint32_t t, struct truth *tr)
{
    uint32_t d = l->shape.n_embd;
    const float *x = job->x + (size_t)t * d, *down = l->f32[2] + (size_t)id * d;
    double size, up_size = 1.0, up = 1.0, h;
    double v = dot(l->f32[l->shape.gated ? 0 : 1] + (size_t)id * d, x, d, &size);

    if (l->up_b != NULL) {
        v += (double)l->up_b[id];
        size += fabs((double)l->up_b[id]);
    }
    h = activate(&l->shape, v, &size);
    if (h == 0.0)
        return 0;
    if (l->shape.gated)
        up = dot(l->f32[1] + (size_t)id * d, x, d, &up_size);
    if (l->shape.act_up) {
        up = activate(&l->shape, up, &up_size);
        if (up == 0.0)
            return READS_UP;
    }
    for (uint32_t c = 0; c < d; c++) {
        tr->sum[(size_t)t * d + c] += h * up * (double)down[c];
        tr->size[(size_t)t * d + c] += size * up_size * fabs((double)down[c]);
    }
    /* far from 0 the forms of GELU are so small that they are 0 in F32 */
    return pi_activate(&l->shape, (float)v) != 0.0f ? READS_UP | FIRES : 0;
}

static struct truth make_truth(const struct layer *l, const struct pi_cold_job *job)
{
    size_t size = (size_t)job->n_tok * l->shape.n_embd;
    struct truth tr = {.sum = make(size, sizeof(double)), .size = make(size, sizeof(double))};

    for (uint32_t i = 0; i < job->n; i++) {
        bool wanted = false;
        unsigned any = 0;

        for (uint32_t t = 0; t < job->n_tok; t++) {
            bool want = job->tokens == NULL || (job->tokens[i] >> t & 1) != 0;
            unsigned does = want ? add_neuron(l, job, job->ids[i], t, &tr) : 0;

            if (job->mode == PI_MODE_DENSE)
                does = want ? READS_UP | FIRES : 0;
            wanted |= want;
            any |= does;
            tr.stats.active += (does & FIRES) != 0;
            tr.stats.up_active += (does & READS_UP) != 0;
        }
        tr.stats.first_rows += wanted;
        tr.stats.down_rows += (any & FIRES) != 0;
        tr.stats.up_rows += (any & READS_UP) != 0 && l->shape.gated;
    }
    return tr;
}

static int wrong_values(const struct truth *tr, const float *out, size_t n)
{
    int wrong = 0;

    for (size_t i = 0; i < n; i++)
        wrong += !(fabs(tr->sum[i] - (double)out[i]) <= 2e-6 * tr->size[i]);
    return wrong;
}

static int wrong_stats(const struct truth *tr, const struct pi_cold_job *job)
{
    return tr->stats.first_rows != job->stats.first_rows ||
           tr->stats.up_rows != job->stats.up_rows || tr->stats.down_rows != job->stats.down_rows ||
           tr->stats.active != job->stats.active || tr->stats.up_active != job->stats.up_active;
}

/* ---- tests ---- */

/* Every form on every team; how many chunks are taken together and the size of those without a sum leave no trace. */
static int check_job(const struct layer *l, struct pi_cold_job *job)
{
    size_t n = (size_t)job->n_tok * l->shape.n_embd;
    struct truth tr = make_truth(l, job);
    int wrong = 0;

    for (size_t f = 0; f <= COUNT(forms); f++) {
        float *first;

        job->form = f < COUNT(forms) ? &forms[f] : NULL;
        first = run(job, pools[0]);
        wrong += wrong_values(&tr, first, n) + wrong_stats(&tr, job);
        for (uint32_t p = 0; p < COUNT(teams); p++) {
            struct pi_cold_form other = f < COUNT(forms) ? forms[f] : forms[0];
            float *again;

            other.group += 3 * p;
            other.chunk_two += 5 * p;
            job->form = f < COUNT(forms) ? &other : NULL;
            again = run(job, pools[p]);
            wrong += memcmp(first, again, n * sizeof(float)) != 0;
            wrong += wrong_stats(&tr, job);
            free(again);
        }
        free(first);
    }
    free(tr.sum);
    free(tr.size);
    return wrong;
}

static int check_layer(const struct pi_cpu *cpu, const struct layer *l, uint32_t n, uint32_t n_tok)
{
    struct pi_cold_scratch *s = NULL;
    int wrong = 0;

    if (pi_cold_scratch_create(n, n_tok, l->shape.n_embd, &s, &e) != PI_OK)
        return 1;
    for (int masked = 0; masked < 2; masked++) {
        struct list li = make_list(l, n, n_tok, masked);

        for (int mode = PI_MODE_DENSE; mode <= PI_MODE_PREDICTED; mode++) {
            struct pi_cold_job job = {.cpu = cpu,
                                      .shape = &l->shape,
                                      .w = &l->w,
                                      .scratch = s,
                                      .n_tok = n_tok,
                                      .x = li.x,
                                      .n = n,
                                      .ids = li.ids,
                                      .tokens = li.tokens,
                                      .mode = (enum pi_mode)mode};

            wrong += check_job(l, &job);
        }
        free_list(&li);
    }
    pi_cold_scratch_free(s);
    return wrong;
}

static void test_types(const struct pi_cpu *cpu)
{
    static const uint32_t sizes[][2] = {{0, 2}, {1, 1}, {7, 5}, {65, 2}, {150, 1}, {75, 32}};

    for (size_t t = 0; t < COUNT(types); t++) {
        for (int gated = 0; gated < 2; gated++) {
            uint32_t d = pi_type_info(types[t])->quantised ? 96 : 83;
            struct layer l = make_layer(types[t], d, 150, PI_ACT_RELU, gated);
            int wrong = 0;

            for (size_t i = 0; i < COUNT(sizes); i++)
                wrong += check_layer(cpu, &l, sizes[i][0], sizes[i][1]);
            printf("# %s %s%s\n", pi_isa_name(cpu->isa), pi_type_name(types[t]),
                   gated ? " gated" : "");
            EQ(wrong, 0);
            free_layer(&l);
        }
    }
}

static void test_activations(const struct pi_cpu *cpu)
{
    for (int act = 0; act < PI_ACT_COUNT; act++) {
        const int forms_of = pi_activation_has_zeros((enum pi_activation)act) ? 3 : 2;

        for (int gated = 0; gated < forms_of; gated++) {
            struct layer l = make_layer(PI_TYPE_F16, 128, 120, (enum pi_activation)act, gated != 0);

            l.shape.act_up = gated == 2;
            printf("# %s%s\n", pi_activation_name((enum pi_activation)act),
                   l.shape.act_up ? ", of up too" : "");
            EQ(check_layer(cpu, &l, 60, 3), 0);
            free_layer(&l);
        }
    }
}

/* In the two-pass form a token's sum is the same alone and among others; with n of a long list so in the form of lists that are always the same. */
static void test_batch(const struct pi_cpu *cpu, uint32_t n, uint32_t n_tok)
{
    const struct pi_cold_form fixed[2] = {pi_cold_form_fixed(n, n), pi_cold_form_fixed(n, n / 9)};
    int wrong = 0;

    for (size_t t = 0; t < (n > 100 ? 1 : COUNT(types)); t++) {
        struct layer l = make_layer(types[t], 160, 2 * n, PI_ACT_RELU, true);
        struct list li = make_list(&l, n, n_tok, true);
        struct pi_cold_scratch *s = NULL;
        struct pi_cold_job all = {.cpu = cpu, .shape = &l.shape, .w = &l.w, .n_tok = n_tok};
        float *together, *grouped;

        PASSES(pi_cold_scratch_create(n, n_tok, 160, &s, &e), e);
        all.mode = PI_MODE_EXACT;
        all.form = n > 100 ? &fixed[0] : &forms[0];
        all.scratch = s;
        all.x = li.x;
        all.n = n;
        all.ids = li.ids;
        all.tokens = li.tokens;
        together = run(&all, pools[1]);
        all.form = n > 100 ? &fixed[1] : &forms[0];
        grouped = run(&all, pools[0]);
        wrong += memcmp(grouped, together, (size_t)n_tok * 160 * sizeof(float)) != 0;
        free(grouped);
        for (uint32_t k = 0; k < n_tok; k++) {
            struct pi_cold_job one = all;
            float *alone;

            for (uint32_t i = 0; i < n; i++)
                li.tokens[i] = k == 0 ? li.tokens[i] : li.tokens[i] >> 1;
            one.n_tok = 1;
            one.x = li.x + (size_t)k * 160;
            alone = run(&one, pools[2]);
            wrong += memcmp(alone, together + (size_t)k * 160, 160 * sizeof(float)) != 0;
            free(alone);
        }
        free(together);
        free_list(&li);
        free_layer(&l);
        pi_cold_scratch_free(s);
    }
    EQ(wrong, 0);
}

/* The neurons of a list that token t wants, for it alone. */
static struct list own_list(const struct list *li, uint32_t t, uint32_t d)
{
    struct list own = {.ids = make(li->n, sizeof(*own.ids)),
                       .tokens = make(li->n, sizeof(*own.tokens)),
                       .x = li->x + (size_t)t * d};

    for (uint32_t i = 0; i < li->n; i++) {
        if ((li->tokens[i] >> t & 1) == 0)
            continue;
        own.ids[own.n] = li->ids[i];
        own.tokens[own.n++] = 1;
    }
    return own;
}

/* Lists as the GPU makes them, of neurons that some token wants: every token has the sum that it has with a list of its own. of_1000: share of the tokens that want a
 * neuron. The last token wants next to nothing. */
static void test_union(const struct pi_cpu *cpu, enum pi_type type, uint32_t n, uint32_t n_tok,
                       uint32_t of_1000)
{
    struct layer l = make_layer(type, 96, 2 * n, PI_ACT_RELU, n % 2 == 0);
    struct list li = make_list(&l, n, n_tok, true);
    struct pi_cold_scratch *s = NULL;
    int wrong = 0;

    for (uint32_t i = 0; i < n; i++) {
        li.tokens[i] = 0;
        for (uint32_t t = 0; t < n_tok; t++)
            li.tokens[i] |= (uint32_t)(draw() % 1000 < (t + 1 < n_tok ? of_1000 : 2)) << t;
    }
    PASSES(pi_cold_scratch_create(n, n_tok, 96, &s, &e), e);
    for (int mode = PI_MODE_DENSE; mode <= PI_MODE_PREDICTED; mode++) {
        struct pi_cold_job all = {.cpu = cpu,
                                  .shape = &l.shape,
                                  .w = &l.w,
                                  .scratch = s,
                                  .n_tok = n_tok,
                                  .x = li.x,
                                  .n = n,
                                  .ids = li.ids,
                                  .tokens = li.tokens,
                                  .mode = (enum pi_mode)mode};
        float *together = run(&all, pools[mode]), *again = run(&all, pools[3]);

        wrong += memcmp(together, again, (size_t)n_tok * 96 * sizeof(float)) != 0;
        for (uint32_t t = 0; t < n_tok; t++) {
            struct list own = own_list(&li, t, 96);
            struct pi_cold_job one = all;
            float *alone;

            one.n_tok = 1;
            one.x = own.x;
            one.n = own.n;
            one.ids = own.ids;
            one.tokens = own.tokens;
            alone = run(&one, pools[t % COUNT(teams)]);
            wrong += memcmp(alone, together + (size_t)t * 96, 96 * sizeof(float)) != 0;
            free(alone);
            free(own.ids);
            free(own.tokens);
        }
        free(together);
        free(again);
    }
    pi_cold_scratch_free(s);
    free_list(&li);
    free_layer(&l);
    EQ(wrong, 0);
}

/* Sizes beyond the list, whose multiples are beyond 32 bits. */
static void test_large_sizes(const struct pi_cpu *cpu)
{
    static const struct pi_cold_form
        large[] = {{.n_one = 5, .chunk_one = 3, .chunk_two = UINT32_MAX},
                   {.n_one = 40, .chunk_one = 7, .chunk_two = 1, .group = 1u << 31},
                   {.n_one = 40, .chunk_one = 1u << 31, .chunk_two = 9, .group = 1u << 31}},
        same[] = {{.n_one = 5, .chunk_one = 3, .chunk_two = 55},
                  {.n_one = 40, .chunk_one = 7, .chunk_two = 1, .group = 6},
                  {.n_one = 40, .chunk_one = 40, .chunk_two = 9, .group = 1}};
    struct layer l = make_layer(PI_TYPE_F16, 96, 120, PI_ACT_RELU, true);
    struct list li = make_list(&l, 60, 3, false);
    struct pi_cold_scratch *s = NULL;
    struct pi_cold_job job = {.cpu = cpu, .shape = &l.shape, .w = &l.w, .n_tok = 3, .x = li.x};

    PASSES(pi_cold_scratch_create(60, 3, 96, &s, &e), e);
    job.mode = PI_MODE_EXACT;
    job.scratch = s;
    job.n = li.n;
    job.ids = li.ids;
    for (size_t i = 0; i < COUNT(large); i++) {
        float *a, *b;

        job.form = &large[i];
        a = run(&job, pools[1]);
        job.form = &same[i];
        b = run(&job, pools[0]);
        EQ(memcmp(a, b, (size_t)3 * 96 * sizeof(*a)), 0);
        free(a);
        free(b);
    }
    pi_cold_scratch_free(s);
    free_list(&li);
    free_layer(&l);
}

static void test_unions(const struct pi_cpu *cpu)
{
    for (size_t t = 0; t < COUNT(types); t++)
        test_union(cpu, types[t], 700, 8, 300);
    test_union(cpu, PI_TYPE_F16, 30, 2, 400);
    test_union(cpu, PI_TYPE_F16, 301, 32, 900);
    test_union(cpu, PI_TYPE_F16, 3300, 5, 800); /* own lists of more than 2,048 */
    test_union(cpu, PI_TYPE_F16, 9000, 3, 100);
    test_union(cpu, PI_TYPE_Q8_0, 3300, 17, 60);
}

/* The size of the scratch does not show: what is chosen from n and n_tok always has room. */
static void test_room(const struct pi_cpu *cpu)
{
    static const uint32_t sizes[] = {1, 16, 17, 128, 129, 374, 1100, 2048, 2049, 3000};
    struct layer l = make_layer(PI_TYPE_BF16, 36, 3000, PI_ACT_RELU, true);
    struct pi_cold_scratch *large = NULL, *small = NULL;
    int wrong = 0;

    PASSES(pi_cold_scratch_create(5000, PI_COLD_TOKENS, 36, &large, &e), e);
    for (size_t i = 0; i < 2 * COUNT(sizes); i++) {
        uint32_t n = sizes[i / 2], n_tok = i % 2 == 0 ? 1 : i % 4 == 1 ? 4 : 8;
        struct list li = make_list(&l, n, n_tok, n_tok == 8);
        struct pi_cold_job job = {.cpu = cpu, .shape = &l.shape, .w = &l.w, .n_tok = n_tok};
        float *out[2];

        PASSES(pi_cold_scratch_create(n, n_tok, 36, &small, &e), e);
        job.mode = PI_MODE_PREDICTED;
        job.x = li.x;
        job.n = n;
        job.ids = li.ids;
        job.tokens = li.tokens;
        job.scratch = large;
        out[0] = run(&job, pools[1]);
        job.scratch = small;
        out[1] = run(&job, pools[3]);
        wrong += memcmp(out[0], out[1], (size_t)n_tok * 36 * sizeof(float)) != 0;
        free(out[0]);
        free(out[1]);
        free_list(&li);
        pi_cold_scratch_free(small);
        small = NULL;
    }
    EQ(wrong, 0);
    pi_cold_scratch_free(large);
    free_layer(&l);
}

/* A weight that is no number shows, in the token that reads it and in no other. */
static void test_nan(const struct pi_cpu *cpu)
{
    for (int which = 0; which < 3; which++) {
        struct layer l = make_layer(PI_TYPE_F32, 64, 40, PI_ACT_RELU, true);
        struct list li = make_list(&l, 40, 2, true);
        struct pi_cold_scratch *s = NULL;
        struct pi_cold_job job = {.cpu = cpu, .shape = &l.shape, .w = &l.w, .n_tok = 2};
        int nans = 0;
        float *out;

        for (uint32_t i = 0; i < 40; i++)
            li.tokens[i] = i == 17 ? 2 : 3;
        for (uint32_t c = 0; c < 64; c++) {
            /* gate 17 fires for sure */
            ((float *)(void *)l.bundles)[(size_t)17 * 192 + c] = li.x[64 + c];
        }
        ((float *)(void *)l.bundles)[(size_t)17 * 192 + (size_t)which * 64 + 5] = NAN;
        PASSES(pi_cold_scratch_create(40, 2, 64, &s, &e), e);
        job.mode = PI_MODE_EXACT;
        job.scratch = s;
        job.x = li.x;
        job.n = 40;
        job.ids = li.ids;
        job.tokens = li.tokens;
        out = run(&job, pools[1]);
        for (uint32_t c = 0; c < 64; c++) {
            nans += isnan(out[64 + c]);
            OK(!isnan(out[c]));
        }
        EQ(nans, which == 2 ? 1 : 64);
        free(out);
        free_list(&li);
        free_layer(&l);
        pi_cold_scratch_free(s);
    }
}

static void test_scratch(void)
{
    struct pi_cold_scratch *s = NULL;

    FAILS(pi_cold_scratch_create(10, 0, 32, &s, &e), PI_E_RANGE, "0 tokens", e);
    FAILS(pi_cold_scratch_create(10, 33, 32, &s, &e), PI_E_RANGE, "33 tokens", e);
    for (int n = 1; n <= 5; n++) {
        char text[16];

        (void)snprintf(text, sizeof(text), "%d", n);
        (void)setenv("PI_TEST_ALLOC_FAIL", text, 1);
        if (pi_cold_scratch_create(10, 4, 32, &s, &e) != PI_OK)
            OK(s == NULL && e.code == PI_E_NOMEM);
        pi_cold_scratch_free(s);
        s = NULL;
        (void)unsetenv("PI_TEST_ALLOC_FAIL");
    }
    pi_cold_scratch_free(NULL);
    OK(pi_cold_scratch_bytes(11008, 1, 4096) < 2000000);
    OK(pi_cold_scratch_bytes(11008, 32, 4096) < 28000000);
    OK(pi_cold_scratch_bytes(0, 1, 0) > 0);
    OK(pi_cold_scratch_bytes(UINT32_MAX, 32, UINT32_MAX) > (uint64_t)1 << 38);
}

int main(void)
{
    for (size_t p = 0; p < COUNT(teams); p++)
        PASSES(pi_pool_create(teams[p], &pools[p], &e), e);
    for (int i = 0; i < PI_ISA_COUNT; i++) {
        const struct pi_cpu *cpu = pi_cpu_get((enum pi_isa)i);

        if (cpu == NULL) {
            printf("# no %s here\n", pi_isa_name((enum pi_isa)i));
            continue;
        }
        test_large_sizes(cpu);
        test_types(cpu);
        test_activations(cpu);
        test_batch(cpu, 100, 9);
        test_batch(cpu, 2500, 9);
        test_batch(cpu, 2500, 3);
        test_batch(cpu, 1000, 9);
        test_unions(cpu);
        test_room(cpu);
        test_nan(cpu);
    }
    test_scratch();
    for (size_t p = 0; p < COUNT(teams); p++)
        pi_pool_destroy(pools[p]);
    return DONE();
}
