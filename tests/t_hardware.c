/* hardware.yaml: what is read, what is refused and where, and that what is written is read back. */
#include "config.h"

#include "common/pi_hardware.h"
#include "tests/tap.h"

#include <unistd.h>

static char g_path[64];

static const char *file_with(const char *text)
{
    FILE *f = fopen(g_path, "w");

    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        exit(99);
    return g_path;
}

#define GPU \
    "{name: g, memory: 24e9, bandwidth: 1e12, pcie: 25e9, sync: 10e-6, context_bytes: 500e6}"

static void test_good(void)
{
    struct pi_hardware hw = {0}, back = {0};
    struct pi_err e = {0};

    PASSES(
        pi_hardware_load(
            file_with(
                "pi_hardware: 1\ncpu: {name: \"a \\\"b\\\" \\\\\", threads: 16, bandwidth: 98e9}\n"
                "gpus: [" GPU ", " GPU "]\n"),
            &hw, &e),
        e);
    EQ(hw.cpu.threads, 16);
    NEAR(hw.cpu.bandwidth, 98e9, 0.0);
    STREQ(hw.cpu.name, "a \"b\" \\");
    EQ(hw.n_gpus, 2);
    NEAR(hw.gpus[1].sync, 10e-6, 0.0);
    NEAR(hw.gpus[1].kernel, PI_HW_KERNEL, 0.0);
    hw.gpus[0].kernel = 3e-6;
    hw.gpus[1].pcie = 1e10 / 3.0;
    PASSES(pi_hardware_save(g_path, &hw, &e), e);
    PASSES(pi_hardware_load(g_path, &back, &e), e);
    OK(memcmp(&hw, &back, sizeof(hw)) == 0);

    PASSES(pi_hardware_load(file_with("pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\n"), &back,
                            &e),
           e);
    EQ(back.n_gpus, 0);
    PASSES(
        pi_hardware_load(file_with("pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus: []\n"),
                         &back, &e),
        e);
    EQ(back.n_gpus, 0);
    PASSES(pi_hardware_save(g_path, &back, &e), e);
    PASSES(pi_hardware_load(g_path, &back, &e), e);
    PASSES(pi_hardware_load(
               file_with("pi_hardware: 1\ncpu: &c {threads: 1, bandwidth: 1e9}\ngpus: [&g " GPU
                         ", *g]\n"),
               &back, &e),
           e);
    EQ(back.n_gpus, 2);
}

