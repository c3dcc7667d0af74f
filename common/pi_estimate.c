#include "config.h"

#include "common/pi_estimate.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum pi_code pi_parse_bytes(const char *text, const char *option, uint64_t *out, struct pi_err *err)
{
    static const char units[] = "KMGT";
    const char *u = NULL;
    char *end = NULL;
    double v = isdigit((unsigned char)text[0]) ? strtod(text, &end) : -1.0;

    if (end != NULL && strspn(text, "0123456789.") == (size_t)(end - text) && *end != '\0' && end[1] == '\0')
        u = strchr(units, toupper((unsigned char)*end));
    if (u == NULL)
        return pi_err_set(err, PI_E_USAGE, "%s %s: needs a unit, as in 8G, 8192M or 500K", option, text);
    v *= (double)((uint64_t)1 << (10 * (u - units + 1)));
    if (!(v < 9.2e18))
        return pi_err_set(err, PI_E_RANGE, "%s %s: too large", option, text);
    *out = (uint64_t)v;
    return PI_OK;
}
