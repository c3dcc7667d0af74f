/*
 * pi_k_mat.cuh - the pieces of the matrix-vector kernel of pi_k_mat.cu: which rows and tokens there are, norm while vectors are staged,
 * and what becomes of a finished sum.
 *
 * Rows are counted over all matrices of a call ("virtual" rows): each matrix begins at a multiple of MAT_R, and in rows of heads that
 * are rotated the two rows of a pair are neighbours, an even one and the odd one behind it.
 */
#ifndef PI_K_MAT_CUH
#define PI_K_MAT_CUH

#include "runtime/cuda/pi_k_dot.cuh"
#include "runtime/cuda/pi_kernels.h"

#define MAT_R         4   /* rows that a warp takes at a time: one item */
#define MAT_WARPS     12  /* of a block, at most */
#define MAT_MAX_PARTS 3   /* matrices of one call */

enum mat_kind {
    MAT_PLAIN,
    MAT_OUTPUT, /* tokens are those wanted */
    MAT_QKV
};

enum mat_role {
    MAT_Q,
    MAT_K,
    MAT_V
};

struct mat_part {
    const char *data;
    uint32_t row_units; /* 16 bytes, from row to row */
    const float *bias;  /* (n_rows) or NULL */
    uint32_t begin;     /* first virtual row */
    uint32_t n_rows;    /* of the matrix */
    enum mat_role role; /* MAT_QKV */
};

struct mat_heads {
    uint32_t head_dim, span; /* span: virtual rows of a head: head_dim, made even */
    uint32_t inv_span;       /* 2^32 / span, rounded up: quotients of rows below 2^20 are exact for spans below 2^12 */
    uint32_t n_rot;          /* 0: no rotation */
    bool neox;
    const float *inv_freq;
    float mscale, q_scale;
    bool f16; /* the cache; else F32 */
    void *k_cache, *v_cache;
    uint32_t n_ctx, n_seq, n_embd_q, n_embd_kv;
};

struct mat_args {
    enum mat_kind kind;
    struct mat_part part[MAT_MAX_PARTS];
    uint32_t n_parts, n_items; /* items of MAT_R virtual rows, over all parts */
    uint32_t n_cols, n_groups;
    const float *x; /* (n_tok, n_cols) */
    struct pi_k_norm norm;
    const struct pi_k_step *step;
    uint32_t n_tok;
    float *out; /* (n_tok, n_rows); MAT_QKV: q */
    bool add, relu;
    struct mat_heads heads;
    /* geometry: see mat_shape() */
    uint32_t n_sets;       /* sets of NT tokens; block b works on set b % n_sets */
    uint32_t n_slices;     /* warps that share an item, each a slice of its columns */
    uint32_t n_lanes;      /* items that a block has in work */
    uint32_t round_items;  /* items between two barriers, a multiple of n_lanes */
    uint32_t n_tiles;      /* pieces of the vectors that fit in shared memory */
    uint32_t n_ahead;      /* items of a block that are fetched into the L2 before the wait */
};

/* ---- rows ---- */

/* Fields of the part that virtual row v is in, chosen by value: an index would put a copy of the arguments into local memory. */
#define MAT_PART(a, v, field)                                                     \
    ((a).n_parts > 2 && (v) >= (a).part[2].begin   ? (a).part[2].field            \
     : (a).n_parts > 1 && (v) >= (a).part[1].begin ? (a).part[1].field            \
                                                   : (a).part[0].field)

/* The matrix row of virtual row v, counted from its part's begin; UINT32_MAX: there is none. */
PI_DEVICE uint32_t mat_row_of(const struct mat_args &a, enum mat_role role, uint32_t v)
{
    const struct mat_heads &h = a.heads;
    uint32_t head, j;

    if (a.kind != MAT_QKV)
        return v;
    head = (uint32_t)((uint64_t)v * h.inv_span >> 32);
    j = v - head * h.span;
    if (j >= h.head_dim)
        return UINT32_MAX;
    if (role != MAT_V && h.neox && j < h.n_rot)
        j = j / 2 + (j % 2) * (h.n_rot / 2);
    return head * h.head_dim + j;
}

/* An item's rows, as offsets in units of 16 bytes from base; the last row again where there are fewer. */
struct mat_rows {
    const char *base;
    uint32_t at[MAT_R];
};

/* The offset of row threadIdx.x % MAT_R of the item that begins at virtual row v. */
PI_DEVICE uint32_t mat_row_offset(const struct mat_args &a, uint32_t v)
{
    uint32_t n_rows = MAT_PART(a, v, n_rows);
    uint32_t row = v - MAT_PART(a, v, begin) + threadIdx.x % MAT_R;

    row = mat_row_of(a, MAT_PART(a, v, role), row);
    return (row < n_rows ? row : n_rows - 1) * MAT_PART(a, v, row_units);
}

