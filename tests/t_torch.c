/* PyTorch checkpoints that are right, and ones that lie or want something done. */
#include "config.h"

#include "convert/pi_torch.h"
#include "tests/scratch.h"
#include "tests/tap.h"
#include "tests/torch_bytes.h"

static struct zip_bytes z;

static enum pi_code parse(struct pi_source *src, struct pi_err *e)
{
    uint8_t *copy = malloc(z.n); /* of its very size, so that a sanitizer sees what lies beyond */
    enum pi_code rc;

    if (copy == NULL)
        exit(99);
    memcpy(copy, z.p, z.n);
    rc = pi_torch_parse(copy, z.n, "m.bin", src, e);
    free(copy); /* names are copies */
    return rc;
}

static void refuse_bytes(enum pi_code code, const char *text)
{
    struct pi_source src = {0};
    struct pi_err e = {0};

    FAILS(parse(&src, &e), code, text, e);
    OK(strncmp(e.msg, "m.bin: ", 7) == 0);
    pi_source_close(&src);
}

static void refuse_pickle(const void *pickle, size_t n, enum pi_code code, const char *text)
{
    printf("# %s\n", text);
    torch_file(&z, pickle, n);
    refuse_bytes(code, text);
}
#define REFUSE(pickle, code, text) refuse_pickle(pickle, sizeof(pickle) - 1, code, text)

static void check_good(const char *name_w, const char *name_b)
{
    const float f[6] = {0, 1, 2, 3, 4, 5};
    const uint16_t h[2] = {0x4040, 0x4080};
    struct pi_source src = {0};
    struct pi_err e = {0};
    const struct pi_src_tensor *t;

    OK(pi_torch_is(z.p, z.n));
    PASSES(pi_torch_parse(z.p, z.n, "m.bin", &src, &e), e);
    PASSES(pi_source_sort(&src, &e), e);
    EQ(src.n, 2);
    t = pi_source_find(&src, name_w);
    if (OK(t != NULL)) {
        OK(t->readable && t->type == PI_TYPE_F32 && t->n_dims == 2 && t->dim[0] == 2 &&
           t->dim[1] == 3 && t->dim[2] == 1 && t->bytes == sizeof(f));
        OK(memcmp(t->data, f, sizeof(f)) == 0);
    }
    t = pi_source_find(&src, name_b);
    if (OK(t != NULL)) {
        OK(t->readable && t->type == PI_TYPE_BF16 && t->n_dims == 1 && t->dim[0] == 2 &&
           t->bytes == sizeof(h));
        OK(memcmp(t->data, h, sizeof(h)) == 0);
    }
    pi_source_close(&src);
}

static void test_good(void)
{
    /* nested, as training loops save it */
    static const char nested[] =
        "\x80\2}(" PKL_STR("\5", "epoch") "K\7" PKL_STR("\12", "state_dict") "}(" PKL_STR("\1", "w")
            PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\3K\1\x86") PKL_STR("\1", "b")
                PKL_TENSOR(PKL_STORE_BF16, "K\2", "K\2\x85", "K\1\x85") "uu.";
    /* a parameter, an attribute of the dictionary, protocol 4 with notes */
    static const char parameter[] =
        "\x80\4\x95\0\0\0\0\0\0\0\0" PKL_ODICT "\x94(\x8c\1w"
        "\x8c\14torch._utils\x8c\22_rebuild_parameter\x93" PKL_TENSOR(
            PKL_STORE_F32, "K\0", "K\2K\3\x86",
            "K\3K\1\x86") "\x88" PKL_ODICT "\x87R"
                          "\x8c\1b" PKL_TENSOR(PKL_STORE_BF16, "K\2", "K\2\x85",
                                               "K\1\x85") "u}" PKL_STR("\11", "_metadata") "h\0sb.";

    /* lists, of one item and of several, and a parameter with attributes */
    static const char lists[] =
        "\x80\2" PKL_ODICT
        "(" PKL_STR("\1", "l") "]K\1a" PKL_STR("\1", "m") "](K\1K\2e" PKL_STR("\1", "w")
            PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\3K\1\x86") "}b" PKL_STR("\1", "b")
                PKL_TENSOR(PKL_STORE_BF16, "K\2", "K\2\x85", "K\1\x85") "u.";

    torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    check_good("w", "b");
    torch_file(&z, lists, sizeof(lists) - 1);
    check_good("w", "b");
    torch_file(&z, nested, sizeof(nested) - 1);
    check_good("w", "b");
    torch_file(&z, parameter, sizeof(parameter) - 1);
    check_good("w", "b");
}

