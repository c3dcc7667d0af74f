/*
 * pi_cpu_simd.h - the vector kernels, written once over a small set of vector operations; included by one .c file for each ISA.
 *
 * The file that includes it defines before: TARGET (the functions' target attribute), W (F32 lanes), VF (the vector type), v_zero, v_set, v_load,
 * v_store, v_load_part, v_store_part, v_load8, v_store8, v_add, v_sub, v_mul, v_fma, v_fms, v_fnma, v_sum, the readers of plain rows load_T / part_T, and
 * widen_i8 / widen_byte. Rows that are not quantised: pi_cpu_simd_plain.h; quantised ones: pi_cpu_simd_read.h and pi_cpu_simd_block.h; several vectors at once: pi_cpu_simd_many.h.
 *
 * Determinism: each row has its own running sums, laid out the same whether the row is computed alone or beside three others that
 * share the loads of x; an element of y gets one fused multiply-add for each row, in the order of ids, in full and in partial vectors alike.
 *
 * Loops over rows and over the vectors of a block have constant bounds and are unrolled, so that their arrays are registers.
 */
#ifndef PI_CPU_SIMD_H
#define PI_CPU_SIMD_H

#include "runtime/cpu/pi_cpu_simd_rows.h"

#define NV (PI_BLOCK / W) /* vectors of a block */

#include "runtime/cpu/pi_cpu_simd_plain.h"
#include "runtime/cpu/pi_cpu_simd_read.h"
#include "runtime/cpu/pi_cpu_simd_block.h"

/* DOT(rows, row, in, n, out, ahead) and AXPY(rows, row, a, begin, end, y, ahead) with the readers of type T filled in; BYTES(i): where element i is in a row (of K types:
 * the block it is in); N_SUMS: room for sums of x, 1 where they are not wanted. */
#define KERNELS(T, DOT, AXPY, TO_F32, BYTES, N_SUMS)                                              \
    static TARGET void dot_up_to_##T(uint32_t rows, const void *const *row, const void *x,        \
                                     uint32_t n, float *out, struct ahead ahead)                  \
    {                                                                                             \
        const struct input in = *(const struct input *)x;                                         \
        UP_TO_ROWS(rows, DOT, row, in, n, out, ahead);                                            \
    }                                                                                             \
    static TARGET void dot_rows_##T(const void *rows, size_t stride, uint32_t n_rows,             \
                                    const float *x, uint32_t n, float *out)                       \
    {                                                                                             \
        alignas(64) float room[N_SUMS];                                                           \
        struct input in = {x, (N_SUMS) > 1 ? sums_of(x, n, room, N_SUMS) : NULL};                 \
        TAKE_##T(dot_up_to_##T, rows, stride, NULL, n_rows, &in, n, BYTES(n), out);               \
    }                                                                                             \
    static TARGET void dot_ids_##T(const void *base, size_t stride, const uint32_t *ids,          \
                                   uint32_t n_ids, const float *x, uint32_t n, float *out)        \
    {                                                                                             \
        alignas(64) float room[N_SUMS];                                                           \
        struct input in = {x, (N_SUMS) > 1 ? sums_of(x, n, room, N_SUMS) : NULL};                 \
        TAKE_##T(dot_up_to_##T, base, stride, ids, n_ids, &in, n, BYTES(n), out);                 \
    }                                                                                             \
    static TARGET void axpy_up_to_##T(uint32_t rows, const void *const *row, const float *a,      \
                                      uint32_t begin, uint32_t end, float *y, struct ahead ahead) \
    {                                                                                             \
        UP_TO_ROWS(rows, AXPY, row, a, begin, end, y, ahead);                                     \
    }                                                                                             \
    static TARGET void axpy_ids_##T(const void *base, size_t stride, const uint32_t *ids,         \
                                    const float *a, uint32_t n_ids, uint32_t begin, uint32_t end, \
                                    float *y)                                                     \
    {                                                                                             \
        for (uint32_t i = EIGHTS_##T(base, stride, ids, a, n_ids, begin, end, y); i < n_ids;      \
             i += ROWS) {                                                                         \
            const void *row[ROWS];                                                                \
            const char *next[ROWS];                                                               \
            uint32_t k = n_ids - i < ROWS ? n_ids - i : ROWS;                                     \
            uint32_t n_next = n_ids - i - k < ROWS ? n_ids - i - k : ROWS;                        \
            for (uint32_t r = 0; r < k; r++)                                                      \
                row[r] = row_at(base, stride, ids[i + r]);                                        \
            for (uint32_t r = 0; r < n_next; r++)                                                 \
                next[r] = row_at(base, stride, ids[i + k + r]);                                   \
            axpy_up_to_##T(k, row, a + i, begin, end, y,                                          \
                           AHEAD_##T(next, n_next, BYTES(begin), BYTES(end), end - begin));       \
        }                                                                                         \
    }                                                                                             \
    static TARGET void to_f32_##T(const void *row, float *out, uint32_t n)                        \
    {                                                                                             \
        TO_F32(row, out, n);                                                                      \
    }

