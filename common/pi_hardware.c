#include "config.h"

#include "common/pi_hardware.h"

#include "common/pi_file.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

#define MAX_FILE_BYTES \
    (16u << 10) /* several times sixteen GPUs; libyaml takes quadratic time on nested brackets */
#define MAX_KEYS 8

/* A key of a mapping: where its value goes and what it may be. Numbers are double but for threads. */
struct field {
    const char *key;
    enum {
        TEXT,
        NUMBER,
        COUNT,
        NODE
    } kind;
    void *dest; /* char[64], double *, uint32_t *, const yaml_node_t ** */
    double min, max;
    bool optional;
};

/* The document being read, for messages. Nodes are shared, never expanded: aliases cost nothing. */
struct reader {
    const char *path;
    yaml_document_t *doc;
    struct pi_err *err;
};

#define BAD(r, node, ...) bad_at((r), (node)->start_mark.line + 1, __VA_ARGS__)

static enum pi_code __attribute__((format(printf, 3, 4)))
bad_at(const struct reader *r, size_t line, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return pi_err_set(r->err, PI_E_CORRUPT, "%s, line %zu: %s", r->path, line, text);
}

static const char *scalar(const yaml_node_t *n)
{
    return (const char *)n->data.scalar.value;
}

/* The value's text must have been read to its end, which a NUL inside it would hide. */
static bool whole_scalar(const yaml_node_t *n)
{
    return n->type == YAML_SCALAR_NODE && strlen(scalar(n)) == n->data.scalar.length;
}

/* Names end up on terminals: no escape sequences, no line breaks. */
static bool printable(const char *s)
{
    while (*s != '\0' && (unsigned char)*s >= 0x20 && *s != 0x7f)
        s++;
    return *s == '\0';
}

static enum pi_code read_text(const struct reader *r, const struct field *f, const yaml_node_t *v)
{
    if (!whole_scalar(v) || v->data.scalar.length >= 64 || !printable(scalar(v)))
        return BAD(r, v, "%s: must be a text of at most 63 bytes without control characters",
                   f->key);
    memcpy(f->dest, scalar(v), v->data.scalar.length + 1);
    return PI_OK;
}

static enum pi_code read_number(const struct reader *r, const struct field *f, const yaml_node_t *v)
{
    char *end = NULL;
    double x = (double)NAN;

    if (whole_scalar(v) && v->data.scalar.length > 0 &&
        strspn(scalar(v), "0123456789.eE+-") == strlen(scalar(v))) {
        x = strtod(scalar(v), &end);
        if (*end != '\0')
            x = (double)NAN;
    }
    if (!(x >= f->min && x <= f->max) || (f->kind == COUNT && x != floor(x)))
        return BAD(r, v, "%s: must be a %snumber from %g to %g, not '%.40s'", f->key,
                   f->kind == COUNT ? "whole " : "", f->min, f->max,
                   v->type == YAML_SCALAR_NODE ? scalar(v) : "a list or mapping");
    if (f->kind == COUNT)
        *(uint32_t *)f->dest = (uint32_t)x;
    else
        *(double *)f->dest = x;
    return PI_OK;
}

/* Reads a mapping by its table (ends with key NULL): every key known, none twice, none missing. */
static enum pi_code read_mapping(const struct reader *r, const char *what, const yaml_node_t *map,
                                 const struct field *fields)
{
    bool seen[MAX_KEYS] = {false};
    enum pi_code rc = PI_OK;

    if (map->type != YAML_MAPPING_NODE)
        return BAD(r, map, "%s: must be a mapping", what);
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start;
         rc == PI_OK && p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *k = yaml_document_get_node(r->doc, p->key),
                          *v = yaml_document_get_node(r->doc, p->value);
        size_t i = 0;

        while (fields[i].key != NULL && (!whole_scalar(k) || strcmp(fields[i].key, scalar(k)) != 0))
            i++;
        if (fields[i].key == NULL)
            return BAD(r, k, "unknown key '%.60s' in %s",
                       k->type == YAML_SCALAR_NODE ? scalar(k) : "(not a word)", what);
        if (seen[i])
            return BAD(r, k, "key '%s' occurs twice in %s", fields[i].key, what);
        seen[i] = true;
        if (fields[i].kind == NODE)
            *(const yaml_node_t **)fields[i].dest = v;
        else
            rc = fields[i].kind == TEXT ? read_text(r, &fields[i], v)
                                        : read_number(r, &fields[i], v);
    }
    for (size_t i = 0; rc == PI_OK && fields[i].key != NULL; i++)
        if (!seen[i] && !fields[i].optional)
            return BAD(r, map, "%s lacks the key '%s'", what, fields[i].key);
    return rc;
}

