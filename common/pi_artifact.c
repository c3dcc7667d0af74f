#include "config.h"

#include "common/pi_artifact.h"

#include "common/pi_alloc.h"
#include "common/pi_artifact_int.h"
#include "common/pi_gguf_int.h"
#include "common/pi_le.h"
#include "common/pi_pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define KEY_TYPE        "general.type"
#define KEY_KIND        "pi.artifact.kind"
#define KEY_VERSION     "pi.artifact.version"
#define KEY_CREATED_BY  "pi.created_by"
#define KEY_LINEAGE     "pi.model.lineage"
#define KEY_FINGERPRINT "pi.model.fingerprint"

static const struct {
    const char *name;
    const char *command; /* makes it anew; %s is the model */
} kinds[] = {
    [PI_ARTIFACT_PROFILE] = {"profile", "pi-profile %s --data FILE"},
    [PI_ARTIFACT_PREDICTOR] = {"predictor", "pi-train-predictor %s"},
    [PI_ARTIFACT_PLACEMENT] = {"placement", "pi-place %s --vram-budget SIZE"},
};

const char *pi_artifact_kind_name(enum pi_artifact_kind kind)
{
    return (size_t)kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind].name : "?";
}

/* ---- writing -------------------------------------------------------------------------------- */

enum pi_code pi_artifact_create(const char *path, enum pi_artifact_kind kind, uint32_t version,
                                const struct pi_lineage *lineage, const struct pi_fingerprint *fp,
                                struct pi_gguf_writer **w_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf_writer *w = NULL;

    PI_TRY(pi_gguf_writer_create(path, &w, err));
    PI_TRY(pi_gguf_set_string(w, KEY_TYPE, "pi-artifact", err));
    PI_TRY(pi_gguf_set_string(w, KEY_KIND, pi_artifact_kind_name(kind), err));
    PI_TRY(pi_gguf_set_u32(w, KEY_VERSION, version, err));
    PI_TRY(pi_gguf_set_string(w, KEY_CREATED_BY, PACKAGE_STRING, err));
    PI_TRY(pi_lineage_store(w, lineage, err));
    if (fp != NULL)
        PI_TRY(pi_gguf_set_string(w, KEY_FINGERPRINT, fp->hex, err));
    *w_out = w;
    w = NULL;
out:
    pi_gguf_abort(w);
    return rc;
}

enum pi_code pi_lineage_store(struct pi_gguf_writer *w, const struct pi_lineage *lineage,
                              struct pi_err *err)
{
    return pi_gguf_set_string(w, KEY_LINEAGE, lineage->hex, err);
}

/* ---- checksums ------------------------------------------------------------------------------ */

#define CRC_PIECE   ((uint64_t)16 << 20)
#define CRC_ALONE   ((uint64_t)64 << 20) /* bytes that are not worth starting threads for */
#define CRC_THREADS 32u                  /* more than saturate any memory */

struct crc_piece {
    const uint8_t *p;
    uint64_t n;
    uLong crc;
};

struct crc_pieces {
    struct crc_piece *pieces; /* (n) */
    size_t n, cap;
    uint64_t bytes;
};

static void sum_pieces(void *ctx, size_t begin, size_t end)
{
    struct crc_piece *p = ctx;

    for (size_t i = begin; i < end; i++)
        p[i].crc = crc32_z(0, p[i].p, p[i].n);
}

static enum pi_code cut_tensor(struct crc_pieces *c, const struct pi_gguf_tensor *t,
                               struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t n;

    for (uint64_t at = 0; at < t->bytes; at += n) {
        n = t->bytes - at < CRC_PIECE ? t->bytes - at : CRC_PIECE;
        PI_TRY(pi_grow_array(&c->pieces, &c->cap, c->n + 1, sizeof(*c->pieces), err));
        c->pieces[c->n++] = (struct crc_piece){.p = t->data + at, .n = n};
    }
    c->bytes += t->bytes;
out:
    return rc;
}

/* Large files on all cores: one sums 1 to 3 GB a second, which is 10 s of a 7B model's load in F16. */
static enum pi_code sum_all(const struct crc_pieces *c, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_pool *pool = NULL;
    const uint32_t cores = pi_pool_usable_cores();

    if (c->bytes <= CRC_ALONE || cores == 1) {
        sum_pieces(c->pieces, 0, c->n);
        return PI_OK;
    }
    PI_TRY(pi_pool_create(cores < CRC_THREADS ? cores : CRC_THREADS, &pool, err));
    pi_pool_for(pool, c->n, 1, sum_pieces, c->pieces);
out:
    pi_pool_destroy(pool);
    return rc;
}

/* The tensor's pieces put together; *at moves past them. */
static uLong join_pieces(const struct crc_pieces *c, uint64_t bytes, size_t *at)
{
    uLong crc = crc32_z(0, NULL, 0);

    for (uint64_t done = 0; done < bytes; (*at)++) {
        const struct crc_piece *p = &c->pieces[*at];

        crc = done == 0 ? p->crc : crc32_combine(crc, p->crc, (z_off_t)p->n);
        done += p->n;
    }
    return crc;
}

