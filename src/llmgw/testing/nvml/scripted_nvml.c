/* A scripted libnvidia-ml.so.1: pynvml is the real one, the GPUs are what a file says.
 *
 * The file named by $LLMGW_FAKE_NVML is read at every call, so a test changes the hardware while
 * the program under test runs. One `key=value` a line; a line `[gpu]` begins the next GPU.
 *   uuid= name= pci=0000:17:00.0 total_mib= used_mib= cc=8.9 mig=none|0|1 numa=
 *   process=PID:MIB (or PID alone: the driver does not say how much), any number of times
 *   fail.<function>=<code>: that function fails on this GPU (before the first [gpu]: everywhere)
 * No file: the driver is not loaded.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, TOO_SMALL = 7, NO_DRIVER = 9,
       LOST = 15 };
enum { GPUS_MAX = 16, PROCESSES_MAX = 32, FAILURES_MAX = 16 };

typedef struct { char function[64]; int code; } Failure;
typedef struct { Failure of[FAILURES_MAX]; int count; } Failures;
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } Process;
typedef struct {
    char uuid[96], name[96], pci[32];
    unsigned long long total, used;
    int major, minor, mig, numa, processes;
    Process process[PROCESSES_MAX];
    Failures failures;
} Gpu;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, vendor, subsystem;
    char id[32];
} Pci;

static struct { Gpu gpu[GPUS_MAX]; int count; Failures failures; } machine;
static int started;

static void note_failure(Failures *list, const char *function, const char *code) {
    if (list->count == FAILURES_MAX) return;
    snprintf(list->of[list->count].function, 64, "%s", function);
    list->of[list->count++].code = atoi(code);
}

static int failure(const Failures *list, const char *function) {
    for (int i = 0; i < list->count; i++)
        if (!strcmp(list->of[i].function, function)) return list->of[i].code;
    return OK;
}

static Gpu *next_gpu(void) {
    if (machine.count == GPUS_MAX) return NULL;
    Gpu *gpu = &machine.gpu[machine.count++];
    snprintf(gpu->uuid, sizeof gpu->uuid, "GPU-%d", machine.count - 1);
    snprintf(gpu->name, sizeof gpu->name, "NVIDIA L40S");
    snprintf(gpu->pci, sizeof gpu->pci, "0000:%02x:00.0", 0x10 * machine.count);
    gpu->total = 46068ULL << 20;
    gpu->major = 8, gpu->minor = 9, gpu->mig = -1, gpu->numa = -1;
    return gpu;
}

static void set(Gpu *gpu, const char *key, const char *value) {
    if (!strcmp(key, "uuid")) snprintf(gpu->uuid, sizeof gpu->uuid, "%s", value);
    else if (!strcmp(key, "name")) snprintf(gpu->name, sizeof gpu->name, "%s", value);
    else if (!strcmp(key, "pci")) snprintf(gpu->pci, sizeof gpu->pci, "%s", value);
    else if (!strcmp(key, "total_mib")) gpu->total = strtoull(value, NULL, 0) << 20;
    else if (!strcmp(key, "used_mib")) gpu->used = strtoull(value, NULL, 0) << 20;
    else if (!strcmp(key, "cc")) sscanf(value, "%d.%d", &gpu->major, &gpu->minor);
    else if (!strcmp(key, "mig")) gpu->mig = strcmp(value, "none") ? atoi(value) : -1;
    else if (!strcmp(key, "numa")) gpu->numa = atoi(value);
    else if (!strcmp(key, "process") && gpu->processes < PROCESSES_MAX) {
        Process *process = &gpu->process[gpu->processes++];
        const char *size = strchr(value, ':');
        process->pid = strtoul(value, NULL, 10);
        process->bytes = size ? strtoull(size + 1, NULL, 0) << 20 : ~0ULL;
        process->instance = process->compute = 0xFFFFFFFFu;
    }
}

static int read_machine(void) {
    const char *path = getenv("LLMGW_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[512];
    Gpu *gpu = NULL;
    memset(&machine, 0, sizeof machine);
    if (!file) return NO_DRIVER;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\r\n")] = 0;
        if (!strcmp(line, "[gpu]")) { gpu = next_gpu(); continue; }
        char *value = strchr(line, '=');
        if (!value) continue;
        *value++ = 0;
        if (!strncmp(line, "fail.", 5))
            note_failure(gpu ? &gpu->failures : &machine.failures, line + 5, value);
        else if (gpu)
            set(gpu, line, value);
    }
    fclose(file);
    return OK;
}

static int ready(const char *function) {
    if (!started) return UNINITIALIZED;
    int code = read_machine();
    return code ? code : failure(&machine.failures, function);
}

/* A handle is a place plus one: one that is not there any more has fallen off the bus. */
static int find(void *handle, Gpu **gpu, const char *function) {
    int code = ready(function);
    size_t place = (size_t)handle;
    if (code) return code;
    if (!place) return INVALID;
    if (place > (size_t)machine.count) return LOST;
    *gpu = &machine.gpu[place - 1];
    return failure(&(*gpu)->failures, function);
}

