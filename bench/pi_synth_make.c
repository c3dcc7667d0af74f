/* pi_synth_make.c - all rows on all threads, straight into the file; profile and predictor from what passes by. */
#include "config.h"

#include "bench/pi_synth.h"

#include "common/pi_alloc.h"
#include "common/pi_predictor.h"
#include "common/pi_profile.h"
#include "common/pi_progress.h"
#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define JOB_BYTES      ((uint64_t)2 << 20)
#define FC1_ROWS       16         /* of a job */
#define PROFILE_TOKENS (1u << 20) /* that the profile's counts are scaled to */
#define STREAM_SAMPLE  7
#define STREAM_TENSOR  0x80000000u /* plus its number */

/* Some rows of one tensor. */
struct job {
    uint32_t tensor, first, n;
    uint64_t bytes;
    uint32_t crc;
};

/* What a thread works in. */
struct lane {
    float *row, *tmp; /* (n_embd), or longer for long vectors */
    float *coef;      /* (rank) */
    float *truth;     /* (n_samples) pre-activations, of the gate */
    float *guess;     /* (n_samples) and as the predictor has them */
    uint8_t *block;   /* (largest job) */
    enum pi_code rc;
    struct pi_err err;
};

struct layer_count {
    atomic_ullong truth, guess, both;
};

struct maker {
    struct pi_synth_rows rows;
    struct pi_synth_tensors list;
    struct pi_gguf_writer *w;
    struct pi_lineage lineage;
    const struct pi_cpu *cpu;
    struct job *jobs; /* (n_jobs) */
    size_t n_jobs, cap_jobs;
    struct lane *lanes; /* (n_lanes) */
    uint32_t n_lanes;
    atomic_size_t next;
    atomic_bool failed;
    struct pi_progress progress;
    /* sampled tokens */
    float *x;           /* (n_embd, n_samples) embeddings as stored */
    float *hidden;      /* (n_layer, rank, n_samples) */
    uint16_t *residual; /* (n_layer, n_samples, n_embd) BF16 */
    uint8_t *mask;      /* (n_layer, n_samples, mask_bytes) */
    size_t mask_bytes;
    struct layer_count *counts; /* (n_layer) */
    /* predictor */
    uint64_t fc1_row, fc2_row; /* bytes */
    uint8_t *fc1;              /* (n_layer, rank) rows */
    uint8_t *fc2;              /* (n_layer, n_ff) rows */
    float *bias;               /* (n_layer, n_ff), opt */
};

/* ---- preparing ------------------------------------------------------------------------------ */

static enum pi_code cut_jobs(struct maker *m, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < m->list.n; i++) {
        const struct pi_synth_tensor *t = &m->list.t[i];
        uint32_t step = (uint32_t)(JOB_BYTES / t->row_bytes) / 8 * 8;

        if (step == 0)
            step = 8; /* whole bytes of masks */
        for (uint32_t at = 0; at < t->n_rows; at += step) {
            const uint32_t n = t->n_rows - at < step ? t->n_rows - at : step;

            PI_TRY(pi_grow_array(&m->jobs, &m->cap_jobs, m->n_jobs + 1, sizeof(*m->jobs), err));
            m->jobs[m->n_jobs++] =
                (struct job){.tensor = i, .first = at, .n = n, .bytes = n * t->row_bytes};
        }
    }
out:
    return rc;
}

static enum pi_code make_lanes(struct maker *m, uint32_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = &m->rows.spec;
    uint64_t n_row = s->n_embd, n_block = 0;

    for (size_t i = 0; i < m->n_jobs; i++) {
        const uint32_t n_cols = m->list.t[m->jobs[i].tensor].n_cols;

        n_row = n_cols > n_row ? n_cols : n_row;
        n_block = m->jobs[i].bytes > n_block ? m->jobs[i].bytes : n_block;
    }
    PI_ALLOC(m->lanes, n, err);
    m->n_lanes = n;
    for (uint32_t i = 0; i < n; i++) {
        struct lane *l = &m->lanes[i];

        PI_ALLOC_ALIGNED(l->row, n_row, err);
        PI_ALLOC_ALIGNED(l->tmp, n_row, err);
        PI_ALLOC_ALIGNED(l->coef, s->rank, err);
        PI_ALLOC_ALIGNED(l->truth, s->n_samples, err);
        PI_ALLOC_ALIGNED(l->guess, s->n_samples, err);
        PI_ALLOC_ALIGNED(l->block, n_block, err);
    }
out:
    return rc;
}

