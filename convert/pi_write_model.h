/*
 * pi_write_model.h - weights on their way into a GGUF file: re-ordered, transposed, converted, streamed.
 *
 * A plan lists the target's tensors with where their values come from. Writing takes memory for a few blocks of rows, not for a tensor; the blocks are converted in parallel and
 * appended in order, so that the bytes do not depend on the thread count.
 */
#ifndef PI_WRITE_MODEL_H
#define PI_WRITE_MODEL_H

#include "common/pi_artifact.h"
#include "common/pi_err.h"
#include "common/pi_gguf.h"
#include "common/pi_pool.h"
#include "common/pi_type.h"
#include "convert/pi_note.h"
#include "convert/pi_recipe.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Why a tensor has another type than it was to have. */
enum pi_plan_why {
    PI_PLAN_AS_ASKED,
    PI_PLAN_ROWS,      /* its rows are no multiple of the type's block */
    PI_PLAN_TRANSPOSED /* quantised in the source and to be transposed */
};

/* How the feed-forward blocks' down projections are to lie. */
enum pi_layout {
    PI_LAYOUT_AUTO,   /* by neuron, but where that gains nothing and costs something */
    PI_LAYOUT_NEURON, /* ffn_down_t: a row a neuron, as sparse runs and GPUs read them */
    PI_LAYOUT_ROW     /* ffn_down: a row an output, as other programs store and read them */
};

/* What quantisation cost: x the source's values, y what the target holds. */
struct pi_plan_error {
    bool known;          /* measured: quantised here */
    double sum_err, sum; /* of (x - y)^2, of x^2 */
    double max_err, max; /* max |x - y|, max |x| */
};

struct pi_plan_tensor {
    char *name;      /* owned; the target's */
    uint32_t n_dims; /* 1: always stored as F32; more: rows and columns, as in 2 dimensions */
    uint64_t n_rows, n_cols; /* of the target; n_rows 1 for a vector */
    enum pi_type src_type;
    /* source rows, one behind the other, any alignment; borrowed unless owned is set */
    const uint8_t *data;
    const char *src_path, *src_name; /* for messages; borrowed */
    size_t src_name_n;               /* bytes of src_name */
    bool transpose;                  /* the source is (n_cols, n_rows) */
    /* > 0: rows are rotary heads to be interleaved as llama.cpp stores them, this many of them */
    uint32_t rot_heads;
    /* > 0: rows stand in this many groups of (queries heads, k, v); they become all queries, all k, all v */
    uint32_t qkv_groups, qkv_queries;
    float add; /* to every element (Nemotron's norms are stored less 1) */
    /* the bytes as they are (integer tensors and the like), type src_type, shape ne */
    bool verbatim;
    uint64_t ne[PI_GGUF_MAX_DIMS]; /* verbatim only */
    uint64_t bytes;                /* verbatim only */
    float *owned;                  /* values made here; data points to them */
    /* chosen by pi_plan_choose_types(): the target's type, and what it was to be */
    enum pi_type type, asked;
    enum pi_plan_why why;
    struct pi_plan_error error; /* filled in by pi_plan_write() */
};

struct pi_plan {
    struct pi_plan_tensor *t; /* (n) */
    size_t n, cap;
};

/* A zeroed entry at the end with a copy of name, or NULL with *err set. Valid until the next one. */
struct pi_plan_tensor *pi_plan_add(struct pi_plan *p, const char *name,
                                   struct pi_err *err) PI_MUST_CHECK;
void pi_plan_free(struct pi_plan *p); /* accepts a zeroed one */

struct pi_write_options {
    /* told which bytes of the source are not needed again; or NULL */
    void (*drop)(void *ctx, const void *p, size_t n);
    /* called before a tensor's bytes are read; or NULL. What it refuses ends the writing */
    enum pi_code (*check)(void *ctx, const void *p, uint64_t n, struct pi_err *err);
    void *drop_ctx;                 /* of both */
    const struct pi_recipe *recipe; /* of matrices */
    enum pi_layout layout;
    bool sparse;                    /* the activation has zeros; PI_LAYOUT_AUTO asks for it */
    bool keep_quantised;            /* quantised sources keep their type (no --type was given) */
    struct pi_keep *keep;           /* (n_keep) exceptions; their counts are written */
    size_t n_keep;
    bool verbose;         /* notes on every tensor, not on the first few */
    struct pi_pool *pool; /* borrowed */
    bool progress;
    const struct pi_notes *notes;
};

/* Sets layout and type of every tensor. Entries come with down projections by neuron (ffn_down_t); they become rows (ffn_down) where the layout says so, which
 * PI_LAYOUT_AUTO does where no neuron can be left out and a row a neuron would be rounded a second time or need a wider type than was asked for.
 * Types: vectors F32; matrices as the first pattern of keep says, else as the recipe does; a row that is no multiple of the type's block
 * falls back (pi_recipe_fit(); listed); a quantised source that must be transposed gets Q8_0 at least, F16 where rows are no multiple of 32: never 4 bits twice,
 * unless a pattern names it. PI_E_UNSUPPORTED for types without kernels, naming the tensor; PI_E_USAGE for a pattern that does nothing. */
enum pi_code pi_plan_choose_types(struct pi_plan *p, const struct pi_write_options *opt,
                                  struct pi_err *err) PI_MUST_CHECK;

/* Bytes of a tensor in its chosen type. */
uint64_t pi_plan_bytes(const struct pi_plan_tensor *t);
/* Bytes of the buffers that writing takes. */
uint64_t pi_plan_memory(const struct pi_plan *p, const struct pi_pool *pool);
/* Relative RMS error, sqrt(sum (x - y)^2 / sum x^2); 0 for zeros. */
double pi_plan_error_rms(const struct pi_plan_error *e);
/* The largest |x - y| as a share of the largest |x|. */
double pi_plan_error_max(const struct pi_plan_error *e);

/* Adds the tensors to w. */
enum pi_code pi_plan_declare(const struct pi_plan *p, struct pi_gguf_writer *w,
                             struct pi_err *err) PI_MUST_CHECK;
/* Begins w's data and streams it, after pi_plan_declare(). PI_E_CORRUPT for a value that is not finite, PI_E_UNSUPPORTED for one beyond F16's range when that is
 * asked for; PI_E_IO, PI_E_NOSPACE, PI_E_NOMEM, PI_E_INTERRUPTED. */
enum pi_code pi_plan_write(struct pi_plan *p, const struct pi_write_options *opt,
                           struct pi_gguf_writer *w, struct pi_err *err) PI_MUST_CHECK;

#endif
