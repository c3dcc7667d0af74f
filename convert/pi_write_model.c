#include "config.h"

#include "convert/pi_write_model.h"
#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "common/pi_size.h"
#include "runtime/cpu/pi_cpu.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_ELEMS ((uint64_t)1 << 17) /* elements of a chunk of plain rows */
#define COLUMN_STEP \
    256u /* columns taken at once of a matrix to transpose: whole blocks of every type */
#define BATCH_BYTES \
    ((uint64_t)64 << 20) /* F32 and output buffers of the chunks converted side by side */
#define MAX_BATCH   32u
#define RAW_STEP    ((uint64_t)4 << 20)
#define ERROR_PIECE 256u  /* elements whose error is measured at once: whole blocks */
#define PIECE       4096u /* elements converted at once from unaligned data */
/* from here on a value rounds to infinity */
#define F16_OVERFLOW  65520.0f
#define BF16_OVERFLOW 0x1.ffp127f

struct pi_plan_tensor *pi_plan_add(struct pi_plan *p, const char *name, struct pi_err *err)
{
    struct pi_plan_tensor *t;

    if (pi_grow_array(&p->t, &p->cap, p->n + 1, sizeof(*p->t), err) != PI_OK)
        return NULL;
    t = &p->t[p->n];
    *t = (struct pi_plan_tensor){.name = pi_strndup(name, strlen(name), err)};
    if (t->name == NULL)
        return NULL;
    p->n++;
    return t;
}

void pi_plan_free(struct pi_plan *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->t[i].name);
        free(p->t[i].owned);
    }
    free(p->t);
    *p = (struct pi_plan){0};
}

/* A table may lack what the scalar one has. */
static const struct pi_cpu_type *kernels(const struct pi_cpu *cpu, enum pi_type type)
{
    const struct pi_cpu_type *k = cpu->type[type];

    return k != NULL && k->to_f32 != NULL && k->from_f32 != NULL
               ? k
               : pi_cpu_get(PI_ISA_SCALAR)->type[type];
}

/* ---- reading ---- */

/* n elements at an address that need not be aligned; n and the pieces are whole blocks. */
static void read_f32(const struct pi_cpu_type *k, enum pi_type type, const uint8_t *at, float *out,
                     uint64_t n)
{
    _Alignas(16) uint8_t copy[PIECE * sizeof(float)];
    const struct pi_type_info *info = pi_type_info((uint32_t)type);
    size_t piece_bytes = PIECE / info->block_elems * info->block_bytes;

    if ((uintptr_t)at % (type == PI_TYPE_F32 ? 4 : 2) == 0 && n <= UINT32_MAX) {
        k->to_f32(at, out, (uint32_t)n);
        return;
    }
    for (uint64_t i = 0; i < n; i += PIECE, at += piece_bytes) {
        uint32_t m = n - i < PIECE ? (uint32_t)(n - i) : PIECE;
        memcpy(copy, at, (size_t)m / info->block_elems * info->block_bytes);
        k->to_f32(copy, out + i, m);
    }
}

/* A row of q, k and v in one matrix, grouped by key/value head in the source. */
static uint64_t grouped_row(const struct pi_plan_tensor *t, uint64_t n_rows, uint64_t row)
{
    uint64_t groups = t->qkv_groups, queries = t->qkv_queries;
    uint64_t width = n_rows / (groups * (queries + 2)), head = row / width, at;

    if (head < groups * queries)
        at = head / queries * (queries + 2) + head % queries;
    else
        at = (head - groups * queries) % groups * (queries + 2) + queries +
             (head - groups * queries) / groups;
    return at * width + row % width;
}

static bool permuted(const struct pi_plan_tensor *t)
{
    return t->rot_heads > 0 || t->qkv_groups > 0;
}

/* Row of the source for a row of the target: llama.cpp turns the rotary pairs (i, i + half) of a head into neighbours (2i, 2i + 1). */
static uint64_t source_row(const struct pi_plan_tensor *t, uint64_t n_rows, uint64_t row)
{
    uint64_t width, in_head;

    if (t->qkv_groups > 0)
        return grouped_row(t, n_rows, row);
    if (t->rot_heads == 0)
        return row;
    width = n_rows / t->rot_heads;
    in_head = row % width;
    return row - in_head + in_head % 2 * (width / 2) + in_head / 2;
}

