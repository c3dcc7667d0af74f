#include "config.h"

#include "common/pi_estimate.h"
#include "common/pi_opt.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define N_COMMON 5

/* The rows that every program has. */
static void common_table(struct pi_common_opts *c, struct pi_opt t[N_COMMON + 1])
{
    const struct pi_opt rows[N_COMMON + 1] = {
        {.name = "quiet",
         .letter = 'q',
         .kind = PI_OPT_FLAG,
         .dest = &c->quiet,
         .help = "no notices, no progress"},
        {.name = "verbose", .kind = PI_OPT_FLAG, .dest = &c->verbose, .help = "more notices"},
        {.name = "log-json",
         .kind = PI_OPT_FLAG,
         .dest = &c->log_json,
         .help = "notices and the error as JSON lines"},
        {.name = "help",
         .letter = 'h',
         .kind = PI_OPT_FLAG,
         .dest = &c->help,
         .help = "print this and stop"},
        {.name = "version",
         .kind = PI_OPT_FLAG,
         .dest = &c->version,
         .help = "print the version and stop"},
        {.name = NULL},
    };

    memcpy(t, rows, sizeof(rows));
}

static const struct pi_opt *find_in(const struct pi_opt *t, const char *name, size_t n, char letter)
{
    for (; t->name != NULL; t++) {
        if (letter != 0 ? t->letter == letter
                        : strlen(t->name) == n && strncmp(t->name, name, n) == 0)
            return t;
    }
    return NULL;
}

/* A limit as people write it: no exponent for whole numbers. */
static const char *limit_text(const struct pi_opt *o, double v, char buf[static 32])
{
    if (o->kind == PI_OPT_U64 && v >= (double)UINT64_MAX)
        (void)snprintf(buf, 32, "%llu", (unsigned long long)UINT64_MAX);
    else if (o->kind == PI_OPT_U64 || o->kind == PI_OPT_U32)
        (void)snprintf(buf, 32, "%.0f", v);
    else
        (void)snprintf(buf, 32, "%.10g", v);
    return buf;
}

static enum pi_code bad_number(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    char min[32], max[32];

    return pi_err_set(err, PI_E_RANGE, "--%s %s: must be a%s from %s to %s", o->name, value,
                      o->kind == PI_OPT_F32 ? " number" : " whole number",
                      limit_text(o, o->min, min), limit_text(o, o->max, max));
}

static enum pi_code set_integer(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    unsigned long long v;
    char *end;

    errno = 0;
    v = strtoull(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != '\0' || errno != 0 || (double)v < o->min ||
        (o->max < (double)UINT64_MAX &&
         v > (unsigned long long)o->max) || /* exact, not as doubles */
        (o->kind == PI_OPT_U32 && v > UINT32_MAX))
        return bad_number(o, value, err);
    if (o->kind == PI_OPT_U32)
        *(uint32_t *)o->dest = (uint32_t)v;
    else
        *(uint64_t *)o->dest = v;
    return PI_OK;
}

static enum pi_code set_float(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    char *end;
    double v = strtod(value, &end);

    if (end == value || *end != '\0' || !isfinite(v) || v < o->min || v > o->max)
        return bad_number(o, value, err);
    *(float *)o->dest = (float)v;
    return PI_OK;
}

static enum pi_code set_choice(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    const char *p = o->arg;

    for (int i = 0; *p != '\0'; i++) {
        size_t n = strcspn(p, "|");

        if (strlen(value) == n && strncmp(p, value, n) == 0) {
            *(int *)o->dest = i;
            return PI_OK;
        }
        p += n + (p[n] == '|');
    }
    return pi_err_set(err, PI_E_USAGE, "--%s %s: must be one of %s", o->name, value, o->arg);
}

static enum pi_code add_each(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    struct pi_opt_each *e = o->dest;

    if (e->n == PI_OPT_EACH_MAX)
        return pi_err_set(err, PI_E_USAGE, "--%s occurs more than %d times", o->name,
                          PI_OPT_EACH_MAX);
    e->v[e->n++] = value;
    return PI_OK;
}