static void test_hostile(void)
{
    REFUSE("\x80\2cposix\nsystem\n" PKL_STR("\2", "ls") "\x85R.", PI_E_UNSUPPORTED,
           "data.pkl names posix.system");
    REFUSE("\x80\4\x8c\10builtins\x8c\4eval\x93.", PI_E_UNSUPPORTED, "names builtins.eval");
    REFUSE("\x80\2ctorch\n_utils\n.", PI_E_UNSUPPORTED, "names torch._utils");
    REFUSE("\x80\2(K\1i.", PI_E_UNSUPPORTED, "opcode 0x69"); /* INST */
    REFUSE("\x80\2}\x81.", PI_E_UNSUPPORTED, "byte 3: opcode 0x81");
    REFUSE("\x80\2}P0\n.", PI_E_UNSUPPORTED, "opcode 0x50"); /* PERSID */
    REFUSE("\x80\2", PI_E_CORRUPT, "the pickle ends inside");
    REFUSE("\x80\2X\xff\xff\xff\xff"
           "a.",
           PI_E_CORRUPT, "the pickle ends inside");
    REFUSE("\x80\2ctorch", PI_E_CORRUPT, "a global without a name");
    REFUSE("\x80\2.", PI_E_CORRUPT, "nothing to take");
    REFUSE("\x80\2}}.", PI_E_CORRUPT, "left over");
    REFUSE("\x80\2}.}", PI_E_CORRUPT, "left over");
    REFUSE("\x80\2K\1.", PI_E_UNSUPPORTED, "something else than a dictionary");
    REFUSE("\x80\2j\xff\xff\xff\xff.", PI_E_CORRUPT, "a note that was not taken");
    REFUSE("\x80\2}r\xff\xff\xff\xff.", PI_E_CORRUPT, "a note of nothing");
    REFUSE("\x80\2h\0.", PI_E_CORRUPT, "a note that was not taken");
    REFUSE("\x80\2t.", PI_E_CORRUPT, "no mark");
    REFUSE("\x80\2K\1\x87.", PI_E_CORRUPT, "nothing to take");
    REFUSE("\x80\2(K\1\x86.", PI_E_CORRUPT, "a mark in a tuple");
    REFUSE("\x80\2}(K\1u.", PI_E_CORRUPT, "entries of no dictionary");
    REFUSE("\x80\2(K\1K\2u.", PI_E_CORRUPT, "entries of no dictionary");
    REFUSE("\x80\2K\1)R.", PI_E_CORRUPT, "a call of something that is no function");
    REFUSE("\x80\2"
           "ctorch\nFloatStorage\n)R.",
           PI_E_CORRUPT, "a call of a storage's type");
    REFUSE("\x80\2K\1Q.", PI_E_CORRUPT, "no reference to a storage");
    REFUSE("\x80\2(K\1e.", PI_E_CORRUPT, "items of nothing");
    REFUSE("\x80\2K\1a.", PI_E_CORRUPT, "items of nothing");
    REFUSE("\x80\2((K\1e.", PI_E_CORRUPT, "items of no list");
    REFUSE("\x80\2}K\1a.", PI_E_CORRUPT, "items of no list");
    REFUSE("\x80\2K\0(K\1e.", PI_E_CORRUPT, "items of no list");
    REFUSE("\x80\2K\1}b.", PI_E_CORRUPT, "the state of no object");
    REFUSE("\x80\2(}b.", PI_E_CORRUPT, "the state of no object");
    REFUSE("\x80\2" PKL_STR("\1", "a") "}b.", PI_E_CORRUPT, "the state of no object");
    REFUSE("\x80\2]K\1K\2s.", PI_E_CORRUPT, "entries of no dictionary");
}

