#include "config.h"

#include "runtime/pi_sampler.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct cand {
    float logit;
    int32_t id;
};

struct pi_sampler {
    struct pi_sampler_options opt;
    uint32_t n_vocab;
    struct cand *cand; /* (n_vocab), owned */
    double *weight;    /* (n_vocab), owned */
    uint64_t *marks;   /* (n_vocab) the last pick that saw the id in its penalty window; owned */
    uint64_t pick;     /* picks so far: the current mark */
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

double pi_random_unit(uint64_t seed, uint64_t counter)
{
    /* The seed is mixed first, so that (seed, counter + 1) and (seed + golden, counter) are unrelated. */
    uint64_t z = mix(mix(seed + 0x9e3779b97f4a7c15ull) + (counter + 1) * 0x9e3779b97f4a7c15ull);

    return (double)(z >> 11) * 0x1p-53;
}

enum pi_code pi_sampler_create(uint32_t n_vocab, const struct pi_sampler_options *opt,
                               struct pi_sampler **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_sampler *s = NULL;

    PI_ALLOC(s, 1, err);
    s->opt = *opt;
    s->n_vocab = n_vocab;
    PI_ALLOC(s->cand, n_vocab, err);
    PI_ALLOC(s->weight, n_vocab, err);
    PI_ALLOC(s->marks, n_vocab, err);
    *out = s;
    s = NULL;
out:
    pi_sampler_destroy(s);
    return rc;
}

void pi_sampler_destroy(struct pi_sampler *s)
{
    if (s == NULL)
        return;
    free(s->cand);
    free(s->weight);
    free(s->marks);
    free(s);
}

/* True when a comes before b: greater logit, then lower id. */
static bool before(struct cand a, struct cand b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

static int compare(const void *pa, const void *pb)
{
    const struct cand *a = pa, *b = pb;

    return before(*a, *b) ? -1 : before(*b, *a);
}

/* Marks the ids of the penalty window; ids outside the vocabulary are no concern of ours. */
static void mark_recent(struct pi_sampler *s, const int32_t *history, size_t n_history)
{
    size_t n = n_history < s->opt.repeat_last_n ? n_history : s->opt.repeat_last_n;

    s->pick++;
    for (size_t i = n_history - n; i < n_history; i++)
        if (history[i] >= 0 && (uint32_t)history[i] < s->n_vocab)
            s->marks[history[i]] = s->pick;
}

/* The finite logits after the repeat penalty (CTRL, Keskar et al. 2019, with the sign rule that makes it a
 * penalty for negative logits too). Returns how many. */
static uint32_t gather(struct pi_sampler *s, const float *logits, const int32_t *history,
                       size_t n_history)
{
    const float penalty = s->opt.repeat_penalty;
    uint32_t n = 0;

    mark_recent(s, history, penalty != 1.0f ? n_history : 0);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        float l = logits[i];

        if (penalty != 1.0f && s->marks[i] == s->pick)
            l = l > 0 ? l / penalty : l * penalty;
        if (isfinite(l))
            s->cand[n++] = (struct cand){.logit = l, .id = (int32_t)i};
    }
    return n;
}

static void sift_down(struct cand *heap, uint32_t n, uint32_t i)
{
    for (;;) {
        uint32_t worst = i, c = 2 * i + 1;

        if (c < n && before(heap[worst], heap[c]))
            worst = c;
        if (c + 1 < n && before(heap[worst], heap[c + 1]))
            worst = c + 1;
        if (worst == i)
            return;
        struct cand t = heap[i];
        heap[i] = heap[worst];
        heap[worst] = t;
        i = worst;
    }
}

/* Moves the k best of n to the front, in no order: a heap of k with the worst on top. */
static void select_top(struct cand *c, uint32_t n, uint32_t k)
{
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(c, k, i);
    for (uint32_t i = k; i < n; i++)
        if (before(c[i], c[0])) {
            c[0] = c[i];
            sift_down(c, k, 0);
        }
}

static struct cand best_of(const struct cand *c, uint32_t n)
{
    struct cand best = c[0];

    for (uint32_t i = 1; i < n; i++)
        if (before(c[i], best))
            best = c[i];
    return best;
}

/* Sorts and cuts the candidates by top-p and min-p; returns how many stay, at least one. Probabilities are those
 * before temperature. What min-p drops is dropped before the sort: it could not stay, and top-p's sums run over the
 * most probable first, so they are the same. */
static uint32_t truncate_tail(struct pi_sampler *s, uint32_t n)
{
    const struct pi_sampler_options *o = &s->opt;
    const double max = (double)best_of(s->cand, n).logit;
    double total = 0, sum = 0;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        double p = exp((double)s->cand[i].logit - max);

        total += p;
        if (p >= (double)o->min_p)
            s->cand[kept++] = s->cand[i];
    }
    qsort(s->cand, kept, sizeof(*s->cand), compare);
    if (o->top_p >= 1.0f)
        return kept;
    for (uint32_t i = 0; i < kept; i++) {
        sum += exp((double)s->cand[i].logit - max);
        if (sum >= (double)o->top_p * total)
            return i + 1;
    }
    return kept;
}

/* Draws from the first n candidates (sorted) at the sampler's temperature. */
static int32_t draw(struct pi_sampler *s, uint32_t n, uint64_t pos)
{
    const double max = (double)s->cand[0].logit;
    double total = 0, u;

    for (uint32_t i = 0; i < n; i++) {
        s->weight[i] = exp(((double)s->cand[i].logit - max) / (double)s->opt.temp);
        total += s->weight[i];
    }
    u = pi_random_unit(s->opt.seed, pos) * total;
    for (uint32_t i = 0; i < n; i++) {
        if (u < s->weight[i])
            return s->cand[i].id;
        u -= s->weight[i];
    }
    return s->cand[0].id; /* only rounding leads here */
}

enum pi_code pi_sampler_pick(struct pi_sampler *s, const float *logits, uint64_t pos,
                             const int32_t *history, size_t n_history, int32_t *token_out,
                             struct pi_err *err)
{
    uint32_t n = gather(s, logits, history, n_history);

    if (n == 0)
        return pi_err_set(err, PI_E_SELFCHECK, "position %llu: none of the %u logits is finite",
                          (unsigned long long)pos, (unsigned)s->n_vocab);
    if (s->opt.temp == 0.0f) {
        *token_out = best_of(s->cand, n).id;
        return PI_OK;
    }
    if (s->opt.top_k > 0 && s->opt.top_k < n) {
        select_top(s->cand, n, s->opt.top_k);
        n = s->opt.top_k;
    }
    *token_out = draw(s, truncate_tail(s, n), pos);
    return PI_OK;
}
