#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_FROM ((size_t)4 << 20) /* bytes of a block that are worth it: two huge pages where they have 2 MiB */

/* Counts allocations for PI_TEST_ALLOC_FAIL; nothing else reads it. */
static bool injected_failure(void)
{
    static atomic_long n_done;
    const char *s = getenv("PI_TEST_ALLOC_FAIL");

    return s != NULL && atomic_fetch_add(&n_done, 1) + 1 == atol(s);
}

void pi_advise_huge(const void *p, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)p;
    const uintptr_t from = (begin + page - 1) / page * page, to = (begin + bytes) / page * page;

    if (bytes >= HUGE_FROM && from < to)
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
}

void *pi_calloc_array(size_t n, size_t size, struct pi_err *err)
{
    uint64_t bytes = 0;
    void *p = NULL;

    if (pi_size_mul(n, size, &bytes) && !injected_failure())
        p = calloc(1, bytes > 0 ? bytes : 1);
    if (p == NULL)
        (void)pi_err_set(err, PI_E_NOMEM, "cannot allocate %zu x %zu bytes", n, size);
    else
        pi_advise_huge(p, bytes);
    return p;
}

void *pi_calloc_aligned(size_t n, size_t size, struct pi_err *err)
{
    uint64_t bytes = 0;
    void *p = NULL;

    if (pi_size_mul(n, size, &bytes) && pi_size_pad(bytes + (bytes == 0), 64, &bytes) &&
        !injected_failure())
        p = aligned_alloc(64, bytes);
    if (p == NULL) {
        (void)pi_err_set(err, PI_E_NOMEM, "cannot allocate %zu x %zu bytes", n, size);
        return NULL;
    }
    pi_advise_huge(p, bytes);
    return memset(p, 0, bytes);
}

enum pi_code pi_grow_array(void *p, size_t *cap, size_t want, size_t size, struct pi_err *err)
{
    size_t n = *cap;
    uint64_t bytes = 0;
    void *old, *grown = NULL;

    if (want <= n)
        return PI_OK;
    n = n > SIZE_MAX / 2 || 2 * n < want ? want : 2 * n;
    memcpy(&old, p, sizeof(old));
    if (pi_size_mul(n, size, &bytes) && !injected_failure())
        grown = realloc(old, bytes > 0 ? bytes : 1);
    if (grown == NULL)
        return pi_err_set(err, PI_E_NOMEM, "cannot allocate %zu x %zu bytes", n, size);
    memset((char *)grown + *cap * size, 0, (n - *cap) * size);
    memcpy(p, &grown, sizeof(grown));
    *cap = n;
    return PI_OK;
}

char *pi_strndup(const char *s, size_t n, struct pi_err *err)
{
    char *copy = n < SIZE_MAX ? pi_calloc_array(n + 1, 1, err) : NULL;

    if (copy != NULL)
        memcpy(copy, s, n);
    return copy;
}

char *pi_asprintf(struct pi_err *err, const char *fmt, ...)
{
    va_list ap;
    char *s = NULL;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n >= 0)
        s = pi_calloc_array((size_t)n + 1, 1, err);
    if (s == NULL)
        return NULL;
    va_start(ap, fmt);
    (void)vsnprintf(s, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return s;
}
