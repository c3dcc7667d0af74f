/*
 * pi_cpu_q8_x86_far.h - rows walked over in streams that are far from each other, for the tables of AVX-512; included by pi_cpu_simd_q8.h alone.
 *
 * Intel's L2 prefetcher follows one stream in a page of 4 KB. Short rows beside each other are several in one page, which it loses: what is asked for ahead then
 * passes through the 16 line buffers of a core, about 10 GB/s. So each of the rows side by side goes through its own stretch of the rows, where it goes on as its
 * row ends: the prefetcher follows all of them into L2 without any request of the program's own, which would take line buffers from another thread of the core.
 * Measured on a quiet core of Sapphire Rapids, all rows out of memory, GB/s beside each other and far: one vector, 2048 columns, Q8_0 12.2 and 18.3, Q4_0 11.0 and
 * 18.0, Q4_K 11.2 and 17.4; 4096 columns 11.8 and 18.1, 11.1 and 18.2, 11.4 and 16.7; three vectors, 2048 columns, Q4_0 6.5 and 9.0, Q4_K 6.2 and 8.1; eight, Q8_0
 * 6.9 and 9.1, Q4_0 4.9 and 6.4. Where 16 hardware threads share what memory gives it is even: a feed-forward layer of 4096 columns, 15 threads, three runs, ms, one
 * vector Q8_0 11.1 to 11.9 and 10.2 to 11.3, Q4_0 7.0 to 7.3 and 6.8 to 7.6; eight vectors 23.8 to 24.5 and 23.9 to 24.2, 20.9 to 22.4 and 20.9 to 21.7.
 *
 * Lists too, one row in three of 2048 columns 1.15 to 1.2 times as fast, one in ten 0.98 to 1.04. With one vector their rows are asked for ahead, for which it was
 * 0.6 to 0.9: the next row of each stretch, whole, into L1 as all that these tables ask for ahead with one vector or two; into L2 it was the same (16 threads as
 * above, neurons predicted, three runs, ms, Q8_0 beside each other 2.2 to 2.5, far 2.2 to 2.5 by L2, 2.4 to 2.5 by L1; all rows 10.3 to 11.3 by L1).
 */
#ifndef PI_CPU_Q8_X86_FAR_H
#define PI_CPU_Q8_X86_FAR_H

/* As many of n_rows rows (number ids[i], or i where ids is NULL) as are in EIGHT stretches; how many they were. An odd number of rows in a stretch, so that
 * rows of a whole number of lines do not all begin at the same place in a page. */
INLINE uint32_t take_far(eight_rows_fn far, const void *base, size_t stride, const uint32_t *ids,
                         uint32_t n_rows, const struct pi_q8 *x, uint32_t n, size_t row_bytes,
                         float *out)
{
    const uint32_t each = n_rows < 2 * EIGHT ? 0 : (n_rows / EIGHT - 1) | 1;

    for (uint32_t i = 0; i < each; i++) {
        const uint32_t n_next = ids != NULL && i + 1 < each ? EIGHT : 0;
        const void *row[EIGHT];
        const char *next[EIGHT] = {NULL};
        float made[EIGHT];

        for (uint32_t r = 0; r < EIGHT; r++)
            row[r] = row_at(base, stride, ids != NULL ? ids[r * each + i] : r * each + i);
        for (uint32_t r = 0; r < n_next; r++)
            next[r] = row_at(base, stride, ids[r * each + i + 1]);
        far(row, x, n, made, ahead_one(next, n_next, 0, row_bytes, n));
        for (uint32_t r = 0; r < EIGHT; r++)
            out[r * each + i] = made[r];
    }
    return EIGHT * each;
}

#endif