/* A size; min and max are in bytes, max 0: any. */
static enum pi_code set_bytes(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char name[64];
    uint64_t bytes = 0;

    (void)snprintf(name, sizeof(name), "--%s", o->name);
    PI_TRY(pi_parse_bytes(value, name, &bytes, err));
    if (o->max > 0 && ((double)bytes < o->min || (double)bytes > o->max))
        PI_FAIL(err, PI_E_USAGE, "--%s %s: must be from %.0f to %.0f bytes", o->name, value, o->min,
                o->max);
    *(uint64_t *)o->dest = bytes;
out:
    return rc;
}

static enum pi_code set_value(const struct pi_opt *o, const char *value, struct pi_err *err)
{
    switch (o->kind) {
    case PI_OPT_STRING:
        *(const char **)o->dest = value;
        return PI_OK;
    case PI_OPT_U32:
    case PI_OPT_U64:
        return set_integer(o, value, err);
    case PI_OPT_F32:
        return set_float(o, value, err);
    case PI_OPT_BYTES:
        return set_bytes(o, value, err);
    case PI_OPT_ENUM:
        return set_choice(o, value, err);
    case PI_OPT_EACH:
        return add_each(o, value, err);
    case PI_OPT_FLAG:
    case PI_OPT_LIST:
        break;
    }
    return PI_OK;
}

static void print_rows(const struct pi_opt *t)
{
    for (; t->name != NULL; t++) {
        char left[80];
        const char *h = t->help;
        int n = snprintf(left, sizeof(left), t->letter != 0 ? "  -%c, " : "      ", t->letter);

        n += snprintf(left + n, sizeof(left) - (size_t)n, "--%s", t->name);
        if (t->arg != NULL)
            (void)snprintf(left + n, sizeof(left) - (size_t)n, " %s", t->arg);
        if (strlen(left) > 34)
            printf("%s\n%-35s", left, "");
        else
            printf("%-35s", left);
        for (; *h != '\0'; h += h[0] == '\n') {
            size_t len = strcspn(h, "\n");

            printf("%.*s\n", (int)len, h);
            h += len;
            if (*h == '\n')
                printf("%-35s", "");
        }
    }
}

static void print_help(const struct pi_program *prog, const struct pi_opt *common)
{
    printf("usage: %s %s\n%s\n\n", prog->name, prog->synopsis, prog->about);
    print_rows(prog->opts);
    print_rows(common);
    printf(
        "\nexit status: 0 done, 2 usage, 3 corrupt input, 4 unsupported input, 5 artifacts that do not belong\n"
        "together, 6 not enough memory or disk, 7 I/O, 8 device, 9 a self-check failed, 130 interrupted\n");
}

/* Where a parse stands in argv. */
struct cursor {
    int argc, i;
    char **argv;
    const struct pi_opt *opts, *common;
};

static enum pi_code apply(struct cursor *c, const struct pi_opt *o, const char *attached,
                          struct pi_err *err)
{
    if (o->given != NULL)
        *o->given = true;
    if (o->kind == PI_OPT_FLAG) {
        if (attached != NULL)
            return pi_err_set(err, PI_E_USAGE, "--%s takes no value", o->name);
        *(bool *)o->dest = true;
        return PI_OK;
    }
    if (o->kind == PI_OPT_LIST) {
        struct pi_opt_list *l = o->dest;

        if (attached != NULL || l->n > 0)
            return pi_err_set(err, PI_E_USAGE, "--%s takes a list of words once: --%s %s", o->name,
                              o->name, o->arg);
        l->v = c->argv + c->i;
        while (c->i < c->argc && (c->argv[c->i][0] != '-' || c->argv[c->i][1] == '\0')) {
            c->i++;
            l->n++;
        }
        if (l->n == 0)
            return pi_err_set(err, PI_E_USAGE, "--%s needs %s", o->name, o->arg);
        return PI_OK;
    }
    if (attached == NULL) {
        if (c->i >= c->argc)
            return pi_err_set(err, PI_E_USAGE, "--%s needs a value (%s)", o->name, o->arg);
        attached = c->argv[c->i++];
    }
    return set_value(o, attached, err);
}

