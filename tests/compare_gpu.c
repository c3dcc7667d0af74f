/* Runs a model with known answers on a GPU, under placements from "nothing there" to "all there", and compares.
 *
 *   compare_gpu M.gguf FOLDER [CASES [TOKENS]]
 *
 * FOLDER as compare_reference has it; CASES: how many of its cases; TOKENS: only so many of each sequence (slow devices). The predictor is one that
 * asks the gate itself, so that predicted mode has to give the reference's figures too. Prints a TAP line without number for each placement: the largest
 * max|delta|/max|logit| of each way to compute, the limits of design 5.5 beside it. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_pool.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_blas.h"
#include "runtime/pi_device.h"
#include "runtime/pi_gpu.h"
#include "tests/reference_case.h"

#define MAX_CASES 8
#define GROUP     64u /* neurons that pi-place moves together */

struct subject {
    struct pi_model model;
    struct pi_pool *pool;
    struct pi_predictor pred;
    float *fc1, **fc2; /* (n_embd, n_embd), (n_layer) of (n_ff, n_embd) */
    struct ref_case cases[MAX_CASES];
    size_t n_cases;
    float *got; /* (longest, n_vocab) */
    uint32_t n_ctx;
};

static int failures;

static void *get(size_t n, size_t size)
{
    struct pi_err e = {0};
    void *p = pi_calloc_array(n, size, &e);

    if (p == NULL)
        die("memory", e.msg);
    return p;
}

/* ---- placements ---- */

enum share {
    NOTHING, /* budget 0 */
    TINY,    /* a few neurons of one layer */
    NO_NEURONS,
    HALF, /* of everything, by turns */
    ALL_BUT_ONE_GROUP,
    ALL,
    N_SHARES
};

static const char *const share_name[N_SHARES] = {
    "nothing", "tiny", "attention alone", "half", "all but one group", "all"};

static void place_layer(struct pi_place_layer *y, enum share share, uint32_t l,
                        const struct pi_placement *p)
{
    const uint32_t n_ff = p->n_ff, middle = p->n_layer / 2;

    y->hot_unit = 1;
    for (uint32_t i = 0; i < n_ff; i++) { /* an order far from the natural one */
        const uint32_t j = (i * 2654435761u + l) % n_ff, t = y->order[i];

        y->order[i] = y->order[j];
        y->order[j] = t;
    }
    if (share == TINY) {
        y->n_hot = l == middle ? 16 : 0;
    } else if (share == HALF) {
        y->n_hot = n_ff / 2;
        y->attn_unit = l % 2 == 0;
    } else if (share != NOTHING) {
        y->attn_unit = 1;
        y->n_hot = share == NO_NEURONS ? 0 : n_ff;
        if (share == ALL_BUT_ONE_GROUP && l == middle)
            y->n_hot = n_ff - (GROUP < n_ff ? GROUP : 1);
    }
}

static struct pi_placement make_place(const struct pi_model *m, enum share share, enum pi_mode mode)
{
    struct pi_err e = {0};
    struct pi_placement p = {0};

    must(pi_placement_cpu(m->shape.n_layer, m->shape.n_ff, &p, &e), &e);
    for (uint32_t l = 0; l < p.n_layer; l++) {
        place_layer(&p.layers[l], share, l, &p);
        p.layers[l].mode_cpu = p.layers[l].mode_gpu =
            mode == PI_MODE_PREDICTED ? PI_MODE_PREDICTED : PI_MODE_EXACT;
    }
    p.n_units = share == NOTHING ? 1 : 2;
    p.output_unit = share >= NO_NEURONS;
    must(pi_placement_check(&p, &e), &e);
    return p;
}

/* ---- ways to compute ---- */

struct way {
    const char *name;
    bool stepwise;
    enum pi_mode mode;
    enum pi_type kv;
    bool f32_gemm, events;
    double limit, cpu_limit; /* cpu_limit: where nothing is on the GPU */
};

static const struct way ways[] = {
    {"prompt", false, PI_MODE_DENSE, PI_TYPE_F32, true, false, 1e-4, 2e-5},
    {"prompt F16", false, PI_MODE_DENSE, PI_TYPE_F16, false, false, 3e-3, 1e-3},
    {"dense", true, PI_MODE_DENSE, PI_TYPE_F32, true, false, 1e-4, 2e-5},
    {"exact", true, PI_MODE_EXACT, PI_TYPE_F32, true, false, 1e-4, 2e-5},
    {"exact by events", true, PI_MODE_EXACT, PI_TYPE_F32, true, true, 1e-4, 2e-5},
    {"exact F16 KV", true, PI_MODE_EXACT, PI_TYPE_F16, true, false, 1e-3, 1e-3},
    {"predicted", true, PI_MODE_PREDICTED, PI_TYPE_F32, true, false, 1e-4, 2e-5},
};

