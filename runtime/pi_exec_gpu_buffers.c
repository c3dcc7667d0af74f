/* pi_exec_gpu_buffers.c - device and mapped memory of an executor of GPU and CPU. */
#include "config.h"

#include "runtime/pi_exec_gpu_int.h"

#include "common/pi_size.h"

/* Sub-arrays of one allocation: sizes are summed up first, then addresses given out. */
struct layout {
    uint64_t at;
    bool overflow;
    char *host, *dev; /* NULL while sizes are summed */
};

static uint64_t place(struct layout *a, uint64_t n, uint64_t m, uint64_t size)
{
    uint64_t at = a->at, bytes;

    if (!pi_size_mul(n, m, &bytes) || !pi_size_mul(bytes, size, &bytes) ||
        !pi_size_pad(bytes, 256, &bytes) || !pi_size_add(a->at, bytes, &a->at))
        a->overflow = true;
    return at;
}

static void *dev_array(struct layout *a, uint64_t n, uint64_t m, uint64_t size)
{
    uint64_t at = place(a, n, m, size);

    return a->dev != NULL ? a->dev + at : NULL;
}

static void map_array(struct layout *a, struct pi_xg_map *map, uint64_t n, uint64_t m,
                      uint64_t size)
{
    uint64_t at = place(a, n, m, size);

    if (a->host == NULL)
        return;
    map->host = a->host + at;
    map->dev = a->dev + at;
}

static uint32_t widest(const struct pi_dev_model *dm)
{
    uint32_t r = 1;

    for (uint32_t l = 0; l < dm->n_layer; l++)
        r = dm->layers[l].pred.width > r ? dm->layers[l].pred.width : r;
    return r;
}

static uint32_t most_parts(const struct pi_exec_gpu *x, uint32_t n_tok)
{
    uint32_t most = 1;

    for (uint32_t l = 0; l < x->dm->n_layer; l++) {
        uint32_t n = x->dm->layers[l].n_hot > 0
                         ? pi_k_down_parts(PI_K_FFN_PREDICTED, x->dm->layers[l].n_hot,
                                           x->dm->shape->n_embd, n_tok)
                         : 0;

        most = n > most ? n : most;
    }
    return most;
}

/* Floats of the partial sums over all buckets. */
static uint64_t parts_floats(const struct pi_exec_gpu *x)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < x->n_buckets; i++) {
        uint32_t n_tok = x->buckets[i].n_tok;
        uint64_t n = (uint64_t)most_parts(x, n_tok) * n_tok;

        most = n > most ? n : most;
    }
    return most;
}

static void lay_out_device(struct pi_exec_gpu *x, struct layout *a)
{
    const struct pi_state *s = x->s;
    const struct pi_shape *sh = x->dm->shape;
    struct pi_xg_dev *d = &x->d;
    uint64_t n = s->n_dec, e = sh->n_embd, q = (uint64_t)sh->n_head * sh->head_dim,
             f = sizeof(float), u = sizeof(uint32_t);

    d->step = dev_array(a, 1, 1, sizeof(*d->step));
    d->waited = dev_array(a, 1, 1, sizeof(*d->waited));
    d->relay = dev_array(a, x->schedule->n_slots, 1, u);
    d->set.ticket = dev_array(a, 1, 64, u);
    d->residual = dev_array(a, n, e, f);
    d->normed = dev_array(a, n, e, f);
    if (s->keep_input)
        d->layer_input = dev_array(a, n, e, f);
    for (int i = 0; s->keep_prev && i < 2; i++)
        d->prev_attn[i] = dev_array(a, n, e, f);
    d->q = dev_array(a, n, q, f);
    d->attn = dev_array(a, n, q, f);
    d->attn_scratch = dev_array(a, 1, pi_k_attn_scratch(sh, (uint32_t)n), 1);
    d->hidden = dev_array(a, n, widest(x->dm), f);
    d->set.n = dev_array(a, x->dm->n_layer, 1, u);
    d->set.local = dev_array(a, x->n_hot_max, 1, u);
    d->set.tokens = dev_array(a, x->n_hot_max, 1, u);
    d->set.marks = dev_array(a, sh->n_ff, 1, u);
    d->set.gate = dev_array(a, n, x->n_hot_max, f);
    d->h = dev_array(a, n, x->n_hot_max, f);
    d->parts = dev_array(a, parts_floats(x), e, f);
    d->logits = dev_array(a, n, sh->n_vocab, f);
}

static void lay_out_maps(struct pi_exec_gpu *x, struct layout *a)
{
    const struct pi_shape *sh = x->dm->shape;
    struct pi_xg_maps *m = &x->m;
    uint64_t n = x->s->n_dec, e = sh->n_embd, f = sizeof(float), u = sizeof(uint32_t);

    map_array(a, &m->slots, x->schedule->n_slots, PI_K_SLOT_BYTES, 1);
    map_array(a, &m->abort, 1, 1, u);
    map_array(a, &m->step, 1, 1, sizeof(struct pi_k_step));
    map_array(a, &m->embd, n, e, f);
    for (int i = 0; i < 2; i++) {
        map_array(a, &m->normed[i], n, e, f);
        map_array(a, &m->residual[i], n, e, f);
        map_array(a, &m->hot_part[i], n, e, f);
        map_array(a, &m->cold_n[i], 1, 1, u);
        map_array(a, &m->cold_ids[i], x->n_cold_max, 1, u);
        map_array(a, &m->cold_tokens[i], x->n_cold_max, 1, u);
        map_array(a, &m->normed_up[i], n, e, f);
        map_array(a, &m->residual_up[i], n, e, f);
        map_array(a, &m->cold_part[i], n, e, f);
    }
    map_array(a, &m->logits, n, sh->n_vocab, f);
    map_array(a, &m->set_counts, x->dm->n_layer, 1, u);
}

enum pi_code pi_xg_allocate(struct pi_exec_gpu *x, struct pi_err *err)
{
    struct layout dev = {0}, map = {0};
    enum pi_code rc;

    lay_out_device(x, &dev);
    lay_out_maps(x, &map);
    if (dev.overflow || map.overflow)
        return pi_err_set(err, PI_E_RANGE, "buffers of a step of %u tokens overflow", x->s->n_dec);
    PI_TRY(pi_gpu_alloc(x->index, dev.at, &x->buf, err));
    PI_TRY(pi_gpu_pin(x->index, map.at, &x->pinned, err));
    dev = (struct layout){.dev = x->buf.ptr};
    map = (struct layout){.host = x->pinned.host, .dev = x->pinned.dev};
    lay_out_device(x, &dev);
    lay_out_maps(x, &map);
out:
    if (rc != PI_OK)
        pi_err_wrap(err, "buffers of decode steps");
    return rc;
}
