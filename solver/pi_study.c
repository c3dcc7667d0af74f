#include "config.h"

#include "solver/pi_study.h"

#include "common/pi_progress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS     22
#define UNLIMITED 1e18 /* bytes: more than any model takes, far from where sums wrap */

/* ---- budgets */

static bool can_split(const struct pi_plan_input *in)
{
    return in->profile != NULL || in->mode == PI_MODE_DENSE ||
           !pi_activation_has_zeros(in->shape->act);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

static uint64_t whole_kib(uint64_t bytes)
{
    return (bytes + 1023) / 1024 * 1024;
}

/* The two ends: the smallest budget that works, and one that holds everything. A smaller budget has shorter chunks of prompts, and so smaller buffers: what a plan
 * took is tried as a budget in turn, until that does not hold everything any more or nothing is saved. */
static enum pi_code find_ends(const struct pi_plan_input *in, struct pi_study *s,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t nothing = 1;
    uint64_t budget = (uint64_t)UNLIMITED;
    struct pi_plan_point end;

    PI_TRY(pi_plan_curve(in, &nothing, 1, false, &end, err));
    s->least = whole_kib(end.base_bytes);
    for (int i = 0; i < 8; i++) {
        PI_TRY(pi_plan_curve(in, &budget, 1, false, &end, err));
        if (!end.feasible || !end.all_fits || (i > 0 && whole_kib(end.vram_bytes) >= s->all_bytes))
            break;
        s->all_bytes = budget = whole_kib(end.vram_bytes);
    }
out:
    return rc;
}

/* 0, the smallest that works, even steps to where everything fits, and the plan's own. */
static size_t choose_budgets(const struct pi_study *s, uint64_t own,
                             uint64_t budgets[PI_STUDY_POINTS])
{
    const uint64_t top = s->all_bytes > own ? s->all_bytes : own;
    size_t n = 0, kept = 1;

    budgets[n++] = 0;
    if (own > 0)
        budgets[n++] = own;
    for (int i = 0; i <= STEPS && top > s->least; i++)
        budgets[n++] = s->least + (uint64_t)((double)(top - s->least) * i / STEPS) / 1024 * 1024;
    qsort(budgets, n, sizeof(budgets[0]), by_size);
    for (size_t i = 1; i < n; i++)
        if (budgets[i] != budgets[kept - 1])
            budgets[kept++] = budgets[i];
    return kept;
}

static enum pi_code study_budgets(const struct pi_plan_input *in, const struct pi_plan *plan,
                                  bool progress, struct pi_study *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const uint64_t own = in->budget > 0 ? plan->limit : 0;
    struct pi_hardware hw = *in->hw;
    struct pi_plan_input at = *in;
    uint64_t budgets[PI_STUDY_POINTS];
    size_t n;

    if (hw.n_gpus == 0 || !can_split(in))
        return PI_OK;
    s->memory = hw.gpus[0].memory;
    hw.gpus[0].memory = 2.0 * UNLIMITED;
    at.hw = &hw;
    PI_TRY(find_ends(&at, s, err));
    n = choose_budgets(s, own, budgets);
    PI_TRY(pi_plan_curve(&at, budgets, n, progress, s->points, err));
    s->n_points = n;
    for (size_t i = 0; i < n; i++)
        if (budgets[i] == own)
            s->chosen = i;
out:
    return rc;
}

/* ---- changes */

/* Plans in, and notes what comes of it; what cannot be is possible = false. */
static enum pi_code try_change(struct pi_plan_input *in, const char *what, const char *why,
                               struct pi_study *s, struct pi_err *err)
{
    struct pi_study_change *c = &s->changes[s->n_changes];
    struct pi_plan p = {0};
    enum pi_code rc = pi_interrupt_check(err);

    if (rc == PI_OK)
        rc = pi_plan_make(in, &p, err);
    if (rc != PI_OK && rc != PI_E_INFEASIBLE && rc != PI_E_MISMATCH)
        return rc;
    *c = (struct pi_study_change){.what = what, .why = why, .possible = rc == PI_OK};
    if (rc == PI_OK)
        c->placed = p.placed;
    pi_plan_free(&p);
    s->n_changes++;
    return PI_OK;
}

static enum pi_code change_budget(const struct pi_plan_input *in, uint64_t budget, const char *what,
                                  const char *why, struct pi_study *s, struct pi_err *err)
{
    struct pi_hardware hw = *in->hw;
    struct pi_plan_input at = *in;
    enum pi_code rc;
    const bool beyond = (double)budget > hw.gpus[0].memory;

    if (beyond)
        hw.gpus[0].memory = (double)budget;
    at.hw = &hw;
    at.budget = budget;
    rc = try_change(&at, what, why, s, err);
    if (rc == PI_OK)
        s->changes[s->n_changes - 1].beyond = beyond;
    return rc;
}

static enum pi_code change_machine(const struct pi_plan_input *in, struct pi_study *s,
                                   struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hardware hw = *in->hw;
    struct pi_plan_input at = *in;

    at.hw = &hw;
    hw.cpu.bandwidth *= 2.0;
    hw.cpu.threads *= 2;
    PI_TRY(try_change(&at, "a CPU twice as fast", "twice the memory bandwidth, twice the threads",
                      s, err));
    hw = *in->hw;
    if (in->budget == 0)
        return PI_OK;
    hw.gpus[0].bandwidth *= 2.0;
    hw.gpus[0].kernel *= 0.5;
    PI_TRY(try_change(&at, "a GPU twice as fast",
                      "twice the memory bandwidth, half the time between kernels", s, err));
    hw = *in->hw;
    hw.gpus[0].sync *= 0.5;
    PI_TRY(try_change(&at, "hand-overs in half the time", "half of what the description says", s,
                      err));
out:
    return rc;
}

static enum pi_code study_changes(const struct pi_plan_input *in, const struct pi_plan *plan,
                                  struct pi_study *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_plan_input at = *in;

    if (in->budget > 0 && can_split(in)) {
        PI_TRY(change_budget(in, plan->limit / 2, "half the budget", "less VRAM", s, err));
        if (plan->limit < UINT64_MAX / 2)
            PI_TRY(change_budget(in, plan->limit * 2, "twice the budget", "more VRAM", s, err));
    }
    PI_TRY(change_machine(in, s, err));
    if (in->run.n_ctx >= 256) {
        at.run.n_ctx = in->run.n_ctx / 2;
        PI_TRY(
            try_change(&at, "half the context", "a smaller KV cache to keep and to read", s, err));
        at = *in;
    }
    if (in->predictor != NULL && in->mode == PI_MODE_PREDICTED) {
        at.mode = PI_MODE_EXACT;
        PI_TRY(try_change(&at, "without predictors", "--mode exact", s, err));
    }
    s->dense = plan->placed;
    if (!pi_activation_has_zeros(in->shape->act) || in->mode == PI_MODE_DENSE)
        return PI_OK;
    at.mode = PI_MODE_DENSE;
    PI_TRY(
        try_change(&at, "without sparsity", "--mode dense: every neuron for every token", s, err));
    s->dense = s->changes[s->n_changes - 1].placed;
out:
    return rc;
}

enum pi_code pi_study_make(const struct pi_plan_input *in, const struct pi_plan *plan,
                           bool progress, struct pi_study *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    memset(out, 0, sizeof(*out));
    PI_TRY(study_budgets(in, plan, progress, out, err));
    PI_TRY(study_changes(in, plan, out, err));
out:
    return rc;
}
