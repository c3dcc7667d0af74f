/*
 * t_engine_gpu_q8.c - quantised activations on a GPU and the CPU at the same time, against the CPU alone.
 *
 * Both round by one rule, but sums before it differ in their last bits, and now and then a number that lies between two steps of the grid goes the other
 * way: then results differ by what one step is worth. Most do not.
 */
#include "config.h"

#include "runtime/pi_gpu.h"
#include "tests/engine_rig.h"

struct split {
    uint8_t attn_even, attn_odd, output;
    uint32_t n_hot_even, n_hot_odd;
};

static const struct split splits[] = {{1, 1, 1, 96, 96}, {1, 1, 1, 41, 41}, {1, 1, 1, 0, 0},
                                      {0, 1, 1, 41, 0},  {1, 0, 1, 41, 41}, {0, 0, 0, 41, 96},
                                      {1, 1, 0, 41, 41}, {1, 0, 0, 96, 0}};
#define N_SPLITS (sizeof(splits) / sizeof(splits[0]))

static void place(struct rig *r, const struct split *s)
{
    for (uint32_t l = 0; l < r->t.n_layer; l++) {
        r->layers[l].attn_unit = l & 1 ? s->attn_odd : s->attn_even;
        r->layers[l].n_hot = l & 1 ? s->n_hot_odd : s->n_hot_even;
    }
    r->place.output_unit = s->output;
}

static double mean_off(const float *a, const float *ref, size_t n)
{
    double sum = 0.0, size = 0.0;

    for (size_t i = 0; i < n; i++) {
        sum += fabs((double)a[i] - (double)ref[i]);
        size += fabs((double)ref[i]);
    }
    return sum / size;
}

/* way 0: exact steps, 1: dense steps, 2: a prompt, 3: predicted steps. */
static void check_split(struct rig *r, const struct split *sp, int way, const float *f32,
                        const float *cpu)
{
    struct pi_engine_options o = {F32KV,
                                  .act = PI_ACT_TYPE_Q8,
                                  .mode = way == 3   ? PI_MODE_PREDICTED
                                          : way == 1 ? PI_MODE_DENSE
                                                     : PI_MODE_EXACT,
                                  .on_gpu = true,
                                  .f32_gemm = true,
                                  .force_predicted = true,
                                  .gpu_handover = way == 1 ? PI_HANDOVER_EVENTS : PI_HANDOVER_SPIN};
    size_t n = (size_t)N_TOK * r->t.n_vocab;
    double off, rounding = mean_off(cpu, f32, n);
    float *out;

    place(r, sp);
    out = run(r, &o, way != 2);
    off = mean_off(out, cpu, n);
    printf("# way %d, hot %u %u: %.1e from the CPU's, which is %.1e from F32\n", way,
           sp->n_hot_even, sp->n_hot_odd, off, rounding);
    OK(off <= 0.1 * rounding);
    OK(worst_f32(out, cpu, n) <= 1e-2);
    free(out);
}

static void check_model(const struct tiny *model, enum pi_type type)
{
    struct pi_engine_options f32 = {F32KV, .mode = PI_MODE_EXACT},
                             q8 = {F32KV, .act = PI_ACT_TYPE_Q8, .mode = PI_MODE_EXACT},
                             asked = {F32KV, .act = PI_ACT_TYPE_Q8, .mode = PI_MODE_PREDICTED,
                                      .force_predicted = true};
    struct tiny t = *model;
    float *plain, *cpu, *predicted;
    struct rig r;

    t.type = type;
    printf("# %s %s\n", t.arch == PI_ARCH_OPT ? "opt" : "llama", pi_type_name(type));
    rig_open(&r, &t, 2);
    oracle(&r, -1e-4f);
    plain = run(&r, &f32, true);
    cpu = run(&r, &q8, true);
    predicted = run(&r, &asked, true);
    for (size_t i = 0; i < N_SPLITS; i++) {
        for (int way = 0; way < 4; way++)
            check_split(&r, &splits[i], way, plain, way == 3 ? predicted : cpu);
    }
    free(plain);
    free(cpu);
    free(predicted);
    rig_close(&r);
}

int main(void)
{
    if (pi_gpu_count() == 0) {
        OK(getenv("PI_REQUIRE_GPU") == NULL);
        return DONE();
    }
    check_model(&llama, PI_TYPE_Q8_0);
    check_model(&llama, PI_TYPE_Q4_0);
    check_model(&opt, PI_TYPE_Q8_0);
    return DONE();
}