static enum pi_code read_cpu(const struct reader *r, const yaml_node_t *node, struct pi_hw_cpu *cpu)
{
    const struct field fields[] = {
        {"name", TEXT, cpu->name, 0, 0, true},
        {"threads", COUNT, &cpu->threads, 1, 65536, false},
        {"bandwidth", NUMBER, &cpu->bandwidth, 1, 1e15, false},
        {.key = NULL},
    };

    (void)snprintf(cpu->name, sizeof(cpu->name), "CPU");
    return read_mapping(r, "cpu", node, fields);
}

static enum pi_code read_gpu(const struct reader *r, const yaml_node_t *node, uint32_t index,
                             struct pi_hw_gpu *gpu)
{
    const struct field fields[] = {
        {"name", TEXT, gpu->name, 0, 0, true},
        {"memory", NUMBER, &gpu->memory, 1, 1e15, false},
        {"bandwidth", NUMBER, &gpu->bandwidth, 1, 1e15, false},
        {"pcie", NUMBER, &gpu->pcie, 1, 1e15, false},
        {"sync", NUMBER, &gpu->sync, 0, 1, false},
        {"context_bytes", NUMBER, &gpu->context_bytes, 0, 1e15, false},
        {"kernel", NUMBER, &gpu->kernel, 0, 1, true},
        {.key = NULL},
    };
    char what[32];

    (void)snprintf(gpu->name, sizeof(gpu->name), "GPU %u", index);
    gpu->kernel = PI_HW_KERNEL;
    (void)snprintf(what, sizeof(what), "gpus[%u]", index);
    return read_mapping(r, what, node, fields);
}

/* YAML's spellings of nothing. */
static bool is_null(const yaml_node_t *v)
{
    return whole_scalar(v) && v->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (scalar(v)[0] == '\0' || strcmp(scalar(v), "~") == 0 || strcmp(scalar(v), "null") == 0);
}

static enum pi_code read_gpus(const struct reader *r, const yaml_node_t *node,
                              struct pi_hardware *hw)
{
    const yaml_node_item_t *items;
    size_t n;

    if (node == NULL || is_null(node))
        return PI_OK;
    if (node->type != YAML_SEQUENCE_NODE)
        return BAD(r, node, "gpus: must be a list");
    items = node->data.sequence.items.start;
    n = (size_t)(node->data.sequence.items.top - items);
    if (n > PI_MAX_GPUS)
        return BAD(r, node, "gpus: at most %d, not %zu", PI_MAX_GPUS, n);
    for (; hw->n_gpus < n; hw->n_gpus++) {
        enum pi_code rc = read_gpu(r, yaml_document_get_node(r->doc, items[hw->n_gpus]), hw->n_gpus,
                                   &hw->gpus[hw->n_gpus]);

        if (rc != PI_OK)
            return rc;
    }
    return PI_OK;
}

/* The version goes first: a newer description may well have keys that this program does not know. */
static enum pi_code check_version(const struct reader *r, const yaml_node_t *root)
{
    uint32_t version = 1;
    const struct field field = {"pi_hardware", COUNT, &version, 1, 1e6, false};
    enum pi_code rc = PI_OK;

    if (root->type != YAML_MAPPING_NODE)
        return PI_OK;
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start;
         rc == PI_OK && p < root->data.mapping.pairs.top; p++) {
        const yaml_node_t *k = yaml_document_get_node(r->doc, p->key);

        if (whole_scalar(k) && strcmp(scalar(k), field.key) == 0)
            rc = read_number(r, &field, yaml_document_get_node(r->doc, p->value));
    }
    if (rc == PI_OK && version != 1)
        return pi_err_set(r->err, PI_E_UNSUPPORTED,
                          "%s: hardware description of version %u; this program knows version 1",
                          r->path, version);
    return rc;
}

static enum pi_code read_root(const struct reader *r, const yaml_node_t *root,
                              struct pi_hardware *hw)
{
    enum pi_code rc = PI_OK;
    const yaml_node_t *cpu = NULL, *gpus = NULL;
    uint32_t version = 0;
    const struct field fields[] = {
        {"pi_hardware", COUNT, &version, 1, 1, false},
        {"cpu", NODE, (void *)&cpu, 0, 0, false},
        {"gpus", NODE, (void *)&gpus, 0, 0, true},
        {.key = NULL},
    };

    PI_TRY(check_version(r, root));
    PI_TRY(read_mapping(r, "the hardware description", root, fields));
    PI_TRY(read_cpu(r, cpu, &hw->cpu));
    PI_TRY(read_gpus(r, gpus, hw));
out:
    return rc;
}

