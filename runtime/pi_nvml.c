#include "config.h"

#include "runtime/pi_nvml.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

/* The library's own types, as its ABI has them since 2016 (nvml.h: nvmlMemory_t, nvmlPciInfo_t). */
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_pci {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*handle)(unsigned index, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
    int (*pci)(void *device, struct nvml_pci *out);
};

static bool find(void *lib, const char *name, void *function)
{
    void *p = dlsym(lib, name);

    memcpy(function, &p, sizeof(p)); /* C knows no cast from data to functions */
    return p != NULL;
}

static bool find_all(void *lib, struct nvml *n)
{
    return find(lib, "nvmlInit_v2", &n->init) && find(lib, "nvmlShutdown", &n->shutdown) &&
           find(lib, "nvmlDeviceGetCount_v2", &n->count) &&
           find(lib, "nvmlDeviceGetHandleByIndex_v2", &n->handle) &&
           find(lib, "nvmlDeviceGetMemoryInfo", &n->memory) &&
           find(lib, "nvmlDeviceGetPciInfo_v3", &n->pci);
}

/* Devices that the library refuses to talk about are left out. */
static void read_devices(const struct nvml *n, struct pi_nvml_mark *out)
{
    unsigned count = 0;

    if (n->count(&count) != 0)
        return;
    for (unsigned i = 0; i < count && out->n < PI_NVML_DEVICES; i++) {
        struct nvml_memory memory = {0};
        struct nvml_pci pci = {.bus = 0};
        void *device = NULL;

        if (n->handle(i, &device) != 0 || n->memory(device, &memory) != 0 ||
            n->pci(device, &pci) != 0)
            continue;
        out->dev[out->n].bus = pci.bus;
        out->dev[out->n].used = memory.used;
        out->n++;
    }
}

void pi_nvml_mark(struct pi_nvml_mark *out)
{
    void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    struct nvml n;

    memset(out, 0, sizeof(*out));
    if (lib == NULL)
        return;
    if (find_all(lib, &n) && n.init() == 0) {
        read_devices(&n, out);
        (void)n.shutdown();
    }
    (void)dlclose(lib);
}

static bool used_on(const struct pi_nvml_mark *m, uint32_t bus, uint64_t *out)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < m->n; i++) {
        if (m->dev[i].bus == bus) {
            *out = m->dev[i].used;
            found++;
        }
    }
    return found == 1;
}

bool pi_nvml_taken(const struct pi_nvml_mark *before, const struct pi_nvml_mark *after,
                   uint32_t bus, uint64_t *out)
{
    uint64_t b = 0, a = 0;

    if (!used_on(before, bus, &b) || !used_on(after, bus, &a) || a < b)
        return false;
    *out = a - b;
    return true;
}
