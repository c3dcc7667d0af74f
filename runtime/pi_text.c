#include "config.h"

#include "runtime/pi_text.h"

#include "common/pi_alloc.h"
#include "common/pi_tokenizer.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Bytes after a lead byte, and the range that the first of them must lie in (Unicode table 3-7); 0: no lead byte. */
static size_t lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    *hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    if (c >= 0xc2 && c <= 0xdf)
        return 1;
    if (c >= 0xe0 && c <= 0xef)
        return 2;
    if (c >= 0xf0 && c <= 0xf4)
        return 3;
    return 0;
}

/* The length of the character or of the maximal ill-formed part at s; ok says which. n >= 1. */
static size_t next_part(const unsigned char *s, size_t n, bool *ok)
{
    unsigned char lo, hi;
    const size_t more = lead(s[0], &lo, &hi);

    *ok = s[0] < 0x80;
    if (more == 0)
        return 1;
    for (size_t i = 1; i <= more; i++) {
        if (i >= n || s[i] < lo || s[i] > hi)
            return i;
        lo = 0x80;
        hi = 0xbf;
    }
    *ok = true;
    return 1 + more;
}

/* Moves the next n raw bytes to clean. */
static enum pi_code show(struct pi_text *t, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const unsigned char *s = (const unsigned char *)t->raw + t->n_shown;

    /* A byte grows to three at worst. */
    PI_TRY(pi_grow_array(&t->clean, &t->cap_clean, t->n_clean + 3 * n + 1, 1, err));
    for (size_t i = 0; i < n;) {
        bool ok;
        const size_t k = next_part(s + i, n - i, &ok);

        memcpy(t->clean + t->n_clean, ok ? (const char *)s + i : "\xef\xbf\xbd", ok ? k : 3);
        t->n_clean += ok ? k : 3;
        i += k;
    }
    t->clean[t->n_clean] = '\0';
    t->n_shown += n;
out:
    return rc;
}

enum pi_code pi_text_push(struct pi_text *t, const char *piece, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_grow_array(&t->raw, &t->cap, t->n + n + 1, 1, err));
    if (n > 0)
        memcpy(t->raw + t->n, piece, n);
    t->n += n;
    PI_TRY(show(t, pi_utf8_complete(t->raw + t->n_shown, t->n - t->n_shown), err));
out:
    return rc;
}

enum pi_code pi_text_finish(struct pi_text *t, struct pi_err *err)
{
    return show(t, t->n - t->n_shown, err);
}

void pi_text_free(struct pi_text *t)
{
    free(t->raw);
    free(t->clean);
    memset(t, 0, sizeof(*t));
}
