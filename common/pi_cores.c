/* Counts the cores a process may use. All paths are the kernel's own interfaces; anything unreadable means "no limit". */
#include "config.h"

#include "common/pi_cores.h"

#include "common/pi_alloc.h"
#include "common/pi_cgroup.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST_BYTES 4096 /* a list of CPUs */
#define SET_WORDS  (PI_MAX_CPUS / CPU_SETSIZE)

static uint32_t whole_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0 || quota / period >= UINT32_MAX)
        return UINT32_MAX;
    return quota < period ? 1 : (uint32_t)(quota / period);
}

/* The limit set in one cgroup folder. */
static void least_cpus(void *ctx, const char *dir, bool v2)
{
    uint32_t *least = ctx, cpus;
    char line[64];
    long long quota = 0, period = 0;

    if (v2) {
        if (!pi_cgroup_line(dir, "cpu.max", line, sizeof(line)) ||
            sscanf(line, "%lld %lld", &quota, &period) != 2)
            return;
    } else if (!pi_cgroup_line(dir, "cpu.cfs_quota_us", line, sizeof(line)) ||
               sscanf(line, "%lld", &quota) != 1 ||
               !pi_cgroup_line(dir, "cpu.cfs_period_us", line, sizeof(line)) ||
               sscanf(line, "%lld", &period) != 1) {
        return;
    }
    cpus = whole_cpus(quota, period);
    *least = cpus < *least ? cpus : *least;
}

uint32_t pi_cores_cgroup_limit(const char *root)
{
    uint32_t least = UINT32_MAX;

    pi_cgroup_each(root, "cpu", least_cpus, &least);
    return least;
}

/* Adds the CPUs of a list as the kernel writes them ("0,64" or "0-1") to a set; text behind what can be read is ignored. */
static void add_list(const char *list, cpu_set_t *set)
{
    const char *s = list;

    while (*s >= '0' && *s <= '9') {
        char *end;
        long lo = strtol(s, &end, 10), hi = lo;

        if (*end == '-')
            hi = strtol(end + 1, &end, 10);
        for (long c = lo; c <= hi && c < PI_MAX_CPUS; c++)
            CPU_SET_S((size_t)c, PI_CPU_SET_BYTES, set);
        s = end + (*end == ',');
    }
}

/* The CPU's SMT siblings, itself included. */
static void siblings(const char *root, int cpu, cpu_set_t *set)
{
    char path[PATH_MAX], line[LIST_BYTES];

    CPU_ZERO_S(PI_CPU_SET_BYTES, set);
    CPU_SET_S((size_t)cpu, PI_CPU_SET_BYTES, set);
    (void)snprintf(path, sizeof(path), "%s/sys/devices/system/cpu/cpu%d/topology", root, cpu);
    if (pi_cgroup_line(path, "thread_siblings_list", line, sizeof(line)))
        add_list(line, set);
}

void pi_cores_remove(const char *root, int cpu, cpu_set_t *set)
{
    cpu_set_t core[SET_WORDS];

    siblings(root, cpu, core);
    CPU_AND_S(PI_CPU_SET_BYTES, core, core, set);
    CPU_XOR_S(PI_CPU_SET_BYTES, set, set, core);
}

void pi_cores_node_cpus(const char *root, uint32_t node, cpu_set_t *set)
{
    char path[PATH_MAX], line[LIST_BYTES];

    (void)snprintf(path, sizeof(path), "%s/sys/devices/system/node/node%u", root, node);
    if (pi_cgroup_line(path, "cpulist", line, sizeof(line)))
        add_list(line, set);
}

/* Moves the cores of each node to the front, one node after the other; what no node lists stays behind, as node 0's. */
static void sort_by_node(const char *root, struct pi_core *cores, uint32_t n)
{
    uint32_t done = 0;

    for (uint32_t node = 0; node < PI_MAX_NODES && done < n; node++) {
        cpu_set_t set[SET_WORDS];

        CPU_ZERO_S(PI_CPU_SET_BYTES, set);
        pi_cores_node_cpus(root, node, set);
        for (uint32_t i = done; i < n; i++) {
            struct pi_core c = cores[i];

            if (!CPU_ISSET_S((size_t)c.cpu, PI_CPU_SET_BYTES, set))
                continue;
            c.node = node;
            memmove(cores + done + 1, cores + done, (i - done) * sizeof(*cores));
            cores[done++] = c;
        }
    }
}

/* The first CPU of each core that is in the mask. cores may be NULL. */
static uint32_t collect(const char *root, const cpu_set_t *mask, struct pi_core *cores)
{
    cpu_set_t rest[SET_WORDS];
    uint32_t n = 0;

    memcpy(rest, mask, PI_CPU_SET_BYTES);
    for (int c = 0; c < PI_MAX_CPUS; c++) {
        if (!CPU_ISSET_S((size_t)c, PI_CPU_SET_BYTES, rest))
            continue;
        pi_cores_remove(root, c, rest);
        if (cores != NULL)
            cores[n] = (struct pi_core){.cpu = c};
        n++;
    }
    return n;
}

enum pi_code pi_cores_list(const char *root, const cpu_set_t *mask, struct pi_core **out,
                           uint32_t *n_out, struct pi_err *err)
{
    uint32_t n = collect(root, mask, NULL);
    struct pi_core *cores = pi_calloc_array(n, sizeof(*cores), err);

    if (cores == NULL)
        return PI_E_NOMEM;
    (void)collect(root, mask, cores);
    sort_by_node(root, cores, n);
    *out = cores;
    *n_out = n;
    return PI_OK;
}

uint32_t pi_cores_physical(const char *root)
{
    cpu_set_t mask[SET_WORDS];
    uint32_t n = 0;

    CPU_ZERO_S(PI_CPU_SET_BYTES, mask);
    if (sched_getaffinity(0, PI_CPU_SET_BYTES, mask) == 0)
        n = collect(root, mask, NULL);
    return n > 0 ? n : 1;
}

uint32_t pi_cores_logical(void)
{
    cpu_set_t mask[SET_WORDS];
    int n = 0;

    CPU_ZERO_S(PI_CPU_SET_BYTES, mask);
    if (sched_getaffinity(0, PI_CPU_SET_BYTES, mask) == 0)
        n = CPU_COUNT_S(PI_CPU_SET_BYTES, mask);
    return n > 0 ? (uint32_t)n : 1;
}
