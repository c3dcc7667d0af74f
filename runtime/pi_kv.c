/* pi_kv.c - allocation of the KV cache. */
#include "config.h"

#include "runtime/pi_kv.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

static bool half_bytes(enum pi_type type, uint32_t n_layer, uint32_t n_seq, uint32_t n_ctx,
                       uint32_t n_embd_kv, uint64_t *out)
{
    uint64_t n;

    return (type == PI_TYPE_F16 || type == PI_TYPE_F32) && pi_size_mul(n_layer, n_seq, &n) &&
           pi_size_mul(n, n_ctx, &n) && pi_size_mul(n, n_embd_kv, &n) &&
           pi_size_mul(n, type == PI_TYPE_F16 ? 2 : 4, out);
}

enum pi_code pi_kv_bytes(enum pi_type type, uint32_t n_layer, uint32_t n_seq, uint32_t n_ctx,
                         uint32_t n_embd_kv, uint64_t *bytes_out, struct pi_err *err)
{
    uint64_t half;

    if (!half_bytes(type, n_layer, n_seq, n_ctx, n_embd_kv, &half) ||
        !pi_size_mul(half, 2, bytes_out))
        return pi_err_set(
            err, PI_E_RANGE,
            "KV cache of %u layers, %u sequences, %u positions, %u elements of type %s", n_layer,
            n_seq, n_ctx, n_embd_kv, pi_type_name(type));
    return PI_OK;
}

enum pi_code pi_kv_init(struct pi_kv *kv, enum pi_type type, uint32_t n_layer, uint32_t n_seq,
                        uint32_t n_ctx, uint32_t n_embd_kv, struct pi_err *err)
{
    uint64_t bytes;
    enum pi_code rc;

    memset(kv, 0, sizeof(*kv));
    PI_TRY(pi_kv_bytes(type, n_layer, n_seq, n_ctx, n_embd_kv, &bytes, err));
    kv->type = type;
    kv->n_layer = n_layer;
    kv->n_seq = n_seq;
    kv->n_ctx = n_ctx;
    kv->n_embd_kv = n_embd_kv;
    kv->row_bytes = (size_t)n_embd_kv * (type == PI_TYPE_F16 ? 2 : 4);
    PI_ALLOC(kv->k, bytes / 2, err);
    PI_ALLOC(kv->v, bytes / 2, err);
    PI_ALLOC(kv->len, n_seq, err);
out:
    if (rc != PI_OK) {
        pi_err_wrap(err, "KV cache of %u positions in %u sequences", n_ctx, n_seq);
        pi_kv_free(kv);
    }
    return rc;
}

void pi_kv_free(struct pi_kv *kv)
{
    free(kv->k);
    free(kv->v);
    free(kv->len);
    memset(kv, 0, sizeof(*kv));
}