PI_DEVICE void mat_item_rows(const struct mat_args &a, uint32_t item, struct mat_rows *rows)
{
    uint32_t mine = mat_row_offset(a, item * MAT_R);

    rows->base = MAT_PART(a, item * MAT_R, data);
#pragma unroll
    for (int r = 0; r < MAT_R; r++)
        rows->at[r] = __shfl_sync(~0u, mine, r);
}

/* Asks for an item's rows to come to the L2, and for its biases. */
PI_DEVICE void mat_prefetch_item(const struct mat_args &a, uint32_t item)
{
    uint32_t v = item * MAT_R, lane = threadIdx.x % 32, n_rows = MAT_PART(a, v, n_rows);
    const float *bias = MAT_PART(a, v, bias);
    const char *data = MAT_PART(a, v, data);

    if (lane < MAT_R)
        pi_prefetch_l2(data + (size_t)mat_row_offset(a, v) * 16, MAT_PART(a, v, row_units) * 16);
    v -= MAT_PART(a, v, begin);
    if (lane == MAT_R && bias != NULL && v + MAT_R <= n_rows)
        pi_prefetch_l2(bias + v, MAT_R * sizeof(float));
}

/* What the norm is made of, by one thread. */
PI_DEVICE void mat_prefetch_norm(const struct mat_args &a)
{
    if (a.norm.w != NULL && a.n_cols >= 4)
        pi_prefetch_l2(a.norm.w, a.n_cols / 4 * 16);
    if (a.norm.b != NULL && a.n_cols >= 4)
        pi_prefetch_l2(a.norm.b, a.n_cols / 4 * 16);
}

/* ---- tokens ---- */

/* The tokens of a block's set: src[i] is the i-th one's index, -1 behind the last. False: none. By whole warps. */
template <int NT> PI_DEVICE bool mat_tokens(const struct mat_args &a, uint32_t set, int (&src)[NT])
{
    uint32_t lane = threadIdx.x % 32, slot = UINT32_MAX;

    if (a.kind == MAT_OUTPUT && lane < a.n_tok && lane < a.step->n_tok)
        slot = a.step->want[lane];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        uint32_t s = set * NT + t;

        if (a.kind == MAT_OUTPUT)
            src[t] = s < a.step->n_want ? __ffs((int)__ballot_sync(~0u, slot == s)) - 1 : -1;
        else
            src[t] = s < a.n_tok ? (int)s : -1;
    }
    return a.kind != MAT_OUTPUT || set * NT < a.step->n_want;
}

/* ---- vectors and norm ---- */

/* Sums over warps of a block, by token. */
template <int NT> struct mat_sums {
    float of[MAT_WARPS][NT];
};

template <int NT> PI_DEVICE void mat_sums_put(struct mat_sums<NT> *s, float (&v)[NT])
{
    uint32_t lane = threadIdx.x % 32;
    float sum = pi_warp_sums<NT>(v);

    if (lane % (32 / NT) == 0)
        s->of[threadIdx.x / 32][pi_warp_sum_index<NT>((int)lane)] = sum;
}

template <int NT> PI_DEVICE float mat_sums_get(const struct mat_sums<NT> *s, uint32_t t)
{
    float sum = 0.0f;

    for (uint32_t w = 0; w < blockDim.x / 32; w++)
        sum += s->of[w][t];
    return sum;
}

PI_DEVICE float mat_inv_std(const struct mat_args &a, float sum_squares)
{
    return 1.0f / sqrtf(sum_squares / (float)a.n_cols + a.norm.eps);
}

/* What staging needs to know of LayerNorm: means and inverse deviations. */
template <int NT> struct mat_stats {
    float mean[NT], inv[NT];
};

PI_DEVICE float mat_square_off(float4 v, float mean, uint32_t i, uint32_t n)
{
    float a = i < n ? v.x - mean : 0.0f, b = i + 1 < n ? v.y - mean : 0.0f;
    float c = i + 2 < n ? v.z - mean : 0.0f, d = i + 3 < n ? v.w - mean : 0.0f;

    return fmaf(d, d, fmaf(c, c, fmaf(b, b, a * a)));
}

PI_DEVICE float4 mat_x(const struct mat_args &a, int src, uint32_t f)
{
    if (src < 0)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    return pi_x_get(a.x + (size_t)src * a.n_cols, a.n_cols, f, a.n_cols % 4 == 0);
}

