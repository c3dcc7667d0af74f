#include "config.h"

#include "profiler/pi_train.h"

#include "common/pi_alloc.h"
#include "common/pi_estimate.h"
#include "common/pi_progress.h"
#include "common/pi_census.h"
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
    struct pi_damage damage;
    struct pi_labels labels;
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

static double exact_bytes(const struct layer_job *j, double active)
{
    const struct pi_train_layer_in *in = j->in;

    return j->s->n_ff * (in->gate_row + active * (in->up_row + in->down_row));
}

/* Bytes per token of a predictor of width r that calls a share of the neurons. */
static double predicted_bytes(const struct layer_job *j, uint32_t r, double density, double active)
{
    const double n = j->s->n_ff;
    uint64_t row1 = 0, row2 = 0;

    if (!pi_type_row_bytes(j->o->type, j->s->d, &row1) || !pi_type_row_bytes(j->o->type, r, &row2))
        return 1e30;
    return (double)row1 * r + (double)row2 * n + 4 * n - n * j->in->gate_row * (1 - density) +
           exact_bytes(j, active);
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
    PI_TRY(pi_fit(&net, j->s, &j->labels, j->pool, &fo, err));
    *out = net;
    memset(&net, 0, sizeof(net));
out:
    pi_net_free(&net);
    return rc;
}

