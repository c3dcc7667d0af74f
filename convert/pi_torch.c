/* Checkpoints: what the zip file holds and which of the pickle's dictionaries are the weights. */
#include "config.h"

#include "convert/pi_torch.h"
#include "common/pi_alloc.h"
#include "convert/pi_torch_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* Bytes. A tensor takes some 200 of them, so that a 70B model in one file has 150 KB; a value of the stack takes 24 bytes of memory for a byte of the pickle, several
 * times over where arrays grow. */
#define MAX_PICKLE ((uint64_t)2 << 20)

static bool has_tensors(const struct pi_pickle *vm, uint64_t dict)
{
    for (size_t i = 0; i < vm->n_entries; i++)
        if (vm->entries[i].dict == dict && vm->entries[i].value.kind == PI_PICKLE_TENSOR)
            return true;
    return false;
}

/* The dictionary whose entries are the tensors. */
static uint64_t weights_of(const struct pi_pickle *vm, uint64_t top)
{
    static const char *const names[] = {"state_dict", "model_state_dict", "model", "module"};

    if (has_tensors(vm, top))
        return top;
    for (size_t k = 0; k < sizeof(names) / sizeof(names[0]); k++) {
        const struct pi_pickle_entry *found = NULL;

        for (size_t i = 0; i < vm->n_entries; i++)
            if (vm->entries[i].dict == top && vm->entries[i].value.kind == PI_PICKLE_DICT &&
                pi_pickle_is_string(&vm->entries[i].key, names[k]))
                found = &vm->entries[i];
        if (found != NULL && has_tensors(vm, found->value.i))
            return found->value.i;
    }
    return top;
}

static enum pi_code add_tensor(const struct pi_pickle *vm, const struct pi_pickle_entry *e,
                               struct pi_source *src)
{
    enum pi_code rc = PI_OK;
    const struct pi_torch_tensor *t = &vm->tensors[e->value.i];
    const struct pi_torch_dtype *type = &pi_torch_dtypes[t->dtype];
    struct pi_src_tensor *s;

    if (e->key.kind != PI_PICKLE_STRING || e->key.n == 0 || e->key.n > 1024 ||
        memchr(e->key.text, '\0', e->key.n) != NULL)
        PI_FAIL(vm->err, PI_E_CORRUPT, "%s: a tensor without a name", vm->path);
    if (t->is_expanded)
        PI_FAIL(vm->err, PI_E_UNSUPPORTED,
                "%s: tensor %.*s is an expanded view: its values are stored once and stand for "
                "many: save a .contiguous() copy",
                vm->path, (int)e->key.n, e->key.text);
    if (t->is_view)
        PI_FAIL(vm->err, PI_E_UNSUPPORTED,
                "%s: tensor %.*s is a view with strides of its own: save a .contiguous() copy",
                vm->path, (int)e->key.n, e->key.text);
    PI_TRY(pi_grow_array(&src->t, &src->cap, src->n + 1, sizeof(*src->t), vm->err));
    s = &src->t[src->n];
    *s = (struct pi_src_tensor){.name = pi_strndup(e->key.text, e->key.n, vm->err),
                                .path = vm->path,
                                .dtype = type->dtype,
                                .readable = type->readable,
                                .type = type->type,
                                .n_dims = t->n_dims,
                                .data = t->data,
                                .bytes = t->bytes};
    memcpy(s->dim, t->dim, sizeof(s->dim));
    if (s->name == NULL)
        return PI_E_NOMEM;
    src->n++;
out:
    return rc;
}

/* data.pkl, whatever the folder is called that all entries lie in; and what the file says about itself. */
static enum pi_code find_pickle(struct pi_pickle *vm)
{
    static const char pkl[] = "data.pkl", order[] = "byteorder";
    const struct pi_zip_entry *found = NULL, *e;