static enum pi_code make_room(struct maker *m, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = &m->rows.spec;
    const size_t n_layer = s->n_layer, n_samples = s->n_samples;

    m->mask_bytes = ((size_t)s->n_ff + 7) / 8;
    if (!pi_type_row_bytes(s->pred_type, s->n_embd, &m->fc1_row) ||
        !pi_type_row_bytes(s->pred_type, s->rank, &m->fc2_row))
        PI_FAIL(err, PI_E_USAGE, "a predictor of rank %u cannot be %s", (unsigned)s->rank,
                pi_type_name(s->pred_type));
    PI_ALLOC_ALIGNED(m->x, s->n_embd * n_samples, err);
    PI_ALLOC_ALIGNED(m->hidden, n_layer * s->rank * n_samples, err);
    PI_ALLOC(m->residual, n_layer * n_samples * s->n_embd, err);
    PI_ALLOC(m->mask, n_layer * n_samples * m->mask_bytes, err);
    PI_ALLOC(m->counts, n_layer, err);
    PI_ALLOC_ALIGNED(m->fc1, n_layer * s->rank * m->fc1_row, err);
    PI_ALLOC_ALIGNED(m->fc2, n_layer * s->n_ff * m->fc2_row, err);
    if (s->arch == PI_ARCH_OPT)
        PI_ALLOC_ALIGNED(m->bias, n_layer * s->n_ff, err);
out:
    return rc;
}

/* A table may lack what the scalar one has; pi_synth_make() asked that. */
static const struct pi_cpu_type *kernels(const struct pi_cpu *cpu, enum pi_type type)
{
    return cpu->type[type] != NULL ? cpu->type[type] : pi_cpu_get(PI_ISA_SCALAR)->type[type];
}

/* Rounds n elements to a type and back, the stored form staying in block. */
static void store(const struct maker *m, enum pi_type type, float *row, uint32_t n, void *block)
{
    kernels(m->cpu, type)->from_f32(row, block, n);
    kernels(m->cpu, type)->to_f32(block, row, n);
}

/* The tokens that profile and predictor are measured on: their embeddings, which dominate what every layer sees. */
static void sample_tokens(struct maker *m)
{
    const struct pi_synth_spec *s = &m->rows.spec;
    const uint64_t key = pi_synth_key(s->seed, STREAM_SAMPLE, 0);
    struct lane *l = &m->lanes[0];
    const size_t row = s->n_embd;

    for (uint32_t k = 0; k < s->n_samples; k++) {
        uint16_t *residual = m->residual + k * row;

        pi_synth_embedding(&m->rows, pi_synth_below(key, k, s->n_vocab), l->row, l->tmp);
        store(m, s->type, l->row, s->n_embd, l->block);
        for (uint32_t i = 0; i < s->n_embd; i++) {
            m->x[(size_t)i * s->n_samples + k] = l->row[i];
            residual[i] = pi_f32_to_bf16(l->row[i]);
        }
    }
    for (uint32_t i = 1; i < s->n_layer; i++)
        memcpy(m->residual + i * row * s->n_samples, m->residual,
               row * s->n_samples * sizeof(*m->residual));
}

/* ---- rows ----------------------------------------------------------------------------------- */

/* Rows of fc1, which come first: the samples' hidden layer is needed for the neurons. */
static void fc1_main(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct maker *m = ctx;
    const struct pi_synth_spec *s = &m->rows.spec;
    const size_t n = (size_t)s->n_layer * s->rank;
    struct lane *l = &m->lanes[thread];
    size_t at;

    (void)n_threads;
    while ((at = atomic_fetch_add(&m->next, FC1_ROWS)) < n)
        for (size_t i = at; i < at + FC1_ROWS && i < n; i++) {
            pi_synth_fc1(&m->rows, (uint32_t)(i / s->rank), (uint32_t)(i % s->rank), l->row,
                         l->tmp);
            store(m, s->pred_type, l->row, s->n_embd, m->fc1 + i * m->fc1_row);
            pi_synth_dots(l->row, m->x, s->n_embd, s->n_samples, m->hidden + i * s->n_samples);
        }
}