#define DOT_F32(rows, row, in, ...) dot_plain(load_f32, part_f32, rows, row, (in).x, __VA_ARGS__)
#define AXPY_F32(...)               axpy_plain(load_f32, part_f32, __VA_ARGS__)
#define TO_F32_F32(...)             to_f32_plain(load_f32, part_f32, __VA_ARGS__)

#define DOT_F16(rows, row, in, ...) dot_plain(load_f16, part_f16, rows, row, (in).x, __VA_ARGS__)
#define AXPY_F16(...)               axpy_plain(load_f16, part_f16, __VA_ARGS__)
#define TO_F32_F16(...)             to_f32_plain(load_f16, part_f16, __VA_ARGS__)

#define DOT_BF16(rows, row, in, ...) dot_plain(load_bf16, part_bf16, rows, row, (in).x, __VA_ARGS__)
#define AXPY_BF16(...)               axpy_plain(load_bf16, part_bf16, __VA_ARGS__)
#define TO_F32_BF16(...)             to_f32_plain(load_bf16, part_bf16, __VA_ARGS__)

#define DOT_Q8_0(...)    dot_block(READ_Q8_0, __VA_ARGS__)
#define AXPY_Q8_0(...)   axpy_block(READ_Q8_0, __VA_ARGS__)
#define TO_F32_Q8_0(...) to_f32_block(READ_Q8_0, __VA_ARGS__)

#define DOT_Q4_0(...)    dot_block(READ_Q4_0, __VA_ARGS__)
#define AXPY_Q4_0(...)   axpy_block(READ_Q4_0, __VA_ARGS__)
#define TO_F32_Q4_0(...) to_f32_block(READ_Q4_0, __VA_ARGS__)

#define DOT_Q4_1(...)    dot_block(READ_Q4_1, __VA_ARGS__)
#define AXPY_Q4_1(...)   axpy_block(READ_Q4_1, __VA_ARGS__)
#define TO_F32_Q4_1(...) to_f32_block(READ_Q4_1, __VA_ARGS__)

#define DOT_Q5_0(...)    dot_block(READ_Q5_0, __VA_ARGS__)
#define AXPY_Q5_0(...)   axpy_block(READ_Q5_0, __VA_ARGS__)
#define TO_F32_Q5_0(...) to_f32_block(READ_Q5_0, __VA_ARGS__)

#define DOT_Q5_1(...)    dot_block(READ_Q5_1, __VA_ARGS__)
#define AXPY_Q5_1(...)   axpy_block(READ_Q5_1, __VA_ARGS__)
#define TO_F32_Q5_1(...) to_f32_block(READ_Q5_1, __VA_ARGS__)

#define DOT_Q4_K(...)    dot_block(READ_Q4_K, __VA_ARGS__)
#define AXPY_Q4_K(...)   axpy_block(READ_Q4_K, __VA_ARGS__)
#define TO_F32_Q4_K(...) to_f32_block(READ_Q4_K, __VA_ARGS__)

#define DOT_Q5_K(...)    dot_block(READ_Q5_K, __VA_ARGS__)
#define AXPY_Q5_K(...)   axpy_block(READ_Q5_K, __VA_ARGS__)
#define TO_F32_Q5_K(...) to_f32_block(READ_Q5_K, __VA_ARGS__)

#define DOT_Q6_K(...)    dot_block(READ_Q6_K, __VA_ARGS__)
#define AXPY_Q6_K(...)   axpy_block(READ_Q6_K, __VA_ARGS__)
#define TO_F32_Q6_K(...) to_f32_block(READ_Q6_K, __VA_ARGS__)

