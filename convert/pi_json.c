#include "config.h"

#include "convert/pi_json.h"
#include "common/pi_alloc.h"
#include "common/pi_file.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_JSON_BYTES ((size_t)256 << 20)

enum pi_code pi_json_parse(const char *text, size_t n, const char *where, json_t **root_out,
                           struct pi_err *err)
{
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);

    /* the library gives up without a word where memory runs out in the middle of a text */
    if (root == NULL && (json_error_code(&je) == json_error_out_of_memory || je.text[0] == '\0' ||
                         json_error_code(&je) == json_error_unknown))
        return pi_err_set(err, PI_E_NOMEM, "%s: not enough memory to read its %zu bytes of JSON",
                          where, n);
    if (root == NULL)
        return pi_err_set(err, PI_E_CORRUPT, "%s: line %d, column %d: %s", where, je.line,
                          je.column, je.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return pi_err_set(err, PI_E_CORRUPT, "%s: not a JSON object", where);
    }
    *root_out = root;
    return PI_OK;
}

bool pi_json_exists(const char *dir, const char *name)
{
    char path[PATH_MAX]; /* the system opens no longer one */
    struct stat st;
    int n = snprintf(path, sizeof(path), "%s/%s", dir, name);

    if (n <= 0 || (size_t)n >= sizeof(path))
        return false;
    return lstat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

enum pi_code pi_read_side_file(const char *path, size_t max, char **text, size_t *n,
                               struct pi_err *err)
{
    enum pi_code rc;
    struct stat st;

    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* of which a FIFO would let us wait */
        return pi_err_set(err, PI_E_IO, "%s: no regular file", path);
    rc = pi_file_read_all(path, false, max, text, n, err);
    if (rc == PI_E_RANGE)
        return pi_err_set(err, PI_E_CORRUPT, "%s: more than %zu bytes, which no such file has",
                          path, max);
    if (rc == PI_OK && pi_is_lfs_pointer(*text, *n))
        return pi_err_set(err, PI_E_CORRUPT, "%s: " PI_LFS_POINTER, path);
    return rc;
}

enum pi_code pi_json_load(const char *dir, const char *name, bool optional, struct pi_json *out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char *text = NULL;
    size_t n = 0;
    struct pi_json j = {0};

    if (optional && !pi_json_exists(dir, name)) {
        *out = j;
        return PI_OK;
    }
    j.path = pi_asprintf(err, "%s/%s", dir, name);
    if (j.path == NULL)
        return PI_E_NOMEM;
    PI_TRY(pi_read_side_file(j.path, MAX_JSON_BYTES, &text, &n, err));
    PI_TRY(pi_json_parse(text, n, j.path, &j.root, err));
    *out = j;
    j = (struct pi_json){0};
out:
    pi_json_free(&j);
    free(text);
    return rc;
}

void pi_json_free(struct pi_json *j)
{
    free(j->path);
    json_decref(j->root);
    *j = (struct pi_json){0};
}

bool pi_json_has(const json_t *obj, const char *key)
{
    const json_t *v = json_object_get(obj, key);

    return v != NULL && !json_is_null(v);
}

enum pi_code pi_json_u32(const json_t *obj, const char *path, const char *key, uint32_t min,
                         uint32_t max, uint32_t *out, struct pi_err *err)
{
    const json_t *v = json_object_get(obj, key);
    json_int_t i;

    if (v == NULL || json_is_null(v))
        return PI_OK;
    if (!json_is_integer(v))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no whole number", path, key);
    i = json_integer_value(v);
    if (i < (json_int_t)min || i > (json_int_t)max)
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is %lld, outside %u to %u", path, key,
                          (long long)i, min, max);
    *out = (uint32_t)i;
    return PI_OK;
}

enum pi_code pi_json_f32(const json_t *obj, const char *path, const char *key, double min,
                         double max, float *out, struct pi_err *err)
{
    const json_t *v = json_object_get(obj, key);
    double d;

    if (v == NULL || json_is_null(v))
        return PI_OK;
    if (!json_is_number(v))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no number", path, key);
    d = json_number_value(v);
    if (!(d >= min && d <= max))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is %g, outside %g to %g", path, key, d,
                          min, max);
    *out = (float)d;
    return PI_OK;
}

enum pi_code pi_json_bool(const json_t *obj, const char *path, const char *key, bool *out,
                          struct pi_err *err)
{
    const json_t *v = json_object_get(obj, key);

    if (v == NULL || json_is_null(v))
        return PI_OK;
    if (!json_is_boolean(v))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is neither true nor false", path, key);
    *out = json_is_true(v);
    return PI_OK;
}

enum pi_code pi_json_string(const json_t *obj, const char *path, const char *key, const char **out,
                            struct pi_err *err)
{
    const json_t *v = json_object_get(obj, key);

    if (v == NULL || json_is_null(v))
        return PI_OK;
    if (!json_is_string(v))
        return pi_err_set(err, PI_E_CORRUPT, "%s: \"%s\" is no text", path, key);
    *out = json_string_value(v);
    return PI_OK;
}