#define ONE(tensor) "\x80\2}" PKL_STR("\1", "w") tensor "s."

static void test_lies(void)
{
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\1", "K\2K\3\x86", "K\3K\1\x86")), PI_E_CORRUPT,
           "elements 1 to 7 in a storage of 6");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "\x8a\10\xff\xff\xff\xff\xff\xff\xff\x7f", "K\2K\3\x86",
                          "K\3K\1\x86")),
           PI_E_CORRUPT, "in a storage of 6");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "\x8a\11\xff\xff\xff\xff\xff\xff\xff\xff\1", "K\2K\3\x86",
                          "K\3K\1\x86")),
           PI_E_CORRUPT, "made of something else");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0",
                          "(\x8a\10\xff\xff\xff\xff\xff\xff\xff\x7f"
                          "K\3t",
                          "K\3K\1\x86")),
           PI_E_CORRUPT, "a shape that is none");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0",
                          "J\xff\xff\xff\xff"
                          "K\3\x86",
                          "K\3K\1\x86")),
           PI_E_CORRUPT, "a shape that is none");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\1\x85")), PI_E_CORRUPT,
           "made of something else");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "K\3K\2\x86", "K\1K\3\x86")), PI_E_UNSUPPORTED,
           "tensor w is a view with strides of its own");
    /* expand(): few values stand for many, which a reader of plain rows would not find */
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "K\3K\4\x86", "K\0K\1\x86")), PI_E_UNSUPPORTED,
           "tensor w is an expanded view");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "K\6K\2\x86", "K\1K\0\x86")), PI_E_UNSUPPORTED,
           "tensor w is an expanded view");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "\x8a\6\0\0\0\0\0\1K\6\x86", "K\0K\1\x86")),
           PI_E_UNSUPPORTED, "tensor w is an expanded view");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\6", "K\3\x85", "K\0\x85")), PI_E_UNSUPPORTED,
           "tensor w is an expanded view");
    REFUSE(ONE(PKL_TENSOR(PKL_STORE_F32, "K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t",
                          "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t")),
           PI_E_UNSUPPORTED, "a tensor of 9 dimensions");
    REFUSE(ONE(PKL_TENSOR("(" PKL_STR("\7", "storage") "ctorch\nFloatStorage\n" PKL_STR("\1", "0")
                              PKL_STR("\3", "cpu") "K\7tQ",
                          "K\0", "K\2\x85", "K\1\x85")),
           PI_E_CORRUPT, "storage 0 has 24 bytes, not 7 elements of F32");
    REFUSE(ONE(PKL_TENSOR("(" PKL_STR("\7", "storage") "ctorch\nFloatStorage\n" PKL_STR("\1", "9")
                              PKL_STR("\3", "cpu") "K\6tQ",
                          "K\0", "K\2\x85", "K\1\x85")),
           PI_E_CORRUPT, "storage 9 is not in the file");
    REFUSE("\x80\2}K\1" PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2\x85", "K\1\x85") "s.", PI_E_CORRUPT,
           "a tensor without a name");
}

/* (storage 0, 0, (2,), (1,), False, hooks, metadata): what a view that is conjugated or negated has in its last. */
#define META(meta) PKL_REBUILD "(" PKL_STORE_F32 "K\0K\2\x85K\1\x85\x89" PKL_ODICT meta "tR"
#define NEGATED    "}" PKL_STR("\3", "neg") "\x88s"

