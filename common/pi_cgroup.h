/*
 * pi_cgroup.h - the control groups that this process is in, v2 or v1, from its own up to the root, where limits are set; and the memory they leave.
 *
 * root: "" for the machine itself; tests give a folder with files like the kernel's. What can not be read is no limit.
 */
#ifndef PI_CGROUP_H
#define PI_CGROUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Calls fn for the folder of every group of the unified hierarchy (v2) and of the controller's own ("cpu", "memory"). */
typedef void (*pi_cgroup_fn)(void *ctx, const char *dir, bool v2);
void pi_cgroup_each(const char *root, const char *controller, pi_cgroup_fn fn, void *ctx);

/* The first line of dir/name without its newline; false when there is none. */
bool pi_cgroup_line(const char *dir, const char *name, char *line, size_t size);

/* Bytes of memory that this process may use: the machine's, or the least that a control group allows. UINT64_MAX: not known. */
uint64_t pi_memory_limit(const char *root);

#endif
