/* The CUDA emulator, kernels: what tests of GPU code rely on. */
#include "config.h"

#include "tests/emu_rig.h"

#include <math.h>
#include <time.h>

/* ---- warps ---- */

__global__ static void sum_rows(const float *x, float *y, int n)
{
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float s = 0.0f;

    for (int i = lane; i < n; i += 32)
        s += x[(size_t)row * n + i];
    for (int o = 16; o > 0; o /= 2)
        s += __shfl_xor_sync(~0u, s, o);
    if (lane == 0)
        y[row] = s;
}

static void reductions(void)
{
    const int rows = 64, n = 100;
    std::vector<float> x(rows * n);
    dev<float> y(rows);
    int bad = 0;

    for (size_t i = 0; i < x.size(); i++)
        x[i] = (float)(i % 17);
    dev<float> dx(x);
    PI_LAUNCH(sum_rows, rows / 8, 256, 0, 0, dx.p, y.p, n);
    CK(cudaGetLastError());
    const std::vector<float> got = y.get();
    for (int r = 0; r < rows; r++) {
        float want = 0.0f;

        for (int i = 0; i < n; i++)
            want += x[(size_t)r * n + i];
        bad += got[r] != want;
    }
    EQ(bad, 0);
}

/* Each lane's view of every warp function; 12 results a thread. */
__global__ static void warp_functions(unsigned *out)
{
    const int lane = threadIdx.x % 32;
    unsigned *o = out + threadIdx.x * 12;

    o[0] = __shfl_sync(~0u, lane * 10, 7);
    o[1] = __shfl_sync(~0u, lane, lane + 1, 8);
    o[2] = __shfl_up_sync(~0u, lane, 3);
    o[3] = __shfl_up_sync(~0u, lane, 3, 16);
    o[4] = __shfl_down_sync(~0u, lane, 5);
    o[5] = __shfl_down_sync(~0u, lane, 5, 16);
    o[6] = __shfl_xor_sync(~0u, lane, 17);
    o[7] = __shfl_xor_sync(~0u, lane, 17, 16);
    o[8] = __ballot_sync(~0u, lane % 3 == 0);
    o[9] = (unsigned)__any_sync(~0u, lane == 31) * 2 + (unsigned)__any_sync(~0u, lane == 32);
    o[10] = (unsigned)__all_sync(~0u, lane < 32) * 2 + (unsigned)__all_sync(~0u, lane < 31);
    __syncwarp();
    o[11] = (unsigned)(__shfl_sync(~0u, (long long)lane << 40, lane ^ 1) >> 40);
}

static void lanes(void)
{
    dev<unsigned> out(64 * 12);
    int bad[12] = {0};

    PI_LAUNCH(warp_functions, 1, 64, 0, 0, out.p);
    const std::vector<unsigned> v = out.get();
    for (unsigned t = 0; t < 64; t++) {
        const unsigned l = t % 32, *o = &v[t * 12];

        bad[0] += o[0] != 70;
        bad[1] += o[1] != (l / 8 * 8 + (l + 1) % 8);
        bad[2] += o[2] != (l >= 3 ? l - 3 : l);
        bad[3] += o[3] != (l % 16 >= 3 ? l - 3 : l);
        bad[4] += o[4] != (l + 5 < 32 ? l + 5 : l);
        bad[5] += o[5] != (l % 16 + 5 < 16 ? l + 5 : l);
        bad[6] += o[6] != (l ^ 17);
        bad[7] += o[7] != (l < 16 ? l : l ^ 17);
        bad[8] += o[8] != 0x49249249u;
        bad[9] += o[9] != 2;
        bad[10] += o[10] != 2;
        bad[11] += o[11] != (l ^ 1);
    }
    for (int i = 0; i < 12; i++)
        EQ(bad[i], 0);
}

/* ---- blocks ---- */

/* Every thread reads what its mirror wrote, twice over, in static and dynamic shared memory. */
__global__ static void mirror(int *out)
{
    __shared__ int s[256];
    PI_DYN_SHARED(int, d);
    const unsigned n = blockDim.x, t = threadIdx.x;

    s[t] = (int)(t + blockIdx.x);
    __syncthreads();
    d[t] = 2 * s[n - 1 - t];
    __syncthreads();
    out[blockIdx.x * n + t] = d[(t + 1) % n];
}

template <int N, typename T> __global__ static void templated(T *out, T add)
{
    __shared__ T s[N];

    s[threadIdx.x] = add + (T)threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = s[N - 1 - threadIdx.x];
}

