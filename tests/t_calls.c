/* Calls of the server's API while the engine is busy with a round: those that are dropped leave the queue at once. */
#include "config.h"

#include "runtime/server/pi_calls.h"
#include "tests/tap.h"

#include <pthread.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool entered, released;
static struct pi_calls *q;
static struct pi_err failure;

/* A round that lasts until it is released, and then fails. */
static enum pi_code run(void *ctx, enum pi_phase phase, const struct pi_batch *b, float *logits,
                        struct pi_err *err)
{
    (void)ctx;
    (void)phase;
    (void)b;
    (void)logits;
    (void)pthread_mutex_lock(&lock);
    entered = true;
    (void)pthread_cond_broadcast(&changed);
    while (!released)
        (void)pthread_cond_wait(&changed, &lock);
    (void)pthread_mutex_unlock(&lock);
    return pi_err_set(err, PI_E_DEVICE, "gone");
}

static bool never(void *ctx)
{
    (void)ctx;
    return false;
}

static void *work(void *arg)
{
    (void)arg;
    return pi_calls_work(q, never, NULL, 1.0, &failure) == PI_E_DEVICE ? &failure : NULL;
}

static struct pi_call *submitted(uint32_t n)
{
    static int32_t ids[] = {1, 2, 3};
    const struct pi_tokens prompt = {.ids = ids, .n = 3};
    const struct pi_call_spec spec = {.kind = PI_CALL_TEXT,
                                      .prompts = &prompt,
                                      .n_prompts = 1,
                                      .n = n,
                                      .n_predict = 4,
                                      .model = "m"};
    struct pi_call *c = NULL;
    struct pi_err err = {0};

    OK(pi_call_create(&spec, NULL, &c, &err) == PI_OK);
    OK(pi_calls_submit(q, c, &err) == PI_OK);
    return c;
}

static uint32_t waiting(void)
{
    struct pi_calls_totals t;

    pi_calls_get_totals(q, &t);
    return t.waiting;
}

static void count(void *ctx)
{
    ++*(int *)ctx;
}

int main(void)
{
    const struct pi_batcher_options bo = {.n_slots = 1, .n_ctx = 16, .n_vocab = 8, .run = run};
    struct pi_calls_options co = {.n_slots = 1, .n_queue = 8, .n_ctx = 16};
    struct pi_call *a, *b, *c, *d;
    struct pi_err err = {0};
    pthread_t thread;
    void *failed = NULL;
    char *body = NULL;
    int woken = 0;

    OK(pi_batcher_create(&bo, NULL, &co.batcher, &err) == PI_OK);
    OK(pi_calls_create(&co, &q, &err) == PI_OK);
    OK(pthread_create(&thread, NULL, work, NULL) == 0);
    a = submitted(1);
    (void)pthread_mutex_lock(&lock);
    while (!entered)
        (void)pthread_cond_wait(&changed, &lock);
    (void)pthread_mutex_unlock(&lock);

    b = submitted(3);
    c = submitted(4);
    EQ(waiting(), 7);
    pi_call_drop(q, b);
    EQ(waiting(), 4);
    d = submitted(4); /* there is room again */
    EQ(waiting(), 8);
    pi_call_drop(q, c);
    EQ(waiting(), 4);
    pi_call_drop(q, d); /* the queue's last */
    EQ(waiting(), 0);
    d = submitted(1);
    EQ(waiting(), 1);

    OK(!pi_call_wait(d, count, NULL, &woken));
    pi_call_poke(d);
    EQ(woken, 1);
    pi_call_poke(d); /* once is enough */
    EQ(woken, 1);
    OK(!pi_call_wait(d, count, NULL, &woken));

    (void)pthread_mutex_lock(&lock);
    released = true;
    (void)pthread_cond_broadcast(&changed);
    (void)pthread_mutex_unlock(&lock);
    for (int i = 0; i < 1000 && !pi_call_wait(d, count, NULL, &woken); i++)
        (void)usleep(10000);
    EQ(pi_call_answer(d, &body), 500);
    OK(body != NULL && strstr(body, "gone") != NULL);
    free(body);
    pi_call_drop(q, a);
    pi_call_drop(q, d);
    OK(pthread_join(thread, &failed) == 0 && failed == &failure);
    pi_batcher_destroy(co.batcher);
    pi_calls_destroy(q);
    return DONE();
}
