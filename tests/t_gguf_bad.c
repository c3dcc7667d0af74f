/* GGUF files that lie in every way that has broken other readers, values at the ends of their ranges, and no memory. */
#include "config.h"

#include "common/pi_artifact.h"
#include "common/pi_gguf.h"
#include "common/pi_gguf_int.h"
#include "tests/gguf_bytes.h"
#include "tests/tap.h"

#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

static struct pi_err e;
static struct gb b;

/* Opens b's bytes from a block of exactly their size, so that a sanitizer sees one byte too far. */
static enum pi_code open_bytes_with(unsigned flags)
{
    struct pi_gguf g = {0};
    uint8_t *copy = malloc(b.n + (b.n == 0));
    enum pi_code rc;

    memcpy(copy, b.p, b.n);
    memset(&e, 0, sizeof(e));
    rc = pi_gguf_open_memory(copy, b.n, "x.gguf", flags, &g, &e);
    pi_gguf_close(&g);
    free(copy);
    return rc;
}

static enum pi_code open_bytes(void)
{
    return open_bytes_with(0);
}

/* ---- files that lie ------------------------------------------------------------------------- */

static void test_magic_and_version(void)
{
    b.n = 0;
    FAILS(open_bytes(), PI_E_CORRUPT, "not a GGUF file", e);
    gb_raw(&b, "GGU", 3);
    FAILS(open_bytes(), PI_E_CORRUPT, "not a GGUF file", e);
    gb_raw(&b, "F", 1);
    FAILS(open_bytes(), PI_E_CORRUPT, "truncated: the version", e);
    gb_head(&b, 1, 0, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "GGUF version 1", e);
    gb_head(&b, 4, 0, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "GGUF version 4", e);
    gb_head(&b, 0, 0, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "GGUF version 0", e);
    gb_head(&b, 3u << 24, 0, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "big-endian", e);
    gb_head(&b, 2, 0, 0);
    PASSES(open_bytes(), e);
    gb_head(&b, 3, 0, 0);
    PASSES(open_bytes(), e);
    memcpy(b.p, "PWRI", 4);
    PASSES(open_bytes(), e);
    for (size_t n = 4; n < 24; n++) {
        b.n = n;
        OK(open_bytes() == PI_E_CORRUPT);
    }
}

static void test_counts(void)
{
    static const uint64_t lies[] = {1, 1ull << 31, 1ull << 32, 1ull << 60, 1ull << 63, UINT64_MAX};

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        gb_head(&b, 3, 0, lies[i]);
        FAILS(open_bytes(), PI_E_CORRUPT, "keys cannot fit", e);
        gb_head(&b, 3, lies[i], 0);
        FAILS(open_bytes(), PI_E_CORRUPT, "tensors cannot fit", e);
    }
}

/* Lengths of strings and arrays beyond the bytes left; "tiny file claims 1 GiB". */
static void test_lengths(void)
{
    static const uint64_t lies[] = {100,        1ull << 30, 1ull << 31,     1ull << 61,
                                    1ull << 62, 1ull << 63, UINT64_MAX - 7, UINT64_MAX};

    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        gb_head(&b, 3, 0, 1);
        gb_u64(&b, lies[i]); /* the key's length */
        gb_raw(&b, "0123456789", 10);
        FAILS(open_bytes(), PI_E_CORRUPT, "truncated: a key", e);
        gb_head(&b, 3, 0, 1);
        gb_key(&b, "k", PI_GGUF_STR);
        gb_u64(&b, lies[i]);
        gb_raw(&b, "0123456789", 10);
        FAILS(open_bytes(), PI_E_CORRUPT, "truncated: a string", e);
        for (uint32_t elem = 0; elem <= PI_GGUF_F64; elem++) {
            if (elem == PI_GGUF_ARR)
                continue;
            gb_head(&b, 3, 0, 1);
            gb_kv_array(&b, "k", elem, lies[i]);
            gb_u64(&b, 0);
            OK(open_bytes() == PI_E_CORRUPT && strstr(e.msg, "truncated") != NULL);
        }
    }
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "k", PI_GGUF_STR, 2);
    gb_str(&b, "one");
    FAILS(open_bytes(), PI_E_CORRUPT, "truncated", e);
}

