/*
 * The pickle of a checkpoint (Python's pickletools has the opcodes, torch/_utils.py what the globals mean). Values on the stack are small: a tuple is a range of the
 * arena, into which its items were copied; a dictionary a number, under which its entries are noted.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_le.h"
#include "common/pi_size.h"
#include "convert/pi_torch_int.h"

#include <stdlib.h>
#include <string.h>

#define MAX_LINE 256 /* bytes of a global's name */

const struct pi_torch_dtype pi_torch_dtypes[] = {
    {"FloatStorage", "F32", 4, true, PI_TYPE_F32},
    {"HalfStorage", "F16", 2, true, PI_TYPE_F16},
    {"BFloat16Storage", "BF16", 2, true, PI_TYPE_BF16},
    {"DoubleStorage", "F64", 8, false, PI_TYPE_F64},
    {"LongStorage", "I64", 8, false, PI_TYPE_I64},
    {"IntStorage", "I32", 4, false, PI_TYPE_I32},
    {"ShortStorage", "I16", 2, false, PI_TYPE_I16},
    {"CharStorage", "I8", 1, false, PI_TYPE_I8},
    {"ByteStorage", "U8", 1, false, PI_TYPE_COUNT},
    {"BoolStorage", "BOOL", 1, false, PI_TYPE_COUNT},
};

static enum pi_code corrupt(const struct pi_pickle *vm, const char *what)
{
    return pi_err_set(vm->err, PI_E_CORRUPT, "%s: data.pkl: byte %llu: %s", vm->path,
                      (unsigned long long)(vm->at - vm->begin), what);
}

static enum pi_code push_to(const struct pi_pickle *vm, struct pi_pickle_values *to,
                            struct pi_pickle_value v)
{
    enum pi_code rc = pi_grow_array(&to->v, &to->cap, to->n + 1, sizeof(*to->v), vm->err);

    if (rc == PI_OK)
        to->v[to->n++] = v;
    return rc;
}

static enum pi_code push(struct pi_pickle *vm, struct pi_pickle_value v)
{
    return push_to(vm, &vm->stack, v);
}

static enum pi_code push_kind(struct pi_pickle *vm, enum pi_pickle_kind kind)
{
    return push(vm, (struct pi_pickle_value){.kind = (uint8_t)kind});
}

/* The top value, which is no mark. */
static enum pi_code pop(struct pi_pickle *vm, struct pi_pickle_value *out)
{
    if (vm->stack.n == 0 || vm->stack.v[vm->stack.n - 1].kind == PI_PICKLE_MARK)
        return corrupt(vm, "nothing to take from the stack");
    *out = vm->stack.v[--vm->stack.n];
    return PI_OK;
}

/* Place of the first item behind the last mark. */
static enum pi_code find_mark(const struct pi_pickle *vm, size_t *first)
{
    for (size_t i = vm->stack.n; i > 0; i--) {
        if (vm->stack.v[i - 1].kind == PI_PICKLE_MARK) {
            *first = i;
            return PI_OK;
        }
    }
    return corrupt(vm, "no mark on the stack");
}

/* Takes n bytes, or says that the pickle ends. */
static enum pi_code take(struct pi_pickle *vm, uint64_t n, const uint8_t **out)
{
    if (n > (uint64_t)(vm->end - vm->at))
        return corrupt(vm, "the pickle ends inside an opcode");
    *out = vm->at;
    vm->at += n;
    return PI_OK;
}

static enum pi_code take_number(struct pi_pickle *vm, unsigned bytes, uint64_t *out)
{
    const uint8_t *p = NULL;
    enum pi_code rc = take(vm, bytes, &p);

    *out = rc == PI_OK ? pi_load_le(p, bytes) : 0;
    return rc;
}

bool pi_pickle_is_string(const struct pi_pickle_value *v, const char *s)
{
    return v->kind == PI_PICKLE_STRING && v->n == strlen(s) && memcmp(v->text, s, v->n) == 0;
}

/* ---- what the globals make ------------------------------------------------------------------ */