static const struct bad {
    const char *text;
    int code;
    const char *says;
} bads[] = {
    {"", PI_E_CORRUPT, "no hardware description"},
    {"[1, 2", PI_E_CORRUPT, "line 2: not YAML"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9\n", PI_E_CORRUPT, "not YAML"},
    {"- 1\n", PI_E_CORRUPT, "line 1: the hardware description: must be a mapping"},
    {"pi_hardware: 2\ncpu: {threads: 1, bandwidth: 1e9}\n", PI_E_UNSUPPORTED, "version 2"},
    {"cpu: {threads: 1, bandwidth: 1e9}\n", PI_E_CORRUPT, "lacks the key 'pi_hardware'"},
    {"pi_hardware: 1\n", PI_E_CORRUPT, "lacks the key 'cpu'"},
    {"pi_hardware: 1\ncpu: {threads: 1}\n", PI_E_CORRUPT, "line 2: cpu lacks the key 'bandwidth'"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\n\nspeed: 3\n", PI_E_CORRUPT,
     "line 4: unknown key 'speed'"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9, threads: 2}\n", PI_E_CORRUPT,
     "line 2: key 'threads' occurs twice"},
    {"pi_hardware: 1\ncpu: {threads: 1.5, bandwidth: 1e9}\n", PI_E_CORRUPT,
     "threads: must be a whole number"},
    {"pi_hardware: 1\ncpu: {threads: 0, bandwidth: 1e9}\n", PI_E_CORRUPT, "threads"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: -1e9}\n", PI_E_CORRUPT,
     "bandwidth: must be a number from 1 to 1e+15"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: .nan}\n", PI_E_CORRUPT, "not '.nan'"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: nan}\n", PI_E_CORRUPT, "not 'nan'"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e400}\n", PI_E_CORRUPT, "bandwidth"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 0x10}\n", PI_E_CORRUPT, "bandwidth"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 24G}\n", PI_E_CORRUPT, "not '24G'"},
    {"pi_hardware: 1\ncpu: {threads: [1], bandwidth: 1e9}\n", PI_E_CORRUPT, "threads"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: \"1e9\\0\"}\n", PI_E_CORRUPT, "bandwidth"},
    {"pi_hardware: 1\ncpu: {name: [], threads: 1, bandwidth: 1e9}\n", PI_E_CORRUPT, "name"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus: {a: 1}\n", PI_E_CORRUPT,
     "line 3: gpus: must be a list"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus:\n  - {memory: 1e9}\n", PI_E_CORRUPT,
     "line 4: gpus[0] lacks the key 'bandwidth'"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus: [" GPU ", 3]\n", PI_E_CORRUPT,
     "gpus[1]: must be a mapping"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\n---\na: 1\n", PI_E_CORRUPT,
     "line 4: a second document"},
    {"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nd: &d [*c,*c]\npi_hardware: *d\n", PI_E_CORRUPT,
     "line 4: pi_hardware: must be a whole number"},
    {"pi_hardware: &a [*a]\n", PI_E_CORRUPT, "pi_hardware"},
    {"\xff\xfe\x00", PI_E_CORRUPT, ""},
    {"cores: 3\npi_hardware: 2\n", PI_E_UNSUPPORTED, "version 2; this program knows version 1"},
    {"pi_hardware: 1\npi_hardware: 2\n", PI_E_UNSUPPORTED, "version 2"},
    {"pi_hardware: 1\npi_hardware: 1\n", PI_E_CORRUPT, "line 2: key 'pi_hardware' occurs twice"},
    {"pi_hardware: one\n", PI_E_CORRUPT, "line 1: pi_hardware: must be a whole number"},
    {"pi_hardware: 1\ncpu: {name: \"\\e[31m\", threads: 1, bandwidth: 1e9}\n", PI_E_CORRUPT,
     "line 2: name: must be a text of at most 63 bytes without control characters"},
    {"pi_hardware: 1\ncpu: {name: \"a\\nb\", threads: 1, bandwidth: 1e9}\n", PI_E_CORRUPT,
     "control characters"},
    {"pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus: \"\"\n", PI_E_CORRUPT,
     "line 3: gpus: must be a list"},
};

/* Nothing in the place of a list, in all spellings. */
static void test_no_gpus(void)
{
    const char *const nothing[] = {"", " ~", " null", " []"};

    for (size_t i = 0; i < sizeof(nothing) / sizeof(nothing[0]); i++) {
        struct pi_hardware hw = {0};
        struct pi_err e = {0};
        char text[100];

        (void)snprintf(text, sizeof(text),
                       "pi_hardware: 1\ncpu: {threads: 1, bandwidth: 1e9}\ngpus:%s\n", nothing[i]);
        PASSES(pi_hardware_load(file_with(text), &hw, &e), e);
        EQ(hw.n_gpus, 0);
    }
}

/* Brackets in brackets, which libyaml takes quadratic time over: refused by size, or soon. */
static void test_nesting(void)
{
    static char text[60001];
    struct pi_hardware hw = {0};
    struct pi_err e = {0};

    memset(text, '[', sizeof(text) - 1);
    FAILS(pi_hardware_load(file_with(text), &hw, &e), PI_E_CORRUPT, "more than 16384 bytes", e);
    text[16000] = '\0';
    FAILS(pi_hardware_load(file_with(text), &hw, &e), PI_E_CORRUPT, "not YAML", e);
}

int main(void)
{
    struct pi_hardware hw = {.n_gpus = 7};
    struct pi_err e = {0};

    (void)snprintf(g_path, sizeof(g_path), "t_hardware.%ld.yaml", (long)getpid());
    test_good();
    test_no_gpus();
    test_nesting();
    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        int rc = (int)pi_hardware_load(file_with(bads[i].text), &hw, &e);

        if (!OK(rc == bads[i].code && strstr(e.msg, bads[i].says) != NULL))
            printf("# case %zu: code %d, \"%s\"\n", i, rc, e.msg);
    }
    EQ(hw.n_gpus, 7);
    FAILS(pi_hardware_load("no-such-folder/h.yaml", &hw, &e), PI_E_IO, "no-such-folder/h.yaml", e);
    (void)remove(g_path);
    return DONE();
}
