#include "config.h"

#include "convert/pi_selfcheck.h"

enum pi_code pi_selfcheck_hf(const struct pi_selfcheck *k, const struct pi_hf_config *c,
                             const struct pi_source *src, struct pi_err *err)
{
    (void)k;
    (void)c;
    (void)src;
    (void)err;
    return PI_OK;
}

enum pi_code pi_selfcheck_gguf(const struct pi_selfcheck *k, const char *source,
                               const char *act_override, struct pi_err *err)
{
    (void)k;
    (void)source;
    (void)act_override;
    (void)err;
    return PI_OK;
}
