/*
 * pi_json.h - JSON files of others (config.json, tokenizer.json, an index), read with limits and typed access.
 *
 * Duplicate keys are refused, nesting is limited (jansson's 2048 levels), numbers must lie in the range the caller names. A pi_json
 * borrows nothing; getters give borrowed values that live as long as the document.
 */
#ifndef PI_JSON_H
#define PI_JSON_H

#include "common/pi_err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pi_json {
    char *path;   /* owned, for messages */
    json_t *root; /* owned; NULL: absent. An object */
};

/* Bytes given by the caller; where names them in messages. PI_E_CORRUPT with line and column; root is an object. */
enum pi_code pi_json_parse(const char *text, size_t n, const char *where, json_t **root_out,
                           struct pi_err *err) PI_MUST_CHECK;

/* The text of a file beside a model, the caller's to free() whatever is returned. PI_E_CORRUPT above max bytes, and for what Git LFS leaves in a file's place. */
enum pi_code pi_read_side_file(const char *path, size_t max, char **text, size_t *n,
                               struct pi_err *err) PI_MUST_CHECK;

/* dir/name; optional: a file that is not there leaves root NULL and gives PI_OK. At most 256 MiB. */
enum pi_code pi_json_load(const char *dir, const char *name, bool optional, struct pi_json *out,
                          struct pi_err *err) PI_MUST_CHECK;
void pi_json_free(struct pi_json *j); /* accepts a zeroed one */

/* A member that is absent or null leaves *out as it is (PI_OK); one of another type or out of [min, max] is PI_E_CORRUPT, naming file, key
 * and range. obj may be NULL: absent. path names the file. */
enum pi_code pi_json_u32(const json_t *obj, const char *path, const char *key, uint32_t min,
                         uint32_t max, uint32_t *out, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_json_f32(const json_t *obj, const char *path, const char *key, double min,
                         double max, float *out, struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_json_bool(const json_t *obj, const char *path, const char *key, bool *out,
                          struct pi_err *err) PI_MUST_CHECK;
enum pi_code pi_json_string(const json_t *obj, const char *path, const char *key, const char **out,
                            struct pi_err *err) PI_MUST_CHECK;

/* True when the member is there and not null. */
bool pi_json_has(const json_t *obj, const char *key);

/* Is there such a name in the folder? What cannot be read, such as a link that leads nowhere, is there too: the reader tells of it. */
bool pi_json_exists(const char *dir, const char *name);

#endif