/* The samples in which a neuron fires, and in which the predictor says so. */
static void sample_neuron(struct maker *m, const struct lane *l, uint32_t layer, uint32_t i,
                          unsigned long long n[static 3])
{
    const uint32_t n_samples = m->rows.spec.n_samples;
    uint8_t *mask = m->mask + (size_t)layer * n_samples * m->mask_bytes + i / 8;

    for (uint32_t k = 0; k < n_samples; k++) {
        const bool fires = l->truth[k] > 0.0f, said = l->guess[k] >= 0.0f;

        mask[k * m->mask_bytes] |= (uint8_t)(fires << i % 8);
        n[0] += fires;
        n[1] += said;
        n[2] += fires && said;
    }
}

static void make_neurons(struct maker *m, struct lane *l, const struct job *j,
                         const struct pi_synth_tensor *t)
{
    const struct pi_synth_spec *s = &m->rows.spec;
    const float *hidden = m->hidden + (size_t)t->layer * s->rank * s->n_samples;
    unsigned long long n[3] = {0};

    for (uint32_t i = j->first; i < j->first + j->n; i++) {
        const size_t at = (size_t)t->layer * s->n_ff + i;
        const float bias = m->bias != NULL ? m->bias[at] : 0.0f;

        pi_synth_gate(&m->rows, t->layer, i, l->row, l->tmp);
        store(m, t->type, l->row, t->n_cols, l->block + (i - j->first) * t->row_bytes);
        for (uint32_t k = 0; k < s->n_samples; k++)
            l->truth[k] = l->guess[k] = bias;
        pi_synth_dots(l->row, m->x, s->n_embd, s->n_samples, l->truth);
        pi_synth_fc2(&m->rows, t->layer, l->row, l->coef);
        store(m, s->pred_type, l->coef, s->rank, m->fc2 + at * m->fc2_row);
        pi_synth_dots(l->coef, hidden, s->rank, s->n_samples, l->guess);
        sample_neuron(m, l, t->layer, i, n);
    }
    atomic_fetch_add(&m->counts[t->layer].truth, n[0]);
    atomic_fetch_add(&m->counts[t->layer].guess, n[1]);
    atomic_fetch_add(&m->counts[t->layer].both, n[2]);
}

static void random_row(const struct maker *m, uint32_t tensor, uint32_t row, float *out)
{
    const struct pi_synth_tensor *t = &m->list.t[tensor];

    pi_synth_normal(pi_synth_key(m->rows.spec.seed, STREAM_TENSOR + tensor, row), t->scale, out,
                    t->n_cols);
    for (uint32_t i = 0; t->mean != 0.0f && i < t->n_cols; i++)
        out[i] += t->mean;
}

static void make_rows(struct maker *m, struct lane *l, const struct job *j)
{
    const struct pi_synth_tensor *t = &m->list.t[j->tensor];

    if (t->fill == PI_SYNTH_GATE) {
        make_neurons(m, l, j, t);
        return;
    }
    for (uint32_t i = j->first; i < j->first + j->n; i++) {
        if (t->fill == PI_SYNTH_EMBEDDING)
            pi_synth_embedding(&m->rows, i, l->row, l->tmp);
        else
            random_row(m, j->tensor, i, l->row);
        kernels(m->cpu, t->type)
            ->from_f32(l->row, l->block + (i - j->first) * t->row_bytes, t->n_cols);
    }
}

static void tensors_main(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct maker *m = ctx;
    struct lane *l = &m->lanes[thread];
    size_t at;

    (void)n_threads;
    while (!atomic_load(&m->failed) && (at = atomic_fetch_add(&m->next, 1)) < m->n_jobs) {
        struct job *j = &m->jobs[at];

        make_rows(m, l, j);
        j->crc = (uint32_t)crc32_z(0, l->block, j->bytes);
        l->rc = pi_gguf_put(m->w, j->tensor, j->first * m->list.t[j->tensor].row_bytes, l->block,
                            j->bytes, &l->err);
        if (thread == 0)
            pi_progress_at(&m->progress, at);
        if (l->rc == PI_OK)
            l->rc = pi_interrupt_check(&l->err);
        if (l->rc != PI_OK)
            atomic_store(&m->failed, true);
    }
}

