/* pi_bandwidth.h: every word is read once, whatever the length; both measurements come back with what memory can do. */
#include "config.h"

#include "common/pi_bandwidth.h"

#include "tests/tap.h"

#include <stdlib.h>

#define ROW    ((size_t)8192)
#define LENGTH (40 * ROW + 64)

int main(void)
{
    static const size_t at[] = {0,
                                8,
                                56,
                                64,
                                ROW - 8,
                                ROW,
                                ROW + 8,
                                7 * ROW,
                                8 * ROW - 64,
                                8 * ROW,
                                9 * ROW,
                                16 * ROW,
                                17 * ROW + 72,
                                39 * ROW + 4096,
                                40 * ROW,
                                LENGTH};
    struct pi_err e = {0};
    struct pi_pool *pool = NULL;
    uint64_t *words = malloc(LENGTH), sum = 0;
    double read = 0.0, gather = 0.0;
    size_t n = 0;

    if (words == NULL)
        return 1;
    for (size_t i = 0; i < LENGTH / 8; i++)
        words[i] = (i + 1) * 0x9e3779b97f4a7c15u;
    for (size_t k = 0; k < sizeof(at) / sizeof(at[0]); k++) {
        for (; n < at[k] / 8; n++)
            sum += words[n];
        OK(pi_bandwidth_read(words, at[k]) == sum);
        OK(at[k] < 8 || pi_bandwidth_read(words + 1, at[k] - 8) == sum - words[0]);
    }
    PASSES(pi_pool_create(2, &pool, &e), e);
    PASSES(pi_bandwidth_measure(pool, 0.01, &read, &e), e);
    PASSES(pi_bandwidth_gather(pool, 0.01, &gather, &e), e);
    OK(read > 1e7 && read < 1e13);
    OK(gather > 1e7 && gather < 1e13);
    pi_pool_destroy(pool);
    free(words);
    return DONE();
}