/* How plain and quantised rows are walked over (pi_cpu_simd_rows.h). EIGHTS: adds rows by twice ROWS while there are, and says how many. */
#define AHEAD_f32        ahead_one
#define AHEAD_f16        ahead_one
#define AHEAD_bf16       ahead_one
#define AHEAD_q8_0       ahead_rows
#define AHEAD_q4_0       ahead_rows
#define AHEAD_q4_1       ahead_rows
#define AHEAD_q5_0       ahead_rows
#define AHEAD_q5_1       ahead_rows
#define AHEAD_q4_k       ahead_rows
#define AHEAD_q5_k       ahead_rows
#define AHEAD_q6_k       ahead_rows
#define TAKE_f32(...)    take_plain_rows(dot_eight_f32, __VA_ARGS__)
#define TAKE_f16(...)    take_plain_rows(dot_eight_f16, __VA_ARGS__)
#define TAKE_bf16(...)   take_plain_rows(dot_eight_bf16, __VA_ARGS__)
#define TAKE_q8_0        take_rows
#define TAKE_q4_0        take_rows
#define TAKE_q4_1        take_rows
#define TAKE_q5_0        take_rows
#define TAKE_q5_1        take_rows
#define TAKE_q4_k        take_rows
#define TAKE_q5_k        take_rows
#define TAKE_q6_k        take_rows
#define EIGHTS_q8_0(...) 0
#define EIGHTS_q4_0(...) 0
#define EIGHTS_q4_1(...) 0
#define EIGHTS_q5_0(...) 0
#define EIGHTS_q5_1(...) 0
#define EIGHTS_q4_k(...) 0
#define EIGHTS_q5_k(...) 0
#define EIGHTS_q6_k(...) 0

/* Twice ROWS rows that are not quantised. */
#define PLAIN_EIGHT(T, DOT, AXPY, BYTES)                                                        \
    static TARGET void dot_eight_##T(const void *const *row, const void *x, uint32_t n,         \
                                     float *out, struct ahead ahead)                            \
    {                                                                                           \
        const struct input in = *(const struct input *)x;                                       \
        DOT(2 * ROWS, row, in, n, out, ahead);                                                  \
    }                                                                                           \
    static TARGET uint32_t EIGHTS_##T(const void *base, size_t stride, const uint32_t *ids,     \
                                      const float *a, uint32_t n_ids, uint32_t begin,           \
                                      uint32_t end, float *y)                                   \
    {                                                                                           \
        uint32_t i = 0;                                                                         \
        for (; PLAIN_SIDE > ROWS && n_ids - i >= 2 * ROWS; i += 2 * ROWS) {                     \
            const struct eight e = take_eight(base, stride, ids, i, n_ids, BYTES(end - begin)); \
            AXPY(2 * ROWS, e.row, a + i, begin, end, y,                                         \
                 ahead_one(e.next, e.n_next, BYTES(begin), BYTES(end), end - begin));           \
        }                                                                                       \
        return i;                                                                               \
    }

PLAIN_EIGHT(f32, DOT_F32, AXPY_F32, BYTES_F32)
PLAIN_EIGHT(f16, DOT_F16, AXPY_F16, BYTES_F16)
PLAIN_EIGHT(bf16, DOT_BF16, AXPY_BF16, BYTES_F16)

#define from_f32_f32  pi_store_f32
#define from_f32_bf16 pi_store_bf16
#define from_f32_q8_0 pi_quantise_q8_0
#define from_f32_q4_0 pi_quantise_q4_0
#define from_f32_q4_1 pi_quantise_q4_1
#define from_f32_q5_0 pi_quantise_q5_0
#define from_f32_q5_1 pi_quantise_q5_1
#define from_f32_q4_k pi_quantise_q4_k
#define from_f32_q5_k pi_quantise_q5_k
#define from_f32_q6_k pi_quantise_q6_k

KERNELS(f32, DOT_F32, AXPY_F32, TO_F32_F32, BYTES_F32, 1)
KERNELS(f16, DOT_F16, AXPY_F16, TO_F32_F16, BYTES_F16, 1)
KERNELS(bf16, DOT_BF16, AXPY_BF16, TO_F32_BF16, BYTES_F16, 1)
KERNELS(q8_0, DOT_Q8_0, AXPY_Q8_0, TO_F32_Q8_0, BYTES_Q8_0, 1)
KERNELS(q4_0, DOT_Q4_0, AXPY_Q4_0, TO_F32_Q4_0, BYTES_Q4_0, 1)
KERNELS(q4_1, DOT_Q4_1, AXPY_Q4_1, TO_F32_Q4_1, BYTES_Q4_1, SUMS)
KERNELS(q5_0, DOT_Q5_0, AXPY_Q5_0, TO_F32_Q5_0, BYTES_Q5_0, 1)
KERNELS(q5_1, DOT_Q5_1, AXPY_Q5_1, TO_F32_Q5_1, BYTES_Q5_1, SUMS)
KERNELS(q4_k, DOT_Q4_K, AXPY_Q4_K, TO_F32_Q4_K, BYTES_Q4_K, SUMS)
KERNELS(q5_k, DOT_Q5_K, AXPY_Q5_K, TO_F32_Q5_K, BYTES_Q5_K, SUMS)
KERNELS(q6_k, DOT_Q6_K, AXPY_Q6_K, TO_F32_Q6_K, BYTES_Q6_K, 1)

