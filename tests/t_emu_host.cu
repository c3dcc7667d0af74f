/* The CUDA emulator, host side: memory, streams, events, graphs, faults, cuBLAS. */
#include "config.h"

#define PI_NEED_CUBLAS
#include "tests/emu_rig.h"

#include <pthread.h>
#include <functional>
#include <time.h>

static void set_env(const char *name, const char *value)
{
    if (value != NULL)
        (void)setenv(name, value, 1);
    else
        (void)unsetenv(name);
    cudaEmuReload();
    (void)cudaGetLastError();
}

static void sleep_ms(long ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000};

    (void)nanosleep(&ts, NULL);
}

__global__ static void add(int *x, int n)
{
    x[threadIdx.x] += n;
}

/* Polls a word of pinned memory, then answers in another. */
__global__ static void answer(const uint32_t *ask, uint32_t *reply, int *x)
{
    __shared__ uint32_t v;

    if (threadIdx.x == 0) {
        while ((v = pi_ld_acquire_sys(ask)) == 0)
            pi_nanosleep(100);
    }
    __syncthreads();
    x[threadIdx.x] = (int)v;
    __syncthreads();
    if (threadIdx.x == 0)
        pi_st_release_sys(reply, v + 1);
}

/* ---- memory ---- */

static void memory(void)
{
    size_t free_bytes = 0, total = 0, before;
    void *a = NULL, *b = NULL;
    char host[300];

    set_env("PI_EMU_MEMORY", "256M");
    CK(cudaMemGetInfo(&before, &total));
    EQ(total, 256 << 20);
    EQ(before, 128 << 20);
    CK(cudaMalloc(&a, 1000));
    CK(cudaMalloc(&b, 100 << 20));
    EQ(cudaEmuUsedBytes(), (100 << 20) + 1000);
    EQ(cudaEmuLiveAllocations(), 2);
    CK(cudaMemGetInfo(&free_bytes, &total));
    EQ(before - free_bytes, (100 << 20) + 1000);
    void *c = &c;
    EQ(cudaMalloc(&c, 28 << 20), cudaErrorMemoryAllocation);
    OK(c == NULL);
    EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EQ(cudaGetLastError(), cudaSuccess);
    CK(cudaFree(b));
    EQ(cudaFree(b), cudaErrorInvalidValue);
    EQ(cudaMemcpy(b, host, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CK(cudaMalloc(&c, 28 << 20));
    EQ(cudaEmuPeakBytes(), (100 << 20) + 1000);
    CK(cudaFree(c));
    CK(cudaFree(NULL));
    EQ(cudaMemcpy(a, host, 1001, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    EQ(cudaMemcpy((char *)a + 900, host, 101, cudaMemcpyDefault), cudaErrorInvalidValue);
    EQ(cudaMemcpy(a, host, 10, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    EQ(cudaMemcpy(host, host + 10, 10, cudaMemcpyDeviceToDevice), cudaErrorInvalidValue);
    EQ(cudaMemcpy(host, a, 4, (enum cudaMemcpyKind)7), cudaErrorInvalidMemcpyDirection);
    CK(cudaFree(a));
    EQ(cudaEmuUsedBytes(), 0);
    set_env("PI_EMU_MEMORY", NULL);
    (void)cudaGetLastError();
}

static void copies(void)
{
    unsigned char in[64], out[64] = {0}, *pinned = NULL, *alias = NULL;
    dev<unsigned char> d(64);
    struct cudaPointerAttributes attr;
    int bad = 0;

    for (int i = 0; i < 64; i++)
        in[i] = (unsigned char)(i + 1);
    CK(cudaMemcpy(d.p, in, 64, cudaMemcpyDefault));
    CK(cudaMemset(d.p + 8, 0x5a, 8));
    CK(cudaMemcpy2D(out, 8, d.p, 16, 8, 4, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 32; i++)
        bad += out[i] != i / 8 * 16 + i % 8 + 1;
    EQ(bad, 0);
    CK(cudaHostAlloc(&pinned, 100, cudaHostAllocMapped));
    CK(cudaHostGetDevicePointer(&alias, pinned, 0));
    CK(cudaMemcpyAsync(alias, d.p, 64, cudaMemcpyDefault, 0));
    CK(cudaStreamSynchronize(0));
    OK(pinned[7] == 8 && pinned[8] == 0x5a && pinned[16] == 17);
    CK(cudaPointerGetAttributes(&attr, pinned + 5));
    EQ(attr.type, cudaMemoryTypeHost);
    CK(cudaPointerGetAttributes(&attr, d.p + 63));
    EQ(attr.type, cudaMemoryTypeDevice);
    CK(cudaPointerGetAttributes(&attr, in));
    EQ(attr.type, cudaMemoryTypeUnregistered);
    CK(cudaFreeHost(pinned));
    EQ(cudaHostGetDevicePointer(&alias, in, 0), cudaErrorInvalidValue);
    CK(cudaHostRegister(in, sizeof(in), cudaHostRegisterMapped));
    CK(cudaHostGetDevicePointer(&alias, in, 0));
    PI_LAUNCH(add, 1, 2, 0, 0, (int *)alias, 1);
    CK(cudaDeviceSynchronize());
    EQ(in[0], 2);
    CK(cudaHostUnregister(in));
    EQ(cudaHostUnregister(in), cudaErrorHostMemoryNotRegistered);
    (void)cudaGetLastError();
}

/* ---- streams and events ---- */

static void spinning_kernel(void)
{
    cudaStream_t s = NULL, other = NULL;
    uint32_t *flags = NULL;
    dev<int> x(64), y(std::vector<int>(1, 5));

    CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CK(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, -1));
    CK(cudaHostAlloc(&flags, 64, cudaHostAllocMapped));
    memset(flags, 0, 64);
    PI_LAUNCH(answer, 1, 64, 0, s, flags, flags + 1, x.p);
    PI_LAUNCH(add, 1, 1, 0, other, y.p, 2);
    CK(cudaStreamSynchronize(other));
    EQ(cudaStreamQuery(other), cudaSuccess);
    EQ(cudaStreamQuery(s), cudaErrorNotReady);
    EQ(cudaGetLastError(), cudaSuccess);
    EQ(__atomic_load_n(&flags[1], __ATOMIC_ACQUIRE), 0);
    __atomic_store_n(&flags[0], 41, __ATOMIC_RELEASE);
    while (__atomic_load_n(&flags[1], __ATOMIC_ACQUIRE) == 0)
        sleep_ms(1);
    EQ(flags[1], 42);
    CK(cudaStreamSynchronize(s));
    EQ(x.get()[63], 41);
    EQ(y.get()[0], 7);
    CK(cudaFreeHost(flags));
    CK(cudaStreamDestroy(s));
    CK(cudaStreamDestroy(other));
}

/* Until it is told to go on, and then a little longer. */
static void wait_a_little(void *go)
{
    while (__atomic_load_n((const int *)go, __ATOMIC_ACQUIRE) == 0)
        sleep_ms(1);
    sleep_ms(50);
}

static void events(void)
{
    cudaStream_t a = NULL, b = NULL;
    cudaEvent_t begin = NULL, end = NULL, plain = NULL;
    dev<int> x(std::vector<int>(1, 1));
    static int go;
    float took = 0.0f;

    CK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CK(cudaEventCreate(&begin));
    CK(cudaEventCreate(&end));
    CK(cudaEventCreateWithFlags(&plain, cudaEventDisableTiming));
    EQ(cudaEventQuery(end), cudaSuccess);
    CK(cudaEventRecord(begin, a));
    CK(cudaLaunchHostFunc(a, wait_a_little, &go));
    PI_LAUNCH(add, 1, 1, 0, a, x.p, 10);
    CK(cudaEventRecord(end, a));
    CK(cudaStreamWaitEvent(b, end, 0));
    CK(cudaMemcpyAsync(x.p + 0, x.p, 4, cudaMemcpyDeviceToDevice, b));
    CK(cudaEventRecord(plain, b));
    EQ(cudaEventQuery(end), cudaErrorNotReady);
    EQ(cudaEventElapsedTime(&took, begin, end), cudaErrorNotReady);
    EQ(cudaStreamQuery(b), cudaErrorNotReady);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    CK(cudaEventSynchronize(plain));
    CK(cudaEventQuery(end));
    CK(cudaEventElapsedTime(&took, begin, end));
    OK(took >= 50.0f && took < 3e5f); /* on a busy machine much longer */
    EQ(cudaEventElapsedTime(&took, begin, plain), cudaErrorInvalidResourceHandle);
    EQ(x.get()[0], 11);
    CK(cudaEventDestroy(begin));
    CK(cudaEventDestroy(end));
    CK(cudaEventDestroy(plain));
    EQ(cudaEventDestroy(plain), cudaErrorInvalidResourceHandle);
    CK(cudaStreamDestroy(a));
    CK(cudaStreamDestroy(b));
    (void)cudaGetLastError();
}

/* A blocking stream and the legacy stream wait for each other; a non-blocking one does not. */
static void legacy_stream(void)
{
    cudaStream_t blocking = NULL, free_one = NULL;
    static int go;
    dev<int> x(std::vector<int>(1, 1));

    CK(cudaStreamCreate(&blocking));
    CK(cudaStreamCreateWithFlags(&free_one, cudaStreamNonBlocking));
    CK(cudaLaunchHostFunc(blocking, wait_a_little, &go));
    PI_LAUNCH(add, 1, 1, 0, free_one, x.p, 4);
    CK(cudaStreamSynchronize(free_one));
    EQ(cudaStreamQuery(blocking), cudaErrorNotReady);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    PI_LAUNCH(add, 1, 1, 0, 0, x.p, 3);
    CK(cudaStreamSynchronize(0));
    EQ(cudaStreamQuery(blocking), cudaSuccess);
    EQ(x.get()[0], 8);
    CK(cudaStreamDestroy(blocking));
    CK(cudaStreamDestroy(free_one));
    EQ(cudaStreamQuery(free_one), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}

/* ---- graphs ---- */

static void graphs(void)
{
    cudaStream_t s = NULL, side = NULL;
    cudaEvent_t fork = NULL, join = NULL;
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    enum cudaStreamCaptureStatus status;
    dev<int> d(std::vector<int>(32, 0)), e(std::vector<int>(32, 0));
    int host[32];
    size_t n = 0;

    CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    CK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    CK(cudaStreamIsCapturing(s, &status));
    EQ(status, cudaStreamCaptureStatusActive);
    for (int i = 0; i < 3; i++)
        PI_LAUNCH(add, 1, 32, 0, s, d.p, i + 1);
    CK(cudaEventRecord(fork, s));
    CK(cudaStreamWaitEvent(side, fork, 0));
    CK(cudaMemcpyAsync(e.p, d.p, 128, cudaMemcpyDeviceToDevice, side));
    CK(cudaEventRecord(join, side));
    CK(cudaStreamWaitEvent(s, join, 0));
    CK(cudaMemsetAsync(d.p, 0, 64, s));
    CK(cudaStreamEndCapture(s, &g));
    CK(cudaGraphGetNodes(g, NULL, &n));
    EQ(n, 5);
    CK(cudaGraphInstantiate(&x, g, 0));
    CK(cudaGraphDestroy(g));
    CK(cudaGraphUpload(x, s));
    EQ(d.get()[0], 0); /* nothing ran yet */
    EQ(d.get()[31], 0);
    for (int i = 0; i < 4; i++)
        CK(cudaGraphLaunch(x, s));
    CK(cudaMemcpyAsync(host, e.p, 128, cudaMemcpyDeviceToHost, s));
    CK(cudaStreamSynchronize(s));
    EQ(host[0], 6);
    EQ(host[31], 24);
    EQ(d.get()[15], 0);
    EQ(d.get()[16], 24);
    CK(cudaGraphExecDestroy(x));
    EQ(cudaGraphLaunch(x, s), cudaErrorInvalidResourceHandle);
    CK(cudaEventDestroy(fork));
    CK(cudaEventDestroy(join));
    CK(cudaStreamDestroy(s));
    CK(cudaStreamDestroy(side));
    (void)cudaGetLastError();
}

static void *call_malloc(void *rc)
{
    void *p = NULL;

    *(cudaError_t *)rc = cudaMalloc(&p, 16);
    (void)cudaFree(p);
    return NULL;
}

/* ---- dependent launches ---- */

__global__ static void produce(int *x, int n)
{
    pi_pdl_trigger();
    pi_pdl_wait();
    x[threadIdx.x] += n;
}

/* Reads in front of the wait, which is wrong, and behind it. */
__global__ static void consume(const int *x, int *early, int *late)
{
    __shared__ int s[64];
    const int before = x[threadIdx.x];

    pi_pdl_trigger();
    if (threadIdx.x >= 32) /* one warp waits, the other is at the barrier */
        pi_pdl_wait();
    s[threadIdx.x] = before;
    __syncthreads();
    pi_pdl_wait();
    early[threadIdx.x] = s[63 - threadIdx.x];
    late[threadIdx.x] = x[threadIdx.x];
}

static void dependent_launches(void)
{
    cudaStream_t s = NULL;
    cudaGraph_t g = NULL;
    cudaGraphExec_t x = NULL;
    dev<int> d(std::vector<int>(64, 0)), early(64), late(64);

    for (int pdl = 0; pdl < 2; pdl++) {
        set_env("PI_EMU_PDL", pdl ? "1" : NULL);
        CK(cudaMemset(d.p, 0, 256));
        CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        CK(cudaDeviceSynchronize());
        CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        PI_LAUNCH(add, 1, 64, 0, s, d.p, 1);
        PI_LAUNCH_PDL(produce, 1, 64, 0, s, d.p, 2);
        PI_LAUNCH_PDL(produce, 1, 64, 0, s, d.p, 4);
        PI_LAUNCH_PDL(consume, 1, 64, 0, s, d.p, early.p, late.p);
        CK(cudaStreamEndCapture(s, &g));
        CK(cudaGraphInstantiate(&x, g, 0));
        CK(cudaGraphDestroy(g));
        CK(cudaGraphLaunch(x, s));
        CK(cudaGraphLaunch(x, s));
        CK(cudaStreamSynchronize(s));
        EQ(early.get()[5], pdl ? 10 : 14);
        EQ(early.get()[60], pdl ? 10 : 14);
        EQ(late.get()[63], 14);
        CK(cudaGraphExecDestroy(x));
        CK(cudaStreamDestroy(s));
    }
    set_env("PI_EMU_PDL", NULL);
}

/* What spoils a capture, and what does not. */
static void captures(void)
{
    cudaStream_t s = NULL, side = NULL;
    cudaEvent_t fork = NULL;
    cudaGraph_t g = NULL;
    dev<int> d(std::vector<int>(32, 0));
    void *p = NULL;
    int host[32] = {0};
    cudaError_t other = cudaSuccess;
    pthread_t t;

    CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    CK(cudaEventCreate(&fork));
    const std::vector<std::function<cudaError_t()>> bad = {
        [&]() { return cudaMalloc(&p, 16); },
        [&]() { return cudaMemcpy(d.p, host, 4, cudaMemcpyHostToDevice); },
        [&]() { return cudaStreamSynchronize(s); },
        [&]() { return cudaDeviceSynchronize(); },
        [&]() { return cudaStreamQuery(s); },
    };
    for (const auto &call : bad) {
        CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
        EQ(call(), cudaErrorStreamCaptureUnsupported);
        EQ(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
        OK(g == NULL);
    }
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
    EQ(pthread_create(&t, NULL, call_malloc, &other), 0);
    EQ(pthread_join(t, NULL), 0);
    EQ(other, cudaSuccess); /* another thread's, thread-local mode */
    CK(cudaEventRecord(fork, s));
    EQ(cudaEventSynchronize(fork), cudaErrorCapturedEvent);
    EQ(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureInvalidated);
    CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    CK(cudaMalloc(&p, 16));
    CK(cudaFree(p));
    CK(cudaEventRecord(fork, s));
    CK(cudaStreamWaitEvent(side, fork, 0));
    PI_LAUNCH(add, 1, 32, 0, side, d.p, 1);
    EQ(cudaStreamEndCapture(s, &g), cudaErrorStreamCaptureUnjoined);
    EQ(cudaStreamEndCapture(s, &g), cudaErrorIllegalState);
    EQ(cudaStreamBeginCapture(0, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
    EQ(d.get()[0], 0);
    CK(cudaEventDestroy(fork));
    CK(cudaStreamDestroy(s));
    CK(cudaStreamDestroy(side));
    (void)cudaGetLastError();
}

/* ---- launches, failures ---- */

__global__ static void big_shared(int *x)
{
    PI_DYN_SHARED(int, s);

    s[16383] = 3;
    x[0] = s[16383];
}

static void launches(void)
{
    dev<int> x(std::vector<int>(1024, 0));
    int n = 0;

    PI_LAUNCH(add, 1, 1025, 0, 0, x.p, 1);
    EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PI_LAUNCH(add, 0, 32, 0, 0, x.p, 1);
    EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PI_LAUNCH(add, dim3(1, 65536), 32, 0, 0, x.p, 1);
    EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    PI_LAUNCH(big_shared, 1, 1, 65536, 0, x.p);
    EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CK(cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    PI_LAUNCH(big_shared, 1, 1, 65536, 0, x.p);
    CK(cudaGetLastError());
    EQ(x.get()[0], 3);
    EQ(cudaFuncSetAttribute(big_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 65537), cudaErrorInvalidValue);
    CK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&n, big_shared, 256, 32768));
    EQ(n, 2);
    (void)cudaGetLastError();
}

static void failures(void)
{
    void *p = NULL, *q = NULL;
    int *x = NULL;
    cudaStream_t s = NULL;
    int n = 0;

    set_env("PI_EMU_FAIL", "cudaMalloc:2,launch:3");
    CK(cudaMalloc(&p, 16));
    EQ(cudaMalloc(&q, 16), cudaErrorMemoryAllocation);
    CK(cudaMalloc(&q, 16));
    CK(cudaFree(p));
    CK(cudaFree(q));
    CK(cudaMalloc(&x, 4));
    (void)cudaGetLastError();
    for (int i = 0; i < 4; i++) {
        PI_LAUNCH(add, 1, 1, 0, 0, x, 1);
        EQ(cudaGetLastError(), i == 2 ? cudaErrorLaunchOutOfResources : cudaSuccess);
    }
    set_env("PI_EMU_FAIL", NULL);
    CK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    set_env("PI_EMU_FAULT", "2");
    PI_LAUNCH(add, 1, 1, 0, s, x, 1);
    CK(cudaStreamSynchronize(s));
    PI_LAUNCH(add, 1, 1, 0, s, x, 1);
    EQ(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    EQ(cudaMalloc(&p, 16), cudaErrorIllegalAddress);
    EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    EQ(cudaGetLastError(), cudaErrorIllegalAddress); /* sticky */
    EQ(cudaEmuKernelsRun(), 2);
    set_env("PI_EMU_FAULT", NULL);
    CK(cudaFree(x));
    CK(cudaStreamDestroy(s));
    set_env("PI_EMU_DEVICES", "0");
    EQ(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    EQ(n, 0);
    EQ(cudaSetDevice(0), cudaErrorNoDevice);
    set_env("PI_EMU_DEVICES", NULL);
    EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
    STREQ(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory");
    STREQ(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
    (void)cudaGetLastError();
}

/* ---- cuBLAS ---- */

template <typename T> static std::vector<T> matrix(int n, int seed)
{
    std::vector<T> v((size_t)n);

    for (int i = 0; i < n; i++)
        v[(size_t)i] = T((float)((i * 7 + seed) % 13 - 6) * 0.25f);
    return v;
}

template <typename T, typename C>
static void check_gemm(cublasHandle_t h, cudaDataType_t type, cudaDataType_t type_c, bool ta, bool tb)
{
    const int m = 5, n = 4, k = 7, lda = ta ? 9 : 6, ldb = tb ? 5 : 8, ldc = 6;
    const std::vector<T> a = matrix<T>(lda * (ta ? m : k), 1), b = matrix<T>(ldb * (tb ? k : n), 2);
    const std::vector<C> c = matrix<C>(ldc * n, 3);
    const float alpha = 2.0f, beta = 0.5f;
    const dev<T> da(a), db(b);
    const dev<C> dc(c);
    int bad = 0;

    EQ(cublasGemmEx(h, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, m, n, k, &alpha, da.p, type, lda,
                    db.p, type, ldb, &beta, dc.p, type_c, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
       CUBLAS_STATUS_SUCCESS);
    const std::vector<C> got = dc.get();
    for (int j = 0; j < n; j++) {
        for (int i = 0; i < m; i++) {
            float s = 0.0f;

            for (int l = 0; l < k; l++)
                s += (float)a[(size_t)(ta ? i * lda + l : l * lda + i)] * (float)b[(size_t)(tb ? l * ldb + j : j * ldb + l)];
            bad += (float)got[(size_t)(j * ldc + i)] != (float)C(alpha * s + beta * (float)c[(size_t)(j * ldc + i)]);
        }
        bad += (float)got[(size_t)(j * ldc + m)] != (float)c[(size_t)(j * ldc + m)]; /* behind the column */
    }
    EQ(bad, 0);
}

static void blas(void)
{
    cublasHandle_t h = NULL;
    dev<char> workspace(4096);

    EQ(cublasCreate(&h), CUBLAS_STATUS_SUCCESS);
    EQ(cublasSetWorkspace(h, workspace.p, 4096), CUBLAS_STATUS_SUCCESS);
    EQ(cublasSetWorkspace(h, workspace.p, 4097), CUBLAS_STATUS_INVALID_VALUE);
    for (int t = 0; t < 4; t++) {
        check_gemm<float, float>(h, CUDA_R_32F, CUDA_R_32F, t & 1, t & 2);
        check_gemm<__half, float>(h, CUDA_R_16F, CUDA_R_32F, t & 1, t & 2);
        check_gemm<__half, __half>(h, CUDA_R_16F, CUDA_R_16F, t & 1, t & 2);
        check_gemm<__nv_bfloat16, float>(h, CUDA_R_16BF, CUDA_R_32F, t & 1, t & 2);
    }
    EQ(cublasDestroy(h), CUBLAS_STATUS_SUCCESS);
}

/* ---- a device that stops, leaks ---- */

static int die(const char *name)
{
    int *x = NULL;
    cudaStream_t s = NULL;

    (void)cudaMalloc(&x, 4);
    if (strcmp(name, "leak") == 0)
        return 0;
    (void)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    PI_LAUNCH(add, 1, 1, 0, s, x, 1); /* "stop" */
    for (int i = 0; i < 60000 && cudaEmuKernelsRun() == 0; i++) /* a busy machine may take its time */
        sleep_ms(1);
    for (int i = 0; i < 20; i++) {
        if (cudaStreamQuery(s) != cudaErrorNotReady)
            return 1;
        sleep_ms(10);
    }
    fprintf(stderr, "still running after %lu kernel\n", cudaEmuKernelsRun());
    return 3;
}

static void endings(void)
{
    int status = 0;

    OK(run_self("stop", "PI_EMU_STOP=1", &status).find("still running after 1 kernel") == 0);
    EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 3);
    OK(run_self("leak", "PI_EMU_LEAKS=1", &status).find("4 bytes of device memory") != std::string::npos);
    EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 99);
    OK(run_self("leak", NULL, &status).empty());
    EQ(status, 0);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--die") == 0)
        return die(argv[2]);
    memory();
    copies();
    spinning_kernel();
    events();
    legacy_stream();
    graphs();
    captures();
    dependent_launches();
    launches();
    failures();
    blas();
    endings();
    EQ(cudaEmuLiveAllocations(), 0);
    EQ(cudaEmuLiveObjects(), 0);
    return DONE();
}