static uint64_t row_bytes(enum pi_type type, uint64_t n)
{
    uint64_t bytes = 0;

    return pi_type_row_bytes(type, n, &bytes) ? bytes : 0;
}

/* Rows [begin, end) of the target, F32, (end - begin, n_cols). Vectors with rotary heads are permuted within their one row. */
static void read_plain(const struct pi_cpu *cpu, const struct pi_plan_tensor *t, uint64_t begin,
                       uint64_t end, float *out)
{
    const struct pi_cpu_type *k = kernels(cpu, t->src_type);
    uint64_t stride = row_bytes(t->src_type, t->n_cols);

    if (t->n_dims == 1 && permuted(t)) {
        for (uint64_t i = 0; i < t->n_cols; i++)
            read_f32(k, t->src_type,
                     t->data + source_row(t, t->n_cols, i) * row_bytes(t->src_type, 1), out + i, 1);
        return;
    }
    for (uint64_t r = begin; r < end; r++)
        read_f32(k, t->src_type, t->data + source_row(t, t->n_rows, r) * stride,
                 out + (r - begin) * t->n_cols, t->n_cols);
    for (uint64_t i = 0; t->add != 0.0f && i < (end - begin) * t->n_cols; i++)
        out[i] += t->add;
}

/* The same of a transposed source: columns [begin, end) of its n_cols rows. begin is a multiple of COLUMN_STEP, end too or the last. */
static void read_transposed(const struct pi_cpu *cpu, const struct pi_plan_tensor *t,
                            uint64_t begin, uint64_t end, float *out)
{
    enum {
        ROWS = 16
    };
    float tile[ROWS][COLUMN_STEP];
    const struct pi_cpu_type *k = kernels(cpu, t->src_type);
    uint64_t stride = row_bytes(t->src_type, t->n_rows), offset = row_bytes(t->src_type, begin);

    for (uint64_t c = 0; c < t->n_cols; c += ROWS) {
        uint64_t m = t->n_cols - c < ROWS ? t->n_cols - c : ROWS;
        for (uint64_t i = 0; i < m; i++)
            read_f32(k, t->src_type, t->data + (c + i) * stride + offset, tile[i], end - begin);
        for (uint64_t r = 0; r < end - begin; r++)
            for (uint64_t i = 0; i < m; i++)
                out[r * t->n_cols + c + i] = tile[i][r];
    }
}

/* ---- writing ---- */

/* One stretch of target rows on its way: F32, then the target's type. */
struct chunk {
    uint64_t begin, end; /* rows */
    float *f32;          /* (end - begin, n_cols) */
    uint8_t *out;
    size_t out_bytes;
    float bad;       /* a value that the target cannot hold, when is_bad */
    uint64_t bad_at; /* row * n_cols + column */
    bool is_bad;
    struct pi_plan_error error;
};

struct batch {
    const struct pi_cpu *cpu;
    const struct pi_plan_tensor *t;
    struct chunk c[MAX_BATCH];
};

static void check_values(const struct pi_plan_tensor *t, struct chunk *c)
{
    uint64_t n = (c->end - c->begin) * t->n_cols;
    float limit = t->type == PI_TYPE_F16    ? F16_OVERFLOW
                  : t->type == PI_TYPE_BF16 ? BF16_OVERFLOW
                                            : INFINITY;

    for (uint64_t i = 0; i < n; i++)
        if (!(fabsf(c->f32[i]) < limit)) {
            c->is_bad = true;
            c->bad = c->f32[i];
            c->bad_at = c->begin * t->n_cols + i;
            return;
        }
}

/* Adds what n elements x became in the target's type. The order of the sums is that of the elements alone. False where the type cannot hold them: the
 * scales of its blocks are F16, and one too large for that makes infinity, NaN or nothing of the block. */
