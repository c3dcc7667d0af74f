/* Models in several files, as llama.cpp's splitter names them. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_gguf_int.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PARTS 65535

/* "STEM-00001-of-00004.gguf" of part 0: the length of STEM, or false for another name. */
static bool stem_of(const char *path, uint32_t n_parts, size_t *n_stem)
{
    char end[40];
    const int k = snprintf(end, sizeof(end), "-00001-of-%05u.gguf", (unsigned)n_parts);
    const size_t n = strlen(path);

    if (k < 0 || n <= (size_t)k || strcmp(path + n - (size_t)k, end) != 0)
        return false;
    *n_stem = n - (size_t)k;
    return true;
}

static enum pi_code check_number(const struct pi_gguf *g, uint32_t want, uint32_t n_parts,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint32_t no = UINT32_MAX, n = 0;

    PI_TRY(pi_gguf_u32(g, "split.no", true, &no, err));
    PI_TRY(pi_gguf_u32(g, "split.count", true, &n, err));
    if (no != want || n != n_parts)
        PI_FAIL(err, want == 0 ? PI_E_UNSUPPORTED : PI_E_CORRUPT,
                "%s: part %" PRIu64 " of %" PRIu32 " of a split model, where part %" PRIu32
                " of %" PRIu32 " is due%s",
                g->map.path, (uint64_t)no + 1, n, want + 1, n_parts,
                want == 0 ? ": name the first part" : "");
out:
    return rc;
}

/* The tensors of all parts, as every part says it; *n_tensors stays where one does not. 0: none has said it yet. */
static enum pi_code check_total(const struct pi_gguf *g, uint64_t *n_tensors, struct pi_err *err)
{
    const uint64_t due = *n_tensors;
    enum pi_code rc = pi_gguf_u64(g, "split.tensors.count", false, n_tensors, err);

    if (rc == PI_OK && *n_tensors == 0 && pi_gguf_find(g, "split.tensors.count") != NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: a part of a model of no tensors", g->map.path);
    if (rc == PI_OK && due != 0 && *n_tensors != due)
        return pi_err_set(err, PI_E_CORRUPT,
                          "%s: a part of a model of %" PRIu64 " tensors, the first part is of one "
                          "of %" PRIu64,
                          g->map.path, *n_tensors, due);
    return rc;
}

/* Moves part's tensors and map into g, which owns them from then on; part is closed. */
static enum pi_code join(struct pi_gguf *g, struct pi_gguf *part, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t cap = g->n_tensors, cap_parts = g->n_parts;

    PI_TRY(
        pi_grow_array(&g->tensors, &cap, g->n_tensors + part->n_tensors, sizeof(*g->tensors), err));
    PI_TRY(pi_grow_array(&g->parts, &cap_parts, g->n_parts + 1, sizeof(*g->parts), err));
    if (part->n_tensors > 0)
        memcpy(g->tensors + g->n_tensors, part->tensors, part->n_tensors * sizeof(*g->tensors));
    g->n_tensors += part->n_tensors;
    g->parts[g->n_parts++] = part->map;
    part->map = (struct pi_map){0};
out:
    pi_gguf_close(part);
    return rc;
}

static enum pi_code open_part(const char *first, size_t n_stem, uint32_t no, uint32_t n_parts,
                              unsigned flags, uint64_t n_tensors, struct pi_gguf *g,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf part = {0};
    char *path = pi_asprintf(err, "%.*s-%05u-of-%05u.gguf", (int)n_stem, first, (unsigned)no + 1,
                             (unsigned)n_parts);

    if (path == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_gguf_open(path, flags, &part, err));
    PI_TRY(check_number(&part, no, n_parts, err));
    PI_TRY(check_total(&part, &n_tensors, err));
    PI_TRY(join(g, &part, err));
out:
    pi_gguf_close(&part);
    free(path);
    return rc;
}

enum pi_code pi_gguf_open_parts(const char *path, unsigned flags, struct pi_gguf *g_out,
                                struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf g = {0};
    uint32_t n_parts = 0;
    uint64_t n_tensors = 0;
    size_t n_stem = 0;

    PI_TRY(pi_gguf_open(path, flags, &g, err));
    PI_TRY(pi_gguf_u32(&g, "split.count", false, &n_parts, err));
    if (n_parts > 1) {
        PI_TRY(check_number(&g, 0, n_parts, err));
        if (n_parts > MAX_PARTS || !stem_of(path, n_parts, &n_stem))
            PI_FAIL(err, PI_E_UNSUPPORTED,
                    "%s: the first of %" PRIu32
                    " parts, which must be called NAME-00001-of-%05" PRIu32 ".gguf",
                    path, n_parts, n_parts);
        PI_TRY(check_total(&g, &n_tensors, err));
        for (uint32_t i = 1; i < n_parts; i++)
            PI_TRY(open_part(path, n_stem, i, n_parts, flags, n_tensors, &g, err));
        if (n_tensors != 0 && n_tensors != g.n_tensors)
            PI_FAIL(err, PI_E_CORRUPT, "%s: %zu tensors in all parts, %" PRIu64 " are due", path,
                    g.n_tensors, n_tensors);
        PI_TRY(pi_gguf_index_tensors(&g, err));
    }
    *g_out = g;
    g = (struct pi_gguf){0};
out:
    pi_gguf_close(&g);
    return rc;
}
