#include "config.h"

#include "convert/pi_yaml_out.h"
#include "common/pi_alloc.h"
#include "common/pi_utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static void emit(struct pi_yaml_out *y, yaml_event_t *e, int made)
{
    if (!made) {
        y->failed = true;
        return;
    }
    if (y->failed) /* the emitter takes no more events, but the event's memory must go */
        yaml_event_delete(e);
    else if (!yaml_emitter_emit(&y->emitter, e))
        y->failed = true;
}

enum pi_code pi_yaml_begin(struct pi_yaml_out *y, FILE *out, struct pi_err *err)
{
    yaml_event_t e;

    y->failed = false;
    if (!yaml_emitter_initialize(&y->emitter))
        return pi_err_set(err, PI_E_NOMEM, "cannot set up YAML output");
    yaml_emitter_set_output_file(&y->emitter, out);
    yaml_emitter_set_unicode(&y->emitter, 1);
    yaml_emitter_set_width(&y->emitter, 120);
    emit(y, &e, yaml_stream_start_event_initialize(&e, YAML_UTF8_ENCODING));
    emit(y, &e, yaml_document_start_event_initialize(&e, NULL, NULL, NULL, 1));
    return PI_OK;
}

enum pi_code pi_yaml_end(struct pi_yaml_out *y, struct pi_err *err)
{
    yaml_event_t e;
    bool failed;

    emit(y, &e, yaml_document_end_event_initialize(&e, 1));
    emit(y, &e, yaml_stream_end_event_initialize(&e));
    failed = y->failed;
    yaml_emitter_delete(&y->emitter);
    return failed ? pi_err_set(err, PI_E_IO, "cannot write the YAML output") : PI_OK;
}

void pi_yaml_map(struct pi_yaml_out *y, bool flow)
{
    yaml_event_t e;

    emit(y, &e,
         yaml_mapping_start_event_initialize(
             &e, NULL, NULL, 1, flow ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE));
}

void pi_yaml_map_end(struct pi_yaml_out *y)
{
    yaml_event_t e;

    emit(y, &e, yaml_mapping_end_event_initialize(&e));
}

void pi_yaml_list(struct pi_yaml_out *y, bool flow)
{
    yaml_event_t e;

    emit(y, &e,
         yaml_sequence_start_event_initialize(
             &e, NULL, NULL, 1, flow ? YAML_FLOW_SEQUENCE_STYLE : YAML_BLOCK_SEQUENCE_STYLE));
}

void pi_yaml_list_end(struct pi_yaml_out *y)
{
    yaml_event_t e;

    emit(y, &e, yaml_sequence_end_event_initialize(&e));
}

static void scalar(struct pi_yaml_out *y, const char *p, size_t n, yaml_scalar_style_t style)
{
    yaml_event_t e;

    emit(y, &e,
         yaml_scalar_event_initialize(&e, NULL, NULL, (const yaml_char_t *)p, (int)n, 1,
                                      style != YAML_PLAIN_SCALAR_STYLE, style));
}

void pi_yaml_key(struct pi_yaml_out *y, const char *key)
{
    scalar(y, key, strlen(key), YAML_ANY_SCALAR_STYLE);
}

/* Words that no YAML reader takes for anything but text. */
static bool is_plain(const char *p, size_t n)
{
    static const char *const taken[] = {"true", "false", "yes", "no", "on",
                                        "off",  "null",  "y",   "n"};

    if (n == 0 || n > 200 || !((p[0] | 32) >= 'a' && (p[0] | 32) <= 'z'))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!(((p[i] | 32) >= 'a' && (p[i] | 32) <= 'z') || (p[i] >= '0' && p[i] <= '9') ||
              p[i] == '_' || p[i] == '.' || p[i] == '-'))
            return false;
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++)
        if (strlen(taken[i]) == n && strncasecmp(taken[i], p, n) == 0)
            return false;
    return true;
}

void pi_yaml_text(struct pi_yaml_out *y, const char *p, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    const uint8_t *s = (const uint8_t *)p;
    char *clean = n < SIZE_MAX / 4 && n < INT32_MAX / 4 ? pi_calloc_array(n + 1, 4, NULL) : NULL;
    size_t at = 0;

    if (clean == NULL) {
        y->failed = true;
        return;
    }
    for (size_t i = 0; i < n;) {
        size_t len = s[i] != 0 ? pi_utf8_char(p + i, n - i) : 0;
        if (len == 0) {
            clean[at++] = '\\';
            clean[at++] = 'x';
            clean[at++] = hex[s[i] >> 4];
            clean[at++] = hex[s[i++] & 15];
            continue;
        }
        memcpy(clean + at, s + i, len);
        at += len;
        i += len;
    }
    scalar(y, clean, at,
           is_plain(clean, at) ? YAML_PLAIN_SCALAR_STYLE : YAML_DOUBLE_QUOTED_SCALAR_STYLE);
    free(clean);
}

static void number(struct pi_yaml_out *y, const char *text)
{
    scalar(y, text, strlen(text), YAML_PLAIN_SCALAR_STYLE);
}

void pi_yaml_u64(struct pi_yaml_out *y, uint64_t v)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)v);
    number(y, text);
}

void pi_yaml_i64(struct pi_yaml_out *y, int64_t v)
{
    char text[32];

    (void)snprintf(text, sizeof(text), "%lld", (long long)v);
    number(y, text);
}

/* With a dot: YAML 1.1 readers take "1e-05" for text. */
static void real(struct pi_yaml_out *y, const char *text)
{
    size_t whole = strcspn(text, ".e");
    char dotted[48];

    (void)snprintf(dotted, sizeof(dotted), "%.*s%s%s", (int)whole, text,
                   text[whole] == '.' ? "" : ".0", text + whole);
    number(y, dotted);
}

static bool not_finite(struct pi_yaml_out *y, double v)
{
    if (isfinite(v))
        return false;
    number(y, isnan(v) ? ".nan" : v > 0 ? ".inf" : "-.inf");
    return true;
}

void pi_yaml_f32(struct pi_yaml_out *y, float v)
{
    char text[40];

    if (not_finite(y, (double)v))
        return;
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, (double)v);
        if (strtof(text, NULL) == v)
            break;
    }
    real(y, text);
}

void pi_yaml_f64(struct pi_yaml_out *y, double v)
{
    char text[40];

    if (not_finite(y, v))
        return;
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    real(y, text);
}

void pi_yaml_bool(struct pi_yaml_out *y, bool v)
{
    number(y, v ? "true" : "false");
}
