/* libnvidia-ml.so.1 for a machine without a GPU: it lists STUB_GPUS (8) H100s of 80 GB.

   "GPU-k" is the UUID of GPU k, "MIG-k" that of slice k of GPU 0. As documented for NVML, the index
   of a slice is its number within its GPU, and an index that no GPU has is an invalid argument. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_SUCCESS 0
#define NVML_ERROR_INVALID_ARGUMENT 2
#define MAX_DEVICES 16
#define DEFAULT_GPUS 8
#define MEBIBYTE 1048576ULL
#define TOTAL (81559ULL * MEBIBYTE)
#define USED (500ULL * MEBIBYTE)

typedef struct {
    unsigned index;
} Device;

typedef struct {
    unsigned long long total, free, used; /* bytes */
} Memory;

static Device gpus[MAX_DEVICES], slices[MAX_DEVICES];

static unsigned num_gpus(void) {
    const char *text = getenv("STUB_GPUS");
    return text ? (unsigned)atoi(text) : DEFAULT_GPUS;
}

static int find(Device *devices, unsigned index, unsigned count, Device **device) {
    if (index >= count || index >= MAX_DEVICES) return NVML_ERROR_INVALID_ARGUMENT;
    devices[index].index = index;
    *device = &devices[index];
    return NVML_SUCCESS;
}

int nvmlInit_v2(void) { return NVML_SUCCESS; }

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return NVML_SUCCESS;
}

int nvmlShutdown(void) { return NVML_SUCCESS; }

const char *nvmlErrorString(int code) {
    (void)code;
    return "of the stub";
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    snprintf(version, length, "580.95.05");
    return NVML_SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = num_gpus();
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    return find(gpus, index, num_gpus(), device);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    unsigned index;
    if (sscanf(uuid, "MIG-%u", &index) == 1) return find(slices, index, MAX_DEVICES, device);
    if (sscanf(uuid, "GPU-%u", &index) == 1) return find(gpus, index, num_gpus(), device);
    return NVML_ERROR_INVALID_ARGUMENT;
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
    *index = device->index;
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    snprintf(uuid, length, "GPU-%u", device->index);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    (void)device;
    snprintf(name, length, "NVIDIA H100 80GB HBM3");
    return NVML_SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    (void)device;
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    (void)device;
    memory->total = TOTAL;
    memory->used = USED;
    memory->free = TOTAL - USED;
    return NVML_SUCCESS;
}

/* 0: every pair of GPUs reaches each other's memory. */
int nvmlDeviceGetP2PStatus(Device *first, Device *second, int kind, int *status) {
    (void)first;
    (void)second;
    (void)kind;
    *status = 0;
    return NVML_SUCCESS;
}

int nvmlDeviceGetNumaNodeId(Device *device, unsigned *node) {
    (void)device;
    *node = 0;
    return NVML_SUCCESS;
}
