/* Directories of weights: which files they are made of, and their tensors by name. */
#include "config.h"

#include "convert/pi_source.h"
#include "common/pi_alloc.h"
#include "convert/pi_json.h"
#include "convert/pi_safetensors.h"
#include "convert/pi_torch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

static int by_name(const void *pa, const void *pb)
{
    const struct pi_src_tensor *a = pa, *b = pb;

    return strcmp(a->name, b->name);
}

enum pi_code pi_source_sort(struct pi_source *src, struct pi_err *err)
{
    if (src->n > 0)
        qsort(src->t, src->n, sizeof(*src->t), by_name);
    for (size_t i = 1; i < src->n; i++)
        if (strcmp(src->t[i - 1].name, src->t[i].name) == 0)
            return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %s is also in %s", src->t[i].path,
                              src->t[i].name, src->t[i - 1].path);
    return PI_OK;
}

const struct pi_src_tensor *pi_source_find(const struct pi_source *src, const char *name)
{
    size_t lo = 0, hi = src->n;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = strcmp(src->t[mid].name, name);
        if (c == 0)
            return &src->t[mid];
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

#define CRC_PIECE ((uint64_t)4 << 20)

struct crc_work {
    const struct pi_src_sum *sum;
    uint32_t *crc; /* a piece */
};

static void crc_range(void *ctx, size_t begin, size_t end)
{
    const struct crc_work *w = ctx;

    for (size_t i = begin; i < end; i++) {
        const uint64_t at = i * CRC_PIECE, left = w->sum->bytes - at;

        w->crc[i] =
            (uint32_t)crc32_z(0, w->sum->data + at, (size_t)(left < CRC_PIECE ? left : CRC_PIECE));
    }
}

static enum pi_code check_sum(struct pi_src_sum *s, struct pi_pool *pool, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const size_t n = (size_t)((s->bytes + CRC_PIECE - 1) / CRC_PIECE);
    struct crc_work w = {s, NULL};
    uLong crc = 0;

    PI_ALLOC(w.crc, n, err);
    if (pool != NULL)
        pi_pool_for(pool, n, 1, crc_range, &w);
    else
        crc_range(&w, 0, n);
    for (size_t i = 0; i < n; i++) {
        const uint64_t left = s->bytes - i * CRC_PIECE;

        crc = crc32_combine(crc, w.crc[i], (z_off_t)(left < CRC_PIECE ? left : CRC_PIECE));
    }
    if (crc != s->crc)
        PI_FAIL(err, PI_E_CORRUPT, "%s: storage %s is damaged: its CRC-32 is %08lx, %08x is stored",
                s->path, s->name, crc, s->crc);
    s->checked = true;
out:
    free(w.crc);
    return rc;
}

enum pi_code pi_source_check(struct pi_source *src, const void *p, uint64_t n, struct pi_pool *pool,
                             struct pi_err *err)
{
    const uintptr_t begin = (uintptr_t)p;

    for (size_t i = 0; i < src->n_sums; i++) {
        struct pi_src_sum *s = &src->sums[i];
        const uintptr_t at = (uintptr_t)s->data;

        if (s->checked || at >= begin + n || at + s->bytes <= begin)
            continue;
        enum pi_code rc = check_sum(s, pool, err);
        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
}

static enum pi_code add_file(struct pi_source *src, const char *path, struct pi_err *err)
{
    struct pi_map m = {0};

    if (pi_grow_array(&src->maps, &src->cap_maps, src->n_maps + 1, sizeof(*src->maps), err) !=
        PI_OK)
        return PI_E_NOMEM;
    enum pi_code rc = pi_map_open(path, &m, err);
    if (rc != PI_OK)
        return rc;
    src->maps[src->n_maps++] = m;
    if (pi_is_lfs_pointer(m.data, m.size))
        return pi_err_set(err, PI_E_CORRUPT, "%s: " PI_LFS_POINTER, path);
    if (pi_torch_is(m.data, m.size))
        return pi_torch_parse(m.data, m.size, m.path, src, err);
    return pi_safetensors_parse(m.data, m.size, m.path, src, err);
}

static enum pi_code add_shard(struct pi_source *src, const char *dir, const char *file,
                              const char *index, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *path = NULL;
    struct stat st;

    if (*file == '\0' || strchr(file, '/') != NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no name of a shard in the same folder",
                          index, file);
    path = pi_asprintf(err, "%s/%s", dir, file);
    if (path == NULL)
        return PI_E_NOMEM;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        PI_FAIL(err, PI_E_IO, "%s: shard is missing (named by %s)", path, index);
    PI_TRY(add_file(src, path, err));
out:
    free(path);
    return rc;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Every tensor of the index lies in the shard that it names. */
static enum pi_code check_index(const struct pi_source *src, const json_t *map, const char *index,
                                struct pi_err *err)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)map, name, v)
    {
        const struct pi_src_tensor *t = pi_source_find(src, name);
        char want[1088];

        (void)snprintf(want, sizeof(want), "/%.1024s", json_string_value(v));
        if (t == NULL || !ends_with(t->path, want))
            return pi_err_set(err, PI_E_CORRUPT, "%s: tensor %.200s is not in %.200s", index, name,
                              json_string_value(v));
    }
    return PI_OK;
}

