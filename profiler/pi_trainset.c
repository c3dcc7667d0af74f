#include "config.h"

#include "profiler/pi_trainset.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK        1024 /* positions */
#define BLOCKS_CYCLE 10
#define MIN_BLOCKS   20
#define CALIBRATE_AT 4 /* of each cycle */
#define TEST_AT      9
#define MIN_SAMPLES  200

static enum pi_part part_of(uint32_t block)
{
    switch (block % BLOCKS_CYCLE) {
    case CALIBRATE_AT:
        return PI_PART_CALIBRATE;
    case TEST_AT:
        return PI_PART_TEST;
    default:
        return PI_PART_TRAIN;
    }
}

static enum pi_code split(struct pi_trainset *s, const int64_t *position, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t span = (uint64_t)position[s->n - 1] + 1;
    uint64_t length = span / MIN_BLOCKS < BLOCK ? span / MIN_BLOCKS : BLOCK;

    length = length > 0 ? length : 1;
    PI_ALLOC(s->block, s->n, err);
    for (int p = 0; p < PI_PART_COUNT; p++)
        PI_ALLOC(s->part[p], s->n, err);
    for (uint32_t i = 0; i < s->n; i++) {
        enum pi_part p;

        s->block[i] = (uint32_t)((uint64_t)position[i] / length);
        p = part_of(s->block[i]);
        s->part[p][s->n_part[p]++] = i;
    }
    for (int p = 0; p < PI_PART_COUNT; p++)
        if (s->n_part[p] == 0)
            PI_FAIL(err, PI_E_RANGE, "%u samples are too few to train and test on", s->n);
out:
    return rc;
}

enum pi_code pi_trainset_make(float *x, uint8_t *mask, const int64_t *position, uint32_t n,
                              uint32_t d, uint32_t n_ff, struct pi_trainset *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_trainset s = {
        .n = n, .d = d, .n_ff = n_ff, .mask_bytes = ((size_t)n_ff + 7) / 8, .x = x, .mask = mask};

    if (n < MIN_SAMPLES)
        PI_FAIL(err, PI_E_RANGE,
                "%u samples are too few to train and test on: profile more text (at least %d "
                "tokens, better 50000)",
                n, MIN_SAMPLES);
    PI_TRY(split(&s, position, err));
    *out = s;
    memset(&s, 0, sizeof(s));
out:
    pi_trainset_free(&s);
    return rc;
}

enum pi_code pi_trainset_keep_residuals(struct pi_trainset *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t d = s->d;

    PI_ALLOC(s->residual, s->n_part[PI_PART_CALIBRATE] * d, err);
    PI_ALLOC(s->residual_row, s->n, err);
    for (uint32_t k = 0; k < s->n_part[PI_PART_CALIBRATE]; k++) {
        const uint32_t i = s->part[PI_PART_CALIBRATE][k];

        memcpy(s->residual + k * d, s->x + i * d, d * sizeof(float));
        s->residual_row[i] = k;
    }
out:
    return rc;
}

struct norm_job {
    const struct pi_shape *sh;
    const struct pi_layer_weights *w;
    const struct pi_cpu *cpu;
    float *x;
};

static void norm_rows(void *ctx, size_t begin, size_t end)
{
    const struct norm_job *j = ctx;
    const uint32_t d = j->sh->n_embd;

    for (size_t i = begin; i < end; i++) {
        float *x = j->x + i * d;

        if (j->sh->layer_norm)
            pi_layer_norm(x, j->w->ffn_norm, j->w->ffn_norm_b, j->sh->norm_eps, x, d);
        else
            pi_rms_norm(j->cpu, x, j->w->ffn_norm, j->sh->norm_eps, x, d);
    }
}

/* x becomes what the layer before held when its attention was done; what the block sees moves to block_x. */
static enum pi_code look_back(const struct pi_profile *p, uint32_t layer, struct pi_trainset *s,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    float *x = NULL;
    uint8_t *mask = NULL;

    PI_TRY(pi_profile_samples(p, layer - 1, &x, &mask, err));
    s->block_x = s->x;
    s->x = x;
out:
    free(mask);
    return rc;
}

enum pi_code pi_trainset_load(const struct pi_profile *p, const struct pi_model *m, uint32_t layer,
                              bool look_ahead, struct pi_pool *pool, struct pi_trainset *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct norm_job j = {.sh = &m->shape, .w = &m->layers[layer]};
    struct pi_trainset s = {0};
    float *x = NULL, *input = NULL;
    uint8_t *mask = NULL;

    PI_TRY(pi_cpu_select(&j.cpu, err));
    if (p->n_samples > UINT32_MAX)
        PI_FAIL(err, PI_E_RANGE, "%llu samples are more than 2^32",
                (unsigned long long)p->n_samples);
    PI_TRY(pi_profile_samples(p, layer, &x, &mask, err));
    PI_TRY(pi_trainset_make(x, mask, p->position, (uint32_t)p->n_samples, p->n_embd, p->n_ff, &s,
                            err));
    if (!m->shape.post_norm)
        PI_TRY(pi_trainset_keep_residuals(&s, err));
    if (m->shape.parallel) {
        PI_TRY(pi_profile_inputs(p, layer, &input, err));
        free(s.x);
        s.x = input;
    }
    j.x = s.x;
    pi_pool_for(pool, s.n, 64, norm_rows, &j);
    if (m->shape.post_norm) /* sums go on from what was normed */
        PI_TRY(pi_trainset_keep_residuals(&s, err));
    if (look_ahead && layer > 0)
        PI_TRY(look_back(p, layer, &s, err));
    *out = s;
    memset(&s, 0, sizeof(s));
out:
    pi_trainset_free(&s);
    return rc;
}

void pi_trainset_free(struct pi_trainset *s)
{
    free(s->x);
    free(s->block_x);
    free(s->mask);
    for (int p = 0; p < PI_PART_COUNT; p++)
        free(s->part[p]);
    free(s->block);
    free(s->residual);
    free(s->residual_row);
    memset(s, 0, sizeof(*s));
}

double pi_trainset_density(const struct pi_trainset *s, enum pi_part part)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < s->n_part[part]; i++) {
        const uint8_t *m = s->mask + s->part[part][i] * s->mask_bytes;

        for (size_t b = 0; b < s->mask_bytes; b++)
            n += (uint64_t)__builtin_popcount(m[b]);
    }
    return (double)n / ((double)s->n_part[part] * s->n_ff);
}

enum pi_code pi_trainset_use_gpu(struct pi_trainset *s, struct pi_gpu_fit *gpu, struct pi_err *err)
{
    s->gpu = gpu;
    return gpu != NULL ? pi_gpu_fit_samples(gpu, s->x, s->block_x, s->n, s->d, err) : PI_OK;
}
