/*
 * pi_cpu.h - CPU kernels, chosen at run time from what the processor has: scalar (the reference), AVX2 + FMA + F16C, AVX-512, NEON.
 *
 * Rows of weights are read in their stored type; activations and sums are F32. The order of summation in a row depends on the ISA and the row alone, never
 * on how many rows a call takes or which thread runs it, so that results do not depend on the thread count. Pure functions; thread safe.
 * x and y need no alignment beyond that of float, rows 4 bytes (F32) or 2 bytes. Any n for F32, F16, BF16; a multiple of the type's block (32; 256 for
 * K types) for quantised types. Types here: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K. Block layouts are those of GGUF (ggml); see docs/formats.md.
 */
#ifndef PI_CPU_H
#define PI_CPU_H

#include "common/pi_err.h"
#include "common/pi_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The later, the better where a processor has several. VNNI, DOT: the same kernels, but for those of quantised activations, which have instructions that
 * add four products of bytes at once. */
enum pi_isa {
    PI_ISA_SCALAR,
    PI_ISA_NEON,
    PI_ISA_NEONDOT,
    PI_ISA_AVX2,
    PI_ISA_AVXVNNI,
    PI_ISA_AVX512,
    PI_ISA_AVX512VNNI,
    PI_ISA_COUNT
};

/* 32 activations quantised for integer products (--act q8), the same rule on every unit: x is taken for d * q. d = max |x| / 127 with the low 7 bits of its
 * mantissa cleared, so that d * q is exact in F32 and quantising it again gives the same block; q = x / d rounded to nearest, halves to even, thus
 * |q| <= 127; s = d * (sum of q), what an offset of weights is multiplied by. All zero where d would be less than the smallest normal number; a NaN or an
 * infinity makes d and s NaN and q 0. */
#define PI_Q8_BLOCK 32
struct pi_q8 {
    float d, s;
    int8_t q[PI_Q8_BLOCK];
};

struct pi_cpu_type {
    /* out[i] = row_i . x for n_rows rows of n elements, stride bytes apart */
    void (*dot_rows)(const void *rows, size_t stride, uint32_t n_rows, const float *x, uint32_t n,
                     float *out);
    /* the same for rows picked by index: row ids[i] of the matrix at base */
    void (*dot_ids)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                    const float *x, uint32_t n, float *out);
    /* y[begin..end) += sum_i a[i] * row_{ids[i]}[begin..end), in the order of ids; begin and end are multiples of 32 or the row's end.
     * An element's result is the same however columns are cut into ranges and ids into calls, as long as their order is kept. */
    void (*axpy_ids)(const void *base, size_t stride, const uint32_t *ids, const float *a,
                     uint32_t n_ids, uint32_t begin, uint32_t end, float *y);
    /* out[i][j] = row_{ids[i]} . x[j], out (n_ids, n_x): the bits of dot_ids, but a row is unpacked once for several x. n_next: rows that the
     * caller takes next are ids[n_ids..n_ids + n_next); memory is asked for the first of them. */
    void (*dot_many)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                     uint32_t n_next, const float *const *x, uint32_t n_x, uint32_t n, float *out);
    /* y[j][begin..end) += sum_i a[i][j] * row_{ids[i]}[begin..end), a (n_ids, n_y): the bits of axpy_ids. The y must not overlap. */
    void (*axpy_many)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                      uint32_t n_next, const float *a, float *const *y, uint32_t n_y,
                      uint32_t begin, uint32_t end);
    /* The same where each row chooses among the vectors, of which there are 1 to 32: those of the bits of mask[i], which has none beyond them. out and a are
     * packed: row after row, of each its vectors in ascending order. */
    void (*dot_masked)(const void *base, size_t stride, const uint32_t *ids, const uint32_t *mask,
                       uint32_t n_ids, uint32_t n_next, const float *const *x, uint32_t n_x,
                       uint32_t n, float *out);
    void (*axpy_masked)(const void *base, size_t stride, const uint32_t *ids, const uint32_t *mask,
                        uint32_t n_ids, uint32_t n_next, const float *a, float *const *y,
                        uint32_t n_y, uint32_t begin, uint32_t end);
    void (*to_f32)(const void *row, float *out, uint32_t n);
    /* round to nearest as GGUF writers do (bit for bit ggml's reference); rounds F16 and BF16 to nearest even. n a multiple of the block.
     * Quantised types: a NaN makes its block's scale NaN, an infinity infinite. */
    void (*from_f32)(const float *x, void *row_out, uint32_t n);
    /* dot_rows, dot_ids, dot_many and dot_masked with x (n / 32) quantised by quantise_q8; NULL for F32, F16 and BF16 rows. Products within a part (32
     * elements; 16 in Q6_K) are exact integers. Parts are added to one sum in F32, in their order, from 0 on:
     *     sum = fma(scale * x.d, integer, sum), then, for types with an offset, sum = fma(offset, x.s, sum)
     * where a weight is scale * q + offset (F32 values; q counts from the type's middle: q - 8 in Q4_0, q - 16 in Q5_0, q - 32 in Q6_K; K types:
     * scale = d * scale of the part, offset = -(dmin * min of the part), both exact). So all tables, and the products of whole prompts
     * (pi_blas.h), give the same bits, whose rows lie side by side in a vector: several rows' integers are summed across lanes together. x of which some d is NaN gives NaN. */
    void (*dot_rows_q8)(const void *rows, size_t stride, uint32_t n_rows, const struct pi_q8 *x,
                        uint32_t n, float *out);
    void (*dot_ids_q8)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                       const struct pi_q8 *x, uint32_t n, float *out);
    void (*dot_many_q8)(const void *base, size_t stride, const uint32_t *ids, uint32_t n_ids,
                        uint32_t n_next, const struct pi_q8 *const *x, uint32_t n_x, uint32_t n,
                        float *out);
    void (*dot_masked_q8)(const void *base, size_t stride, const uint32_t *ids,
                          const uint32_t *mask, uint32_t n_ids, uint32_t n_next,
                          const struct pi_q8 *const *x, uint32_t n_x, uint32_t n, float *out);
};

