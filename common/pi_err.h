/*
 * pi_err.h - error values that travel up the call stack.
 *
 * A function that can fail returns enum pi_code and takes a struct pi_err as its
 * last argument. The function that first knows the cause fills it, with the file,
 * the place and the numbers; callers pass it on unchanged or put context in front
 * of it with pi_err_wrap(). Only a program's main prints it, once.
 */
#ifndef PI_ERR_H
#define PI_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* code, exit status of a program that ends with it, fixed text */
#define PI_CODE_MAP(X)                                 \
    X(USAGE, 2, "usage error")                         \
    X(RANGE, 2, "value out of range")                  \
    X(CORRUPT, 3, "corrupt input")                     \
    X(UNSUPPORTED, 4, "unsupported input")             \
    X(MISMATCH, 5, "artifacts do not belong together") \
    X(NOMEM, 6, "not enough memory")                   \
    X(NOSPACE, 6, "not enough disk space")             \
    X(INFEASIBLE, 6, "nothing fits the memory budget") \
    X(IO, 7, "file or device I/O failed")              \
    X(NODEV, 8, "the device asked for is absent")      \
    X(DEVICE, 8, "a device call failed")               \
    X(SELFCHECK, 9, "a self-check failed")             \
    X(INTERRUPTED, 130, "interrupted")

enum pi_code {
    PI_OK = 0,
#define X(name, status, text) PI_E_##name,
    PI_CODE_MAP(X)
#undef X
};

struct pi_err {
    enum pi_code code;
    char msg[512]; /* UTF-8, one line, lower case, no trailing period, always terminated */
};

#define PI_MUST_CHECK __attribute__((warn_unused_result))

/* Fills *err (if err is not NULL) and returns code, so that a caller can write
 * "return pi_err_set(err, PI_E_IO, ...)". Control characters that come out of the
 * arguments (names from hostile files) and bytes that are no UTF-8 are replaced by '?'. */
enum pi_code pi_err_set(struct pi_err *err, enum pi_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " in front of err->msg; keeps err->code. */
void pi_err_wrap(struct pi_err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes text fit for one line of a terminal or of JSON, in place: control characters and what is no UTF-8 become '?'. */
void pi_one_line(char *text);

/* The fixed text of a code; never NULL. */
const char *pi_code_text(enum pi_code code);

/* The exit status of a program that ends with this code (design: section "exit status"). */
int pi_code_exit_status(enum pi_code code);

/* For functions with one exit label "out" and a local "enum pi_code rc". */
#define PI_TRY(expr)     \
    do {                 \
        rc = (expr);     \
        if (rc != PI_OK) \
            goto out;    \
    } while (0)

/* Sets rc and *err and leaves through "out". */
#define PI_FAIL(err, code, ...)                      \
    do {                                             \
        rc = pi_err_set((err), (code), __VA_ARGS__); \
        goto out;                                    \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