static void test_tags(void)
{
    gb_head(&b, 3, 0, 1);
    gb_key(&b, "k", 13);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "key k has unknown value type 13", e);
    gb_head(&b, 3, 0, 1);
    gb_key(&b, "k", UINT32_MAX);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "unknown value type", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "k", 77, 0);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "unknown value type 77", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "k", PI_GGUF_ARR, 1);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "array of arrays", e);
    gb_head(&b, 3, 0, 1);
    gb_key(&b, "k", PI_GGUF_BOOL);
    gb_u8(&b, 2);
    FAILS(open_bytes(), PI_E_CORRUPT, "2 is no truth value", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_u32(&b, "", 1);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_CORRUPT, "a key of 0 bytes", e);
}

static void test_duplicates(void)
{
    uint64_t ne = 8;

    gb_head(&b, 3, 0, 3);
    gb_kv_u32(&b, "k", 1);
    gb_kv_u32(&b, "other", 1);
    gb_kv_u32(&b, "k", 2);
    FAILS(open_bytes(), PI_E_CORRUPT, "key k occurs twice", e);
    gb_head(&b, 3, 2, 0);
    gb_tensor(&b, "t", 1, &ne, PI_TYPE_F32, 0);
    gb_tensor(&b, "t", 1, &ne, PI_TYPE_F32, 32);
    gb_pad(&b, 32);
    for (int i = 0; i < 16; i++)
        gb_u32(&b, 0);
    FAILS(open_bytes(), PI_E_CORRUPT, "tensor t occurs twice", e);
}

static void test_alignment(void)
{
    static const uint32_t bad[] = {0, 1, 3, 4, 24, 33, 1u << 17, 1u << 31, UINT32_MAX};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        gb_head(&b, 3, 0, 1);
        gb_kv_u32(&b, "general.alignment", bad[i]);
        FAILS(open_bytes(), PI_E_CORRUPT, "is no power of two between 8 and 65536", e);
    }
    gb_head(&b, 3, 0, 1);
    gb_key(&b, "general.alignment", PI_GGUF_I32);
    gb_u32(&b, 32);
    FAILS(open_bytes(), PI_E_CORRUPT, "general.alignment is no u32", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_str(&b, "general.alignment", "32");
    FAILS(open_bytes(), PI_E_CORRUPT, "general.alignment is no u32", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_array(&b, "general.alignment", PI_GGUF_U32, 1);
    gb_u32(&b, 32);
    FAILS(open_bytes(), PI_E_CORRUPT, "general.alignment is no u32", e);
    gb_head(&b, 3, 0, 1);
    gb_kv_u32(&b, "general.alignment", 64);
    PASSES(open_bytes(), e);
}

static void test_dimensions(void)
{
    uint64_t ne[8] = {8, 1, 1, 1, 1, 1, 1, 1};
    static const uint32_t n_dims[] = {0, 5, 8, 1u << 31, UINT32_MAX};
    static const struct {
        uint64_t ne[4];
        uint32_t type;
        const char *says;
    } cases[] = {
        {{0, 1, 1, 1}, PI_TYPE_F32, "dimension 0 is 0"},
        {{8, 0, 1, 1}, PI_TYPE_F32, "dimension 1 is 0"},
        {{8, 1, 1, 0}, PI_TYPE_F32, "dimension 3 is 0"},
        {{1ull << 32, 1ull << 32, 1, 1}, PI_TYPE_F32, "more than 2^63 elements"}, /* product 0 */
        {{1ull << 62, 4, 1, 1}, PI_TYPE_I8, "more than 2^63 elements"},
        {{UINT64_MAX, 1, 1, 1}, PI_TYPE_F32, "more than 2^63 elements"},
        {{(1ull << 62) - 1, 1, 1, 1}, PI_TYPE_F32, "truncated"}, /* padding would wrap */
        {{(1ull << 62) - 1, 2, 1, 1}, PI_TYPE_F32, "are too many"},
        {{1ull << 61, 1, 1, 1}, PI_TYPE_F64, "are too many"},
        {{(1ull << 42) + 1, 1ull << 20, 1, 1}, PI_TYPE_F32, "are too many"},
        {{(1ull << 42) + 1, 1, 1, 1}, PI_TYPE_F32, "truncated"},
        {{1ull << 42, 1ull << 10, 1, 1}, PI_TYPE_Q4_0, "truncated"},
        /* the element count is fine, the bytes of the row wrap for a sloppy formula */
        {{(1ull << 63) / 18 / 32 * 32, 1, 1, 1}, PI_TYPE_Q4_0, "truncated"},
        {{(1ull << 62), 1, 1, 1}, PI_TYPE_Q8_0, "truncated"},
        {{33, 1, 1, 1}, PI_TYPE_Q8_0, "rows of 33 elements are no multiple of the 32"},
        {{32, 8, 1, 1}, PI_TYPE_Q4_K, "no multiple of the 256"},
    };

    for (size_t i = 0; i < sizeof(n_dims) / sizeof(n_dims[0]); i++) {
        gb_one_tensor(&b, n_dims[i], ne, PI_TYPE_F32, 0, 64);
        FAILS(open_bytes(), PI_E_CORRUPT, "dimensions; 1 to 4", e);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        gb_one_tensor(&b, 4, cases[i].ne, cases[i].type, 0, 64);
        FAILS(open_bytes(), PI_E_CORRUPT, cases[i].says, e);
    }
    gb_one_tensor(&b, 1, ne, PI_TYPE_F32, 0, 32);
    PASSES(open_bytes(), e);
}

static void test_types(void)
{
    static const uint32_t types[] = {4, 5, 9, 16, 29, 31, 39, 1u << 31, UINT32_MAX};
    uint64_t ne = 256;

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        gb_one_tensor(&b, 1, &ne, types[i], 0, 1024);
        FAILS(open_bytes(), PI_E_UNSUPPORTED, "tensor t has unsupported type", e);
        PASSES(open_bytes_with(PI_GGUF_NO_DATA), e); /* the vocabulary can still be read */
    }
}

