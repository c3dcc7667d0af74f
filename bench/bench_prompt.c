/*
 * bench_prompt - prompt chunks on a GPU with cold neurons on the CPU: tokens/s, and what streaming reaches of PCIe, for the ways there are.
 *
 * bench_prompt MODEL.gguf [HOT [TOKENS [START [THREADS]]]]
 * The first HOT (default 0.18) of each layer's neurons lives on the GPU, attention and output all there. Chunks of TOKENS (default 512) at position START (default 0),
 * the best of three after one to warm up. Any model will do: the time does not depend on the weights' values.
 */
#include "config.h"

#include "common/pi_alloc.h"
#include "runtime/pi_device.h"
#include "runtime/pi_engine_int.h"
#include "runtime/pi_gpu_prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(call)                                        \
    do {                                                  \
        if ((call) != PI_OK) {                            \
            fprintf(stderr, "bench_prompt: %s\n", e.msg); \
            exit(1);                                      \
        }                                                 \
    } while (0)

#define N_RUNS 4

static struct pi_err e;

struct bench {
    struct pi_model m;
    struct pi_pool *pool;
    struct pi_placement place;
    struct pi_engine *engine;
    struct pi_dev_model dm;
    uint32_t n_tok;
    int32_t *token, *pos;
    bool *want;
    float *logits;
    double pcie;
};

static void open_all(struct bench *b, const char *path, double hot, uint32_t start,
                     uint32_t n_threads)
{
    const struct pi_model_options mo = {.check_crc = false};
    struct pi_gpu_speed speed;

    MUST(pi_gpu_measure(0, &speed, &e));
    b->pcie = speed.pcie;
    MUST(pi_model_open(path, &mo, &b->m, &e));
    MUST(pi_pool_create(n_threads != 0 ? n_threads : pi_device_threads(), &b->pool, &e));
    MUST(pi_placement_cpu(b->m.shape.n_layer, b->m.shape.n_ff, &b->place, &e));
    b->place.n_units = 2;
    b->place.output_unit = 1;
    for (uint32_t l = 0; l < b->place.n_layer; l++) {
        b->place.layers[l].n_hot = (uint32_t)(hot * b->m.shape.n_ff);
        b->place.layers[l].hot_unit = b->place.layers[l].attn_unit = 1;
    }
    b->token = calloc(b->n_tok, sizeof(*b->token));
    b->pos = calloc(b->n_tok, sizeof(*b->pos));
    b->want = calloc(b->n_tok, sizeof(*b->want));
    b->logits = calloc(b->m.shape.n_vocab, sizeof(*b->logits));
    if (b->token == NULL || b->pos == NULL || b->want == NULL || b->logits == NULL)
        exit(1);
    for (uint32_t t = 0; t < b->n_tok; t++) {
        b->token[t] = (int32_t)(t * 31 % b->m.shape.n_vocab);
        b->pos[t] = (int32_t)(start + t);
    }
    b->want[b->n_tok - 1] = true;
}

/* The state that chunks work on, and the part of the model that is on the GPU. */
static void make_engine(struct bench *b, uint32_t start)
{
    const struct pi_engine_options eo = {.n_ctx = start + b->n_tok,
                                         .n_seq = 1,
                                         .n_batch = b->n_tok,
                                         .kv_type = PI_TYPE_F16,
                                         .two_units = true};
    struct pi_dev_model_options mo = {
        .n_ctx = start + b->n_tok, .n_seq = 1, .kv_type = PI_TYPE_F16};

    MUST(pi_engine_create(&b->m, NULL, &b->place, b->pool, &eo, &b->engine, &e));
    mo.mode = b->engine->s.mode;
    MUST(pi_dev_model_create(&b->m, NULL, &b->place, b->engine->tables, b->pool, &mo, &b->dm, &e));
}

