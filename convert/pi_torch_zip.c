/* The directory of a zip file (PKWARE's APPNOTE 6.3.3, sections 4.3.6 to 4.3.16 and 4.5.3), stored entries only. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_le.h"
#include "convert/pi_torch_int.h"

#include <stdlib.h>
#include <string.h>

#define END_BYTES     22 /* end of central directory, without its comment */
#define END64_BYTES   56
#define LOCATOR_BYTES 20
#define ENTRY_BYTES   46
#define LOCAL_BYTES   30
#define MAX_COMMENT   65535

struct reader {
    const uint8_t *data;
    size_t size;
    const char *path;
    struct pi_err *err;
};

static bool is_signature(const struct reader *r, uint64_t at, uint64_t bytes, uint32_t what)
{
    return at <= r->size && bytes <= r->size - at && pi_load_le(r->data + at, 4) == what;
}

static enum pi_code corrupt(const struct reader *r, const char *what)
{
    return pi_err_set(r->err, PI_E_CORRUPT, "%s: no whole zip file: %s", r->path, what);
}

/* Where the directory is and how many entries it has. */
static enum pi_code find_directory(const struct reader *r, uint64_t *at, uint64_t *bytes,
                                   uint64_t *n)
{
    uint64_t end = r->size < END_BYTES ? 0 : r->size - END_BYTES;
    const uint64_t least = end < MAX_COMMENT ? 0 : end - MAX_COMMENT;

    while (!is_signature(r, end, END_BYTES, 0x06054b50)) {
        if (end <= least)
            return corrupt(r, "its directory is missing (an interrupted download?)");
        end--;
    }
    *n = pi_load_le(r->data + end + 10, 2);
    *bytes = pi_load_le(r->data + end + 12, 4);
    *at = pi_load_le(r->data + end + 16, 4);
    if (pi_load_le(r->data + end + 4, 2) != 0 && pi_load_le(r->data + end + 4, 2) != 0xffff)
        return pi_err_set(r->err, PI_E_UNSUPPORTED, "%s: a zip file in several parts", r->path);
    if (end >= LOCATOR_BYTES && is_signature(r, end - LOCATOR_BYTES, LOCATOR_BYTES, 0x07064b50)) {
        const uint64_t end64 = pi_load_le(r->data + end - LOCATOR_BYTES + 8, 8);

        if (!is_signature(r, end64, END64_BYTES, 0x06064b50))
            return corrupt(r, "its 64-bit directory end is not where it should be");
        *n = pi_load_le(r->data + end64 + 32, 8);
        *bytes = pi_load_le(r->data + end64 + 40, 8);
        *at = pi_load_le(r->data + end64 + 48, 8);
    }
    if (*at > r->size || *bytes > r->size - *at || *n > *bytes / ENTRY_BYTES)
        return corrupt(r, "its directory does not lie in the file");
    return PI_OK;
}

/* The fields that the entry leaves to its zip64 extra field: sizes and offset that are all ones. */
static bool read_extra(const uint8_t *extra, size_t n_extra, uint64_t *size, uint64_t *packed,
                       uint64_t *offset)
{
    uint64_t *want[3], v;
    size_t n_want = 0, at = 0;

    if (*size == UINT32_MAX)
        want[n_want++] = size;
    if (*packed == UINT32_MAX)
        want[n_want++] = packed;
    if (*offset == UINT32_MAX)
        want[n_want++] = offset;
    while (n_want > 0 && n_extra - at >= 4) {
        const size_t n = (size_t)pi_load_le(extra + at + 2, 2);

        if (n > n_extra - at - 4)
            return false;
        if (pi_load_le(extra + at, 2) == 1) {
            if (n < 8 * n_want)
                return false;
            for (size_t i = 0; i < n_want; i++) {
                v = pi_load_le(extra + at + 4 + 8 * i, 8);
                *want[i] = v;
            }
            return true;
        }
        at += 4 + n;
    }
    return n_want == 0;
}

/* The entry at *at of the directory that ends at end; *at moves behind it. */
static enum pi_code read_entry(const struct reader *r, uint64_t *at, uint64_t end,
                               struct pi_zip_entry *out)
{
    const uint8_t *p = r->data + *at;
    uint64_t size, packed, offset, data;
    size_t n_name, n_extra;