static void shared_memory(void)
{
    const int n = 224, blocks = 3;
    dev<int> out(n * blocks);
    dev<float> f(64);
    int bad = 0;

    PI_LAUNCH(mirror, blocks, n, n * sizeof(int), 0, out.p);
    CK(cudaGetLastError());
    const std::vector<int> v = out.get();
    for (int b = 0; b < blocks; b++)
        for (int t = 0; t < n; t++)
            bad += v[b * n + t] != 2 * (n - 1 - (t + 1) % n + b);
    EQ(bad, 0);
    PI_LAUNCH((templated<64, float>), 1, 64, 0, 0, f.p, 0.5f);
    NEAR(f.get()[10], 53.5f, 0);
}

/* What nobody wrote: bit 0 static, 1 of a template, 2 dynamic, 3 device memory. */
template <typename T> __global__ static void fresh(const T *global, unsigned *out)
{
    __shared__ float s[4];
    __shared__ T t[4];
    PI_DYN_SHARED(float, d);

    out[blockIdx.x] = (unsigned)isnan(s[3]) + 2 * (unsigned)isnan((float)t[1]) + 4 * (unsigned)isnan(d[7]) +
                      8 * (unsigned)isnan((float)global[5]);
    s[3] = d[7] = 1.0f;
    t[1] = (T)1.0f;
}

static void poison(void)
{
    dev<__half> global(6);
    dev<unsigned> out(5);
    const std::vector<unsigned> want(5, 15);

    PI_LAUNCH((fresh<__half>), 5, 1, 32, 0, global.p, out.p);
    OK(out.get() == want);
}

__global__ static void indices(unsigned *out)
{
    const unsigned t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z),
                   b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);

    out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
}

static void three_dimensions(void)
{
    dev<unsigned> out(24 * 30);
    int bad = 0;

    PI_LAUNCH(indices, dim3(2, 3, 4), dim3(5, 3, 2), 0, 0, out.p);
    const std::vector<unsigned> v = out.get();
    for (unsigned i = 0; i < v.size(); i++)
        bad += v[i] != i / 30 * 1000 + i % 30;
    EQ(bad, 0);
}

/* The last block to finish adds up what all wrote; the ticket resets itself. */
__global__ static void last_block(int *part, unsigned *ticket, int *sum)
{
    __shared__ bool last;

    if (threadIdx.x == 0) {
        part[blockIdx.x] = (int)blockIdx.x + 1;
        __threadfence();
        last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int s = 0;

        for (unsigned i = 0; i < gridDim.x; i++)
            s += part[i];
        *sum = s;
    }
}

__global__ static void count(int *n, unsigned *u, unsigned long long *w)
{
    atomicAdd(n, 2);
    atomicMax(u, threadIdx.x);
    atomicAdd(w, 1ull << 33);
}

static void atomics(void)
{
    dev<int> part(7), sum(1), n(std::vector<int>{5});
    dev<unsigned> ticket(std::vector<unsigned>{0}), u(std::vector<unsigned>{9});
    dev<unsigned long long> w(std::vector<unsigned long long>{0});

    for (int i = 0; i < 2; i++)
        PI_LAUNCH(last_block, 7, 64, 0, 0, part.p, ticket.p, sum.p);
    EQ(sum.get()[0], 28);
    EQ(ticket.get()[0], 0);
    PI_LAUNCH(count, 3, 40, 0, 0, n.p, u.p, w.p);
    EQ(n.get()[0], 245);
    EQ(u.get()[0], 39);
    EQ(w.get()[0], 120ull << 33);
}

/* ---- numbers ---- */

static void half_conversions(void)
{
    int bad_half = 0, bad_bf16 = 0, bad_round = 0;

    for (unsigned u = 0; u < 65536; u++) {
        const float h = __half2float(__ushort_as_half((unsigned short)u)),
                    b = __bfloat162float(__ushort_as_bfloat16((unsigned short)u));
        const unsigned e = u >> 10 & 31, m = u & 1023;
        const float want = (u & 0x8000 ? -1.0f : 1.0f) *
                           (e == 31 ? (m ? NAN : INFINITY) : e == 0 ? ldexpf((float)m, -24)
                                                                    : ldexpf((float)(1024 + m), (int)e - 25));

        if (isnan(want))
            bad_half += !isnan(h) || __half_as_ushort(__float2half(h)) != 0x7fff;
        else
            bad_half += __float_as_uint(h) != __float_as_uint(want) || __half_as_ushort(__float2half_rn(h)) != u;
        if (isnan(b))
            bad_bf16 += (u & 0x7f80) != 0x7f80 || __bfloat16_as_ushort(__float2bfloat16(b)) != 0x7fff;
        else
            bad_bf16 += __float_as_uint(b) != u << 16 || __bfloat16_as_ushort(__float2bfloat16_rn(b)) != u;
        /* halfway to the next, and to either side of that: the even one, this, the next */
        if (e < 31 && u < 0x8000) {
            const float next = u == 0x7bff ? 65536.0f : __half2float(__ushort_as_half((unsigned short)(u + 1))),
                        middle = 0.5f * (h + next);

            bad_round += __half_as_ushort(__float2half(middle)) != u + (u & 1);
            bad_round += __half_as_ushort(__float2half(nextafterf(middle, 0))) != u;
            bad_round += __half_as_ushort(__float2half(nextafterf(middle, 1e6f))) != u + 1;
        }
    }
    EQ(bad_half, 0);
    EQ(bad_bf16, 0);
    EQ(bad_round, 0);
    const float2 two = __half22float2(__floats2half2_rn(1.5f, -2.0f)), bf = __bfloat1622float2(__floats2bfloat162_rn(3.0f, 4.0f));
    OK(two.x == 1.5f && two.y == -2.0f && bf.x == 3.0f && bf.y == 4.0f);
}

