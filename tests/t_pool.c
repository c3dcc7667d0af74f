/* The thread pool: every chunk once, barriers, sleeping and waking, counting cores. */
#include "config.h"

#include "common/pi_cgroup.h"
#include "common/pi_cores.h"
#include "common/pi_pool.h"
#include "tests/tap.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct team {
    struct pi_pool *pool;
    atomic_uint calls, wrong;
    atomic_uint step[8];
};

static void count_call(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct team *t = ctx;

    atomic_fetch_add(&t->calls, 1);
    if (thread >= n_threads || n_threads != pi_pool_size(t->pool))
        atomic_fetch_add(&t->wrong, 1);
}

/* Thread i may enter round r only when all have finished round r - 1. */
static void rounds(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct team *t = ctx;

    for (unsigned r = 0; r < 200; r++) {
        atomic_store(&t->step[thread], r + 1);
        if (r == 100 && thread == 0)
            (void)usleep(2000); /* longer than the others spin */
        pi_pool_barrier(t->pool, thread);
        for (uint32_t i = 0; i < n_threads; i++) {
            if (atomic_load(&t->step[i]) < r + 1)
                atomic_fetch_add(&t->wrong, 1);
        }
        pi_pool_barrier(t->pool, thread);
    }
}

static void test_run(uint32_t n_threads)
{
    struct team t = {0};
    struct pi_err e = {0};

    PASSES(pi_pool_create(n_threads, &t.pool, &e), e);
    EQ(pi_pool_size(t.pool), n_threads);
    for (int i = 0; i < 2000; i++)
        pi_pool_run(t.pool, count_call, &t);
    EQ(t.calls, 2000 * n_threads);
    for (int i = 0; i < 3; i++) {
        (void)usleep(1000); /* the workers are asleep now */
        pi_pool_run(t.pool, count_call, &t);
    }
    EQ(t.calls, 2003 * n_threads);
    pi_pool_run(t.pool, rounds, &t);
    EQ(t.wrong, 0);
    pi_pool_destroy(t.pool);
}

struct marks {
    atomic_uchar *seen;
    size_t n, chunk;
    atomic_uint wrong;
};

static void mark(void *ctx, size_t begin, size_t end)
{
    struct marks *m = ctx;

    if (begin % m->chunk != 0 || end > m->n || end <= begin || end - begin > m->chunk)
        atomic_fetch_add(&m->wrong, 1);
    for (size_t i = begin; i < end && i < m->n; i++)
        atomic_fetch_add(&m->seen[i], 1);
}

static void test_for(uint32_t n_threads, size_t n, size_t chunk)
{
    static atomic_uchar seen[5000];
    struct marks m = {.seen = seen, .n = n, .chunk = chunk};
    struct pi_pool *p = NULL;
    struct pi_err e = {0};
    size_t once = 0;

    for (size_t i = 0; i < 5000; i++)
        atomic_store(&seen[i], 0);
    PASSES(pi_pool_create(n_threads, &p, &e), e);
    pi_pool_for(p, n, chunk, mark, &m);
    for (size_t i = 0; i < n; i++)
        once += seen[i] == 1;
    EQ(once, n);
    EQ(m.wrong, 0);
    pi_pool_destroy(p);
}

static void test_limits(void)
{
    struct pi_pool *p = NULL;
    struct pi_err e = {0};

    FAILS(pi_pool_create(1025, &p, &e), PI_E_RANGE, "1025 threads", e);
    OK(p == NULL);
    PASSES(pi_pool_create(0, &p, &e), e);
    EQ(pi_pool_size(p), pi_pool_usable_cores());
    pi_pool_destroy(p);
    pi_pool_destroy(NULL);
    OK(pi_pool_usable_cores() >= 1);
    OK(pi_pool_usable_cores() <= pi_cores_logical());
    (void)setenv("PI_TEST_CORES", "1", 1);
    EQ(pi_pool_usable_cores(), 1);
    (void)unsetenv("PI_TEST_CORES");
    for (int n = 1; n < 5; n++) {
        char text[16];

        p = NULL;
        (void)snprintf(text, sizeof(text), "%d", n);
        (void)setenv("PI_TEST_ALLOC_FAIL", text, 1);
        if (pi_pool_create(2, &p, &e) != PI_OK)
            OK(p == NULL && e.code == PI_E_NOMEM);
        pi_pool_destroy(p);
        (void)unsetenv("PI_TEST_ALLOC_FAIL");
    }
}

