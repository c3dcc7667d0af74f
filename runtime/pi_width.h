/*
 * pi_width.h - how many tokens of a decode batch go through the engine in one step.
 *
 * Tokens of a step share what they read, so the widest step is the fastest as a rule: it was wherever it was measured, on an H200 beside 15 threads and on two cores (docs/benchmarks.md). Where it
 * is not, for the CPU's part of a step may grow faster than its tokens, a batch should not pay for that. So a batch of n goes in steps of nearly the same width, as few as keep a limit: the
 * most that a step takes, or 16 or 8 (a GPU has graphs for powers of two); none is narrower
 * than PI_WIDTH_LEAST unless n is, for steps of 4 were slower than steps of 8 wherever they were measured. Which limit is chosen by the seconds that steps took, told by who runs them:
 * there is no clock here, the same figures give the same choices.
 *
 * What trying costs: four rounds of a width, once, those of different widths in turn, for a model that was just loaded becomes faster with every round. Of the first nothing is kept, of the
 * others the least. That is at most PI_WIDTH_TRIES rounds for one n. From then on the neighbour of the chosen limit whose figures are older is tried for one round in 64, in r times 64
 * where it took r times as long: at most a 64th of the time, as long as it has not become slower.
 *
 * Owned and embedded by the engine; allocates nothing. One thread at a time.
 */
#ifndef PI_WIDTH_H
#define PI_WIDTH_H

#include <stdbool.h>
#include <stdint.h>

#define PI_WIDTH_MOST  32u
#define PI_WIDTH_LEAST 5u
#define PI_WIDTH_TRIES 12u /* rounds: four for each of three limits */

/* What steps of one width took. */
struct pi_width_figure {
    double seconds; /* of a step, smoothed; outliers count for little */
    uint64_t at;    /* round of the newest */
    uint32_t n;     /* rounds seen, up to four */
};

struct pi_width {
    uint32_t most, limit; /* tokens of a step: what it takes, and the limit that is in use */
    bool chooses, held;
    uint64_t round, tried; /* rounds begun; the last one that tried an old figure again */
    struct pi_width_figure of[PI_WIDTH_MOST + 1]; /* by width */
};

/* most: 1 to PI_WIDTH_MOST. Without chooses it is the limit, whatever steps take. */
void pi_width_init(struct pi_width *w, uint32_t most, bool chooses);
/* Begins a round, a batch of n tokens: in how many steps it goes. The next of k steps takes pi_width_share() of the tokens that are left. */
uint32_t pi_width_begin(struct pi_width *w, uint32_t n);
/* A step of the round took so many seconds. */
void pi_width_note(struct pi_width *w, uint32_t width, double seconds);
/* For batches of n nothing is tried or chosen any more from now on; false, and of no effect, while there are limits to try. */
bool pi_width_hold(struct pi_width *w, uint32_t n);

static inline uint32_t pi_width_share(uint32_t n_left, uint32_t k)
{
    return n_left / k + (n_left % k > 0);
}

#endif
