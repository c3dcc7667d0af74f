/* Command lines: every kind of option, ranges, what ends a parse; and what messages look like on the way out. */
#include "config.h"

#include "common/pi_opt.h"
#include "common/pi_utf8.h"
#include "tests/tap.h"

#include <jansson.h>
#include <unistd.h>

static struct {
    bool flag, given;
    const char *text;
    uint32_t n;
    uint64_t seed, bytes;
    float temp;
    int mode;
    struct pi_opt_list files;
    struct pi_opt_each each;
} v;

static const struct pi_opt opts[] = {
    {.name = "flag", .letter = 'f', .kind = PI_OPT_FLAG, .dest = &v.flag, .help = "h"},
    {.name = "text",
     .letter = 'p',
     .kind = PI_OPT_STRING,
     .dest = &v.text,
     .arg = "TEXT",
     .help = "h"},
    {.name = "count",
     .letter = 'n',
     .kind = PI_OPT_U32,
     .dest = &v.n,
     .arg = "N",
     .min = 1,
     .max = 4294967295.0,
     .given = &v.given,
     .help = "h"},
    {.name = "seed",
     .kind = PI_OPT_U64,
     .dest = &v.seed,
     .arg = "N",
     .max = 1.8446744073709551615e19,
     .help = "h"},
    {.name = "small",
     .kind = PI_OPT_U64,
     .dest = &v.seed,
     .arg = "N",
     .max = 9007199254740992.0,
     .help = "h"},
    {.name = "temp", .kind = PI_OPT_F32, .dest = &v.temp, .arg = "X", .max = 100, .help = "h"},
    {.name = "budget", .kind = PI_OPT_BYTES, .dest = &v.bytes, .arg = "SIZE", .help = "h"},
    {.name = "mode", .kind = PI_OPT_ENUM, .dest = &v.mode, .arg = "dense|exact", .help = "h"},
    {.name = "each", .kind = PI_OPT_EACH, .dest = &v.each, .arg = "X", .help = "h"},
    {.name = "data", .kind = PI_OPT_LIST, .dest = &v.files, .arg = "FILE...", .help = "h"},
    {.name = NULL},
};
static const struct pi_program prog = {
    .name = "pi-test", .synopsis = "[FILE]", .about = "Tests.", .opts = opts, .max_operands = 1};
static const char *operands[2];
static struct pi_common_opts common;
static struct pi_err e;

/* Parses the words given, up to a NULL; they must be literals: what is parsed points to them. */
static enum pi_code parse(const char *const words[])
{
    static char *argv[16]; /* the parser writes to no word */
    int argc = 0;

    memset(&v, 0, sizeof(v));
    for (; words[argc] != NULL && argc < 15; argc++)
        memcpy(&argv[argc], &words[argc], sizeof(argv[0]));
    argv[argc] = NULL;
    return pi_opt_parse(&prog, argc, argv, operands, &common, &e);
}
#define ARGV(...) ((const char *const[]){"pi-test", __VA_ARGS__, NULL})

static void test_kinds(void)
{
    PASSES(parse(ARGV("-f", "-pa b", "-n", "7", "--temp=0.5", "--mode", "exact")), e);
    OK(v.flag && v.given && v.n == 7 && v.temp == 0.5f && v.mode == 1);
    STREQ(v.text, "a b");
    PASSES(parse(ARGV("--budget", "8G", "--seed", "18446744073709551615", "x")), e);
    OK(v.bytes == (uint64_t)8 << 30 && v.seed == UINT64_MAX);
    STREQ(operands[0], "x");
    OK(operands[1] == NULL);
    PASSES(parse(ARGV("--data", "a", "-", "--", "-f")), e);
    OK(v.files.n == 2 && strcmp(v.files.v[1], "-") == 0 && !v.flag);
    STREQ(operands[0], "-f");
    PASSES(parse(ARGV("-p", "--log-json")), e);
    OK(!common.log_json);
    PASSES(parse(ARGV("--each", "a=b", "x", "--each=c", "--each", "-f")), e);
    OK(v.each.n == 3 && !v.flag && strcmp(v.each.v[0], "a=b") == 0 &&
       strcmp(v.each.v[1], "c") == 0 && strcmp(v.each.v[2], "-f") == 0);
    STREQ(operands[0], "x");
}

static void test_each_ends(void)
{
    static char word[] = "--each=x", name[] = "pi-test";
    char *argv[PI_OPT_EACH_MAX + 3];

    argv[0] = name;
    for (int i = 1; i < PI_OPT_EACH_MAX + 2; i++)
        argv[i] = word;
    argv[PI_OPT_EACH_MAX + 2] = NULL;
    memset(&v, 0, sizeof(v));
    PASSES(pi_opt_parse(&prog, PI_OPT_EACH_MAX + 1, argv, operands, &common, &e), e);
    EQ(v.each.n, PI_OPT_EACH_MAX);
    memset(&v, 0, sizeof(v));
    FAILS(pi_opt_parse(&prog, PI_OPT_EACH_MAX + 2, argv, operands, &common, &e), PI_E_USAGE,
          "--each occurs more than 64 times", e);
}

