/*
 * The self-check finds what converters get wrong: it is given files that were written wrongly on purpose.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "convert/pi_hf_vocab.h"
#include "convert/pi_selfcheck.h"
#include "tests/hf_copy.h"
#include "tests/tap.h"

struct model {
    struct pi_json config;
    struct pi_hf_config c;
    struct pi_source src;
    struct pi_vocab vocab;
};

static struct pi_pool *pool;
static char said[1024];

static void hear(void *ctx, const char *line)
{
    (void)ctx;
    (void)snprintf(said, sizeof(said), "%s", line);
}

static const struct pi_notes notes = {hear, NULL};

static void open_model(const char *name, struct model *m)
{
    const char *dir = hf_case(name);
    struct pi_err e = {0};

    if (dir == NULL)
        hf_fail(name);
    PASSES(pi_json_load(dir, "config.json", false, &m->config, &e), e);
    PASSES(pi_hf_config_read(&m->config, NULL, NULL, &m->c, &e), e);
    PASSES(pi_source_open(dir, &m->src, &e), e);
    PASSES(pi_hf_vocab_load(dir, &m->c, NULL, &m->vocab, &e), e);
}

static void close_model(struct model *m)
{
    pi_json_free(&m->config);
    pi_source_close(&m->src);
    pi_vocab_free(&m->vocab);
}

typedef void (*spoil_fn)(struct pi_hf_config *c, struct pi_plan *p);

/* Writes m, spoilt, and hands it to the self-check with the true configuration. */
static enum pi_code check_spoilt(const struct model *m, spoil_fn spoil, enum pi_type type,
                                 struct pi_err *e)
{
    enum pi_code rc = PI_OK;
    char *dir = scratch_open(), *path = scratch_path(dir, "m.gguf");
    struct pi_hf_config c = m->c;
    struct pi_plan plan = {0};
    struct pi_write_options wo = {.recipe = pi_recipe_plain(type), .pool = pool};
    struct pi_selfcheck k = {
        .target = path, .output = "m.gguf", .plan = &plan, .pool = pool, .notes = &notes};
    struct pi_gguf_writer *w = NULL;

    said[0] = '\0';
    PI_TRY(pi_hf_map(&c, &m->src, NULL, &plan, e));
    if (spoil != NULL)
        spoil(&c, &plan);
    PI_TRY(pi_plan_choose_types(&plan, &wo, e));
    PI_TRY(pi_gguf_writer_create(path, &w, e));
    PI_TRY(pi_hf_set_keys(&c, w, e));
    PI_TRY(pi_vocab_write(&m->vocab, w, e));
    PI_TRY(pi_plan_declare(&plan, w, e));
    PI_TRY(pi_plan_write(&plan, &wo, w, e));
    rc = pi_gguf_commit(w, e);
    w = NULL;
    PI_TRY(rc);
    PI_TRY(pi_selfcheck_hf(&k, &m->c, &m->src, e));
out:
    pi_gguf_abort(w);
    pi_plan_free(&plan);
    free(path);
    scratch_close(dir);
    return rc;
}

static struct pi_plan_tensor *planned(struct pi_plan *p, const char *name)
{
    for (size_t i = 0; i < p->n; i++)
        if (strcmp(p->t[i].name, name) == 0)
            return &p->t[i];
    hf_fail(name);
    return NULL;
}

static void no_permutation(struct pi_hf_config *c, struct pi_plan *p)
{
    (void)c;
    for (size_t i = 0; i < p->n; i++)
        p->t[i].rot_heads = 0;
}

static void swapped_gate(struct pi_hf_config *c, struct pi_plan *p)
{
    const uint8_t *gate = planned(p, "blk.1.ffn_gate.weight")->data;

    (void)c;
    planned(p, "blk.1.ffn_gate.weight")->data = planned(p, "blk.1.ffn_up.weight")->data;
    planned(p, "blk.1.ffn_up.weight")->data = gate;
}

/* The down matrix taken as it lies, not transposed. */
static void flat_down(struct pi_hf_config *c, struct pi_plan *p)
{
    (void)c;
    planned(p, "blk.2.ffn_down_t.weight")->transpose = false;
}

static void other_activation(struct pi_hf_config *c, struct pi_plan *p)
{
    (void)p;
    c->shape.act = PI_ACT_SILU;
}