static bool measure(const struct pi_cpu_type *k, enum pi_type type, const float *x,
                    const uint8_t *row, uint64_t n, struct pi_plan_error *e)
{
    float y[ERROR_PIECE];
    const struct pi_type_info *info = pi_type_info((uint32_t)type);
    bool held = true;

    e->known = true;
    for (uint64_t i = 0; i < n; i += ERROR_PIECE) {
        uint32_t m = n - i < ERROR_PIECE ? (uint32_t)(n - i) : ERROR_PIECE;
        float err = 0.0f, max = 0.0f;

        k->to_f32(row + i / info->block_elems * info->block_bytes, y, m);
        for (uint32_t j = 0; j < m; j++) {
            const float d = fabsf(x[i + j] - y[j]), a = fabsf(x[i + j]);

            held = held && isfinite(y[j]);
            err = d > err ? d : err;
            max = a > max ? a : max;
            e->sum_err += (double)d * (double)d;
            e->sum += (double)a * (double)a;
        }
        e->max_err = fmax(e->max_err, (double)err);
        e->max = fmax(e->max, (double)max);
        held = held && (max < F16_OVERFLOW || err <= 0.5f * max);
    }
    return held;
}

static void add_error(struct pi_plan_error *to, const struct pi_plan_error *e)
{
    to->known = to->known || e->known;
    to->sum_err += e->sum_err;
    to->sum += e->sum;
    to->max_err = fmax(to->max_err, e->max_err);
    to->max = fmax(to->max, e->max);
}

double pi_plan_error_rms(const struct pi_plan_error *e)
{
    return e->sum > 0.0 ? sqrt(e->sum_err / e->sum) : 0.0;
}

double pi_plan_error_max(const struct pi_plan_error *e)
{
    return e->max > 0.0 ? e->max_err / e->max : 0.0;
}

/* The largest of row r, which its type cannot hold. */
static void blame_largest(const struct pi_plan_tensor *t, struct chunk *c, uint64_t r)
{
    const float *x = c->f32 + r * t->n_cols;
    uint64_t at = 0;

    for (uint64_t i = 1; i < t->n_cols; i++)
        at = fabsf(x[i]) > fabsf(x[at]) ? i : at;
    c->is_bad = true;
    c->bad = x[at];
    c->bad_at = (c->begin + r) * t->n_cols + at;
}

static void convert_chunk(const struct batch *b, struct chunk *c)
{
    const struct pi_plan_tensor *t = b->t;
    const struct pi_cpu_type *to = kernels(b->cpu, t->type);
    const bool quantises = pi_type_info((uint32_t)t->type)->quantised;
    uint64_t stride = row_bytes(t->type, t->n_cols);

    if (t->transpose)
        read_transposed(b->cpu, t, c->begin, c->end, c->f32);
    else
        read_plain(b->cpu, t, c->begin, c->end, c->f32);
    check_values(t, c);
    if (c->is_bad)
        return;
    c->error = (struct pi_plan_error){0};
    for (uint64_t r = 0; r < c->end - c->begin && !c->is_bad; r++) {
        to->from_f32(c->f32 + r * t->n_cols, c->out + r * stride, (uint32_t)t->n_cols);
        if (quantises && !measure(to, t->type, c->f32 + r * t->n_cols, c->out + r * stride,
                                  t->n_cols, &c->error))
            blame_largest(t, c, r);
    }
    c->out_bytes = (size_t)((c->end - c->begin) * stride);
}

static void convert_range(void *ctx, size_t begin, size_t end)
{
    struct batch *b = ctx;

    for (size_t i = begin; i < end; i++)
        convert_chunk(b, &b->c[i]);
}

static enum pi_code refuse_value(const struct pi_plan_tensor *t, const struct chunk *c,
                                 struct pi_err *err)
{
    unsigned long long row = c->bad_at / t->n_cols, col = c->bad_at % t->n_cols;

