/* pi_engine_plan.c - the memory of an engine. */
#include "config.h"

#include "runtime/pi_engine_int.h"

#include "common/pi_alloc.h"
#include "common/pi_cgroup.h"
#include "common/pi_size.h"

#include <stdlib.h>
#include <string.h>

/* One array to come: everything is summed up and compared with the machine's memory before the first is allocated. */
struct need {
    void *slot; /* points to the pointer to set */
    uint64_t n, m, size;
};

struct plan {
    struct need *needs; /* (cap) */
    size_t n, cap;
    uint64_t bytes;
};

static enum pi_code plan_add(struct plan *p, void *slot, uint64_t n, uint64_t m, uint64_t size,
                             struct pi_err *err)
{
    uint64_t bytes;
    enum pi_code rc = pi_grow_array(&p->needs, &p->cap, p->n + 1, sizeof(*p->needs), err);

    if (rc != PI_OK)
        return rc;
    if (!pi_size_mul(n, m, &bytes) || !pi_size_mul(bytes, size, &bytes) ||
        !pi_size_pad(bytes, 64, &bytes) || !pi_size_add(p->bytes, bytes, &p->bytes))
        return pi_err_set(err, PI_E_NOMEM,
                          "scratch buffers of %llu x %llu elements overflow memory",
                          (unsigned long long)n, (unsigned long long)m);
    p->needs[p->n++] = (struct need){slot, n, m, size};
    return PI_OK;
}

static enum pi_code check_memory(uint64_t scratch, uint64_t kv, struct pi_err *err)
{
    const uint64_t have = pi_memory_limit("");
    uint64_t sum;

    if (!pi_size_add(scratch, kv, &sum) || sum > have)
        return pi_err_set(
            err, PI_E_NOMEM,
            "the KV cache needs %llu MiB and buffers %llu MiB, this process may use %llu MiB: use a smaller context (-c)",
            (unsigned long long)(kv >> 20), (unsigned long long)(scratch >> 20),
            (unsigned long long)(have >> 20));
    return PI_OK;
}

static enum pi_code plan_allocate(struct pi_engine *e, const struct plan *p, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_ALLOC(e->scratch, p->n, err);
    for (size_t i = 0; i < p->n; i++) {
        void *block;

        block = pi_calloc_aligned(p->needs[i].n * p->needs[i].m, p->needs[i].size, err);
        if (block == NULL) {
            pi_err_wrap(err, "buffers of %llu MiB for %u tokens a chunk",
                        (unsigned long long)(p->bytes >> 20), e->n_batch);
            return PI_E_NOMEM;
        }
        e->scratch[e->n_scratch++] = block;
        memcpy(p->needs[i].slot, &block, sizeof(block));
    }
out:
    return rc;
}

static uint32_t widest(const struct pi_predictor *p)
{
    uint32_t r = 1;

    for (uint32_t l = 0; p != NULL && l < p->n_layer; l++)
        r = p->layers[l].width > r ? p->layers[l].width : r;
    return r;
}

/* Blocks of the widest vector that a product reads. */
static uint64_t widest_q8(const struct pi_shape *sh)
{
    uint64_t n = pi_max_u32(sh->n_embd, sh->n_head * sh->head_dim);

    n = n > sh->n_ff ? n : sh->n_ff;
    n = n > sh->n_embd_tok ? n : sh->n_embd_tok;
    return n / PI_Q8_BLOCK + 1;
}

static enum pi_code plan_shared(struct pi_engine *e, struct plan *p, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    uint64_t d = sh->n_embd, n = pi_max_u32(e->n_batch, s->n_dec);
    uint64_t n_q = (uint64_t)sh->n_head * sh->head_dim,
             n_kv = (uint64_t)sh->n_head_kv * sh->head_dim, f = sizeof(float);
    const uint64_t wide = d > sh->n_embd_tok ? d : sh->n_embd_tok;
    enum pi_code rc;

    PI_TRY(plan_add(p, &s->iota, 1, pi_max_u32(sh->n_ff, s->kv.n_ctx), sizeof(*s->iota), err));
    PI_TRY(plan_add(p, &s->residual, n, d, f, err));
    PI_TRY(plan_add(p, &s->q, n, n_q, f, err));
    PI_TRY(plan_add(p, &s->attn, n, n_q, f, err));
    PI_TRY(plan_add(p, &s->rotation, n, sh->n_rot, f, err));
    PI_TRY(plan_add(p, &s->normed, e->n_batch, d, f, err));
    PI_TRY(plan_add(p, &s->tmp, e->n_batch, wide, f, err));
    PI_TRY(plan_add(p, &s->k, e->n_batch, n_kv, f, err));
    PI_TRY(plan_add(p, &s->v, e->n_batch, n_kv, f, err));
    PI_TRY(plan_add(p, &s->h, e->n_batch, sh->n_ff, f, err));
    if (sh->gated)
        PI_TRY(plan_add(p, &s->prod, e->n_batch, sh->n_ff, f, err));
    PI_TRY(plan_add(p, &s->down_tile, PI_DOWN_TILE, d, f, err));
    if (s->act == PI_ACT_TYPE_Q8)
        PI_TRY(plan_add(p, &s->q8, e->n_batch, widest_q8(sh), sizeof(*s->q8), err));
    if (s->keep_input)
        PI_TRY(plan_add(p, &s->layer_input, sh->parallel ? n : s->n_dec, d, f, err));
    for (int i = 0; s->keep_prev && i < 2; i++)
        PI_TRY(plan_add(p, &s->prev_attn[i], s->n_dec, d, f, err));
out:
    return rc;
}