static void other_epsilon(struct pi_hf_config *c, struct pi_plan *p)
{
    (void)p;
    c->shape.norm_eps = 1e-3f;
}

static void other_base(struct pi_hf_config *c, struct pi_plan *p)
{
    (void)p;
    c->shape.rope_base = 100.0f;
}

static void test_spoilt(void)
{
    struct model llama = {0}, opt = {0};
    struct pi_err e = {0};

    open_model("llama-relu", &llama);
    open_model("opt-pre", &opt);
    PASSES(check_spoilt(&llama, NULL, PI_TYPE_F32, &e), e);
    OK(strstr(said, "no better than chance") != NULL); /* its weights are random */
    PASSES(check_spoilt(&opt, NULL, PI_TYPE_F32, &e), e);
    FAILS(check_spoilt(&llama, no_permutation, PI_TYPE_F32, &e), PI_E_SELFCHECK, "of the largest",
          e);
    FAILS(check_spoilt(&llama, no_permutation, PI_TYPE_BF16, &e), PI_E_SELFCHECK, "of the largest",
          e);
    FAILS(check_spoilt(&llama, swapped_gate, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest", e);
    FAILS(check_spoilt(&llama, flat_down, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest", e);
    FAILS(check_spoilt(&llama, flat_down, PI_TYPE_Q8_0, &e), PI_E_SELFCHECK, "self-check failed",
          e);
    FAILS(check_spoilt(&llama, other_activation, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest",
          e);
    FAILS(check_spoilt(&llama, other_epsilon, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest",
          e);
    FAILS(check_spoilt(&llama, other_base, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest", e);
    FAILS(check_spoilt(&opt, flat_down, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest", e);
    FAILS(check_spoilt(&opt, other_activation, PI_TYPE_F16, &e), PI_E_SELFCHECK, "of the largest",
          e);
    close_model(&llama);
    close_model(&opt);
}

/* The judgement alone, on logits made up here. */
static void test_compare(void)
{
    enum {
        N = 64
    };
    struct pi_plan_tensor t = {.src_type = PI_TYPE_F16, .type = PI_TYPE_F16};
    struct pi_plan plan = {&t, 1, 1};
    struct pi_selfcheck k = {.output = "m.gguf", .plan = &plan};
    float want[2 * N], got[2 * N];
    struct pi_err e = {0};

    for (int i = 0; i < 2 * N; i++)
        want[i] = got[i] = (float)((i * 37) % 101) / 1000.0f;
    PASSES(pi_selfcheck_compare(&k, want, got, 2, N, &e), e);
    got[5] += 0.0004f; /* 4e-3 of 0.1 */
    PASSES(pi_selfcheck_compare(&k, want, got, 2, N, &e), e);
    got[5] += 0.0004f;
    FAILS(pi_selfcheck_compare(&k, want, got, 2, N, &e), PI_E_SELFCHECK, "at most 0.005", e);
    t.type = PI_TYPE_BF16;
    PASSES(pi_selfcheck_compare(&k, want, got, 2, N, &e), e);
    t.src_type = PI_TYPE_BF16; /* not rounded: no excuse */
    FAILS(pi_selfcheck_compare(&k, want, got, 2, N, &e), PI_E_SELFCHECK, "at most 0.005", e);
    t.type = PI_TYPE_Q4_0;
    PASSES(pi_selfcheck_compare(&k, want, got, 2, N, &e), e);
    for (int i = 0; i < 2 * N; i++)
        got[i] = 0.1f - want[i]; /* so flat that the divergence is tiny, and all wrong */
    FAILS(pi_selfcheck_compare(&k, want, got, 2, N, &e), PI_E_SELFCHECK,
          "correlate with the source's by -1", e);
    for (int i = 0; i < 2 * N; i++)
        got[i] = 100.0f * want[i];
    FAILS(pi_selfcheck_compare(&k, want, got, 2, N, &e), PI_E_SELFCHECK, "at most 0.1", e);
    got[7] = NAN;
    FAILS(pi_selfcheck_compare(&k, want, got, 2, N, &e), PI_E_SELFCHECK, "not finite", e);
}

int main(void)
{
    struct pi_err e = {0};

    PASSES(pi_pool_create(2, &pool, &e), e);
    test_compare();
    test_spoilt();
    pi_pool_destroy(pool);
    return DONE();
}
