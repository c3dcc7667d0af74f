/* Which type every tensor of a plan gets, and what is said about it. */
#include "config.h"

#include "convert/pi_recipe.h"
#include "convert/pi_write_model.h"
#include "runtime/cpu/pi_cpu.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LISTED 8 /* tensors listed one by one unless verbose */

static bool is_quantised(enum pi_type t)
{
    return pi_type_info((uint32_t)t)->quantised;
}

static struct pi_recipe_model model_of(const struct pi_plan *p)
{
    struct pi_recipe_model m = {.n_layer = 0, .tied = true};

    for (size_t i = 0; i < p->n; i++) {
        const char *name = p->t[i].name;

        if (strcmp(name, "output.weight") == 0)
            m.tied = false;
        if (strncmp(name, "blk.", 4) == 0) {
            unsigned long layer = strtoul(name + 4, NULL, 10);

            if (layer < UINT32_MAX && layer >= m.n_layer)
                m.n_layer = (uint32_t)layer + 1;
        }
    }
    return m;
}

/* Sets asked, type and why of one matrix. */
static void choose(struct pi_plan_tensor *t, const struct pi_recipe_model *m,
                   const struct pi_write_options *opt)
{
    const struct pi_keep *keep = pi_keep_find(opt->keep, opt->n_keep, t->name);
    bool from_quantised = is_quantised(t->src_type);

    t->why = PI_PLAN_AS_ASKED;
    if (keep != NULL)
        t->asked = keep->type;
    else if (from_quantised && opt->keep_quantised)
        t->asked = t->src_type;
    else
        t->asked = pi_recipe_type(opt->recipe, m, t->name);
    t->type = t->asked;
    /* What a keep pattern names is the user's own choice. */
    if (keep == NULL && t->transpose && from_quantised && is_quantised(t->asked)) {
        t->type = PI_TYPE_Q8_0;
        t->why = PI_PLAN_TRANSPOSED;
    }
    if (pi_recipe_fit(t->type, t->n_cols) != t->type)
        t->why = t->why == PI_PLAN_TRANSPOSED ? t->why : PI_PLAN_ROWS;
    t->type = pi_recipe_fit(t->type, t->n_cols);
    if (t->type == t->asked)
        t->why = PI_PLAN_AS_ASKED;
}

/* Where "_t" stands in the name of a down projection's matrix or bias; NULL in others. */
static char *down_mark(const struct pi_plan_tensor *t)
{
    char *at = strstr(t->name, ".ffn_down_t.");

    return at != NULL ? at + strlen(".ffn_down") : NULL;
}

/* Would this one be better off as it is stored elsewhere? Its type was chosen. */
static bool turning_costs(const struct pi_plan_tensor *t)
{
    if (!t->transpose)
        return false;
    return is_quantised(t->src_type) ||
           (t->type != t->asked && pi_recipe_fit(t->asked, t->n_rows) == t->asked);
}

/* ffn_down_t becomes ffn_down: a matrix with its dimensions turned, a bias by its name alone. */
static void turn_down(struct pi_plan_tensor *t)
{
    char *at = down_mark(t);
    const uint64_t n_rows = t->n_rows;

    memmove(at, at + 2, strlen(at + 2) + 1);
    if (t->verbatim || t->n_dims == 1)
        return;
    t->n_rows = t->n_cols;
    t->n_cols = n_rows;
    t->transpose = !t->transpose;
}

/* Goes before a choice of types that counts. */
static void choose_layout(struct pi_plan *p, const struct pi_recipe_model *m,
                          const struct pi_write_options *opt)
{
    bool by_row = opt->layout == PI_LAYOUT_ROW;

    for (size_t i = 0; i < p->n && opt->layout == PI_LAYOUT_AUTO && !opt->sparse; i++) {
        if (down_mark(&p->t[i]) == NULL || p->t[i].verbatim || p->t[i].n_dims == 1)
            continue;
        choose(&p->t[i], m, opt);
        by_row = by_row || turning_costs(&p->t[i]);
    }
    for (size_t i = 0; i < opt->n_keep; i++) /* names may change */
        opt->keep[i].n_found = opt->keep[i].n_used = 0;
    for (size_t i = 0; i < p->n && by_row; i++)
        if (down_mark(&p->t[i]) != NULL)
            turn_down(&p->t[i]);
    if (by_row && opt->layout == PI_LAYOUT_AUTO)
        pi_note(
            opt->notes,
            "the down projections stay row by row: turned they would be rounded again or take a wider type, and "
            "a dense model gains nothing by it (--layout neuron turns them, for a GPU)");
}