static void integers(void)
{
    EQ(__dp4a((int)0x807f01ff, (int)0x80ff0203, 10), 16384 - 127 + 2 - 3 + 10);
    EQ(__dp4a(0xff010203u, 0xff000001u, 1u), 255 * 255 + 3 + 1);
    EQ(__popc(0xf0f00001u), 9);
    EQ(__ffs(0), 0);
    EQ(__ffs(8), 4);
    EQ(__clz(0), 32);
    EQ(__clz(1), 31);
    EQ(min(3u, 4u) + max(1u, 2u), 5);
}

/* ---- speed ---- */

__global__ static void matvec(const __half *w, const float *x, float *y, int rows, int cols)
{
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float a = 0.0f;

    for (int i = lane; row < rows && i < cols / 8; i += 32) {
        const uint4 v = __ldcs((const uint4 *)(w + (size_t)row * cols) + i);
        const __half2 *h = (const __half2 *)&v;

        for (int j = 0; j < 4; j++) {
            const float2 f = __half22float2(h[j]);

            a = fmaf(f.x, x[i * 8 + 2 * j], a);
            a = fmaf(f.y, x[i * 8 + 2 * j + 1], a);
        }
    }
    for (int o = 16; o > 0; o /= 2)
        a += __shfl_xor_sync(~0u, a, o);
    if (lane == 0 && row < rows)
        y[row] = a;
}

static void speed(void)
{
    const int rows = 2441, cols = 4096;
    dev<__half> w(std::vector<__half>((size_t)rows * cols, __half(0.5f)));
    dev<float> x(std::vector<float>(cols, 2.0f)), y(rows);
    struct timespec a, b;

    (void)clock_gettime(CLOCK_MONOTONIC, &a);
    PI_LAUNCH(matvec, (rows + 7) / 8, 256, 0, 0, w.p, x.p, y.p, rows, cols);
    CK(cudaDeviceSynchronize());
    (void)clock_gettime(CLOCK_MONOTONIC, &b);
    printf("# 10 million weights: %.1f ms\n", 1e3 * (double)(b.tv_sec - a.tv_sec) + 1e-6 * (double)(b.tv_nsec - a.tv_nsec));
    NEAR(y.get()[rows - 1], 4096.0f, 0);
}

/* ---- what must end the program ---- */

__global__ static void early_exit(int *x)
{
    if (threadIdx.x == 5)
        return;
    __syncthreads();
    x[threadIdx.x] = 1;
}

__global__ static void two_barriers(int *x)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    x[threadIdx.x] = 1;
}