static enum pi_code parse_option(struct cursor *c, const char *word, struct pi_err *err)
{
    const struct pi_opt *o;
    const char *name = word, *attached = NULL;
    size_t n;

    if (word[1] != '-') {
        o = find_in(c->opts, NULL, 0, word[1]);
        if (o == NULL)
            o = find_in(c->common, NULL, 0, word[1]);
        attached = o != NULL && word[2] != '\0' && o->kind != PI_OPT_FLAG ? word + 2 : NULL;
        if (o != NULL && word[2] != '\0' && attached == NULL)
            o = NULL;
    } else {
        name += 2;
        n = strcspn(name, "=");
        o = find_in(c->opts, name, n, 0);
        if (o == NULL)
            o = find_in(c->common, name, n, 0);
        attached = name[n] == '=' ? name + n + 1 : NULL;
    }
    if (o == NULL)
        return pi_err_set(err, PI_E_USAGE, "unknown option %s (--help lists them)", word);
    return apply(c, o, attached, err);
}

/* Is --log-json among the words from i on? For errors in options that stand before it. */
static bool log_json_follows(int argc, char **argv, int i)
{
    for (; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--log-json") == 0)
            return true;
    return false;
}

enum pi_code pi_opt_parse(const struct pi_program *prog, int argc, char **argv,
                          const char **operands_out, struct pi_common_opts *common_out,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_opt common[N_COMMON + 1];
    struct cursor c = {.argc = argc, .i = 1, .argv = argv, .opts = prog->opts, .common = common};
    size_t n = 0;
    bool options_over = false;

    memset(common_out, 0, sizeof(*common_out));
    common_table(common_out, common);
    while (c.i < argc) {
        const char *word = argv[c.i++];

        if (!options_over && strcmp(word, "--") == 0) {
            options_over = true;
        } else if (!options_over && word[0] == '-' && word[1] != '\0') {
            PI_TRY(parse_option(&c, word, err));
        } else {
            if (n >= prog->max_operands)
                PI_FAIL(err, PI_E_USAGE, "unexpected argument '%s' (usage: %s %s)", word,
                        prog->name, prog->synopsis);
            operands_out[n++] = word;
        }
    }
    operands_out[n] = NULL;
    if (common_out->help)
        print_help(prog, common);
    else if (common_out->version)
        printf("%s (%s) %s\n", prog->name, PACKAGE_NAME, PACKAGE_VERSION);
out:
    if (rc != PI_OK && log_json_follows(argc, argv, c.i))
        common_out->log_json = true;
    return rc;
}

static void log_line(const struct pi_program *prog, bool json, const char *level, const char *text)
{
    json_t *o;
    char *s = NULL;

    if (!json) {
        (void)fprintf(stderr, "%s: %s\n", prog->name, text);
        return;
    }
    o = json_pack("{s:s, s:s, s:s%}", "program", prog->name, "level", level, "message", text,
                  strlen(text));
    if (o != NULL)
        s = json_dumps(o, JSON_COMPACT | JSON_ENSURE_ASCII);
    (void)fprintf(stderr, "%s\n", s != NULL ? s : "{}");
    free(s);
    json_decref(o);
}

int pi_program_end(const struct pi_program *prog, const struct pi_common_opts *common,
                   enum pi_code rc, const struct pi_err *err)
{
    if (rc == PI_OK && (fflush(stdout) != 0 || ferror(stdout))) {
        rc = PI_E_IO;
        log_line(prog, common->log_json, "error", "cannot write to standard output");
    } else if (rc != PI_OK) {
        log_line(prog, common->log_json, "error",
                 err->msg[0] != '\0' ? err->msg : pi_code_text(rc));
    }
    return pi_code_exit_status(rc);
}

void pi_notice(const struct pi_program *prog, const struct pi_common_opts *common, const char *fmt,
               ...)
{
    char text[1024];
    va_list ap;

    if (common->quiet)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    pi_one_line(text);
    log_line(prog, common->log_json, "notice", text);
}
