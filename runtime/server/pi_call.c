/* The answers of calls, in the shapes that OpenAI's API has. */
#include "config.h"

#include "common/pi_alloc.h"
#include "common/pi_size.h"
#include "runtime/server/pi_call_int.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

unsigned pi_status_of(enum pi_code code)
{
    switch (code) {
    case PI_OK:
        return 200;
    case PI_E_USAGE:
    case PI_E_RANGE:
        return 400;
    case PI_E_INFEASIBLE:
    case PI_E_INTERRUPTED:
        return 503;
    default:
        return 500;
    }
}

char *pi_error_json(unsigned status, const char *message, const char *param, const char *code)
{
    const char *type = status == 401   ? "authentication_error"
                       : status >= 500 ? "server_error"
                                       : "invalid_request_error";
    json_t *j = json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", message, "type", type,
                          "param", param, "code", code);
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;

    json_decref(j);
    return text;
}

/* ---- create, free --------------------------------------------------------------------------- */

static void free_choice(struct pi_choice *x)
{
    pi_text_free(&x->text);
    free(x->tokens);
    free(x->tops);
}

void pi_call_free(struct pi_call *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; c->choices != NULL && i < c->n_choices; i++)
        free_choice(&c->choices[i]);
    free(c->choices);
    for (size_t i = 0; c->spec.prompts != NULL && i < c->spec.n_prompts; i++)
        free(c->spec.prompts[i].ids);
    free((void *)(uintptr_t)c->spec.prompts);
    for (size_t i = 0; c->spec.stops != NULL && i < c->spec.n_stops; i++)
        free((void *)(uintptr_t)c->spec.stops[i]);
    free((void *)(uintptr_t)c->spec.stops);
    free((void *)(uintptr_t)c->spec.model);
    free(c->out);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

/* Of a token: what is kept of it, its text in JSON, and what JSON costs while it is made. */
#define TOKEN_BYTES   (sizeof(struct pi_choice_token) + 128)
#define LOGPROB_BYTES (sizeof(struct pi_top_token) + 512)

uint64_t pi_call_most_bytes(const struct pi_call_spec *spec, uint32_t n_ctx)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < spec->n_prompts; i++) {
        const uint64_t room = n_ctx > spec->prompts[i].n ? n_ctx - spec->prompts[i].n : 0,
                       tokens = spec->n_predict < room ? spec->n_predict : room,
                       each = TOKEN_BYTES +
                              (spec->logprobs ? (1 + (uint64_t)spec->n_top) * LOGPROB_BYTES : 0);
        uint64_t bytes = 0;

        if (!pi_size_mul(tokens, each, &bytes) || !pi_size_mul(bytes, spec->n, &bytes) ||
            !pi_size_add(sum, bytes, &sum))
            return UINT64_MAX;
    }
    return sum;
}

static enum pi_code copy_spec(struct pi_call *c, const struct pi_call_spec *s, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_tokens *prompts = NULL;
    char **stops = NULL;

    c->spec = *s;
    c->spec.prompts = NULL;
    c->spec.stops = NULL;
    c->spec.model = NULL;
    PI_ALLOC(prompts, s->n_prompts, err);
    c->spec.prompts = prompts;
    for (size_t i = 0; i < s->n_prompts; i++) {
        PI_ALLOC(prompts[i].ids, s->prompts[i].n, err);
        memcpy(prompts[i].ids, s->prompts[i].ids, s->prompts[i].n * sizeof(int32_t));
        prompts[i].n = s->prompts[i].n;
        c->n_prompt_tokens += s->prompts[i].n;
    }
    PI_ALLOC(stops, s->n_stops, err);
    c->spec.stops = (const char *const *)stops;
    for (size_t i = 0; i < s->n_stops; i++) {
        stops[i] = pi_strndup(s->stops[i], strlen(s->stops[i]), err);
        if (stops[i] == NULL)
            return PI_E_NOMEM;
    }
    c->spec.model = pi_strndup(s->model, strlen(s->model), err);
    if (c->spec.model == NULL)
        rc = PI_E_NOMEM;
out:
    return rc;
}

