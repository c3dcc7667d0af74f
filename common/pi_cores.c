/* Counts the cores a process may use. All paths are the kernel's own interfaces; anything unreadable means "no limit". */
#include "config.h"

#include "common/pi_cores.h"

#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CPUS 8192

/* The first line of a file, without its newline; false when there is none. */
static bool read_line(const char *path, char *line, size_t size)
{
    FILE *f = fopen(path, "re");
    bool ok = f != NULL && fgets(line, (int)size, f) != NULL;

    if (f != NULL)
        (void)fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

static uint32_t whole_cpus(long long quota, long long period)
{
    if (quota <= 0 || period <= 0 || quota / period >= UINT32_MAX)
        return UINT32_MAX;
    return quota < period ? 1 : (uint32_t)(quota / period);
}

/* The limit set in one cgroup folder. */
static uint32_t folder_limit(const char *dir, bool v2)
{
    char path[PATH_MAX + 32], line[64];
    long long quota = 0, period = 0;

    if (v2) {
        (void)snprintf(path, sizeof(path), "%s/cpu.max", dir);
        if (!read_line(path, line, sizeof(line)) || sscanf(line, "%lld %lld", &quota, &period) != 2)
            return UINT32_MAX;
        return whole_cpus(quota, period);
    }
    (void)snprintf(path, sizeof(path), "%s/cpu.cfs_quota_us", dir);
    if (!read_line(path, line, sizeof(line)) || sscanf(line, "%lld", &quota) != 1)
        return UINT32_MAX;
    (void)snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", dir);
    if (!read_line(path, line, sizeof(line)) || sscanf(line, "%lld", &period) != 1)
        return UINT32_MAX;
    return whole_cpus(quota, period);
}

/* The least limit of a group and all above it. Inside a container the group's path may not exist below the mount: the walk ends at the mount,
 * which is the container's own group. */
static uint32_t walk_up(const char *mount, char *group, bool v2)
{
    uint32_t least = UINT32_MAX;
    char dir[PATH_MAX];

    for (;;) {
        uint32_t limit;
        char *slash;

        (void)snprintf(dir, sizeof(dir), "%s%s", mount, group);
        limit = folder_limit(dir, v2);
        least = limit < least ? limit : least;
        slash = strrchr(group, '/');
        if (slash == NULL)
            return least;
        *slash = '\0';
    }
}

/* A line of /proc/self/cgroup is "id:controllers:/path"; "0::/path" is the unified hierarchy. */
uint32_t pi_cores_cgroup_limit(const char *root)
{
    char path[PATH_MAX], line[PATH_MAX], mount[PATH_MAX];
    uint32_t least = UINT32_MAX;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *list = strchr(line, ':'), *group = list != NULL ? strchr(list + 1, ':') : NULL;
        uint32_t limit;
        bool v2;

        if (group == NULL)
            continue;
        *group++ = '\0';
        list++;
        group[strcspn(group, "\n")] = '\0';
        v2 = *list == '\0';
        if (!v2 && strcmp(list, "cpu") != 0 && strstr(list, "cpu,") != list &&
            strstr(list, ",cpu") == NULL)
            continue;
        (void)snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup%s", root, v2 ? "" : "/cpu");
        limit = walk_up(mount, group, v2);
        least = limit < least ? limit : least;
    }
    if (f != NULL)
        (void)fclose(f);
    return least;
}

/* True when cpu is the first allowed one of its siblings list ("0,64" or "0-1"). */
static bool first_of_core(const char *root, int cpu, const cpu_set_t *mask)
{
    char path[PATH_MAX], line[256];
    char *s = line;

    (void)snprintf(path, sizeof(path),
                   "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, cpu);
    if (!read_line(path, line, sizeof(line)))
        return true;
    while (*s >= '0' && *s <= '9') {
        long lo = strtol(s, &s, 10), hi = lo;

        if (*s == '-')
            hi = strtol(s + 1, &s, 10);
        for (long c = lo; c <= hi && c < cpu; c++) {
            if (c >= 0 && CPU_ISSET_S((size_t)c, CPU_ALLOC_SIZE(MAX_CPUS), mask))
                return false;
        }
        s += *s == ',';
    }
    return true;
}

static uint32_t count_cpus(const char *root, bool physical)
{
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *mask = CPU_ALLOC(MAX_CPUS);
    uint32_t n = 0;

    if (mask == NULL)
        return 1;
    CPU_ZERO_S(size, mask);
    if (sched_getaffinity(0, size, mask) == 0) {
        for (int c = 0; c < MAX_CPUS; c++) {
            if (CPU_ISSET_S((size_t)c, size, mask) && (!physical || first_of_core(root, c, mask)))
                n++;
        }
    }
    CPU_FREE(mask);
    return n > 0 ? n : 1;
}

uint32_t pi_cores_physical(const char *root)
{
    return count_cpus(root, true);
}

uint32_t pi_cores_logical(void)
{
    return count_cpus("", false);
}