static enum pi_code push_global(struct pi_pickle *vm, const char *module, size_t n_module,
                                const char *name, size_t n_name)
{
    static const struct {
        const char *module, *name;
        enum pi_pickle_global global;
    } known[] = {{"collections", "OrderedDict", ORDERED_DICT},
                 {"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR},
                 {"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER}};
    const struct pi_pickle_value m = {.kind = PI_PICKLE_STRING,
                                      .text = module,
                                      .n = (uint32_t)n_module},
                                 s = {
                                     .kind = PI_PICKLE_STRING, .text = name, .n = (uint32_t)n_name};

    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (pi_pickle_is_string(&m, known[i].module) && pi_pickle_is_string(&s, known[i].name))
            return push(vm, (struct pi_pickle_value){.kind = PI_PICKLE_GLOBAL,
                                                     .global = (uint8_t)known[i].global});
    for (size_t i = 0; i < sizeof(pi_torch_dtypes) / sizeof(pi_torch_dtypes[0]); i++)
        if (pi_pickle_is_string(&m, "torch") && pi_pickle_is_string(&s, pi_torch_dtypes[i].name))
            return push(vm, (struct pi_pickle_value){.kind = PI_PICKLE_GLOBAL,
                                                     .global = STORAGE_TYPE,
                                                     .dtype = (uint8_t)i});
    if (pi_pickle_is_string(&m, "torch._utils") && pi_pickle_is_string(&s, "_rebuild_tensor_v3"))
        return pi_err_set(
            vm->err, PI_E_UNSUPPORTED,
            "%s: holds tensors of a type that came after PyTorch's storage types "
            "(_rebuild_tensor_v3: 8-bit floats, unsigned integers); supported: " PI_SRC_DTYPES,
            vm->path);
    return pi_err_set(vm->err, PI_E_UNSUPPORTED,
                      "%s: data.pkl names %.*s.%.*s, which a dictionary of tensors does not need: "
                      "nothing of it is run",
                      vm->path, (int)n_module, module, (int)n_name, name);
}

/* ('storage', type, key, place, elements): an entry of the zip file. */
static enum pi_code load_storage(struct pi_pickle *vm)
{
    enum pi_code rc = PI_OK;
    struct pi_pickle_value id;
    const struct pi_pickle_value *item;
    const struct pi_zip_entry *e;
    uint64_t bytes = 0;

    PI_TRY(pop(vm, &id));
    item = id.kind == PI_PICKLE_TUPLE ? vm->arena.v + id.i : NULL;
    if (item == NULL || id.n < 5 || !pi_pickle_is_string(&item[0], "storage") ||
        item[1].kind != PI_PICKLE_GLOBAL || item[1].global != STORAGE_TYPE ||
        item[2].kind != PI_PICKLE_STRING || item[4].kind != PI_PICKLE_INTEGER)
        PI_FAIL(vm->err, PI_E_CORRUPT, "%s: data.pkl: byte %llu: no reference to a storage",
                vm->path, (unsigned long long)(vm->at - vm->begin));
    e = pi_zip_find(vm->zip, vm->root, vm->n_root, "data/", item[2].text, item[2].n);
    if (e == NULL)
        PI_FAIL(vm->err, PI_E_CORRUPT, "%s: storage %.*s is not in the file", vm->path,
                (int)item[2].n, item[2].text);
    if (!pi_size_mul(item[4].i, pi_torch_dtypes[item[1].dtype].bytes, &bytes) || bytes != e->bytes)
        PI_FAIL(vm->err, PI_E_CORRUPT, "%s: storage %.*s has %llu bytes, not %llu elements of %s",
                vm->path, (int)item[2].n, item[2].text, (unsigned long long)e->bytes,
                (unsigned long long)item[4].i, pi_torch_dtypes[item[1].dtype].dtype);
    PI_TRY(pi_grow_array(&vm->storages, &vm->cap_storages, vm->n_storages + 1,
                         sizeof(*vm->storages), vm->err));
    vm->storages[vm->n_storages] = (struct pi_torch_storage){e, item[4].i};
    rc = push(vm, (struct pi_pickle_value){
                      .kind = PI_PICKLE_STORAGE, .dtype = item[1].dtype, .i = vm->n_storages++});
out:
    return rc;
}

/* (storage, offset, shape, strides, requires_grad, hooks, metadata) */
static enum pi_code rebuild_tensor(struct pi_pickle *vm, const struct pi_pickle_value *arg,
                                   uint32_t n)
{
    enum pi_code rc = PI_OK;
    struct pi_torch_tensor t = {0};
    const struct pi_pickle_value *shape, *strides;
    const struct pi_torch_storage *s;
    uint64_t n_elems = 1, end = 0, step = 1;

    if (n < 4 || arg[0].kind != PI_PICKLE_STORAGE || arg[1].kind != PI_PICKLE_INTEGER ||
        arg[2].kind != PI_PICKLE_TUPLE || arg[3].kind != PI_PICKLE_TUPLE || arg[2].n != arg[3].n)
        return corrupt(vm, "a tensor is made of something else than a storage, its offset, shape "
                           "and strides");
    if (n > 6 && arg[6].kind != PI_PICKLE_DICT && arg[6].kind != PI_PICKLE_OPAQUE)
        return corrupt(vm, "a tensor's metadata that is no dictionary");
    if (n > 6 && arg[6].kind == PI_PICKLE_DICT && vm->n_in_dict[arg[6].i] > 0)
        return pi_err_set(
            vm->err, PI_E_UNSUPPORTED,
            "%s: data.pkl: byte %llu: a conjugated or negated view of a tensor: save a "
            "copy of it",
            vm->path, (unsigned long long)(vm->at - vm->begin));
    if (arg[2].n > PI_SRC_MAX_DIMS)
        return pi_err_set(vm->err, PI_E_UNSUPPORTED,
                          "%s: a tensor of %u dimensions, at most %d are known", vm->path,
                          (unsigned)arg[2].n, PI_SRC_MAX_DIMS);
    shape = vm->arena.v + arg[2].i;
    strides = vm->arena.v + arg[3].i;
    for (uint32_t i = 0; i < PI_SRC_MAX_DIMS; i++)
        t.dim[i] = 1;
    for (uint32_t i = arg[2].n; i-- > 0;) {
        if (shape[i].kind != PI_PICKLE_INTEGER || strides[i].kind != PI_PICKLE_INTEGER ||
            !pi_size_mul(n_elems, shape[i].i, &n_elems))
            return corrupt(vm, "a shape that is none");
        t.dim[i] = shape[i].i;
        t.is_view |= shape[i].i > 1 && strides[i].i != step;
        t.is_expanded |= shape[i].i > 1 && strides[i].i == 0;
        step *= shape[i].i; /* as n_elems */
    }
    s = &vm->storages[arg[0].i];
    if (t.is_view) /* of which nothing is read */
        n_elems = 0;
    if (!pi_size_add(arg[1].i, n_elems, &end) || end > s->n)
        PI_FAIL(vm->err, PI_E_CORRUPT,
                "%s: data.pkl: byte %llu: a tensor of elements %llu to %llu in a storage of %llu",
                vm->path, (unsigned long long)(vm->at - vm->begin), (unsigned long long)arg[1].i,
                (unsigned long long)end, (unsigned long long)s->n);
    t.dtype = arg[0].dtype;
    t.n_dims = (uint8_t)arg[2].n;
    t.data = s->entry->data + arg[1].i * pi_torch_dtypes[t.dtype].bytes;
    t.bytes = n_elems * pi_torch_dtypes[t.dtype].bytes;
    PI_TRY(pi_grow_array(&vm->tensors, &vm->cap_tensors, vm->n_tensors + 1, sizeof(*vm->tensors),
                         vm->err));
    vm->tensors[vm->n_tensors] = t;
    rc = push(vm, (struct pi_pickle_value){.kind = PI_PICKLE_TENSOR, .i = vm->n_tensors++});
out:
    return rc;
}

static enum pi_code new_dict(struct pi_pickle *vm)
{
    enum pi_code rc = pi_grow_array(&vm->n_in_dict, &vm->cap_dicts, vm->n_dicts + 1,
                                    sizeof(*vm->n_in_dict), vm->err);

    if (rc != PI_OK)
        return rc;
    vm->n_in_dict[vm->n_dicts] = 0;
    return push(vm, (struct pi_pickle_value){.kind = PI_PICKLE_DICT, .i = vm->n_dicts++});
}

static enum pi_code reduce(struct pi_pickle *vm)
{
    enum pi_code rc = PI_OK;
    struct pi_pickle_value args, fn;

    PI_TRY(pop(vm, &args));
    PI_TRY(pop(vm, &fn));
    if (fn.kind != PI_PICKLE_GLOBAL || args.kind != PI_PICKLE_TUPLE)
        return corrupt(vm, "a call of something that is no function");
    switch ((enum pi_pickle_global)fn.global) {
    case ORDERED_DICT:
        if (args.n != 0)
            return corrupt(vm, "a dictionary made of arguments");
        return new_dict(vm);
    case REBUILD_TENSOR:
        return rebuild_tensor(vm, vm->arena.v + args.i, args.n);
    case REBUILD_PARAMETER:
        if (args.n < 1 || vm->arena.v[args.i].kind != PI_PICKLE_TENSOR)
            return corrupt(vm, "a parameter that is no tensor");
        return push(vm, vm->arena.v[args.i]);
    case STORAGE_TYPE:
        break;
    }
    rc = corrupt(vm, "a call of a storage's type");
out:
    return rc;
}

/* ---- opcodes -------------------------------------------------------------------------------- */

/* The top n values as a tuple; mark: without the mark under them. */
static enum pi_code make_tuple(struct pi_pickle *vm, size_t n, bool mark)
{
    enum pi_code rc = PI_OK;
    struct pi_pickle_value t = {.kind = PI_PICKLE_TUPLE, .n = (uint32_t)n, .i = vm->arena.n};

    if (n > vm->stack.n)
        return corrupt(vm, "nothing to take from the stack");
    for (size_t i = vm->stack.n - n; i < vm->stack.n; i++) {
        if (vm->stack.v[i].kind == PI_PICKLE_MARK)
            return corrupt(vm, "a mark in a tuple");
        PI_TRY(push_to(vm, &vm->arena, vm->stack.v[i]));
    }
    vm->stack.n -= n + mark;
    rc = push(vm, t);
out:
    return rc;
}

/* Pairs from place first on into the dictionary under them; mark: which lies between. */
static enum pi_code set_items(struct pi_pickle *vm, size_t first, bool mark)
{
    enum pi_code rc = PI_OK;
    const size_t n = vm->stack.n - first;
    uint64_t dict;

    if (first < 1 + (size_t)mark || n % 2 != 0)
        return corrupt(vm, "entries of no dictionary");
    if (vm->stack.v[first - 1 - mark].kind != PI_PICKLE_DICT)
        return corrupt(vm, "entries of no dictionary");
    dict = vm->stack.v[first - 1 - mark].i;
    PI_TRY(pi_grow_array(&vm->entries, &vm->cap_entries, vm->n_entries + n / 2,
                         sizeof(*vm->entries), vm->err));
    for (size_t i = first; i < vm->stack.n; i += 2)
        vm->entries[vm->n_entries++] =
            (struct pi_pickle_entry){dict, vm->stack.v[i], vm->stack.v[i + 1]};
    vm->n_in_dict[dict] += (uint32_t)(n / 2);
    vm->stack.n = first - mark;
out:
    return rc;
}

static enum pi_code memo_put(struct pi_pickle *vm, uint64_t at)
{
    enum pi_code rc = PI_OK;

    if (vm->stack.n == 0 || at > (uint64_t)(vm->end - vm->begin))
        return corrupt(vm, "a note of nothing");
    if (at >= vm->memo.n) {
        PI_TRY(pi_grow_array(&vm->memo.v, &vm->memo.cap, (size_t)at + 1, sizeof(*vm->memo.v),
                             vm->err));
        while (vm->memo.n <= at)
            vm->memo.v[vm->memo.n++] = (struct pi_pickle_value){.kind = PI_PICKLE_MARK}; /* none */
    }
    vm->memo.v[at] = vm->stack.v[vm->stack.n - 1];
out:
    return rc;
}

static enum pi_code memo_get(struct pi_pickle *vm, uint64_t at)
{
    if (at >= vm->memo.n || vm->memo.v[at].kind == PI_PICKLE_MARK)
        return corrupt(vm, "a note that was not taken");
    return push(vm, vm->memo.v[at]);
}

static enum pi_code push_string(struct pi_pickle *vm, uint64_t n)
{
    const uint8_t *p = NULL;
    enum pi_code rc = take(vm, n, &p);

    if (rc != PI_OK)
        return rc;
    return push(vm, (struct pi_pickle_value){
                        .kind = PI_PICKLE_STRING, .n = (uint32_t)n, .text = (const char *)p});
}

/* A line of a global's name, without its end. */
static enum pi_code take_line(struct pi_pickle *vm, const char **text, size_t *n)
{
    const size_t left = (size_t)(vm->end - vm->at);
    const uint8_t *end = memchr(vm->at, '\n', left < MAX_LINE ? left : MAX_LINE);

    if (end == NULL)
        return corrupt(vm, "a global without a name");
    *text = (const char *)vm->at;
    *n = (size_t)(end - vm->at);
    vm->at = end + 1;
    return PI_OK;
}

static enum pi_code load_global(struct pi_pickle *vm)
{
    enum pi_code rc = PI_OK;
    const char *module = NULL, *name = NULL;
    size_t n_module = 0, n_name = 0;

    PI_TRY(take_line(vm, &module, &n_module));
    PI_TRY(take_line(vm, &name, &n_name));
    rc = push_global(vm, module, n_module, name, n_name);
out:
    return rc;
}

static enum pi_code stack_global(struct pi_pickle *vm)
{
    enum pi_code rc = PI_OK;
    struct pi_pickle_value module, name;

    PI_TRY(pop(vm, &name));
    PI_TRY(pop(vm, &module));
    if (name.kind != PI_PICKLE_STRING || module.kind != PI_PICKLE_STRING)
        return corrupt(vm, "a global without a name");
    rc = push_global(vm, module.text, module.n, name.text, name.n);
out:
    return rc;
}

/* A number of n bytes, two's complement; of those that do not fit, or are negative, nothing here makes use. */
static enum pi_code push_long(struct pi_pickle *vm, uint64_t n)
{
    const uint8_t *p = NULL;
    enum pi_code rc = take(vm, n, &p);

    if (rc != PI_OK)
        return rc;
    if (n > 8 || (n > 0 && (p[n - 1] & 0x80) != 0))
        return push_kind(vm, PI_PICKLE_OPAQUE);
    return push(
        vm, (struct pi_pickle_value){.kind = PI_PICKLE_INTEGER, .i = pi_load_le(p, (unsigned)n)});
}

/* An operand of so many bytes, then what is done with it. */
static enum pi_code sized(struct pi_pickle *vm, unsigned bytes,
                          enum pi_code (*then)(struct pi_pickle *, uint64_t))
{
    uint64_t n = 0;
    enum pi_code rc = take_number(vm, bytes, &n);

    return rc == PI_OK ? then(vm, n) : rc;
}

static enum pi_code push_integer(struct pi_pickle *vm, uint64_t v)
{
    return push(vm, (struct pi_pickle_value){.kind = PI_PICKLE_INTEGER, .i = v});
}

static enum pi_code push_signed(struct pi_pickle *vm, uint64_t v)
{
    return (v & 0x80000000) != 0 ? push_kind(vm, PI_PICKLE_OPAQUE) : push_integer(vm, v);
}

static enum pi_code skip_number(struct pi_pickle *vm, uint64_t v)
{
    (void)vm;
    (void)v;
    return PI_OK;
}

/* 64 bits of a float. */
static enum pi_code push_float(struct pi_pickle *vm, uint64_t v)
{
    (void)v;
    return push_kind(vm, PI_PICKLE_OPAQUE);
}

/* Items of a list (which is opaque), those behind a mark for 'e', or the state of an object, as OrderedDict and Tensor may have; dropped: nothing here needs
 * either. */
static enum pi_code drop(struct pi_pickle *vm, uint8_t op)
{
    enum pi_code rc = PI_OK;
    struct pi_pickle_value v;
    enum pi_pickle_kind to;
    size_t first = 0;

    if (op == 'e') {
        PI_TRY(find_mark(vm, &first));
        vm->stack.n = first - 1;
    } else {
        PI_TRY(pop(vm, &v));
    }
    if (vm->stack.n == 0)
        return corrupt(vm, "items of nothing");
    to = (enum pi_pickle_kind)vm->stack.v[vm->stack.n - 1].kind;
    if (to != PI_PICKLE_OPAQUE && (op != 'b' || (to != PI_PICKLE_DICT && to != PI_PICKLE_TENSOR)))
        rc = corrupt(vm, op == 'b' ? "the state of no object" : "items of no list");
out:
    return rc;
}

static enum pi_code behind_mark(struct pi_pickle *vm, uint8_t op)
{
    enum pi_code rc = PI_OK;
    size_t first = 0;

    PI_TRY(find_mark(vm, &first));
    if (op == 'u')
        return set_items(vm, first, true);
    PI_TRY(make_tuple(vm, vm->stack.n - first, true));
    if (op == 'l')
        vm->stack.v[vm->stack.n - 1] = (struct pi_pickle_value){.kind = PI_PICKLE_OPAQUE};
out:
    return rc;
}

static enum pi_code run_opcode(struct pi_pickle *vm, uint8_t op)
{
    switch (op) {
    case 0x80: /* PROTO */
        return sized(vm, 1, skip_number);
    case 0x95: /* FRAME */
        return sized(vm, 8, skip_number);
    case '}':
        return new_dict(vm);
    case ')':
        return make_tuple(vm, 0, false);
    case 0x85: /* TUPLE1 to TUPLE3 */
    case 0x86:
    case 0x87:
        return make_tuple(vm, op - 0x84u, false);
    case ']': /* EMPTY_LIST */
    case 'N': /* NONE */
        return push_kind(vm, PI_PICKLE_OPAQUE);
    case '(':
        return push_kind(vm, PI_PICKLE_MARK);
    case 't': /* TUPLE, LIST, SETITEMS */
    case 'l':
    case 'u':
        return behind_mark(vm, op);
    case 's': /* SETITEM */
        return vm->stack.n < 2 ? corrupt(vm, "entries of no dictionary")
                               : set_items(vm, vm->stack.n - 2, false);
    case 'a': /* APPEND, APPENDS, BUILD */
    case 'e':
    case 'b':
        return drop(vm, op);
    case 'c':
        return load_global(vm);
    case 0x93:
        return stack_global(vm);
    case 'R':
        return reduce(vm);
    case 'Q':
        return load_storage(vm);
    case 'q': /* BINPUT, LONG_BINPUT, MEMOIZE */
        return sized(vm, 1, memo_put);
    case 'r':
        return sized(vm, 4, memo_put);
    case 0x94:
        return memo_put(vm, vm->memo.n);
    case 'h': /* BINGET, LONG_BINGET */
        return sized(vm, 1, memo_get);
    case 'j':
        return sized(vm, 4, memo_get);
    case 'X': /* BINUNICODE, SHORT_BINUNICODE; BINSTRING and SHORT_BINSTRING of Python 2 */
    case 'T':
        return sized(vm, 4, push_string);
    case 0x8c:
    case 'U':
        return sized(vm, 1, push_string);
    case 'J': /* BININT, BININT1, BININT2 */
        return sized(vm, 4, push_signed);
    case 'K':
        return sized(vm, 1, push_integer);
    case 'M':
        return sized(vm, 2, push_integer);
    case 0x8a: /* LONG1 */
        return sized(vm, 1, push_long);
    case 'G': /* BINFLOAT */
        return sized(vm, 8, push_float);
    case 0x88: /* NEWTRUE, NEWFALSE */
    case 0x89:
        return push_integer(vm, op == 0x88);
    default:
        vm->at--;
        return pi_err_set(vm->err, PI_E_UNSUPPORTED,
                          "%s: data.pkl: byte %llu: opcode 0x%02x, which a dictionary of tensors "
                          "does not need: nothing of it is run",
                          vm->path, (unsigned long long)(vm->at - vm->begin), op);
    }
}

/* Runs to STOP; the one value that is left. */
enum pi_code pi_pickle_run(struct pi_pickle *vm, struct pi_pickle_value *out)
{
    enum pi_code rc = PI_OK;
    const uint8_t *op = NULL;

    for (;;) {
        PI_TRY(take(vm, 1, &op));
        if (*op == '.')
            break;
        PI_TRY(run_opcode(vm, *op));
    }
    PI_TRY(pop(vm, out));
    if (vm->stack.n != 0 || vm->at != vm->end)
        rc = corrupt(vm, "something is left over at the pickle's end");
out:
    return rc;
}
