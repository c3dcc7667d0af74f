/* Builds without libmicrohttpd. */
#include "config.h"

#include "runtime/server/pi_server.h"

enum pi_code pi_serve(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, struct pi_err *err)
{
    (void)o;
    (void)log;
    (void)l;
    return pi_err_set(err, PI_E_UNSUPPORTED,
                      "--serve: this build has no HTTP server (libmicrohttpd was missing)");
}
