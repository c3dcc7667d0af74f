/* Requests of the server: what is refused, what is answered at once, and what waits for the engine. */
#include "config.h"

#include "runtime/server/pi_server_int.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"
#include "runtime/server/pi_call_int.h"
#include "runtime/server/pi_origin.h"
#include "runtime/server/pi_web.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define STREAM_BLOCK 16384
#define BODIES       16     /* largest requests that are kept at once, in bytes */
#define LARGE_BODY   65536u /* bytes that are read by the clerk: JSON of 4 MB may take a second */
#define LARGE_ANSWER (1u << 20) /* bytes of memory for an answer that the clerk writes */

/* One request on a connection. */
struct request {
    struct pi_server *s;
    struct MHD_Connection *connection;
    struct pi_watched *watched; /* the connection; or NULL */
    char *body;                 /* (n) */
    size_t n, cap;
    bool too_large, too_many, refused, takes_post, closes;
    bool counted; /* in the server's n_between */
    enum {
        READS,    /* the body is not there as a whole */
        PARSED,   /* rc, call, fault and err say how that went */
        WAITS,    /* for the call */
        ANSWERED, /* status and text are the answer */
    } at;
    struct pi_clerk_job job;
    enum pi_call_kind kind;
    enum pi_code rc;
    struct pi_api_fault fault;
    struct pi_err err;
    struct pi_call *call; /* or NULL */
    unsigned status;
    char *text; /* owned */
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
    if (r->closes)
        (void)MHD_add_response_header(m, MHD_HTTP_HEADER_CONNECTION, "close");
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

static json_t *model_json(const struct pi_server *s)
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

/* What takes long is the clerk's: the connection sleeps until that is done, and the HTTP thread is everybody's. */
static enum MHD_Result hand_over(struct request *r, void (*work)(void *ctx))
{
    r->job = (struct pi_clerk_job){.work = work, .ctx = r};
    MHD_suspend_connection(r->connection);
    pi_clerk_add(r->s->clerk, &r->job);
    return MHD_YES;
}

static void parse(struct request *r)
{
    r->rc = pi_api_parse(&r->s->api, r->kind, r->body != NULL ? r->body : "", r->n, &r->call,
                         &r->fault, &r->err);
    r->at = PARSED;
}

/* The end of the clerk's work. Thousands of small pieces of JSON were freed: the C library would keep their memory. */
static void give_back(struct request *r)
{
    (void)malloc_trim(0);
    MHD_resume_connection(r->connection);
}

static void parse_apart(void *ctx)
{
    parse(ctx);
    give_back(ctx);
}

static void write_answer(struct request *r)
{
    r->status = pi_call_answer(r->call, &r->text);
    r->at = ANSWERED;
}

static void write_apart(void *ctx)
{
    write_answer(ctx);
    give_back(ctx);
}

static void count(struct request *r, bool on)
{
    if (r->counted == on)
        return;
    r->counted = on;
    if (on)
        atomic_fetch_add(&r->s->n_between, 1);
    else
        atomic_fetch_sub(&r->s->n_between, 1);
}

static enum MHD_Result submit(struct request *r)
{
    enum pi_code rc = r->rc;

    drop_body(r);
    if (rc != PI_OK)
        return refuse(r, pi_status_of(rc) == 400 ? r->fault.status : pi_status_of(rc), r->err.msg,
                      r->fault.param, r->fault.code);
    rc = pi_calls_submit(r->s->calls, r->call, &r->err);
    if (rc != PI_OK)
        return refuse(r, pi_status_of(rc), r->err.msg, NULL, NULL);
    r->at = WAITS;
    count(r, false); /* the queue knows of it */
    pi_watch_waits(r->s->watch, r->watched, on_gone, r);
    if (r->call->spec.stream)
        return stream(r);
    (void)pi_call_wait(r->call, resume, suspend, r);
    return MHD_YES;
}

static enum MHD_Result finish(struct request *r)
{
    if (is_gone(r))
        return MHD_NO;
    if (!pi_call_wait(r->call, resume, suspend, r))
        return MHD_YES;
    if (r->call->most_bytes > LARGE_ANSWER) {
        count(r, true); /* the queue may be through with it before it is sent */
        pi_watch_waits(r->s->watch, r->watched, NULL,
                       NULL); /* nobody else takes the call's lock now */
        return hand_over(r, write_apart);
    }
    write_answer(r);
    return MHD_YES;
}

/* The whole body is there; again whenever something that was waited for has come. */
static enum MHD_Result post(struct request *r, const char *path)
{
    char *text;

    if (r->at == READS) {
        count(r, true);
        if (r->too_large)
            return refuse(r, 413, "the request is larger than this server takes", NULL, NULL);
        if (r->too_many)
            return refuse(r, 503, "too many large requests at once: try again later", NULL, NULL);
        r->kind = strcmp(path, "/v1/completions") == 0 ? PI_CALL_TEXT : PI_CALL_CHAT;
        if (r->n > LARGE_BODY)
            return hand_over(r, parse_apart);
        parse(r);
    }
    if (r->at == PARSED)
        return submit(r);
    if (r->at == WAITS && finish(r) == MHD_NO)
        return MHD_NO;
    if (r->at != ANSWERED)
        return MHD_YES;
    text = r->text;
    r->text = NULL;
    return reply(r, r->status, "application/json", text, true);
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

/* Headers that say where a message ends or whom it is for, which another program in between may read differently. */
static enum MHD_Result count_header(void *ctx, enum MHD_ValueKind kind, const char *key,
                                    const char *value)
{
    unsigned *n = ctx; /* (2) that say how long the body is; hosts */

    (void)kind;
    (void)value;
    n[0] += strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH) == 0 ||
            strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING) == 0;
    n[1] += strcasecmp(key, MHD_HTTP_HEADER_HOST) == 0;
    return MHD_YES;
}

static bool is_ambiguous(const struct request *r)
{
    unsigned n[2] = {0, 0};

    (void)MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_header, n);
    return n[0] > 1 || n[1] > 1;
}

/* What can be refused before a body is taken: true, and *done says how that went. */
static bool refuse_head(struct request *r, const char *method, const char *path,
                        enum MHD_Result *done)
{
    const char *key = r->s->o->api_key;

    r->takes_post = is_post_path(path);
    if (is_ambiguous(r)) {
        r->closes = true;
        *done =
            refuse(r, 400, "more than one Host, Content-Length or Transfer-Encoding", NULL, NULL);
        return true;
    }
    if (refuse_browser(r, done))
        return true;
    if (!r->takes_post && !is_get_path(path))
        *done = refuse(r, 404,
                       "no such path; completions are at /v1/completions and /v1/chat/completions",
                       NULL, NULL);
    else if (r->takes_post ? strcmp(method, "POST") != 0 : !is_get(method))
        *done = refuse(r, 405, r->takes_post ? "this path takes POST" : "this path takes GET", NULL,
                       NULL);
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

enum MHD_Result pi_http_request(void *ctx, struct MHD_Connection *connection, const char *path,
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

void pi_http_end(void *ctx, struct MHD_Connection *connection, void **state,
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
    count(r, false);
    drop_body(r);
    free(r->text);
    free(r);
    *state = NULL;
}

/* A connection begins or ends. */
void pi_http_connection(void *ctx, struct MHD_Connection *connection, void **context,
                        enum MHD_ConnectionNotificationCode what)
{
    const struct pi_server *s = ctx;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        *context = info != NULL ? pi_watch_open(s->watch, info->connect_fd) : NULL;
    } else {
        pi_watch_close(s->watch, *context);
        *context = NULL;
    }
}