static void test_refusals(void)
{
    FAILS(parse(ARGV("--tmep", "1")), PI_E_USAGE, "unknown option --tmep", e);
    FAILS(parse(ARGV("-fx")), PI_E_USAGE, "unknown option -fx", e);
    FAILS(parse(ARGV("--flag=1")), PI_E_USAGE, "--flag takes no value", e);
    FAILS(parse(ARGV("--text")), PI_E_USAGE, "--text needs a value (TEXT)", e);
    FAILS(parse(ARGV("--data", "-f")), PI_E_USAGE, "--data needs FILE...", e);
    FAILS(parse(ARGV("a", "b")), PI_E_USAGE, "unexpected argument 'b'", e);
    FAILS(parse(ARGV("--mode", "fast")), PI_E_USAGE, "must be one of dense|exact", e);
    FAILS(parse(ARGV("--budget", "8")), PI_E_USAGE, "--budget", e);
    FAILS(parse(ARGV("-n", "0")), PI_E_RANGE,
          "--count 0: must be a whole number from 1 to 4294967295", e);
    FAILS(parse(ARGV("-n", "4294967296")), PI_E_RANGE, "from 1 to 4294967295", e);
    FAILS(parse(ARGV("-n", "1x")), PI_E_RANGE, "--count 1x", e);
    FAILS(parse(ARGV("-n", " 1")), PI_E_RANGE, "--count  1", e);
    FAILS(parse(ARGV("--seed", "18446744073709551616")), PI_E_RANGE,
          "from 0 to 18446744073709551615", e);
    FAILS(parse(ARGV("--small", "9007199254740994")), PI_E_RANGE, "from 0 to 9007199254740992", e);
    FAILS(parse(ARGV("--seed", "-1")), PI_E_RANGE, "--seed -1", e);
    FAILS(parse(ARGV("--temp", "nan")), PI_E_RANGE, "must be a number from 0 to 100", e);
}

/* What fn writes to standard error, NUL-terminated. */
static void capture(char *buf, size_t size, void (*fn)(void))
{
    FILE *f = tmpfile();
    int kept = dup(STDERR_FILENO);
    size_t n = 0;

    (void)fflush(stderr);
    if (f != NULL && kept >= 0 && dup2(fileno(f), STDERR_FILENO) >= 0) {
        fn();
        (void)fflush(stderr);
        (void)dup2(kept, STDERR_FILENO);
        rewind(f);
        n = fread(buf, 1, size - 1, f);
    }
    buf[n] = '\0';
    if (f != NULL)
        (void)fclose(f);
    (void)close(kept);
}

static void end_badly(void)
{
    EQ(pi_program_end(&prog, &common, e.code, &e), pi_code_exit_status(e.code));
}

static void notice(void)
{
    pi_notice(&prog, &common, "%s",
              "a\x1b[2Jb\nc\xc2\x9b"
              "d\xff\xc3\xa4");
}

static const char *message_of(const char *line)
{
    static char text[1024];
    json_t *o = json_loads(line, 0, NULL);
    const char *m = json_string_value(json_object_get(o, "message"));

    (void)snprintf(text, sizeof(text), "%s", m != NULL ? m : "(none)");
    json_decref(o);
    return text;
}

static void test_messages(void)
{
    char line[2048];

    FAILS(parse(ARGV("-n", "0", "--log-json")), PI_E_RANGE, "--count 0", e);
    OK(common.log_json);
    capture(line, sizeof(line), end_badly);
    STREQ(message_of(line), e.msg);
    FAILS(parse(ARGV("-n", "0", "--", "--log-json")), PI_E_RANGE, "--count 0", e);
    OK(!common.log_json);
    capture(line, sizeof(line), notice);
    STREQ(line, "pi-test: a?[2Jb?c?d?\xc3\xa4\n");
    FAILS(parse(ARGV("--log-json", "--\xfe\xe4")), PI_E_USAGE, "unknown option --??", e);
    capture(line, sizeof(line), end_badly);
    STREQ(message_of(line), "unknown option --?? (--help lists them)");
    capture(line, sizeof(line), notice);
    STREQ(message_of(line), "a?[2Jb?c?d?\xc3\xa4");
    PASSES(parse(ARGV("--quiet")), e);
    capture(line, sizeof(line), notice);
    STREQ(line, "");
}

static void test_utf8(void)
{
    bool ok;

    EQ(pi_utf8_part("a", 1, &ok), 1);
    OK(ok);
    EQ(pi_utf8_part("\xf0\x9f\x98\x80", 4, &ok), 4);
    OK(ok);
    EQ(pi_utf8_part("\xf0\x9f\x98", 3, &ok), 3);
    OK(!ok);
    EQ(pi_utf8_part("\xf0\x9fz", 3, &ok), 2);
    OK(!ok);
    EQ(pi_utf8_part("\xe0\x80\x80", 3, &ok), 1); /* overlong */
    OK(!ok);
    EQ(pi_utf8_part("\xed\xa0\x80", 3, &ok), 1); /* a surrogate */
    OK(!ok);
    EQ(pi_utf8_char("\xc3\xa4", 2), 2);
    EQ(pi_utf8_char("\xc3", 1), 0);
}

int main(void)
{
    test_kinds();
    test_each_ends();
    test_refusals();
    test_messages();
    test_utf8();
    return DONE();
}