    if (end - *at < ENTRY_BYTES || pi_load_le(p, 4) != 0x02014b50)
        return corrupt(r, "its directory is shorter than it says");
    n_name = (size_t)pi_load_le(p + 28, 2);
    n_extra = (size_t)pi_load_le(p + 30, 2);
    packed = pi_load_le(p + 20, 4);
    size = pi_load_le(p + 24, 4);
    offset = pi_load_le(p + 42, 4);
    if (n_name + n_extra + pi_load_le(p + 32, 2) > end - *at - ENTRY_BYTES || n_name == 0)
        return corrupt(r, "its directory is shorter than it says");
    *at += ENTRY_BYTES + n_name + n_extra + pi_load_le(p + 32, 2);
    out->name = (const char *)p + ENTRY_BYTES;
    out->n_name = n_name;
    if (memchr(out->name, '\0', n_name) != NULL)
        return pi_err_set(r->err, PI_E_CORRUPT, "%s: entry %.*s: a name with a zero byte in it",
                          r->path, (int)n_name, out->name);
    out->crc = (uint32_t)pi_load_le(p + 16, 4);
    if ((pi_load_le(p + 8, 2) & 1) != 0 || pi_load_le(p + 10, 2) != 0)
        return pi_err_set(r->err, PI_E_UNSUPPORTED,
                          "%s: entry %.*s is %s: torch.save() stores entries as they are", r->path,
                          (int)n_name, out->name,
                          (pi_load_le(p + 8, 2) & 1) != 0 ? "encrypted" : "compressed");
    if (!read_extra(p + ENTRY_BYTES + n_name, n_extra, &size, &packed, &offset) || size != packed ||
        !is_signature(r, offset, LOCAL_BYTES, 0x04034b50))
        return pi_err_set(r->err, PI_E_CORRUPT, "%s: entry %.*s does not lie in the file", r->path,
                          (int)n_name, out->name);
    data = offset + LOCAL_BYTES + pi_load_le(r->data + offset + 26, 2) +
           pi_load_le(r->data + offset + 28, 2);
    if (data > r->size || size > r->size - data)
        return pi_err_set(r->err, PI_E_CORRUPT,
                          "%s: entry %.*s: %llu bytes do not lie in the file's %zu", r->path,
                          (int)n_name, out->name, (unsigned long long)size, r->size);
    out->at = offset;
    out->data = r->data + data;
    out->bytes = size;
    return PI_OK;
}

static int compare(const char *a, size_t n, const char *b, size_t m)
{
    const int c = memcmp(a, b, n < m ? n : m);

    return c != 0 ? c : (n > m) - (n < m);
}

static int by_name(const void *pa, const void *pb)
{
    const struct pi_zip_entry *a = pa, *b = pb;

    return compare(a->name, a->n_name, b->name, b->n_name);
}

static int by_place(const void *pa, const void *pb)
{
    const struct pi_zip_entry *a = pa, *b = pb;

    return a->at != b->at ? (a->at > b->at) - (a->at < b->at) : by_name(a, b);
}

/* Of n entries, which are sorted, no two have the same name or, with their local headers, bytes in common: what is read of a file is then no more than the
 * file has. */
static enum pi_code sort_entries(const struct reader *r, struct pi_zip_entry *e, size_t n)
{
    if (n == 0)
        return PI_OK;
    qsort(e, n, sizeof(*e), by_place);
    for (size_t i = 1; i < n; i++)
        if (e[i - 1].data + e[i - 1].bytes > r->data + e[i].at)
            return pi_err_set(r->err, PI_E_CORRUPT, "%s: entries %.*s and %.*s overlap", r->path,
                              (int)e[i - 1].n_name, e[i - 1].name, (int)e[i].n_name, e[i].name);
    qsort(e, n, sizeof(*e), by_name);
    for (size_t i = 1; i < n; i++)
        if (by_name(&e[i - 1], &e[i]) == 0)
            return pi_err_set(r->err, PI_E_CORRUPT, "%s: two entries are called %.*s", r->path,
                              (int)e[i].n_name, e[i].name);
    return PI_OK;
}

enum pi_code pi_zip_open(const uint8_t *data, size_t size, const char *path, struct pi_zip *out,
                         struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct reader r = {data, size, path, err};
    uint64_t at = 0, bytes = 0, n = 0, end;
    struct pi_zip z = {0};

    PI_TRY(find_directory(&r, &at, &bytes, &n));
    PI_ALLOC(z.e, (size_t)n, err);
    end = at + bytes;
    for (; z.n < n; z.n++) {
        PI_TRY(read_entry(&r, &at, end, &z.e[z.n]));
        z.summed = z.summed || z.e[z.n].crc != 0;
    }
    PI_TRY(sort_entries(&r, z.e, z.n));
    *out = z;
    z = (struct pi_zip){0};
out:
    pi_zip_close(&z);
    return rc;
}

const struct pi_zip_entry *pi_zip_find(const struct pi_zip *z, const char *root, size_t n_root,
                                       const char *folder, const char *name, size_t n)
{
    const size_t n_folder = strlen(folder);
    char whole[512];
    const struct pi_zip_entry key = {.name = whole, .n_name = n_root + n_folder + n};

    if (z->n == 0 || n_root > sizeof(whole) || n_folder > sizeof(whole) - n_root ||
        n > sizeof(whole) - n_root - n_folder)
        return NULL;
    memcpy(whole, root, n_root);
    memcpy(whole + n_root, folder, n_folder);
    memcpy(whole + n_root + n_folder, name, n);
    return bsearch(&key, z->e, z->n, sizeof(*z->e), by_name);
}

void pi_zip_close(struct pi_zip *z)
{
    free(z->e);
    *z = (struct pi_zip){0};
}
