/*
 * pi_cores.h - what pi_pool_usable_cores() is made of, with the root of the file system as an argument for tests.
 */
#ifndef PI_CORES_H
#define PI_CORES_H

#include "common/pi_err.h"

#include <sched.h>
#include <stdint.h>

#define PI_MAX_CPUS  8192
#define PI_MAX_NODES 1024

/* The size in bytes of a set of CPUs here: CPU_ALLOC(PI_MAX_CPUS). */
#define PI_CPU_SET_BYTES CPU_ALLOC_SIZE(PI_MAX_CPUS)

/* Whole CPUs that the cgroups (v2 or v1) of this process grant: the least quota on the way up to the root, rounded down, at least 1.
 * UINT32_MAX: no limit. root: "" for the machine itself. */
uint32_t pi_cores_cgroup_limit(const char *root);

/* Physical cores among the CPUs of this thread's affinity mask: SMT siblings count once. */
uint32_t pi_cores_physical(const char *root);

/* CPUs in the affinity mask. */
uint32_t pi_cores_logical(void);

struct pi_core {
    int cpu;       /* the first of the core's CPUs that is in the mask */
    uint32_t node; /* its memory node; 0 where the machine has none */
};

/* The physical cores of a set of PI_CPU_SET_BYTES, by node, then by CPU. The caller frees *out; at least one where the set is not empty. PI_E_NOMEM. */
enum pi_code pi_cores_list(const char *root, const cpu_set_t *mask, struct pi_core **out,
                           uint32_t *n_out, struct pi_err *err) PI_MUST_CHECK;

/* Takes a CPU and its SMT siblings out of a set; the CPUs of a memory node into one. */
void pi_cores_remove(const char *root, int cpu, cpu_set_t *set);
void pi_cores_node_cpus(const char *root, uint32_t node, cpu_set_t *set);

#endif
