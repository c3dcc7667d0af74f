#include "config.h"

#include "runtime/server/pi_server_int.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define IDLE_SECONDS 60 /* a connection without progress */
#define READ_SECONDS \
    120.0 /* until a request is there as a whole, from the connection's beginning or its last answer */
#define CROWD_SECONDS  5.0 /* the same when most connections are taken */
#define CONNECTIONS    1000
#define GRACE_SECONDS  30.0
#define TELL_SECONDS   5.0
#define QUEUE_PER_SLOT 64

/* ---- life ----------------------------------------------------------------------------------- */

static enum pi_code run_batch(void *ctx, enum pi_phase phase, const struct pi_batch *b,
                              float *logits_out, struct pi_err *err)
{
    return pi_engine_run(ctx, phase, b, logits_out, err);
}

static bool interrupted(void *ctx)
{
    (void)ctx;
    return pi_interrupt_check(NULL) != PI_OK;
}

/* The file's name without folder and ".gguf". */
static char *model_name(const char *path, struct pi_err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    size_t n = strlen(name);

    if (n > 5 && strcmp(name + n - 5, ".gguf") == 0)
        n -= 5;
    return pi_strndup(name, n, err);
}

/* What the limit of open files leaves beside the model's and the program's own. */
static unsigned most_connections(void)
{
    struct rlimit files;

    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= CONNECTIONS + 200)
        return CONNECTIONS;
    return files.rlim_cur > 232 ? (unsigned)files.rlim_cur - 200 : 32;
}

static enum pi_code listen_on(struct pi_server *s, struct MHD_Daemon **out, uint16_t *port_out,
                              struct pi_err *err)
{
    const struct pi_run_options *o = s->o;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)o->port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)o->port)};
    const bool is_v6 = strchr(o->host, ':') != NULL;
    const void *address = is_v6 ? (const void *)&v6 : (const void *)&v4;
    const union MHD_DaemonInfo *info;

    if (inet_pton(is_v6 ? AF_INET6 : AF_INET, o->host,
                  is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1)
        return pi_err_set(err, PI_E_USAGE, "--host %s: expected an address such as 127.0.0.1",
                          o->host);
    errno = 0;
    *out = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_EPOLL |
                                MHD_ALLOW_SUSPEND_RESUME | (is_v6 ? MHD_USE_IPv6 : 0),
                            (uint16_t)o->port, NULL, NULL, pi_http_request, s, MHD_OPTION_SOCK_ADDR,
                            address, MHD_OPTION_NOTIFY_COMPLETED, pi_http_end, NULL,
                            MHD_OPTION_NOTIFY_CONNECTION, pi_http_connection, s,
                            MHD_OPTION_CONNECTION_LIMIT, most_connections(),
                            MHD_OPTION_CONNECTION_TIMEOUT, IDLE_SECONDS, MHD_OPTION_END);
    if (*out == NULL)
        return pi_err_set(err, PI_E_IO, "cannot listen on %s port %u%s%s", o->host,
                          (unsigned)o->port, errno != 0 ? ": " : "",
                          errno != 0 ? strerror(errno) : "");
    info = MHD_get_daemon_info(*out, MHD_DAEMON_INFO_BIND_PORT);
    *port_out = info != NULL ? info->port : (uint16_t)o->port;
    return PI_OK;
}

static enum pi_code set_up(struct pi_server *s, const struct pi_run_log *log,
                           struct pi_batcher **batcher, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    const struct pi_run_options *o = s->o;
    const struct pi_batcher_options bo = {.n_slots = o->n_parallel,
                                          .n_ctx = s->l->n_ctx,
                                          .n_vocab = s->l->model.shape.n_vocab,
                                          .run = run_batch,
                                          .run_ctx = s->l->engine};
    struct pi_calls_options co = {.n_ctx = s->l->n_ctx,
                                  .n_slots = o->n_parallel,
                                  .n_queue = o->n_parallel * QUEUE_PER_SLOT,
                                  .time_limit = o->time_limit};
    const struct pi_watch_options wo = {
        .most = most_connections(), .seconds = READ_SECONDS, .crowded_seconds = CROWD_SECONDS};
    struct pi_status_options so;
    bool known = true;

    if (gethostname(s->own, sizeof(s->own)) != 0 || memchr(s->own, 0, sizeof(s->own)) == NULL)
        s->own[0] = 0;
    s->model = model_name(o->model, err);
    if (s->model == NULL)
        return PI_E_NOMEM;
    s->api = (struct pi_api){.tok = s->l->tok,
                             .sampler = o->sampler,
                             .ignore_eos = o->ignore_eos,
                             .seed_given = o->seed_given,
                             .n_ctx = s->l->n_ctx,
                             .model = s->model};
    if (o->chat_template != NULL)
        PI_TRY(pi_chat_find(o->chat_template, &s->api.format, err));
    else
        s->api.format = pi_chat_detect(&s->l->model.file, &known);
    if (!known)
        pi_run_notice(log,
                      "the model names no chat format that is known: plain User: and Assistant: "
                      "(--chat-template names another)");
    so = (struct pi_status_options){.loaded = s->l,
                                    .model = s->model,
                                    .format = pi_chat_name(s->api.format),
                                    .n_slots = o->n_parallel};
    PI_TRY(pi_status_create(&so, &s->status, err));
    co.look = pi_status_look;
    co.look_ctx = s->status;
    PI_TRY(pi_batcher_create(&bo, s->l->tok, batcher, err));
    co.batcher = *batcher;
    PI_TRY(pi_calls_create(&co, &s->calls, err));
    PI_TRY(pi_watch_create(&wo, &s->watch, err));
    PI_TRY(pi_clerk_create(&s->clerk, err));
out:
    return rc;
}

/* Requests that were being read are refused by now, large answers are written; that is sent in a moment. */
static void tell(const struct pi_server *s)
{
    const struct timespec t = {.tv_nsec = 10000000};
    const double until = pi_now() + TELL_SECONDS;

    while (atomic_load(&s->n_between) > 0 && pi_now() < until)
        (void)nanosleep(&t, NULL);
}

enum pi_code pi_serve(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_server s = {.o = o, .l = l, .began = pi_now(), .created = (long long)time(NULL)};
    struct pi_batcher *batcher = NULL;
    struct MHD_Daemon *daemon = NULL;
    uint16_t port = 0;

    PI_TRY(set_up(&s, log, &batcher, err));
    PI_TRY(listen_on(&s, &daemon, &port, err));
    pi_run_notice(log, "%s: listening on http://%s%s%s:%u", s.model,
                  strchr(o->host, ':') != NULL ? "[" : "", o->host,
                  strchr(o->host, ':') != NULL ? "]" : "", (unsigned)port);
    rc = pi_calls_work(s.calls, interrupted, NULL, GRACE_SECONDS, err);
    if (rc == PI_OK)
        pi_run_notice(log, "going down");
out:
    pi_clerk_close(s.clerk); /* connections that sleep must be woken before the HTTP library ends */
    tell(&s);
    if (daemon != NULL)
        MHD_stop_daemon(daemon);
    pi_batcher_destroy(batcher);
    pi_watch_destroy(s.watch);
    pi_clerk_destroy(s.clerk);
    pi_calls_destroy(s.calls);
    pi_status_destroy(s.status);
    free(s.model);
    return rc;
}