__global__ static void half_a_warp(int *x)
{
    if (threadIdx.x % 32 < 16)
        x[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
}

__global__ static void lanes_apart(int *x)
{
    if (threadIdx.x % 32 < 16)
        x[threadIdx.x] = __shfl_xor_sync(~0u, 1, 1);
    else
        __syncthreads();
}

__global__ static void some_lanes(int *x)
{
    x[threadIdx.x] = __shfl_xor_sync(0xffff, 1, 1);
}

__global__ static void small_warp(int *x)
{
    x[threadIdx.x] = __any_sync(~0u, 1);
}

__global__ static void too_far(int *x)
{
    x[threadIdx.x + blockIdx.x * 4096] = 1;
}

__global__ static void past_dynamic(int *x)
{
    PI_DYN_SHARED(int, d);

    d[threadIdx.x] = x[0] = 1;
}

__global__ static void poll_for_ever(uint32_t *x)
{
    while (pi_ld_acquire_sys(x) != 7)
        pi_nanosleep(1000);
}

struct pair {
    int *a, *b;
};

__global__ static void two_pointers(struct pair p)
{
    p.a[threadIdx.x] = 1;
}

static int die(const char *name)
{
    static const struct {
        const char *name;
        void (*kernel)(int *);
        int grid, block;
    } kernels[] = {{"early_exit", early_exit, 1, 64},     {"two_barriers", two_barriers, 1, 64},
                   {"half_a_warp", half_a_warp, 1, 64},   {"lanes_apart", lanes_apart, 1, 64},
                   {"some_lanes", some_lanes, 1, 64},     {"small_warp", small_warp, 1, 40},
                   {"too_far", too_far, 2, 64},           {"past_dynamic", past_dynamic, 1, 64}};
    int *x = NULL, on_stack[64];

    if (cudaMalloc(&x, 64 * sizeof(*x)) != cudaSuccess)
        return 0;
    for (const auto &k : kernels)
        if (strcmp(k.name, name) == 0)
            PI_LAUNCH(k.kernel, k.grid, k.block, 4 * 63, 0, x);
    if (strcmp(name, "host_pointer") == 0)
        PI_LAUNCH(too_far, 1, 64, 0, 0, on_stack);
    if (strcmp(name, "host_pointer_inside") == 0)
        PI_LAUNCH(two_pointers, 1, 64, 0, 0, pair{x, on_stack});
    if (strcmp(name, "no_wait") == 0)
        PI_LAUNCH_PDL(two_pointers, 1, 64, 0, 0, pair{x, x + 64});
    if (strcmp(name, "poll_for_ever") == 0)
        PI_LAUNCH(poll_for_ever, 1, 1, 0, 0, (uint32_t *)x);
    if (strcmp(name, "host_read") == 0)
        return x[0] == 12345;
    (void)cudaDeviceSynchronize();
    return 0;
}

static void deaths(void)
{
    dies("early_exit", NULL, "threads have ended while others wait");
    dies("early_exit", NULL, "from thread (5, 0, 0) on: has ended");
    dies("two_barriers", "PI_EMU_THREADS=random:3", "different __syncthreads");
    dies("half_a_warp", "PI_EMU_THREADS=reverse", "not all lanes of the warp come");
    dies("lanes_apart", NULL, "t_emu.cu:");
    dies("some_lanes", NULL, "without the full mask");
    dies("small_warp", NULL, "less than 32 threads");
    dies("past_dynamic", NULL, "past the end of the dynamic shared memory");
    dies("host_pointer", NULL, "argument 1 is");
    dies("host_pointer_inside", NULL, "argument 1 has, 8 bytes from its start, a pointer to the host");
    dies("no_wait", NULL, "no thread of the grid came to pi_pdl_wait");
    dies("poll_for_ever", "PI_EMU_WATCHDOG=1", "polls since");
#if !defined(__SANITIZE_ADDRESS__)
    dies("too_far", NULL, "past the end of device memory of 256 bytes");
    dies("host_read", "PI_EMU_STRICT=1", "host code: signal 11");
#else
    dies("too_far", NULL, "SEGV");
    dies("host_read", "PI_EMU_STRICT=1", "SEGV");
#endif
}

/* ---- order ---- */

__global__ static void who_was_first(int *order, int *at)
{
    if (threadIdx.x % 32 == 0)
        order[atomicAdd(at, 1)] = (int)(blockIdx.x * 2 + threadIdx.x / 32);
}

static std::vector<int> order_of_warps(const char *blocks, const char *threads)
{
    dev<int> order(16), at(std::vector<int>{0});

    (void)setenv("PI_EMU_BLOCKS", blocks, 1);
    (void)setenv("PI_EMU_THREADS", threads, 1);
    cudaEmuReload();
    PI_LAUNCH(who_was_first, 8, 64, 0, 0, order.p, at.p);
    return order.get();
}

static void orders(void)
{
    const std::vector<int> forward = order_of_warps("forward", "forward"), reverse = order_of_warps("reverse", "reverse"),
                           random = order_of_warps("random:5", "random:6"), again = order_of_warps("random:5", "random:6");
    int sum = 0;

    for (int i = 0; i < 16; i++) {
        sum += random[i];
        if (forward[i] != i || reverse[i] != 15 - i)
            OK(!"order");
    }
    EQ(sum, 120);
    OK(random != forward && random != reverse);
    (void)again;
    (void)order_of_warps("reverse", "reverse");
    reductions();
    lanes();
    shared_memory();
    (void)order_of_warps("random:1", "random:2");
    reductions();
    lanes();
    shared_memory();
    atomics();
    (void)order_of_warps("forward", "forward");
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--die") == 0)
        return die(argv[2]);
    reductions();
    lanes();
    shared_memory();
    poison();
    three_dimensions();
    atomics();
    half_conversions();
    integers();
    speed();
    orders();
    deaths();
    EQ(cudaEmuLiveAllocations(), 0);
    return DONE();
}
