/*
 * pi_gpu_prompt_direct.c - cold rows that the GPU gathers out of the mapped file by itself: no copy by the CPU, no pinned slot. The pages between the
 * first and the last matrix of the file that is needed are pinned as they are.
 */
#include "config.h"

#include "runtime/pi_gpu_prompt_int.h"

#include "common/pi_alloc.h"

#include <stdlib.h>
#include <string.h>

struct pi_gp_direct {
    const uint8_t *host, *dev; /* what is registered, at both addresses */
    size_t bytes;
    bool *layer;          /* (n_layer) all its rows are there */
    struct pi_pinned ids; /* (n_layer, n_ff) uint32_t: each layer's cold neurons */
};

static bool plain(const struct pi_mat *w)
{
    return w->data == NULL || w->type == PI_TYPE_F32 || w->type == PI_TYPE_F16 ||
           w->type == PI_TYPE_BF16;
}

static bool inside(const struct pi_map *map, const struct pi_mat *w)
{
    const uint8_t *at = w->data;

    return at == NULL || (at >= map->data && at < map->data + map->size);
}

/* Neurons' biases are no rows: layers that have them go through slots. */
static bool suits(const struct pi_gpu_prompt *p, uint32_t l)
{
    const struct pi_layer_weights *w = &p->m->layers[l];
    const struct pi_map *map = &p->m->file.map;

    return p->dm->layers[l].n_cold > 0 && w->up_b == NULL && plain(&w->gate) && plain(&w->up) &&
           plain(&w->down_t) && inside(map, &w->gate) && inside(map, &w->up) &&
           inside(map, &w->down_t);
}

static void widen(const struct pi_mat *w, const uint8_t **begin, const uint8_t **end)
{
    const uint8_t *from = w->data, *to = from + (size_t)w->n_rows * w->row_bytes;

    if (from == NULL)
        return;
    *begin = *begin == NULL || from < *begin ? from : *begin;
    *end = *end == NULL || to > *end ? to : *end;
}

static enum pi_code list_ids(struct pi_gpu_prompt *p, struct pi_gp_direct *d, struct pi_err *err)
{
    const size_t n_ff = p->shape->n_ff;
    enum pi_code rc;

    PI_TRY(pi_gpu_pin(p->dm->index, p->dm->n_layer * n_ff * sizeof(uint32_t), &d->ids, err));
    for (uint32_t l = 0; l < p->dm->n_layer; l++)
        memcpy((uint32_t *)d->ids.host + l * n_ff, p->dm->layers[l].host_cold_ids,
               p->dm->layers[l].n_cold * sizeof(uint32_t));
out:
    return rc;
}

static void free_direct(struct pi_gp_direct *d)
{
    if (d == NULL)
        return;
    pi_gpu_unregister(d->host, d->bytes);
    pi_gpu_unpin(&d->ids);
    free(d->layer);
    free(d);
}

enum pi_code pi_gp_direct_create(struct pi_gpu_prompt *p, struct pi_err *err)
{
    const uint8_t *begin = NULL, *end = NULL;
    const void *dev = NULL;
    struct pi_gp_direct *d = NULL;
    enum pi_code rc;

    PI_ALLOC(d, 1, err);
    PI_ALLOC(d->layer, p->dm->n_layer, err);
    for (uint32_t l = 0; l < p->dm->n_layer; l++) {
        d->layer[l] = suits(p, l);
        if (!d->layer[l])
            continue;
        widen(&p->m->layers[l].gate, &begin, &end);
        widen(&p->m->layers[l].up, &begin, &end);
        widen(&p->m->layers[l].down_t, &begin, &end);
    }
    rc = PI_OK;
    if (begin == NULL)
        goto out;
    rc = pi_gpu_register(p->dm->index, begin, (size_t)(end - begin), &dev, err);
    if (rc == PI_E_UNSUPPORTED) { /* then through slots */
        rc = PI_OK;
        goto out;
    }
    if (rc != PI_OK)
        goto out;
    d->host = begin;
    d->dev = dev;
    d->bytes = (size_t)(end - begin);
    PI_TRY(list_ids(p, d, err));
    p->direct = d;
    d = NULL;
out:
    free_direct(d);
    return rc;
}

void pi_gp_direct_destroy(struct pi_gpu_prompt *p)
{
    free_direct(p->direct);
    p->direct = NULL;
}

bool pi_gp_is_direct(const struct pi_gpu_prompt *p, uint32_t layer)
{
    return p->direct != NULL && p->direct->layer[layer];
}

static void gather(struct pi_gpu_prompt *p, const struct pi_gp_piece *g, const struct pi_mat *w,
                   void *to)
{
    const struct pi_gp_direct *d = p->direct;
    const uint32_t *ids =
        (const uint32_t *)d->ids.dev + (size_t)g->layer * p->shape->n_ff + g->first;

    if (w->data != NULL)
        pi_kp_gather(d->dev + ((const uint8_t *)w->data - d->host), w->row_bytes, ids, g->n,
                     w->n_cols, w->type == PI_TYPE_F32 ? 4 : 2, to,
                     (size_t)pi_dev_row_bytes(w->type, w->n_cols), p->copy_stream);
}

void pi_gp_direct_gather(struct pi_gpu_prompt *p, const struct pi_gp_piece *g,
                         const struct pi_gp_slot_map *m, char *slot)
{
    const struct pi_layer_weights *w = &p->m->layers[g->layer];

    gather(p, g, &w->gate, slot + m->gate);
    gather(p, g, &w->up, slot + m->up);
    gather(p, g, &w->down_t, slot + m->down);
}