#define N_WAYS (sizeof(ways) / sizeof(ways[0]))

int cudaEmuLiveObjects(void) __attribute__((weak)); /* of the emulated device alone */

/* The trial of hand-overs takes an emulated device longer than a case: there the first engine that steps has it, the others know. */
static struct pi_engine *make_engine(struct subject *s, const struct way *w,
                                     const struct pi_placement *p)
{
    static bool tried;
    const struct pi_engine_options o = {
        .mode = w->mode,
        .n_ctx = s->n_ctx,
        .n_seq = 1,
        .kv_type = w->kv,
        .on_gpu = p->n_units > 1,
        .gpu_patience = 60.0, /* where the GPU is emulated, on a busy machine */
        .gpu_handover = w->events ? PI_HANDOVER_EVENTS
                        : tried   ? PI_HANDOVER_SPIN
                                  : PI_HANDOVER_AUTO,
        .f32_gemm = w->f32_gemm,
        .force_predicted = w->mode == PI_MODE_PREDICTED,
    };
    struct pi_err e = {0};
    struct pi_engine *engine = NULL;

    must(pi_engine_create(&s->model, w->mode == PI_MODE_PREDICTED ? &s->pred : NULL,
                          p->n_units > 1 ? p : NULL, s->pool, &o, &engine, &e),
         &e);
    tried = tried || (cudaEmuLiveObjects != NULL && p->n_units > 1 && w->stepwise && !w->events);
    return engine;
}

/* The worst case's figure; *greedy adds up. */
static double figure(struct subject *s, const struct way *w, const struct pi_placement *p,
                     double limit, struct ref_greedy *greedy)
{
    struct pi_engine *engine = make_engine(s, w, p);
    double worst = 0;

    for (size_t i = 0; i < s->n_cases; i++) {
        const struct ref_case *c = &s->cases[i];
        const struct ref_greedy g = {0, 0};
        struct ref_greedy here = g;
        double d;

        ref_feed(engine, &s->model, c->seq, c->from + c->n_rows, w->stepwise, s->got);
        d = distance(s->got + c->from * c->n_vocab, c->logits, c->n_rows * c->n_vocab);
        worst = d <= worst ? worst : d; /* NaN sticks */
        here = ref_greedy(c, s->got, c->from + c->n_rows, limit);
        greedy->same += here.same;
        greedy->due += here.due;
    }
    pi_engine_destroy(engine);
    return worst;
}

/* One line. */
static void check_share(struct subject *s, enum share share, const char *name)
{
    const bool sparse = pi_activation_has_zeros(s->model.shape.act);
    struct ref_greedy greedy = {0, 0};
    char text[1024] = "";
    size_t at = 0;
    bool ok = true;

    for (size_t i = 0; i < N_WAYS; i++) {
        const struct way *w = &ways[i];
        const double limit = share == NOTHING ? w->cpu_limit : w->limit;
        struct pi_placement p;
        double d;

        if (!sparse && w->mode != PI_MODE_DENSE)
            continue;
        p = make_place(&s->model, share, w->mode);
        d = figure(s, w, &p, limit, &greedy);
        pi_placement_free(&p);
        ok = ok && d <= limit;
        at +=
            (size_t)snprintf(text + at, sizeof(text) - at, "%s %s %.1e%s(%.0e)", at > 0 ? "," : "",
                             w->name, d, d <= limit ? " " : " IS ABOVE ", limit);
    }
    ok = ok && greedy.same == greedy.due;
    printf("%sok - %s, %s:%s", ok ? "" : "not ", name, share_name[share], text);
    if (greedy.due > 0) /* few tokens end before the prompt does */
        printf("; greedy %zu of %zu", greedy.same, greedy.due);
    (void)putchar('\n');
    failures += !ok;
    (void)fflush(stdout);
}

/* ---- subject ---- */

