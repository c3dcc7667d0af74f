/* pi_ilp.c - options, relaxation, and the order in which the solver's parts are tried. */
#include "config.h"

#include "solver/pi_ilp.h"
#include "solver/pi_ilp_int.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "common/pi_size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint32_t pi_ilp_min_neurons(double t_sync, double t_cpu, double t_gpu)
{
    double c;

    if (!(t_cpu > t_gpu))
        return UINT32_MAX;
    /* A quotient that rounding put a hair above a whole number is that number. */
    c = ceil(t_sync / (t_cpu - t_gpu) * (1.0 - 1e-12));
    return c < (double)UINT32_MAX ? (uint32_t)c : UINT32_MAX;
}

size_t pi_ilp_paper_size(uint32_t n_ff)
{
    return 2 * ((size_t)n_ff / PI_ILP_GROUP + 1);
}

enum pi_code pi_ilp_paper_options(uint32_t n_ff, const double *prefix, uint64_t bytes_neuron,
                                  uint64_t fixed, uint32_t c_min, struct pi_ilp_option *opt_out,
                                  size_t *n_out, struct pi_err *err)
{
    uint32_t rest = n_ff % PI_ILP_GROUP, whole = n_ff - rest;
    double rest_gain = prefix[n_ff] - prefix[whole];
    size_t n = 0;

    for (uint32_t k = 0; k <= whole; k += PI_ILP_GROUP) {
        for (uint32_t tail = 0; tail <= (rest > 0); tail++) {
            struct pi_ilp_option *o = &opt_out[n];

            o->hot = k + tail * rest;
            o->tag = tail;
            o->gain = prefix[k] + (tail > 0 ? rest_gain : 0.0);
            if (!pi_size_mul(o->hot, bytes_neuron, &o->bytes) ||
                (o->hot > 0 && !pi_size_add(o->bytes, fixed, &o->bytes)))
                return pi_err_set(err, PI_E_RANGE,
                                  "%u neurons of %llu bytes: more than can be addressed", o->hot,
                                  (unsigned long long)bytes_neuron);
            n += o->hot == 0 || o->hot >= c_min;
        }
    }
    *n_out = n;
    return PI_OK;
}

void pi_ilp_result_free(struct pi_ilp_result *r)
{
    free(r->pick);
    memset(r, 0, sizeof(*r));
}

struct sortable {
    struct pi_ilp_option o;
    size_t from;
};

/* By bytes, the better gain first among equals, the earlier index last of all. */
static int by_bytes(const void *pa, const void *pb)
{
    const struct sortable *a = pa, *b = pb;

    if (a->o.bytes != b->o.bytes)
        return a->o.bytes < b->o.bytes ? -1 : 1;
    if (a->o.gain < b->o.gain || a->o.gain > b->o.gain)
        return a->o.gain > b->o.gain ? -1 : 1;
    return a->from < b->from ? -1 : 1;
}

static enum pi_code make_set(const struct pi_ilp_layer *l, size_t index, uint64_t capacity,
                             struct ilp_set *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct sortable *t = NULL;

    PI_ALLOC(t, l->n, err);
    PI_ALLOC(s->opt, l->n, err);
    PI_ALLOC(s->from, l->n, err);
    PI_ALLOC(s->regret, l->n, err);
    for (size_t i = 0; i < l->n; i++) {
        if (!isfinite(l->opt[i].gain))
            PI_FAIL(err, PI_E_RANGE, "layer %zu, option %zu: its gain is not finite", index, i);
        t[i] = (struct sortable){l->opt[i], i};
    }
    qsort(t, l->n, sizeof(*t), by_bytes);
    if (l->n == 0 || t[0].o.bytes != 0)
        PI_FAIL(err, PI_E_RANGE, "layer %zu has no option that takes no memory", index);
    for (size_t i = 0; i < l->n && t[i].o.bytes <= capacity; i++) {
        if (s->n > 0 && t[i].o.gain <= s->opt[s->n - 1].gain)
            continue;
        s->opt[s->n] = t[i].o;
        s->from[s->n++] = t[i].from;
    }
out:
    free(t);
    return rc;
}

/* A step along a layer's upper hull, from option a to option b. */
struct step {
    double slope;
    size_t set, a, b;
};

static int by_slope(const void *pa, const void *pb)
{
    const struct step *a = pa, *b = pb;

    if (a->slope < b->slope || a->slope > b->slope)
        return a->slope > b->slope ? -1 : 1;
    if (a->set != b->set)
        return a->set < b->set ? -1 : 1;
    return a->a < b->a ? -1 : 1;
}

static double slope(const struct ilp_set *s, size_t a, size_t b)
{
    return (s->opt[b].gain - s->opt[a].gain) / (double)(s->opt[b].bytes - s->opt[a].bytes);
}

/* Appends the steps of a set's concave hull; hull (s->n) is scratch. */
static size_t hull_steps(const struct ilp_set *s, size_t set, size_t *hull, struct step *out)
{
    size_t h = 0;

    for (size_t i = 0; i < s->n; i++) {
        while (h >= 2 && slope(s, hull[h - 2], hull[h - 1]) <= slope(s, hull[h - 1], i))
            h--;
        hull[h++] = i;
    }
    for (size_t i = 1; i < h; i++)
        out[i - 1] = (struct step){slope(s, hull[i - 1], hull[i]), set, hull[i - 1], hull[i]};
    return h - 1;
}

