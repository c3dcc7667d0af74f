/*
 * pi_affinity.h - which CPUs each thread of a team may run on.
 *
 * A core each: where the team takes all physical cores of the affinity mask, or all but one (a run with a GPU), each worker gets one CPU of a
 * core of its own, and the caller, with whatever threads it starts later, what the workers leave. A team that is smaller may share the machine with others like it, which
 * would all choose the same cores, and so does one under a CPU quota; a larger one must be moved about by the kernel. They keep the mask they came with.
 *
 * Memory nodes: where the mask has CPUs of several, neighbouring threads share a node and the nodes get threads in proportion to their cores, so that a
 * span of rows (pi_span()) belongs to one node. Then a thread that has no core of its own is held to its node.
 *
 * CPUs outside the mask that the process came with are never used. Not thread safe; a set-up is constant once made.
 */
#ifndef PI_AFFINITY_H
#define PI_AFFINITY_H

#include "common/pi_cores.h"
#include "common/pi_err.h"

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pi_numa {
    PI_NUMA_OFF,        /* memory nodes are not looked at */
    PI_NUMA_DISTRIBUTE, /* threads are spread over the nodes of the mask */
    PI_NUMA_ISOLATE     /* all threads stay on the node that the process was started on */
};

struct pi_affinity {
    uint32_t n_threads;
    uint32_t n_nodes; /* that threads were spread over; 1 with PI_NUMA_OFF */
    bool own_cores;   /* threads have a core each */
    uint32_t *node;   /* (n_threads) memory node of each; owned */
    cpu_set_t *bound; /* (n_threads sets) while the team has the machine for itself; owned */
    cpu_set_t *free;  /* (n_threads sets) when others want its cores; owned */
    cpu_set_t *mask;  /* what the process came with; owned */
};

/* For a team of n_threads, of which the first is the caller. root: "" for the machine itself; mask: the CPUs that may be used, a set of
 * PI_CPU_SET_BYTES. own_cores false: no thread gets a core of its own. */
enum pi_code pi_affinity_make(const char *root, const cpu_set_t *mask, uint32_t n_threads,
                              enum pi_numa numa, bool own_cores, struct pi_affinity *out,
                              struct pi_err *err) PI_MUST_CHECK;
void pi_affinity_free(struct pi_affinity *a); /* accepts a zeroed one */

/* Thread's set in an array of them. */
cpu_set_t *pi_affinity_set(cpu_set_t *sets, uint32_t thread);

/* The calling thread's mask. False where the kernel does not say. */
bool pi_affinity_current(cpu_set_t *mask_out);

/* Leaves in mask the CPUs of the memory node of the CPU cpu; all where none of them is in the mask or the machine has no nodes. */
void pi_affinity_isolate(const char *root, int cpu, cpu_set_t *mask);

/* Holds the calling thread, and whatever threads it starts later, to the memory node it is on, within its mask. False where the kernel forbids it. */
bool pi_affinity_stay(void);

#endif
