/*
 * hf_copy.h - copies of a committed Hugging Face directory in a scratch folder, changed in one place: a key of its config.json, names or
 * bytes of its tensors.
 */
#ifndef PI_TEST_HF_COPY_H
#define PI_TEST_HF_COPY_H

#include "convert/pi_json.h"
#include "convert/pi_safetensors.h"
#include "tests/scratch.h"
#include "tests/tap.h"

/* tests/data/reference/NAME, or where PI_SHARED has it; NULL when neither is there. Static storage. */
static inline const char *hf_case(const char *name)
{
    static char dir[1024];
    const char *shared = tap_shared(), *src = getenv("abs_top_srcdir");

    (void)snprintf(dir, sizeof(dir), "%s/tests/data/reference/%s", src != NULL ? src : ".", name);
    if (pi_json_exists(dir, "config.json"))
        return dir;
    (void)snprintf(dir, sizeof(dir), "%s/reference/%s", shared != NULL ? shared : "", name);
    return pi_json_exists(dir, "config.json") ? dir : NULL;
}

static inline void hf_fail(const char *what)
{
    (void)fprintf(stderr, "test set-up failed: %s\n", what);
    exit(99);
}

/* Symbolic links to everything in from. */
static inline void hf_link(const char *from, const char *to)
{
    DIR *d = opendir(from);

    if (d == NULL)
        hf_fail(from);
    for (struct dirent *x; (x = readdir(d)) != NULL;) {
        char *a = scratch_path(from, x->d_name), *b = scratch_path(to, x->d_name);
        if (x->d_name[0] != '.' && symlink(a, b) != 0)
            hf_fail(b);
        free(a);
        free(b);
    }
    (void)closedir(d);
}

/* dir/name as JSON with keys set to values given as JSON text ("null" or "-": removed), in place of the link. */
static inline void hf_set_json(const char *dir, const char *name, const char *key,
                               const char *value)
{
    char *path = scratch_path(dir, name), *text;
    json_t *root = json_load_file(path, 0, NULL), *v = json_loads(value, JSON_DECODE_ANY, NULL);

    if (root == NULL)
        root = json_object();
    if (v == NULL)
        (void)json_object_del(root, key);
    else if (json_object_set_new(root, key, v) != 0)
        hf_fail(path);
    text = json_dumps(root, 0);
    (void)unlink(path);
    scratch_write(path, text, strlen(text));
    free(text);
    free(path);
    json_decref(root);
}

/* A copy of dir's model.safetensors in place of the link. rename_to may be NULL (names stay): gives a tensor's new name in static storage, or NULL to leave it
 * out (its bytes stay, named junk.N, unless keep_junk is false: the caller then sees to what is missing). */
struct hf_edit {
    const char *(*rename)(const char *name);
    const char *tensor; /* whose bytes fn changes, with dtype and count of elements */
    void (*fn)(uint8_t *data, size_t bytes);
    const char *dtype; /* a new dtype of that tensor, of the same width */
};

static inline void hf_edit_weights(const char *dir, const struct hf_edit *ed)
{
    char *path = scratch_path(dir, "model.safetensors"), *head;
    struct pi_map m = {0};
    json_t *root, *to = json_object(), *v;
    const char *name;
    uint64_t n = 0;
    size_t n_head, n_data;
    uint8_t *out;

    if (pi_map_open(path, &m, NULL) != PI_OK)
        hf_fail(path);
    for (int i = 7; i >= 0; i--)
        n = n << 8 | m.data[i];
    root = json_loadb((const char *)m.data + 8, (size_t)n, 0, NULL);
    n_data = m.size - 8 - (size_t)n;
    json_object_foreach(root, name, v)
    {
        const char *renamed =
            ed->rename != NULL && strcmp(name, "__metadata__") != 0 ? ed->rename(name) : name;
        if (ed->dtype != NULL && strcmp(name, ed->tensor) == 0)
            (void)json_object_set_new(v, "dtype", json_string(ed->dtype));
        (void)json_object_set(to, renamed, v);
    }
    head = json_dumps(to, JSON_COMPACT);
    n_head = strlen(head);
    out = calloc(1, 8 + n_head + n_data);
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)((uint64_t)n_head >> (8 * i));
    memcpy(out + 8, head, n_head);
    memcpy(out + 8 + n_head, m.data + 8 + n, n_data);
    if (ed->fn != NULL) {
        json_t *at = json_object_get(json_object_get(root, ed->tensor), "data_offsets");
        size_t begin = (size_t)json_integer_value(json_array_get(at, 0)),
               end = (size_t)json_integer_value(json_array_get(at, 1));
        ed->fn(out + 8 + n_head + begin, end - begin);
    }
    pi_map_close(&m);
    (void)unlink(path);
    scratch_write(path, out, 8 + n_head + n_data);
    free(out);
    free(head);
    free(path);
    json_decref(root);
    json_decref(to);
}

#endif
