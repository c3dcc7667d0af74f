#include "config.h"

#include "profiler/pi_collect.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "common/pi_size.h"
#include "profiler/pi_random.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BATCH 512 /* tokens of one prompt chunk */
#define NEURON_CHUNK \
    64 /* neurons a thread counts at a time; a multiple of 8: masks are written in bytes */

/* ---- the profile's arrays ---- */

uint64_t pi_collect_sample_bytes(const struct pi_shape *s)
{
    return (uint64_t)s->n_layer *
           ((s->parallel ? 4 : 2) * (uint64_t)s->n_embd + ((uint64_t)s->n_ff + 7) / 8);
}

enum pi_code pi_collected_alloc(struct pi_collected *c, uint32_t n_layer, uint32_t n_ff,
                                uint32_t n_embd, uint64_t n_samples, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t n_neurons = 0, n_residual = 0, n_mask = 0;

    if (!pi_size_mul(n_layer, n_ff, &n_neurons) ||
        !pi_size_mul((uint64_t)n_layer * n_embd, n_samples, &n_residual) ||
        !pi_size_mul(n_layer * (((uint64_t)n_ff + 7) / 8), n_samples, &n_mask))
        return pi_err_set(err, PI_E_NOMEM, "%llu samples of %u layers do not fit into memory",
                          (unsigned long long)n_samples, n_layer);
    c->p.n_layer = n_layer;
    c->p.n_ff = n_ff;
    c->p.n_embd = n_embd;
    c->p.n_samples = n_samples;
    PI_ALLOC(c->p.count, n_neurons, err);
    PI_ALLOC(c->p.contribution, n_neurons, err);
    PI_ALLOC(c->p.position, n_samples, err);
    PI_ALLOC(c->residual, n_residual, err);
    if (c->p.has_input)
        PI_ALLOC(c->input, n_residual, err);
    PI_ALLOC(c->mask, n_mask, err);
out:
    return rc;
}

void pi_collected_free(struct pi_collected *c)
{
    pi_profile_free(&c->p);
    free(c->residual);
    free(c->input);
    free(c->mask);
    memset(c, 0, sizeof(*c));
}

void pi_collect_choose(uint64_t total, uint64_t n, uint64_t seed, int64_t *out)
{
    struct pi_random r = {seed};
    uint64_t k = 0;

    for (uint64_t i = 0; k < n; i++)
        if (pi_random_below(&r, total - i) < n - k)
            out[k++] = (int64_t)i;
}

/* ---- watching a run ---- */

struct collector {
    const struct pi_model *m;
    struct pi_pool *pool;
    struct pi_collected *c;
    double *sum;   /* (n_layer, n_ff) of |what the down projection is given| */
    uint64_t fed;  /* tokens before the current call */
    uint64_t next; /* first sample at or after fed */
};

/* One call of the observer. */
struct seen {
    struct collector *k;
    uint32_t layer, n_tok;
    const float *h, *prod;
};

/* Samples [begin, end) of the collector fall into the next n_tok tokens. */
static void samples_within(const struct collector *k, uint32_t n_tok, uint64_t *begin,
                           uint64_t *end)
{
    const struct pi_profile *p = &k->c->p;

    *begin = *end = k->next;
    while (*end < p->n_samples && (uint64_t)p->position[*end] < k->fed + n_tok)
        ++*end;
}

static void count_neurons(void *ctx, size_t begin, size_t end)
{
    const struct seen *s = ctx;
    const struct pi_profile *p = &s->k->c->p;
    const size_t n_ff = p->n_ff;
    uint64_t *count = p->count + s->layer * n_ff;
    double *sum = s->k->sum + s->layer * n_ff;

    for (uint32_t t = 0; t < s->n_tok; t++) {
        const float *h = s->h + t * n_ff, *prod = s->prod + t * n_ff;

        for (size_t i = begin; i < end; i++) {
            count[i] += h[i] != 0.0f;
            sum[i] += (double)fabsf(prod[i]);
        }
    }
}