static void run_way(struct bench *b, const char *name, const struct pi_gpu_prompt_options *o)
{
    struct pi_gpu_prompt_options opt = *o;
    struct pi_state *s = &b->engine->s;
    struct pi_gpu_prompt_stats st, best = {0};
    struct pi_gpu_prompt *p;

    opt.n_batch = b->n_tok;
    MUST(pi_gpu_prompt_create(&b->dm, s, &opt, &p, &e));
    for (int i = 0; i < N_RUNS; i++) {
        s->n_tok = b->n_tok;
        s->token = b->token;
        s->pos = b->pos;
        s->seq = NULL;
        s->want = b->want;
        s->logits = b->logits;
        MUST(pi_gpu_prompt_run(p, s, &e));
        pi_gpu_prompt_take_stats(p, &st);
        if (i == 1 || (i > 1 && st.seconds_total < best.seconds_total))
            best = st;
    }
    printf("%-32s %9.1f tokens/s %8.1f ms", name, b->n_tok / best.seconds_total,
           1e3 * best.seconds_total);
    if (best.bytes_streamed > 0)
        printf("   streamed %6.2f GB at %5.1f GB/s, %3.0f %% of PCIe (copies alone %3.0f %%)%s",
               (double)best.bytes_streamed / 1e9,
               (double)best.bytes_streamed / best.seconds_streaming / 1e9,
               100.0 * (double)best.bytes_streamed / best.seconds_streaming / b->pcie,
               100.0 * (double)best.bytes_streamed / best.seconds_copying / b->pcie,
               best.bytes_direct > 0 ? ", direct" : "");
    printf("\n");
    pi_gpu_prompt_destroy(p);
}

static void run_all(struct bench *b)
{
    static const uint64_t mib[] = {2, 4, 8, 16};
    static const struct {
        const char *name;
        enum pi_prompt_fill fill;
    } fills[] = {{"stores", PI_PROMPT_FILL_STORES}, {"streaming", PI_PROMPT_FILL_STREAMING}};
    char name[64];

    for (int f = 0; f < 2; f++)
        for (int k = 0; k < 4; k++)
            for (uint32_t slots = 3; slots <= 6; slots += 3) {
                const struct pi_gpu_prompt_options o = {.cold = PI_PROMPT_COLD_STREAM,
                                                        .fill = fills[f].fill,
                                                        .slot_bytes = mib[k] << 20,
                                                        .pin_slots = slots};

                (void)snprintf(name, sizeof(name), "%s, %u slots of %u MiB", fills[f].name, slots,
                               (unsigned)mib[k]);
                run_way(b, name, &o);
            }
    run_way(b, "direct",
            &(struct pi_gpu_prompt_options){.cold = PI_PROMPT_COLD_STREAM,
                                            .fill = PI_PROMPT_FILL_DIRECT});
    run_way(b, "F32 products, stores",
            &(struct pi_gpu_prompt_options){.cold = PI_PROMPT_COLD_STREAM, .f32_gemm = true});
    run_way(b, "cold neurons on the CPU",
            &(struct pi_gpu_prompt_options){.cold = PI_PROMPT_COLD_CPU});
}

int main(int argc, char **argv)
{
    const double hot = argc > 2 ? strtod(argv[2], NULL) : 0.18;
    const uint32_t start = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 0;
    struct bench b = {.n_tok = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 512};

    if (argc < 2 || !(hot >= 0.0 && hot <= 1.0) || b.n_tok == 0) {
        fprintf(stderr, "usage: bench_prompt MODEL.gguf [HOT [TOKENS [START [THREADS]]]]\n");
        return 2;
    }
    open_all(&b, argv[1], hot, start, argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0);
    make_engine(&b, start);
    printf("%s: %.0f %% of neurons hot, %u tokens from position %u, %u threads, PCIe %.1f GB/s\n",
           argv[1], 100.0 * hot, b.n_tok, start, pi_pool_size(b.pool), b.pcie / 1e9);
    run_all(&b);
    pi_engine_destroy(b.engine);
    pi_dev_model_free(&b.dm);
    pi_placement_free(&b.place);
    pi_pool_destroy(b.pool);
    pi_model_close(&b.m);
    free(b.token);
    free(b.pos);
    free(b.want);
    free(b.logits);
    return 0;
}
