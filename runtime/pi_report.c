#include "config.h"

#include "runtime/pi_report.h"

#include "common/pi_progress.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *pi_json_tokens(const int32_t *ids, size_t n)
{
    json_t *a = json_array();

    for (size_t i = 0; i < n && a != NULL; i++)
        if (json_array_append_new(a, json_integer(ids[i])) != 0) {
            json_decref(a);
            a = NULL;
        }
    return a;
}

json_t *pi_json_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

enum pi_code pi_json_print(json_t *o, struct pi_err *err)
{
    char *s = o != NULL ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;

    json_decref(o);
    if (s == NULL)
        return pi_err_set(err, PI_E_NOMEM, "no memory for the result");
    (void)puts(s);
    free(s);
    return pi_stdout_check(err);
}

enum pi_code pi_stdout_check(struct pi_err *err)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return PI_OK;
    if (pi_interrupted()) /* a signal came into the write */
        return pi_interrupt_check(err);
    return pi_err_set(err, PI_E_IO, "standard output: %s",
                      errno != 0 ? strerror(errno) : "cannot be written");
}

json_t *pi_json_add_verify(json_t *o, const struct pi_verify_result *v)
{
    json_t *figures = json_pack("{s:f, s:f, s:f, s:f}", "kl", v->kl, "top1", v->top1, "missed",
                                v->missed, "wasted", v->wasted);

    if (o != NULL && (figures == NULL || json_object_update(o, figures) != 0)) {
        json_decref(o);
        o = NULL;
    }
    json_decref(figures);
    return o;
}

void pi_format_verify(const struct pi_verify_result *v, char *text, size_t n)
{
    (void)snprintf(
        text, n,
        "against dense over %llu positions: KL %.3g nats, same top token %.2f %%, missed %.3f %% of active "
        "and wasted %.2f %% of predicted neurons",
        (unsigned long long)v->positions, v->kl, 100 * v->top1, 100 * v->missed, 100 * v->wasted);
}
