#include "config.h"

#include "convert/pi_convert_report.h"
#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#define NAME_BYTES 256

/* "[4096, 32000]", as GGUF orders dimensions. */
static void write_shape(const struct pi_plan_tensor *t, char buf[static 96])
{
    int n = 0;

    if (!t->verbatim && t->n_dims == 1) {
        (void)snprintf(buf, 96, "[%llu]", (unsigned long long)t->n_cols);
    } else if (!t->verbatim) {
        (void)snprintf(buf, 96, "[%llu, %llu]", (unsigned long long)t->n_cols,
                       (unsigned long long)t->n_rows);
    } else {
        for (uint32_t i = 0; i < t->n_dims && n < 90; i++)
            n += snprintf(buf + n, 96 - (size_t)n, "%s%llu", i == 0 ? "[" : ", ",
                          (unsigned long long)t->ne[i]);
        (void)snprintf(buf + n, 96 - (size_t)n, "]");
    }
}

/* A tensor's name out of a file, fit for a terminal and JSON. */
static const char *clean_name(const struct pi_plan_tensor *t, char buf[static NAME_BYTES])
{
    (void)snprintf(buf, NAME_BYTES, "%s", t->name);
    pi_one_line(buf);
    return buf;
}

static uint64_t tensor_bytes(const struct pi_plan *p)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < p->n; i++)
        sum += pi_plan_bytes(&p->t[i]);
    return sum;
}

static const char *why_text(const struct pi_plan_tensor *t, char buf[static 96])
{
    buf[0] = '\0';
    if (t->why == PI_PLAN_ROWS)
        (void)snprintf(buf, 96, "  (not %s: rows of %llu)", pi_type_name((uint32_t)t->asked),
                       (unsigned long long)t->n_cols);
    else if (t->why == PI_PLAN_TRANSPOSED)
        (void)snprintf(buf, 96, "  (not %s: transposed from quantised rows)",
                       pi_type_name((uint32_t)t->asked));
    return buf;
}

/* What pi-run, pi-profile and pi-place will say of it. */
static const char *activation_text(const struct pi_shape *s)
{
    return pi_activation_has_zeros(s->act)
               ? "zero for every neuron that does not fire; such neurons can be left out, so the model runs "
                 "sparse and can gain (pi-profile says how much)"
               : "never exactly zero, so every token needs every neuron; the model runs dense "
                 "(--mode dense), and profile and predictor would gain nothing";
}

void pi_report_activation(const struct pi_convert_report *r, const struct pi_notes *notes)
{
    pi_note(notes, "activation %s: %s", pi_activation_name(r->shape->act),
            activation_text(r->shape));
}

enum pi_code pi_report_list(const struct pi_convert_report *r, FILE *to, struct pi_err *err)
{
    const struct pi_plan *p = r->plan;
    char name[NAME_BYTES], shape[96], why[96];
    size_t width = 6;

    for (size_t i = 0; i < p->n; i++) {
        size_t n = strlen(clean_name(&p->t[i], name));

        width = n > width ? n : width;
    }
    (void)fprintf(to, "%-*s  %-18s %-5s %-5s %14s\n", (int)width, "tensor", "shape", "from", "to",
                  "bytes");
    for (size_t i = 0; i < p->n; i++) {
        const struct pi_plan_tensor *t = &p->t[i];

        write_shape(t, shape);
        (void)fprintf(to, "%-*s  %-18s %-5s %-5s %14llu%s\n", (int)width, clean_name(t, name),
                      shape, pi_type_name((uint32_t)t->src_type), pi_type_name((uint32_t)t->type),
                      (unsigned long long)pi_plan_bytes(t), why_text(t, why));
    }
    (void)fprintf(to, "%zu tensors, %llu bytes\n", p->n, (unsigned long long)tensor_bytes(p));
    (void)fprintf(to, "disk: %llu bytes (%.2f GB)", (unsigned long long)r->file_bytes,
                  (double)r->file_bytes / 1e9);
    if (r->output != NULL && r->room_bytes != UINT64_MAX)
        (void)fprintf(to, ", %llu (%.2f GB) free%s", (unsigned long long)r->room_bytes,
                      (double)r->room_bytes / 1e9,
                      r->room_bytes < r->file_bytes ? ": not enough" : "");
    (void)fprintf(to, "\nmemory: about %.0f MB of buffers; source and result are mapped files\n",
                  ceil((double)r->memory_bytes / 1e6));
    (void)fprintf(to, "activation: %s, %s\n", pi_activation_name(r->shape->act),
                  activation_text(r->shape));
    return ferror(to) != 0 ? pi_err_set(err, PI_E_IO, "cannot write the list") : PI_OK;
}

