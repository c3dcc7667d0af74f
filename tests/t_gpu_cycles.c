/* Load, run, exit, again and again: nothing is left behind on the device, in the process's memory, among its threads and files. PI_CYCLES says how often; else 200
 * on a real GPU, 48 on the emulated one. */
#include "config.h"

#include "runtime/pi_device.h"
#include "runtime/pi_gpu.h"
#include "tests/engine_rig.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#define WARM_UP 6 /* cycles after which caches of libraries and driver are full */
/* Bytes by which stacks and what free() keeps at hand were seen to come and go: 2 MiB. */
#define OWN_NOISE (4 << 20)

struct held {
    uint64_t free_bytes; /* of the device */
    long own_bytes;      /* memory of this process that no file backs */
    long heap_bytes;     /* of it what malloc() gave and free() did not get back */
    int threads, files;
};

static int entries(const char *path)
{
    DIR *d = opendir(path);
    int n = 0;

    while (d != NULL && readdir(d) != NULL)
        n++;
    if (d != NULL)
        (void)closedir(d);
    return n;
}

/* Counted page by page: the sums in /proc/self/statm are late by up to a batch of pages a processor, and pages of libraries and of the model come and go with the page cache. */
static long own_bytes(void)
{
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    long sum = 0, kib;
    char line[256];

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "Pss_Anon: %ld", &kib) == 1 || sscanf(line, "Pss_Shmem: %ld", &kib) == 1)
            sum += kib * 1024;
    }
    if (f != NULL)
        (void)fclose(f);
    return sum;
}

static struct held look(void)
{
    const struct mallinfo2 heap = mallinfo2();
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};
    struct held h = {0};
    if (pi_gpu_describe(0, &info, &e) != PI_OK)
        PASSES(e.code, e);
    h.free_bytes = info.free_bytes;
    h.own_bytes = own_bytes();
    h.heap_bytes = (long)(heap.uordblks + heap.hblkhd);
    h.threads = entries("/proc/self/task");
    h.files = entries("/proc/self/fd");
    return h;
}

/* What is held now where it is less than *least, which is all zero at first. */
static void keep_least(struct held *least)
{
    const struct held now = look();
    const bool first = least->own_bytes == 0;

    if (now.free_bytes > least->free_bytes)
        least->free_bytes = now.free_bytes;
    if (first || now.own_bytes < least->own_bytes)
        least->own_bytes = now.own_bytes;
    if (first || now.heap_bytes < least->heap_bytes)
        least->heap_bytes = now.heap_bytes;
    if (first || now.threads < least->threads)
        least->threads = now.threads;
    if (first || now.files < least->files)
        least->files = now.files;
}

/* Everything from the file on; a prompt and three steps. Prints only what goes wrong. */
static void cycle(const char *path, struct rig *r, const struct pi_engine_options *o, float *logits)
{
    const struct pi_model_options mo = {.check_crc = true};
    const struct pi_batch prompt = {.n_tok = 4, .token = tokens, .pos = positions};
    struct pi_engine *e = NULL;
    struct pi_model m = {0};
    struct pi_pool *pool = NULL;
    enum pi_code rc;

    PI_TRY(pi_model_open(path, &mo, &m, &r->e));
    PI_TRY(pi_pool_create(2, &pool, &r->e));
    PI_TRY(pi_engine_create(&m, o->mode == PI_MODE_PREDICTED ? &r->pred : NULL, &r->place, pool, o,
                            &e, &r->e));
    PI_TRY(pi_engine_run(e, PI_PHASE_PROMPT, &prompt, logits, &r->e));
    for (uint32_t i = 4; i < 7; i++) {
        const struct pi_batch one = {.n_tok = 1, .token = tokens + i, .pos = positions + i};

        PI_TRY(
            pi_engine_run(e, PI_PHASE_DECODE, &one, logits + (size_t)i * m.shape.n_vocab, &r->e));
    }
out:
    pi_engine_destroy(e);
    pi_pool_destroy(pool);
    pi_model_close(&m);
    if (rc != PI_OK)
        PASSES(rc, r->e);
}

