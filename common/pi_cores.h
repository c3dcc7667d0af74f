/*
 * pi_cores.h - what pi_pool_usable_cores() is made of, with the root of the file system as an argument for tests.
 */
#ifndef PI_CORES_H
#define PI_CORES_H

#include <stdint.h>

/* Whole CPUs that the cgroups (v2 or v1) of this process grant: the least quota on the way up to the root, rounded down, at least 1.
 * UINT32_MAX: no limit. root: "" for the machine itself. */
uint32_t pi_cores_cgroup_limit(const char *root);

/* Physical cores among the CPUs of this thread's affinity mask: SMT siblings count once. */
uint32_t pi_cores_physical(const char *root);

/* CPUs in the affinity mask. */
uint32_t pi_cores_logical(void);

#endif
