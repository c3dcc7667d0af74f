#include "config.h"

#include "common/pi_utf8.h"

#include "common/pi_tokenizer.h"

#include <stdint.h>

/* What the first byte says of a character (Unicode, table 3-7): its length and the range of its second byte. */
struct lead {
    unsigned len; /* 0: no character starts so */
    uint8_t lo, hi;
};

static struct lead read_lead(uint8_t b)
{
    if (b < 0x80)
        return (struct lead){1, 0, 0};
    if (b >= 0xc2 && b <= 0xdf)
        return (struct lead){2, 0x80, 0xbf};
    if (b >= 0xe0 && b <= 0xef)
        return (struct lead){3, b == 0xe0 ? 0xa0 : 0x80, b == 0xed ? 0x9f : 0xbf};
    if (b >= 0xf0 && b <= 0xf4)
        return (struct lead){4, b == 0xf0 ? 0x90 : 0x80, b == 0xf4 ? 0x8f : 0xbf};
    return (struct lead){0, 0, 0};
}

/* Whether the n >= 1 bytes at s, fewer than a whole character, are a good beginning of one. */
static bool good_so_far(const uint8_t *s, size_t n, struct lead lead)
{
    if (n > 1 && (s[1] < lead.lo || s[1] > lead.hi))
        return false;
    for (size_t i = 2; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return false;
    return true;
}

unsigned pi_utf8_part(const char *s, size_t n, bool *ok)
{
    const uint8_t *b = (const uint8_t *)s;
    struct lead lead = read_lead(b[0]);
    unsigned k = 1;

    while (k < lead.len && k < n && good_so_far(b, k + 1, lead))
        k++;
    *ok = k == lead.len;
    return k;
}

unsigned pi_utf8_char(const char *s, size_t n)
{
    bool ok;
    unsigned len = pi_utf8_part(s, n, &ok);

    return ok ? len : 0;
}

size_t pi_utf8_complete(const char *s, size_t n)
{
    const uint8_t *b = (const uint8_t *)s;

    for (size_t k = 1; k <= 3 && k <= n; k++) {
        struct lead lead = read_lead(b[n - k]);

        if (lead.len > k && good_so_far(b + n - k, k, lead))
            return n - k;
        if ((b[n - k] & 0xc0) != 0x80)
            break;
    }
    return n;
}
