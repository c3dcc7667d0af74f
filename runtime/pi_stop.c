#include "config.h"

#include "runtime/pi_stop.h"

#include <string.h>

/* Place of string in text, not before from; n_text: none. */
static size_t place(const char *text, size_t n_text, size_t from, const char *string, size_t n)
{
    const char *p = n_text - from < n ? NULL : memmem(text + from, n_text - from, string, n);

    return p == NULL ? n_text : (size_t)(p - text);
}

/* Bytes at the end of text that are the beginning of string. */
static size_t overlap(const char *text, size_t n_text, const char *string, size_t n)
{
    for (size_t k = n - 1 < n_text ? n - 1 : n_text; k > 0; k--)
        if (memcmp(text + n_text - k, string, k) == 0)
            return k;
    return 0;
}

size_t pi_stop_look(const struct pi_stop *s, const char *text, size_t n_text, size_t n_seen,
                    bool *found_out)
{
    size_t first = n_text, held = 0;

    for (size_t i = 0; i < s->n; i++) {
        const size_t n = strlen(s->strings[i]), from = n_seen > n - 1 ? n_seen - (n - 1) : 0,
                     at = place(text, n_text, from, s->strings[i], n),
                     k = overlap(text, n_text, s->strings[i], n);

        first = at < first ? at : first;
        held = k > held ? k : held;
    }
    *found_out = first < n_text;
    return *found_out ? first : n_text - held;
}
