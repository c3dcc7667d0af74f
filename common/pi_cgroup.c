#include "config.h"

#include "common/pi_cgroup.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool pi_cgroup_line(const char *dir, const char *name, char *line, size_t size)
{
    char path[PATH_MAX + 64];
    FILE *f;
    bool ok;

    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    f = fopen(path, "re");
    ok = f != NULL && fgets(line, (int)size, f) != NULL;
    if (f != NULL)
        (void)fclose(f);
    if (ok)
        line[strcspn(line, "\n")] = '\0';
    return ok;
}

/* A group and all above it. Inside a container the group's path may not exist below the mount: the walk ends at the mount, which is the container's
 * own group. */
static void walk_up(const char *mount, char *group, bool v2, pi_cgroup_fn fn, void *ctx)
{
    char dir[PATH_MAX];

    for (;;) {
        char *slash;

        (void)snprintf(dir, sizeof(dir), "%s%s", mount, group);
        fn(ctx, dir, v2);
        slash = strrchr(group, '/');
        if (slash == NULL)
            return;
        *slash = '\0';
    }
}

/* Is a word in a list with commas? */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *s = list;; s++) {
        if (strncmp(s, word, n) == 0 && (s[n] == '\0' || s[n] == ','))
            return true;
        s = strchr(s, ',');
        if (s == NULL)
            return false;
    }
}

/* A line of /proc/self/cgroup is "id:controllers:/path"; "0::/path" is the unified hierarchy. */
void pi_cgroup_each(const char *root, const char *controller, pi_cgroup_fn fn, void *ctx)
{
    char path[PATH_MAX], line[PATH_MAX], mount[PATH_MAX];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    f = fopen(path, "re");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        char *list = strchr(line, ':'), *group = list != NULL ? strchr(list + 1, ':') : NULL;
        bool v2;

        if (group == NULL)
            continue;
        *group++ = '\0';
        list++;
        group[strcspn(group, "\n")] = '\0';
        v2 = *list == '\0';
        if (!v2 && !listed(list, controller))
            continue;
        (void)snprintf(mount, sizeof(mount), "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/",
                       v2 ? "" : controller);
        walk_up(mount, group, v2, fn, ctx);
    }
    if (f != NULL)
        (void)fclose(f);
}

/* ---- memory ---- */

static bool read_bytes(const char *text, uint64_t *out)
{
    char *end;
    unsigned long long v;

    errno = 0;
    v = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0)
        return false;
    *out = v;
    return true;
}

static void least_memory(void *ctx, const char *dir, bool v2)
{
    uint64_t *least = ctx, bytes;
    char line[64];

    if (pi_cgroup_line(dir, v2 ? "memory.max" : "memory.limit_in_bytes", line, sizeof(line)) &&
        read_bytes(line, &bytes) && bytes < *least)
        *least = bytes;
}

uint64_t pi_memory_limit(const char *root)
{
    uint64_t least = UINT64_MAX;
    unsigned long long kib;
    char path[PATH_MAX], line[128];

    (void)snprintf(path, sizeof(path), "%s/proc", root);
    if (pi_cgroup_line(path, "meminfo", line, sizeof(line)) &&
        sscanf(line, "MemTotal: %llu kB", &kib) == 1 && kib < UINT64_MAX / 1024)
        least = kib * 1024;
    pi_cgroup_each(root, "memory", least_memory, &least);
    return least;
}
