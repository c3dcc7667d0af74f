/*
 * The self-check's own forward pass against the reference logits of transformers.
 */
#include "config.h"

#include "convert/pi_hf_forward.h"
#include "common/pi_alloc.h"
#include "common/pi_file.h"
#include "tests/tap.h"

struct model {
    struct pi_json config, ref;
    struct pi_hf_config c;
    struct pi_source src;
    struct pi_plan plan;
    struct pi_map logits;
};

static void close_model(struct model *m)
{
    pi_json_free(&m->config);
    pi_json_free(&m->ref);
    pi_source_close(&m->src);
    pi_plan_free(&m->plan);
    pi_map_close(&m->logits);
}

static enum pi_code open_model(const char *dir, struct model *m, struct pi_err *e)
{
    enum pi_code rc = PI_OK;
    char path[600];

    (void)snprintf(path, sizeof(path), "%s/logits.f32", dir);
    PI_TRY(pi_json_load(dir, "config.json", false, &m->config, e));
    PI_TRY(pi_json_load(dir, "reference.json", false, &m->ref, e));
    PI_TRY(pi_hf_config_read(&m->config, NULL, NULL, &m->c, e));
    PI_TRY(pi_source_open(dir, &m->src, e));
    PI_TRY(pi_hf_map(&m->c, &m->src, NULL, &m->plan, e));
    PI_TRY(pi_map_open(path, &m->logits, e));
out:
    return rc;
}

/* max |delta| / max |logit| over the first case, whose logits are kept for all positions. */
static double compare(struct model *m, struct pi_err *e)
{
    const json_t *c = json_array_get(json_object_get(m->ref.root, "cases"), 0);
    const json_t *prompt = json_object_get(c, "tokens"),
                 *more = json_object_get(c, "greedy_continuation");
    size_t n_prompt = json_array_size(prompt), n = n_prompt + json_array_size(more),
           n_vocab = m->c.shape.n_vocab;
    size_t rows = (size_t)json_integer_value(json_array_get(json_object_get(c, "logits_shape"), 0));
    size_t at = (size_t)json_integer_value(json_object_get(c, "logits_offset_floats"));
    int32_t *tokens = pi_calloc_array(n, sizeof(*tokens), e);
    float *logits = pi_calloc_array(n * n_vocab, sizeof(*logits), e);
    double worst = 0.0, most = 0.0;

    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)json_integer_value(i < n_prompt ? json_array_get(prompt, i)
                                                             : json_array_get(more, i - n_prompt));
    PASSES(pi_hf_forward(&m->c, &m->src, tokens, (uint32_t)n, logits, e), *e);
    OK(rows > 0 && rows <= n && (at + rows * n_vocab) * sizeof(float) <= m->logits.size);
    for (size_t i = 0; i < rows * n_vocab; i++) {
        float want;
        memcpy(&want, m->logits.data + (at + i) * sizeof(float), sizeof(want));
        worst = fmax(worst, fabs((double)want - (double)logits[i]));
        most = fmax(most, fabs((double)want));
    }
    free(tokens);
    free(logits);
    return most > 0.0 ? worst / most : HUGE_VAL;
}

int main(void)
{
    static const char *const cases[] = {
        "llama-relu",  "llama-silu-gqa-tied", "opt-pre",          "llama3-rope-bf16-sharded",
        "arcee-relu2", "nemotron-relu2",      "qwen2-silu",       "mistral-relu-gqa-oldconfig",
        "qwen3-silu",  "falcon-7b-style",     "falcon-40b-style", "opt-350m-style",
    };
    const char *shared = tap_shared(), *src = getenv("abs_top_srcdir");
    char dir[512];
    int n = 0;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model m = {0};
        struct pi_err e = {0};

        (void)snprintf(dir, sizeof(dir), "%s/tests/data/reference/%s", src != NULL ? src : ".",
                       cases[i]);
        if (!pi_json_exists(dir, "config.json"))
            (void)snprintf(dir, sizeof(dir), "%s/reference/%s", shared != NULL ? shared : "",
                           cases[i]);
        if (!pi_json_exists(dir, "config.json"))
            continue;
        n++;
        printf("# %s\n", cases[i]);
        PASSES(open_model(dir, &m, &e), e);
        if (m.logits.data != NULL)
            NEAR(compare(&m, &e), 0.0, 2e-5);
        close_model(&m);
    }
    OK(n >= 3); /* those in tests/data/reference */
    return DONE();
}
