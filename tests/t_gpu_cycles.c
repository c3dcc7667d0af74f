/* Load, run, exit, again and again: nothing is left behind on the device, in the process's memory, among its threads and files. PI_CYCLES says how often; else 200
 * on a real GPU, 24 on the emulated one. */
#include "config.h"

#include "runtime/pi_device.h"
#include "runtime/pi_gpu.h"
#include "tests/engine_rig.h"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#define WARM_UP 6 /* cycles after which caches of libraries and driver are full */

struct held {
    uint64_t free_bytes; /* of the device */
    long rss_bytes;
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

static struct held look(void)
{
    struct pi_gpu_info info = {0};
    struct pi_err e = {0};
    struct held h = {0};
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (f != NULL) {
        if (fscanf(f, "%*d %ld", &pages) != 1)
            pages = 0;
        (void)fclose(f);
    }
    if (pi_gpu_describe(0, &info, &e) != PI_OK)
        PASSES(e.code, e);
    h.free_bytes = info.free_bytes;
    h.rss_bytes = pages * sysconf(_SC_PAGESIZE);
    h.threads = entries("/proc/self/task");
    h.files = entries("/proc/self/fd");
    return h;
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

static void cycles(enum pi_mode mode, int n)
{
    const struct pi_engine_options o = {.mode = mode,
                                        .n_ctx = 32,
                                        .n_seq = 1,
                                        .kv_type = PI_TYPE_F16,
                                        .on_gpu = true,
                                        .force_predicted = mode == PI_MODE_PREDICTED};
    struct held before = {0}, after;
    struct rig r;
    float *first, *logits;
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
        if (i == WARM_UP)
            before = look();
        cycle(path, &r, &o, i == 0 ? first : logits);
        changed += i > 0 && memcmp(first, logits, (size_t)7 * r.t.n_vocab * sizeof(*first)) != 0;
    }
    after = look();
    for (int i = 0; i < 100 && after.threads > before.threads;
         i++) { /* that were joined may still be seen */
        (void)usleep(10000);
        after = look();
    }
    printf("# %d cycles, %s: device %+lld bytes, host %+ld KiB\n", n, pi_mode_name(mode),
           (long long)before.free_bytes - (long long)after.free_bytes,
           (after.rss_bytes - before.rss_bytes) / 1024);
    EQ(changed, 0);
    OK(after.free_bytes >= before.free_bytes);
    /* 8 KiB a cycle would be less than any of its buffers */
    OK(after.rss_bytes - before.rss_bytes < (n - WARM_UP) * 8192L + 262144);
    OK(after.threads <= before.threads); /* before: one that was joined may still have been seen */
    EQ(after.files, before.files);
    free(first);
    free(logits);
    rig_close(&r);
}

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
    n = wanted != NULL ? atoi(wanted) : strstr(info.name, "mulat") != NULL ? 24 : 200;
    OK(n > WARM_UP);
    cycles(PI_MODE_EXACT, n / 2 > WARM_UP ? n / 2 : n);
    cycles(PI_MODE_PREDICTED, n / 2 > WARM_UP ? n / 2 : n);
    return DONE();
}