static void test_metadata(void)
{
    static const char good[] = ONE(META("}")), none[] = ONE(META("N"));
    /* the dictionary comes from the notes, and another entry was made in between */
    static const char noted[] = "\x80\2}" PKL_STR("\1", "l") NEGATED
        "q\1s" PKL_STR("\1", "m") "}K\1K\2ss" PKL_STR("\1", "w") META("h\1") "s.";
    struct pi_source src = {0};
    struct pi_err e = {0};

    REFUSE(ONE(META(NEGATED)), PI_E_UNSUPPORTED, "a conjugated or negated view");
    REFUSE(noted, PI_E_UNSUPPORTED, "a conjugated or negated view");
    REFUSE(ONE(META("K\1")), PI_E_CORRUPT, "a tensor's metadata that is no dictionary");
    for (int k = 0; k < 2; k++) {
        torch_file(&z, k == 0 ? good : none, k == 0 ? sizeof(good) - 1 : sizeof(none) - 1);
        PASSES(pi_torch_parse(z.p, z.n, "m.bin", &src, &e), e);
        EQ(src.n, 1);
        pi_source_close(&src);
    }
}

/* A dimension of one element may have any stride. */
static void test_single(void)
{
    static const char one[] = ONE(PKL_TENSOR(PKL_STORE_F32, "K\2", "K\1K\4\x86", "K\0K\1\x86"));
    const float f[4] = {2, 3, 4, 5};
    struct pi_source src = {0};
    struct pi_err e = {0};

    torch_file(&z, one, sizeof(one) - 1);
    PASSES(pi_torch_parse(z.p, z.n, "m.bin", &src, &e), e);
    if (OK(src.n == 1))
        OK(src.t[0].bytes == sizeof(f) && memcmp(src.t[0].data, f, sizeof(f)) == 0);
    pi_source_close(&src);
}

/* Storages are held against the archive's checksums when what lies in them is read, each once. */
static void test_sums(void)
{
    struct pi_source src = {0};
    struct pi_err e = {0};
    const struct pi_src_tensor *w, *b;
    struct pi_pool *pool = NULL;
    uint8_t *last;

    PASSES(pi_pool_create(2, &pool, &e), e);
    for (int k = 0; k < 2; k++) {
        struct pi_pool *threads = k == 0 ? NULL : pool;

        torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
        PASSES(pi_torch_parse(z.p, z.n, "m.bin", &src, &e), e);
        PASSES(pi_source_sort(&src, &e), e);
        EQ(src.n_sums, 2);
        w = pi_source_find(&src, "w");
        b = pi_source_find(&src, "b");
        if (!OK(w != NULL && b != NULL))
            exit(1);
        last = z.p + (b->data - z.p) - 1; /* in the storage, before the view */
        *last ^= 0x40;
        PASSES(pi_source_check(&src, w->data, w->bytes, threads, &e), e);
        PASSES(pi_source_check(&src, z.p, 1, threads, &e), e); /* no storage's */
        FAILS(pi_source_check(&src, b->data, b->bytes, threads, &e), PI_E_CORRUPT,
              "m.bin: storage 1 is damaged: its CRC-32 is", e);
        FAILS(pi_source_check(&src, z.p, z.n, threads, &e), PI_E_CORRUPT, "storage 1", e);
        *last ^= 0x40;
        PASSES(pi_source_check(&src, b->data + b->bytes - 1, 1, threads, &e), e);
        *last ^= 0x40;
        PASSES(pi_source_check(&src, z.p, z.n, threads, &e), e);
        pi_source_close(&src);
    }
    pi_pool_destroy(pool);
}

