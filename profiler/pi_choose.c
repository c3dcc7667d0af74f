#include "config.h"

#include "profiler/pi_choose.h"

static double bytes_of(const struct pi_curve *c, uint32_t k)
{
    return k < c->n ? c->point[k].bytes : c->exact_bytes;
}

static double damage_of(const struct pi_curve *c, uint32_t k)
{
    return k < c->n ? c->point[k].damage : 0.0;
}

/* A point that may be used: reaches the recall and reads less than exact mode; exact itself. */
static bool usable(const struct pi_curve *c, uint32_t k)
{
    return k >= c->n || (c->point[k].allowed && c->point[k].bytes < c->exact_bytes);
}

static uint32_t cheapest(const struct pi_curve *c)
{
    uint32_t best = c->n;

    for (uint32_t k = 0; k < c->n; k++)
        if (usable(c, k) && bytes_of(c, k) < bytes_of(c, best))
            best = k;
    return best;
}

/* The best step from point `from`: damage taken away per byte added; 0 and no step when there is none. */
static double best_step(const struct pi_curve *c, uint32_t from, uint32_t *to)
{
    double best = 0;

    for (uint32_t k = from + 1; k <= c->n; k++) {
        const double less = damage_of(c, from) - damage_of(c, k);
        const double more = bytes_of(c, k) - bytes_of(c, from);

        if (usable(c, k) && less > 0 && less > best * (more > 0 ? more : 1e-9)) {
            best = less / (more > 0 ? more : 1e-9);
            *to = k;
        }
    }
    return best;
}

void pi_choose(const struct pi_curve *const *curve, uint32_t n, double max_damage,
               uint32_t *choice_out)
{
    for (uint32_t l = 0; l < n; l++)
        choice_out[l] = cheapest(curve[l]);
    for (;;) {
        double damage = 0, best = 0;
        uint32_t at = n, to = 0;

        for (uint32_t l = 0; l < n; l++) {
            uint32_t k = 0;
            const double gain = best_step(curve[l], choice_out[l], &k);

            damage += damage_of(curve[l], choice_out[l]);
            if (gain > best) {
                best = gain;
                at = l;
                to = k;
            }
        }
        if (damage <= max_damage || at == n)
            return;
        choice_out[at] = to;
    }
}