enum pi_code pi_gguf_check_crc(const struct pi_gguf *g, struct pi_err *err)
{
    const struct pi_gguf_kv *kv = NULL;
    struct crc_pieces c = {0};
    size_t at = 0;
    enum pi_code rc = pi_gguf_array(g, PI_GGUF_KEY_CRC, PI_GGUF_U32, false, &kv, err);

    if (rc != PI_OK || kv == NULL)
        return rc;
    if (kv->n != g->n_tensors)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %llu checksums for %zu tensors%s", g->map.path,
                          (unsigned long long)kv->n, g->n_tensors, pi_gguf_edited_hint(g));
    for (size_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i].data != NULL)
            PI_TRY(cut_tensor(&c, &g->tensors[i], err));
    PI_TRY(sum_all(&c, err));
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        uint32_t want = pi_load_u32(kv->data + 4 * i);
        uLong crc;

        if (t->data == NULL)
            continue;
        crc = join_pieces(&c, t->bytes, &at);
        if (crc != want)
            PI_FAIL(err, PI_E_CORRUPT, "%s: tensor %.*s has CRC-32 %08lx, %08x is stored%s",
                    g->map.path, (int)t->name.n, t->name.p, crc, want, pi_gguf_edited_hint(g));
    }
out:
    free(c.pieces);
    return rc;
}

static bool all_zero(const uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* What no CRC covers: the padding, which our writer makes zero, and the end of the file. */
static enum pi_code check_padding(const struct pi_gguf *g, struct pi_err *err)
{
    uint64_t end = g->data_offset;
    bool clean = g->map.size >= end &&
                 all_zero(g->map.data + g->header_bytes, g->data_offset - g->header_bytes);

    for (size_t i = 0; clean && i < g->n_tensors; i++) {
        const struct pi_gguf_tensor *t = &g->tensors[i];
        uint64_t pad = -t->bytes & (g->alignment - 1);
        uint64_t at = (uint64_t)(t->data - g->map.data) + t->bytes;

        clean = pad <= g->map.size - at && all_zero(t->data + t->bytes, pad);
        if (at + pad > end)
            end = at + pad;
    }
    if (!clean)
        return pi_err_set(err, PI_E_CORRUPT, "%s: damaged: the padding around a tensor is not zero",
                          g->map.path);
    if (end != g->map.size)
        return pi_err_set(err, PI_E_CORRUPT, "%s: damaged: the file has %zu bytes, not %llu",
                          g->map.path, g->map.size, (unsigned long long)end);
    return PI_OK;
}

/* ---- reading -------------------------------------------------------------------------------- */

static enum pi_code check_kind(const struct pi_gguf *g, enum pi_artifact_kind kind,
                               struct pi_err *err)
{
    const char *want = pi_artifact_kind_name(kind);
    struct pi_str have = {NULL, 0};
    enum pi_code rc = pi_gguf_string(g, KEY_KIND, false, &have, err);

    if (rc != PI_OK)
        return rc;
    if (have.p == NULL)
        return pi_err_set(err, PI_E_MISMATCH,
                          "%s: not a %s: it carries no key " KEY_KIND
                          " and is no artifact of these "
                          "programs",
                          g->map.path, want);
    if (!pi_str_eq(have, want))
        return pi_err_set(err, PI_E_MISMATCH, "%s: a %.*s, where a %s is needed", g->map.path,
                          (int)(have.n < 32 ? have.n : 32), have.p, want);
    return PI_OK;
}

static enum pi_code check_version(const struct pi_gguf *g, enum pi_artifact_kind kind,
                                  uint32_t known, struct pi_err *err)
{
    uint32_t version = 0;
    enum pi_code rc = pi_gguf_u32(g, KEY_VERSION, true, &version, err);

    if (rc == PI_OK && version >> 16 > known >> 16)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "%s: %s format %u.%u, this program knows up to %u.%u: update the programs, "
            "or make the file again with the present ones",
            g->map.path, pi_artifact_kind_name(kind), version >> 16, version & 0xffff, known >> 16,
            known & 0xffff);
    return rc;
}

enum pi_code pi_artifact_check_kind(const struct pi_gguf *g, enum pi_artifact_kind kind,
                                    uint32_t version_known, struct pi_err *err)
{
    enum pi_code rc = check_kind(g, kind, err);

    return rc == PI_OK ? check_version(g, kind, version_known, err) : rc;
}

enum pi_code pi_artifact_open(const char *path, enum pi_artifact_kind kind, uint32_t version_known,
                              struct pi_gguf *g_out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_gguf g = {0};

    PI_TRY(pi_gguf_open(path, 0, &g, err));
    PI_TRY(pi_artifact_check_kind(&g, kind, version_known, err));
    if (pi_gguf_find(&g, PI_GGUF_KEY_HEADER_CRC) == NULL ||
        (g.n_tensors > 0 && pi_gguf_find(&g, PI_GGUF_KEY_CRC) == NULL))
        PI_FAIL(err, PI_E_CORRUPT, "%s: damaged: its checksums are missing", path);
    PI_TRY(pi_gguf_check_crc(&g, err));
    PI_TRY(check_padding(&g, err));
    *g_out = g;
    return PI_OK;
out:
    pi_gguf_close(&g);
    return rc;
}