/* Mean and deviation in two passes, as pi_layer_norm() has them. sums: two of them; synchronises. */
template <int NT>
PI_DEVICE void mat_layer_stats(const struct mat_args &a, const int (&src)[NT],
                               struct mat_sums<NT> *sums, struct mat_stats<NT> *st)
{
    uint32_t n4 = (a.n_cols + 3) / 4;
    float v[NT] = {};

#pragma unroll 1
    for (uint32_t f = threadIdx.x; f < n4; f += blockDim.x) {
#pragma unroll
        for (int t = 0; t < NT; t++) {
            float4 x = mat_x(a, src[t], f);

            v[t] += (x.x + x.y) + (x.z + x.w);
        }
    }
    mat_sums_put<NT>(&sums[0], v);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < NT; t++) {
        st->mean[t] = mat_sums_get<NT>(&sums[0], t) / (float)a.n_cols;
        v[t] = 0.0f;
    }
#pragma unroll 1
    for (uint32_t f = threadIdx.x; f < n4; f += blockDim.x) {
#pragma unroll
        for (int t = 0; t < NT; t++)
            v[t] += mat_square_off(mat_x(a, src[t], f), st->mean[t], 4 * f, a.n_cols);
    }
    mat_sums_put<NT>(&sums[1], v);
    __syncthreads();
#pragma unroll
    for (int t = 0; t < NT; t++)
        st->inv[t] = mat_inv_std(a, mat_sums_get<NT>(&sums[1], t));
}

PI_DEVICE float4 mat_layer_norm(const struct mat_args &a, float4 v, float mean, float inv, float4 w,
                                uint32_t f)
{
    bool vec = a.n_cols % 4 == 0;
    float4 b = a.norm.b == NULL ? make_float4(0.0f, 0.0f, 0.0f, 0.0f)
                                : pi_x_get(a.norm.b, a.n_cols, f, vec);

    /* w and b are zero behind the last column */
    return make_float4((v.x - mean) * inv * w.x + b.x, (v.y - mean) * inv * w.y + b.y,
                       (v.z - mean) * inv * w.z + b.z, (v.w - mean) * inv * w.w + b.w);
}

/* Float4s [f0, f0 + n4) of all vectors into xs, normed, but for the factor of RMSNorm: that is applied to finished sums, so that nothing here
 * waits for it; squares collects what it is made of. */
template <int T, int NT>
PI_DEVICE void mat_stage(const struct mat_args &a, const int (&src)[NT],
                         const struct mat_stats<NT> &st, uint32_t f0, uint32_t n4, float4 *xs,
                         uint32_t plane, float (&squares)[NT])
{
    const bool normed = a.norm.w != NULL, layer = normed && a.norm.layer_norm;

#pragma unroll 1
    for (uint32_t f = threadIdx.x; f < n4; f += blockDim.x) {
        float4 w = normed ? pi_x_get(a.norm.w, a.n_cols, f0 + f, a.n_cols % 4 == 0)
                          : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        float4 v[NT];

#pragma unroll
        for (int t = 0; t < NT; t++)
            v[t] = mat_x(a, src[t], f0 + f);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            squares[t] = pi_dot4(v[t], v[t], squares[t]);
            if (layer)
                v[t] = mat_layer_norm(a, v[t], st.mean[t], st.inv[t], w, f0 + f);
            else
                v[t] = make_float4(v[t].x * w.x, v[t].y * w.y, v[t].z * w.z, v[t].w * w.w);
            xs[t * plane * pi_wt<T>::P + pi_x_at<T>(f, plane)] = v[t];
        }
    }
}

/* ---- finished sums ---- */

/* Cosine and sine of an angle of a few millions at most. sincosf() would bring its reduction of huge arguments along, and that a stack. The
 * multiple of pi / 2 comes off in double precision, the rest is Taylor's series, at most pi / 4 from zero: its first missing terms are
 * 2e-10 (sine) and 1e-10. */
PI_DEVICE void mat_rotation(float angle, float *c, float *s)
{
    double n = rint((double)angle * 0.63661977236758134308);
    float r = (float)fma(n, -1.57079632679489661923, (double)angle), r2 = r * r;
    int quarter = (int)n;
    float sine, cosine;

    sine = fmaf(r2, fmaf(r2, fmaf(r2, 1.0f / 362880, -1.0f / 5040), 1.0f / 120), -1.0f / 6);
    sine = fmaf(sine * r2, r, r);
    cosine = fmaf(r2, fmaf(r2, fmaf(r2, -1.0f / 3628800, 1.0f / 40320), -1.0f / 720), 1.0f / 24);
    cosine = fmaf(r2 * r2, cosine, fmaf(r2, -0.5f, 1.0f));
    *c = quarter & 1 ? sine : cosine;
    *s = quarter & 1 ? cosine : sine;
    *c = (quarter + 1) & 2 ? -*c : *c;
    *s = quarter & 2 ? -*s : *s;
}