    if (isfinite(c->bad))
        return pi_err_set(err, PI_E_UNSUPPORTED,
                          "%s: tensor %.*s holds %g, which %s cannot: use --type %s", t->src_path,
                          (int)t->src_name_n, t->src_name, (double)c->bad,
                          pi_type_info((uint32_t)t->type)->name,
                          fabsf(c->bad) < BF16_OVERFLOW ? "bf16 or f32" : "f32");
    return pi_err_set(
        err, PI_E_CORRUPT,
        "%s: tensor %.*s holds a value that is not finite (as stored here: %s, row %llu, column %llu)",
        t->src_path, (int)t->src_name_n, t->src_name, t->name, row, col);
}

struct writing {
    const struct pi_write_options *opt;
    struct pi_gguf_writer *w;
    struct pi_progress progress;
    uint64_t done; /* elements */
    struct batch batch;
};

/* How a tensor is cut: rows of a chunk, elements in it, chunks converted side by side. The first two do not depend on the threads. */
struct cut {
    uint64_t rows, elems;
    uint32_t n_chunks;
};

static bool cut_tensor(const struct pi_plan_tensor *t, const struct pi_pool *pool, struct cut *out)
{
    uint64_t rows = t->transpose ? COLUMN_STEP : CHUNK_ELEMS / t->n_cols, n;
    uint32_t max = 2 * pi_pool_size(pool);

    out->rows = rows == 0 ? 1 : rows < t->n_rows ? rows : t->n_rows;
    if (!pi_size_mul(out->rows, t->n_cols, &out->elems) || out->elems > SIZE_MAX / 16)
        return false;
    n = BATCH_BYTES / (out->elems * 8);
    max = max < MAX_BATCH ? max : MAX_BATCH;
    out->n_chunks = n == 0 ? 1 : n < max ? (uint32_t)n : max;
    return true;
}

static enum pi_code alloc_chunks(struct writing *wr, const struct pi_plan_tensor *t,
                                 struct cut *cut, struct pi_err *err)
{
    if (!cut_tensor(t, wr->opt->pool, cut))
        return pi_err_set(err, PI_E_NOMEM, "%s: %llu rows of %llu", t->name,
                          (unsigned long long)cut->rows, (unsigned long long)t->n_cols);
    for (uint32_t i = 0; i < cut->n_chunks; i++) {
        struct chunk *c = &wr->batch.c[i];
        *c = (struct chunk){.f32 = pi_calloc_aligned((size_t)cut->elems, sizeof(float), err)};
        if (c->f32 != NULL)
            c->out = pi_calloc_aligned((size_t)cut->elems, sizeof(float), err);
        if (c->out == NULL) {
            pi_err_wrap(err, "%s", t->name);
            return PI_E_NOMEM;
        }
    }
    return PI_OK;
}

static void free_chunks(struct writing *wr)
{
    for (uint32_t i = 0; i < MAX_BATCH; i++) {
        free(wr->batch.c[i].f32);
        free(wr->batch.c[i].out);
        wr->batch.c[i] = (struct chunk){0};
    }
}

static uint64_t raw_size(const struct pi_plan_tensor *t)
{
    return t->verbatim ? t->bytes : t->n_rows * row_bytes(t->src_type, t->n_cols);
}

/* What was read of the source is not needed again. */
static void drop(const struct writing *wr, const void *p, uint64_t n)
{
    if (wr->opt->drop != NULL)
        wr->opt->drop(wr->opt->drop_ctx, p, (size_t)n);
}

