#include "config.h"

#include "common/pi_affinity.h"

#include "common/pi_alloc.h"

#include <stdlib.h>
#include <string.h>

#define SET_WORDS (PI_MAX_CPUS / CPU_SETSIZE) /* cpu_set_t of a set */

cpu_set_t *pi_affinity_set(cpu_set_t *sets, uint32_t thread)
{
    return sets + (size_t)thread * SET_WORDS;
}

bool pi_affinity_current(cpu_set_t *mask_out)
{
    CPU_ZERO_S(PI_CPU_SET_BYTES, mask_out);
    return sched_getaffinity(0, PI_CPU_SET_BYTES, mask_out) == 0;
}

/* The CPUs of a set that are on a node. False, and the set as it was, where there are none. */
static bool keep_node(const char *root, uint32_t node, cpu_set_t *set)
{
    cpu_set_t on[SET_WORDS];

    CPU_ZERO_S(PI_CPU_SET_BYTES, on);
    pi_cores_node_cpus(root, node, on);
    CPU_AND_S(PI_CPU_SET_BYTES, on, on, set);
    if (CPU_COUNT_S(PI_CPU_SET_BYTES, on) == 0)
        return false;
    memcpy(set, on, PI_CPU_SET_BYTES);
    return true;
}

void pi_affinity_isolate(const char *root, int cpu, cpu_set_t *mask)
{
    for (uint32_t node = 0; node < PI_MAX_NODES; node++) {
        cpu_set_t on[SET_WORDS];

        CPU_ZERO_S(PI_CPU_SET_BYTES, on);
        pi_cores_node_cpus(root, node, on);
        if (cpu >= 0 && CPU_ISSET_S((size_t)cpu, PI_CPU_SET_BYTES, on)) {
            (void)keep_node(root, node, mask);
            return;
        }
    }
}

bool pi_affinity_stay(void)
{
    cpu_set_t mask[SET_WORDS];

    if (!pi_affinity_current(mask))
        return false;
    pi_affinity_isolate("", sched_getcpu(), mask);
    return sched_setaffinity(0, PI_CPU_SET_BYTES, mask) == 0;
}

static uint32_t count_nodes(const struct pi_core *cores, uint32_t n)
{
    uint32_t nodes = 1;

    for (uint32_t i = 1; i < n; i++)
        nodes += cores[i].node != cores[i - 1].node;
    return nodes;
}

/* Sets of threads without a core of their own: their node's CPUs, or the mask. */
static void spread(const char *root, struct pi_affinity *a, const struct pi_core *cores,
                   uint32_t n_cores)
{
    for (uint32_t t = 0; t < a->n_threads; t++) {
        const struct pi_core *core = &cores[(uint64_t)t * n_cores / a->n_threads];
        cpu_set_t *set = pi_affinity_set(a->free, t);

        a->node[t] = core->node;
        memcpy(set, a->mask, PI_CPU_SET_BYTES);
        if (a->n_nodes > 1)
            (void)keep_node(root, core->node, set);
    }
    memcpy(a->bound, a->free, a->n_threads * PI_CPU_SET_BYTES);
}

/* A core for each worker, all its CPUs that are in the mask, from the end of the list: the caller keeps the first core, and the second too where there is one more
 * than threads. */
static void give_cores(const char *root, struct pi_affinity *a, const struct pi_core *cores,
                       uint32_t n_cores)
{
    cpu_set_t *caller = pi_affinity_set(a->bound, 0);

    a->node[0] = cores[0].node;
    memcpy(caller, a->mask, PI_CPU_SET_BYTES);
    for (uint32_t t = 1; t < a->n_threads; t++) {
        const struct pi_core *core = &cores[n_cores - a->n_threads + t];
        cpu_set_t *set = pi_affinity_set(a->bound, t);

        a->node[t] = core->node;
        memcpy(set, caller, PI_CPU_SET_BYTES);
        pi_cores_remove(root, core->cpu, caller);
        CPU_XOR_S(PI_CPU_SET_BYTES, set, set, caller);
        if (a->n_nodes > 1) {
            set = pi_affinity_set(a->free, t);
            memcpy(set, a->mask, PI_CPU_SET_BYTES);
            (void)keep_node(root, core->node, set);
        }
    }
    a->own_cores = true;
}

enum pi_code pi_affinity_make(const char *root, const cpu_set_t *mask, uint32_t n_threads,
                              enum pi_numa numa, bool own_cores, struct pi_affinity *out,
                              struct pi_err *err)
{
    enum pi_code rc = PI_OK;
    struct pi_affinity a = {.n_threads = n_threads, .n_nodes = 1};
    struct pi_core *cores = NULL;
    uint32_t n = 0;

    a.mask = pi_calloc_array(1, PI_CPU_SET_BYTES, err);
    a.bound = pi_calloc_array(n_threads, PI_CPU_SET_BYTES, err);
    a.free = pi_calloc_array(n_threads, PI_CPU_SET_BYTES, err);
    if (a.mask == NULL || a.bound == NULL || a.free == NULL) {
        rc = PI_E_NOMEM;
        goto out;
    }
    PI_ALLOC(a.node, n_threads, err);
    memcpy(a.mask, mask, PI_CPU_SET_BYTES);
    PI_TRY(pi_cores_list(root, mask, &cores, &n, err));
    if (n == 0)
        PI_FAIL(err, PI_E_RANGE, "no CPU may be used");
    if (numa == PI_NUMA_DISTRIBUTE)
        a.n_nodes = count_nodes(cores, n);
    spread(root, &a, cores, n);
    if (own_cores && n_threads > 1 && n_threads <= n && n_threads + 1 >= n &&
        pi_cores_cgroup_limit(root) >= n)
        give_cores(root, &a, cores, n);
    *out = a;
    memset(&a, 0, sizeof(a));
out:
    pi_affinity_free(&a);
    free(cores);
    return rc;
}

void pi_affinity_free(struct pi_affinity *a)
{
    free(a->node);
    free(a->bound);
    free(a->free);
    free(a->mask);
    memset(a, 0, sizeof(*a));
}