static void test_names(void)
{
    char name[300] = {0};
    uint64_t ne = 8;

    gb_head(&b, 3, 1, 0);
    gb_tensor(&b, "", 1, &ne, PI_TYPE_F32, 0);
    gb_pad(&b, 32);
    gb_str(&b, "some more bytes that the file needs");
    FAILS(open_bytes(), PI_E_CORRUPT, "name of 0 bytes", e);
    memset(name, 'n', 256);
    gb_head(&b, 3, 1, 0);
    gb_tensor(&b, name, 1, &ne, PI_TYPE_F32, 0);
    gb_pad(&b, 32);
    FAILS(open_bytes(), PI_E_CORRUPT, "name of 256 bytes", e);
    /* Control characters from a file never reach the terminal. */
    gb_head(&b, 3, 0, 1);
    gb_key(&b, "\x1b[2J", 99);
    gb_u64(&b, 0);
    FAILS(open_bytes(), PI_E_UNSUPPORTED, "key ?[2J", e);
}

/* Two tensors of 32 bytes and what their offsets may not be. */
static void two_tensors(uint64_t offset_a, uint64_t offset_b, size_t n_data)
{
    uint64_t ne = 8;

    gb_head(&b, 3, 2, 0);
    gb_tensor(&b, "a", 1, &ne, PI_TYPE_F32, offset_a);
    gb_tensor(&b, "b", 1, &ne, PI_TYPE_F32, offset_b);
    gb_pad(&b, 32);
    for (size_t i = 0; i < n_data; i++)
        gb_u8(&b, 0);
}

