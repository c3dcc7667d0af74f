/*
 * pi_cold.h - the CPU's share of a feed-forward block that is split between units: a list of neurons, gathered from RAM, to a partial sum.
 *
 * All threads of a pool call pi_cold_run() with the same job inside one run of the pool. The list is cut into chunks by its length alone;
 * threads draw chunks one after the other, so that none waits for a slower one, and every sum keeps an order that is fixed by the
 * chunks: the same bytes on any number of threads, whoever was faster. A row is read once for all tokens that want it.
 *
 * Two forms, mixed along the list (struct pi_cold_form): the first chunks are done in one pass, gate, up and down, into a
 * partial sum for each chunk (or for some that join), and rows are read whole; of the others only the products are made before the barrier, and after it each thread adds
 * their down rows, and all partial sums, in its own columns.
 *
 * A token's sum is the same alone and among others, where the list is one that does not change with who is there (all neurons of a unit, masks or not), in the form that
 * pi_cold_form_fixed() has for it; and where the list is the union of what the tokens want, with masks and without a form: then partial sums are those of each
 * token's own list (pi_cold_own.c), and down's rows wait for all products. Not so lists without masks and without a form: they are for prompts.
 *
 * A job's memory is the caller's and stays as it is while threads are in the call; a scratch serves one job at a time.
 */
#ifndef PI_COLD_H
#define PI_COLD_H

#include "common/pi_placement.h"
#include "common/pi_pool.h"
#include "runtime/cpu/pi_cpu.h"
#include "runtime/pi_model.h"

#define PI_COLD_TOKENS 32 /* most tokens of a job: bits of a token mask */

/* How a list is worked off. Sizes of 0 are taken as 1, those beyond the list as the list's. */
struct pi_cold_form {
    uint32_t n_one;     /* neurons at the list's head that are done in one pass */
    uint32_t chunk_one; /* neurons of a chunk there... */
    uint32_t
        halve; /* ... of half as many behind so many chunks, and of a quarter behind so many more; 0: of all */
    uint32_t chunk_two; /* neurons of a chunk of the rest; leaves no trace in sums */
    uint32_t
        join; /* chunks, from a multiple of it on, whose sums are added up before they become part of the whole; a power of two */
    uint32_t
        group; /* chunks that a thread takes together in one pass, at most, fewer towards the end; leaves no trace in sums */
};

/* What a run read and found. */
struct pi_cold_stats {
    /* rows read from RAM: of the matrix that the activation is applied to (gate; up where there is no gate), of up beside a gate, of down */
    uint64_t first_rows, up_rows, down_rows;
    uint64_t active;    /* pairs of neuron and token that fired (DENSE: all) */
    uint64_t up_active; /* pairs for which up was computed: more where up is activated too */
};

struct pi_cold_scratch; /* opaque */

struct pi_cold_job {
    const struct pi_cpu *cpu;
    const struct pi_shape *shape;
    const struct pi_layer_weights *w; /* with down_t */
    struct pi_pool *pool;             /* the one whose threads make the call */
    struct pi_cold_scratch *scratch;
    uint32_t n_tok; /* 1..PI_COLD_TOKENS and the scratch's n_tok_max */
    const float *x; /* (n_tok, n_embd) the block's normed input; read by all threads */
    const struct pi_q8
        *q8; /* (n_tok, n_embd / 32) the same quantised, for matrices that are; NULL: x for all */
    uint32_t n;          /* at most the scratch's n_max; 0: out becomes 0 */
    const uint32_t *ids; /* (n) rows in the model's matrices, ascending */
    const uint32_t
        *tokens; /* (n) bit t: token t wants the neuron (others ignored); NULL: all want all */
    /* DENSE: gate, up and down of all that is listed. EXACT, PREDICTED: first the activation; up and down only where it is not 0. */
    enum pi_mode mode;
    const struct pi_cold_form *
        form; /* NULL: with tokens and n_tok > 1 each token's sum is that of a job of its own with the neurons that it wants; else pi_cold_form_of(n, n_tok) */
    float *out;                 /* (n_tok, n_embd) the neurons' sum, without down's bias */
    struct pi_cold_stats stats; /* set by the run */
};

/* The form of a list by measurement; what it returns depends on n and n_tok alone. */
struct pi_cold_form pi_cold_form_of(uint32_t n, uint32_t n_tok);
/* That of a list which is the same whatever tokens a step has (all neurons of a unit, with masks or without): a token's sum is the same alone and among others.
 * n_wanted: about how many of them a token wants (n where all do), which leaves no trace in sums. */
struct pi_cold_form pi_cold_form_fixed(uint32_t n, uint32_t n_wanted);

/* Bytes that pi_cold_scratch_create() takes; UINT64_MAX when they can not be counted. */
uint64_t pi_cold_scratch_bytes(uint32_t n_max, uint32_t n_tok_max, uint32_t n_embd);
/* For jobs of at most n_max neurons and n_tok_max tokens. PI_E_NOMEM; PI_E_RANGE for n_tok_max outside 1..PI_COLD_TOKENS. */
enum pi_code pi_cold_scratch_create(uint32_t n_max, uint32_t n_tok_max, uint32_t n_embd,
                                    struct pi_cold_scratch **out, struct pi_err *err) PI_MUST_CHECK;
void pi_cold_scratch_free(struct pi_cold_scratch *s); /* accepts NULL */

/* Neurons that a run worked on, each once: of a job with token masks those that some token wants, else those that fired. */
static inline uint64_t pi_cold_work(const struct pi_cold_job *job)
{
    return job->tokens != NULL ? job->stats.first_rows : job->stats.down_rows;
}

/* Called by all n_threads threads of job->pool inside one run. There are one or two barriers inside; out and stats are complete, and the scratch free for
 * the next job, after one barrier (or the end of the run) behind the call. */
void pi_cold_run(struct pi_cold_job *job, uint32_t thread, uint32_t n_threads);

#endif