PI_DEVICE void mat_put(const struct mat_args &a, uint32_t v, uint32_t slot, float sum)
{
    const struct mat_part &p = a.part[0];
    float *out = a.out + (size_t)slot * p.n_rows + v;

    if (v >= p.n_rows)
        return;
    sum += p.bias != NULL ? p.bias[v] : 0.0f;
    if (a.add)
        sum += *out;
    *out = a.relu && !(sum > 0.0f) ? 0.0f : sum;
}

/* Element i of token t's row: a query, or a key or value in the cache; the spare row takes those of padding tokens. */
PI_DEVICE void mat_put_head(const struct mat_args &a, enum mat_role role, uint32_t i, uint32_t t,
                            float v)
{
    const struct mat_heads &h = a.heads;
    size_t row;

    if (role == MAT_Q) {
        a.out[(size_t)t * h.n_embd_q + i] = v * h.q_scale;
        return;
    }
    row = t < a.step->n_tok ? (size_t)a.step->seq[t] * h.n_ctx + (uint32_t)a.step->pos[t]
                            : (size_t)h.n_seq * h.n_ctx;
    row = row * h.n_embd_kv + i;
    if (h.f16)
        ((__half *)(role == MAT_K ? h.k_cache : h.v_cache))[row] = __float2half_rn(v);
    else
        ((float *)(role == MAT_K ? h.k_cache : h.v_cache))[row] = v;
}

/* Rows v and v + 1 of token t: rotated if they are a pair (RoFormer, eq. 34), as pi_ops_rotation() and pi_ops_rope() do. */
PI_DEVICE void mat_put_pair(const struct mat_args &a, uint32_t v, uint32_t t, float x, float y)
{
    const struct mat_heads &h = a.heads;
    const float *bias = MAT_PART(a, v, bias);
    enum mat_role role = MAT_PART(a, v, role);
    uint32_t n_rows = MAT_PART(a, v, n_rows), own = v - MAT_PART(a, v, begin);
    uint32_t row0 = mat_row_of(a, role, own), row1 = mat_row_of(a, role, own + 1);
    uint32_t j = own - (uint32_t)((uint64_t)own * h.inv_span >> 32) * h.span;

    if (row0 >= n_rows)
        return;
    if (bias != NULL) {
        x += bias[row0];
        y += row1 < n_rows ? bias[row1] : 0.0f;
    }
    if (role != MAT_V && j < h.n_rot) {
        float c, s, x0 = x;

        mat_rotation((float)a.step->pos[t] * h.inv_freq[j / 2], &c, &s);
        c *= h.mscale;
        s *= h.mscale;
        x = x0 * c - y * s;
        y = x0 * s + y * c;
    }
    mat_put_head(a, role, row0, t, x);
    if (row1 < n_rows)
        mat_put_head(a, role, row1, t, y);
}

/* A round's sums: slices in order, RMSNorm's factor, and away. sums: (n_slices, round_items * MAT_R, NT). A thread has two rows of one token. */
template <int NT>
PI_DEVICE void mat_finish(const struct mat_args &a, uint32_t set, uint32_t first, uint32_t n_items,
                          const float *sums, const struct mat_sums<NT> *squares)
{
    const bool rms = a.norm.w != NULL && !a.norm.layer_norm;
    uint32_t stride = a.round_items * MAT_R * NT;
    uint32_t n_slots = a.kind == MAT_OUTPUT ? a.step->n_want : a.n_tok;

    for (uint32_t i = threadIdx.x; i < n_items * (MAT_R / 2) * NT; i += blockDim.x) {
        uint32_t t = i % NT, r = i / NT * 2, slot = set * NT + t;
        const float *p = sums + r * NT + t;
        float x = 0.0f, y = 0.0f;

        if (slot >= n_slots)
            continue;
        for (uint32_t s = 0; s < a.n_slices; s++) {
            x += p[s * stride];
            y += p[s * stride + NT];
        }
        if (rms) {
            float inv = mat_inv_std(a, mat_sums_get<NT>(squares, t));

            x *= inv;
            y *= inv;
        }
        if (a.kind == MAT_QKV) {
            mat_put_pair(a, first * MAT_R + r, slot, x, y);
        } else {
            mat_put(a, first * MAT_R + r, slot, x);
            mat_put(a, first * MAT_R + r + 1, slot, y);
        }
    }
}

#endif
