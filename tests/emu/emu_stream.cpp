/* Streams as OS threads with queues, events, and what waits for them. */
#include "tests/emu/emu_stream.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>

std::mutex &emu_stream_lock = *new std::mutex;
std::set<struct CUstream_st *> &emu_streams = *new std::set<struct CUstream_st *>;
std::set<struct CUevent_st *> &emu_events = *new std::set<struct CUevent_st *>;
static std::condition_variable &news = *new std::condition_variable; /* an operation was added or is done */
static struct CUstream_st *legacy;
static std::atomic<int> n_objects;
static std::atomic<unsigned long> n_kernels, n_others;
static std::atomic<bool> stopped;

typedef std::unique_lock<std::mutex> hold_lock;

/* ---- counts ---- */

void emu_object(int delta)
{
    n_objects += delta;
}

extern "C" int cudaEmuLiveObjects(void)
{
    return n_objects;
}

extern "C" unsigned long cudaEmuKernelsRun(void)
{
    return n_kernels;
}

extern "C" void emu_kernels_reset(void);

extern "C" void emu_kernels_reset(void)
{
    n_kernels = n_others = 0;
}

extern "C" unsigned long cudaEmuOthersRun(void)
{
    return n_others;
}

bool emu_has_stopped(void)
{
    return stopped;
}

static void never_end(void)
{
    stopped = true;
    for (;;)
        (void)pause();
}

void emu_other_runs(void)
{
    if (++n_others == emu_conf()->halt_at)
        never_end();
}

bool emu_kernel_may_run(void)
{
    const unsigned long n = ++n_kernels;
    const struct emu_config *c = emu_conf();

    if (n == c->stop_at)
        never_end();
    if (c->slow_ms > 0)
        (void)usleep((useconds_t)(1000 * c->slow_ms));
    if (n == c->fault_at)
        emu_set_sticky(cudaErrorIllegalAddress);
    return emu_sticky() == cudaSuccess;
}

/* ---- the streams' threads ---- */

static void run_op(struct emu_queue *q, struct emu_op *op, hold_lock &hold)
{
    double begin, end;

    for (const auto &w : op->waits)
        news.wait(hold, [&]() { return w->done; });
    hold.unlock();
    begin = emu_seconds();
    if (op->work && emu_sticky() == cudaSuccess) {
        emu_memory_open();
        op->work();
        emu_memory_close();
    }
    op->work = nullptr;
    end = emu_seconds();
    hold.lock();
    q->skew += (op->time_factor - 1.0) * (end - begin);
    op->done->time = end + q->skew;
    op->done->done = true;
    news.notify_all();
}

static void *stream_thread(void *arg)
{
    std::shared_ptr<emu_queue> q = *(std::shared_ptr<emu_queue> *)arg;

    delete (std::shared_ptr<emu_queue> *)arg;
    emu_thread_setup();
    hold_lock hold(emu_stream_lock);

    for (;;) {
        news.wait(hold, [&]() { return !q->ops.empty() || q->quit; });
        if (q->ops.empty())
            break;
        struct emu_op op = std::move(q->ops.front());

        q->ops.pop_front();
        run_op(q.get(), &op, hold);
    }
    hold.unlock();
    emu_pdl_end();
    emu_thread_end();
    return NULL;
}

static void start_thread(const std::shared_ptr<emu_queue> &q)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, stream_thread, new std::shared_ptr<emu_queue>(q)) != 0)
        emu_die("no thread for a stream");
    (void)pthread_detach(thread);
    q->started = true;
}

/* ---- queues ---- */

struct CUstream_st *emu_stream_of(cudaStream_t s)
{
    if (legacy == NULL) {
        legacy = new CUstream_st;
        emu_streams.insert(legacy);
    }
    if (s == NULL || s == cudaStreamLegacy)
        return legacy;
    return emu_streams.count(s) > 0 && s != legacy ? s : NULL;
}

