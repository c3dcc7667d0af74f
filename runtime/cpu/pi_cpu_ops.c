/* Element-wise pieces of the model. Sums that a result hangs on are kept in F64. */
#include "config.h"

#include "runtime/cpu/pi_cpu.h"

#include <math.h>

void pi_rms_norm(const struct pi_cpu *cpu, const float *x, const float *w, float eps, float *out,
                 uint32_t n)
{
    float scale = 1.0f / sqrtf(cpu->sum_squares(x, n) / (float)n + eps);

    for (uint32_t i = 0; i < n; i++)
        out[i] = x[i] * scale * w[i];
}

void pi_layer_norm(const float *x, const float *w, const float *b, float eps, float *out,
                   uint32_t n)
{
    double sum = 0.0, sq = 0.0;
    float mean, scale;

    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i];
    mean = (float)(sum / n);
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)x[i] - sum / n;

        sq += d * d;
    }
    scale = (float)(1.0 / sqrt(sq / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        out[i] = (x[i] - mean) * scale * w[i] + (b != NULL ? b[i] : 0.0f);
}

/* The pair i of a head is (i, i + n_rot / 2) in NeoX order, else (2i, 2i + 1). */
void pi_rope(float *x, uint32_t n_heads, uint32_t head_dim, uint32_t n_rot, bool neox, int32_t pos,
             const float *inv_freq, float mscale)
{
    uint32_t half = n_rot / 2;

    for (uint32_t i = 0; i < half; i++) {
        float angle = (float)pos * inv_freq[i];
        float c = cosf(angle) * mscale, s = sinf(angle) * mscale;
        uint32_t at0 = neox ? i : 2 * i, at1 = neox ? i + half : 2 * i + 1;

        for (uint32_t h = 0; h < n_heads; h++) {
            float *head = x + (size_t)h * head_dim;
            float a = head[at0], b = head[at1];

            head[at0] = a * c - b * s;
            head[at1] = a * s + b * c;
        }
    }
}

void pi_softmax(float *x, uint32_t n)
{
    float max = -INFINITY, scale;
    double sum = 0.0;

    for (uint32_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max; /* fmaxf() is a call */
    for (uint32_t i = 0; i < n; i++) {
        x[i] = expf(x[i] - max);
        sum += (double)x[i];
    }
    scale = (float)(1.0 / sum);
    for (uint32_t i = 0; i < n; i++)
        x[i] *= scale;
}
