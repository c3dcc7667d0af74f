/*
 * pi_opt.h - command lines from one table: parsing, ranges, --help, --version.
 *
 * A table row gives a long name, an optional letter, the argument's name, the help text and where the value goes.
 * Numbers outside [min, max] and text that is no number are refused, naming option and range; never clamped.
 * Every program has --help, --version, --quiet (-q), --verbose, --log-json without listing them.
 */
#ifndef PI_OPT_H
#define PI_OPT_H

#include "common/pi_err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_opt_kind {
    PI_OPT_FLAG,   /* bool *: set to true */
    PI_OPT_STRING, /* const char **: borrowed from argv */
    PI_OPT_U32,    /* uint32_t * */
    PI_OPT_U64,    /* uint64_t * */
    PI_OPT_F32,    /* float * */
    PI_OPT_BYTES,  /* uint64_t *: "8G", pi_parse_bytes() */
    PI_OPT_ENUM,   /* int *: index into choices "a|b|c" */
    PI_OPT_LIST,   /* struct pi_opt_list *: takes all following words that do not start with '-' */
    PI_OPT_EACH    /* struct pi_opt_each *: one value each time the option occurs */
};

struct pi_opt_list {
    char **v; /* points into argv */
    size_t n;
};

#define PI_OPT_EACH_MAX 64

struct pi_opt_each {
    const char *v[PI_OPT_EACH_MAX]; /* borrowed from argv */
    size_t n;
};

struct pi_opt {
    const char *name; /* "top-k"; NULL ends the table */
    char letter;      /* 'k', or 0 */
    enum pi_opt_kind kind;
    void *dest;
    const char *arg;  /* "N", "FILE", or the choices of an enum "f16|f32" */
    const char *help; /* one or more lines; defaults are named here */
    double min, max;  /* numbers */
    bool *given;      /* set to true when the option occurs; may be NULL */
};

struct pi_program {
    const char *name;     /* "pi-run" */
    const char *synopsis; /* "-m MODEL [-p TEXT]" */
    const char *about;    /* one line */
    const struct pi_opt *opts;
    size_t max_operands; /* words that are no options */
};

struct pi_common_opts {
    bool quiet, verbose, log_json, help, version;
};

/* Parses argv; operands_out (max_operands + 1, the caller's) gets the operands and a NULL. When --help or --version
 * was given it is printed to stdout and common_out says so: the program then ends with status 0. "--" ends options;
 * a long name may be followed by =VALUE. PI_E_USAGE, PI_E_RANGE. */
enum pi_code pi_opt_parse(const struct pi_program *prog, int argc, char **argv,
                          const char **operands_out, struct pi_common_opts *common_out,
                          struct pi_err *err) PI_MUST_CHECK;

/* The end of every main: prints "<program>: <message>" to stderr if rc is an error (as a JSON line with --log-json)
 * and gives the exit status. Also turns a failed flush of stdout into PI_E_IO. */
int pi_program_end(const struct pi_program *prog, const struct pi_common_opts *common,
                   enum pi_code rc, const struct pi_err *err);

/* A notice for people: "<program>: <text>" on stderr, nothing with --quiet, a JSON line with --log-json. */
void pi_notice(const struct pi_program *prog, const struct pi_common_opts *common, const char *fmt,
               ...) __attribute__((format(printf, 3, 4)));

#endif