bool emu_is_legacy(const struct CUstream_st *s)
{
    return s == legacy;
}

emu_done_ref emu_push(struct CUstream_st *s, emu_work work, double time_factor, std::vector<emu_done_ref> waits)
{
    struct emu_op op;

    if (s == legacy) {
        for (const struct CUstream_st *other : emu_streams)
            if (other != s && other->blocking && other->queue->last != NULL)
                waits.push_back(other->queue->last);
    } else if (s->blocking && legacy != NULL && legacy->queue->last != NULL) {
        waits.push_back(legacy->queue->last);
    }
    op.work = std::move(work);
    op.time_factor = time_factor;
    op.waits = std::move(waits);
    op.done = s->queue->last = std::make_shared<emu_done>();
    s->queue->ops.push_back(std::move(op));
    if (!s->queue->started)
        start_thread(s->queue);
    news.notify_all();
    return s->queue->last;
}

cudaError_t emu_enqueue(cudaStream_t handle, emu_work work, double time_factor,
                        std::shared_ptr<const struct emu_grid> grid)
{
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);
    cudaError_t e;

    if (s == NULL)
        return cudaErrorInvalidResourceHandle;
    if (s->capture != NULL)
        return emu_capture_add(s, std::move(work), std::move(grid));
    if ((e = emu_legacy_check(s)) != cudaSuccess)
        return e;
    (void)emu_push(s, std::move(work), time_factor, {});
    return cudaSuccess;
}

bool emu_is_capturing(cudaStream_t handle)
{
    const hold_lock hold(emu_stream_lock);
    const struct CUstream_st *s = emu_stream_of(handle);

    return s != NULL && s->capture != NULL;
}

static cudaError_t wait_done(const emu_done_ref &d, hold_lock &hold)
{
    if (d != NULL)
        news.wait(hold, [&]() { return d->done || emu_sticky() != cudaSuccess; });
    return emu_sticky();
}

cudaError_t emu_wait_stream(cudaStream_t handle)
{
    hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    return s == NULL ? cudaErrorInvalidResourceHandle : wait_done(s->queue->last, hold);
}

cudaError_t emu_wait_device(void)
{
    hold_lock hold(emu_stream_lock);
    std::vector<emu_done_ref> all;

    for (const struct CUstream_st *s : emu_streams)
        all.push_back(s->queue->last);
    for (const auto &d : all)
        (void)wait_done(d, hold);
    return emu_sticky();
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    if ((e = emu_capture_check()) != cudaSuccess)
        return emu_note(e);
    return emu_note(emu_wait_device());
}

/* ---- streams ---- */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    if (s == NULL || flags > cudaStreamNonBlocking)
        return emu_note(cudaErrorInvalidValue);
    const hold_lock hold(emu_stream_lock);

    *s = new CUstream_st;
    (*s)->blocking = flags == cudaStreamDefault;
    emu_streams.insert(*s);
    emu_object(1);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    return cudaStreamCreateWithPriority(s, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    return cudaStreamCreateWithPriority(s, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL || s == legacy)
        return emu_note(cudaErrorInvalidResourceHandle);
    if (s->capture != NULL) {
        s->capture->streams.erase(s);
        emu_capture_spoil(s->capture);
    }
    s->queue->quit = true;
    news.notify_all();
    emu_streams.erase(s);
    emu_object(-1);
    delete s;
    return cudaSuccess;
}

