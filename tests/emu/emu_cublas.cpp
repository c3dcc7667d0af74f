/* The cuBLAS stand-in: F32 copies of the operands, then sums in the order of k. */
#include "tests/emu/emu_int.h"

struct cublasContext {
    cudaStream_t stream;
};

static size_t size_of(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static float load(const char *p, cudaDataType_t type)
{
    if (type == CUDA_R_32F)
        return *(const float *)p;
    return type == CUDA_R_16F ? (float)*(const __half *)p : (float)*(const __nv_bfloat16 *)p;
}

struct operand {
    const char *p;
    cudaDataType_t type;
    int ld;
    bool transposed;
};

/* op(x) of rows x cols, column-major in x, row-major as F32 in the result where by_row, else column-major. */
static std::vector<float> unpack(const struct operand *x, int rows, int cols, bool by_row)
{
    std::vector<float> out((size_t)rows * (size_t)cols);

    for (int j = 0; j < cols; j++)
        for (int i = 0; i < rows; i++) {
            const size_t at = x->transposed ? (size_t)i * (size_t)x->ld + (size_t)j : (size_t)j * (size_t)x->ld + (size_t)i;

            out[by_row ? (size_t)i * (size_t)cols + (size_t)j : (size_t)j * (size_t)rows + (size_t)i] =
                load(x->p + at * size_of(x->type), x->type);
        }
    return out;
}

struct gemm {
    int m, n, k;
    float alpha, beta;
    struct operand a, b;
    char *c;
    cudaDataType_t type_c;
    int ldc;
};

static void run_gemm(const struct gemm *g)
{
    const std::vector<float> a = unpack(&g->a, g->m, g->k, false), b = unpack(&g->b, g->k, g->n, false);
    std::vector<float> column((size_t)g->m);

    for (int j = 0; j < g->n; j++) {
        std::fill(column.begin(), column.end(), 0.0f);
        for (int k = 0; k < g->k; k++) {
            const float x = b[(size_t)j * (size_t)g->k + (size_t)k], *restrict_a = &a[(size_t)k * (size_t)g->m];

            for (int i = 0; i < g->m; i++)
                column[(size_t)i] += restrict_a[i] * x;
        }
        for (int i = 0; i < g->m; i++) {
            char *c = g->c + ((size_t)j * (size_t)g->ldc + (size_t)i) * size_of(g->type_c);
            /* beta 0: C is not read, it may be NaN */
            const float v = g->alpha * column[(size_t)i] + (g->beta != 0.0f ? g->beta * load(c, g->type_c) : 0.0f);

            if (g->type_c == CUDA_R_32F)
                *(float *)c = v;
            else if (g->type_c == CUDA_R_16F)
                *(__half *)c = __half(v);
            else
                *(__nv_bfloat16 *)c = __nv_bfloat16(v);
        }
    }
}

/* ---- the interface ---- */

cublasStatus_t cublasCreate(cublasHandle_t *h)
{
    if (emu_enter(__func__, cudaErrorMemoryAllocation) != cudaSuccess)
        return CUBLAS_STATUS_ALLOC_FAILED;
    if (emu_capture_check() != cudaSuccess)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *h = new cublasContext();
    emu_object(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t h)
{
    if (h == NULL)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    emu_object(-1);
    delete h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t s)
{
    h->stream = s;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t, void *workspace, size_t n)
{
    size_t left = 0;

    if ((uintptr_t)workspace % 256 != 0 || (n > 0 && (emu_memory_of(workspace, &left) != EMU_DEVICE || left < n)))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an invalid value was passed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    default:
        return "the functionality is not supported";
    }
}

static bool known(cudaDataType_t type)
{
    return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF;
}

/* Whether a matrix of rows x cols with that leading dimension lies in device or pinned memory. */
static bool inside(const void *p, cudaDataType_t type, int rows, int cols, int ld)
{
    size_t left = 0;

    return emu_memory_of(p, &left) != EMU_PAGEABLE &&
           ((size_t)(cols - 1) * (size_t)ld + (size_t)rows) * size_of(type) <= left;
}

static cublasStatus_t check(const struct gemm *g)
{
    const int rows_a = g->a.transposed ? g->k : g->m, rows_b = g->b.transposed ? g->n : g->k;

    if (g->m < 0 || g->n < 0 || g->k < 0 || g->a.ld < std::max(1, rows_a) || g->b.ld < std::max(1, rows_b) ||
        g->ldc < std::max(1, g->m))
        return CUBLAS_STATUS_INVALID_VALUE;
    /* As cuBLAS: both operands of one type; F32 only with F32, and half results from the same half. */
    if (!known(g->a.type) || g->a.type != g->b.type || !known(g->type_c) ||
        (g->type_c != CUDA_R_32F && g->type_c != g->a.type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (g->m == 0 || g->n == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (g->k > 0 && (!inside(g->a.p, g->a.type, rows_a, g->m + g->k - rows_a, g->a.ld) ||
                     !inside(g->b.p, g->b.type, rows_b, g->k + g->n - rows_b, g->b.ld)))
        emu_die("cuBLAS: an operand of (%d, %d, %d) is not within device memory", g->m, g->n, g->k);
    if (!inside(g->c, g->type_c, g->m, g->n, g->ldc))
        emu_die("cuBLAS: the result (%d, %d) is not within device memory", g->m, g->n);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                          int k, const void *alpha, const void *a, cudaDataType_t type_a, int lda,
                                          long long stride_a, const void *b, cudaDataType_t type_b, int ldb,
                                          long long stride_b, const void *beta, void *c, cudaDataType_t type_c,
                                          int ldc, long long stride_c, int batch, cublasComputeType_t,
                                          cublasGemmAlgo_t)
{
    std::vector<struct gemm> all;

    if (emu_enter("cublasGemmEx", cudaErrorLaunchFailure) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    for (int i = 0; i < batch; i++) {
        struct gemm g = {m, n, k, *(const float *)alpha, *(const float *)beta,
                         {(const char *)a + i * stride_a * (long long)size_of(type_a), type_a, lda, ta == CUBLAS_OP_T},
                         {(const char *)b + i * stride_b * (long long)size_of(type_b), type_b, ldb, tb == CUBLAS_OP_T},
                         (char *)c + i * stride_c * (long long)size_of(type_c), type_c, ldc};
        const cublasStatus_t status = check(&g);

        if (status != CUBLAS_STATUS_SUCCESS)
            return status;
        all.push_back(g);
    }
    if (emu_enqueue(h->stream, [all]() {
            emu_other_runs();
            for (const auto &g : all)
                run_gemm(&g);
        }) != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                            const void *alpha, const void *a, cudaDataType_t type_a, int lda, const void *b,
                            cudaDataType_t type_b, int ldb, const void *beta, void *c, cudaDataType_t type_c, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c, type_c,
                                      ldc, 0, 1, compute, algo);
}

cublasStatus_t cublasSgemm(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                           const float *alpha, const float *a, int lda, const float *b, int ldb, const float *beta,
                           float *c, int ldc)
{
    return cublasGemmEx(h, ta, tb, m, n, k, alpha, a, CUDA_R_32F, lda, b, CUDA_R_32F, ldb, beta, c, CUDA_R_32F, ldc,
                        CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}
