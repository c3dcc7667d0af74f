/*
 * pi_k_set.cu - which neurons to compute: the predictor's second layer, the exact gate, and the compaction of either into an ascending set.
 *
 * All blocks mark rows (hot ones, then those of the CPU); the last block to finish makes the sets from the marks by a prefix sum over words of 32 rows,
 * so that their order never depends on timing. With one token a mark is a bit, and 11,008 neurons are 344 words: one pass. With more, a mark is
 * the word of its tokens, and the last block builds the words of bits itself.
 */
#include "config.h"

#include "runtime/cuda/pi_k_ffn.cuh"
#include "runtime/cuda/pi_kernels.h"

#define SCAN_OWN   4 /* words of a thread */
#define SCAN_WORDS (SCAN_OWN * PI_FFN_THREADS)

/* Rows of one owner: hot neurons, or those of the CPU. */
struct part {
    uint32_t first; /* row of the matrix */
    uint32_t n;
    uint32_t n_items;    /* of the marking; an item is what a block does at a time */
    uint32_t first_mark; /* in words: of bits with one token, of tokens else */
    uint32_t n_words;    /* of bits */
};

struct mark_args {
    struct pi_walk walk;
    struct pi_rows w;
    const float *bias; /* by row, or NULL */
    const float *x;
    const struct pi_k_step *step;
    uint32_t n_tok;
    float threshold;   /* predictor */
    float *gate;       /* exact: (n_tok, n_hot); NULL: predictor */
    struct pi_act act; /* exact */
    struct part hot, cold;
    struct pi_rows ahead[2]; /* rows that the next kernels read of hot neurons in the set */
    uint32_t n_ahead;        /* 0..2 */
    uint32_t most_ahead;     /* neurons of one warp's rows in an item */
    struct pi_k_set set;
    struct pi_k_cold_map out; /* of cold; slot NULL: there is none */
    const uint32_t *cold_ids;
};

static __device__ uint32_t item_rows(const struct mark_args &a)
{
    return PI_FFN_ROWS * PI_FFN_WARPS / a.walk.team;
}

/* ---- marking ---- */

/* One item: rows [first, first + n) of a part. */
struct item {
    bool hot;
    uint32_t first, n;
};

static __device__ struct item item_of(const struct mark_args &a, uint32_t i)
{
    const uint32_t rows = item_rows(a);
    struct item it;

    it.hot = i < a.hot.n_items;
    it.first = (it.hot ? i : i - a.hot.n_items) * rows;
    it.n = min(rows, (it.hot ? a.hot.n : a.cold.n) - it.first);
    return it;
}

/* The calling warp's rows of an item; those that are there as bits. */
static __device__ uint32_t rows_of(const struct mark_args &a, const struct item &it,
                                   const char *(&row)[PI_FFN_ROWS])
{
    const uint32_t at = threadIdx.x / 32 / a.walk.team * PI_FFN_ROWS;
    const size_t first = (size_t)(it.hot ? a.hot.first : a.cold.first) + it.first + at;
    uint32_t present = 0;

#pragma unroll
    for (int r = 0; r < PI_FFN_ROWS; r++) {
        row[r] = a.w.data + (first + r) * a.w.row_bytes;
        present |= (uint32_t)(at + r < it.n) << r;
    }
    return present;
}

/* The (row, token) pair of an item that a thread decides on: row * NT + t is its number. */
struct pair {
    uint32_t row, t;
    bool there;
    float bias;
};

template <int NT>
static __device__ struct pair pair_of(const struct mark_args &a, const struct item &it)
{
    struct pair p;

    p.row = threadIdx.x / NT;
    p.t = threadIdx.x % NT;
    p.there = p.row < it.n;
    p.bias = 0.0f;
    if (p.there && a.bias != NULL)
        p.bias = a.bias[(size_t)(it.hot ? a.hot.first : a.cold.first) + it.first + p.row];
    return p;
}

/* Does a row with this sum, for token t, count? Exact: keeps the activation's output. */
static __device__ bool wanted(const struct mark_args &a, const struct item &it,
                              const struct pair &p, uint32_t t, float sum)
{
    float v = sum + p.bias;

    if (a.gate == NULL)
        return !(v < a.threshold);
    v = pi_act_apply(a.act, v);
    a.gate[(size_t)t * a.hot.n + it.first + p.row] = v;
    return v != 0.0f;
}