static void put(const char *root, const char *name, const char *text)
{
    char path[512];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s%s", root, name);
    for (char *s = path + strlen(root) + 1; (s = strchr(s, '/')) != NULL; s++) {
        *s = '\0';
        (void)mkdir(path, 0777);
        *s = '/';
    }
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        exit(1);
}

static void test_cgroups(void)
{
    char root[] = "pi-pool-XXXXXX", clean[64];

    if (mkdtemp(root) == NULL)
        exit(1);
    EQ(pi_cores_cgroup_limit(root), UINT32_MAX);
    put(root, "/proc/self/cgroup", "0::/a/b\n");
    put(root, "/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    EQ(pi_cores_cgroup_limit(root), UINT32_MAX);
    put(root, "/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    EQ(pi_cores_cgroup_limit(root), 3);
    put(root, "/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    EQ(pi_cores_cgroup_limit(root), 1);
    put(root, "/proc/self/cgroup", "0::/../elsewhere\n"); /* a container's view */
    put(root, "/sys/fs/cgroup/cpu.max", "200000 100000\n");
    EQ(pi_cores_cgroup_limit(root), 2);
    put(root, "/proc/self/cgroup", "5:cpuset:/z\n4:cpu,cpuacct:/x\n0::/\n");
    put(root, "/sys/fs/cgroup/cpu.max", "junk\n");
    put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n");
    put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
    EQ(pi_cores_cgroup_limit(root), UINT32_MAX);
    put(root, "/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "400000\n");
    EQ(pi_cores_cgroup_limit(root), 4);

    EQ(pi_memory_limit(root), UINT64_MAX);
    put(root, "/proc/meminfo", "MemTotal:        8192 kB\nMemFree:  1 kB\n");
    EQ(pi_memory_limit(root), 8 << 20);
    put(root, "/proc/self/cgroup", "0::/a/b\n3:hugetlb,memory:/m\n");
    put(root, "/sys/fs/cgroup/a/b/memory.max", "max\n");
    put(root, "/sys/fs/cgroup/a/memory.max", "6291456\n");
    put(root, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "9223372036854771712\n");
    EQ(pi_memory_limit(root), 6 << 20);
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "5242880\n");
    EQ(pi_memory_limit(root), 5 << 20);
    put(root, "/sys/fs/cgroup/a/memory.max", "-4096\n"); /* no limit that a kernel writes */
    put(root, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "99999999999999999999999\n");
    EQ(pi_memory_limit(root), 8 << 20);

    EQ(pi_cores_physical(root), pi_cores_logical()); /* no topology: each is its own core */
    if (pi_cores_logical() >= 2) {
        for (int c = 0; c < 1024; c++) {
            char name[96];

            (void)snprintf(name, sizeof(name),
                           "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
            put(root, name, "0-511,512-1023\n");
        }
        EQ(pi_cores_physical(root), 1);
    }
    (void)snprintf(clean, sizeof(clean), "rm -rf %s", root);
    EQ(system(clean), 0);
}

int main(void)
{
    test_run(1);
    test_run(2);
    test_run(5); /* more threads than this machine may have cores */
    test_run(7);
    test_run(8); /* step[] has room for so many */
    test_for(2, 5000, 7);
    test_for(3, 5000, 5000);
    test_for(2, 0, 16);
    test_for(1, 33, 32);
    test_limits();
    test_cgroups();
    return DONE();
}
