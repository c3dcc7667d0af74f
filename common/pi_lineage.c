/* Hashes that name models. */
#include "config.h"

#include "common/pi_artifact.h"

#include "common/pi_alloc.h"
#include "common/pi_gguf_int.h"
#include "common/pi_le.h"

#include <stdlib.h>
#include <string.h>

#include <sys/types.h>
#include <sha2.h>

#define SAMPLE_PIECES 64
#define SAMPLE_BYTES  64

struct pi_lineage_sum {
    uint8_t *digests; /* (n, SHA256_DIGEST_LENGTH): one a record, sorted at the end */
    size_t n, cap;
};

static void hash_u64(SHA2_CTX *c, uint64_t v)
{
    uint8_t p[8];

    pi_store_u64(p, v);
    SHA256Update(c, p, sizeof(p));
}

/* Length first: two fields can never be cut elsewhere and look the same. */
static void hash_field(SHA2_CTX *c, const void *p, uint64_t n)
{
    hash_u64(c, n);
    SHA256Update(c, p, n);
}

/* Up to SAMPLE_PIECES pieces, spread evenly from the first byte to the last; all of a small tensor. */
static void hash_sample(SHA2_CTX *c, const uint8_t *p, uint64_t n)
{
    uint64_t span, step, rest;

    hash_u64(c, n);
    if (n <= SAMPLE_PIECES * SAMPLE_BYTES) {
        SHA256Update(c, p, n);
        return;
    }
    span = n - SAMPLE_BYTES;
    step = span / (SAMPLE_PIECES - 1);
    rest = span % (SAMPLE_PIECES - 1);
    for (uint64_t i = 0; i < SAMPLE_PIECES; i++)
        SHA256Update(c, p + i * step + i * rest / (SAMPLE_PIECES - 1), SAMPLE_BYTES);
}

static void hash_hex(SHA2_CTX *c, char hex[static PI_HASH_HEX + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t d[SHA256_DIGEST_LENGTH];

    SHA256Final(d, c);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) {
        hex[2 * i] = digits[d[i] >> 4];
        hex[2 * i + 1] = digits[d[i] & 15];
    }
    hex[PI_HASH_HEX] = '\0';
}

enum pi_code pi_lineage_begin(struct pi_lineage_sum **out, struct pi_err *err)
{
    *out = pi_calloc_array(1, sizeof(**out), err);
    return *out != NULL ? PI_OK : PI_E_NOMEM;
}

static enum pi_code add_record(struct pi_lineage_sum *s, SHA2_CTX *c, struct pi_err *err)
{
    enum pi_code rc =
        pi_grow_array(&s->digests, &s->cap, (s->n + 1) * SHA256_DIGEST_LENGTH, 1, err);

    if (rc == PI_OK)
        SHA256Final(s->digests + s->n++ * SHA256_DIGEST_LENGTH, c);
    return rc;
}

enum pi_code pi_lineage_key(struct pi_lineage_sum *s, const char *name, const void *value, size_t n,
                            struct pi_err *err)
{
    SHA2_CTX c;

    SHA256Init(&c);
    hash_field(&c, "key", 3);
    hash_field(&c, name, strlen(name));
    hash_field(&c, value, n);
    return add_record(s, &c, err);
}