static void test_zip(void)
{
    static const uint8_t old[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20};
    size_t end, entry;

    memcpy(z.p, old, sizeof(old));
    z.n = sizeof(old);
    OK(pi_torch_is(z.p, z.n));
    refuse_bytes(PI_E_UNSUPPORTED, "the form before 1.6");
    OK(!pi_torch_is((const uint8_t *)"\x80\2\0\0\0\0\0\0{\"a\"", 12)); /* safetensors: 640 bytes */

    torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    end = z.n - 22;
    entry = z.n - 22 - z.n_dir;
    z.n--;
    refuse_bytes(PI_E_CORRUPT, "its directory is missing");
    z.n++;
    zip_number(z.p + end + 16, z.n, 4);
    refuse_bytes(PI_E_CORRUPT, "its directory does not lie in the file");
    zip_number(z.p + end + 16, entry, 4);
    zip_number(z.p + end + 10, 6, 2);
    refuse_bytes(PI_E_CORRUPT, "shorter than it says");
    zip_number(z.p + end + 10, 60000, 2);
    refuse_bytes(PI_E_CORRUPT, "its directory does not lie in the file");
    zip_number(z.p + end + 10, 5, 2);
    zip_number(z.p + entry + 10, 8, 2);
    refuse_bytes(PI_E_UNSUPPORTED, "entry archive/data.pkl is compressed");
    zip_number(z.p + entry + 10, 0, 2);
    zip_number(z.p + entry + 8, 1, 2);
    refuse_bytes(PI_E_UNSUPPORTED, "entry archive/data.pkl is encrypted");
    zip_number(z.p + entry + 8, 0, 2);
    zip_number(z.p + entry + 42, z.n, 4);
    refuse_bytes(PI_E_CORRUPT, "entry archive/data.pkl does not lie in the file");
    zip_number(z.p + entry + 42, 0, 4);
    zip_number(z.p + entry + 20, z.n, 4);
    zip_number(z.p + entry + 24, z.n, 4);
    refuse_bytes(PI_E_CORRUPT, "bytes do not lie in the file's");
    zip_number(z.p + entry + 20, UINT32_MAX, 4); /* a zip64 size that is not there */
    refuse_bytes(PI_E_CORRUPT, "does not lie in the file");
    zip_number(z.p + entry + 20, sizeof(PKL_GOOD) - 1, 4);
    zip_number(z.p + entry + 24, sizeof(PKL_GOOD) - 1, 4);
    z.p[60] ^= 1;
    refuse_bytes(PI_E_CORRUPT, "another CRC-32");

    z = (struct zip_bytes){.n = 0};
    zip_add(&z, "a/data.pkl", PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_add(&z, "a/byteorder", "big", 3);
    zip_end(&z);
    refuse_bytes(PI_E_UNSUPPORTED, "big-endian");
    z = (struct zip_bytes){.n = 0};
    zip_add(&z, "a/data.pkl", PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_add(&z, "a/data.pkl", PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_end(&z);
    refuse_bytes(PI_E_CORRUPT, "two entries are called a/data.pkl");
    z = (struct zip_bytes){.n = 0};
    zip_add(&z, "a/constants", "", 0);
    zip_end(&z);
    refuse_bytes(PI_E_UNSUPPORTED, "without data.pkl");
}

/* As many sums as storages, however often those are loaded. */
static void test_loads(void)
{
    static const char key[] = "\x80\2}" PKL_STR("\1", "l") "](";
    static const char loads[] = PKL_STORE_F32 PKL_STORE_BF16;
    static const char end[] =
        "es" PKL_STR("\1", "w") PKL_TENSOR(PKL_STORE_F32, "K\0", "K\2K\3\x86", "K\3K\1\x86") "s.";
    uint8_t pickle[32768];
    size_t n = 0;
    struct pi_source src = {0};
    struct pi_err e = {0};

    pkl_put(pickle, &n, key, sizeof(key) - 1);
    for (int i = 0; i < 100; i++)
        pkl_put(pickle, &n, loads, sizeof(loads) - 1);
    pkl_put(pickle, &n, end, sizeof(end) - 1);
    torch_file(&z, pickle, n);
    PASSES(pi_torch_parse(z.p, z.n, "m.bin", &src, &e), e);
    OK(src.n == 1);
    EQ(src.n_sums, 2);
    PASSES(pi_source_check(&src, z.p, z.n, NULL, &e), e);
    pi_source_close(&src);
}

/* The entry at byte skip of the directory has its local header at place at. */
static void refuse_overlap(size_t skip, uint64_t at, const char *text)
{
    uint8_t *entry = z.p + z.n - 22 - z.n_dir + skip + 42;
    uint64_t old = 0;

    for (int i = 4; i-- > 0;)
        old = old << 8 | entry[i];
    zip_number(entry, at, 4);
    refuse_bytes(PI_E_CORRUPT, text);
    zip_number(entry, old, 4);
}

/* Entries that share bytes: one place under two names, and one whose local header lies in another's data. */
static void test_overlap(void)
{
    static const char local[30] = "PK\3\4";
    const size_t first = 46 + strlen("a/data.pkl"), next = 46 + strlen("a/data/0");
    const float f[6] = {0};
    size_t inner;

    z = (struct zip_bytes){.n = 0};
    zip_add(&z, "a/data.pkl", PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_add(&z, "a/data/0", local, sizeof(local));
    inner = z.n - sizeof(local);
    zip_add(&z, "a/data/1", f, sizeof(f));
    zip_end(&z);
    refuse_bytes(PI_E_CORRUPT, "storage 0 has 30 bytes");
    refuse_overlap(first + next, inner - 38, "entries a/data/0 and a/data/1 overlap");
    refuse_overlap(first + next, inner, "entries a/data/0 and a/data/1 overlap");
    refuse_overlap(first, 0, "entries a/data.pkl and a/data/0 overlap");
}

/* A pickle too long for what any model needs: each byte of it may stand for many of memory. */
static void test_long(void)
{
    static uint8_t pickle[2 << 20];
    struct pi_source src = {0};
    struct pi_err e = {0};
    uint8_t *file = calloc(1, sizeof(pickle) + 1024);
    size_t end;

    if (file == NULL)
        exit(99);
    memset(pickle, 'N', sizeof(pickle));
    for (unsigned more = 0; more < 2; more++) {
        const size_t n = sizeof(pickle) + more;

        z = (struct zip_bytes){.n = 0};
        zip_add(&z, "a/data.pkl", "", 0);
        end = z.n;
        memcpy(file, z.p, end);
        memcpy(file + end, pickle, sizeof(pickle));
        z.n += n;
        zip_number(z.dir + 16, 0, 4); /* no sums */
        zip_number(z.dir + 20, n, 4);
        zip_number(z.dir + 24, n, 4);
        memcpy(file + z.n, z.dir, z.n_dir);
        zip_number(file + z.n + z.n_dir, 0x06054b50, 4);
        zip_number(file + z.n + z.n_dir + 10, 1, 2);
        zip_number(file + z.n + z.n_dir + 12, z.n_dir, 4);
        zip_number(file + z.n + z.n_dir + 16, z.n, 4);
        FAILS(pi_torch_parse(file, z.n + z.n_dir + 22, "m.bin", &src, &e),
              more > 0 ? PI_E_UNSUPPORTED : PI_E_CORRUPT,
              more > 0 ? "data.pkl of 2097153 bytes, at most 2097152" : "the pickle ends inside",
              e);
    }
    free(file);
}

/* Names are as long as they say, whatever bytes they hold: a zero byte in the folder's, then in the key of a storage. */
static void test_names(void)
{
    static const char root[] = "a\0bbbbbbbbbbbbbbbbbbbbbbbb/data.pkl";
    static const char key[] = "\x80\2}" PKL_STR("\1", "w")
        PKL_TENSOR("(" PKL_STR("\7", "storage") "ctorch\nFloatStorage\n" PKL_STR("\2", "0\0")
                       PKL_STR("\3", "cpu") "K\6tQ",
                   "K\0", "K\2\x85", "K\1\x85") "s.";
    const float f[6] = {0};

    z = (struct zip_bytes){.n = 0};
    zip_add_named(&z, root, sizeof(root) - 1, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_add(&z, "adata/0", f, sizeof(f));
    zip_end(&z);
    refuse_bytes(PI_E_CORRUPT, "entry a: a name with a zero byte");
    z = (struct zip_bytes){.n = 0};
    zip_add(&z, "a/data.pkl", PKL_GOOD, sizeof(PKL_GOOD) - 1);
    zip_add_named(&z, "a/data/0\0", 9, f, sizeof(f));
    zip_end(&z);
    refuse_bytes(PI_E_CORRUPT, "entry a/data/0: a name with a zero byte");
    REFUSE(key, PI_E_CORRUPT, "storage 0 is not in the file");
}

/* The same bytes behind 64-bit fields: what torch.save() writes for large models. */
static void test_zip64(void)
{
    uint8_t extra[20] = {1, 0, 16, 0}, end[22 + 20 + 56] = {0};
    size_t dir, first;

    torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    dir = z.n - 22 - z.n_dir;
    first = 46 + strlen("archive/data.pkl");
    zip_number(extra + 4, sizeof(PKL_GOOD) - 1, 8);
    zip_number(extra + 12, sizeof(PKL_GOOD) - 1, 8);
    memmove(z.p + dir + first + 20, z.p + dir + first, z.n_dir - first);
    memcpy(z.p + dir + first, extra, 20);
    zip_number(z.p + dir + 20, UINT32_MAX, 4);
    zip_number(z.p + dir + 24, UINT32_MAX, 4);
    zip_number(z.p + dir + 30, 20, 2);
    z.n = dir + z.n_dir + 20;
    zip_number(end, 0x06064b50, 4);
    zip_number(end + 32, 5, 8);
    zip_number(end + 40, z.n_dir + 20, 8);
    zip_number(end + 48, dir, 8);
    zip_number(end + 56, 0x07064b50, 4);
    zip_number(end + 64, z.n, 8);
    zip_number(end + 76, 0x06054b50, 4);
    memset(end + 80, 0xff, 16);
    memcpy(z.p + z.n, end, sizeof(end));
    z.n += sizeof(end);
    check_good("w", "b");
    zip_number(z.p + z.n - 22 - 20 + 8, z.n, 8);
    refuse_bytes(PI_E_CORRUPT, "its 64-bit directory end");
}

/* Directories: one file, or shards with an index. */
static void test_directory(void)
{
    static const char good[] = "{\"weight_map\":{\"w\":\"one.bin\",\"b\":\"one.bin\"}}";
    static const char absent[] = "{\"weight_map\":{\"w\":\"two.bin\"}}";
    char *dir = scratch_open(), *model = scratch_path(dir, "pytorch_model.bin"),
         *one = scratch_path(dir, "one.bin"),
         *index = scratch_path(dir, "pytorch_model.bin.index.json");
    struct pi_source src = {0};
    struct pi_err e = {0};

    torch_file(&z, PKL_GOOD, sizeof(PKL_GOOD) - 1);
    scratch_write(model, z.p, z.n);
    PASSES(pi_source_open(dir, &src, &e), e);
    EQ(src.n, 2);
    pi_source_close(&src);
    (void)remove(model);
    scratch_write(one, z.p, z.n);
    scratch_write(index, good, strlen(good));
    PASSES(pi_source_open(dir, &src, &e), e);
    OK(src.n == 2 && src.n_maps == 1);
    pi_source_close(&src);
    scratch_write(index, absent, strlen(absent));
    FAILS(pi_source_open(dir, &src, &e), PI_E_IO, "two.bin: shard is missing", e);
    free(model);
    free(one);
    free(index);
    scratch_close(dir);
}

int main(void)
{
    test_good();
    test_hostile();
    test_lies();
    test_metadata();
    test_single();
    test_sums();
    test_zip();
    test_loads();
    test_long();
    test_overlap();
    test_names();
    test_zip64();
    test_directory();
    return DONE();
}
