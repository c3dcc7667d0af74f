/*
 * t_gpu_alone.c - on a GPU beside the CPU a sequence has the logits that it has alone, to the last bit, whoever decodes in the same step: in every mode, with every kind of
 * placement, for every number of tokens that graphs are made for.
 */
#include "config.h"

#include "runtime/pi_gpu.h"

#include "tests/engine_rig.h"

#define MAX_SEQ 32
#define N_STEPS 2
#define LATEST  1 /* rounds after the first in which the last sequences begin */

/* Two layers: where attention is, and how many neurons are hot. */
struct split {
    const char *name;
    uint8_t attn_even, attn_odd, output;
    uint32_t n_hot_even, n_hot_odd; /* in percent */
};

static const struct split in_vram = {"all in VRAM", 1, 1, 1, 100, 100},
                          half = {"neurons split", 1, 1, 1, 50, 35},
                          mixed = {"attention split", 0, 1, 1, 60, 30},
                          merged_on_cpu = {"the end on the CPU", 1, 0, 0, 100, 45};

static const enum pi_mode modes[] = {PI_MODE_DENSE, PI_MODE_EXACT, PI_MODE_PREDICTED};
static const char *const mode_names[] = {"dense", "exact", "predicted"};

static void place(struct rig *r, const struct split *s)
{
    for (uint32_t l = 0; l < r->t.n_layer; l++) {
        r->layers[l].attn_unit = l & 1 ? s->attn_odd : s->attn_even;
        r->layers[l].n_hot = r->t.n_ff * (l & 1 ? s->n_hot_odd : s->n_hot_even) / 100;
    }
    r->place.output_unit = s->output;
}

static int32_t token_of(const struct rig *r, uint32_t seq, uint32_t step)
{
    return (int32_t)((seq * 7 + step * 3 + seq * step + 1) % r->t.n_vocab);
}

/* Steps of n_seq sequences, one by one; logits (n_seq, N_STEPS, n_vocab). */
static void alone(struct rig *r, struct pi_engine *e, uint32_t n_seq, float *out)
{
    for (uint32_t q = 0; q < n_seq; q++) {
        for (uint32_t step = 0; step < N_STEPS; step++) {
            int32_t tok = token_of(r, q, step), pos = (int32_t)step;
            struct pi_batch b = {.n_tok = 1, .token = &tok, .pos = &pos, .seq = &q};

            PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b,
                                 out + ((size_t)q * N_STEPS + step) * r->t.n_vocab, &r->e),
                   r->e);
        }
    }
}

/* The same, together: sequences begin in different rounds, the last one first, so that they have different positions, and steps different numbers of tokens. Returns how many logits of
 * how many tokens differ. */
static uint32_t together(struct rig *r, struct pi_engine *e, uint32_t n_seq, const float *ref)
{
    const uint32_t v = r->t.n_vocab;
    float *out = malloc(sizeof(*out) * n_seq * v);
    uint32_t differ = 0;

    for (uint32_t round = 0; round < N_STEPS + LATEST; round++) {
        int32_t tok[MAX_SEQ], pos[MAX_SEQ];
        uint32_t seq[MAX_SEQ], n = 0;
        struct pi_batch b = {.token = tok, .pos = pos, .seq = seq};

        for (uint32_t k = 0; k < n_seq; k++) {
            const uint32_t q = n_seq - 1 - k, begin = n_seq > 2 && k % 4 == 3 ? LATEST : 0;

            if (round < begin || round - begin >= N_STEPS)
                continue;
            seq[n] = q;
            tok[n] = token_of(r, q, round - begin);
            pos[n++] = (int32_t)(round - begin);
        }
        b.n_tok = n;
        if (n == 0)
            continue;
        PASSES(pi_engine_run(e, PI_PHASE_DECODE, &b, out, &r->e), r->e);
        for (uint32_t i = 0; i < n; i++)
            differ += memcmp(out + (size_t)i * v,
                             ref + ((size_t)seq[i] * N_STEPS + (uint32_t)pos[i]) * v,
                             v * sizeof(*out)) != 0;
    }
    free(out);
    return differ;
}

static void check(struct rig *r, const struct split *sp, int mode, uint32_t most, bool q8)
{
    struct pi_engine_options o = {.kv_type = PI_TYPE_F16,
                                  .on_gpu = true,
                                  .mode = modes[mode],
                                  .n_seq = most,
                                  .gpu_handover = PI_HANDOVER_SPIN,
                                  .force_predicted = true,
                                  .act = q8 ? PI_ACT_TYPE_Q8 : PI_ACT_TYPE_F32};
    float *ref = malloc(sizeof(*ref) * most * N_STEPS * r->t.n_vocab);
    struct pi_engine *e;

    place(r, sp);
    e = engine(r, &o);
    alone(r, e, most, ref);
    for (uint32_t n = 2; n <= most; n = n == 2 ? 3 : n == 3 ? 4 : 2 * n) {
        uint32_t differ = together(r, e, n, ref);

        if (differ > 0)
            printf("# %s, %s, %u sequences: %u tokens differ\n", sp->name, mode_names[mode], n,
                   differ);
        EQ(differ, 0);
    }
    pi_engine_destroy(e);
    free(ref);
}

/* All modes, one placement each or all of them. */
static void check_model(const struct tiny *t, uint32_t most, bool q8, int n_splits)
{
    static const struct split *const all[] = {&in_vram, &half, &mixed, &merged_on_cpu};
    struct rig r;

    (void)fflush(stdout);
    printf("# %s, %s, %u columns, %u neurons%s\n", pi_arch_name(t->arch), pi_type_name(t->type),
           t->n_embd, t->n_ff, q8 ? ", quantised activations" : "");
    rig_open(&r, t, 2);
    oracle(&r, 0.2f);
    for (int mode = 0; mode < 3; mode++)
        for (int i = 0; i < n_splits; i++)
            check(&r, all[i], mode, most, q8);
    rig_close(&r);
}

int main(void)
{
    static const enum pi_type types[] = {PI_TYPE_F32, PI_TYPE_F16, PI_TYPE_BF16, PI_TYPE_Q8_0,
                                         PI_TYPE_Q4_0};

    if (pi_gpu_count() == 0) {
        if (getenv("PI_REQUIRE_GPU") == NULL)
            return SKIP_ALL("no GPU");
        OK(pi_gpu_count() > 0);
        return DONE();
    }
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        struct tiny t = llama;

        t.type = types[i];
        t.n_ff = 352; /* more windows of the down pass than ranges of them */
        t.n_vocab = 32;
        check_model(&t, types[i] == PI_TYPE_F16 ? 32 : 8, false, 2);
    }
    for (int i = 0; i < 2; i++) {
        struct tiny t = i == 0 ? opt : llama;

        t.type = PI_TYPE_Q8_0;
        check_model(&t, 4, i == 1, i == 0 ? 4 : 2);
    }
    /* rows in several parts, vectors that are not staged whole */
    for (size_t i = 1; i < sizeof(types) / sizeof(types[0]); i++) {
        struct tiny t = llama;

        if (types[i] == PI_TYPE_BF16)
            continue;
        t.type = types[i];
        t.n_layer = 1;
        t.n_embd = types[i] == PI_TYPE_F16 ? 2080 : 1056;
        t.n_ff = 32;
        t.n_vocab = 8;
        t.n_head = t.n_head_kv = 2;
        check_model(&t, 8, false, 2);
    }
    return DONE();
}
