#include "config.h"

#include "runtime/server/pi_server.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/server/pi_api.h"
#include "runtime/server/pi_call_int.h"
#include "runtime/server/pi_origin.h"
#include "runtime/server/pi_status.h"
#include "runtime/server/pi_watch.h"
#include "runtime/server/pi_web.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define STREAM_BLOCK 16384
#define IDLE_SECONDS 60 /* a connection without progress */
#define READ_SECONDS \
    120.0 /* until a request is there as a whole, from the connection's beginning or its last answer */
#define CROWD_SECONDS  5.0 /* the same when most connections are taken */
#define CONNECTIONS    1000
#define GRACE_SECONDS  30.0
#define QUEUE_PER_SLOT 64
#define BODIES         16 /* largest requests that are kept at once, in bytes */

struct server {
    const struct pi_run_options *o;
    struct pi_loaded *l;
    struct pi_api api;
    struct pi_calls *calls;
    struct pi_watch *watch;
    struct pi_status *status;
    char *model;   /* its name; owned */
    char own[256]; /* this machine's name, or empty */
    double began;
    long long created;
    atomic_ullong answers[6]; /* by hundreds of the status */
    uint64_t body_bytes;      /* of requests that are not parsed yet; the HTTP thread's alone */
};

/* One request on a connection. */
struct request {
    struct server *s;
    struct MHD_Connection *connection;
    struct pi_watched *watched; /* the connection; or NULL */
    char *body;                 /* (n) */
    size_t n, cap;
    bool too_large, too_many, refused, takes_post;
    struct pi_call *call; /* or NULL */
};

/* ---- answers -------------------------------------------------------------------------------- */

static enum MHD_Result reply(struct request *r, unsigned status, const char *type, char *text,
                             bool owned)
{
    struct MHD_Response *m;
    enum MHD_Result ok;

    if (text == NULL) {
        static char none[] =
            "{\"error\":{\"message\":\"no memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";

        text = none;
        owned = false;
        status = 500;
    }
    m = MHD_create_response_from_buffer(strlen(text), text,
                                        owned ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (m == NULL) {
        if (owned)
            free(text);
        return MHD_NO;
    }
    (void)MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (status == 401)
        (void)MHD_add_response_header(m, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (status == 405)
        (void)MHD_add_response_header(m, MHD_HTTP_HEADER_ALLOW,
                                      r->takes_post ? "POST" : "GET, HEAD");
    if (status == 503)
        (void)MHD_add_response_header(m, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    atomic_fetch_add_explicit(&r->s->answers[status / 100 % 6], 1, memory_order_relaxed);
    ok = MHD_queue_response(r->connection, status, m);
    MHD_destroy_response(m);
    return ok;
}

static enum MHD_Result reply_json(struct request *r, unsigned status, json_t *j)
{
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;

    json_decref(j);
    return reply(r, status, "application/json", text, true);
}

static enum MHD_Result refuse(struct request *r, unsigned status, const char *message,
                              const char *param, const char *code)
{
    return reply(r, status, "application/json", pi_error_json(status, message, param, code), true);
}

/* ---- GET ------------------------------------------------------------------------------------ */

static json_t *model_json(const struct server *s)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "id", s->model, "object", "model", "created",
                     (json_int_t)s->created, "owned_by", "local");
}

static enum MHD_Result get_models(struct request *r, const char *path)
{
    const char *name = path + strlen("/v1/models");

    if (*name == '\0')
        return reply_json(r, 200,
                          json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(r->s)));
    if (*name == '/' && strcmp(name + 1, r->s->model) == 0)
        return reply_json(r, 200, model_json(r->s));
    return refuse(r, 404, "no such model", "model", "model_not_found");
}

static enum MHD_Result get_metrics(struct request *r)
{
    struct pi_calls_totals t;
    unsigned long long answers[6];

    pi_calls_get_totals(r->s->calls, &t);
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
        answers[i] = atomic_load_explicit(&r->s->answers[i], memory_order_relaxed);
    return reply(r, 200, "text/plain; version=0.0.4",
                 pi_status_metrics(&t, answers, pi_now() - r->s->began), true);
}

static enum MHD_Result get_status(struct request *r)
{
    struct pi_calls_totals t;

    pi_calls_get_totals(r->s->calls, &t);
    return reply_json(r, 200, pi_status_json(r->s->status, &t));
}

static enum MHD_Result get_page(struct request *r, const struct pi_web_file *f)
{
    struct MHD_Response *m =
        MHD_create_response_from_buffer(*f->size, (void *)(uintptr_t)f->data, /* is only read */
                                        MHD_RESPMEM_PERSISTENT);
    enum MHD_Result ok;

    if (m == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, f->type);
    for (const struct pi_web_header *h = pi_web_headers; h->name != NULL; h++)
        (void)MHD_add_response_header(m, h->name, h->value);
    atomic_fetch_add_explicit(&r->s->answers[2], 1, memory_order_relaxed);
    ok = MHD_queue_response(r->connection, 200, m);
    MHD_destroy_response(m);
    return ok;
}

/* ---- POST ----------------------------------------------------------------------------------- */