#include "runtime/cpu/pi_cpu_simd_many.h"

static TARGET float dot_f32(const float *a, const float *b, uint32_t n)
{
    const void *row[1] = {a};
    float out;

    dot_plain(load_f32, part_f32, 1, row, b, n, &out, (struct ahead){.n = 0});
    return out;
}

static TARGET void axpy_f32(float a, const float *x, float *y, uint32_t n)
{
    const void *row[1] = {x};

    AXPY_F32(1, row, &a, 0, n, y, (struct ahead){.n = 0});
}

static TARGET float sum_squares(const float *x, uint32_t n)
{
    return dot_f32(x, x, n);
}

#include "runtime/cpu/pi_gemm_simd.h"

/* ---- tables ---- */

/* What a type has of kernels for quantised activations, by the prefix of their names (pi_cpu_simd_q8.h). */
#define Q8_OF_f32(prefix)  PI_Q8_NONE
#define Q8_OF_f16(prefix)  PI_Q8_NONE
#define Q8_OF_bf16(prefix) PI_Q8_NONE
#define Q8_OF_q8_0(prefix) PI_Q8_ENTRIES(prefix, q8_0)
#define Q8_OF_q4_0(prefix) PI_Q8_ENTRIES(prefix, q4_0)
#define Q8_OF_q4_1(prefix) PI_Q8_ENTRIES(prefix, q4_1)
#define Q8_OF_q5_0(prefix) PI_Q8_ENTRIES(prefix, q5_0)
#define Q8_OF_q5_1(prefix) PI_Q8_ENTRIES(prefix, q5_1)
#define Q8_OF_q4_k(prefix) PI_Q8_ENTRIES(prefix, q4_k)
#define Q8_OF_q5_k(prefix) PI_Q8_ENTRIES(prefix, q5_k)
#define Q8_OF_q6_k(prefix) PI_Q8_ENTRIES(prefix, q6_k)

#define TYPE(prefix, T)                                  \
    static const struct pi_cpu_type prefix##type_##T = { \
        .dot_rows = dot_rows_##T,                        \
        .dot_ids = dot_ids_##T,                          \
        .axpy_ids = axpy_ids_##T,                        \
        .dot_many = dot_many_##T,                        \
        .axpy_many = axpy_many_##T,                      \
        .dot_masked = dot_masked_##T,                    \
        .axpy_masked = axpy_masked_##T,                  \
        .to_f32 = to_f32_##T,                            \
        .from_f32 = from_f32_##T,                        \
        Q8_OF_##T(prefix),                               \
    };

/* A table prefix##table with the kernels for quantised activations whose names begin with prefix. */
#define TABLE(prefix, isa_)                                                 \
    TYPE(prefix, f32)                                                       \
    TYPE(prefix, f16)                                                       \
    TYPE(prefix, bf16)                                                      \
    TYPE(prefix, q8_0)                                                      \
    TYPE(prefix, q4_0)                                                      \
    TYPE(prefix, q4_1)                                                      \
    TYPE(prefix, q5_0)                                                      \
    TYPE(prefix, q5_1)                                                      \
    TYPE(prefix, q4_k)                                                      \
    TYPE(prefix, q5_k)                                                      \
    TYPE(prefix, q6_k)                                                      \
    static const struct pi_gemm prefix##gemm = GEMM_TABLE(prefix##gemm_q8); \
    static const struct pi_cpu prefix##table = {                            \
        .isa = (isa_),                                                      \
        .type = {[PI_TYPE_F32] = &prefix##type_f32,                         \
                 [PI_TYPE_F16] = &prefix##type_f16,                         \
                 [PI_TYPE_BF16] = &prefix##type_bf16,                       \
                 [PI_TYPE_Q8_0] = &prefix##type_q8_0,                       \
                 [PI_TYPE_Q4_0] = &prefix##type_q4_0,                       \
                 [PI_TYPE_Q4_1] = &prefix##type_q4_1,                       \
                 [PI_TYPE_Q5_0] = &prefix##type_q5_0,                       \
                 [PI_TYPE_Q5_1] = &prefix##type_q5_1,                       \
                 [PI_TYPE_Q4_K] = &prefix##type_q4_k,                       \
                 [PI_TYPE_Q5_K] = &prefix##type_q5_k,                       \
                 [PI_TYPE_Q6_K] = &prefix##type_q6_k},                      \
        .dot_f32 = dot_f32,                                                 \
        .axpy_f32 = axpy_f32,                                               \
        .sum_squares = sum_squares,                                         \
        .quantise_q8 = prefix##quantise_q8,                                 \
        .gemm = &prefix##gemm,                                              \
    }

#endif
