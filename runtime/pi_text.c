#include "config.h"

#include "runtime/pi_text.h"

#include "common/pi_alloc.h"
#include "common/pi_tokenizer.h"
#include "common/pi_utf8.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Moves the next n raw bytes to clean. */
static enum pi_code show(struct pi_text *t, size_t n, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const char *s = t->raw + t->n_shown;

    /* A byte grows to three at worst. */
    PI_TRY(pi_grow_array(&t->clean, &t->cap_clean, t->n_clean + 3 * n + 1, 1, err));
    for (size_t i = 0; i < n;) {
        bool ok;
        const size_t k = pi_utf8_part(s + i, n - i, &ok);

        memcpy(t->clean + t->n_clean, ok ? s + i : "\xef\xbf\xbd", ok ? k : 3);
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
