/* CPUs for threads: cores, SMT siblings and memory nodes of machines that are described in files; a pool that is bound to real ones. */
#include "config.h"

#include "common/pi_affinity.h"
#include "common/pi_pool.h"
#include "tests/scratch.h"
#include "tests/tap.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/stat.h>

#define SET_WORDS (PI_MAX_CPUS / CPU_SETSIZE)

static void put(const char *root, const char *text, const char *fmt, ...)
{
    char path[512], *name = path + strlen(root);
    va_list ap;
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s", root);
    va_start(ap, fmt);
    (void)vsnprintf(name, sizeof(path) - strlen(root), fmt, ap);
    va_end(ap);
    for (char *s = name + 1; (s = strchr(s, '/')) != NULL; s++) {
        *s = '\0';
        (void)mkdir(path, 0777);
        *s = '/';
    }
    f = fopen(path, "w");
    if (f == NULL || fputs(text, f) < 0 || fclose(f) != 0)
        exit(1);
}

/* n_cores cores of two CPUs, c and c + n_cores, on n_nodes memory nodes, neighbours together. */
static void machine(const char *root, int n_cores, int n_nodes)
{
    for (int c = 0; c < 2 * n_cores; c++) {
        char list[32];

        (void)snprintf(list, sizeof(list), "%d,%d\n", c % n_cores, c % n_cores + n_cores);
        put(root, list, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", c);
    }
    for (int i = 0; i < n_nodes; i++) {
        int first = n_cores * i / n_nodes, last = n_cores * (i + 1) / n_nodes - 1;
        char list[64];

        (void)snprintf(list, sizeof(list), "%d-%d,%d-%d\n", first, last, first + n_cores,
                       last + n_cores);
        put(root, list, "/sys/devices/system/node/node%d/cpulist", i);
    }
}

static void set_of(const char *list, cpu_set_t *set)
{
    CPU_ZERO_S(PI_CPU_SET_BYTES, set);
    for (const char *s = list; *s != '\0'; s += *s == ',') {
        char *end;
        long lo = strtol(s, &end, 10), hi = *end == '-' ? strtol(end + 1, &end, 10) : lo;

        for (; lo <= hi; lo++)
            CPU_SET_S((size_t)lo, PI_CPU_SET_BYTES, set);
        s = end;
    }
}

static bool is(cpu_set_t *sets, uint32_t thread, const char *list)
{
    cpu_set_t want[SET_WORDS];

    set_of(list, want);
    return CPU_EQUAL_S(PI_CPU_SET_BYTES, want, pi_affinity_set(sets, thread));
}

static struct pi_affinity make(const char *root, const char *mask, uint32_t n, enum pi_numa numa)
{
    struct pi_affinity a = {0};
    struct pi_err e = {0};
    cpu_set_t set[SET_WORDS];

    set_of(mask, set);
    PASSES(pi_affinity_make(root, set, n, numa, true, &a, &e), e);
    EQ(a.n_threads, n);
    return a;
}

static void test_list(const char *root)
{
    struct pi_core *cores = NULL;
    struct pi_err e = {0};
    cpu_set_t mask[SET_WORDS];
    uint32_t n = 0;

    machine(root, 8, 2);
    set_of("1,2,6,9,10,15,40", mask); /* 9 and 10 are siblings of 1 and 2; 40 is in no file */
    PASSES(pi_cores_list(root, mask, &cores, &n, &e), e);
    EQ(n, 5);
    EQ(cores[0].cpu, 1);
    EQ(cores[1].cpu, 2);
    EQ(cores[2].cpu, 6);
    EQ(cores[2].node, 1);
    EQ(cores[3].cpu, 15);
    EQ(cores[4].cpu, 40);
    EQ(cores[4].node, 0);
    free(cores);
    set_of("", mask);
    PASSES(pi_cores_list(root, mask, &cores, &n, &e), e);
    EQ(n, 0);
    free(cores);
}

/* One memory node. */
static void test_cores(const char *root)
{
    struct pi_affinity a = make(root, "0-7", 4, PI_NUMA_DISTRIBUTE);

    OK(a.own_cores);
    EQ(a.n_nodes, 1);
    OK(is(a.bound, 0, "0,4"));
    OK(is(a.bound, 1, "1,5"));
    OK(is(a.bound, 3, "3,7"));
    OK(is(a.free, 0, "0-7"));
    OK(is(a.free, 3, "0-7"));
    pi_affinity_free(&a);
    a = make(root, "0-7", 3, PI_NUMA_DISTRIBUTE); /* a core is left to the caller's other threads */
    OK(a.own_cores);
    OK(is(a.bound, 0, "0,1,4,5"));
    OK(is(a.bound, 2, "3,7"));
    pi_affinity_free(&a);
    a = make(root, "1-3,6", 3, PI_NUMA_DISTRIBUTE); /* inside a mask: CPU 5 stays out */
    OK(a.own_cores);
    OK(is(a.bound, 0, "1"));
    OK(is(a.bound, 1, "2,6"));
    OK(is(a.bound, 2, "3"));
    pi_affinity_free(&a);
    for (uint32_t n = 1; n < 8; n += n == 1 ? 1 : 3) { /* 1, 2, 5 */
        a = make(root, "0-7", n, PI_NUMA_DISTRIBUTE);
        OK(!a.own_cores);
        OK(is(a.bound, n - 1, "0-7"));
        pi_affinity_free(&a);
    }
    a = make(root, "2", 1, PI_NUMA_DISTRIBUTE);
    OK(!a.own_cores);
    OK(is(a.bound, 0, "2"));
    pi_affinity_free(&a);
}

/* A quota means that others run on the same cores. */
static void test_quota(const char *root)
{
    struct pi_affinity a;

    put(root, "0::/\n", "/proc/self/cgroup");
    put(root, "300000 100000\n", "/sys/fs/cgroup/cpu.max");
    a = make(root, "0-7", 3, PI_NUMA_DISTRIBUTE);
    OK(!a.own_cores);
    OK(is(a.bound, 2, "0-7"));
    pi_affinity_free(&a);
    put(root, "400000 100000\n", "/sys/fs/cgroup/cpu.max");
    a = make(root, "0-7", 3, PI_NUMA_DISTRIBUTE);
    OK(a.own_cores);
    pi_affinity_free(&a);
}

static void test_nodes(const char *root)
{
    struct pi_affinity a = make(root, "0-15", 8, PI_NUMA_DISTRIBUTE);
    cpu_set_t mask[SET_WORDS];

    OK(a.own_cores);
    EQ(a.n_nodes, 2);
    OK(is(a.bound, 4, "4,12"));
    OK(is(a.free, 4, "4-7,12-15"));
    EQ(a.node[3], 0);
    EQ(a.node[4], 1);
    pi_affinity_free(&a);
    a = make(root, "0-15", 4, PI_NUMA_DISTRIBUTE); /* fewer than cores: held to nodes */
    OK(!a.own_cores);
    OK(is(a.bound, 1, "0-3,8-11"));
    OK(is(a.bound, 2, "4-7,12-15"));
    EQ(a.node[1], 0);
    EQ(a.node[2], 1);
    pi_affinity_free(&a);
    a = make(root, "0-4,8-12", 5, PI_NUMA_DISTRIBUTE); /* in proportion: one core of node 1 */
    EQ(a.n_nodes, 2);
    EQ(a.node[3], 0);
    EQ(a.node[4], 1);
    OK(is(a.free, 4, "4,12"));
    pi_affinity_free(&a);
    a = make(root, "0-15", 4, PI_NUMA_OFF);
    EQ(a.n_nodes, 1);
    OK(is(a.bound, 2, "0-15"));
    pi_affinity_free(&a);

    set_of("2-6,13", mask);
    pi_affinity_isolate(root, 13, mask);
    OK(is(mask, 0, "4-6,13"));
    pi_affinity_isolate(root, 1, mask); /* nothing of that node is in the mask */
    OK(is(mask, 0, "4-6,13"));
    pi_affinity_isolate(root, 99, mask);
    OK(is(mask, 0, "4-6,13"));
}

struct seen {
    cpu_set_t sets[64 * SET_WORDS];
    atomic_uint wrong;
};

static void look(void *ctx, uint32_t thread, uint32_t n_threads)
{
    struct seen *s = ctx;

    if (thread >= n_threads || thread >= 64 ||
        !pi_affinity_current(pi_affinity_set(s->sets, thread)))
        atomic_fetch_add(&s->wrong, 1);
}

/* On this machine: threads of a bound pool share no CPU, all of the mask's; the caller has its mask back afterwards. */
static void test_pool(void)
{
    static struct seen s;
    static cpu_set_t before[SET_WORDS], after[SET_WORDS], sum[SET_WORDS];
    const uint32_t n = pi_cores_physical("");
    struct pi_pool *p = NULL;
    struct pi_err e = {0};
    bool own;

    OK(pi_affinity_current(before));
    PASSES(pi_pool_create(n, &p, &e), e);
    PASSES(pi_pool_bind(p, PI_NUMA_DISTRIBUTE, true, &e), e);
    own = n <= 64 && pi_pool_place(p).own_cores; /* until the end of the run, at least */
    pi_pool_run(p, look, &s);
    EQ(s.wrong, n <= 64 ? 0 : n);
    for (uint32_t t = 0; own && t < n; t++) {
        CPU_AND_S(PI_CPU_SET_BYTES, after, sum, pi_affinity_set(s.sets, t));
        EQ(CPU_COUNT_S(PI_CPU_SET_BYTES, after), 0);
        CPU_OR_S(PI_CPU_SET_BYTES, sum, sum, pi_affinity_set(s.sets, t));
    }
    OK(!own || CPU_EQUAL_S(PI_CPU_SET_BYTES, sum, before));
    pi_pool_destroy(p);
    OK(pi_affinity_current(after));
    OK(CPU_EQUAL_S(PI_CPU_SET_BYTES, before, after));
}

int main(void)
{
    char *dir = scratch_open(), *one = scratch_path(dir, "one"), *two = scratch_path(dir, "two");
    char clean[4200];

    (void)mkdir(one, 0777);
    (void)mkdir(two, 0777);
    test_list(two);
    machine(one, 4, 1);
    test_cores(one);
    test_quota(one);
    test_nodes(two);
    test_pool();
    (void)snprintf(clean, sizeof(clean), "rm -rf %s", dir);
    EQ(system(clean), 0);
    free(one);
    free(two);
    free(dir);
    return DONE();
}