/* A key that holds a SHA-256 as 64 lower-case hex digits; *found is false when it is absent. */
static enum pi_code read_hash(const struct pi_gguf *g, const char *key, bool *found,
                              char hex[static PI_HASH_HEX + 1], struct pi_err *err)
{
    struct pi_str s = {NULL, 0};
    enum pi_code rc = pi_gguf_string(g, key, false, &s, err);

    *found = rc == PI_OK && s.p != NULL;
    if (!*found)
        return rc;
    if (s.n != PI_HASH_HEX)
        return pi_err_set(err, PI_E_CORRUPT, "%s: %s has %zu characters, not %d", g->map.path, key,
                          s.n, PI_HASH_HEX);
    for (size_t i = 0; i < s.n; i++)
        if (!((s.p[i] >= '0' && s.p[i] <= '9') || (s.p[i] >= 'a' && s.p[i] <= 'f')))
            return pi_err_set(err, PI_E_CORRUPT, "%s: %s is no hexadecimal number", g->map.path,
                              key);
    memcpy(hex, s.p, PI_HASH_HEX);
    hex[PI_HASH_HEX] = '\0';
    return PI_OK;
}

enum pi_code pi_artifact_lineage(const struct pi_gguf *g, struct pi_lineage *out,
                                 struct pi_err *err)
{
    bool found = false;
    enum pi_code rc = read_hash(g, KEY_LINEAGE, &found, out->hex, err);

    if (rc == PI_OK && !found)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key " KEY_LINEAGE " is missing", g->map.path);
    return rc;
}

enum pi_code pi_artifact_fingerprint(const struct pi_gguf *g, struct pi_fingerprint *out,
                                     struct pi_err *err)
{
    bool found = false;
    enum pi_code rc = read_hash(g, KEY_FINGERPRINT, &found, out->hex, err);

    if (rc == PI_OK && !found)
        return pi_err_set(err, PI_E_CORRUPT, "%s: key " KEY_FINGERPRINT " is missing", g->map.path);
    return rc;
}

/* The command that makes an artifact of this kind for this model, in buf. */
static const char *remedy(enum pi_artifact_kind kind, const char *model_path, char buf[static 256])
{
    const char *c = kinds[kind].command, *at = strstr(c, "%s");

    (void)snprintf(buf, 256, "%.*s%s%s", (int)(at - c), c, model_path, at + 2);
    return buf;
}

enum pi_code pi_binding_check(const struct pi_binding *b, const char *model_path,
                              const struct pi_lineage *lineage, const struct pi_fingerprint *fp,
                              struct pi_err *err)
{
    char command[256];

    if (strcmp(b->lineage.hex, lineage->hex) != 0)
        return pi_err_set(
            err, PI_E_MISMATCH,
            "%s: made for another model (lineage %.12s..., this model's is %.12s...); "
            "run %s",
            b->path, b->lineage.hex, lineage->hex, remedy(b->kind, model_path, command));
    if (fp != NULL && strcmp(b->fingerprint.hex, fp->hex) != 0)
        return pi_err_set(err, PI_E_MISMATCH,
                          "%s: made for another file of this model (fingerprint %.12s..., this "
                          "file's is %.12s...); run %s",
                          b->path, b->fingerprint.hex, fp->hex,
                          remedy(b->kind, model_path, command));
    return PI_OK;
}

enum pi_code pi_artifact_check_model(const struct pi_gguf *g, const char *model_path,
                                     const struct pi_lineage *lineage,
                                     const struct pi_fingerprint *fp, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_binding b = {.path = g->map.path};
    struct pi_str kind = {"", 0};
    size_t k = 0, n = sizeof(kinds) / sizeof(kinds[0]);

    PI_TRY(pi_gguf_string(g, KEY_KIND, true, &kind, err));
    while (k < n && !pi_str_eq(kind, kinds[k].name))
        k++;
    if (k == n)
        PI_FAIL(err, PI_E_MISMATCH, "%s: an artifact of unknown kind", g->map.path);
    b.kind = (enum pi_artifact_kind)k;
    PI_TRY(pi_artifact_lineage(g, &b.lineage, err));
    if (fp != NULL)
        PI_TRY(pi_artifact_fingerprint(g, &b.fingerprint, err));
    PI_TRY(pi_binding_check(&b, model_path, lineage, fp, err));
out:
    return rc;
}

enum pi_code pi_model_lineage(const struct pi_gguf *g, struct pi_lineage *out, struct pi_err *err)
{
    bool found = false;
    enum pi_code rc = read_hash(g, KEY_LINEAGE, &found, out->hex, err);

    return rc != PI_OK || found ? rc : pi_lineage_of_gguf(g, out, err);
}