enum pi_code pi_call_create(const struct pi_call_spec *spec, const struct pi_tokenizer *tok,
                            struct pi_call **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_call *c = NULL;
    uint64_t id[2] = {0, 0};

    PI_ALLOC(c, 1, err);
    (void)pthread_mutex_init(&c->lock, NULL);
    c->tok = tok;
    c->refs = 1;
    c->status = 200;
    c->created = (long long)time(NULL);
    (void)getrandom(id, sizeof(id), GRND_NONBLOCK);
    (void)snprintf(c->id, sizeof(c->id), "%s-%08x%016llx",
                   spec->kind == PI_CALL_CHAT ? "chatcmpl" : "cmpl", (unsigned)id[0],
                   (unsigned long long)id[1]);
    PI_TRY(copy_spec(c, spec, err));
    PI_ALLOC(c->choices, spec->n_prompts * spec->n, err);
    c->n_choices = spec->n_prompts * spec->n;
    for (size_t i = 0; i < c->n_choices; i++) {
        struct pi_choice *x = &c->choices[i];

        x->call = c;
        x->index = (uint32_t)i;
        x->prompt = i / spec->n;
        x->seed = spec->sampler.seed + i % spec->n;
    }
    *out = c;
    c = NULL;
out:
    pi_call_free(c);
    return rc;
}

/* ---- pieces of JSON ------------------------------------------------------------------------- */

/* The bytes of a token as JSON has them: text, where they are UTF-8 (else with U+FFFD). */
static json_t *piece_text(const struct pi_call *c, int32_t token)
{
    const struct pi_str p = pi_tokenizer_piece(c->tok, token);
    struct pi_text t = {0};
    json_t *j = NULL;

    if (pi_text_push(&t, p.p, p.n, NULL) == PI_OK && pi_text_finish(&t, NULL) == PI_OK)
        j = json_stringn(t.clean != NULL ? t.clean : "", t.n_clean);
    pi_text_free(&t);
    return j;
}

static json_t *piece_bytes(const struct pi_call *c, int32_t token)
{
    const struct pi_str p = pi_tokenizer_piece(c->tok, token);
    json_t *a = json_array();

    for (size_t i = 0; i < p.n; i++)
        (void)json_array_append_new(a, json_integer((uint8_t)p.p[i]));
    return a;
}

static json_t *chat_token(const struct pi_call *c, int32_t token, float logprob)
{
    return json_pack("{s:o, s:f, s:o}", "token", piece_text(c, token), "logprob", (double)logprob,
                     "bytes", piece_bytes(c, token));
}

static json_t *chat_logprobs(const struct pi_choice *x, size_t from, size_t to)
{
    json_t *list = json_array();

    for (size_t i = from; i < to; i++) {
        const struct pi_choice_token *t = &x->tokens[i];
        json_t *j = chat_token(x->call, t->token, t->logprob), *top = json_array();

        for (uint32_t k = 0; k < t->n_top; k++) {
            const struct pi_top_token *o = &x->tops[t->first_top + k];

            (void)json_array_append_new(top, chat_token(x->call, o->token, o->logprob));
        }
        (void)json_object_set_new(j, "top_logprobs", top);
        (void)json_array_append_new(list, j);
    }
    return json_pack("{s:o}", "content", list);
}

/* Characters of the text that begin in a token: what text_offset counts. */
static size_t piece_characters(const struct pi_call *c, int32_t token)
{
    const struct pi_str p = pi_tokenizer_piece(c->tok, token);
    size_t n = 0;

    for (size_t i = 0; i < p.n; i++)
        n += ((unsigned char)p.p[i] & 0xc0) != 0x80;
    return n;
}

static void set_logprob(const struct pi_call *c, json_t *to, int32_t token, float logprob)
{
    json_t *name = piece_text(c, token);

    if (json_object_get(to, json_string_value(name)) == NULL)
        (void)json_object_set_new(to, json_string_value(name), json_real((double)logprob));
    json_decref(name);
}

/* The token that was drawn is always among the tops: up to one more than were asked for. */
static json_t *text_logprobs(const struct pi_choice *x, size_t from, size_t to)
{
    json_t *tokens = json_array(), *probs = json_array(), *tops = json_array(),
           *offsets = json_array();
    size_t offset = 0;

    for (size_t i = 0; i < from; i++)
        offset += piece_characters(x->call, x->tokens[i].token);
    for (size_t i = from; i < to; i++) {
        const struct pi_choice_token *t = &x->tokens[i];
        json_t *top = json_object();

        for (uint32_t k = 0; k < t->n_top; k++) {
            const struct pi_top_token *o = &x->tops[t->first_top + k];

            set_logprob(x->call, top, o->token, o->logprob);
        }
        set_logprob(x->call, top, t->token, t->logprob);
        (void)json_array_append_new(tokens, piece_text(x->call, t->token));
        (void)json_array_append_new(probs, json_real((double)t->logprob));
        (void)json_array_append_new(tops, top);
        (void)json_array_append_new(offsets, json_integer((json_int_t)offset));
        offset += piece_characters(x->call, t->token);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", probs,
                     "top_logprobs", tops, "text_offset", offsets);
}

