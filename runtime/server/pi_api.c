#include "config.h"

#include "runtime/server/pi_api.h"

#include "common/pi_alloc.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A request while it is read. */
struct reader {
    const struct pi_api *api;
    const json_t *root;
    struct pi_call_spec spec;
    struct pi_tokens *prompts; /* owned until the call has copied them, as are: */
    size_t cap_prompts;
    const char *stops[PI_API_MAX_STOPS + 1]; /* borrowed from root */
    uint32_t best_of;
    struct pi_api_fault *fault;
    struct pi_err *err;
};

static enum pi_code refuse(struct reader *r, const char *param, const char *what)
{
    r->fault->param = param;
    return pi_err_set(r->err, PI_E_USAGE, "%s: %s", param, what);
}

/* A member that is there and not null. */
static const json_t *get(const struct reader *r, const char *key)
{
    const json_t *v = json_object_get(r->root, key);

    return json_is_null(v) ? NULL : v;
}

static enum pi_code number(struct reader *r, const char *key, double min, double max, float *to)
{
    const json_t *v = get(r, key);

    if (v == NULL)
        return PI_OK;
    if (!json_is_number(v) || !(json_number_value(v) >= min && json_number_value(v) <= max)) {
        r->fault->param = key;
        return pi_err_set(r->err, PI_E_USAGE, "%s: expected a number from %g to %g", key, min, max);
    }
    *to = (float)json_number_value(v);
    return PI_OK;
}

static enum pi_code whole(struct reader *r, const char *key, json_int_t min, json_int_t max,
                          uint32_t *to)
{
    const json_t *v = get(r, key);

    if (v == NULL)
        return PI_OK;
    if (!json_is_integer(v) || json_integer_value(v) < min || json_integer_value(v) > max) {
        r->fault->param = key;
        return pi_err_set(r->err, PI_E_USAGE, "%s: expected a whole number from %lld to %lld", key,
                          (long long)min, (long long)max);
    }
    *to = (uint32_t)json_integer_value(v);
    return PI_OK;
}

static enum pi_code flag(struct reader *r, const char *key, bool *to)
{
    const json_t *v = get(r, key);

    if (v == NULL)
        return PI_OK;
    if (!json_is_boolean(v))
        return refuse(r, key, "expected true or false");
    *to = json_is_true(v);
    return PI_OK;
}

/* What is not implemented must not be asked for: these are refused unless they are as if they were not there. */
static enum pi_code refuse_unknown(struct reader *r, enum pi_call_kind kind)
{
    static const char *const zero[] = {"presence_penalty", "frequency_penalty"};
    static const char *const empty[] = {"logit_bias", "tools", "functions", "suffix", "audio"};
    const json_t *v, *type;

    for (size_t i = 0; i < sizeof(zero) / sizeof(zero[0]); i++) {
        v = get(r, zero[i]);
        if (v != NULL && !(json_is_number(v) && json_number_value(v) == 0.0))
            return refuse(r, zero[i], "not supported (use repeat_penalty)");
    }
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        v = get(r, empty[i]);
        if (v != NULL && !(json_is_object(v) && json_object_size(v) == 0) &&
            !(json_is_array(v) && json_array_size(v) == 0))
            return refuse(r, empty[i], "not supported");
    }
    v = get(r, "echo");
    if (kind == PI_CALL_TEXT && v != NULL && !json_is_false(v))
        return refuse(r, "echo", "not supported");
    v = get(r, "modalities");
    if (v != NULL && !(json_array_size(v) == 1 && json_is_string(json_array_get(v, 0)) &&
                       strcmp(json_string_value(json_array_get(v, 0)), "text") == 0))
        return refuse(r, "modalities", "only [\"text\"] is supported");
    v = get(r, "response_format");
    type = json_object_get(v, "type");
    if (v != NULL && !(json_is_string(type) && strcmp(json_string_value(type), "text") == 0))
        return refuse(r, "response_format", "only {\"type\":\"text\"} is supported");
    return PI_OK;
}

static enum pi_code read_model(struct reader *r)
{
    const json_t *v = get(r, "model");

    if (v == NULL)
        return PI_OK; /* there is only one */
    if (!json_is_string(v))
        return refuse(r, "model", "expected a string");
    if (strcmp(json_string_value(v), r->api->model) != 0) {
        r->fault->status = 404;
        r->fault->code = "model_not_found";
        r->fault->param = "model";
        return pi_err_set(r->err, PI_E_USAGE,
                          "the model '%.100s' does not exist: this server has '%s'",
                          json_string_value(v), r->api->model);
    }
    return PI_OK;
}

static enum pi_code read_stops(struct reader *r)
{
    const json_t *v = get(r, "stop");
    const size_t n = v == NULL ? 0 : json_is_array(v) ? json_array_size(v) : 1;

