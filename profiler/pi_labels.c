#include "config.h"

#include "profiler/pi_labels.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16.0f /* of c^2 over its mean */

void pi_labels_free(struct pi_labels *l)
{
    free(l->code);
    memset(l, 0, sizeof(*l));
}

struct job {
    const struct pi_trainset *s;
    const struct pi_block *b;
    const struct pi_cpu *cpu;
    struct pi_labels *l;
    float *norm2; /* (n_ff) |down_i|^2 over the mean of c^2 */
};

/* |down_i|^2, then divided by the mean of c^2 over the active neurons that m knows. */
static void fill_norms(const struct job *j, const struct pi_damage *m)
{
    const uint32_t d = j->s->d, n_ff = j->s->n_ff;
    const size_t n = m->begin[m->n];
    double sum = 0;

    for (uint32_t i = 0; i < n_ff; i++)
        j->norm2[i] = j->cpu->sum_squares(j->b->down_t + (size_t)i * d, d);
    for (size_t a = 0; a < n; a++)
        sum += (double)m->prod[a] * (double)m->prod[a] * (double)j->norm2[m->id[a]];
    for (uint32_t i = 0; i < n_ff; i++)
        j->norm2[i] *= sum > 0 ? (float)((double)n / sum) : 1.0f;
}

static uint8_t code_of(const struct job *j, uint32_t i, const float *x)
{
    float prod, c2, w;

    if (j->b == NULL)
        return 1;
    prod = pi_block_neuron(j->b, j->cpu, i, x, j->s->d);
    c2 = fminf(prod * prod * j->norm2[i], MOST);
    w = PI_LABELS_POSITIVE * (1.0f - PI_LABELS_SHARE + PI_LABELS_SHARE * c2);
    return (uint8_t)fminf(255.0f, fmaxf(1.0f, w / j->l->scale + 0.5f));
}

static void fill_rows(void *ctx, size_t begin, size_t end)
{
    const struct job *j = ctx;

    for (size_t k = begin; k < end; k++) {
        const uint32_t sample = j->s->part[PI_PART_TRAIN][k];
        const uint8_t *mask = j->s->mask + sample * j->s->mask_bytes;
        const float *x = pi_trainset_block_x(j->s) + (size_t)sample * j->s->d;
        uint8_t *code = j->l->code + k * j->l->ld;

        for (uint32_t i = 0; i < j->s->n_ff; i++)
            if (mask[i / 8] >> i % 8 & 1)
                code[i] = code_of(j, i, x);
    }
}

enum pi_code pi_labels_make(const struct pi_trainset *s, const struct pi_block *b,
                            const struct pi_damage *m, struct pi_pool *pool, struct pi_labels *out,
                            struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_labels l = {.ld = ((size_t)s->n_ff + 7) / 8 * 8, .scale = PI_LABELS_POSITIVE};
    struct job j = {.s = s, .b = b, .l = &l};

    PI_TRY(pi_cpu_select(&j.cpu, err));
    l.code = pi_calloc_aligned(s->n_part[PI_PART_TRAIN], l.ld, err);
    if (l.code == NULL)
        return PI_E_NOMEM;
    PI_ALLOC(j.norm2, s->n_ff, err);
    if (b != NULL) {
        l.scale *= (1.0f - PI_LABELS_SHARE + PI_LABELS_SHARE * MOST) / 255.0f;
        fill_norms(&j, m);
    }
    pi_pool_for(pool, s->n_part[PI_PART_TRAIN], 64, fill_rows, &j);
    *out = l;
    memset(&l, 0, sizeof(l));
out:
    pi_labels_free(&l);
    free(j.norm2);
    return rc;
}
