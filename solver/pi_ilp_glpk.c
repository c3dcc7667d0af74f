/* pi_ilp_glpk.c - the rest of the program, as GLPK wants it: a binary per option that is left, one of them per layer. */
#include "config.h"

#include "solver/pi_ilp_int.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <math.h>
#include <stdlib.h>

#include <glpk.h>

/* The options that are left. */
struct rest {
    size_t n;
    size_t *set, *option; /* (n) */
    uint64_t base;        /* bytes that the smallest options left take */
    uint64_t unit;        /* greatest common divisor of what the others take more */
    double top;           /* largest |regret|, to scale the objective */
};

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t t = a % b;

        a = b;
        b = t;
    }
    return a;
}

static enum pi_code collect(const struct ilp *p, double limit, struct rest *r, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t total = 0;

    for (size_t l = 0; l < p->n; l++)
        total += p->sets[l].n;
    PI_ALLOC(r->set, total, err);
    PI_ALLOC(r->option, total, err);
    for (size_t l = 0; l < p->n; l++) {
        const struct ilp_set *s = &p->sets[l];
        uint64_t least = UINT64_MAX;

        for (size_t i = 0; i < s->n; i++) {
            if (s->regret[i] > limit)
                continue;
            least = least < s->opt[i].bytes ? least : s->opt[i].bytes;
            r->unit = gcd(r->unit, s->opt[i].bytes - least);
            r->top = fmax(r->top, s->regret[i]);
            r->set[r->n] = l;
            r->option[r->n++] = i;
        }
        r->base += least;
    }
    r->unit += r->unit == 0;
    r->top += r->top <= 0.0;
out:
    return rc;
}

/* minimise sum of (regret - price * bytes over base) / top: the gain, turned round and moved. Whole units of bytes keep rows exact. */
static void fill(const struct ilp *p, const struct rest *r, glp_prob *lp)
{
    int row = 1;

    glp_set_obj_dir(lp, GLP_MIN);
    glp_add_cols(lp, (int)r->n);
    glp_add_rows(lp, 1);
    glp_set_row_bnds(lp, 1, GLP_UP, 0.0, (double)((p->capacity - r->base) / r->unit));
    for (size_t j = 0, first = 0; j < r->n; j++) {
        const struct ilp_set *s = &p->sets[r->set[j]];
        uint64_t more;
        int at[3];
        double v[3];

        if (j == 0 || r->set[j] != r->set[j - 1]) {
            first = j;
            row = glp_add_rows(lp, 1);
            glp_set_row_bnds(lp, row, GLP_FX, 1.0, 1.0);
        }
        more = s->opt[r->option[j]].bytes - s->opt[r->option[first]].bytes;
        glp_set_col_kind(lp, (int)j + 1, GLP_BV);
        glp_set_obj_coef(lp, (int)j + 1,
                         (s->regret[r->option[j]] - p->price * (double)more) / r->top);
        at[1] = 1;
        v[1] = (double)(more / r->unit);
        at[2] = row;
        v[2] = 1.0;
        glp_set_mat_col(lp, (int)j + 1, 2, at, v);
    }
}

/* The incumbent becomes GLPK's solution where that one is valid and better. */
static void adopt(struct ilp *p, const struct rest *r, glp_prob *lp)
{
    uint64_t bytes = 0;
    double gain = 0.0;

    for (size_t j = 0; j < r->n; j++) {
        if (glp_mip_col_val(lp, (int)j + 1) > 0.5) {
            bytes += p->sets[r->set[j]].opt[r->option[j]].bytes;
            gain += p->sets[r->set[j]].opt[r->option[j]].gain;
        }
    }
    if (bytes > p->capacity || gain < p->gain)
        return;
    p->bytes = bytes;
    p->gain = gain;
    for (size_t j = 0; j < r->n; j++)
        if (glp_mip_col_val(lp, (int)j + 1) > 0.5)
            p->pick[r->set[j]] = r->option[j];
}

/* GLPK calls it at every node of its tree. */
static void stop_when_interrupted(glp_tree *tree, void *unused)
{
    (void)unused;
    if (pi_interrupted())
        glp_ios_terminate(tree);
}

enum pi_code pi_ilp_glpk(struct ilp *p, double gap, double seconds, bool *proven, double *bound_io,
                         struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct rest r = {0};
    glp_prob *lp = NULL;
    glp_iocp par;

    *proven = false;
    PI_TRY(collect(p, gap + p->tol, &r, err));
    if (r.base > p->capacity || r.n >= INT32_MAX) {
        rc = PI_OK;
        goto out;
    }
    (void)glp_term_out(GLP_OFF);
    lp = glp_create_prob();
    fill(p, &r, lp);
    glp_init_iocp(&par);
    par.msg_lev = GLP_MSG_OFF;
    par.presolve = GLP_ON;
    par.tol_obj = 1e-9;
    par.tm_lim = (int)fmin(seconds * 1e3, 1e9);
    par.cb_func = stop_when_interrupted;
    if (glp_intopt(lp, &par) == 0 || glp_mip_status(lp) == GLP_FEAS) {
        *proven = glp_mip_status(lp) == GLP_OPT;
        if (*proven || glp_mip_status(lp) == GLP_FEAS)
            adopt(p, &r, lp);
    }
    PI_TRY(pi_interrupt_check(err));
    if (*proven)
        *bound_io = p->gain;
out:
    if (lp != NULL)
        glp_delete_prob(lp);
    (void)glp_free_env();
    free(r.set);
    free(r.option);
    return rc;
}