/* Trains width r briefly; *bytes_out: what it would read at the first threshold that is good enough, on the calibration part. */
static enum pi_code try_width(const struct layer_job *j, uint32_t r, double *bytes_out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_net net = {0};
    struct pi_found found[PI_CURVE_POINTS];
    float threshold[PI_CURVE_POINTS];
    double damage[PI_CURVE_POINTS];
    uint32_t k = 0;

    PI_TRY(make_net(j, r, (j->o->steps + TRIAL_PART - 1) / TRIAL_PART, &net, err));
    PI_TRY(pi_calibrate_row(&net, j->s, j->pool, j->o->recall, threshold, err));
    PI_TRY(pi_damage_measure(&j->damage, &net, j->s, j->pool, threshold, PI_CURVE_POINTS, damage,
                             err));
    PI_TRY(pi_calibrate_count(&net, j->s, PI_PART_CALIBRATE, j->pool, threshold, PI_CURVE_POINTS,
                              found, err));
    while (k + 1 < PI_CURVE_POINTS && damage[k] > j->in->max_damage)
        k++;
    *bytes_out = predicted_bytes(j, r, found[k].density, found[k].active);
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
static enum pi_code walk(const struct layer_job *j, bool up, uint32_t *r, double *bytes,
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
        if (next >= *bytes)
            break;
        *r = w;
        *bytes = next;
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
    double bytes = 0;

    *out = start;
    if (start == 0)
        return PI_OK;
    PI_TRY(try_width(j, start, &bytes, err));
    PI_TRY(walk(j, false, &r, &bytes, &trials, err));
    if (r == start)
        PI_TRY(walk(j, true, &r, &bytes, &trials, err));
    *out = r;
out:
    return rc;
}

/* The points a trained predictor offers. */
static enum pi_code make_curve(const struct layer_job *j, const struct pi_net *net,
                               struct pi_curve *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_found on_test[PI_CURVE_POINTS];
    float threshold[PI_CURVE_POINTS];
    double damage[PI_CURVE_POINTS];

    PI_TRY(pi_calibrate_row(net, j->s, j->pool, j->o->recall, threshold, err));
    PI_TRY(
        pi_damage_measure(&j->damage, net, j->s, j->pool, threshold, PI_CURVE_POINTS, damage, err));
    PI_TRY(pi_calibrate_count(net, j->s, PI_PART_TEST, j->pool, threshold, PI_CURVE_POINTS, on_test,
                              err));
    c->n = PI_CURVE_POINTS;
    c->exact_bytes = exact_bytes(j, on_test[0].active);
    for (uint32_t k = 0; k < c->n; k++)
        c->point[k] = (struct pi_point){
            .threshold = threshold[k],
            .damage = damage[k],
            .bytes = predicted_bytes(j, net->r, on_test[k].density, on_test[k].active),
            .allowed = on_test[k].recall >= j->o->recall,
            .on_test = on_test[k]};
out:
    return rc;
}

/* Full training of one width; the thresholds are for the weights as stored. */
static enum pi_code finish_width(const struct layer_job *j, uint32_t r, struct pi_trained_layer *l,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_net net = {0};

    PI_TRY(make_net(j, r, j->o->steps, &net, err));
    PI_TRY(store_matrix(j, net.fc1, r, j->s->d, &l->fc1, err));
    PI_TRY(store_matrix(j, net.fc2, j->s->n_ff, r, &l->fc2, err));
    PI_TRY(make_curve(j, &net, &l->curve, err));
    l->bias = net.bias;
    net.bias = NULL;
    l->width = r;
    l->params = params_of(j, r);
    l->choice = l->curve.n;
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
    PI_TRY(pi_svd_make(j->s, j->in->block.gate, j->in->block.gate_bias, j->pool, &j->svd, err));
    PI_TRY(pi_damage_make(j->s, &j->in->block, j->pool, &j->damage, err));
    PI_TRY(pi_labels_make(j->s, &j->in->block, &j->damage, j->pool, &j->labels, err));
out:
    return rc;
}

static void free_job(struct layer_job *j)
{
    pi_svd_free(&j->svd);
    pi_damage_free(&j->damage);
    pi_labels_free(&j->labels);
}

enum pi_code pi_train_layer(const struct pi_trainset *s, const struct pi_train_layer_in *in,
                            const struct pi_train_options *o, struct pi_pool *pool,
                            struct pi_trained_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct layer_job j = {.s = s, .in = in, .o = o, .pool = pool};
    struct pi_trained_layer l = {0};
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
    free_job(&j);
    return rc;
}

enum pi_code pi_train_brief(const struct pi_trainset *s, const struct pi_train_layer_in *in,
                            const struct pi_train_options *o, struct pi_pool *pool, uint32_t r,
                            struct pi_found *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct layer_job j = {.s = s, .in = in, .o = o, .pool = pool};
    struct pi_net net = {0};
    float threshold[PI_CURVE_POINTS];

    PI_TRY(init_job(&j, err));
    PI_TRY(make_net(&j, r, (o->steps + TRIAL_PART - 1) / TRIAL_PART, &net, err));
    PI_TRY(pi_calibrate_row(&net, s, pool, o->recall, threshold, err));
    PI_TRY(pi_calibrate_count(&net, s, PI_PART_TEST, pool, threshold, 1, out, err));
out:
    pi_net_free(&net);
    free_job(&j);
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

/* A matrix as F32, or its transpose. The caller frees it. */
static enum pi_code to_f32(const struct pi_mat *w, bool transpose, float **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_cpu *cpu = NULL;
    float *all = NULL, *row = NULL;

    PI_TRY(pi_cpu_select(&cpu, err));
    PI_ALLOC_ALIGNED(all, (size_t)w->n_rows * w->n_cols, err);
    PI_ALLOC_ALIGNED(row, w->n_cols, err);
    for (size_t i = 0; i < w->n_rows; i++) {
        cpu->type[w->type]->to_f32(pi_mat_row(w, (uint32_t)i), row, w->n_cols);
        for (size_t k = 0; k < w->n_cols; k++)
            all[transpose ? k * w->n_rows + i : i * w->n_cols + k] = row[k];
    }
    *out = all;
    all = NULL;
out:
    free(all);
    free(row);
    return rc;
}

/* A layer's feed-forward block in F32. */
struct block_weights {
    float *gate, *up, *down_t;
};

static enum pi_code load_block(const struct pi_model *m, uint32_t layer, struct block_weights *w,
                               struct pi_block *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_layer_weights *lw = &m->layers[layer];
    const bool has_t = lw->down_t.data != NULL;

    PI_TRY(to_f32(first_mat(m, layer), false, &w->gate, err));
    if (m->shape.gated)
        PI_TRY(to_f32(&lw->up, false, &w->up, err));
    PI_TRY(to_f32(has_t ? &lw->down_t : &lw->down, !has_t, &w->down_t, err));
    *out = (struct pi_block){.shape = &m->shape,
                             .gate = w->gate,
                             .gate_bias = m->shape.gated ? lw->gate_b : lw->up_b,
                             .up = w->up,
                             .up_bias = m->shape.gated ? lw->up_b : NULL,
                             .down_t = w->down_t,
                             .down_bias = lw->down_b};
out:
    return rc;
}

/* Bytes of a row of down_t as the sparse modes read it. */
static double down_row_bytes(const struct pi_model *m, uint32_t layer)
{
    const struct pi_layer_weights *w = &m->layers[layer];
    uint64_t bytes = 0;

    if (w->down_t.data != NULL)
        return (double)w->down_t.row_bytes;
    if (!pi_type_row_bytes(pi_down_t_type(w->down.type, m->shape.n_embd), m->shape.n_embd, &bytes))
        return 4.0 * m->shape.n_embd;
    return (double)bytes;
}

/* What a layer may use of what is left for it and those after it. */
struct allowance {
    double params, hot80;
};

static enum pi_code train_one(const struct pi_model *m, const struct pi_profile *p,
                              const struct pi_train_options *o, struct pi_pool *pool,
                              uint32_t layer, const struct allowance *a,
                              struct pi_trained_layer *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_trainset s = {0};
    struct block_weights w = {0};
    struct pi_train_layer_in in = {.gate_row = (double)first_mat(m, layer)->row_bytes,
                                   .up_row =
                                       m->shape.gated ? (double)m->layers[layer].up.row_bytes : 0.0,
                                   .down_row = down_row_bytes(m, layer),
                                   .hot80 = a->hot80,
                                   .max_params = a->params,
                                   .max_damage = o->max_damage / p->n_layer,
                                   .seed = o->seed + layer};

    PI_TRY(pi_trainset_load(p, m, layer, o->look_ahead, pool, &s, err));
    PI_TRY(pi_trainset_use_gpu(&s, o->gpu, err));
    PI_TRY(load_block(m, layer, &w, &in.block, err));
    PI_TRY(pi_train_layer(&s, &in, o, pool, out, err));
    if (o->compare && layer > 0 && out->width > 0) {
        pi_trainset_free(&s);
        PI_TRY(pi_trainset_load(p, m, layer, !o->look_ahead, pool, &s, err));
        PI_TRY(pi_trainset_use_gpu(&s, o->gpu, err));
        PI_TRY(pi_train_brief(&s, &in, o, pool, out->width, &out->other, err));
        out->compared = true;
    }
out:
    pi_trainset_free(&s);
    free(w.gate);
    free(w.up);
    free(w.down_t);
    return rc;
}

static enum pi_code choose_all(const struct pi_train_options *o, struct pi_trained_layer *l,
                               uint32_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_curve **curve = NULL;
    uint32_t *choice = NULL;

    PI_ALLOC(curve, n, err);
    PI_ALLOC(choice, n, err);
    for (uint32_t i = 0; i < n; i++)
        curve[i] = &l[i].curve;
    pi_choose(curve, n, o->max_damage, choice);
    for (uint32_t i = 0; i < n; i++)
        l[i].choice = choice[i];
out:
    free(curve);
    free(choice);
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
        const struct allowance a = {left / (p->n_layer - l), c[l].hot80};

        PI_TRY(train_one(m, p, o, pool, l, &a, &out[l], err));
        left -= out[l].params;
        pi_progress_at(&pr, l + 1);
    }
    PI_TRY(choose_all(o, out, p->n_layer, err));
out:
    pi_progress_end(&pr);
    free(c);
    return rc;
}