static json_t *tensor_json(const struct pi_plan_tensor *t)
{
    char name[NAME_BYTES];
    json_t *shape = json_array(), *o;

    if (t->verbatim)
        for (uint32_t i = 0; i < t->n_dims; i++)
            (void)json_array_append_new(shape, json_integer((json_int_t)t->ne[i]));
    else
        (void)json_array_append_new(shape, json_integer((json_int_t)t->n_cols));
    if (!t->verbatim && t->n_dims > 1)
        (void)json_array_append_new(shape, json_integer((json_int_t)t->n_rows));
    o = json_pack("{s:s, s:o, s:s, s:s, s:I}", "name", clean_name(t, name), "shape", shape, "from",
                  pi_type_name((uint32_t)t->src_type), "type", pi_type_name((uint32_t)t->type),
                  "bytes", (json_int_t)pi_plan_bytes(t));
    if (o != NULL && t->why != PI_PLAN_AS_ASKED)
        (void)json_object_set_new(o, "asked", json_string(pi_type_name((uint32_t)t->asked)));
    if (o != NULL && t->error.known) {
        (void)json_object_set_new(o, "error_rms", json_real(pi_plan_error_rms(&t->error)));
        (void)json_object_set_new(o, "error_max", json_real(pi_plan_error_max(&t->error)));
    }
    return o;
}

static struct pi_plan_error total_error(const struct pi_plan *p,
                                        const struct pi_plan_tensor **worst, size_t *n)
{
    struct pi_plan_error all = {0};

    *worst = NULL;
    *n = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct pi_plan_error *e = &p->t[i].error;

        if (!e->known)
            continue;
        all.known = true;
        all.sum_err += e->sum_err;
        all.sum += e->sum;
        ++*n;
        if (*worst == NULL || pi_plan_error_rms(e) > pi_plan_error_rms(&(*worst)->error))
            *worst = &p->t[i];
    }
    return all;
}

enum pi_code pi_report_json(const struct pi_convert_report *r, FILE *to, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_plan_tensor *worst;
    size_t n;
    struct pi_plan_error all = total_error(r->plan, &worst, &n);
    json_t *list = json_array(), *j;
    char *text = NULL, path[4096];

    for (size_t i = 0; i < r->plan->n; i++)
        (void)json_array_append_new(list, tensor_json(&r->plan->t[i]));
    (void)snprintf(path, sizeof(path), "%s", r->output != NULL ? r->output : "");
    pi_one_line(path);
    j = json_pack(
        "{s:s?, s:s?, s:s, s:b, s:I, s:I, s:I, s:o}", "output", r->output != NULL ? path : NULL,
        "type", r->recipe != NULL ? r->recipe->name : NULL, "activation",
        pi_activation_name(r->shape->act), "sparse", (int)pi_activation_has_zeros(r->shape->act),
        "bytes", (json_int_t)tensor_bytes(r->plan), "disk_bytes", (json_int_t)r->file_bytes,
        "memory_bytes", (json_int_t)r->memory_bytes, "tensors", list);
    if (j != NULL && r->output != NULL && r->room_bytes != UINT64_MAX)
        (void)json_object_set_new(j, "free_bytes", json_integer((json_int_t)r->room_bytes));
    if (j != NULL && all.known) {
        (void)json_object_set_new(j, "error_rms", json_real(pi_plan_error_rms(&all)));
        (void)json_object_set_new(j, "error_rms_worst",
                                  json_real(pi_plan_error_rms(&worst->error)));
    }
    if (j != NULL && json_array_size(list) == r->plan->n)
        text = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(8));
    json_decref(j);
    if (text == NULL)
        return pi_err_set(err, PI_E_NOMEM, "no memory for the report");
    if (fprintf(to, "%s\n", text) < 0)
        rc = pi_err_set(err, PI_E_IO, "cannot write the report");
    free(text);
    return rc;
}

void pi_report_errors(const struct pi_plan *plan, bool verbose, const struct pi_notes *notes)
{
    const struct pi_plan_tensor *worst;
    size_t n;
    struct pi_plan_error all = total_error(plan, &worst, &n);

    for (size_t i = 0; verbose && i < plan->n; i++) {
        const struct pi_plan_tensor *t = &plan->t[i];

        if (t->error.known)
            pi_note(notes,
                    "%s: %s, relative RMS error %.3g %%, the largest %.3g %% of the largest weight",
                    t->name, pi_type_name((uint32_t)t->type), 100.0 * pi_plan_error_rms(&t->error),
                    100.0 * pi_plan_error_max(&t->error));
    }
    if (all.known)
        pi_note(notes,
                "quantised %zu tensors: relative RMS error %.3g %%, the worst %.3g %% (%s, %s)", n,
                100.0 * pi_plan_error_rms(&all), 100.0 * pi_plan_error_rms(&worst->error),
                worst->name, pi_type_name((uint32_t)worst->type));
}