static void mask_neurons(void *ctx, size_t begin, size_t end)
{
    const struct seen *s = ctx;
    const struct pi_profile *p = &s->k->c->p;
    const size_t n_ff = p->n_ff, mask_bytes = (n_ff + 7) / 8;
    uint64_t first, last;

    samples_within(s->k, s->n_tok, &first, &last);
    for (uint64_t j = first; j < last; j++) {
        const float *h = s->h + ((uint64_t)p->position[j] - s->k->fed) * n_ff;
        uint8_t *mask = s->k->c->mask + (s->layer * p->n_samples + j) * mask_bytes;

        for (size_t i = begin; i < end; i++)
            mask[i / 8] = (uint8_t)(mask[i / 8] | (unsigned)(h[i] != 0.0f) << i % 8);
    }
}

/* x (n_tok, n_embd) of the sampled tokens to a layer's part of to. */
static enum pi_code keep_vectors(const struct collector *k, uint32_t layer, uint32_t n_tok,
                                 const float *x, uint16_t *to, struct pi_err *err)
{
    const struct pi_profile *p = &k->c->p;
    const size_t d = p->n_embd;
    uint64_t first, last;

    samples_within(k, n_tok, &first, &last);
    for (uint64_t j = first; j < last; j++) {
        const float *r = x + ((uint64_t)p->position[j] - k->fed) * d;
        uint16_t *out = to + (layer * p->n_samples + j) * d;

        for (size_t i = 0; i < d; i++) {
            out[i] = pi_f32_to_bf16(r[i]);
            if (!isfinite(pi_bf16_to_f32(out[i])))
                return pi_err_set(
                    err, PI_E_SELFCHECK,
                    "layer %u, token %lld: the residual is not finite (broken weights?)", layer,
                    (long long)p->position[j]);
        }
    }
    return PI_OK;
}

static enum pi_code observe(void *ctx, uint32_t layer, uint32_t n_tok, const float *residual,
                            const float *input, const float *normed, const float *h,
                            const float *prod, struct pi_err *err)
{
    struct collector *k = ctx;
    /* what is zero behind an activated up fires as little as what is zero behind the gate */
    struct seen s = {k, layer, n_tok, k->m->shape.act_up ? prod : h, prod};
    enum pi_code rc;

    (void)normed;
    pi_pool_for(k->pool, k->c->p.n_ff, NEURON_CHUNK, count_neurons, &s);
    pi_pool_for(k->pool, k->c->p.n_ff, NEURON_CHUNK, mask_neurons, &s);
    rc = keep_vectors(k, layer, n_tok, residual, k->c->residual, err);
    if (rc == PI_OK && k->c->input != NULL)
        rc = keep_vectors(k, layer, n_tok, input, k->c->input, err);
    return rc;
}

/* ---- the run ---- */

static enum pi_code feed_window(struct pi_engine *e, struct collector *k, const int32_t *ids,
                                uint32_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    int32_t pos[BATCH];
    const bool want[BATCH] = {false};

    pi_engine_truncate(e, 0, 0);
    for (uint32_t i = 0; i < n; i += BATCH) {
        const uint32_t n_tok = n - i < BATCH ? n - i : BATCH;
        const struct pi_batch b = {.n_tok = n_tok, .token = ids + i, .pos = pos, .want = want};
        uint64_t first, last;

        for (uint32_t t = 0; t < n_tok; t++)
            pos[t] = (int32_t)(i + t);
        PI_TRY(pi_engine_run(e, PI_PHASE_PROMPT, &b, NULL, err));
        samples_within(k, n_tok, &first, &last);
        k->next = last;
        k->fed += n_tok;
    }
out:
    return rc;
}

static enum pi_code feed_all(struct pi_engine *e, struct collector *k, const struct pi_windows *w,
                             uint64_t n_tokens, bool progress, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_progress pr;

    pi_progress_begin(&pr, "profiling tokens", n_tokens, progress);
    for (size_t i = 0; i < w->n; i++) {
        PI_TRY(pi_interrupt_check(err));
        PI_TRY(feed_window(e, k, w->tokens.ids + w->w[i].begin, w->w[i].n, err));
        pi_progress_at(&pr, k->fed);
    }
out:
    pi_progress_end(&pr);
    return rc;
}

