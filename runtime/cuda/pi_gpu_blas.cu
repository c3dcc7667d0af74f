/* pi_gpu.h: matrix products through cuBLAS. Results are the same from call to call: no atomics (cuBLAS's default), one stream a handle, a workspace of
 * its own. F32 is F32: TF32 is never allowed, and sums of F16 products are kept in F32 where they are split. */
#include "config.h"

#include "runtime/pi_gpu.h"

#define PI_NEED_CUBLAS
#include "common/pi_type.h"
#include "runtime/cuda/pi_cuda_port.cuh"
#include "runtime/cuda/pi_gpu_wait.h"

#include <limits.h>

#define CUBLAS_TRY(err, call)                                                                 \
    do {                                                                                      \
        cublasStatus_t blas_rc_;                                                              \
        if (pi_gpu_gave_up())                                                                 \
            PI_FAIL((err), PI_E_DEVICE, "%s: the GPU was given up: it had stopped", #call);   \
        blas_rc_ = (call);                                                                    \
        if (blas_rc_ != CUBLAS_STATUS_SUCCESS)                                                \
            PI_FAIL((err), blas_rc_ == CUBLAS_STATUS_ALLOC_FAILED ? PI_E_NOMEM : PI_E_DEVICE, \
                    "%s: %s", #call, cublasGetStatusString(blas_rc_));                        \
    } while (0)

extern "C" enum pi_code pi_gpu_blas_create(void *stream, const struct pi_dev_buf *workspace,
                                           void **out, struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cublasHandle_t h = NULL;
    const int math = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;

    CUBLAS_TRY(err, cublasCreate(&h));
    /* in this order: setting the stream gives the handle its own workspace back */
    CUBLAS_TRY(err, cublasSetStream(h, (cudaStream_t)stream));
    CUBLAS_TRY(err, cublasSetWorkspace(h, workspace->ptr, workspace->bytes));
    CUBLAS_TRY(err, cublasSetMathMode(h, (cublasMath_t)math));
    *out = h;
    h = NULL;
out:
    if (h != NULL && pi_gpu_may_free())
        (void)cublasDestroy(h);
    return rc;
}

extern "C" void pi_gpu_blas_destroy(void *blas)
{
    if (blas != NULL && pi_gpu_may_free())
        (void)cublasDestroy((cublasHandle_t)blas);
}

static bool cuda_type(int type, cudaDataType_t *out)
{
    switch (type) {
    case PI_TYPE_F32:
        *out = CUDA_R_32F;
        return true;
    case PI_TYPE_F16:
        *out = CUDA_R_16F;
        return true;
    case PI_TYPE_BF16:
        *out = CUDA_R_16BF;
        return true;
    default:
        return false;
    }
}

/* cuBLAS is column-major: what is C row by row is C transposed to it, and C^T = op(B)^T op(A)^T. A matrix that we see transposed is to cuBLAS as it
 * stands, and the other way round; both turns cancel. */
extern "C" enum pi_code pi_gpu_gemm(void *blas, bool trans_a, bool trans_b, uint32_t m, uint32_t n,
                                    uint32_t k, float alpha, int type, const void *a, size_t lda,
                                    const void *b, size_t ldb, float beta, float *c, size_t ldc,
                                    struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    cublasHandle_t h = (cublasHandle_t)blas;
    const cublasOperation_t op_a = trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                            op_b = trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t t;

    if (m == 0 || n == 0)
        return PI_OK;
    if (m > INT_MAX || n > INT_MAX || k > INT_MAX || lda > INT_MAX || ldb > INT_MAX ||
        ldc > INT_MAX)
        PI_FAIL(err, PI_E_RANGE, "product (%u, %u) x (%u, %u) is too large for cuBLAS", m, k, k, n);
    if (!cuda_type(type, &t))
        PI_FAIL(err, PI_E_UNSUPPORTED, "products of matrices of type %d on a GPU", type);
    if (t == CUDA_R_32F)
        CUBLAS_TRY(err, cublasSgemm(h, op_b, op_a, (int)n, (int)m, (int)k, &alpha, (const float *)b,
                                    (int)ldb, (const float *)a, (int)lda, &beta, c, (int)ldc));
    else
        CUBLAS_TRY(err, cublasGemmEx(h, op_b, op_a, (int)n, (int)m, (int)k, &alpha, b, t, (int)ldb,
                                     a, t, (int)lda, &beta, c, CUDA_R_32F, (int)ldc,
                                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
out:
    return rc;
}