/* Units whose neurons the CPU computes. */
static uint32_t cpu_units(const struct pi_engine *e)
{
    return e->opt.on_gpu ? 1 : e->s.n_units;
}

static enum pi_code plan_units(struct pi_engine *e, struct plan *p, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    uint64_t d = s->m->shape.n_embd, d_tok = s->m->shape.n_embd_tok, wide = d > d_tok ? d : d_tok;
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < cpu_units(e); i++) {
        struct pi_unit *u = &s->units[i];

        PI_TRY(plan_add(p, &u->wanted, 1, u->n_max, sizeof(*u->wanted), err));
        PI_TRY(plan_add(p, &u->gate, s->n_dec, u->n_max, sizeof(*u->gate), err));
        PI_TRY(plan_add(p, &u->prod, s->n_dec, u->n_max, sizeof(*u->prod), err));
        PI_TRY(plan_add(p, &u->n_cand, s->n_lanes, PI_COUNT_STRIDE, sizeof(*u->n_cand), err));
        PI_TRY(plan_add(p, &u->hidden, s->n_dec, widest(s->pred), sizeof(*u->hidden), err));
        PI_TRY(plan_add(p, &u->partial, s->n_dec, d, sizeof(*u->partial), err));
    }
    for (uint32_t i = 0; i < s->n_lanes; i++) {
        struct pi_lane *lane = &s->lanes[i];

        PI_TRY(plan_add(p, &lane->normed, s->n_dec, wide, sizeof(*lane->normed), err));
        if (s->m->embd_out.data != NULL)
            PI_TRY(plan_add(p, &lane->embd, s->n_dec, d_tok, sizeof(*lane->embd), err));
        if (s->act == PI_ACT_TYPE_Q8)
            PI_TRY(
                plan_add(p, &lane->q8, s->n_dec, widest_q8(&s->m->shape), sizeof(*lane->q8), err));
        PI_TRY(
            plan_add(p, &lane->scores, PI_ATTEND_TOKENS, s->kv.n_ctx, sizeof(*lane->scores), err));
        PI_TRY(plan_add(p, &lane->head, s->n_dec, s->m->shape.head_dim, sizeof(*lane->head), err));
    }
out:
    return rc;
}

static enum pi_code plan_cold(const struct pi_engine *e, struct plan *p, struct pi_err *err)
{
    for (uint32_t i = 0; i < cpu_units(e); i++) {
        uint64_t bytes =
            pi_cold_scratch_bytes(e->s.units[i].n_max, e->s.n_dec, e->s.m->shape.n_embd);

        if (!pi_size_add(p->bytes, bytes, &p->bytes))
            return pi_err_set(err, PI_E_NOMEM, "scratch buffers of %u neurons overflow memory",
                              e->s.units[i].n_max);
    }
    return PI_OK;
}

static enum pi_code create_cold(struct pi_engine *e, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (uint32_t i = 0; i < cpu_units(e); i++)
        PI_TRY(pi_cold_scratch_create(e->s.units[i].n_max, e->s.n_dec, e->s.m->shape.n_embd,
                                      &e->s.units[i].cold, err));
out:
    return rc;
}

enum pi_code pi_engine_allocate(struct pi_engine *e, struct pi_err *err)
{
    struct pi_state *s = &e->s;
    const struct pi_shape *sh = &s->m->shape;
    struct plan p = {0};
    uint32_t n_kv = sh->n_head_kv * sh->head_dim;
    uint64_t kv_bytes;
    enum pi_code rc;

    s->kv.n_ctx = e->opt.n_ctx;
    PI_TRY(plan_shared(e, &p, err));
    PI_TRY(plan_units(e, &p, err));
    PI_TRY(plan_cold(e, &p, err));
    PI_TRY(
        pi_kv_bytes(e->opt.kv_type, sh->n_layer, e->opt.n_seq, e->opt.n_ctx, n_kv, &kv_bytes, err));
    PI_TRY(check_memory(p.bytes, kv_bytes, err));
    PI_TRY(pi_kv_init(&s->kv, e->opt.kv_type, sh->n_layer, e->opt.n_seq, e->opt.n_ctx, n_kv, err));
    PI_TRY(plan_allocate(e, &p, err));
    PI_TRY(create_cold(e, err));
    for (uint32_t i = 0; i < pi_max_u32(sh->n_ff, e->opt.n_ctx); i++)
        s->iota[i] = i;
    if (!sh->gated)
        s->prod = s->h;
out:
    free(p.needs);
    return rc;
}