static int by_text(const void *pa, const void *pb)
{
    return strcmp(*(const char *const *)pa, *(const char *const *)pb);
}

/* The shards that an index names, in the order of their names. */
static enum pi_code open_sharded(const char *dir, const char *index, struct pi_source *src,
                                 struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_json j = {0};
    json_t *map, *v;
    const char *name, **files = NULL;
    size_t n = 0;

    PI_TRY(pi_json_load(dir, index, false, &j, err));
    map = json_object_get(j.root, "weight_map");
    if (!json_is_object(map) || json_object_size(map) == 0)
        PI_FAIL(err, PI_E_CORRUPT, "%s: no \"weight_map\"", j.path);
    PI_ALLOC(files, json_object_size(map), err);
    json_object_foreach(map, name, v)
    {
        if (!json_is_string(v))
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.200s has no shard", j.path, name);
        files[n++] = json_string_value(v);
    }
    qsort(files, n, sizeof(*files), by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(files[i - 1], files[i]) != 0)
            PI_TRY(add_shard(src, dir, files[i], j.path, err));
    PI_TRY(pi_source_sort(src, err));
    PI_TRY(check_index(src, map, j.path, err));
out:
    free(files);
    pi_json_free(&j);
    return rc;
}

/* What a directory of weights is told by, the better format first. */
static const struct {
    const char *name;
    bool index;
} kinds[] = {
    {"model.safetensors", false},
    {"model.safetensors.index.json", true},
    {"pytorch_model.bin", false},
    {"pytorch_model.bin.index.json", true},
};

static enum pi_code open_directory(const char *dir, struct pi_source *src, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    size_t kind = 0;
    char *file = NULL;

    while (kind < sizeof(kinds) / sizeof(kinds[0]) && !pi_json_exists(dir, kinds[kind].name))
        kind++;
    if (kind == sizeof(kinds) / sizeof(kinds[0]))
        PI_FAIL(
            err, PI_E_IO,
            "%s: neither model.safetensors nor pytorch_model.bin in it, nor an index of either (model.safetensors.index.json lists shards)",
            dir);
    if (kinds[kind].index)
        return open_sharded(dir, kinds[kind].name, src, err);
    file = pi_asprintf(err, "%s/%s", dir, kinds[kind].name);
    if (file == NULL)
        return PI_E_NOMEM;
    PI_TRY(add_file(src, file, err));
    PI_TRY(pi_source_sort(src, err));
out:
    free(file);
    return rc;
}

enum pi_code pi_source_open(const char *path, struct pi_source *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_source src = {0};
    struct stat st;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        PI_TRY(add_file(&src, path, err));
        PI_TRY(pi_source_sort(&src, err));
    } else {
        PI_TRY(open_directory(path, &src, err));
    }
    *out = src;
    src = (struct pi_source){0};
out:
    pi_source_close(&src);
    return rc;
}

void pi_source_drop(const struct pi_source *src, const void *p, size_t n)
{
    for (size_t i = 0; i < src->n_maps; i++)
        pi_map_drop(&src->maps[i], p, n);
}

void pi_source_drop_all(const struct pi_source *src)
{
    for (size_t i = 0; i < src->n_maps; i++)
        pi_map_drop(&src->maps[i], src->maps[i].data, src->maps[i].size);
}

void pi_source_close(struct pi_source *src)
{
    for (size_t i = 0; i < src->n; i++)
        free(src->t[i].name);
    for (size_t i = 0; i < src->n_maps; i++)
        pi_map_close(&src->maps[i]);
    free(src->t);
    free(src->maps);
    free(src->sums);
    *src = (struct pi_source){0};
}
