/* pi_report.c - what pi_plan.h prints. */
#include "config.h"

#include "solver/pi_plan.h"

#include <stdlib.h>
#include <string.h>

#include <jansson.h>

static uint64_t hot_neurons(const struct pi_placement *p)
{
    uint64_t n = 0;

    for (uint32_t l = 0; l < p->n_layer; l++)
        n += p->layers[l].n_hot;
    return n;
}

static uint32_t attn_on_gpu(const struct pi_placement *p)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < p->n_layer; l++)
        n += p->layers[l].attn_unit != PI_UNIT_CPU;
    return n;
}

static const char *unit_name(uint32_t unit)
{
    return unit == PI_UNIT_CPU ? "CPU" : "GPU";
}

static const char *bytes_text(uint64_t bytes, char buf[32])
{
    const char *units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double v = (double)bytes;
    int i = 0;

    for (; v >= 1024.0 && i < 4; i++)
        v /= 1024.0;
    (void)snprintf(buf, 32, i == 0 ? "%.0f %s" : "%.2f %s", v, units[i]);
    return buf;
}

/* Decimals of a rate, so that about four digits show. */
static int decimals(double rate)
{
    return rate < 10.0 ? 3 : rate < 100.0 ? 2 : rate < 1000.0 ? 1 : 0;
}

static void print_rates(const struct pi_plan *p, FILE *f)
{
    (void)fprintf(f, "expected   %.*f tokens/s (CPU only %.*f", decimals(p->placed), p->placed,
                  decimals(p->cpu), p->cpu);
    if (p->gpu > 0.0)
        (void)fprintf(f, ", GPU only %.*f", decimals(p->gpu), p->gpu);
    (void)fprintf(f, "), from %s\n",
                  p->sampled ? "sampled tokens that the plan did not see" : "mean rates");
}

void pi_plan_summary(const struct pi_plan *p, FILE *f)
{
    const struct pi_placement *y = &p->place;
    char a[32], b[32], c[32];

    if (p->all_fits)
        (void)fprintf(f, "everything fits: all on the GPU, %s of %s\n",
                      bytes_text(p->vram_bytes, a), bytes_text(p->limit, b));
    else if (y->n_units < 2)
        (void)fprintf(f, "CPU only\n");
    else if (p->vram_bytes == 0)
        (void)fprintf(
            f,
            "nothing that fits beside the GPU's context and buffers (%s of %s) makes it faster: CPU only\n",
            bytes_text(p->base_bytes, a), bytes_text(p->limit, b));
    else
        (void)fprintf(
            f,
            "VRAM       %s of %s: context %s and buffers included\n"
            "neurons    %.1f %% on the GPU, with %.1f %% of the activations\n"
            "attention  %u of %u layers on the GPU; output head on the %s\n",
            bytes_text(p->vram_bytes, a), bytes_text(p->limit, b), bytes_text(p->context_bytes, c),
            100.0 * (double)hot_neurons(y) / ((double)y->n_layer * y->n_ff),
            100.0 * p->activations_on_gpu, attn_on_gpu(y), y->n_layer, unit_name(y->output_unit));
    print_rates(p, f);
    if (y->n_units >= 2 && !p->all_fits)
        (void)fprintf(f, "objective  %s, %s in %.2f s\n", y->objective,
                      p->optimal ? "proven optimal" : "not proven optimal", p->seconds);
}

static const char *share_mode(enum pi_mode mode, bool used)
{
    return used ? pi_mode_name(mode) : "-";
}

/* What the GPU's memory is for. */
static void print_budget(const struct pi_gpu_budget *g, FILE *f)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } parts[] = {{"context", g->context},       {"weights", g->weights},
                 {"predictors", g->predictors}, {"KV cache", g->kv},
                 {"buffers", g->activations},   {"tables", g->tables},
                 {"graphs", g->graphs},         {"cuBLAS", g->workspace},
                 {"streamed rows", g->staging}, {"rounding", g->rounding}};
    const char *between = "memory     ";
    char text[32];

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (parts[i].bytes > 0) {
            (void)fprintf(f, "%s%s %s", between, parts[i].name, bytes_text(parts[i].bytes, text));
            between = ", ";
        }
    }
    (void)fprintf(f, "\n");
}