/* Biases of opt's neurons are a tensor of its own; the predictor has them too. */
static void copy_biases(struct maker *m)
{
    const size_t n_ff = m->rows.spec.n_ff;

    for (uint32_t i = 0; m->bias != NULL && i < m->list.n; i++) {
        const struct pi_synth_tensor *t = &m->list.t[i];

        if (strstr(t->name, "ffn_up.bias") != NULL)
            random_row(m, i, 0, m->bias + t->layer * n_ff);
    }
}

static enum pi_code make_tensors(struct maker *m, struct pi_pool *pool, bool progress,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    atomic_store(&m->next, 0);
    pi_pool_run(pool, fc1_main, m);
    PI_TRY(pi_interrupt_check(err));
    atomic_store(&m->next, 0);
    pi_progress_begin(&m->progress, "writing a synthetic model", m->n_jobs, progress);
    pi_pool_run(pool, tensors_main, m);
    pi_progress_end(&m->progress);
    for (uint32_t i = 0; i < m->n_lanes; i++)
        if (m->lanes[i].rc != PI_OK) {
            if (err != NULL)
                *err = m->lanes[i].err;
            return m->lanes[i].rc;
        }
    for (size_t i = 0; i < m->n_jobs;) {
        const struct job *j = &m->jobs[i];
        uLong crc = j->crc;

        for (i++; i < m->n_jobs && m->jobs[i].tensor == j->tensor; i++)
            crc = crc32_combine(crc, m->jobs[i].crc, (z_off_t)m->jobs[i].bytes);
        PI_TRY(pi_gguf_put_crc(m->w, j->tensor, (uint32_t)crc, err));
    }
out:
    return rc;
}

/* ---- artifacts ------------------------------------------------------------------------------ */

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 1.0;
}

static enum pi_code save_predictor(struct maker *m, const char *model_path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = &m->rows.spec;
    struct pi_predictor p = {
        .n_layer = s->n_layer, .n_ff = s->n_ff, .n_embd = s->n_embd, .lineage = m->lineage};
    const size_t n_ff = s->n_ff;
    char *path = pi_path_artifact(model_path, "predictor", err);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_ALLOC(p.layers, s->n_layer, err);
    for (size_t l = 0; l < s->n_layer; l++) {
        const double truth = (double)m->counts[l].truth, both = (double)m->counts[l].both,
                     guess = (double)m->counts[l].guess;

        p.layers[l] = (struct pi_predictor_layer){
            .width = s->rank,
            .input = PI_PRED_IN_FFN_NORMED,
            .recall = (float)ratio(both, truth),
            .precision = (float)ratio(both, guess),
            .density = (float)(guess / s->n_samples / s->n_ff),
            .fc1 = {s->pred_type, s->rank, s->n_embd, m->fc1_row,
                    m->fc1 + l * s->rank * m->fc1_row},
            .fc2 = {s->pred_type, s->n_ff, s->rank, m->fc2_row, m->fc2 + l * n_ff * m->fc2_row},
            .bias = m->bias != NULL ? m->bias + l * n_ff : NULL,
        };
    }
    PI_TRY(pi_predictor_save(path, &p, err));
out:
    free(p.layers);
    free(path);
    return rc;
}

/* What an active neuron adds: the mean of ReLU over a normal around its bias, times what an up row gives (mean |N(0, 1)|), times the down row's norm. */
static float contribution(const struct maker *m, double z)
{
    const struct pi_synth_spec *s = &m->rows.spec;
    const double relu = exp(-0.5 * z * z) / sqrt(2.0 * M_PI) + z * 0.5 * erfc(-z * M_SQRT1_2);
    const double up = s->arch == PI_ARCH_OPT ? 1.0 : sqrt(2.0 / M_PI);
    const double row =
        m->rows.scale.step / sqrt(0.8 * (double)s->density * s->n_ff) * sqrt(s->n_embd);

    return (float)(relu * up * row);
}

