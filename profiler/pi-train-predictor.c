/* pi-train-predictor: trains, for each layer, a small network that predicts which neurons will fire. */
#include "config.h"

#include "profiler/pi_train_run.h"

#include <signal.h>

int main(int argc, char **argv)
{
    struct pi_train_run_options o;
    struct pi_err err = {0};
    enum pi_code rc;

    (void)signal(SIGPIPE, SIG_IGN); /* a reader that went away is an error with a message */
    rc = pi_train_options_parse(argc, argv, &o, &err);
    if (rc == PI_OK && !o.common.help && !o.common.version)
        rc = pi_train_run(&o, &err);
    return pi_program_end(&pi_train_program, &o.common, rc, &err);
}
