#include "config.h"

#include "profiler/pi_merge.h"

#include "common/pi_alloc.h"
#include "runtime/cpu/pi_cpu.h"

#include <stdlib.h>
#include <string.h>

enum pi_code pi_merge_load(const char *path, struct pi_collected *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_collected c = {0};
    struct pi_profile p = {0};
    float *residual = NULL;
    uint8_t *mask = NULL;
    size_t n, n_mask;

    PI_TRY(pi_profile_load(path, &p, err));
    c.p.has_input = p.has_input;
    PI_TRY(pi_collected_alloc(&c, p.n_layer, p.n_ff, p.n_embd, p.n_samples, err));
    c.p.n_tokens = p.n_tokens;
    c.p.lineage = p.lineage;
    n = (size_t)p.n_samples * p.n_embd; /* the product fitted when c was allocated */
    n_mask = (size_t)p.n_samples * (((size_t)p.n_ff + 7) / 8);
    memcpy(c.p.count, p.count, (size_t)p.n_layer * p.n_ff * sizeof(*p.count));
    memcpy(c.p.contribution, p.contribution, (size_t)p.n_layer * p.n_ff * sizeof(float));
    for (uint32_t l = 0; p.n_samples > 0 && l < p.n_layer; l++) {
        memcpy(c.p.position, p.position, (size_t)p.n_samples * sizeof(*p.position));
        PI_TRY(pi_profile_samples(&p, l, &residual, &mask, err));
        for (size_t i = 0; i < n; i++) /* exact: the values were BF16 */
            c.residual[l * n + i] = pi_f32_to_bf16(residual[i]);
        memcpy(c.mask + l * n_mask, mask, n_mask);
        free(residual);
        residual = NULL;
        if (p.has_input)
            PI_TRY(pi_profile_inputs(&p, l, &residual, err));
        for (size_t i = 0; p.has_input && i < n; i++)
            c.input[l * n + i] = pi_f32_to_bf16(residual[i]);
        free(residual);
        free(mask);
        residual = NULL;
        mask = NULL;
    }
    *out = c;
    memset(&c, 0, sizeof(c));
out:
    free(residual);
    free(mask);
    pi_profile_free(&p);
    pi_collected_free(&c);
    return rc;
}

static enum pi_code check_same(const struct pi_collected *a, const struct pi_collected *b,
                               struct pi_err *err)
{
    if (a->p.n_layer == b->p.n_layer && a->p.n_ff == b->p.n_ff && a->p.n_embd == b->p.n_embd &&
        (a->p.has_input == b->p.has_input || a->p.n_samples == 0 || b->p.n_samples == 0) &&
        strcmp(a->p.lineage.hex, b->p.lineage.hex) == 0)
        return PI_OK;
    return pi_err_set(err, PI_E_MISMATCH,
                      "profiles of different models (%.12s and %.12s) can not be merged",
                      a->p.lineage.hex, b->p.lineage.hex);
}

/* The samples of one source that go into a merged profile. */
struct pick {
    const struct pi_collected *from;
    int64_t *index; /* (n) ascending; owned */
    uint64_t n;
    int64_t shift; /* of positions */
};

static enum pi_code make_pick(struct pick *k, uint64_t seed, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(k->index, k->n, err);
    pi_collect_choose(k->from->p.n_samples, k->n, seed, k->index);
out:
    return rc;
}

static void copy_samples(const struct pick *k, struct pi_collected *to, uint64_t at)
{
    const struct pi_profile *f = &k->from->p, *t = &to->p;
    const size_t d = f->n_embd, mask_bytes = ((size_t)f->n_ff + 7) / 8;

    for (uint64_t j = 0; j < k->n; j++) {
        const uint64_t i = (uint64_t)k->index[j];

        to->p.position[at + j] = f->position[i] + k->shift;
        for (size_t l = 0; l < f->n_layer; l++) {
            memcpy(to->residual + (l * t->n_samples + at + j) * d,
                   k->from->residual + (l * f->n_samples + i) * d, d * sizeof(*to->residual));
            if (k->from->input != NULL && to->input != NULL)
                memcpy(to->input + (l * t->n_samples + at + j) * d,
                       k->from->input + (l * f->n_samples + i) * d, d * sizeof(*to->input));
            memcpy(to->mask + (l * t->n_samples + at + j) * mask_bytes,
                   k->from->mask + (l * f->n_samples + i) * mask_bytes, mask_bytes);
        }
    }
}

static void add_counts(const struct pi_profile *a, const struct pi_profile *b,
                       struct pi_profile *out)
{
    const size_t n = (size_t)a->n_layer * a->n_ff;
    const double total = (double)(a->n_tokens + b->n_tokens);

    out->n_tokens = a->n_tokens + b->n_tokens;
    out->lineage = a->lineage;
    for (size_t i = 0; i < n; i++) {
        out->count[i] = a->count[i] + b->count[i];
        out->contribution[i] = (float)(((double)a->contribution[i] * (double)a->n_tokens +
                                        (double)b->contribution[i] * (double)b->n_tokens) /
                                       total);
    }
}

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

enum pi_code pi_merge(struct pi_collected *a, const struct pi_collected *b, uint64_t n_samples,
                      uint64_t seed, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_collected c = {0};
    struct pick from_a = {.from = a, .n = a->p.n_samples};
    struct pick from_b = {.from = b, .n = b->p.n_samples, .shift = (int64_t)a->p.n_tokens};

    PI_TRY(check_same(a, b, err));
    if (b->p.n_tokens > (uint64_t)INT64_MAX - a->p.n_tokens)
        PI_FAIL(err, PI_E_RANGE, "the merged profile would count more than 2^63 tokens");
    if (from_a.n + from_b.n > n_samples) {
        const double share = (double)a->p.n_tokens / (double)(a->p.n_tokens + b->p.n_tokens);

        from_a.n = min_u64(from_a.n, (uint64_t)(share * (double)n_samples + 0.5));
        from_b.n = min_u64(from_b.n, n_samples - from_a.n);
        from_a.n = min_u64(a->p.n_samples, n_samples - from_b.n);
    }
    PI_TRY(make_pick(&from_a, seed, err));
    PI_TRY(make_pick(&from_b, ~seed, err));
    c.p.has_input = a->p.has_input || b->p.has_input;
    PI_TRY(pi_collected_alloc(&c, a->p.n_layer, a->p.n_ff, a->p.n_embd, from_a.n + from_b.n, err));
    add_counts(&a->p, &b->p, &c.p);
    copy_samples(&from_a, &c, 0);
    copy_samples(&from_b, &c, from_a.n);
    pi_collected_free(a);
    *a = c;
    memset(&c, 0, sizeof(c));
out:
    free(from_a.index);
    free(from_b.index);
    pi_collected_free(&c);
    return rc;
}