/* fc1 the identity and fc2 the gate: the scores are the gate's own outputs. */
static void make_predictor(struct subject *s)
{
    const struct pi_shape *sh = &s->model.shape;
    const uint32_t d = sh->n_embd;

    s->fc1 = get((size_t)d * d, sizeof(float));
    s->fc2 = get(sh->n_layer, sizeof(*s->fc2));
    for (uint32_t i = 0; i < d; i++)
        s->fc1[(size_t)i * d + i] = 1;
    s->pred = (struct pi_predictor){.n_layer = sh->n_layer,
                                    .n_ff = sh->n_ff,
                                    .n_embd = d,
                                    .layers = get(sh->n_layer, sizeof(*s->pred.layers))};
    for (uint32_t l = 0; l < sh->n_layer; l++) {
        const struct pi_layer_weights *w = &s->model.layers[l];
        const struct pi_mat *gate = sh->gated ? &w->gate : &w->up;
        struct pi_mat fc = {.type = PI_TYPE_F32, .n_cols = d, .row_bytes = d * sizeof(float)};

        s->fc2[l] = get((size_t)sh->n_ff * d, sizeof(float));
        for (uint32_t i = 0; i < sh->n_ff; i++)
            pi_cpu_get(PI_ISA_SCALAR)
                ->type[gate->type]
                ->to_f32(pi_mat_row(gate, i), s->fc2[l] + (size_t)i * d, d);
        s->pred.layers[l] = (struct pi_predictor_layer){.width = d,
                                                        .input = PI_PRED_IN_FFN_NORMED,
                                                        .threshold = -1e-3f,
                                                        .bias = sh->gated ? NULL : w->up_b,
                                                        .density = 0.01f};
        fc.data = s->fc1;
        fc.n_rows = d;
        s->pred.layers[l].fc1 = fc;
        fc.data = s->fc2[l];
        fc.n_rows = sh->n_ff;
        s->pred.layers[l].fc2 = fc;
    }
}

static void read_cases(struct subject *s, const json_t *root, const struct pi_map *map,
                       size_t n_cases, size_t n_tokens)
{
    const json_t *cases = json_object_get(root, "cases");
    size_t longest = 0;

    s->n_cases = json_array_size(cases);
    s->n_cases = s->n_cases < n_cases ? s->n_cases : n_cases;
    if (s->n_cases == 0 || s->n_cases > MAX_CASES)
        die("reference.json", "no cases, or too many");
    for (size_t i = 0; i < s->n_cases; i++) {
        struct ref_case *c = &s->cases[i];

        read_case(json_array_get(cases, i), map, c);
        if (c->n_vocab != s->model.shape.n_vocab)
            die("vocabulary", "model and reference differ");
        if (c->from + c->n_rows > n_tokens) {
            if (c->from >= n_tokens)
                die("reference.json", "no logits for so few tokens");
            c->n_rows = n_tokens - c->from;
        }
        longest = c->from + c->n_rows > longest ? c->from + c->n_rows : longest;
    }
    s->n_ctx = (uint32_t)longest;
    s->got = get(longest * s->model.shape.n_vocab, sizeof(float));
}

static void open_subject(const char *path, struct subject *s)
{
    struct pi_err e = {0};
    const struct pi_model_options o = {.check_crc = true};
    uint64_t bytes;

    must(pi_model_open(path, &o, &s->model, &e), &e);
    must(pi_pool_create(pi_device_threads(), &s->pool, &e), &e);
    must(pi_model_transpose_down(&s->model, &bytes, &e), &e);
    must(pi_blas_init(&e), &e);
    make_predictor(s);
}

static void close_subject(struct subject *s)
{
    for (uint32_t l = 0; l < s->model.shape.n_layer; l++)
        free(s->fc2[l]);
    free(s->fc2);
    free(s->fc1);
    free(s->pred.layers);
    free(s->got);
    pi_pool_destroy(s->pool);
    pi_model_close(&s->model);
}

int main(int argc, char **argv)
{
    static struct subject s;
    struct pi_map map = {0};
    json_t *root;
    const char *name;

    if (argc < 3 || argc > 5)
        die("usage", "compare_gpu M.gguf FOLDER [CASES [TOKENS]]");
    name = strrchr(argv[2], '/') != NULL ? strrchr(argv[2], '/') + 1 : argv[2];
    if (pi_gpu_count() == 0)
        die(name, "no GPU is there");
    root = load_reference(argv[2]);
    open_subject(argv[1], &s);
    open_logits(argv[2], &map);
    read_cases(&s, root, &map, argc > 3 ? strtoul(argv[3], NULL, 10) : MAX_CASES,
               argc > 4 ? strtoul(argv[4], NULL, 10) : MAX_SEQ);
    for (int share = 0; share < N_SHARES; share++)
        check_share(&s, (enum share)share, name);
    pi_map_close(&map);
    close_subject(&s);
    json_decref(root);
    return failures > 0;
}
