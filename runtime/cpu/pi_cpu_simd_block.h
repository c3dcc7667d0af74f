/*
 * pi_cpu_simd_block.h - the vector kernels of quantised rows for one vector; included by pi_cpu_simd.h alone.
 *
 * Rows are taken a group at a time (pi_cpu_simd_read.h): the bytes, scales and offsets of some rows first, then the products, side by side.
 */
#ifndef PI_CPU_SIMD_BLOCK_H
#define PI_CPU_SIMD_BLOCK_H

/* What offsets are multiplied by: the sum of each block of x, made once a call, for as many blocks as this; beyond it, for each few rows anew. */
#define SUMS 8192

/* A vector x and its sums: one for each block, 0 up to a whole group; NULL: not made. */
struct input {
    const float *x, *sums;
};

/* The bytes of block i of a group, whose first block is number b of the row. */
INLINE const uint8_t *bytes_of(struct reader rd, const void *row, const struct group *g, uint32_t b,
                               uint32_t i)
{
    return rd.in_row ? (const uint8_t *)((const struct pi_block_q8_0 *)row)[b + i].q
                     : g->q + (size_t)i * PI_BLOCK;
}

/* The sums of n blocks, and 0 up to a group. */
INLINE void group_sums(const float *x, uint32_t n, float *out)
{
    for (uint32_t b = 0; b < GROUP; b++, x += PI_BLOCK) {
        VF sum = v_zero();

        if (b < n) {
#pragma GCC unroll 4
            for (int k = 0; k < NV; k++)
                sum = v_add(sum, v_load(x + k * W));
        }
        out[b] = v_sum(sum);
    }
}

INLINE const float *sums_of(const float *x, uint32_t n, float *room, uint32_t n_room)
{
    if (n / PI_BLOCK > n_room)
        return NULL;
    for (uint32_t b = 0; b < n / PI_BLOCK; b += GROUP)
        group_sums(x + (size_t)b * PI_BLOCK, least(GROUP, n / PI_BLOCK - b), room + b);
    return room;
}

/* The sums of n blocks from block number b on as the first 8 lanes. */
INLINE VF sums_at(struct input in, uint32_t b, uint32_t n)
{
    float made[GROUP];

    if (in.sums != NULL)
        return v_load8(in.sums + b);
    group_sums(in.x + (size_t)b * PI_BLOCK, n, made);
    return v_load8(made);
}

INLINE VF add_offsets(struct reader rd, const struct group *g, VF x_sums, VF sum)
{
    VF offset = v_load8(g->offset);

    return rd.offset > 0 ? v_fma(offset, x_sums, sum) : v_fnma(offset, x_sums, sum);
}

/* The scale of block i of a group, or of a half of it. */
INLINE VF scale_of(struct reader rd, const void *row, const struct group *g, uint32_t b, uint32_t i,
                   int half)
{
    if (rd.in_row)
        return v_half(((const struct pi_block_q8_0 *)row)[b + i].d);
    return v_set(g->scale[rd.halves ? 2 * i + (uint32_t)half : i]);
}

/* sum + scale * (q . x) of a block, whose half has a scale of its own, or not. */
INLINE VF add_block(struct reader rd, const VF *scale, const VF *q, const VF *x, VF sum)
{
    const int parts = rd.halves ? 2 : 1, nv = NV / parts;

#pragma GCC unroll 2
    for (int h = 0; h < parts; h++) {
        VF p = v_mul(q[h * nv], x[h * nv]);

#pragma GCC unroll 4
        for (int k = 1; k < nv; k++)
            p = v_fma(q[h * nv + k], x[h * nv + k], p);
        sum = v_fma(scale[h], p, sum);
    }
    return sum;
}

INLINE void widen_block(struct reader rd, const uint8_t *bytes, VF *q_out)
{
#pragma GCC unroll 4
    for (int k = 0; k < NV; k++)
        q_out[k] = rd.widen(bytes + k * W);
}