enum pi_code pi_lineage_tensor(struct pi_lineage_sum *s, struct pi_str name, const uint64_t *ne,
                               uint32_t n_dims, const void *data, uint64_t n, struct pi_err *err)
{
    SHA2_CTX c;

    SHA256Init(&c);
    hash_field(&c, "tensor", 6);
    hash_field(&c, name.p, name.n);
    hash_u64(&c, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        hash_u64(&c, ne[i]);
    if (data != NULL)
        hash_sample(&c, data, n);
    return add_record(s, &c, err);
}

static int cmp_digest(const void *a, const void *b)
{
    return memcmp(a, b, SHA256_DIGEST_LENGTH);
}

enum pi_code pi_lineage_end(struct pi_lineage_sum *s, struct pi_lineage *out, struct pi_err *err)
{
    SHA2_CTX c;

    (void)err;
    if (s->n > 0)
        qsort(s->digests, s->n, SHA256_DIGEST_LENGTH, cmp_digest);
    SHA256Init(&c);
    hash_field(&c, "pi lineage 1", 12);
    for (size_t i = 0; i < s->n; i++)
        SHA256Update(&c, s->digests + i * SHA256_DIGEST_LENGTH, SHA256_DIGEST_LENGTH);
    hash_hex(&c, out->hex);
    pi_lineage_abort(s);
    return PI_OK;
}

void pi_lineage_abort(struct pi_lineage_sum *s)
{
    if (s == NULL)
        return;
    free(s->digests);
    free(s);
}

/* ---- of a GGUF file ------------------------------------------------------------------------- */

static uint64_t value_bytes(const struct pi_gguf_kv *kv)
{
    uint64_t n = 0;

    if (kv->elem != PI_GGUF_STR)
        return kv->n * pi_gguf_scalar_bytes(kv->elem);
    for (uint64_t i = 0; i < kv->n; i++)
        n += 8 + kv->strs[i].n;
    return n;
}

static enum pi_code add_gguf_key(struct pi_lineage_sum *s, const struct pi_gguf_kv *kv,
                                 struct pi_err *err)
{
    SHA2_CTX c;

    SHA256Init(&c);
    hash_field(&c, "gguf key", 8);
    hash_field(&c, kv->key.p, kv->key.n);
    hash_u64(&c, kv->type);
    hash_u64(&c, kv->elem);
    hash_field(&c, kv->data, value_bytes(kv));
    return add_record(s, &c, err);
}

/* ffn_down_t.weight is hashed as ffn_down.weight with its dimensions turned, both without data. */
static enum pi_code add_gguf_tensor(struct pi_lineage_sum *s, const struct pi_gguf_tensor *t,
                                    struct pi_err *err)
{
    static const char turned[] = ".ffn_down_t.", plain[] = ".ffn_down.";
    char name[PI_GGUF_MAX_NAME + 1];
    uint64_t ne[2] = {t->ne[1], t->ne[0]};
    struct pi_str n = {name, t->name.n};
    char *at;

    memcpy(name, t->name.p, t->name.n);
    name[t->name.n] = '\0';
    at = strstr(name, turned);
    if (at == NULL)
        return pi_lineage_tensor(s, t->name, t->ne, t->n_dims,
                                 t->n_dims == 2 && strstr(name, plain) != NULL ? NULL : t->data,
                                 t->bytes, err);
    memmove(at + sizeof(plain) - 1, at + sizeof(turned) - 1, strlen(at + sizeof(turned) - 1) + 1);
    memcpy(at, plain, sizeof(plain) - 1);
    n.n -= sizeof(turned) - sizeof(plain);
    if (t->n_dims == 2)
        return pi_lineage_tensor(s, n, ne, 2, NULL, 0, err);
    return pi_lineage_tensor(s, n, t->ne, t->n_dims, t->data, t->bytes, err);
}

enum pi_code pi_lineage_of_gguf(const struct pi_gguf *g, struct pi_lineage *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_lineage_sum *s = NULL;
    struct pi_str arch = {"", 0};

    PI_TRY(pi_gguf_string(g, "general.architecture", true, &arch, err));
    PI_TRY(pi_lineage_begin(&s, err));
    for (size_t i = 0; i < g->n_kv; i++) {
        struct pi_str key = g->kv[i].key;
        bool of_arch = key.n > arch.n && key.p[arch.n] == '.' && memcmp(key.p, arch.p, arch.n) == 0;

        if (of_arch || pi_str_eq(key, "general.architecture"))
            PI_TRY(add_gguf_key(s, &g->kv[i], err));
    }
    for (size_t i = 0; i < g->n_tensors; i++) {
        PI_TRY(add_gguf_tensor(s, &g->tensors[i], err));
        if (g->tensors[i].data != NULL)
            pi_gguf_drop(g, g->tensors[i].data, (size_t)g->tensors[i].bytes);
    }
    PI_TRY(pi_lineage_end(s, out, err));
    s = NULL;
out:
    pi_lineage_abort(s);
    return rc;
}

enum pi_code pi_model_fingerprint(const struct pi_gguf *g, struct pi_fingerprint *out,
                                  struct pi_err *err)
{
    SHA2_CTX c;

    (void)err;
    SHA256Init(&c);
    hash_field(&c, "pi fingerprint 1", 16);
    hash_u64(&c, g->map.size);
    hash_field(&c, g->map.data, g->header_bytes);
    if (pi_gguf_find(g, PI_GGUF_KEY_CRC) == NULL)
        for (size_t i = 0; i < g->n_tensors; i++)
            if (g->tensors[i].data != NULL)
                hash_sample(&c, g->tensors[i].data, g->tensors[i].bytes);
    hash_hex(&c, out->hex);
    return PI_OK;
}
