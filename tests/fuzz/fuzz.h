/*
 * fuzz.h - what a fuzz target offers, to libFuzzer and to the replay program of "make check".
 *
 * To fuzz (Debian: clang and libclang-rt-14-dev, or the version of your clang):
 *   ./configure --without-cuda --enable-fuzzers CC=clang \
 *       CFLAGS='-g -O1 -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined'
 *   make && make check TESTS= && mkdir corpus && ./tests/t_fuzz_gguf --seeds corpus
 *   ./tests/fuzz/fuzz_gguf -max_total_time=60 corpus
 * CFLAGS instrument the libraries too: without that the fuzzer sees only the target's own branches.
 */
#ifndef PI_TEST_FUZZ_H
#define PI_TEST_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Writes seed i into buf (cap bytes) and returns its size; 0 when there is none of that number. */
size_t pi_fuzz_seed(unsigned i, uint8_t *buf, size_t cap);

/* Inputs that the target's reader accepted, so that a replay can tell that its seeds reach it. */
extern unsigned long pi_fuzz_accepted;

/* A broken promise of the code under test. */
#define FUZZ_CHECK(c) ((c) ? (void)0 : __builtin_trap())

#endif
