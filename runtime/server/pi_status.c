#include "config.h"

#include "runtime/server/pi_status.h"

#include "common/pi_alloc.h"
#include "common/pi_progress.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_SECONDS 0.1

struct pi_status {
    struct pi_status_options opt;
    double began;
    double looked; /* the engine's thread alone */
    pthread_mutex_t lock;
    /* the copy, under lock */
    uint64_t steps;
    struct pi_layer_work *work; /* (n_layer) */
};

static const struct pi_shape *shape_of(const struct pi_status *s)
{
    return &s->opt.loaded->model.shape;
}

enum pi_code pi_status_create(const struct pi_status_options *opt, struct pi_status **out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_status *s = NULL;

    PI_ALLOC(s, 1, err);
    s->opt = *opt;
    s->began = pi_now();
    (void)pthread_mutex_init(&s->lock, NULL);
    PI_ALLOC(s->work, shape_of(s)->n_layer, err);
    *out = s;
    s = NULL;
out:
    pi_status_destroy(s);
    return rc;
}

void pi_status_destroy(struct pi_status *s)
{
    if (s == NULL)
        return;
    (void)pthread_mutex_destroy(&s->lock);
    free(s->work);
    free(s);
}

void pi_status_look(void *ctx)
{
    struct pi_status *s = ctx;
    const double now = pi_now();

    if (now - s->looked < LOOK_SECONDS)
        return;
    s->looked = now;
    (void)pthread_mutex_lock(&s->lock);
    s->steps = pi_engine_get_work(s->opt.loaded->engine, s->work);
    (void)pthread_mutex_unlock(&s->lock);
}

static json_t *share(double part, double whole)
{
    return whole > 0 ? json_real(part / whole) : json_null();
}

/* What unit 1 is, or NULL where there is none. */
static const char *hot_unit(const struct pi_loaded *l, char *to, size_t n)
{
    if (l->gpu >= 0) {
        (void)snprintf(to, n, "gpu:%d", l->gpu);
        return to;
    }
    return l->two_units ? "cpu" : NULL;
}

static json_t *layer_json(const struct pi_status *s, uint32_t layer)
{
    const struct pi_engine *e = s->opt.loaded->engine;
    const uint64_t *n = s->work[layer].neurons;
    const double all = (double)(n[0] + n[1]), most = (double)s->steps * (double)shape_of(s)->n_ff;

    return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o}", "mode",
                     pi_mode_name(pi_engine_layer_mode(e, layer)), "hot_neurons",
                     (json_int_t)pi_engine_neurons_on(e, layer, 1), "hot_active", (json_int_t)n[1],
                     "cold_active", (json_int_t)n[0], "hot_share", share((double)n[1], all),
                     "density", share(all, most));
}

/* Lock held. */
static json_t *layers_json(const struct pi_status *s)
{
    json_t *list = json_array();

    for (uint32_t l = 0; list != NULL && l < shape_of(s)->n_layer; l++) {
        if (json_array_append_new(list, layer_json(s, l)) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

json_t *pi_status_json(struct pi_status *s, const struct pi_calls_totals *t)
{
    const struct pi_loaded *l = s->opt.loaded;
    const struct pi_batcher_totals *b = &t->batch;
    const char *device = l->two_units ? "cpu+cpu" : "cpu", *unit;
    char name[32];
    json_t *layers;
    json_int_t steps;

    (void)pthread_mutex_lock(&s->lock);
    layers = layers_json(s);
    steps = (json_int_t)s->steps;
    (void)pthread_mutex_unlock(&s->lock);
    unit = hot_unit(l, name, sizeof(name));
    if (l->gpu >= 0)
        device = name;
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:f,"
                     " s:{s:I, s:I, s:I},"
                     " s:{s:I, s:I, s:f}, s:{s:I, s:I, s:f, s:o},"
                     " s:{s:s?, s:I, s:I, s:o}}",
                     "model", s->opt.model, "device", device, "mode", pi_mode_name(l->mode), "act",
                     pi_act_type_name(l->act), "chat_format", s->opt.format, "context",
                     (json_int_t)l->n_ctx, "uptime_seconds", pi_now() - s->began, "slots", "all",
                     (json_int_t)s->opt.n_slots, "active", (json_int_t)t->active, "waiting",
                     (json_int_t)t->waiting, "prompt", "tokens", (json_int_t)b->prompt_tokens,
                     "reused_tokens", (json_int_t)b->reused_tokens, "seconds", b->s_prompt,
                     "decode", "tokens", (json_int_t)b->drawn_tokens, "steps", (json_int_t)b->steps,
                     "seconds", b->s_decode, "tokens_per_second",
                     share((double)b->step_tokens, b->s_decode), "neurons", "hot_unit", unit,
                     "per_layer", (json_int_t)shape_of(s)->n_ff, "steps", steps, "layers", layers);
}

char *pi_status_metrics(const struct pi_calls_totals *t, const unsigned long long answers[6],
                        double uptime)
{
    return pi_asprintf(
        NULL,
        "# TYPE pi_requests_total counter\n"
        "pi_requests_total{status=\"2xx\"} %llu\npi_requests_total{status=\"4xx\"} %llu\n"
        "pi_requests_total{status=\"5xx\"} %llu\n"
        "# TYPE pi_choices_total counter\npi_choices_total %llu\n"
        "# TYPE pi_prompt_tokens_total counter\npi_prompt_tokens_total %llu\n"
        "# TYPE pi_reused_tokens_total counter\npi_reused_tokens_total %llu\n"
        "# TYPE pi_generated_tokens_total counter\npi_generated_tokens_total %llu\n"
        "# TYPE pi_decode_steps_total counter\npi_decode_steps_total %llu\n"
        "# TYPE pi_prompt_seconds_total counter\npi_prompt_seconds_total %.6f\n"
        "# TYPE pi_decode_seconds_total counter\npi_decode_seconds_total %.6f\n"
        "# TYPE pi_sequences_active gauge\npi_sequences_active %u\n"
        "# TYPE pi_sequences_waiting gauge\npi_sequences_waiting %u\n"
        "# TYPE pi_uptime_seconds gauge\npi_uptime_seconds %.3f\n",
        answers[2], answers[4], answers[5], (unsigned long long)t->choices,
        (unsigned long long)t->batch.prompt_tokens, (unsigned long long)t->batch.reused_tokens,
        (unsigned long long)t->batch.drawn_tokens, (unsigned long long)t->batch.steps,
        t->batch.s_prompt, t->batch.s_decode, (unsigned)t->active, (unsigned)t->waiting, uptime);
}