    for (size_t i = 0; i < vm->zip->n; i++) {
        e = &vm->zip->e[i];
        if (e->n_name < strlen(pkl) ||
            memcmp(e->name + e->n_name - strlen(pkl), pkl, strlen(pkl)) != 0 ||
            (e->n_name > strlen(pkl) && e->name[e->n_name - strlen(pkl) - 1] != '/'))
            continue;
        if (found == NULL || e->n_name < found->n_name)
            found = e;
    }
    if (found == NULL)
        return pi_err_set(vm->err, PI_E_UNSUPPORTED,
                          "%s: a zip file without data.pkl: not what torch.save() writes",
                          vm->path);
    if (found->bytes > MAX_PICKLE)
        return pi_err_set(vm->err, PI_E_UNSUPPORTED, "%s: data.pkl of %llu bytes, at most %llu",
                          vm->path, (unsigned long long)found->bytes,
                          (unsigned long long)MAX_PICKLE);
    if (vm->zip->summed && crc32(0, found->data, (uInt)found->bytes) != found->crc)
        return pi_err_set(vm->err, PI_E_CORRUPT,
                          "%s: data.pkl has another CRC-32 than the file says", vm->path);
    vm->begin = vm->at = found->data;
    vm->end = found->data + found->bytes;
    vm->root = found->name;
    vm->n_root = found->n_name - strlen(pkl);
    e = pi_zip_find(vm->zip, vm->root, vm->n_root, "", order, strlen(order));
    if (e != NULL && (e->bytes != 6 || memcmp(e->data, "little", 6) != 0))
        return pi_err_set(vm->err, PI_E_UNSUPPORTED, "%s: written on a big-endian machine",
                          vm->path);
    return PI_OK;
}

/* The storages' sums, for pi_source_check(): one of an entry, however often the pickle loads it. */
static enum pi_code add_sums(const struct pi_pickle *vm, struct pi_source *src)
{
    enum pi_code rc = PI_OK;
    bool *added = NULL; /* (zip entries) */

    PI_ALLOC(added, vm->zip->n, vm->err);
    for (size_t i = 0; vm->zip->summed && i < vm->n_storages; i++) {
        const struct pi_zip_entry *e = vm->storages[i].entry;
        const size_t skip = vm->n_root + strlen("data/");
        struct pi_src_sum *s;

        if (added[e - vm->zip->e])
            continue; /* a storage of several tensors */
        added[e - vm->zip->e] = true;
        PI_TRY(pi_grow_array(&src->sums, &src->cap_sums, src->n_sums + 1, sizeof(*src->sums),
                             vm->err));
        s = &src->sums[src->n_sums++];
        *s = (struct pi_src_sum){
            .data = e->data, .bytes = e->bytes, .crc = e->crc, .path = vm->path};
        if (e->n_name > skip)
            (void)snprintf(s->name, sizeof(s->name), "%.*s", (int)(e->n_name - skip),
                           e->name + skip);
    }
out:
    free(added);
    return rc;
}

/* A pickle of the number that files before 1.6 begin with. */
static bool is_old(const uint8_t *data, size_t size)
{
    static const uint8_t magic[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46};

    return size >= sizeof(magic) && memcmp(data, magic, sizeof(magic)) == 0;
}

bool pi_torch_is(const uint8_t *data, size_t size)
{
    return is_old(data, size) || (size >= 4 && memcmp(data, "PK\3\4", 4) == 0);
}

enum pi_code pi_torch_parse(const uint8_t *data, size_t size, const char *path,
                            struct pi_source *src, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_err local;
    struct pi_zip zip = {0};
    struct pi_pickle vm = {.path = path, .err = err != NULL ? err : &local, .zip = &zip};
    struct pi_pickle_value top;
    uint64_t dict;

    if (is_old(data, size))
        PI_FAIL(vm.err, PI_E_UNSUPPORTED,
                "%s: a PyTorch file of the form before 1.6, which is no zip file: load it with "
                "torch and save it again",
                path);
    PI_TRY(pi_zip_open(data, size, path, &zip, vm.err));
    PI_TRY(find_pickle(&vm));
    PI_TRY(pi_pickle_run(&vm, &top));
    PI_TRY(add_sums(&vm, src));
    if (top.kind == PI_PICKLE_TENSOR) {
        const struct pi_pickle_entry one = {
            .key = {.kind = PI_PICKLE_STRING, .n = 6, .text = "tensor"}, .value = top};

        PI_TRY(add_tensor(&vm, &one, src));
        goto out;
    }
    if (top.kind != PI_PICKLE_DICT)
        PI_FAIL(vm.err, PI_E_UNSUPPORTED, "%s: holds something else than a dictionary of tensors",
                path);
    dict = weights_of(&vm, top.i);
    for (size_t i = 0; i < vm.n_entries; i++)
        if (vm.entries[i].dict == dict && vm.entries[i].value.kind == PI_PICKLE_TENSOR)
            PI_TRY(add_tensor(&vm, &vm.entries[i], src));
out:
    free(vm.stack.v);
    free(vm.arena.v);
    free(vm.memo.v);
    free(vm.entries);
    free(vm.n_in_dict);
    free(vm.tensors);
    free(vm.storages);
    pi_zip_close(&zip);
    return rc;
}
