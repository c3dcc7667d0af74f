#include "config.h"

#include "runtime/pi_width.h"

#include <assert.h>

#define SEEN      4u     /* rounds with steps of a width until its figure counts */
#define MARGIN    0.95   /* of the chosen limit's time: a better one is faster than that */
#define SMOOTHING 0.0625 /* weight of a new figure */
#define SURPRISE  1.25   /* times the old figure: what is slower counts as that */
#define AGAIN     64u    /* rounds between tries of old figures, at least */
#define STALE     32u    /* rounds after which a new figure takes the old one's place */

/* A way to cut a batch. */
struct way {
    uint32_t limit, steps;
    double seconds; /* of a round, once it is known */
    uint32_t seen;  /* rounds with that of its widths which was seen least; known: SEEN */
    uint64_t at;    /* round of its oldest figure */
};

/* Fewest steps first. */
struct ways {
    uint32_t n;
    struct way way[3];
};

void pi_width_init(struct pi_width *w, uint32_t most, bool chooses)
{
    *w = (struct pi_width){.most = most, .limit = most, .chooses = chooses};
}

/* Adds steps steps of width tokens each to a way. */
static void add_steps(const struct pi_width *w, uint32_t width, uint32_t steps, struct way *to)
{
    const struct pi_width_figure *f = &w->of[width];

    if (steps == 0)
        return;
    to->seconds += steps * f->seconds;
    to->seen = f->n < to->seen ? f->n : to->seen;
    to->at = f->at < to->at ? f->at : to->at;
}

static void add_way(const struct pi_width *w, uint32_t n, uint32_t limit, struct ways *out)
{
    const uint32_t steps = pi_width_share(n, limit), more = n % steps;
    struct way way = {.limit = limit, .steps = steps, .seen = SEEN, .at = w->round};

    if (out->n > 0 && (steps == out->way[out->n - 1].steps || n / steps < PI_WIDTH_LEAST))
        return;
    add_steps(w, n / steps + 1, more, &way);
    add_steps(w, n / steps, steps - more, &way);
    out->way[out->n++] = way;
}

static struct ways find_ways(const struct pi_width *w, uint32_t n)
{
    struct ways v = {.n = 0};

    add_way(w, n, w->most, &v);
    for (uint32_t limit = PI_WIDTH_MOST / 2; w->chooses && limit >= PI_WIDTH_LEAST; limit /= 2)
        if (limit < w->most)
            add_way(w, n, limit, &v);
    return v;
}

/* The way of the limit in use: the last one that is no narrower, as some limits would cut n too small. */
static uint32_t way_in_use(const struct pi_width *w, const struct ways *v)
{
    uint32_t i = 0;

    while (i + 1 < v->n && v->way[i + 1].limit >= w->limit)
        i++;
    return i;
}

/* The way that is known least, the first among equals; v->n: all are known. */
static uint32_t unknown_way(const struct ways *v)
{
    uint32_t least = v->n;

    for (uint32_t i = 0; i < v->n; i++)
        if (v->way[i].seen < (least < v->n ? v->way[least].seen : SEEN))
            least = i;
    return least;
}

/* The fastest of known ways, and from now on its limit; the one in use unless another is clearly faster. */
static uint32_t choose(struct pi_width *w, const struct ways *v)
{
    const uint32_t now = way_in_use(w, v);
    uint32_t best = now;

    for (uint32_t i = 0; i < v->n; i++)
        if (v->way[i].seconds < v->way[best].seconds)
            best = i;
    if (v->way[best].seconds >= MARGIN * v->way[now].seconds)
        return now;
    w->limit = v->way[best].limit;
    return best;
}

/* A way beside the chosen one whose figures are old enough to be tried again; else the chosen one. */
static uint32_t try_again(struct pi_width *w, const struct ways *v, uint32_t chosen)
{
    uint32_t i = chosen > 0 ? chosen - 1 : chosen + 1;
    double wait;

    if (chosen > 0 && chosen + 1 < v->n && v->way[chosen + 1].at < v->way[i].at)
        i = chosen + 1;
    wait = AGAIN;
    if (v->way[i].seconds > v->way[chosen].seconds && v->way[chosen].seconds > 0)
        wait *= v->way[i].seconds / v->way[chosen].seconds;
    if ((double)(w->round - w->tried) < wait || (double)(w->round - v->way[i].at) < wait)
        return chosen;
    w->tried = w->round;
    return i;
}

uint32_t pi_width_begin(struct pi_width *w, uint32_t n)
{
    struct ways v;
    uint32_t i;

    w->round++;
    if (n == 0)
        return 0;
    v = find_ways(w, n);
    if (v.n == 1 || w->held)
        return v.way[way_in_use(w, &v)].steps;
    i = unknown_way(&v);
    if (i == v.n)
        i = try_again(w, &v, choose(w, &v));
    return v.way[i].steps;
}

void pi_width_note(struct pi_width *w, uint32_t width, double seconds)
{
    struct pi_width_figure *f = &w->of[width];
    const bool stale = w->round - f->at > STALE;

    assert(width >= 1 && width <= w->most);
    /* Until it is known: one step a round; the second takes the first one's place, others where they are less. */
    if (f->n < SEEN) {
        if (f->n > 0 && f->at == w->round)
            return;
        f->n++;
        if (f->n <= 2 || seconds < f->seconds)
            f->seconds = seconds;
    } else {
        if (seconds > SURPRISE * f->seconds)
            seconds = SURPRISE * f->seconds;
        f->seconds += (stale ? 1.0 : SMOOTHING) * (seconds - f->seconds);
    }
    f->at = w->round;
}

bool pi_width_hold(struct pi_width *w, uint32_t n)
{
    struct ways v;

    if (w->chooses && n > 0) {
        v = find_ways(w, n);
        if (v.n > 1 && unknown_way(&v) < v.n)
            return false;
        if (v.n > 1)
            (void)choose(w, &v);
    }
    w->held = true;
    return true;
}
