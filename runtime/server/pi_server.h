/*
 * pi_server.h - pi-run --serve: an HTTP server with an OpenAI-compatible API, on libmicrohttpd.
 *
 *   GET  /v1/models, /v1/models/NAME     POST /v1/completions, /v1/chat/completions
 *   GET  /health, /status                GET  /metrics (Prometheus text), / (a page for people: pi_web.h)
 *
 * One thread of the library speaks HTTP with all clients, without ever waiting for one; the calling thread owns the engine (pi_calls.h).
 */
#ifndef PI_SERVER_H
#define PI_SERVER_H

#include "runtime/pi_load.h"
#include "runtime/pi_run_options.h"

/* Serves until SIGINT or SIGTERM; then what is being decoded may end for 30 s (or until a second signal). PI_E_IO: the address is taken or none of ours; errors
 * of the engine; PI_E_UNSUPPORTED in a build without libmicrohttpd. */
enum pi_code pi_serve(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, struct pi_err *err) PI_MUST_CHECK;

#endif