static void take_incumbent(struct ilp *p)
{
    p->gain = 0.0;
    p->bytes = 0;
    for (size_t l = 0; l < p->n; l++) {
        p->pick[l] = p->sets[l].at;
        p->gain += p->sets[l].opt[p->sets[l].at].gain;
        p->bytes += p->sets[l].opt[p->sets[l].at].bytes;
    }
}

/* The relaxation: steps by falling slope until one does not fit; its slope is the price of a byte (Sinha and Zoltners 1979).
 * Later steps that still fit make the first solution better. */
static enum pi_code relax(struct ilp *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct step *steps = NULL;
    size_t *hull = NULL, n = 0, max = 0, total = 0;
    uint64_t left = p->capacity;
    bool broken = false;

    for (size_t l = 0; l < p->n; l++) {
        total += p->sets[l].n;
        max = p->sets[l].n > max ? p->sets[l].n : max;
    }
    PI_ALLOC(steps, total, err);
    PI_ALLOC(hull, max, err);
    for (size_t l = 0; l < p->n; l++)
        n += hull_steps(&p->sets[l], l, hull, steps + n);
    qsort(steps, n, sizeof(*steps), by_slope);
    p->price = 0.0;
    for (size_t i = 0; i < n; i++) {
        struct ilp_set *s = &p->sets[steps[i].set];
        uint64_t need = s->opt[steps[i].b].bytes - s->opt[steps[i].a].bytes;

        if (s->at == steps[i].a && need <= left) {
            s->at = steps[i].b;
            left -= need;
        } else if (!broken) {
            broken = true;
            p->price = steps[i].slope;
        }
    }
    take_incumbent(p);
out:
    free(hull);
    free(steps);
    return rc;
}

static void price_options(struct ilp *p)
{
    double size = 0.0;

    p->bound = p->price * (double)p->capacity;
    for (size_t l = 0; l < p->n; l++) {
        struct ilp_set *s = &p->sets[l];

        s->best = (double)-INFINITY;
        for (size_t i = 0; i < s->n; i++) {
            s->regret[i] = s->opt[i].gain - p->price * (double)s->opt[i].bytes;
            s->best = fmax(s->best, s->regret[i]);
            size = fmax(size, fabs(s->opt[i].gain));
        }
        for (size_t i = 0; i < s->n; i++)
            s->regret[i] = s->best - s->regret[i];
        p->bound += s->best;
    }
    p->tol = 1e-12 * fmax(fabs(p->bound), size);
}

/* Narrow gaps first: a solution that loses less than the gap is the optimum, whatever lies beyond it. */
static enum pi_code search(struct ilp *p, const struct pi_ilp_limits *lim, struct pi_ilp_result *r,
                           struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    double whole = fmax(p->bound - p->gain, 0.0);
    bool found = false, full = lim->glpk_only;

    r->bound = p->bound;
    r->optimal = whole <= p->tol;
    for (double gap = whole / 256.0; !r->optimal && !full; gap *= 4.0) {
        bool last = gap >= whole;

        PI_TRY(pi_ilp_list(p, fmin(gap, whole), lim->max_states, &found, &full, &r->n_states, err));
        if (!full && !found && !last)
            r->bound = fmin(r->bound, p->bound - gap);
        r->optimal = !full && (found || last);
    }
    if (!r->optimal) {
        r->by_glpk = true;
        PI_TRY(pi_ilp_glpk(p, whole, lim->seconds, &r->optimal, &r->bound, err));
    }
    if (r->optimal)
        r->bound = p->gain;
out:
    return rc;
}

static void ilp_free(struct ilp *p)
{
    for (size_t l = 0; p->sets != NULL && l < p->n; l++) {
        free(p->sets[l].opt);
        free(p->sets[l].from);
        free(p->sets[l].regret);
    }
    free(p->sets);
    free(p->pick);
}

enum pi_code pi_ilp_solve(const struct pi_ilp_layer *layers, size_t n_layer, uint64_t capacity,
                          const struct pi_ilp_limits *limits, struct pi_ilp_result *out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_ilp_limits lim = limits != NULL ? *limits : (struct pi_ilp_limits){0};
    struct pi_ilp_result r = {0};
    struct ilp p = {.n = n_layer, .capacity = capacity};
    double t0 = pi_now();

    lim.max_states = lim.max_states > 0 ? lim.max_states : (size_t)16 << 20;
    lim.seconds = lim.seconds > 0.0 ? lim.seconds : 30.0;
    PI_ALLOC(p.sets, n_layer, err);
    PI_ALLOC(p.pick, n_layer, err);
    PI_ALLOC(r.pick, n_layer, err);
    for (size_t l = 0; l < n_layer; l++)
        PI_TRY(make_set(&layers[l], l, capacity, &p.sets[l], err));
    PI_TRY(relax(&p, err));
    price_options(&p);
    PI_TRY(search(&p, &lim, &r, err));
    for (size_t l = 0; l < n_layer; l++)
        r.pick[l] = p.sets[l].from[p.pick[l]];
    r.gain = p.gain;
    r.bytes = p.bytes;
    r.seconds = pi_now() - t0;
    *out = r;
    r.pick = NULL;
out:
    free(r.pick);
    ilp_free(&p);
    return rc;
}