/* A warp whose lanes may each have a hot neuron that is in the set: their rows come to the L2 while the last block compacts. */
static __device__ void fetch_ahead(const struct mark_args &a, bool mine, uint32_t local)
{
    const uint32_t bits = __ballot_sync(~0u, mine);

    if (!mine || (uint32_t)__popc(bits & ((1u << threadIdx.x % 32) - 1u)) >= a.most_ahead)
        return;
    for (uint32_t i = 0; i < a.n_ahead; i++)
        pi_prefetch_l2(a.ahead[i].data + local * a.ahead[i].row_bytes,
                       (uint32_t)a.ahead[i].row_bytes);
}

/* Marks of one item from the bits of its pairs for NT tokens from t0 on. tokens: what thread row * NT has gathered of its row so far. */
template <int NT>
static __device__ void put_marks(const struct mark_args &a, const struct item &it, bool bit,
                                 uint32_t t0, uint32_t *tokens)
{
    const uint32_t lane = threadIdx.x % 32, row = threadIdx.x / NT;
    const uint32_t bits = __ballot_sync(~0u, bit);
    const uint32_t first_mark = it.hot ? a.hot.first_mark : a.cold.first_mark;

    if constexpr (NT == 1) { /* whole bytes, since items are of 8, 16 or 32 rows */
        if (threadIdx.x < 32 && lane < item_rows(a) / 8)
            reinterpret_cast<unsigned char *>(a.set.marks + first_mark)[it.first / 8 + lane] =
                (unsigned char)(bits >> 8 * lane);
        *tokens = bit;
    } else {
        *tokens |= (bits >> (lane / NT * NT) & ((1u << NT) - 1u)) << t0;
        if (lane % NT == 0 && row < it.n && t0 + NT >= a.n_tok)
            a.set.marks[first_mark + it.first + row] = *tokens;
    }
    if (it.hot && t0 + NT >= a.n_tok)
        fetch_ahead(a, lane % NT == 0 && row < it.n && *tokens != 0, it.first + row);
}

/* The ids of an item of the CPU's are asked for, since the last block will want those of its set at once. */
static __device__ void fetch_ids(const struct mark_args &a, const struct item &it)
{
    if (!it.hot && threadIdx.x == 0)
        pi_prefetch_l2(a.cold_ids + it.first, it.n * (uint32_t)sizeof(uint32_t) / 16 * 16);
}

/* Marks of all items of the block. */
template <int T, int NT> static __device__ void mark_items(const struct mark_args &a, float4 *xs)
{
    __shared__ float part[2][PI_FFN_WARPS][PI_FFN_ROWS * NT];
    const uint32_t n_items = a.hot.n_items + a.cold.n_items;
    const bool once = a.walk.n_chunks == 1 && a.n_tok <= NT;
    pi_ffn_batch<T, NT> b;
    uint32_t i = blockIdx.x, turn = 0, n_real = 0;

    for (; i < n_items; i += gridDim.x) {
        const struct item it = item_of(a, i);
        const char *rows[PI_FFN_ROWS];
        const uint32_t present = rows_of(a, it, rows);
        const struct pi_span_groups s = pi_walk_span(a.walk, 0);
        const struct pair p = pair_of<NT>(a, it);
        uint32_t tokens = 0;

        fetch_ids(a, it);

        for (uint32_t t0 = 0; t0 < a.n_tok; t0 += NT) {
            const struct pi_vectors v = {a.x + (size_t)t0 * a.walk.n_cols, a.n_tok - t0};
            float acc[PI_FFN_ROWS][NT] = {};
            bool bit = false;

            pi_walk_load<T, NT>(&b, rows, present, a.walk.n_groups, s.begin, s.end);
            if (turn == 0) {
                pi_pdl_wait(); /* weights do not depend on the kernels in front, all else does */
                pi_pdl_trigger(); /* not sooner: the kernel behind reads, before it waits, what is older than the one in front */
                n_real = a.step->n_tok;
                if (once) {
                    pi_walk_stage<T, NT>(a.walk, v, 0, xs);
                    __syncthreads();
                }
            }
            pi_walk_dot<T, NT>(a.walk, v, rows, present, xs, once, &b, acc);
            pi_walk_put<NT>(acc, part[turn & 1]);
            __syncthreads();
            if (p.there && t0 + p.t < a.n_tok)
                bit = wanted(a, it, p, t0 + p.t,
                             pi_walk_sum<NT>(a.walk, part[turn & 1], p.row / PI_FFN_ROWS,
                                             p.row % PI_FFN_ROWS, p.t));
            put_marks<NT>(a, it, bit && t0 + p.t < n_real, t0, &tokens);
            turn++;
        }
    }
}

