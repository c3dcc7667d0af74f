#include "config.h"

#include "convert/pi_dump.h"

enum pi_code pi_dump(const char *path, bool full, FILE *out, struct pi_err *err)
{
    (void)full;
    (void)out;
    return pi_err_set(err, PI_E_UNSUPPORTED, "%s: --dump is not built yet", path);
}
