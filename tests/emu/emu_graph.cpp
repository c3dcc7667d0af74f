/* Stream capture and graphs: the captured operations as a list in the order of their capture. */
#include "tests/emu/emu_stream.h"

std::set<struct emu_capture *> &emu_captures = *new std::set<struct emu_capture *>;
static std::set<CUgraph_st *> &graphs = *new std::set<CUgraph_st *>;
static std::set<CUgraphExec_st *> &execs = *new std::set<CUgraphExec_st *>;

/* Not zero-initialised: see __shared__. */
static __thread struct {
    unsigned magic;
    enum cudaStreamCaptureMode mode;
} thread_capture = {1, cudaStreamCaptureModeGlobal};

typedef std::lock_guard<std::mutex> hold_lock;

/* ---- what is allowed during a capture ---- */

void emu_capture_spoil(struct emu_capture *c)
{
    c->spoilt = true;
}

cudaError_t emu_capture_add(struct CUstream_st *s, emu_work work, std::shared_ptr<const struct emu_grid> grid)
{
    if (s->capture->spoilt)
        return cudaErrorStreamCaptureInvalidated;
    s->n_captured++;
    s->joined_back = false;
    s->capture->graph->nodes.push_back({std::move(work), std::move(grid)});
    return cudaSuccess;
}

cudaError_t emu_legacy_check(const struct CUstream_st *s)
{
    if (emu_is_legacy(s))
        for (struct emu_capture *c : emu_captures)
            for (const struct CUstream_st *other : c->streams)
                if (other->blocking) {
                    emu_capture_spoil(c);
                    return cudaErrorStreamCaptureImplicit;
                }
    return cudaSuccess;
}

cudaError_t emu_capture_check(void)
{
    const hold_lock hold(emu_stream_lock);
    bool bad = false;

    if (thread_capture.mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    for (struct emu_capture *c : emu_captures) {
        const bool own = pthread_equal(c->thread, pthread_self());

        if ((own && c->mode != cudaStreamCaptureModeRelaxed) ||
            (c->mode == cudaStreamCaptureModeGlobal && thread_capture.mode == cudaStreamCaptureModeGlobal)) {
            emu_capture_spoil(c);
            bad = true;
        }
    }
    return bad ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    EMU_ENTER(cudaErrorInvalidValue);
    std::swap(*mode, thread_capture.mode);
    return cudaSuccess;
}

/* ---- capture ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL)
        return emu_note(cudaErrorInvalidResourceHandle);
    if (emu_is_legacy(s))
        return emu_note(cudaErrorStreamCaptureUnsupported);
    if (s->capture != NULL)
        return emu_note(cudaErrorIllegalState);
    s->capture = new emu_capture;
    s->capture->mode = mode;
    s->capture->origin = s;
    s->capture->streams.insert(s);
    emu_captures.insert(s->capture);
    return cudaSuccess;
}

void emu_capture_forget(struct emu_capture *c)
{
    for (struct CUstream_st *s : c->streams)
        s->capture = NULL;
    for (struct CUevent_st *e : emu_events)
        if (e->capture == c)
            e->capture = NULL;
    emu_captures.erase(c);
    delete c;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *g)
{
    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);
    struct emu_capture *c = s == NULL ? NULL : s->capture;
    cudaError_t e = cudaSuccess;

    *g = NULL;
    if (c == NULL)
        return emu_note(s == NULL ? cudaErrorInvalidResourceHandle : cudaErrorIllegalState);
    if (c->mode != cudaStreamCaptureModeRelaxed && !pthread_equal(c->thread, pthread_self()))
        return emu_note(cudaErrorStreamCaptureWrongThread);
    if (c->origin != s)
        e = cudaErrorStreamCaptureUnmatched;
    else if (c->spoilt)
        e = cudaErrorStreamCaptureInvalidated;
    for (const struct CUstream_st *other : c->streams)
        if (e == cudaSuccess && other != s && !other->joined_back)
            e = cudaErrorStreamCaptureUnjoined;
    if (e == cudaSuccess) {
        *g = c->graph.release();
        graphs.insert(*g);
        emu_object(1);
    }
    emu_capture_forget(c);
    return emu_note(e);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
    EMU_ENTER(cudaErrorUnknown);
    const hold_lock hold(emu_stream_lock);
    const struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL)
        return emu_note(cudaErrorInvalidResourceHandle);
    *status = s->capture == NULL    ? cudaStreamCaptureStatusNone
              : s->capture->spoilt ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    const hold_lock hold(emu_stream_lock);

    if (graphs.count(g) == 0)
        return emu_note(cudaErrorInvalidValue);
    *x = new CUgraphExec_st;
    (*x)->graph = std::make_shared<const CUgraph_st>(*g);
    execs.insert(*x);
    emu_object(1);
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t x, cudaStream_t s)
{
    EMU_ENTER(cudaErrorMemoryAllocation);
    const hold_lock hold(emu_stream_lock);

    return emu_stream_of(s) == NULL || execs.count(x) == 0 ? emu_note(cudaErrorInvalidResourceHandle) : cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t handle)
{
    cudaError_t e;

    EMU_ENTER(cudaErrorLaunchFailure);
    const hold_lock hold(emu_stream_lock);
    struct CUstream_st *s = emu_stream_of(handle);

    if (s == NULL || execs.count(x) == 0)
        return emu_note(cudaErrorInvalidResourceHandle);
    const std::shared_ptr<const CUgraph_st> g = x->graph;
    const emu_work all = [g]() { emu_run_nodes(g->nodes); };

    if (s->capture != NULL)
        return emu_note(emu_capture_add(s, all, NULL));
    if ((e = emu_legacy_check(s)) != cudaSuccess)
        return emu_note(e);
    x->last = emu_push(s, all, EMU_KERNEL_FACTOR, x->last != NULL ? std::vector<emu_done_ref>{x->last} : std::vector<emu_done_ref>{});
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, void *nodes, size_t *n)
{
    EMU_ENTER(cudaErrorInvalidValue);
    const hold_lock hold(emu_stream_lock);

    if (graphs.count(g) == 0 || nodes != NULL)
        return emu_note(cudaErrorInvalidValue);
    *n = g->nodes.size();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    const hold_lock hold(emu_stream_lock);

    if (graphs.erase(g) == 0)
        return emu_note(cudaErrorInvalidValue);
    emu_object(-1);
    delete g;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    const hold_lock hold(emu_stream_lock);

    if (execs.erase(x) == 0)
        return emu_note(cudaErrorInvalidValue);
    emu_object(-1);
    delete x;
    return cudaSuccess;
}