/* ---- compaction ---- */

struct scan {
    uint32_t word[SCAN_WORDS];
    uint32_t before[SCAN_WORDS]; /* bits in the tile's words before this one */
    uint32_t warp[PI_FFN_WARPS];
};

/* Bits of word w, counted through both parts, built from marks by token; a whole warp. */
static __device__ uint32_t ballot_word(const struct mark_args &a, uint32_t w)
{
    const bool hot = w < a.hot.n_words;
    const struct part &p = hot ? a.hot : a.cold;
    const uint32_t row = (hot ? w : w - a.hot.n_words) * 32 + threadIdx.x % 32;

    return __ballot_sync(~0u, row < p.n && __ldcg(a.set.marks + p.first_mark + row) != 0);
}

/* The same where marks are bits; one thread. */
static __device__ uint32_t stored_word(const struct mark_args &a, uint32_t w)
{
    const bool hot = w < a.hot.n_words;
    const struct part &p = hot ? a.hot : a.cold;
    const uint32_t i = hot ? w : w - a.hot.n_words;
    const uint32_t left = p.n - 32 * i; /* rows from this word on */

    return __ldcg(a.set.marks + p.first_mark + i) & (left < 32 ? (1u << left) - 1u : ~0u);
}

template <int NT>
static __device__ void fill_words(const struct mark_args &a, uint32_t base, uint32_t n,
                                  struct scan *s)
{
    if constexpr (NT == 1) {
        for (uint32_t i = threadIdx.x; i < SCAN_WORDS; i += PI_FFN_THREADS)
            s->word[i] = i < n ? stored_word(a, base + i) : 0;
    } else {
        for (uint32_t i = threadIdx.x / 32; i < SCAN_WORDS; i += PI_FFN_WARPS) {
            uint32_t word = 0;

            if (i < n)
                word = ballot_word(a, base + i);
            if (threadIdx.x % 32 == 0)
                s->word[i] = word;
        }
    }
    __syncthreads();
}

/* s->before from s->word; returns the bits of the tile. */
static __device__ uint32_t scan_words(struct scan *s)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, own = SCAN_OWN * threadIdx.x;
    uint32_t count[SCAN_OWN], mine = 0, sum, total = 0, before = 0;

#pragma unroll
    for (int i = 0; i < SCAN_OWN; i++) {
        count[i] = mine;
        mine += (uint32_t)__popc(s->word[own + i]);
    }
    sum = mine;
    for (uint32_t off = 1; off < 32; off *= 2) {
        uint32_t v = __shfl_up_sync(~0u, sum, off);

        sum += lane >= off ? v : 0;
    }
    if (lane == 31)
        s->warp[warp] = sum;
    __syncthreads();
    for (uint32_t i = 0; i < PI_FFN_WARPS; i++) {
        before += i < warp ? s->warp[i] : 0;
        total += s->warp[i];
    }
#pragma unroll
    for (int i = 0; i < SCAN_OWN; i++)
        s->before[own + i] = before + sum - mine + count[i];
    __syncthreads();
    return total;
}

/* Position of the k-th bit (from 0) that is set in w. */
static __device__ uint32_t nth_bit(uint32_t w, uint32_t k)
{
    uint32_t at = 0;

#pragma unroll
    for (uint32_t half = 16; half > 0; half /= 2) {
        uint32_t below = (uint32_t)__popc(w & ((1u << half) - 1u));

        if (k >= below) {
            k -= below;
            w >>= half;
            at += half;
        }
    }
    return at;
}

#define EMIT 4 /* bits that a thread places at a time, so that their searches overlap */

/* Words of the tile that hold bits p[0..EMIT), found by halving; words behind the tile's end have all bits before them. */
static __device__ void find_words(const struct scan *s, const uint32_t (&p)[EMIT],
                                  uint32_t (&w)[EMIT])
{
#pragma unroll
    for (uint32_t step = SCAN_WORDS / 2; step > 0; step /= 2) {
#pragma unroll
        for (int i = 0; i < EMIT; i++)
            w[i] += s->before[w[i] + step] <= p[i] ? step : 0;
    }
}