    if (n > PI_API_MAX_STOPS) {
        r->fault->param = "stop";
        return pi_err_set(r->err, PI_E_USAGE, "stop: %zu strings, the limit is %u", n,
                          PI_API_MAX_STOPS);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;

        if (!json_is_string(s) || json_string_length(s) == 0 ||
            strlen(json_string_value(s)) != json_string_length(s))
            return refuse(r, "stop",
                          "expected a string or an array of strings, none of them empty");
        if (json_string_length(s) > PI_API_MAX_STOP) {
            r->fault->param = "stop";
            return pi_err_set(r->err, PI_E_USAGE, "stop: a string of %zu bytes, the limit is %u",
                              json_string_length(s), PI_API_MAX_STOP);
        }
        r->stops[r->spec.n_stops++] = json_string_value(s);
    }
    return PI_OK;
}

static enum pi_code read_seed(struct reader *r)
{
    const json_t *v = get(r, "seed");
    uint64_t seed = 0;

    if (v == NULL && r->api->seed_given)
        return PI_OK;
    if (v == NULL) {
        if (getrandom(&seed, sizeof(seed), GRND_NONBLOCK) == (ssize_t)sizeof(seed))
            r->spec.sampler.seed = seed & 0xffffffff;
        return PI_OK;
    }
    if (!json_is_integer(v))
        return refuse(r, "seed", "expected a whole number of 64 bits");
    r->spec.sampler.seed = (uint64_t)json_integer_value(v);
    return PI_OK;
}

static enum pi_code read_sampler(struct reader *r)
{
    enum pi_code rc = PI_OK;
    struct pi_sampler_options *s = &r->spec.sampler;

    PI_TRY(number(r, "temperature", 0, 100, &s->temp));
    PI_TRY(number(r, "top_p", 0, 1, &s->top_p));
    PI_TRY(number(r, "min_p", 0, 1, &s->min_p));
    PI_TRY(number(r, "repeat_penalty", 0.1, 10, &s->repeat_penalty));
    PI_TRY(whole(r, "top_k", 0, UINT32_MAX, &s->top_k));
    PI_TRY(whole(r, "repeat_last_n", 0, UINT32_MAX, &s->repeat_last_n));
    PI_TRY(flag(r, "ignore_eos", &r->spec.ignore_eos));
    PI_TRY(read_seed(r));
out:
    return rc;
}

static enum pi_code read_length(struct reader *r)
{
    enum pi_code rc = PI_OK;

    r->spec.n_predict = r->spec.kind == PI_CALL_TEXT ? 16 : UINT32_MAX; /* OpenAI's defaults */
    r->spec.soft = r->spec.kind == PI_CALL_TEXT && get(r, "max_tokens") == NULL;
    PI_TRY(whole(r, "max_tokens", 0, INT32_MAX, &r->spec.n_predict));
    if (r->spec.kind == PI_CALL_CHAT)
        PI_TRY(whole(r, "max_completion_tokens", 0, INT32_MAX, &r->spec.n_predict));
    r->spec.n = 1;
    PI_TRY(whole(r, "n", 1, PI_API_MAX_CHOICES, &r->spec.n));
    r->best_of = r->spec.n;
    PI_TRY(whole(r, "best_of", 1, PI_API_MAX_CHOICES, &r->best_of));
    if (r->best_of != r->spec.n)
        rc = refuse(r, "best_of", "not supported, unless it is n");
out:
    return rc;
}

static enum pi_code read_stream(struct reader *r)
{
    enum pi_code rc = PI_OK;
    const json_t *v = get(r, "stream_options");

    PI_TRY(flag(r, "stream", &r->spec.stream));
    if (v == NULL)
        goto out;
    if (!json_is_object(v) || !r->spec.stream)
        return refuse(r, "stream_options", "an object that goes with \"stream\": true");
    v = json_object_get(v, "include_usage");
    if (v != NULL && !json_is_null(v) && !json_is_boolean(v))
        return refuse(r, "stream_options", "include_usage: expected true or false");
    r->spec.usage = json_is_true(v);
out:
    return rc;
}

static enum pi_code read_logprobs(struct reader *r)
{
    enum pi_code rc = PI_OK;

    if (r->spec.kind == PI_CALL_TEXT) {
        const json_t *v = get(r, "logprobs");

        if (json_is_false(v))
            return PI_OK;
        r->spec.logprobs = v != NULL;
        PI_TRY(whole(r, "logprobs", 0, PI_MAX_TOP, &r->spec.n_top));
        goto out;
    }
    PI_TRY(flag(r, "logprobs", &r->spec.logprobs));
    PI_TRY(whole(r, "top_logprobs", 0, PI_MAX_TOP, &r->spec.n_top));
    if (r->spec.n_top > 0 && !r->spec.logprobs)
        rc = refuse(r, "top_logprobs", "goes with \"logprobs\": true");
out:
    return rc;
}