/* norm_out (n_ff): length of each neuron's down projection. */
static enum pi_code down_norms(const struct pi_layer_weights *w, const struct pi_cpu *cpu,
                               uint32_t n_ff, double *norm_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_mat *m = w->down_t.data != NULL ? &w->down_t : &w->down;
    float *row = NULL;

    PI_ALLOC(row, m->n_cols, err);
    memset(norm_out, 0, n_ff * sizeof(*norm_out));
    for (uint32_t r = 0; r < m->n_rows; r++) {
        cpu->type[m->type]->to_f32(pi_mat_row(m, r), row, m->n_cols);
        for (uint32_t i = 0; i < m->n_cols; i++)
            norm_out[m == &w->down_t ? r : i] += (double)row[i] * (double)row[i];
    }
    for (uint32_t i = 0; i < n_ff; i++)
        norm_out[i] = sqrt(norm_out[i]);
out:
    free(row);
    return rc;
}

/* contribution = mean of |what down is given| x |down row| */
static enum pi_code finish_contributions(const struct collector *k, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_profile *p = &k->c->p;
    const struct pi_cpu *cpu = NULL;
    double *norm = NULL;

    PI_TRY(pi_cpu_select(&cpu, err));
    PI_ALLOC(norm, p->n_ff, err);
    for (uint32_t l = 0; l < p->n_layer; l++) {
        const size_t at = (size_t)l * p->n_ff;

        PI_TRY(down_norms(&k->m->layers[l], cpu, p->n_ff, norm, err));
        for (uint32_t i = 0; i < p->n_ff; i++) {
            const double c = k->sum[at + i] * norm[i] / (double)p->n_tokens;

            if (!(c < 1e38))
                PI_FAIL(err, PI_E_SELFCHECK,
                        "layer %u, neuron %u: its outputs are not finite (broken weights?)", l, i);
            p->contribution[at + i] = (float)c;
        }
    }
out:
    free(norm);
    return rc;
}

static enum pi_code count_tokens(const struct pi_windows *w, uint64_t *n_out, struct pi_err *err)
{
    uint64_t n = 0;

    for (size_t i = 0; i < w->n; i++)
        n += w->w[i].n;
    *n_out = n;
    return n > 0 ? PI_OK : pi_err_set(err, PI_E_RANGE, "the data holds no text to profile");
}

static enum pi_code check_activation(const struct pi_model *m, struct pi_err *err)
{
    if (pi_activation_has_zeros(m->shape.act))
        return PI_OK;
    return pi_err_set(
        err, PI_E_UNSUPPORTED,
        "%s: the activation %s is never exactly zero, so that no neuron is ever inactive: there is "
        "nothing to count (a threshold in the file, or --hidden-act, says otherwise)",
        m->file.map.path, pi_activation_name(m->shape.act));
}

uint32_t pi_collect_batch(uint32_t window)
{
    return window < BATCH ? window : BATCH;
}

enum pi_code pi_collect(struct pi_model *m, const struct pi_windows *w, struct pi_pool *pool,
                        const struct pi_collect_options *o, struct pi_collected *out,
                        struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_collected c = {0};
    struct collector k = {.m = m, .pool = pool, .c = &c};
    struct pi_engine *e = NULL;
    const struct pi_observer obs = {&k, observe};
    const struct pi_shape *sh = &m->shape;
    const struct pi_engine_options eo = {.mode = PI_MODE_DENSE,
                                         .n_ctx = o->window,
                                         .n_seq = 1,
                                         .n_batch = pi_collect_batch(o->window),
                                         .kv_type = PI_TYPE_F32,
                                         .on_gpu = o->place != NULL,
                                         .gpu = o->gpu,
                                         .f32_gemm = true};
    uint64_t n = 0;

    PI_TRY(check_activation(m, err));
    PI_TRY(count_tokens(w, &n, err));
    c.p.has_input = sh->parallel;
    PI_TRY(pi_collected_alloc(&c, sh->n_layer, sh->n_ff, sh->n_embd,
                              o->n_samples < n ? o->n_samples : n, err));
    PI_ALLOC(k.sum, (size_t)sh->n_layer * sh->n_ff, err);
    c.p.n_tokens = n;
    c.p.lineage = m->lineage;
    pi_collect_choose(n, c.p.n_samples, o->seed, c.p.position);
    PI_TRY(pi_engine_create(m, NULL, o->place, pool, &eo, &e, err));
    pi_engine_observe(e, &obs);
    PI_TRY(feed_all(e, &k, w, n, o->progress, err));
    PI_TRY(finish_contributions(&k, err));
    *out = c;
    memset(&c, 0, sizeof(c));
out:
    pi_engine_destroy(e);
    pi_collected_free(&c);
    free(k.sum);
    return rc;
}