/* Bits [begin, end) of the tile to their places: bit p to at + p. */
template <int NT>
static __device__ void emit(const struct mark_args &a, const struct scan *s, uint32_t base,
                            bool hot, uint32_t begin, uint32_t end, uint32_t at)
{
    uint32_t *out = hot ? a.set.local : a.out.ids, *out_tokens = hot ? a.set.tokens : a.out.tokens;
    const uint32_t *marks = a.set.marks + (hot ? a.hot.first_mark : a.cold.first_mark);
    const uint32_t first_word = hot ? 0 : a.hot.n_words;

    for (uint32_t next = begin + threadIdx.x; next < end; next += EMIT * PI_FFN_THREADS) {
        uint32_t p[EMIT], w[EMIT] = {};

#pragma unroll
        for (int i = 0; i < EMIT; i++)
            p[i] = min(next + i * PI_FFN_THREADS, end - 1);
        find_words(s, p, w);
#pragma unroll
        for (int i = 0; i < EMIT; i++) {
            uint32_t row =
                (base + w[i] - first_word) * 32 + nth_bit(s->word[w[i]], p[i] - s->before[w[i]]);
            uint32_t id = hot ? row : a.cold_ids[row];

            if (next + i * PI_FFN_THREADS < end) {
                out[at + p[i]] = id;
                out_tokens[at + p[i]] = NT == 1 ? 1u : __ldcg(marks + row);
            }
        }
    }
}

/* All of the cold set is stored: its length, then the flag. */
static __device__ void publish_cold(const struct mark_args &a, uint32_t n)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        *a.out.n = n;
        __threadfence_system();
        pi_st_release_sys(a.out.slot, a.step->step);
    }
}

/* The last block: both sets. The CPU's goes out first, while the other is written. */
template <int NT> static __device__ void compact(const struct mark_args &a, struct scan *s)
{
    const uint32_t n_words = a.hot.n_words + a.cold.n_words;
    uint32_t n_all = 0, n_hot = 0;

    for (uint32_t base = 0; base < n_words; base += SCAN_WORDS) {
        const uint32_t n = min(n_words - base, (uint32_t)SCAN_WORDS);
        uint32_t total, hot;

        fill_words<NT>(a, base, n, s);
        total = scan_words(s);
        hot = base + n <= a.hot.n_words ? total
              : base >= a.hot.n_words   ? 0
                                        : s->before[a.hot.n_words - base];
        emit<NT>(a, s, base, false, hot, total, n_all - n_hot - hot);
        if (a.out.slot != NULL && base + n == n_words)
            publish_cold(a, n_all - n_hot + total - hot);
        emit<NT>(a, s, base, true, 0, hot, n_hot);
        n_all += total;
        n_hot += hot;
        __syncthreads(); /* s is filled again */
    }
    if (n_words == 0 && a.out.slot != NULL)
        publish_cold(a, 0);
    if (threadIdx.x == 0) {
        if (a.set.n != NULL)
            *a.set.n = n_hot;
        *a.set.ticket = 0;
    }
}

template <int T, int NT>
static __global__ void __launch_bounds__(PI_FFN_THREADS, pi_ffn_blocks<T, NT>())
    mark(struct mark_args a)
{
    PI_DYN_SHARED(float4, xs);
    __shared__ uint32_t last;

    mark_items<T, NT>(a, xs);
    pi_pdl_wait(); /* for a block without items; nothing else waits twice */
    pi_pdl_trigger();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(a.set.ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last == 0)
        return;
    __threadfence();
    compact<NT>(a, reinterpret_cast<struct scan *>(xs));
}

/* ---- launching ---- */

static struct part part_of(uint32_t first, uint32_t n, uint32_t first_mark, uint32_t rows)
{
    struct part p;

    p.first = first;
    p.n = n;
    p.n_items = n / rows + (n % rows != 0);
    p.first_mark = first_mark;
    p.n_words = n / 32 + (n % 32 != 0);
    return p;
}