/* ---- prompts -------------------------------------------------------------------------------- */

static enum pi_code new_prompt(struct reader *r, struct pi_tokens **out)
{
    enum pi_code rc = PI_OK;

    if (r->spec.n_prompts >= PI_API_MAX_CHOICES)
        return refuse(r, "prompt", "more prompts than a request may have");
    PI_TRY(pi_grow_array(&r->prompts, &r->cap_prompts, r->spec.n_prompts + 1, sizeof(*r->prompts),
                         r->err));
    *out = &r->prompts[r->spec.n_prompts++];
    **out = (struct pi_tokens){.n = 0};
out:
    return rc;
}

static enum pi_code prompt_of_text(struct reader *r, const json_t *v)
{
    enum pi_code rc = PI_OK;
    struct pi_tokens *t = NULL;

    PI_TRY(new_prompt(r, &t));
    PI_TRY(pi_tokenizer_encode(r->api->tok, json_string_value(v), json_string_length(v),
                               pi_tokenizer_add_bos(r->api->tok), false, t, r->err));
out:
    return rc;
}

static enum pi_code prompt_of_tokens(struct reader *r, const json_t *list)
{
    enum pi_code rc = PI_OK;
    struct pi_tokens *t = NULL;

    PI_TRY(new_prompt(r, &t));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= pi_tokenizer_n_vocab(r->api->tok))
            return refuse(r, "prompt", "a token that the model does not have");
        PI_TRY(pi_tokens_push(t, (int32_t)json_integer_value(v), r->err));
    }
out:
    return rc;
}

/* A text, tokens, or an array of either. */
static enum pi_code read_prompt(struct reader *r)
{
    enum pi_code rc = PI_OK;
    const json_t *v = get(r, "prompt"), *e;
    size_t i;

    if (json_is_string(v))
        return prompt_of_text(r, v);
    if (!json_is_array(v) || json_array_size(v) == 0)
        return refuse(r, "prompt", "expected a string, an array of strings or tokens");
    if (json_is_integer(json_array_get(v, 0)))
        return prompt_of_tokens(r, v);
    json_array_foreach(v, i, e)
    {
        if (json_is_string(e))
            PI_TRY(prompt_of_text(r, e));
        else if (json_is_array(e))
            PI_TRY(prompt_of_tokens(r, e));
        else
            return refuse(r, "prompt", "expected a string, an array of strings or tokens");
    }
out:
    return rc;
}

/* The text of a message: a string, or parts of type text, which are joined; the caller's to free(). */
static enum pi_code content(struct reader *r, const json_t *v, char **out, size_t *n_out)
{
    size_t n = 0, i;
    const json_t *e;
    char *text;

    if (json_is_string(v)) {
        *n_out = json_string_length(v);
        *out = pi_strndup(json_string_value(v), *n_out, r->err);
        return *out != NULL ? PI_OK : PI_E_NOMEM;
    }
    if (!json_is_array(v))
        return refuse(r, "messages", "content: expected a string or an array of parts");
    json_array_foreach(v, i, e)
    {
        const json_t *type = json_object_get(e, "type");

        if (!json_is_string(type) || strcmp(json_string_value(type), "text") != 0 ||
            !json_is_string(json_object_get(e, "text")))
            return refuse(r, "messages", "content: only parts of type text are supported");
        n += json_string_length(json_object_get(e, "text"));
    }
    text = pi_calloc_array(n + 1, 1, r->err);
    if (text == NULL)
        return PI_E_NOMEM;
    n = 0;
    json_array_foreach(v, i, e)
    {
        const json_t *t = json_object_get(e, "text");

        memcpy(text + n, json_string_value(t), json_string_length(t));
        n += json_string_length(t);
    }
    *out = text;
    *n_out = n;
    return PI_OK;
}

static enum pi_code read_message(struct reader *r, const json_t *v, struct pi_message *m)
{
    static const struct {
        const char *name;
        enum pi_role role;
    } roles[] = {{"system", PI_ROLE_SYSTEM},
                 {"developer", PI_ROLE_SYSTEM},
                 {"user", PI_ROLE_USER},
                 {"assistant", PI_ROLE_ASSISTANT}};
    const char *name = json_string_value(json_object_get(v, "role"));
    size_t i = 0;
    char *text = NULL;
    enum pi_code rc;

    while (i < sizeof(roles) / sizeof(roles[0]) &&
           (name == NULL || strcmp(name, roles[i].name) != 0))
        i++;
    if (i == sizeof(roles) / sizeof(roles[0]))
        return refuse(r, "messages", "role: expected system, developer, user or assistant");
    m->role = roles[i].role;
    rc = content(r, json_object_get(v, "content"), &text, &m->n);
    m->text = text;
    return rc;
}