static void test_extents(void)
{
    uint64_t ne[2] = {8, 4};

    two_tensors(0, 32, 64);
    PASSES(open_bytes(), e);
    two_tensors(32, 0, 64);
    PASSES(open_bytes(), e);
    two_tensors(0, 0, 64);
    FAILS(open_bytes(), PI_E_CORRUPT, "where the tensors before it end", e);
    two_tensors(0, 64, 96);
    FAILS(open_bytes(), PI_E_CORRUPT, "tensor b starts at 64 of the tensor data, where", e);
    two_tensors(32, 64, 96);
    FAILS(open_bytes(), PI_E_CORRUPT, "tensor a starts at 32", e);
    two_tensors(0, 16, 64);
    FAILS(open_bytes(), PI_E_CORRUPT, "offset 16 is no multiple of the alignment 32", e);
    two_tensors(0, 32, 63);
    FAILS(open_bytes(), PI_E_CORRUPT,
          "truncated: tensor b needs 32 bytes at 32 of the tensor data, the file has 63", e);
    PASSES(open_bytes_with(PI_GGUF_NO_DATA), e);
    two_tensors(0, UINT64_MAX - 31, 64);
    FAILS(open_bytes(), PI_E_CORRUPT, "truncated: tensor b", e);
    two_tensors(0, 1ull << 63, 64);
    FAILS(open_bytes(), PI_E_CORRUPT, "truncated: tensor b", e);

    /* Sizes whose sum passes 2^64, each fine by itself. */
    gb_head(&b, 3, 2, 0);
    ne[0] = 1ull << 61;
    ne[1] = 1;
    gb_tensor(&b, "a", 2, ne, PI_TYPE_F32, 0);
    gb_tensor(&b, "b", 2, ne, PI_TYPE_F32, 1ull << 63);
    gb_pad(&b, 32);
    FAILS(open_bytes(), PI_E_CORRUPT, "truncated: tensor a", e);

    /* A tensor that overlaps its neighbour: the gap is smaller than the type needs. */
    gb_head(&b, 3, 2, 0);
    ne[0] = 8;
    ne[1] = 4;
    gb_tensor(&b, "a", 2, ne, PI_TYPE_F32, 0);
    gb_tensor(&b, "b", 2, ne, PI_TYPE_F32, 64);
    gb_pad(&b, 32);
    for (int i = 0; i < 64; i++)
        gb_u32(&b, 0);
    FAILS(open_bytes(), PI_E_CORRUPT, "tensor b starts at 64", e);

    /* The padding of the header itself is cut off: fine without tensors. */
    gb_head(&b, 3, 0, 1);
    gb_kv_u32(&b, "k", 1);
    PASSES(open_bytes(), e);
}

/* A whole valid file cut at every length; nothing but an error may come of it. */
static void test_truncation(void)
{
    uint64_t ne[2] = {32, 2};
    size_t n, opened = 0;

    gb_head(&b, 3, 2, 3);
    gb_kv_str(&b, "general.architecture", "llama");
    gb_kv_array(&b, "tokenizer.ggml.tokens", PI_GGUF_STR, 2);
    gb_str(&b, "<s>");
    gb_str(&b, "x");
    gb_kv_u32(&b, "llama.block_count", 1);
    gb_tensor(&b, "a", 2, ne, PI_TYPE_Q8_0, 0);
    gb_tensor(&b, "b", 1, ne, PI_TYPE_F16, 96);
    gb_pad(&b, 32);
    for (int i = 0; i < 160; i++)
        gb_u8(&b, 1);
    PASSES(open_bytes(), e);
    for (n = b.n; b.n > 0;) {
        b.n--;
        opened += open_bytes() == PI_OK;
    }
    EQ(opened, 0);
    OK(n > 160);
}

/* Every width of integer, and the ends of their ranges. */
static void test_widths(void)
{
    static const struct {
        uint32_t type;
        uint64_t bits;
        int64_t value;
    } cases[] = {
        {PI_GGUF_U8, 0xff, 255},
        {PI_GGUF_I8, 0xff, -1},
        {PI_GGUF_U16, 0xfffe, 65534},
        {PI_GGUF_I16, 0x8000, -32768},
        {PI_GGUF_U32, 0xffffffff, 4294967295},
        {PI_GGUF_I32, 0x80000000, INT32_MIN},
        {PI_GGUF_U64, UINT64_MAX, INT64_MAX}, /* the most that elem_i64 can say */
        {PI_GGUF_I64, 1ull << 63, INT64_MIN},
        {PI_GGUF_BOOL, 1, 1},
    };
    struct pi_gguf g = {0};
    const struct pi_gguf_kv *kv = NULL;
    uint64_t u = 0;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool integer = cases[i].type != PI_GGUF_BOOL;

        gb_head(&b, 3, 0, 2);
        gb_kv_array(&b, "a", cases[i].type, 1);
        gb_raw(&b, &cases[i].bits, pi_gguf_scalar_bytes(cases[i].type));
        gb_key(&b, "k", cases[i].type);
        gb_raw(&b, &cases[i].bits, pi_gguf_scalar_bytes(cases[i].type));
        PASSES(pi_gguf_open_memory(b.p, b.n, "x.gguf", 0, &g, &e), e);
        PASSES(pi_gguf_array(&g, "a", integer ? PI_GGUF_I64 : PI_GGUF_BOOL, true, &kv, &e), e);
        EQ(pi_gguf_elem_i64(kv, 0), cases[i].value);
        if (integer && cases[i].value >= 0) {
            PASSES(pi_gguf_u64(&g, "k", true, &u, &e), e);
            OK(u == cases[i].bits);
        } else {
            OK(pi_gguf_u64(&g, "k", true, &u, &e) == PI_E_CORRUPT);
        }
        FAILS(pi_gguf_array(&g, "k", PI_GGUF_I64, true, &kv, &e), PI_E_CORRUPT, "not an array", e);
        FAILS(pi_gguf_array(&g, "b", PI_GGUF_I64, true, &kv, &e), PI_E_CORRUPT, "b is missing", e);
        pi_gguf_close(&g);
    }
}