static json_t *logprobs(const struct pi_choice *x, size_t from, size_t to)
{
    if (!x->call->spec.logprobs)
        return json_null();
    return x->call->spec.kind == PI_CALL_CHAT ? chat_logprobs(x, from, to)
                                              : text_logprobs(x, from, to);
}

static json_t *usage(const struct pi_call *c)
{
    return json_pack("{s:I, s:I, s:I}", "prompt_tokens", (json_int_t)c->n_prompt_tokens,
                     "completion_tokens", (json_int_t)c->n_drawn_tokens, "total_tokens",
                     (json_int_t)(c->n_prompt_tokens + c->n_drawn_tokens));
}

/* What every object of an answer begins with. */
static json_t *head(const struct pi_call *c, bool chunk)
{
    const char *object = c->spec.kind == PI_CALL_TEXT ? "text_completion"
                         : chunk                      ? "chat.completion.chunk"
                                                      : "chat.completion";

    return json_pack("{s:s, s:s, s:I, s:s}", "id", c->id, "object", object, "created",
                     (json_int_t)c->created, "model", c->spec.model);
}

/* ---- streams -------------------------------------------------------------------------------- */

static void fail(struct pi_call *c, enum pi_code code, const char *message)
{
    if (c->status == 200) {
        c->status = pi_status_of(code);
        (void)pi_err_set(&c->failure, code, "%s", message);
    }
}

static void append(struct pi_call *c, const char *bytes, size_t n)
{
    if (pi_grow_array(&c->out, &c->cap_out, c->n_out + n, 1, NULL) != PI_OK) {
        fail(c, PI_E_NOMEM, "no memory for the answer");
        return;
    }
    memcpy(c->out + c->n_out, bytes, n);
    c->n_out += n;
}

/* One event; takes j. */
static void send(struct pi_call *c, json_t *j)
{
    char *text = j != NULL ? json_dumps(j, JSON_COMPACT) : NULL;

    json_decref(j);
    if (text == NULL) {
        fail(c, PI_E_NOMEM, "no memory for the answer");
        return;
    }
    append(c, "data: ", 6);
    append(c, text, strlen(text));
    append(c, "\n\n", 2);
    free(text);
}

/* What came since the last event. */
static void send_delta(struct pi_choice *x)
{
    struct pi_call *c = x->call;
    json_t *j, *choice;
    const char *text = x->text.clean != NULL ? x->text.clean + x->n_sent : "";
    const size_t n = x->n_limit - x->n_sent;

    if (n == 0 && x->finish == NULL && (!c->spec.logprobs || x->n_tokens == x->n_tokens_sent))
        return;
    choice = json_pack("{s:i, s:o, s:s?}", "index", (int)x->index, "logprobs",
                       x->n_tokens > x->n_tokens_sent ? logprobs(x, x->n_tokens_sent, x->n_tokens)
                                                      : json_null(),
                       "finish_reason", x->finish);
    if (c->spec.kind == PI_CALL_TEXT)
        (void)json_object_set_new(choice, "text", json_stringn(text, n));
    else
        (void)json_object_set_new(
            choice, "delta",
            n > 0 || x->finish == NULL ? json_pack("{s:s%}", "content", text, n) : json_object());
    j = head(c, true);
    (void)json_object_set_new(j, "choices", json_pack("[o]", choice));
    if (c->spec.usage)
        (void)json_object_set_new(j, "usage", json_null());
    x->n_sent = x->n_limit;
    x->n_tokens_sent = x->n_tokens;
    send(c, j);
}

/* A chat's first event of a choice: who speaks. */
static void send_role(struct pi_choice *x)
{
    json_t *j = head(x->call, true);

    (void)json_object_set_new(j, "choices",
                              json_pack("[{s:i, s:{s:s, s:s}, s:n, s:n}]", "index", (int)x->index,
                                        "delta", "role", "assistant", "content", "", "logprobs",
                                        "finish_reason"));
    if (x->call->spec.usage)
        (void)json_object_set_new(j, "usage", json_null());
    send(x->call, j);
}

static void send_end(struct pi_call *c)
{
    if (c->status != 200) {
        char *text = pi_error_json(c->status, c->failure.msg, NULL, NULL);

        append(c, "data: ", 6);
        if (text != NULL)
            append(c, text, strlen(text));
        append(c, "\n\n", 2);
        free(text);
    } else if (c->spec.usage) {
        json_t *j = head(c, true);

        (void)json_object_set_new(j, "choices", json_array());
        (void)json_object_set_new(j, "usage", usage(c));
        send(c, j);
    }
    append(c, "data: [DONE]\n\n", 14);
}

