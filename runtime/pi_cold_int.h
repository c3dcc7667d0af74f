/* pi_cold_int.h - what the files of pi_cold.h share: pi_cold.c runs a job, pi_cold_tile.c computes some neurons, pi_cold_own.c adds up the lists of tokens that
 * each have their own. */
#ifndef PI_COLD_INT_H
#define PI_COLD_INT_H

#include "runtime/pi_cold.h"

#include <stdalign.h>
#include <stdatomic.h>

#define PI_COLD_TILE    192 /* wanted neurons taken through gate, up and down together, at most */
#define PI_COLD_LINE    64
#define PI_COLD_PARTS   48 /* partial sums of a list at most */
#define PI_COLD_STREAMS 4  /* rows that the kernels read side by side */

struct pi_cold_scratch {
    alignas(PI_COLD_LINE) atomic_uint drawn; /* chunks beyond each thread's first; 0 between jobs */
    atomic_ullong first_rows, up_rows, down_rows, active,
        up_active; /* what threads counted, as struct pi_cold_stats; 0 between jobs */
    alignas(PI_COLD_LINE)
        atomic_uint drawn_parts; /* as drawn, of partial sums of tokens' own lists */
    alignas(PI_COLD_LINE) uint32_t n_max;
    uint32_t n_tok_max, n_parts; /* n_parts: partial sums of one token there is room for */
    size_t ld;                   /* floats from one partial sum to the next */
    uint32_t *fired;             /* (n_max) tokens for which the neuron's product stands in prod */
    float *prod;   /* (n_max, n_tok_max) packed, a chunk's from its first neuron's place on */
    uint8_t *used; /* (n_parts) the partial sum is not empty */
    float *part;   /* (n_parts, ld): (parts of a token, n_tok) */
    uint8_t *
        n_wanted; /* (chunks, n_tok) of tokens' own lists: neurons of the chunk that the token wants */
};

/* Some neurons with their tokens. Values that belong to it are packed: neuron after neuron, of each its tokens in ascending order. */
struct pi_cold_list {
    uint32_t n;
    uint32_t id[PI_COLD_TILE], mask[PI_COLD_TILE];
};

struct pi_cold_span {
    uint32_t begin, end;
};

/* One thread's way through the chunks. */
struct pi_cold_walk {
    const struct pi_cold_job *job;
    struct pi_cold_form form;
    bool own;                 /* each token's sum is that of its own list */
    uint32_t n_parts;         /* chunks with a partial sum */
    uint32_t n_one, n_chunks; /* what is drawn: groups of those; they and the other chunks */
    uint32_t begin[PI_COLD_PARTS + 1]; /* (n_parts + 1) where a chunk begins */
    uint8_t first[PI_COLD_PARTS + 1];  /* (n_one + 1) the chunk that a group begins with */
    uint32_t thread, n_threads;
    uint32_t next;              /* drawn for later */
    struct pi_cold_stats stats; /* of this thread */
    /* the chunk in hand of a group: where its sum is made, and whether there is anything in it; room for one that is added to another (NULL: not found yet) */
    float *to, *aside;
    bool begun;
};

static inline uint32_t pi_cold_n_set(uint32_t mask)
{
    /* the builtin is a call where the target has no such instruction */
    return (mask & (mask - 1)) == 0 ? mask != 0 : (uint32_t)__builtin_popcount(mask);
}

static inline uint32_t pi_cold_chunks_in(uint32_t n, uint32_t size)
{
    return n / size + (n % size != 0);
}

static inline uint32_t pi_cold_all_tokens(const struct pi_cold_job *job)
{
    return UINT32_MAX >> (32 - job->n_tok);
}

/* ---- pi_cold.c ---- */

/* The neurons of what is drawn as number i. */
struct pi_cold_span pi_cold_chunk(const struct pi_cold_walk *w, uint32_t i);
/* A form for n neurons within what the scratch has room for, n_tok partial sums at a time. */
struct pi_cold_form pi_cold_form_within(const struct pi_cold_scratch *s, struct pi_cold_form f,
                                        uint32_t n, uint32_t n_tok);
/* out[cols) of a token += its partial sums that are not empty, in order. */
void pi_cold_add_parts(const struct pi_cold_job *job, uint32_t t, uint32_t n_parts,
                       struct pi_cold_span cols);

/* ---- pi_cold_tile.c ---- */

/* The next neurons that some token wants, as many as a tile holds; *tile: from where to where they stand. The chunk ends at end. */
void pi_cold_list_wanted(const struct pi_cold_job *job, struct pi_cold_span *tile, uint32_t end,
                         struct pi_cold_list *l);
size_t pi_cold_n_values(const struct pi_cold_job *job, const struct pi_cold_list *l);
/* A list of wanted neurons to l, prod: what of them goes into down. last: the chunk ends with them and is done then but for what comes behind the barrier. */
void pi_cold_products(struct pi_cold_walk *w, bool last, struct pi_cold_list *l, float *prod);
/* y_t[cols) += rows of down of neurons some of the list times their products prod; y (n_tok, ld). */
void pi_cold_add_rows(const struct pi_cold_job *job, const struct pi_cold_list *l,
                      struct pi_cold_span some, const float *prod, struct pi_cold_span cols,
                      float *y, size_t ld);
/* Asks for the first rows of wanted neurons of a span. */
void pi_cold_ask(const struct pi_cold_job *job, struct pi_cold_span c);
/* Draws the next chunk, not long before the one in hand ends, and asks for its first rows. */
void pi_cold_draw(struct pi_cold_walk *w);

/* ---- pi_cold_own.c ---- */

/* Neurons of a chunk of products; a chunk has less than 256. */
uint32_t pi_cold_own_chunk(uint32_t n);
/* Notes how many neurons of chunk i each token wants. */
void pi_cold_own_count(const struct pi_cold_job *job, struct pi_cold_span c, uint32_t i);
/* Behind the products of all chunks and a barrier; a barrier inside, and out is written behind it. */
void pi_cold_own_sums(const struct pi_cold_walk *w, struct pi_cold_span cols);

#endif
