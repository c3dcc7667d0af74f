/* pi-profile: counts how often each neuron of a model fires, and keeps samples to train predictors on. */
#include "config.h"

#include "profiler/pi_profile_run.h"

#include <signal.h>

int main(int argc, char **argv)
{
    struct pi_profile_options o;
    struct pi_err err = {0};
    enum pi_code rc;

    (void)signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error with a message */
    rc = pi_profile_options_parse(argc, argv, &o, &err);
    if (rc == PI_OK && !o.common.help && !o.common.version)
        rc = pi_profile_run(&o, &err);
    return pi_program_end(&pi_profile_program, &o.common, rc, &err);
}