void pi_plan_explain(const struct pi_plan *p, FILE *f)
{
    const struct pi_placement *y = &p->place;
    double attn = 0.0, cpu = 0.0, gpu = 0.0, total = 0.0;

    (void)fprintf(f, "machine    %s\n", y->hardware);
    (void)fprintf(f, "run        %u positions, %u sequence%s, prompt chunks of %u, KV cache %s\n",
                  y->n_ctx, y->n_seq, y->n_seq == 1 ? "" : "s", y->n_batch,
                  pi_type_name(y->kv_type));
    (void)fprintf(
        f,
        "layer      hot  of neurons  activations  CPU us  mode       GPU us  mode       attention us  layer us\n");
    for (uint32_t l = 0; l < y->n_layer; l++) {
        const struct pi_place_layer *q = &y->layers[l];
        const struct pi_plan_layer *o = &p->layers[l];

        (void)fprintf(f,
                      "%5u  %7u  %8.1f %%  %9.1f %%  %6.0f  %-9s  %6.0f  %-9s  %s %8.0f  %8.0f\n",
                      l, q->n_hot, 100.0 * q->n_hot / y->n_ff, 100.0 * o->share, 1e6 * o->t_cpu,
                      share_mode(q->mode_cpu, q->n_hot < y->n_ff), 1e6 * o->t_gpu,
                      share_mode(q->mode_gpu, q->n_hot > 0), unit_name(q->attn_unit),
                      1e6 * o->t_attn, 1e6 * o->t_layer);
        attn += o->t_attn;
        cpu += o->t_cpu;
        gpu += o->t_gpu;
        total += o->t_layer;
    }
    (void)fprintf(
        f, "  all  %7llu  %8.1f %%  %9.1f %%  %6.0f  %-9s  %6.0f  %-9s      %8.0f  %8.0f\n",
        (unsigned long long)hot_neurons(y),
        100.0 * (double)hot_neurons(y) / ((double)y->n_layer * y->n_ff),
        100.0 * p->activations_on_gpu, 1e6 * cpu, "", 1e6 * gpu, "", 1e6 * attn, 1e6 * total);
    (void)fprintf(
        f, "output head on the %s and what a step costs beside: %.0f us of a token's %.0f us\n",
        unit_name(y->output_unit), 1e6 * (1.0 / p->placed - total), 1e6 / p->placed);
    if (p->vram_bytes > 0)
        print_budget(&p->vram, f);
}

enum pi_code pi_plan_json(const struct pi_plan *p, FILE *f, struct pi_err *err)
{
    json_t *layers = json_array(), *gpu = p->gpu > 0.0 ? json_real(p->gpu) : json_null(), *root;
    int failed = layers == NULL;

    for (uint32_t l = 0; l < p->place.n_layer && !failed; l++)
        failed = json_array_append_new(
                     layers, json_pack("{s:I}", "hot", (json_int_t)p->place.layers[l].n_hot)) != 0;
    root = json_pack("{s:b, s:f, s:I, s:f, s:{s:f, s:f, s:o}, s:o}", "optimal", (int)p->optimal,
                     "solve_seconds", p->seconds, "vram_bytes", (json_int_t)p->vram_bytes,
                     "activations_on_gpu", p->activations_on_gpu, "tokens_per_second", "placed",
                     p->placed, "cpu", p->cpu, "gpu", gpu, "layers", layers);
    if (root == NULL || failed) {
        json_decref(root);
        return pi_err_set(err, PI_E_NOMEM, "no memory for the JSON report");
    }
    failed = json_dumpf(root, f, JSON_COMPACT) != 0 || fputc('\n', f) == EOF;
    json_decref(root);
    return failed ? pi_err_set(err, PI_E_IO, "cannot write the JSON report") : PI_OK;
}
