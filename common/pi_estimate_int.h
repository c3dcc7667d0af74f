/* pi_estimate_int.h - sums that know when they overflow; private to common/pi_estimate*.c. */
#ifndef PI_ESTIMATE_INT_H
#define PI_ESTIMATE_INT_H

#include "common/pi_estimate.h"
#include "common/pi_size.h"

/* A sum of products that remembers whether it ever overflowed. */
struct pi_tally {
    uint64_t sum;
    bool over;
};

static inline void pi_tally_add(struct pi_tally *t, uint64_t n, uint64_t bytes)
{
    uint64_t v;

    if (!pi_size_mul(n, bytes, &v) || !pi_size_add(t->sum, v, &t->sum))
        t->over = true;
}

/* An array on a device: padded to what the next one starts at. */
static inline void pi_tally_add_padded(struct pi_tally *t, uint64_t n, uint64_t bytes)
{
    uint64_t v;

    if (!pi_dev_matrix_bytes(n, bytes, &v) || !pi_size_add(t->sum, v, &t->sum))
        t->over = true;
}

static inline enum pi_code pi_tally_end(const struct pi_tally *t, const char *what, uint64_t *out,
                                        struct pi_err *err)
{
    if (t->over)
        return pi_err_set(err, PI_E_RANGE, "%s: more bytes than can be counted", what);
    *out = t->sum;
    return PI_OK;
}

/* Fills b->dev; everything else of b is set. */
enum pi_code pi_estimate_buffers(const struct pi_shape *shape, const struct pi_predictor *pred,
                                 const struct pi_run_size *run, struct pi_model_bytes *b,
                                 struct pi_err *err) PI_MUST_CHECK;
/* PI_E_MISMATCH for a placement of another shape. */
enum pi_code pi_estimate_check(const struct pi_model_bytes *b, const struct pi_placement *p,
                               struct pi_err *err) PI_MUST_CHECK;

#endif