static enum pi_code write_converted(struct writing *wr, struct pi_plan_tensor *t,
                                    struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct cut cut = {0};
    uint64_t first = 0;

    PI_TRY(alloc_chunks(wr, t, &cut, err));
    wr->batch.t = t;
    for (uint64_t r = 0; r < t->n_rows;) {
        uint32_t n = 0;

        for (; n < cut.n_chunks && r < t->n_rows; n++, r += cut.rows) {
            wr->batch.c[n].begin = r;
            wr->batch.c[n].end = t->n_rows - r < cut.rows ? t->n_rows : r + cut.rows;
        }
        pi_pool_for(wr->opt->pool, n, 1, convert_range, &wr->batch);
        for (uint32_t i = 0; i < n; i++) {
            const struct chunk *c = &wr->batch.c[i];
            if (c->is_bad)
                PI_TRY(refuse_value(t, c, err));
            PI_TRY(pi_gguf_append(wr->w, c->out, c->out_bytes, err));
            wr->done += (c->end - c->begin) * t->n_cols;
            add_error(&t->error, &c->error);
        }
        if (!t->transpose) /* else each batch reads columns of all rows */
            drop(wr, t->data + first * row_bytes(t->src_type, t->n_cols),
                 (r - first) * row_bytes(t->src_type, t->n_cols));
        first = r;
        pi_progress_at(&wr->progress, wr->done);
        PI_TRY(pi_interrupt_check(err));
    }
    drop(wr, t->data, raw_size(t));
out:
    free_chunks(wr);
    return rc;
}

static enum pi_code write_raw(struct writing *wr, const struct pi_plan_tensor *t,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    uint64_t n = raw_size(t);

    for (uint64_t at = 0; at < n; at += RAW_STEP) {
        PI_TRY(pi_gguf_append(wr->w, t->data + at, (size_t)(n - at < RAW_STEP ? n - at : RAW_STEP),
                              err));
        drop(wr, t->data + at, n - at < RAW_STEP ? n - at : RAW_STEP);
        PI_TRY(pi_interrupt_check(err));
    }
    wr->done += t->n_rows * t->n_cols;
    pi_progress_at(&wr->progress, wr->done);
out:
    return rc;
}

static enum pi_code declare(struct pi_gguf_writer *w, const struct pi_plan_tensor *t,
                            struct pi_err *err)
{
    uint64_t ne[2] = {t->n_cols, t->n_rows};

    if (t->verbatim)
        return pi_gguf_add_tensor(w, t->name, t->type, t->ne, t->n_dims, err);
    return pi_gguf_add_tensor(w, t->name, t->type, ne, t->n_dims == 1 ? 1 : 2, err);
}

enum pi_code pi_plan_declare(const struct pi_plan *p, struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    for (size_t i = 0; i < p->n && rc == PI_OK; i++)
        rc = declare(w, &p->t[i], err);
    return rc;
}

/* Floats go through F32 even where the type stays, so that values that are not finite are found. */
static bool is_raw(const struct pi_plan_tensor *t)
{
    return t->verbatim || (t->type == t->src_type && !t->transpose && !permuted(t) &&
                           pi_type_info((uint32_t)t->type)->quantised);
}

uint64_t pi_plan_memory(const struct pi_plan *p, const struct pi_pool *pool)
{
    uint64_t most = 0;

    for (size_t i = 0; i < p->n; i++) {
        struct cut cut = {0};

        if (!is_raw(&p->t[i]) && cut_tensor(&p->t[i], pool, &cut) &&
            cut.n_chunks * cut.elems * 8 > most)
            most = cut.n_chunks * cut.elems * 8;
    }
    return most;
}

enum pi_code pi_plan_write(struct pi_plan *p, const struct pi_write_options *opt,
                           struct pi_gguf_writer *w, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct writing *wr = NULL;
    uint64_t total = 0;

    PI_ALLOC(wr, 1, err);
    wr->opt = opt;
    wr->w = w;
    PI_TRY(pi_cpu_select(&wr->batch.cpu, err));
    for (size_t i = 0; i < p->n; i++)
        total += p->t[i].n_rows * p->t[i].n_cols;
    PI_TRY(pi_gguf_begin(w, err));
    pi_progress_begin(&wr->progress, "writing", total, opt->progress);
    for (size_t i = 0; i < p->n && rc == PI_OK; i++) {
        if (opt->check != NULL)
            rc = opt->check(opt->drop_ctx, p->t[i].data, raw_size(&p->t[i]), err);
        if (rc != PI_OK)
            break;
        rc = is_raw(&p->t[i]) ? write_raw(wr, &p->t[i], err) : write_converted(wr, &p->t[i], err);
    }
    pi_progress_end(&wr->progress);
out:
    free(wr);
    return rc;
}
