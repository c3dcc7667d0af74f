/*
 * pi_converse.h - pi-run --chat: a conversation on the terminal, or driven through a pipe.
 *
 * Each turn goes through the decode core as the whole conversation, of which only what is new is fed. Answers go to standard output, everything else to standard
 * error. Where the context is full the oldest questions and answers are forgotten, with a notice, also in the middle of an answer.
 */
#ifndef PI_CONVERSE_H
#define PI_CONVERSE_H

#include "runtime/pi_load.h"
#include "runtime/pi_run_options.h"

/* Talks until the input ends or /quit. What cannot be done (a file that is no session, a message that is too long) is told, and the conversation goes on.
 * PI_E_USAGE: no such --chat-template; PI_E_INTERRUPTED: SIGTERM, or SIGINT where nobody sits at a terminal; PI_E_IO of standard input or output; errors of the engine. */
enum pi_code pi_converse(const struct pi_run_options *o, const struct pi_run_log *log,
                         struct pi_loaded *l, struct pi_err *err) PI_MUST_CHECK;

#endif