/* A list of checksums that is too short or of another type. */
static void test_crc_list(void)
{
    struct pi_gguf g = {0};
    uint64_t ne = 8;

    for (int other = 0; other < 2; other++) {
        gb_head(&b, 3, 1, 1);
        gb_kv_array(&b, "pi.crc32", other ? PI_GGUF_I32 : PI_GGUF_U32, 2);
        gb_u64(&b, 0);
        gb_tensor(&b, "t", 1, &ne, PI_TYPE_F32, 0);
        gb_pad(&b, 32);
        for (int i = 0; i < 8; i++)
            gb_u32(&b, 0);
        PASSES(pi_gguf_open_memory(b.p, b.n, "x.gguf", 0, &g, &e), e);
        FAILS(pi_gguf_check_crc(&g, &e), PI_E_CORRUPT,
              other ? "not of u32" : "2 checksums for 1 tensors", e);
        pi_gguf_close(&g);
    }
    gb_head(&b, 3, 0, 1);
    gb_kv_str(&b, "pi.header_crc32", "12345678");
    FAILS(open_bytes(), PI_E_CORRUPT, "pi.header_crc32 is no u32", e);
}

static void test_not_finite(void)
{
    struct pi_gguf g = {0};
    float f = 7;
    uint32_t u = 7;
    int64_t i64 = -5;

    gb_head(&b, 3, 0, 3);
    gb_key(&b, "nan", PI_GGUF_F32);
    gb_u32(&b, 0x7fc00000);
    gb_key(&b, "big", PI_GGUF_F64);
    gb_u64(&b, 0x7fe0000000000000); /* above FLT_MAX */
    gb_key(&b, "minus", PI_GGUF_I64);
    gb_u64(&b, (uint64_t)i64);
    PASSES(pi_gguf_open_memory(b.p, b.n, "x.gguf", 0, &g, &e), e);
    FAILS(pi_gguf_f32(&g, "nan", true, &f, &e), PI_E_CORRUPT, "nan is not finite", e);
    FAILS(pi_gguf_f32(&g, "big", true, &f, &e), PI_E_CORRUPT, "big is not finite", e);
    FAILS(pi_gguf_u32(&g, "minus", true, &u, &e), PI_E_CORRUPT, "negative: -5", e);
    OK(u == 7);
    pi_gguf_close(&g);
}

/* Every allocation fails once, each in a process of its own: PI_E_NOMEM, never a crash. */
static void test_no_memory(void)
{
    uint64_t ne = 8;
    int codes[16], n_nomem = 0;

    gb_head(&b, 3, 1, 2);
    gb_kv_str(&b, "k", "v");
    gb_kv_u32(&b, "l", 1);
    gb_tensor(&b, "t", 1, &ne, PI_TYPE_F32, 0);
    gb_pad(&b, 32);
    for (int i = 0; i < 8; i++)
        gb_u32(&b, 0);
    (void)fflush(stdout);
    for (int i = 0; i < 16; i++) {
        pid_t child = fork();
        int status = 0;

        if (child == 0) {
            char nth[16];

            (void)snprintf(nth, sizeof(nth), "%d", i + 1);
            (void)setenv("PI_TEST_ALLOC_FAIL", nth, 1);
            _exit((int)open_bytes());
        }
        codes[i] =
            waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        n_nomem += codes[i] == PI_E_NOMEM;
    }
    OK(n_nomem >= 5 && n_nomem < 16);
    for (int i = 0; i < 16; i++)
        EQ(codes[i], i < n_nomem ? PI_E_NOMEM : PI_OK);
}

int main(void)
{
    test_magic_and_version();
    test_counts();
    test_lengths();
    test_tags();
    test_duplicates();
    test_alignment();
    test_dimensions();
    test_types();
    test_names();
    test_extents();
    test_truncation();
    test_widths();
    test_crc_list();
    test_not_finite();
    test_no_memory();
    return DONE();
}
