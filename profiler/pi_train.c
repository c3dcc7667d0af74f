#include "config.h"

#include "profiler/pi_train.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "profiler/pi_census.h"
#include "profiler/pi_fit.h"
#include "profiler/pi_net.h"
#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define TRIAL_PART 4 /* a trial takes 1 / TRIAL_PART of the steps */
#define MAX_TRIALS 8
#define STEP_UP    1.45 /* from width to width */

/* ---- one layer ---- */

struct layer_job {
    const struct pi_trainset *s;
    const struct pi_train_layer_in *in;
    const struct pi_train_options *o;
    struct pi_pool *pool;
    const struct pi_cpu_type *kernels; /* of the stored type */
    struct pi_svd svd;
};

void pi_trained_layer_free(struct pi_trained_layer *l)
{
    union {
        const void *c;
        void *v;
    } fc1 = {l->fc1.data}, fc2 = {l->fc2.data}; /* owned here, borrowed in a pi_mat */

    free(fc1.v);
    free(fc2.v);
    free(l->bias);
    memset(l, 0, sizeof(*l));
}

static double params_of(const struct layer_job *j, uint32_t r)
{
    return (double)r * ((double)j->s->d + j->s->n_ff) + j->s->n_ff;
}

/* Bytes per token over exact mode's, of a predictor of width r that calls `found.density` of the neurons. */
static double read_share(const struct layer_job *j, uint32_t r, const struct pi_found *found)
{
    const double n = j->s->n_ff;
    const double active = found->active * n * (j->in->up_row + j->in->down_row);
    uint64_t row1 = 0, row2 = 0;

    if (!pi_type_row_bytes(j->o->type, j->s->d, &row1) || !pi_type_row_bytes(j->o->type, r, &row2))
        return 1e9;
    return ((double)row1 * r + (double)row2 * n + 4 * n + found->density * n * j->in->gate_row +
            active) /
           (n * j->in->gate_row + active);
}

/* Rounds a matrix to the stored type and back. stored (n_rows rows) may be NULL. */
static void round_matrix(const struct layer_job *j, float *w, uint32_t n_rows, uint32_t n_cols,
                         size_t row_bytes, uint8_t *stored, uint8_t *row)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        uint8_t *to = stored != NULL ? stored + i * row_bytes : row;

        j->kernels->from_f32(w + (size_t)i * n_cols, to, n_cols);
        j->kernels->to_f32(to, w + (size_t)i * n_cols, n_cols);
    }
}

static enum pi_code store_matrix(const struct layer_job *j, float *w, uint32_t n_rows,
                                 uint32_t n_cols, struct pi_mat *out, struct pi_err *err)
{
    uint64_t row_bytes = 0;
    uint8_t *data;

    if (!pi_type_row_bytes(j->o->type, n_cols, &row_bytes))
        return pi_err_set(err, PI_E_RANGE, "rows of %u weights can not be stored as %s", n_cols,
                          pi_type_name(j->o->type));
    data = pi_calloc_array((size_t)row_bytes * n_rows, 1, err);
    if (data == NULL)
        return PI_E_NOMEM;
    round_matrix(j, w, n_rows, n_cols, row_bytes, data, NULL);
    *out = (struct pi_mat){.type = j->o->type,
                           .n_rows = n_rows,
                           .n_cols = n_cols,
                           .row_bytes = row_bytes,
                           .data = data};
    return PI_OK;
}

/* A start of width r, trained. */
static enum pi_code make_net(const struct layer_job *j, uint32_t r, uint32_t steps,
                             struct pi_net *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_fit_options fo = {.steps = steps, .batch = PI_FIT_BATCH, .seed = j->in->seed};
    struct pi_net net = {0};

    PI_TRY(pi_svd_net(&j->svd, r, j->o->relu, &net, err));
    PI_TRY(pi_fit(&net, j->s, j->pool, &fo, err));
    *out = net;
    memset(&net, 0, sizeof(net));
out:
    pi_net_free(&net);
    return rc;
}

/* Trains width r briefly; *read_out: what it would read, on the calibration part. */
static enum pi_code try_width(const struct layer_job *j, uint32_t r, double *read_out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_net net = {0};
    struct pi_found found = {0};
    float threshold = 0;

    PI_TRY(make_net(j, r, (j->o->steps + TRIAL_PART - 1) / TRIAL_PART, &net, err));
    PI_TRY(pi_calibrate(&net, j->s, j->pool, j->o->recall, 1.0, &threshold, &found, err));
    *read_out = read_share(j, r, &found);
out:
    pi_net_free(&net);
    return rc;
}