static enum pi_code syntax_error(const struct reader *r, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR)
        return pi_err_set(r->err, PI_E_NOMEM, "%s: not enough memory to read it", r->path);
    return bad_at(r, (p->error == YAML_READER_ERROR ? 0 : p->problem_mark.line) + 1, "not YAML: %s",
                  p->problem != NULL ? p->problem : "unreadable");
}

static enum pi_code parse(const char *path, const char *text, size_t n, struct pi_hardware *hw,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    yaml_document_t doc, next;
    bool has_doc = false, has_next = false;
    struct reader r = {path, &doc, err};
    yaml_parser_t parser;

    if (yaml_parser_initialize(&parser) == 0)
        return pi_err_set(err, PI_E_NOMEM, "%s: not enough memory to read it", path);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    has_doc = yaml_parser_load(&parser, &doc) != 0;
    if (!has_doc) {
        rc = syntax_error(&r, &parser);
        goto out;
    }
    if (yaml_document_get_root_node(&doc) == NULL)
        PI_FAIL(err, PI_E_CORRUPT, "%s: no hardware description in it", path);
    PI_TRY(read_root(&r, yaml_document_get_root_node(&doc), hw));
    has_next = yaml_parser_load(&parser, &next) != 0;
    if (!has_next)
        rc = syntax_error(&r, &parser);
    else if (yaml_document_get_root_node(&next) != NULL)
        rc = BAD(&r, yaml_document_get_root_node(&next), "a second document");
out:
    if (has_next)
        yaml_document_delete(&next);
    if (has_doc)
        yaml_document_delete(&doc);
    yaml_parser_delete(&parser);
    return rc;
}

enum pi_code pi_hardware_load(const char *path, struct pi_hardware *out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_hardware hw = {0};
    char *text = NULL;
    size_t n = 0;

    rc = pi_file_read_all(path, false, MAX_FILE_BYTES, &text, &n, err);
    if (rc == PI_E_RANGE)
        PI_FAIL(err, PI_E_CORRUPT, "%s: no hardware description has more than %u bytes", path,
                MAX_FILE_BYTES);
    PI_TRY(rc);
    PI_TRY(parse(path, text, n, &hw, err));
    *out = hw;
out:
    free(text);
    return rc;
}

/* The shortest digits that read back as the same number. */
static const char *digits(double v, char buf[32])
{
    for (int p = 6; p <= 17; p++) {
        (void)snprintf(buf, 32, "%.*g", p, v);
        if (!(strtod(buf, NULL) < v) && !(strtod(buf, NULL) > v))
            break;
    }
    return buf;
}

/* A YAML double-quoted scalar; control characters become blanks. out: 2 * 64 + 3 bytes. */
static const char *quoted(const char *s, char *out)
{
    char *p = out;

    *p++ = '"';
    for (; *s != '\0'; s++) {
        if (*s == '"' || *s == '\\')
            *p++ = '\\';
        *p++ = (unsigned char)*s < 0x20 || *s == 0x7f ? ' ' : *s;
    }
    *p++ = '"';
    *p = '\0';
    return out;
}

enum pi_code pi_hardware_save(const char *path, const struct pi_hardware *hw, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    char text[1024], name[132], d[6][32];
    struct pi_out *o = NULL;
    int n;

    PI_TRY(pi_out_open(path, &o, err));
    n = snprintf(text, sizeof(text),
                 "# A machine as pi-place sees it: bytes, bytes per second, seconds.\n"
                 "pi_hardware: 1\ncpu:\n  name: %s\n  threads: %u\n  bandwidth: %s\ngpus:%s\n",
                 quoted(hw->cpu.name, name), hw->cpu.threads, digits(hw->cpu.bandwidth, d[0]),
                 hw->n_gpus == 0 ? " []" : "");
    PI_TRY(pi_out_write(o, text, (size_t)n, err));
    for (uint32_t i = 0; i < hw->n_gpus; i++) {
        const struct pi_hw_gpu *g = &hw->gpus[i];

        n = snprintf(
            text, sizeof(text),
            "  - name: %s\n    memory: %s\n    bandwidth: %s\n    pcie: %s\n    sync: %s\n    context_bytes: %s\n    kernel: %s\n",
            quoted(g->name, name), digits(g->memory, d[0]), digits(g->bandwidth, d[1]),
            digits(g->pcie, d[2]), digits(g->sync, d[3]), digits(g->context_bytes, d[4]),
            digits(g->kernel, d[5]));
        PI_TRY(pi_out_write(o, text, (size_t)n, err));
    }
    rc = pi_out_commit(o, err);
    o = NULL;
out:
    pi_out_abort(o);
    return rc;
}
