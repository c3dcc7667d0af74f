/* Runs a fuzz target without a fuzzer: over its seeds, all their cuts, and some thousand mutants; or over files.
 *   t_fuzz_x             TAP, for make check
 *   t_fuzz_x FILE...     replays crash files
 *   t_fuzz_x --seeds DIR writes the seeds there */
#include "config.h"

#include "common/pi_file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/scratch.h"
#include "tests/tap.h"

enum {
    CAP = 1 << 16,
    MUTANTS = 3000,
    MAX_FILE = 1 << 26
};

static uint64_t rng = 88172645463325252u;

/* xorshift64: the same mutants in every run. */
static uint64_t next_random(void)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return rng;
}

/* Changes a few places the way files go wrong: a bit, a byte, a count of 2^k - 1, a copied run. */
static size_t mutate(uint8_t *p, size_t n)
{
    for (unsigned k = 1 + next_random() % 4; k > 0 && n > 16; k--) {
        size_t at = next_random() % (n - 8), from = next_random() % (n - 8);

        switch (next_random() % 5) {
        case 0:
            p[at] ^= (uint8_t)(1 << next_random() % 8);
            break;
        case 1:
            p[at] = (uint8_t)next_random();
            break;
        case 2: {
            uint64_t v = (1ull << next_random() % 64) - 1 + next_random() % 3;

            memcpy(p + at, &v, next_random() % 2 ? 4 : 8);
            break;
        }
        case 3:
            memmove(p + at, p + from, 8);
            break;
        default:
            n -= next_random() % (n / 4 + 1);
        }
    }
    return n;
}

/* From a block of exactly the input's size, so that a sanitizer sees one byte too far. */
static void run(const uint8_t *p, size_t n)
{
    uint8_t *copy = malloc(n + (n == 0));

    memcpy(copy, p, n);
    (void)LLVMFuzzerTestOneInput(copy, n);
    free(copy);
}

static void replay_seed(unsigned i, const uint8_t *seed, size_t n)
{
    uint8_t *p = malloc(n);
    unsigned long before = pi_fuzz_accepted;

    run(seed, n);
    if (!OK(pi_fuzz_accepted == before + 1))
        printf("# seed %u is refused\n", i);
    for (size_t cut = 0; cut < n; cut += 1 + n / 400)
        run(seed, cut);
    for (int m = 0; m < MUTANTS; m++) {
        memcpy(p, seed, n);
        run(p, mutate(p, n));
    }
    printf("# seed %u: %zu bytes, %lu of its variants accepted\n", i, n,
           pi_fuzz_accepted - before - 1);
    free(p);
}

int main(int argc, char **argv)
{
    static uint8_t buf[CAP];
    bool write_seeds = argc == 3 && strcmp(argv[1], "--seeds") == 0;
    struct pi_err e = {0};
    size_t n;

    for (int i = 1; i < argc && !write_seeds; i++) {
        char *p = NULL;

        if (pi_file_read_all(argv[i], false, MAX_FILE, &p, &n, &e) != PI_OK) {
            fprintf(stderr, "%s\n", e.msg);
            return 7;
        }
        run((const uint8_t *)p, n);
        free(p);
    }
    if (argc > 1 && !write_seeds)
        return 0;
    for (unsigned i = 0; (n = pi_fuzz_seed(i, buf, CAP)) > 0; i++) {
        if (write_seeds) {
            char name[32], *path;

            (void)snprintf(name, sizeof(name), "seed-%u", i);
            path = scratch_path(argv[2], name);
            scratch_write(path, buf, n);
            free(path);
        } else {
            replay_seed(i, buf, n);
        }
    }
    return write_seeds ? 0 : DONE();
}