/* Widths are whole blocks of the stored type, and whole cache lines of F16. */
static uint32_t quantum(const struct layer_job *j)
{
    const uint32_t block = pi_type_info(j->o->type)->block_elems;

    return block > 1 ? block : j->s->d >= 512 ? 32 : 8;
}

static uint32_t round_width(const struct layer_job *j, double r)
{
    const uint32_t q = quantum(j);
    const double most =
        fmin((double)j->s->d, (j->in->max_params - j->s->n_ff) / ((double)j->s->d + j->s->n_ff));
    double w = fmax(1.0, floor(r / q + 0.5)) * q;

    if (w > most)
        w = floor(fmax(most, 0.0) / q) * q;
    return (uint32_t)w;
}

/* A tenth of the inputs at 5 % density and 50 % hot neurons; half of it at a quarter of either. */
static uint32_t baseline_width(const struct layer_job *j)
{
    const double density = pi_trainset_density(j->s, PI_PART_TRAIN);
    const double scale = sqrt(density / 0.05 * (j->in->hot80 > 0 ? j->in->hot80 / 0.5 : 1.0));

    return round_width(j, 0.1 * j->s->d * fmin(2.0, fmax(0.25, scale)));
}

static uint32_t neighbour(const struct layer_job *j, uint32_t r, bool up)
{
    const uint32_t q = quantum(j);
    uint32_t w = round_width(j, up ? r * STEP_UP : r / STEP_UP);

    if (w == r)
        w = up ? round_width(j, (double)r + q) : r > q ? r - q : r;
    return w;
}

/* Walks from *r downhill in one direction. */
static enum pi_code walk(const struct layer_job *j, bool up, uint32_t *r, double *read,
                         uint32_t *trials, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    while (*trials < MAX_TRIALS) {
        const uint32_t w = neighbour(j, *r, up);
        double next = 0;

        if (w == *r)
            break;
        PI_TRY(try_width(j, w, &next, err));
        ++*trials;
        if (next >= *read)
            break;
        *r = w;
        *read = next;
    }
out:
    return rc;
}

/* The width that reads least; 0 when none is allowed. */
static enum pi_code search_width(const struct layer_job *j, uint32_t *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint32_t start = baseline_width(j);
    uint32_t r = start, trials = 1;
    double read = 0;

    *out = start;
    if (start == 0)
        return PI_OK;
    PI_TRY(try_width(j, start, &read, err));
    PI_TRY(walk(j, false, &r, &read, &trials, err));
    if (r == start)
        PI_TRY(walk(j, true, &r, &read, &trials, err));
    *out = r;
out:
    return rc;
}

/* Full training of one width, its threshold with the weights as stored, its figures on the test part. Where those miss the target the margin is doubled, once. */
static enum pi_code finish_width(const struct layer_job *j, uint32_t r, struct pi_trained_layer *l,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_net net = {0};
    struct pi_found on_calibration;

    PI_TRY(make_net(j, r, j->o->steps, &net, err));
    PI_TRY(store_matrix(j, net.fc1, r, j->s->d, &l->fc1, err));
    PI_TRY(store_matrix(j, net.fc2, j->s->n_ff, r, &l->fc2, err));
    for (int scale = 1; scale <= 2; scale++) {
        PI_TRY(pi_calibrate(&net, j->s, j->pool, j->o->recall, scale, &l->threshold,
                            &on_calibration, err));
        PI_TRY(pi_calibrate_count(&net, j->s, PI_PART_TEST, j->pool, l->threshold, &l->found, err));
        if (l->found.recall >= j->o->recall)
            break;
    }
    l->bias = net.bias;
    net.bias = NULL;
    l->width = r;
    l->read = read_share(j, r, &l->found);
    l->params = params_of(j, r);
    l->kept = l->found.recall >= j->o->recall && l->read < 1.0;
out:
    pi_net_free(&net);
    return rc;
}

static enum pi_code init_job(struct layer_job *j, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;

    PI_TRY(pi_cpu_select(&cpu, err));
    j->kernels = cpu->type[j->o->type];
    if (j->kernels == NULL || j->kernels->from_f32 == NULL)
        PI_FAIL(err, PI_E_UNSUPPORTED, "predictors can not be stored as %s",
                pi_type_name(j->o->type));
    PI_TRY(pi_svd_make(j->s, j->in->gate, j->in->gate_bias, j->pool, &j->svd, err));
out:
    return rc;
}