static enum pi_code save_profile(struct maker *m, const char *model_path, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_synth_spec *s = &m->rows.spec;
    struct pi_profile p = {.n_layer = s->n_layer,
                           .n_ff = s->n_ff,
                           .n_embd = s->n_embd,
                           .n_tokens = PROFILE_TOKENS,
                           .n_samples = s->n_samples,
                           .lineage = m->lineage};
    const struct pi_profile_samples_in samples = {m->residual, m->mask, NULL};
    const size_t n = (size_t)s->n_layer * s->n_ff;
    char *path = pi_path_artifact(model_path, "profile", err);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_ALLOC(p.count, n, err);
    PI_ALLOC(p.contribution, n, err);
    PI_ALLOC(p.position, s->n_samples, err);
    for (size_t i = 0; i < n; i++) {
        const uint32_t heat = m->rows.heat[i];

        p.count[i] = (uint64_t)llround((double)m->rows.law->rate[heat] * PROFILE_TOKENS);
        p.contribution[i] = contribution(m, (double)m->rows.law->bias[heat]);
    }
    for (uint32_t i = 0; i < s->n_samples; i++)
        p.position[i] = (int64_t)i * (PROFILE_TOKENS / s->n_samples);
    PI_TRY(pi_profile_save(path, &p, &samples, s->n_ctx, "synthetic: rates by construction", err));
out:
    free(p.count);
    free(p.contribution);
    free(p.position);
    free(path);
    return rc;
}

static void sum_up(const struct maker *m, struct pi_synth_result *out)
{
    const struct pi_synth_spec *s = &m->rows.spec;
    double truth = 0, guess = 0, both = 0;

    for (uint32_t l = 0; l < s->n_layer; l++) {
        truth += (double)m->counts[l].truth;
        guess += (double)m->counts[l].guess;
        both += (double)m->counts[l].both;
    }
    *out = (struct pi_synth_result){
        .density = truth / s->n_samples / s->n_ff / s->n_layer,
        .recall = ratio(both, truth),
        .precision = ratio(both, guess),
        .predictor_bytes = s->n_layer * (s->rank * m->fc1_row + s->n_ff * m->fc2_row),
    };
    for (size_t i = 0; i < m->n_jobs; i++)
        out->model_bytes += m->jobs[i].bytes;
}

static void maker_free(struct maker *m)
{
    for (uint32_t i = 0; m->lanes != NULL && i < m->n_lanes; i++) {
        struct lane *l = &m->lanes[i];

        free(l->row);
        free(l->tmp);
        free(l->coef);
        free(l->truth);
        free(l->guess);
        free(l->block);
    }
    free(m->lanes);
    free(m->jobs);
    free(m->list.t);
    free(m->x);
    free(m->hidden);
    free(m->residual);
    free(m->mask);
    free(m->counts);
    free(m->fc1);
    free(m->fc2);
    free(m->bias);
    pi_gguf_abort(m->w);
    pi_synth_rows_free(&m->rows);
}

enum pi_code pi_synth_make(const struct pi_synth_spec *s, const struct pi_synth_law *law,
                           const char *path, struct pi_pool *pool, bool progress,
                           struct pi_synth_result *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct maker m = {0};
    struct pi_gguf_writer *done;

    PI_TRY(pi_cpu_select(&m.cpu, err));
    if (pi_cpu_get(PI_ISA_SCALAR)->type[s->type] == NULL ||
        kernels(m.cpu, s->type)->from_f32 == NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "this build cannot write %s", pi_type_name(s->type));
    PI_TRY(pi_synth_rows_init(s, law, &m.rows, err));
    PI_TRY(pi_synth_list(&m.rows, &m.list, err));
    PI_TRY(cut_jobs(&m, err));
    PI_TRY(make_lanes(&m, pi_pool_size(pool), err));
    PI_TRY(make_room(&m, err));
    PI_TRY(pi_synth_begin(s, &m.list, path, &m.w, &m.lineage, err));
    sample_tokens(&m);
    copy_biases(&m);
    PI_TRY(make_tensors(&m, pool, progress, err));
    done = m.w;
    m.w = NULL; /* commit frees it in every case */
    PI_TRY(pi_gguf_commit(done, err));
    PI_TRY(save_predictor(&m, path, err));
    PI_TRY(save_profile(&m, path, err));
    sum_up(&m, out);
out:
    maker_free(&m);
    return rc;
}