/* The stream of a call that may not come while it is captured; the error otherwise. */
static cudaError_t idle_stream(cudaStream_t handle, struct CUstream_st **s)
{
    *s = emu_stream_of(handle);
    if (*s == NULL)
        return cudaErrorInvalidResourceHandle;
    if ((*s)->capture != NULL) {
        emu_capture_spoil((*s)->capture);
        return cudaErrorStreamCaptureUnsupported;
    }
    return emu_legacy_check(*s);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    struct CUstream_st *s;
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);

    if ((e = idle_stream(handle, &s)) != cudaSuccess)
        return emu_note(e);
    return s->queue->last == NULL || s->queue->last->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    struct CUstream_st *s;
    cudaError_t e;

    EMU_ENTER(cudaErrorUnknown);
    hold_lock hold(emu_stream_lock);

    if ((e = idle_stream(handle, &s)) != cudaSuccess)
        return emu_note(e);
    const emu_done_ref last = s->queue->last;

    return emu_note(wait_done(last, hold));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void *user)
{
    EMU_ENTER(cudaErrorUnknown);
    return emu_note(emu_enqueue(s, [=]() { fn(user); }));
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    if (e == NULL)
        return emu_note(cudaErrorInvalidValue);
    const hold_lock hold(emu_stream_lock);

    *e = new CUevent_st;
    (*e)->flags = flags;
    emu_events.insert(*e);
    emu_object(1);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    return cudaEventCreateWithFlags(e, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    const hold_lock hold(emu_stream_lock);

    if (emu_events.erase(e) == 0)
        return emu_note(cudaErrorInvalidResourceHandle);
    emu_object(-1);
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle)
{
    cudaError_t error;

    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL || emu_events.count(e) == 0)
        return emu_note(cudaErrorInvalidResourceHandle);
    e->capture = s->capture;
    if (s->capture != NULL) {
        e->captured_in = s;
        e->at = s->n_captured;
        return cudaSuccess;
    }
    if ((error = emu_legacy_check(s)) != cudaSuccess)
        return emu_note(error);
    e->done = emu_push(s, nullptr, 1.0, {});
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned)
{
    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL || emu_events.count(e) == 0)
        return emu_note(cudaErrorInvalidResourceHandle);
    if (e->capture != NULL) { /* the stream joins the capture, or joins its branches */
        if ((s->capture != NULL && s->capture != e->capture) || emu_is_legacy(s))
            return emu_note(cudaErrorIllegalState);
        s->capture = e->capture;
        e->capture->streams.insert(s);
        s->joined_back = false;
        s->n_captured++;
        if (e->captured_in != s && e->captured_in->n_captured == e->at)
            e->captured_in->joined_back = true;
        return cudaSuccess;
    }
    if (s->capture != NULL) { /* work from outside cannot be part of a graph */
        emu_capture_spoil(s->capture);
        return emu_note(cudaErrorIllegalState);
    }
    if (e->done != NULL)
        (void)emu_push(s, nullptr, 1.0, {e->done});
    return cudaSuccess;
}

/* A recorded event that may be waited for; the error otherwise. */
static cudaError_t usable_event(cudaEvent_t e)
{
    if (emu_events.count(e) == 0)
        return cudaErrorInvalidResourceHandle;
    if (e->capture != NULL) {
        emu_capture_spoil(e->capture);
        return cudaErrorCapturedEvent;
    }
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    cudaError_t error;

    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);

    if ((error = usable_event(e)) != cudaSuccess)
        return emu_note(error);
    return e->done == NULL || e->done->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    cudaError_t error;

    EMU_ENTER(cudaErrorUnknown);
    hold_lock hold(emu_stream_lock);

    if ((error = usable_event(e)) != cudaSuccess)
        return emu_note(error);
    const emu_done_ref done = e->done;

    return emu_note(wait_done(done, hold));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    cudaError_t error;

    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);

    if ((error = usable_event(begin)) != cudaSuccess || (error = usable_event(end)) != cudaSuccess)
        return emu_note(error);
    if (begin->done == NULL || end->done == NULL || ((begin->flags | end->flags) & cudaEventDisableTiming))
        return emu_note(cudaErrorInvalidResourceHandle);
    if (!begin->done->done || !end->done->done)
        return cudaErrorNotReady;
    *ms = (float)(1e3 * (end->done->time - begin->done->time));
    return cudaSuccess;
}