struct pi_gemm;

struct pi_cpu {
    enum pi_isa isa;
    const struct pi_cpu_type *type[PI_TYPE_COUNT]; /* NULL: a type without kernels */
    float (*dot_f32)(const float *a, const float *b, uint32_t n);
    /* y += a * x */
    void (*axpy_f32)(float a, const float *x, float *y, uint32_t n);
    float (*sum_squares)(const float *x, uint32_t n);
    /* x (n), n a multiple of 32, to out (n / 32): the same bits in every table */
    void (*quantise_q8)(const float *x, struct pi_q8 *out, uint32_t n);
    const struct pi_gemm *gemm; /* blocked products (pi_gemm.h), or NULL */
};

/* The best table this processor runs; PI_CPU=scalar|neon|neondot|avx2|avxvnni|avx512|avx512vnni in the environment forces one (PI_E_USAGE for another
 * word, PI_E_NODEV where the processor lacks it). */
enum pi_code pi_cpu_select(const struct pi_cpu **out, struct pi_err *err) PI_MUST_CHECK;
/* One table by name, or NULL when this processor or build lacks it: for tests that compare all of them. */
const struct pi_cpu *pi_cpu_get(enum pi_isa isa);
const char *pi_isa_name(enum pi_isa isa);

/* Scalar conversions of single values, bit exact, subnormals included. */
float pi_f16_to_f32(uint16_t h);
uint16_t pi_f32_to_f16(float f); /* nearest even */
float pi_bf16_to_f32(uint16_t h);
uint16_t pi_f32_to_bf16(float f); /* nearest even; NaN stays NaN */

/* Element-wise pieces of the model, F32, scalar twins of what GPUs will run. */

/* out = x / sqrt(mean(x^2) + eps) * w     RMSNorm (Zhang and Sennrich 2019, eq. 4) */
void pi_rms_norm(const struct pi_cpu *cpu, const float *x, const float *w, float eps, float *out,
                 uint32_t n);
/* out = (x - mean) / sqrt(var + eps) * w + b     LayerNorm (Ba et al. 2016) */
void pi_layer_norm(const float *x, const float *w, const float *b, float eps, float *out,
                   uint32_t n);
/* In place on n_heads heads of head_dim: rotates pairs by pos * inv_freq[i], i < n_rot / 2, cos and sin scaled by mscale (RoFormer, eq. 34) */
void pi_rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, bool neox, int32_t pos,
             const float *inv_freq, float mscale);
/* In place; stable (maximum subtracted). */
void pi_softmax(float *x, uint32_t n);

#endif