static enum pi_code read_messages(struct reader *r)
{
    enum pi_code rc = PI_OK;
    const json_t *list = get(r, "messages");
    const size_t n = json_array_size(list);
    struct pi_message *m = NULL;
    struct pi_tokens *t = NULL;

    if (!json_is_array(list) || n == 0)
        return refuse(r, "messages", "expected an array of messages, one at least");
    PI_ALLOC(m, n, r->err);
    for (size_t i = 0; i < n; i++)
        PI_TRY(read_message(r, json_array_get(list, i), &m[i]));
    PI_TRY(new_prompt(r, &t));
    rc = pi_chat_encode(r->api->format, r->api->tok, m, n, t, r->err);
    if (rc == PI_E_USAGE)
        r->fault->param = "messages";
    if (rc == PI_OK && pi_chat_stop(r->api->format) != NULL)
        r->stops[r->spec.n_stops++] = pi_chat_stop(r->api->format);
out:
    for (size_t i = 0; m != NULL && i < n; i++)
        free((void *)(uintptr_t)m[i].text);
    free(m);
    return rc;
}

static enum pi_code check_room(struct reader *r)
{
    for (size_t i = 0; i < r->spec.n_prompts; i++) {
        const size_t n = r->prompts[i].n;

        if (n == 0)
            return refuse(r, "prompt", "no tokens");
        if (n > r->api->n_ctx || (!r->spec.soft && r->spec.n_predict != UINT32_MAX &&
                                  r->spec.n_predict > r->api->n_ctx - n)) {
            r->fault->code = "context_length_exceeded";
            r->fault->param = r->spec.kind == PI_CALL_CHAT ? "messages" : "prompt";
            return pi_err_set(r->err, PI_E_RANGE,
                              "this model's context is %u tokens; the prompt has %zu%s",
                              (unsigned)r->api->n_ctx, n,
                              n > r->api->n_ctx ? "" : ", and max_tokens does not fit behind it");
        }
    }
    return PI_OK;
}

/* The answer is kept until its client has taken it. */
static enum pi_code check_answer(struct reader *r)
{
    const uint64_t most = pi_call_most_bytes(&r->spec, r->api->n_ctx);

    if (most <= PI_API_MAX_ANSWER)
        return PI_OK;
    r->fault->param = r->spec.n_top > 0
                          ? (r->spec.kind == PI_CALL_CHAT ? "top_logprobs" : "logprobs")
                          : "max_tokens";
    return pi_err_set(
        r->err, PI_E_RANGE,
        "the answer may need %.0f MB of memory, the limit is %.0f MB: choices times max_tokens times log probabilities",
        1e-6 * (double)most, 1e-6 * (double)PI_API_MAX_ANSWER);
}

enum pi_code pi_api_parse(const struct pi_api *api, enum pi_call_kind kind, const char *body,
                          size_t n, struct pi_call **out, struct pi_api_fault *fault,
                          struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    json_error_t where;
    json_t *root = json_loadb(body, n, JSON_REJECT_DUPLICATES, &where);
    struct reader r = {.api = api, .root = root, .fault = fault, .err = err};

    *fault = (struct pi_api_fault){.status = 400};
    r.spec = (struct pi_call_spec){.kind = kind,
                                   .sampler = api->sampler,
                                   .ignore_eos = api->ignore_eos,
                                   .model = api->model,
                                   .stops = r.stops};
    if (!json_is_object(root))
        PI_FAIL(err, PI_E_USAGE, "the body is no JSON object%s%s", root == NULL ? ": " : "",
                root == NULL ? where.text : "");
    PI_TRY(read_model(&r));
    PI_TRY(refuse_unknown(&r, kind));
    PI_TRY(read_length(&r));
    PI_TRY(read_sampler(&r));
    PI_TRY(read_stops(&r));
    PI_TRY(read_stream(&r));
    PI_TRY(read_logprobs(&r));
    PI_TRY(kind == PI_CALL_TEXT ? read_prompt(&r) : read_messages(&r));
    PI_TRY(check_room(&r));
    if (r.spec.n_prompts * r.spec.n > PI_API_MAX_CHOICES)
        PI_FAIL(err, PI_E_USAGE, "n: %zu choices in all, at most %u are made at once",
                r.spec.n_prompts * r.spec.n, PI_API_MAX_CHOICES);
    r.spec.prompts = r.prompts;
    PI_TRY(check_answer(&r));
    PI_TRY(pi_call_create(&r.spec, api->tok, out, err));
out:
    for (size_t i = 0; r.prompts != NULL && i < r.spec.n_prompts; i++)
        pi_tokens_free(&r.prompts[i]);
    free(r.prompts);
    json_decref(root);
    return rc;
}