enum pi_code pi_train_layer(const struct pi_trainset *s, const struct pi_train_layer_in *in,
                            const struct pi_train_options *o, struct pi_pool *pool,
                            struct pi_trained_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct layer_job j = {.s = s, .in = in, .o = o, .pool = pool};
    struct pi_trained_layer l = {.read = 1.0};
    const double t = pi_now();
    uint32_t r = 0;

    PI_TRY(init_job(&j, err));
    PI_TRY(search_width(&j, &r, err));
    if (r > 0)
        PI_TRY(finish_width(&j, r, &l, err));
    l.seconds = pi_now() - t;
    *out = l;
    memset(&l, 0, sizeof(l));
out:
    pi_trained_layer_free(&l);
    pi_svd_free(&j.svd);
    return rc;
}

/* ---- all layers ---- */

double pi_train_model_params(const struct pi_model *m)
{
    double sum = 0;

    for (uint64_t i = 0; i < m->file.n_tensors; i++) {
        const struct pi_gguf_tensor *t = &m->file.tensors[i];
        double n = 1;

        for (uint32_t k = 0; k < t->n_dims; k++)
            n *= (double)t->ne[k];
        sum += n;
    }
    return sum;
}

static const struct pi_mat *first_mat(const struct pi_model *m, uint32_t layer)
{
    return m->shape.gated ? &m->layers[layer].gate : &m->layers[layer].up;
}

enum pi_type pi_train_default_type(const struct pi_model *m)
{
    return pi_type_info(first_mat(m, 0)->type)->quantised && m->shape.n_embd % 32 == 0
               ? PI_TYPE_Q8_0
               : PI_TYPE_F16;
}

static enum pi_code gate_f32(const struct pi_mat *w, float **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    float *gate = NULL;

    PI_TRY(pi_cpu_select(&cpu, err));
    PI_ALLOC_ALIGNED(gate, (size_t)w->n_rows * w->n_cols, err);
    for (uint32_t i = 0; i < w->n_rows; i++)
        cpu->type[w->type]->to_f32(pi_mat_row(w, i), gate + (size_t)i * w->n_cols, w->n_cols);
    *out = gate;
out:
    return rc;
}

static enum pi_code train_one(const struct pi_model *m, const struct pi_profile *p,
                              const struct pi_train_options *o, struct pi_pool *pool,
                              uint32_t layer, double hot80, double max_params,
                              struct pi_trained_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_layer_weights *w = &m->layers[layer];
    struct pi_trainset s = {0};
    float *gate = NULL;
    struct pi_train_layer_in in = {.gate_bias = m->shape.gated ? NULL : w->up_b,
                                   .gate_row = (double)first_mat(m, layer)->row_bytes,
                                   .up_row = m->shape.gated ? (double)w->up.row_bytes : 0.0,
                                   .down_row = w->down_t.data != NULL
                                                   ? (double)w->down_t.row_bytes
                                                   : (double)first_mat(m, layer)->row_bytes,
                                   .hot80 = hot80,
                                   .max_params = max_params,
                                   .seed = o->seed + layer};

    PI_TRY(pi_trainset_load(p, m, layer, pool, &s, err));
    PI_TRY(gate_f32(first_mat(m, layer), &gate, err));
    in.gate = gate;
    PI_TRY(pi_train_layer(&s, &in, o, pool, out, err));
out:
    pi_trainset_free(&s);
    free(gate);
    return rc;
}

enum pi_code pi_train_model(const struct pi_model *m, const struct pi_profile *p,
                            const struct pi_train_options *o, struct pi_pool *pool, bool progress,
                            struct pi_trained_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double left = o->max_params * pi_train_model_params(m);
    struct pi_census *c = NULL;
    struct pi_progress pr;

    pi_progress_begin(&pr, "training layers", p->n_layer, progress);
    PI_ALLOC(c, p->n_layer, err);
    PI_TRY(pi_census_take(p, c, err));
    for (uint32_t l = 0; l < p->n_layer; l++) {
        /* what a layer does not use is left to those after it */
        PI_TRY(train_one(m, p, o, pool, l, c[l].hot80, left / (p->n_layer - l), &out[l], err));
        left -= out[l].kept ? out[l].params : 0.0;
        pi_progress_at(&pr, l + 1);
    }
out:
    if (rc != PI_OK && rc != PI_E_INTERRUPTED)
        pi_err_wrap(err, "training");
    pi_progress_end(&pr);
    free(c);
    return rc;
}