template <int T, int NT>
static void launch_mark(struct mark_args *a, uint32_t n_hot, uint32_t n_cold, uint32_t n_cols,
                        void *stream)
{
    const uint32_t resident = pi_ffn_blocks<T, NT>() * pi_device_sms();
    uint32_t rows, n_items, n_blocks;
    size_t smem, bytes = 0;

    a->walk = pi_walk_plan<T, NT>(n_cols, 4);
    rows = PI_FFN_ROWS * PI_FFN_WARPS / a->walk.team;
    a->hot = part_of(0, n_hot, 0, rows);
    a->cold = part_of(n_hot, n_cold, NT == 1 ? a->hot.n_words : n_hot, rows);
    n_items = a->hot.n_items + a->cold.n_items;
    n_blocks = n_items < resident ? n_items : resident;
    if (n_blocks == 0)
        n_blocks = 1;
    for (uint32_t i = 0; i < a->n_ahead; i++)
        bytes += a->ahead[i].row_bytes;
    if (rows > 32 / NT)
        rows = 32 / NT;
    if (n_hot > 0) /* a warp's share, rounded up unless there is none */
        a->most_ahead = (uint32_t)(((uint64_t)pi_ahead_neurons(bytes) * rows + n_hot - 1) / n_hot);
    smem = pi_walk_smem<T, NT>(a->walk);
    if (smem < sizeof(struct scan))
        smem = sizeof(struct scan);
    PI_LAUNCH_PDL((mark<T, NT>), n_blocks, PI_FFN_THREADS, smem, (cudaStream_t)stream, *a);
}

static void add_ahead(struct mark_args *a, const struct pi_dmat *m)
{
    a->ahead[a->n_ahead++] = pi_rows_of(m);
}

static void launch_by_type(struct mark_args *a, enum pi_type type, uint32_t n_hot, uint32_t n_cold,
                           uint32_t n_cols, void *stream)
{
#define MARK(T)                                                                   \
    PI_BY_TOKENS(a->n_tok, (launch_mark<T, 1>(a, n_hot, n_cold, n_cols, stream)), \
                 (launch_mark<T, 2>(a, n_hot, n_cold, n_cols, stream)),           \
                 (launch_mark<T, 4>(a, n_hot, n_cold, n_cols, stream)),           \
                 (launch_mark<T, 8>(a, n_hot, n_cold, n_cols, stream)))
    PI_BY_TYPE(type, MARK);
#undef MARK
}

/* Next come the up rows (and gate rows) of the hot set. */
extern "C" void pi_k_predict(const struct pi_dev_layer *layer, const float *hidden,
                             const struct pi_k_step *step, const struct pi_k_set *set,
                             const struct pi_k_cold_map *cold, uint32_t n_tok, void *stream)
{
    const struct pi_dev_predictor *p = &layer->pred;
    const bool publishes = p->predict_cold && cold != NULL && cold->slot != NULL;
    struct mark_args a = {};

    a.w = pi_rows_of(&p->fc2);
    a.bias = p->bias;
    a.x = hidden;
    a.step = step;
    a.n_tok = n_tok;
    a.threshold = p->threshold;
    a.set = *set;
    a.cold_ids = layer->cold_ids;
    if (publishes)
        a.out = *cold;
    if (!p->predict_hot)
        a.set.n = NULL;
    if (layer->gate.data != NULL)
        add_ahead(&a, &layer->gate);
    add_ahead(&a, &layer->up);
    launch_by_type(&a, p->fc2.type, p->predict_hot ? layer->n_hot : 0,
                   publishes ? layer->n_cold : 0, p->fc2.n_cols, stream);
}

/* Next come the down rows of the set, and the up rows where they were not read here. */
extern "C" void pi_k_gate_exact(const struct pi_shape *shape, const struct pi_dev_layer *layer,
                                const float *x, const struct pi_k_step *step,
                                const struct pi_k_set *set, uint32_t n_tok, void *stream)
{
    const struct pi_dmat *w = shape->gated ? &layer->gate : &layer->up;
    struct mark_args a = {};

    a.w = pi_rows_of(w);
    a.bias = shape->gated ? NULL : layer->up_b;
    a.x = x;
    a.step = step;
    a.n_tok = n_tok;
    a.gate = set->gate;
    a.act = pi_act_of(shape);
    a.set = *set;
    if (shape->gated)
        add_ahead(&a, &layer->up);
    add_ahead(&a, &layer->down_t);
    launch_by_type(&a, w->type, layer->n_hot, 0, shape->n_embd, stream);
}