static void resume(void *ctx)
{
    struct request *r = ctx;

    MHD_resume_connection(r->connection);
}

static void suspend(void *ctx)
{
    struct request *r = ctx;

    MHD_suspend_connection(r->connection);
}

/* The other end closed its socket: nobody waits for the answer. */
static bool is_gone(const struct request *r)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    return info != NULL && pi_watch_is_gone(info->connect_fd);
}

/* Called by the watch while the other end is gone: lets the HTTP thread see it. */
static void on_gone(void *ctx)
{
    const struct request *r = ctx;

    pi_call_poke(r->call);
}

static ssize_t read_stream(void *ctx, uint64_t pos, char *to, size_t max)
{
    struct request *r = ctx;
    bool done = false;
    size_t n;

    (void)pos;
    if (is_gone(r))
        return MHD_CONTENT_READER_END_WITH_ERROR;
    n = pi_call_read(r->call, to, max, &done, resume, suspend, r);
    return done ? MHD_CONTENT_READER_END_OF_STREAM : (ssize_t)n;
}

static enum MHD_Result stream(struct request *r)
{
    struct MHD_Response *m =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, r, NULL);
    enum MHD_Result ok;

    if (m == NULL)
        return MHD_NO;
    (void)MHD_add_response_header(m, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream");
    (void)MHD_add_response_header(m, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
    atomic_fetch_add_explicit(&r->s->answers[2], 1, memory_order_relaxed);
    ok = MHD_queue_response(r->connection, 200, m);
    MHD_destroy_response(m);
    return ok;
}

static void drop_body(struct request *r)
{
    r->s->body_bytes -= r->n;
    free(r->body);
    r->body = NULL;
    r->n = r->cap = 0;
}

static enum MHD_Result submit(struct request *r, enum pi_call_kind kind)
{
    struct pi_api_fault fault;
    struct pi_err err = {0};
    enum pi_code rc = pi_api_parse(&r->s->api, kind, r->body != NULL ? r->body : "", r->n, &r->call,
                                   &fault, &err);
    bool streams;

    drop_body(r);
    if (rc != PI_OK)
        return refuse(r, pi_status_of(rc) == 400 ? fault.status : pi_status_of(rc), err.msg,
                      fault.param, fault.code);
    streams = r->call->spec.stream;
    rc = pi_calls_submit(r->s->calls, r->call, &err);
    if (rc != PI_OK)
        return refuse(r, pi_status_of(rc), err.msg, NULL, NULL);
    pi_watch_waits(r->s->watch, r->watched, on_gone, r);
    if (streams)
        return stream(r);
    (void)pi_call_wait(r->call, resume, suspend, r);
    return MHD_YES;
}

/* The whole body is there; again when a call that was waited for is at its end. */
static enum MHD_Result post(struct request *r, const char *path)
{
    if (r->call != NULL) {
        char *body = NULL;
        unsigned status;

        if (is_gone(r))
            return MHD_NO;
        if (!pi_call_wait(r->call, resume, suspend, r))
            return MHD_YES;
        status = pi_call_answer(r->call, &body);
        return reply(r, status, "application/json", body, true);
    }
    if (r->too_large)
        return refuse(r, 413, "the request is larger than this server takes", NULL, NULL);
    if (r->too_many)
        return refuse(r, 503, "too many large requests at once: try again later", NULL, NULL);
    return submit(r, strcmp(path, "/v1/completions") == 0 ? PI_CALL_TEXT : PI_CALL_CHAT);
}

/* ---- requests ------------------------------------------------------------------------------- */

/* Compares all of what was given, so that the time tells nothing of the key but its length. */
static bool is_key(const char *key, const char *given)
{
    static const char bearer[] = "Bearer ";
    const size_t n = strlen(key);
    unsigned char differ = 0;

    if (given == NULL || strncmp(given, bearer, strlen(bearer)) != 0)
        return false;
    given += strlen(bearer);
    if (strlen(given) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)(key[i] ^ given[i]);
    return differ == 0;
}

static bool is_post_path(const char *path)
{
    return strcmp(path, "/v1/completions") == 0 || strcmp(path, "/v1/chat/completions") == 0;
}

static bool is_get_path(const char *path)
{
    return strcmp(path, "/v1/models") == 0 || strncmp(path, "/v1/models/", 11) == 0 ||
           strcmp(path, "/metrics") == 0 || strcmp(path, "/health") == 0 ||
           strcmp(path, "/status") == 0 || pi_web_find(path) != NULL;
}

/* Needs no key: the page asks for it. */
static bool is_open_path(const char *path)
{
    return strcmp(path, "/health") == 0 || pi_web_find(path) != NULL;
}

static bool is_get(const char *method)
{
    return strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
}

static const char *header_of(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

/* Without a key, a browser may only come from this server's own page (pi_origin.h); *done as below. */
static bool refuse_browser(struct request *r, enum MHD_Result *done)
{
    const char *host = header_of(r, MHD_HTTP_HEADER_HOST),
               *origin = header_of(r, MHD_HTTP_HEADER_ORIGIN);

    if (r->s->o->api_key != NULL)
        return false;
    if (!pi_host_is_ours(host, r->s->own))
        *done = refuse(r, 403,
                       "a server without --api-key is not asked by this name: use its address, "
                       "or localhost",
                       NULL, "host_not_allowed");
    else if (!pi_origin_is_host(origin, host))
        *done = refuse(r, 403, "a server without --api-key takes nothing from other sites' pages",
                       NULL, "origin_not_allowed");
    else
        return false;
    return true;
}

/* What can be refused before a body is taken: true, and *done says how that went. */
static bool refuse_head(struct request *r, const char *method, const char *path,
                        enum MHD_Result *done)
{
    const char *key = r->s->o->api_key;

    r->takes_post = is_post_path(path);
    if (refuse_browser(r, done))
        return true;
    if (!r->takes_post && !is_get_path(path))
        *done = refuse(r, 404, "no such path", NULL, NULL);
    else if (r->takes_post ? strcmp(method, "POST") != 0 : !is_get(method))
        *done = refuse(r, 405, "not with this method", NULL, NULL);
    else if (key != NULL && !is_open_path(path) &&
             !is_key(key, header_of(r, MHD_HTTP_HEADER_AUTHORIZATION)))
        *done = refuse(r, 401, "no or a wrong API key", NULL, "invalid_api_key");
    else
        return false;
    return true;
}

static enum MHD_Result answer(struct request *r, const char *method, const char *path)
{
    static char health[] = "{\"status\":\"ok\"}";
    const struct pi_web_file *page = pi_web_find(path);

    if (strcmp(path, "/health") == 0)
        return reply(r, 200, "application/json", health, false);
    if (strcmp(path, "/metrics") == 0)
        return get_metrics(r);
    if (strcmp(path, "/status") == 0)
        return get_status(r);
    if (page != NULL)
        return get_page(r, page);
    return is_get(method) ? get_models(r, path) : post(r, path);
}

static void keep_body(struct request *r, const char *data, size_t n)
{
    r->too_large |= n > r->s->o->max_request - r->n;
    r->too_many |= n > BODIES * r->s->o->max_request - r->s->body_bytes;
    if (r->too_large || r->too_many ||
        pi_grow_array(&r->body, &r->cap, r->n + n, 1, NULL) != PI_OK) {
        r->too_many |= !r->too_large;
        drop_body(r);
        return;
    }
    memcpy(r->body + r->n, data, n);
    r->n += n;
    r->s->body_bytes += n;
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **state)
{
    struct request *r = *state;
    enum MHD_Result done = MHD_YES;
    const union MHD_ConnectionInfo *info;

    (void)version;
    if (r == NULL) { /* the header is there */
        r = pi_calloc_array(1, sizeof(*r), NULL);
        if (r == NULL)
            return MHD_NO;
        r->s = ctx;
        r->connection = connection;
        info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
        r->watched = info != NULL ? info->socket_context : NULL;
        *state = r;
        r->refused = refuse_head(r, method, path, &done);
        return done;
    }
    if (*n_data > 0) {
        if (!r->refused)
            keep_body(r, data, *n_data);
        *n_data = 0;
        return MHD_YES;
    }
    if (r->call == NULL)
        pi_watch_waits(r->s->watch, r->watched, NULL, NULL);
    return r->refused ? MHD_YES : answer(r, method, path);
}

static void on_end(void *ctx, struct MHD_Connection *connection, void **state,
                   enum MHD_RequestTerminationCode why)
{
    struct request *r = *state;

    (void)ctx;
    (void)connection;
    (void)why;
    if (r == NULL)
        return;
    pi_watch_reads(r->s->watch, r->watched);
    if (r->call != NULL)
        pi_call_drop(r->s->calls, r->call);
    drop_body(r);
    free(r);
    *state = NULL;
}

/* A connection begins or ends. */
static void on_connection(void *ctx, struct MHD_Connection *connection, void **context,
                          enum MHD_ConnectionNotificationCode what)
{
    const struct server *s = ctx;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = info != NULL ? pi_watch_open(s->watch, info->connect_fd) : NULL;
    } else {
        pi_watch_close(s->watch, *context);
        *context = NULL;
    }
}

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

static enum pi_code listen_on(struct server *s, struct MHD_Daemon **out, uint16_t *port_out,
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
                            (uint16_t)o->port, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR,
                            address, MHD_OPTION_NOTIFY_COMPLETED, on_end, NULL,
                            MHD_OPTION_NOTIFY_CONNECTION, on_connection, s,
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

static enum pi_code set_up(struct server *s, const struct pi_run_log *log,
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
out:
    return rc;
}

enum pi_code pi_serve(const struct pi_run_options *o, const struct pi_run_log *log,
                      struct pi_loaded *l, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct server s = {.o = o, .l = l, .began = pi_now(), .created = (long long)time(NULL)};
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
    if (daemon != NULL)
        MHD_stop_daemon(daemon);
    pi_batcher_destroy(batcher);
    pi_watch_destroy(s.watch);
    pi_calls_destroy(s.calls);
    pi_status_destroy(s.status);
    free(s.model);
    return rc;
}
