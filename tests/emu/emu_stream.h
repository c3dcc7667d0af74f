/* What emu_stream.cpp and emu_graph.cpp share; everything under emu_stream_lock. */
#ifndef EMU_STREAM_H
#define EMU_STREAM_H

#include "tests/emu/emu_int.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <set>

struct emu_done {
    bool done = false;
    double time = 0.0; /* the stream's clock when it was */
};
typedef std::shared_ptr<emu_done> emu_done_ref;

struct emu_op {
    emu_work work; /* may be empty */
    double time_factor = 1.0;
    std::vector<emu_done_ref> waits;
    emu_done_ref done;
};

/* What a stream's OS thread works on; outlives the stream while there is work. */
struct emu_queue {
    std::deque<emu_op> ops;
    emu_done_ref last; /* of the newest operation; NULL: none yet */
    bool started = false, quit = false;
    double skew = 0.0; /* how far the stream's clock is ahead of the wall clock */
};

struct emu_capture;

struct CUstream_st {
    std::shared_ptr<emu_queue> queue = std::make_shared<emu_queue>();
    bool blocking = true; /* ordered with the legacy stream */
    struct emu_capture *capture = NULL;
    unsigned long n_captured = 0; /* operations, for events recorded during a capture */
    bool joined_back = false;     /* another stream of the capture waits for all of it */
};

struct CUevent_st {
    unsigned flags = 0;
    emu_done_ref done; /* NULL: never recorded */
    struct emu_capture *capture = NULL;
    struct CUstream_st *captured_in = NULL;
    unsigned long at = 0;
};

struct CUgraph_st {
    std::vector<struct emu_node> nodes;
};

struct CUgraphExec_st {
    std::shared_ptr<const CUgraph_st> graph;
    emu_done_ref last; /* a graph does not run beside itself */
};

struct emu_capture {
    std::unique_ptr<CUgraph_st> graph = std::make_unique<CUgraph_st>();
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    pthread_t thread = pthread_self();
    struct CUstream_st *origin = NULL;
    std::set<struct CUstream_st *> streams;
    bool spoilt = false;
};

extern std::mutex &emu_stream_lock;
extern std::set<struct CUstream_st *> &emu_streams; /* the legacy stream too */
extern std::set<struct CUevent_st *> &emu_events;
extern std::set<struct emu_capture *> &emu_captures;

/* NULL and cudaStreamLegacy: the legacy stream; a handle that is none: NULL. */
struct CUstream_st *emu_stream_of(cudaStream_t s);
/* Queues an operation behind those that CUDA's rules for the legacy stream put in front of it. */
emu_done_ref emu_push(struct CUstream_st *s, emu_work work, double time_factor, std::vector<emu_done_ref> waits);
/* Adds a node to the stream's capture; an error where the capture is spoilt. */
cudaError_t emu_capture_add(struct CUstream_st *s, emu_work work, std::shared_ptr<const struct emu_grid> grid);
/* cudaErrorStreamCaptureImplicit where the legacy stream would wait for a stream that is being captured. */
cudaError_t emu_legacy_check(const struct CUstream_st *s);
void emu_capture_spoil(struct emu_capture *c);
bool emu_is_legacy(const struct CUstream_st *s);
/* A capture that ends: its streams and events go back to normal. */
void emu_capture_forget(struct emu_capture *c);

#endif