#define ON_GPU(...) \
    Gpu *gpu; \
    int code = find(handle, &gpu, __func__); \
    if (code) return code; \
    __VA_ARGS__

static int copied(char *to, unsigned size, const char *text) {
    if (strlen(text) + 1 > size) return TOO_SMALL;
    strcpy(to, text);
    return OK;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = read_machine();
    if (!code) code = failure(&machine.failures, __func__);
    if (!code) started = 1;
    return code;
}

int nvmlShutdown(void) {
    started = 0;
    return OK;
}

const char *nvmlErrorString(int code) {
    switch (code) {
        case NOT_SUPPORTED: return "Not Supported";
        case NO_DRIVER: return "Driver Not Loaded";
        case LOST: return "GPU is lost";
        default: return "Scripted Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = ready(__func__);
    if (!code) *count = machine.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    int code = ready(__func__);
    if (code) return code;
    if (index >= (unsigned)machine.count) return INVALID;
    *handle = (void *)(size_t)(index + 1);
    return failure(&machine.gpu[index].failures, __func__);
}

int nvmlDeviceGetUUID(void *handle, char *to, unsigned size) {
    ON_GPU(return copied(to, size, gpu->uuid);)
}

int nvmlDeviceGetName(void *handle, char *to, unsigned size) {
    ON_GPU(return copied(to, size, gpu->name);)
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory) {
    ON_GPU(*memory = (Memory){gpu->total, gpu->total - gpu->used, gpu->used}; return OK;)
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    ON_GPU(*major = gpu->major; *minor = gpu->minor; return OK;)
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ON_GPU(if (gpu->mig < 0) return NOT_SUPPORTED; *current = *pending = gpu->mig; return OK;)
}

int nvmlDeviceGetNumaNodeId(void *handle, int *node) {
    ON_GPU(if (gpu->numa < 0) return NOT_SUPPORTED; *node = gpu->numa; return OK;)
}

int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci) {
    unsigned function = 0;
    ON_GPU(memset(pci, 0, sizeof *pci);)
    sscanf(gpu->pci, "%x:%x:%x.%x", &pci->domain, &pci->bus, &pci->device, &function);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.%X", pci->domain, pci->bus & 0xFF,
             pci->device & 0xFF, function & 0xF);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.%X", pci->domain & 0xFFFF,
             pci->bus & 0xFF, pci->device & 0xFF, function & 0xF);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, Process *to) {
    ON_GPU(unsigned room = *count; *count = gpu->processes;)
    if (!gpu->processes) return OK;
    if (!to || room < (unsigned)gpu->processes) return TOO_SMALL;
    memcpy(to, gpu->process, sizeof(Process) * gpu->processes);
    return OK;
}