static void cycles(enum pi_mode mode, enum pi_handover handover, int n)
{
    const struct pi_engine_options o = {.mode = mode,
                                        .n_ctx = 32,
                                        .n_seq = 1,
                                        .kv_type = PI_TYPE_F16,
                                        .on_gpu = true,
                                        .gpu_handover = handover,
                                        .gpu_patience = 60.0,
                                        .force_predicted = mode == PI_MODE_PREDICTED};
    struct held before = {0}, after = {0}; /* the least in either half of the cycles */
    struct rig r;
    float *first, *logits;
    const int half = (n - WARM_UP) / 2;
    long long changed = 0;
    const char *path;

    rig_open(&r, &llama, 1);
    oracle(&r, 0.0f);
    path = r.m.file.map.path;
    for (uint32_t l = 0; l < r.t.n_layer; l++)
        r.layers[l].n_hot = 40;
    first = calloc((size_t)7 * r.t.n_vocab, sizeof(*first));
    logits = calloc((size_t)7 * r.t.n_vocab, sizeof(*logits));
    for (int i = 0; i < n; i++) {
        cycle(path, &r, &o, i == 0 ? first : logits);
        changed += i > 0 && memcmp(first, logits, (size_t)7 * r.t.n_vocab * sizeof(*first)) != 0;
        if (i >= WARM_UP)
            keep_least(i < WARM_UP + half ? &before : &after);
    }
    for (int i = 0; i < 100 && after.threads > before.threads;
         i++) { /* that were joined may still be seen */
        (void)usleep(10000);
        keep_least(&after);
    }
    printf("# %d cycles, %s: device %+lld bytes, heap %+ld bytes, memory %+ld KiB\n", n,
           pi_mode_name(mode), (long long)before.free_bytes - (long long)after.free_bytes,
           after.heap_bytes - before.heap_bytes, (after.own_bytes - before.own_bytes) / 1024);
    EQ(changed, 0);
    OK(after.free_bytes >= before.free_bytes);
    /* 8 KiB a cycle would be less than any of its buffers */
    OK(after.heap_bytes - before.heap_bytes < half * 8192L);
    OK(before.own_bytes > 0 && after.own_bytes - before.own_bytes < half * 8192L + OWN_NOISE);
    OK(after.threads <= before.threads);
    EQ(after.files, before.files);
    free(first);
    free(logits);
    rig_close(&r);
}

/* Of the emulated device alone. */
int cudaEmuLiveAllocations(void) __attribute__((weak));
int cudaEmuLiveObjects(void) __attribute__((weak));

int main(void)
{
    const char *wanted = getenv("PI_CYCLES");
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};
    int n;

    if (pi_gpu_count() == 0) {
        if (getenv("PI_REQUIRE_GPU") == NULL)
            return SKIP_ALL("no GPU");
        OK(!"a GPU");
        return DONE();
    }
    (void)mallopt(M_ARENA_MAX, 1); /* else each new thread may bring one */
    PASSES(pi_gpu_describe(0, &info, &e), e);
    n = wanted != NULL ? atoi(wanted) : strstr(info.name, "mulat") != NULL ? 48 : 200;
    OK(n > WARM_UP);
    /* the trial of hand-overs knows no mode, and takes an emulated device longer than all the rest */
    cycles(PI_MODE_EXACT, PI_HANDOVER_AUTO, n / 2 > WARM_UP ? n / 2 : n);
    cycles(PI_MODE_PREDICTED, PI_HANDOVER_SPIN, n / 2 > WARM_UP ? n / 2 : n);
    if (cudaEmuLiveAllocations != NULL && cudaEmuLiveObjects != NULL) {
        EQ(cudaEmuLiveAllocations(), 0);
        EQ(cudaEmuLiveObjects(), 0);
    }
    return DONE();
}
