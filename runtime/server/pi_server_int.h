/*
 * pi_server_int.h - a server as both of its files see it: pi_server.c starts and ends it, pi_http.c answers requests.
 */
#ifndef PI_SERVER_INT_H
#define PI_SERVER_INT_H

#include "runtime/server/pi_api.h"
#include "runtime/server/pi_calls.h"
#include "runtime/server/pi_clerk.h"
#include "runtime/server/pi_server.h"
#include "runtime/server/pi_status.h"
#include "runtime/server/pi_watch.h"

#include <microhttpd.h>
#include <stdatomic.h>
#include <stdint.h>

struct pi_server {
    const struct pi_run_options *o;
    struct pi_loaded *l;
    struct pi_api api;
    struct pi_calls *calls;
    struct pi_watch *watch;
    struct pi_clerk *clerk;
    struct pi_status *status;
    char *model;   /* its name; owned */
    char own[256]; /* this machine's name, or empty */
    double began;
    long long created;
    atomic_ullong answers[6]; /* by hundreds of the status */
    /* requests that are there as a whole, and neither waiting for the engine nor answered: they are read, or their large answers written */
    atomic_uint n_between;
    uint64_t body_bytes; /* of requests that are not parsed yet; the HTTP thread's alone */
};

/* What the HTTP library calls, on its thread; ctx: the server. */
enum MHD_Result pi_http_request(void *ctx, struct MHD_Connection *connection, const char *path,
                                const char *method, const char *version, const char *data,
                                size_t *n_data, void **state);
void pi_http_end(void *ctx, struct MHD_Connection *connection, void **state,
                 enum MHD_RequestTerminationCode why);
void pi_http_connection(void *ctx, struct MHD_Connection *connection, void **context,
                        enum MHD_ConnectionNotificationCode what);

#endif