/* ---- what the decode core tells ------------------------------------------------------------- */

static enum pi_code keep_token(struct pi_choice *x, const struct pi_drawn *d, struct pi_err *err)
{
    enum pi_code rc = PI_OK;

    PI_TRY(pi_grow_array(&x->tokens, &x->cap_tokens, x->n_tokens + 1, sizeof(*x->tokens), err));
    PI_TRY(pi_grow_array(&x->tops, &x->cap_tops, x->n_tops + d->n_top, sizeof(*x->tops), err));
    x->tokens[x->n_tokens++] = (struct pi_choice_token){.token = d->token,
                                                        .logprob = d->logprob,
                                                        .n_top = d->n_top,
                                                        .first_top = (uint32_t)x->n_tops};
    if (d->n_top > 0)
        memcpy(x->tops + x->n_tops, d->top, d->n_top * sizeof(*x->tops));
    x->n_tops += d->n_top;
out:
    return rc;
}

/* How much of the text may be told; true: a stop string ends it. */
static bool look(struct pi_choice *x)
{
    const struct pi_stop stop = {x->call->spec.stops, x->call->spec.n_stops};
    bool found = false;

    x->n_limit = pi_stop_look(&stop, x->text.clean != NULL ? x->text.clean : "", x->text.n_clean,
                              x->n_looked, &found);
    x->n_looked = x->text.n_clean;
    if (x->n_limit < x->n_sent)
        x->n_limit = x->n_sent;
    return found;
}

bool pi_choice_drawn(struct pi_choice *x, const struct pi_drawn *d)
{
    struct pi_call *c = x->call;
    const struct pi_str piece = pi_tokenizer_piece(c->tok, d->token);
    struct pi_err err = {0};

    if (c->dropped || c->status != 200)
        return false;
    c->n_drawn_tokens++;
    if (c->spec.stream && c->spec.kind == PI_CALL_CHAT && x->n_tokens == 0)
        send_role(x);
    if (keep_token(x, d, &err) != PI_OK ||
        pi_text_push(&x->text, piece.p, piece.n, &err) != PI_OK) {
        fail(c, err.code, err.msg);
        return false;
    }
    if (look(x)) {
        x->finish = "stop";
        return false;
    }
    if (c->spec.stream)
        send_delta(x);
    return true;
}

void pi_choice_ended(struct pi_choice *x, enum pi_finish finish, const struct pi_err *err)
{
    struct pi_call *c = x->call;

    if (finish == PI_FINISH_ERROR)
        fail(c, err->code, err->msg);
    if (x->finish == NULL) { /* no stop string: what was held back belongs to the text */
        if (pi_text_finish(&x->text, NULL) != PI_OK)
            fail(c, PI_E_NOMEM, "no memory for the answer");
        if (!look(x))
            x->n_limit = x->text.n_clean;
        x->finish = finish == PI_FINISH_EOS || finish == PI_FINISH_STOPPED ? "stop" : "length";
    }
    if (c->spec.stream && c->spec.kind == PI_CALL_CHAT && x->n_tokens == 0 && c->status == 200)
        send_role(x);
    if (c->spec.stream && c->status == 200)
        send_delta(x);
    c->n_ended++;
    if (c->spec.stream && c->n_ended == c->n_choices)
        send_end(c);
}

unsigned pi_call_answer(struct pi_call *c, char **body_out)
{
    json_t *j, *list = json_array();
    unsigned status;

    (void)pthread_mutex_lock(&c->lock);
    for (size_t i = 0; c->status == 200 && i < c->n_choices; i++) {
        const struct pi_choice *x = &c->choices[i];
        const char *text = x->text.clean != NULL ? x->text.clean : "";
        json_t *o = json_pack("{s:i, s:o, s:s}", "index", (int)x->index, "logprobs",
                              logprobs(x, 0, x->n_tokens), "finish_reason", x->finish);

        if (c->spec.kind == PI_CALL_TEXT)
            (void)json_object_set_new(o, "text", json_stringn(text, x->n_limit));
        else
            (void)json_object_set_new(
                o, "message",
                json_pack("{s:s, s:s%}", "role", "assistant", "content", text, x->n_limit));
        (void)json_array_append_new(list, o);
    }
    j = head(c, false);
    (void)json_object_set_new(j, "choices", list);
    (void)json_object_set_new(j, "usage", usage(c));
    *body_out = c->status == 200 ? json_dumps(j, JSON_COMPACT)
                                 : pi_error_json(c->status, c->failure.msg, NULL, NULL);
    status = *body_out != NULL ? c->status : 500;
    json_decref(j);
    (void)pthread_mutex_unlock(&c->lock);
    return status;
}