INLINE void dot_block(struct reader rd, int rows, const void *const *row, struct input in,
                      uint32_t n, float *out, struct ahead ahead)
{
    struct group g[ROWS];
    VF sum[ROWS];

#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        sum[r] = v_zero();
    for (uint32_t b = 0; b < n / PI_BLOCK; b += GROUP) {
        uint32_t nb = rd.super ? GROUP : least(GROUP, n / PI_BLOCK - b);

        if (!rd.in_row)
            rd.read(rows, row, b, nb, g);
        if (rd.offset != 0) {
            VF x_sums = sums_at(in, b, nb);

#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                sum[r] = add_offsets(rd, &g[r], x_sums, sum[r]);
        }
        for (uint32_t i = 0; i < nb; i++) {
            VF q[NV], x[NV];

            if (i % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int k = 0; k < NV; k++)
                x[k] = v_load(in.x + (size_t)(b + i) * PI_BLOCK + k * W);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                VF scale[2] = {scale_of(rd, row[r], &g[r], b, i, 0),
                               scale_of(rd, row[r], &g[r], b, i, 1)};

                widen_block(rd, bytes_of(rd, row[r], &g[r], b, i), q);
                sum[r] = add_block(rd, scale, q, x, sum[r]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        out[r] = v_sum(sum[r]);
}

/* The scales of a group times a. */
INLINE void scale_group(struct reader rd, struct group *g, float a)
{
    for (int i = 0; i < (rd.halves ? 2 : 1) * GROUP; i += 8)
        v_store8(g->scale + i, v_mul(v_set(a), v_load8(g->scale + i)));
}

/* scale * q + offset, rounded once; as exact as product and sum rounded apart, since the product is exact wherever there is an offset. */
INLINE VF with_offset(struct reader rd, VF scale, VF q, VF offset)
{
    return rd.offset > 0 ? v_fma(scale, q, offset) : v_fms(scale, q, offset);
}

/* With an offset the element itself is made first: y += a * (scale * q + offset). */
INLINE void axpy_block(struct reader rd, int rows, const void *const *row, const float *a,
                       uint32_t begin, uint32_t end, float *y, struct ahead ahead)
{
    const uint32_t last = end / PI_BLOCK;
    struct group g[ROWS];

    for (uint32_t b = begin / PI_BLOCK, next; b < last; b = next) {
        uint32_t first = rd.super ? b / GROUP * GROUP : b;

        next = least(first + GROUP, last);
        if (!rd.in_row)
            rd.read(rows, row, first, rd.super ? GROUP : next - first, g);
        for (int r = 0; rd.offset == 0 && !rd.in_row && r < rows; r++)
            scale_group(rd, &g[r], a[r]);
        for (; b < next; b++) {
            float *at = y + (size_t)b * PI_BLOCK;
            uint32_t i = b - first;
            VF yv[NV];

            if ((b - begin / PI_BLOCK) % (AHEAD / PI_BLOCK) == 0)
                look_ahead(&ahead);
#pragma GCC unroll 4
            for (int k = 0; k < NV; k++)
                yv[k] = v_load(at + k * W);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                VF q[NV];

                widen_block(rd, bytes_of(rd, row[r], &g[r], first, i), q);
#pragma GCC unroll 4
                for (int k = 0; k < NV; k++) {
                    VF s = scale_of(rd, row[r], &g[r], first, i, 2 * k / NV);

                    if (rd.in_row)
                        s = v_mul(v_set(a[r]), s);
                    if (rd.offset == 0)
                        yv[k] = v_fma(s, q[k], yv[k]);
                    else
                        yv[k] = v_fma(v_set(a[r]), with_offset(rd, s, q[k], v_set(g[r].offset[i])),
                                      yv[k]);
                }
            }
#pragma GCC unroll 4
            for (int k = 0; k < NV; k++)
                v_store(at + k * W, yv[k]);
        }
    }
}

/* Product and sum are rounded apart, as every reader of these formats does. */
INLINE void to_f32_block(struct reader rd, const void *row, float *out, uint32_t n)
{
    struct group g;

    for (uint32_t b = 0; b < n / PI_BLOCK; b += GROUP) {
        uint32_t nb = least(GROUP, n / PI_BLOCK - b);

        if (!rd.in_row)
            rd.read(1, &row, b, nb, &g);
        for (uint32_t i = 0; i < nb; i++, out += PI_BLOCK) {
            VF q[NV];

            widen_block(rd, bytes_of(rd, row, &g, b, i), q);
#pragma GCC unroll 4
            for (int k = 0; k < NV; k++) {
                VF w = v_mul(scale_of(rd, row, &g, b, i, 2 * k / NV), q[k]);

                if (rd.offset != 0)
                    w = rd.offset > 0 ? v_add(w, v_set(g.offset[i])) : v_sub(w, v_set(g.offset[i]));
                v_store(out + k * W, w);
            }
        }
    }
}

#endif