static bool passes_unchanged(const struct pi_plan_tensor *t)
{
    return t->type == t->src_type && !t->transpose;
}

/* Are there kernels for the way? */
static enum pi_code check_kernels(const struct pi_plan_tensor *t, struct pi_err *err)
{
    const struct pi_cpu *cpu = pi_cpu_get(PI_ISA_SCALAR);

    if (t->n_cols > UINT32_MAX)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: tensor %.*s has rows of %llu elements",
                          t->src_path, (int)t->src_name_n, t->src_name,
                          (unsigned long long)t->n_cols);
    if (passes_unchanged(t))
        return PI_OK;
    if (cpu->type[t->src_type] == NULL || cpu->type[t->src_type]->to_f32 == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %.*s is %s, which cannot be converted here", t->src_path,
                          (int)t->src_name_n, t->src_name, pi_type_name((uint32_t)t->src_type));
    if (cpu->type[t->type] == NULL || cpu->type[t->type]->from_f32 == NULL)
        return pi_err_set(err, PI_E_UNSUPPORTED, "%s: this build cannot write %s", t->name,
                          pi_type_name((uint32_t)t->type));
    return PI_OK;
}

static void say_wider(const struct pi_plan *p, const struct pi_write_options *opt)
{
    size_t n = 0, most = opt->verbose ? p->n : MAX_LISTED;

    for (size_t i = 0; i < p->n; i++) {
        const struct pi_plan_tensor *t = &p->t[i];

        if (t->why == PI_PLAN_AS_ASKED || n++ >= most)
            continue;
        pi_note(opt->notes, "%s: rows of %llu%s: stored as %s, not %s", t->name,
                (unsigned long long)t->n_cols,
                t->why == PI_PLAN_TRANSPOSED ? " transposed from quantised ones" : "",
                pi_type_name((uint32_t)t->type), pi_type_name((uint32_t)t->asked));
    }
    if (n > most)
        pi_note(opt->notes,
                "and %zu more tensors stored in a wider type for the same reasons (--list or "
                "--verbose names them)",
                n - most);
}

static void say_twice(const struct pi_plan *p, const struct pi_write_options *opt)
{
    size_t n = 0;
    const char *first = "";

    for (size_t i = 0; i < p->n; i++) {
        const struct pi_plan_tensor *t = &p->t[i];

        if (!t->verbatim && t->n_dims > 1 && is_quantised(t->src_type) && is_quantised(t->type) &&
            !passes_unchanged(t) && n++ == 0)
            first = t->name;
    }
    if (n > 0)
        pi_note(opt->notes,
                "%zu tensors (%s first) are quantised in the source already: rounding them again "
                "adds to its error",
                n, first);
}

/* A pattern that does nothing is a mistake: better told before hours of work. */
static enum pi_code check_keep(const struct pi_write_options *opt, struct pi_err *err)
{
    for (size_t i = 0; i < opt->n_keep; i++) {
        const struct pi_keep *k = &opt->keep[i];

        if (k->n_found == 0)
            return pi_err_set(err, PI_E_USAGE,
                              "--keep %s: no matrix of this model has such a name (--list shows "
                              "them; vectors are always F32)",
                              k->text);
        if (k->n_used == 0)
            return pi_err_set(err, PI_E_USAGE,
                              "--keep %s: earlier patterns take everything that it fits", k->text);
    }
    return PI_OK;
}

enum pi_code pi_plan_choose_types(struct pi_plan *p, const struct pi_write_options *opt,
                                  struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_recipe_model m = model_of(p);

    choose_layout(p, &m, opt);
    for (size_t i = 0; i < p->n; i++) {
        struct pi_plan_tensor *t = &p->t[i];

        t->why = PI_PLAN_AS_ASKED;
        if (t->verbatim) {
            t->asked = t->type = t->src_type;
            continue;
        }
        if (t->n_dims == 1)
            t->asked = t->type = PI_TYPE_F32;
        else
            choose(t, &m, opt);
        PI_TRY(check_kernels(t, err));
    }
    PI_TRY(check_keep(opt, err));
    say_wider(p, opt);
    say_twice(p, opt);
out:
    return rc;
}

uint64_t pi_plan_bytes(const struct pi_plan_tensor *t)
{
    uint64_t row = 0;

    if (t->verbatim)
        return t->bytes;
    return pi_type_row_bytes(t->type, t->n_cols, &row) ? row * t->n_rows : 0;
}
