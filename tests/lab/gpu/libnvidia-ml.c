/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN for NVIDIA's libnvidia-ml.so.1 (NVML), laboratory only.
 *
 * The GPUs are those of the state file; utilisation, power, clocks, memory and the energy counter follow the
 * load file that the engine stand-in writes (README.md), and links and processes follow what the stand-in for libcuda
 * leaves in /dev/shm (lab_marks.h). A GPU whose node this process may not open is not counted, as in a container that
 * was given only some.
 */
#define _DEFAULT_SOURCE
#include "lab_marks.h"
#include "lab_state.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
struct device { int gpu; };
typedef struct device *nvmlDevice_t;

enum {
    OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, UNSUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15, LIB_RM_VERSION_MISMATCH = 18, VERSION_MISMATCH = 25, UNKNOWN = 999
};

static const struct { int code; const char *text; } texts[] = {
    {0, "Success"}, {1, "Uninitialized"}, {2, "Invalid Argument"}, {3, "Not Supported"}, {4, "Insufficient Permissions"},
    {5, "Already Initialized"}, {6, "Not Found"}, {7, "Insufficient Size"}, {8, "Insufficient External Power"},
    {9, "Driver Not Loaded"}, {10, "Timeout"}, {12, "NVML Shared Library Not Found"}, {13, "Function Not Found"},
    {15, "GPU is lost"}, {16, "GPU requires restart"}, {17, "The operating system has blocked the request"},
    {18, "Driver/library version mismatch"}, {25, "The version of the argument is not supported"}, {999, "Unknown Error"},
};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef union { double d; unsigned ui; unsigned long long ull; long long sll; } nvmlValue_t;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct { unsigned version, sensor; int temperature; } nvmlTemperature_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;
static int device_count;
static struct device devices[LAB_MAX_GPUS];

static nvmlReturn_t leave(nvmlReturn_t result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

static long calls; /* of this process, since the library was initialised */

/* The fault "NVML gone in the middle": what every call answers, or 0. */
static nvmlReturn_t lost(const struct lab_state *state)
{
    const struct json *fault = json_get(state->json, "nvml"), *now = json_get(fault, "lost");
    double after = json_number(fault, "lost_after_calls", -1), since = json_number(fault, "lost_from", 0);
    double window = json_number(fault, "lost_seconds_after_copies", 0), age = 1e9;
    struct timespec clock;
    clock_gettime(CLOCK_REALTIME, &clock);
    for (int i = 0; window > 0 && i < state->gpu_count; i++)
        age = marks_age(i) < age ? marks_age(i) : age;
    if ((now && now->type == JSON_TRUE) || (after >= 0 && (double)calls > after) || (since > 0 && (double)clock.tv_sec >= since) || age < window)
        return (nvmlReturn_t)json_number(fault, "lost_code", UNKNOWN);
    return now && now->type == JSON_NUMBER ? (nvmlReturn_t)now->number : OK;
}

static bool gpu_lost(const struct lab_gpu *gpu, int index)
{
    static long asked[LAB_MAX_GPUS];
    double after = json_number(gpu->json, "nvml_lost_after_calls", -1);
    asked[index]++;
    return gpu->fell_off || json_true(gpu->json, "nvml_lost") || (after >= 0 && (double)asked[index] > after);
}

#define ENTER(call) \
    pthread_mutex_lock(&lock); \
    if (!users) \
        return leave(UNINITIALIZED); \
    const struct lab_state *state = lab_state(); \
    if (!state) \
        return leave(UNKNOWN); \
    calls++; \
    if (lost(state)) \
        return leave(lost(state)); \
    lab_hang(state, call, -1, -1)

#define DEVICE(call, handle) \
    ENTER(call); \
    if (!(handle) || (handle) < devices || (handle) >= devices + device_count || state->gpu_count <= (handle)->gpu) \
        return leave(INVALID_ARGUMENT); \
    const struct lab_gpu *gpu = &state->gpus[(handle)->gpu]; \
    do { \
        lab_hang(state, call, (handle)->gpu, -1); \
        int fault = lab_error(state, call, (handle)->gpu); \
        if (fault) \
            return leave(fault); \
        if (gpu_lost(gpu, (handle)->gpu)) \
            return leave(GPU_IS_LOST); \
    } while (0)

#define NEED(pointer) \
    if (!(pointer)) \
        return leave(INVALID_ARGUMENT)

static nvmlReturn_t put(char *out, unsigned size, const char *text)
{
    if (!out)
        return INVALID_ARGUMENT;
    if (size <= strlen(text))
        return INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return OK;
}

API const char *nvmlErrorString(nvmlReturn_t code)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == code)
            return texts[i].text;
    return "Unknown Error";
}

/* ---- initialisation -------------------------------------------------------------------------- */

static nvmlReturn_t initialise(void)
{
    char module[64];
    const struct lab_state *state;
    int denied = lab_open_node("/dev/nvidiactl", 195, 255);
    if (!lab_module_version(module, sizeof module) || denied == ENOENT || denied == ENXIO)
        return DRIVER_NOT_LOADED;
    if (denied)
        return NO_PERMISSION;
    if (strcmp(module, RACKWELL_LAB_DRIVER_VERSION))
        return LIB_RM_VERSION_MISMATCH;
    if (!(state = lab_state()))
        return UNKNOWN;
    lab_hang(state, "nvmlInit", -1, -1);
    int fault = lost(state) ? lost(state) : lab_error(state, "nvmlInit", -1);
    if (fault)
        return fault;
    device_count = 0;
    for (int i = 0; i < state->gpu_count; i++) {
        char node[32];
        snprintf(node, sizeof node, "/dev/nvidia%d", state->gpus[i].minor);
        if (!lab_open_node(node, 195, state->gpus[i].minor))
            devices[device_count++].gpu = i;
    }
    return OK;
}

API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users ? OK : initialise();
    if (!result)
        users++;
    return leave(result);
}

API nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlReturn_t nvmlInit(void) { return nvmlInitWithFlags(0); }

API nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    if (!users)
        return leave(UNINITIALIZED);
    users--;
    return leave(OK);
}

/* ---- the system ------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    ENTER("nvmlSystemGetDriverVersion");
    char module[64];
    (void)state;
    if (!lab_module_version(module, sizeof module))
        return leave(DRIVER_NOT_LOADED);
    return leave(put(version, size, module));
}

/* needs no initialisation, as in the real library: nvidia-smi prints it when the initialisation fails */
API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned size)
{
    char text[64];
    int branch = atoi(RACKWELL_LAB_DRIVER_VERSION);
    const char *rest = strchr(RACKWELL_LAB_DRIVER_VERSION, '.');
    snprintf(text, sizeof text, "%d.%d%s", branch >= 580 ? 13 : 12, branch, rest ? rest : "");
    return put(version, size, text);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    int branch = atoi(RACKWELL_LAB_DRIVER_VERSION);
    if (!version)
        return INVALID_ARGUMENT;
    *version = branch >= 610 ? 13030 : branch >= 595 ? 13020 : branch >= 590 ? 13010 : branch >= 580 ? 13000 : branch >= 575 ? 12090 : 12080;
    return OK;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size)
{
    (void)pid, (void)name, (void)size;
    return NOT_FOUND;
}

/* ---- handles --------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    ENTER("nvmlDeviceGetCount");
    NEED(count);
    *count = (unsigned)device_count;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static nvmlReturn_t hand_out(const struct lab_state *state, int index, nvmlDevice_t *device)
{
    int fault = lab_error(state, "nvmlDeviceGetHandle", devices[index].gpu);
    if (fault)
        return fault;
    if (gpu_lost(&state->gpus[devices[index].gpu], devices[index].gpu))
        return GPU_IS_LOST;
    *device = &devices[index];
    return OK;
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    ENTER("nvmlDeviceGetHandle");
    NEED(device && index < (unsigned)device_count);
    return leave(hand_out(state, (int)index, device));
}

API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER("nvmlDeviceGetHandle");
    NEED(device && uuid);
    for (int i = 0; i < device_count; i++)
        if (!strcmp(state->gpus[devices[i].gpu].uuid, uuid))
            return leave(hand_out(state, i, device));
    return leave(NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    ENTER("nvmlDeviceGetHandle");
    NEED(device && id);
    char *end;
    unsigned long part[3] = {0, 0, 0};
    int parts = 0;
    for (const char *at = id; parts < 3; at = end + 1) {
        part[parts++] = strtoul(at, &end, 16);
        if (*end != ':')
            break;
    }
    unsigned long domain = parts == 3 ? part[0] : 0, bus = parts == 3 ? part[1] : part[0], slot = parts == 3 ? part[2] : part[1];
    for (int i = 0; i < device_count; i++) {
        const struct lab_gpu *gpu = &state->gpus[devices[i].gpu];
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == slot)
            return leave(hand_out(state, i, device));
    }
    return leave(NOT_FOUND);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) { return nvmlDeviceGetHandleByPciBusId_v2(id, device); }

/* ---- identity -------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    DEVICE("nvmlDeviceGetIndex", device);
    NEED(index);
    *index = (unsigned)(device - devices);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned size)
{
    DEVICE("nvmlDeviceGetName", device);
    return leave(put(name, size, gpu->name));
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned size)
{
    DEVICE("nvmlDeviceGetUUID", device);
    return leave(put(uuid, size, gpu->uuid));
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned size)
{
    DEVICE("nvmlDeviceGetSerial", device);
    return leave(put(serial, size, json_string(gpu->json, "serial", "1790000000000")));
}

API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    DEVICE("nvmlDeviceGetMinorNumber", device);
    NEED(minor);
    *minor = (unsigned)gpu->minor;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE("nvmlDeviceGetPciInfo", device);
    NEED(pci);
    memset(pci, 0, sizeof *pci);
    pci->domain = gpu->domain;
    pci->bus = gpu->bus;
    pci->device = gpu->device;
    pci->pciDeviceId = (unsigned)json_number(gpu->json, "pci_device_id", 0x2BB510DE);
    pci->pciSubSystemId = (unsigned)json_number(gpu->json, "pci_subsystem_id", 0x204E10DE);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.%X", gpu->domain & 0xffff, gpu->bus & 0xff, gpu->device & 0xff, gpu->function & 0xf);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.%X", gpu->domain, gpu->bus, gpu->device, gpu->function);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) { return nvmlDeviceGetPciInfo_v3(device, pci); }

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE("nvmlDeviceGetCudaComputeCapability", device);
    NEED(major && minor);
    const char *text = json_string(gpu->json, "compute_capability", "12.0"), *dot = strchr(text, '.');
    *major = atoi(text);
    *minor = dot ? atoi(dot + 1) : 0;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned size)
{
    DEVICE("nvmlDeviceGetVbiosVersion", device);
    return leave(put(version, size, json_string(gpu->json, "vbios", "98.02.67.00.0A")));
}

/* a call that answers with one number of the state file */
#define NUMBER(function, type, key, otherwise) \
    API nvmlReturn_t function(nvmlDevice_t device, type *value) \
    { \
        DEVICE(#function, device); \
        NEED(value); \
        *value = (type)json_number(gpu->json, key, otherwise); \
        return leave(OK); \
    }

NUMBER(nvmlDeviceGetBrand, unsigned, "brand", 14)               /* NVIDIA_RTX prints as "NVIDIA" */
NUMBER(nvmlDeviceGetArchitecture, unsigned, "architecture", 10) /* Blackwell */
NUMBER(nvmlDeviceGetPersistenceMode, unsigned, "persistence_mode", 1)
NUMBER(nvmlDeviceGetComputeMode, unsigned, "compute_mode", 0)
NUMBER(nvmlDeviceGetDisplayMode, unsigned, "display_mode", 0)
NUMBER(nvmlDeviceGetDisplayActive, unsigned, "display_active", 0)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, "cores", 24064)
NUMBER(nvmlDeviceGetMemoryBusWidth, unsigned, "memory_bus_width", 512)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_gen_max", 5)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie_gen_gpu_max", 5)

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned *generation)
{
    DEVICE("nvmlDeviceGetCurrPcieLinkGeneration", device);
    NEED(generation);
    *generation = lab_busy(device->gpu, gpu) ? (unsigned)lab_link_generation(gpu) : 1; /* an idle link runs at its slowest */
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned *width)
{
    DEVICE("nvmlDeviceGetCurrPcieLinkWidth", device);
    NEED(width);
    *width = (unsigned)lab_link_width(gpu);
    return leave(OK);
}

/* Mbit/s of a lane */
static unsigned lane_speed(int generation)
{
    static const unsigned speeds[] = {2500, 2500, 5000, 8000, 16000, 32000, 64000};
    return speeds[generation > 0 && generation < 7 ? generation : 1];
}

API nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *speed)
{
    DEVICE("nvmlDeviceGetPcieSpeed", device);
    NEED(speed);
    *speed = lane_speed(lab_busy(device->gpu, gpu) ? lab_link_generation(gpu) : 1);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *speed)
{
    DEVICE("nvmlDeviceGetPcieLinkMaxSpeed", device);
    NEED(speed);
    *speed = lane_speed((int)json_number(gpu->json, "pcie_gen_gpu_max", 5));
    return leave(OK);
}

static unsigned replays(const struct lab_gpu *gpu, int index)
{
    return (unsigned)(json_number(gpu->json, "pcie_replays", 0) + json_number(gpu->json, "pcie_replays_per_copy", 0) * (double)marks_copies(index));
}

API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *count)
{
    DEVICE("nvmlDeviceGetPcieReplayCounter", device);
    NEED(count);
    *count = replays(gpu, device->gpu);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    DEVICE("nvmlDeviceGetRemappedRows", device);
    NEED(corrected && uncorrected && pending && failed);
    *corrected = (unsigned)json_number(gpu->json, "remapped_corrected", 0);
    *uncorrected = (unsigned)json_number(gpu->json, "remapped_uncorrected", 0);
    *pending = json_true(gpu->json, "remapped_pending");
    *failed = json_true(gpu->json, "remapped_failed");
    return leave(OK);
}

/* a GPU on PCIe has no NVLink */
#define NO_NVLINK(function) \
    API nvmlReturn_t function(nvmlDevice_t device, unsigned link, void *out) \
    { \
        DEVICE(#function, device); \
        NEED(out); \
        (void)gpu, (void)link; \
        return leave(UNSUPPORTED); \
    }

NO_NVLINK(nvmlDeviceGetNvLinkState)
NO_NVLINK(nvmlDeviceGetNvLinkVersion)
NO_NVLINK(nvmlDeviceGetNvLinkRemotePciInfo_v2)

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    DEVICE("nvmlDeviceGetMigMode", device);
    NEED(now && pending);
    (void)gpu;
    *now = *pending = 0;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *now, unsigned *pending)
{
    DEVICE("nvmlDeviceGetEccMode", device);
    NEED(now && pending);
    *now = *pending = (unsigned)json_number(gpu->json, "ecc_mode", 1);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned error, unsigned counter, unsigned long long *count)
{
    DEVICE("nvmlDeviceGetTotalEccErrors", device);
    NEED(count);
    (void)counter;
    *count = (unsigned long long)json_number(gpu->json, error ? "ecc_uncorrected" : "ecc_corrected", 0);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned error, unsigned counter, unsigned place, unsigned long long *count)
{
    (void)place;
    return nvmlDeviceGetTotalEccErrors(device, error, counter, count);
}

/* ---- what moves ------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE("nvmlDeviceGetMemoryInfo", device);
    NEED(memory);
    memory->total = (unsigned long long)gpu->memory_mib << 20;
    memory->used = (unsigned long long)(lab_used_mib(device->gpu, gpu) + gpu->reserved_mib) << 20;
    memory->free = memory->total - memory->used;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE("nvmlDeviceGetMemoryInfo", device);
    NEED(memory);
    if (memory->version != (unsigned)(sizeof *memory | 2u << 24))
        return leave(VERSION_MISMATCH);
    memory->total = (unsigned long long)gpu->memory_mib << 20;
    memory->reserved = (unsigned long long)gpu->reserved_mib << 20;
    memory->used = (unsigned long long)lab_used_mib(device->gpu, gpu) << 20;
    memory->free = memory->total - memory->reserved - memory->used;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE("nvmlDeviceGetBAR1MemoryInfo", device);
    NEED(memory);
    memory->total = (unsigned long long)json_number(gpu->json, "bar1_mib", 131072) << 20;
    /* the order of this structure is total, free, used */
    memory->free = memory->total;
    memory->used = 0;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilisation)
{
    DEVICE("nvmlDeviceGetUtilizationRates", device);
    NEED(utilisation);
    utilisation->gpu = (unsigned)(lab_load(gpu).utilisation * 100 + 0.5);
    utilisation->memory = utilisation->gpu / 2;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE("nvmlDeviceGetPowerUsage", device);
    NEED(milliwatts);
    *milliwatts = (unsigned)(lab_power_w(gpu) * 1000 + 0.5);
    return leave(OK);
}

static nvmlReturn_t limit(nvmlDevice_t device, unsigned *milliwatts, const char *key, double otherwise)
{
    DEVICE("nvmlDeviceGetPowerManagementLimit", device);
    NEED(milliwatts);
    *milliwatts = (unsigned)(json_number(gpu->json, key, otherwise) * 1000 + 0.5);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *mw) { return limit(device, mw, "power_limit_w", 600); }
API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *mw) { return limit(device, mw, "power_limit_w", 600); }
API nvmlReturn_t nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned *mw) { return limit(device, mw, "power_default_w", 600); }

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    DEVICE("nvmlDeviceGetPowerManagementLimitConstraints", device);
    NEED(least && most);
    *least = (unsigned)(json_number(gpu->json, "power_min_w", 300) * 1000);
    *most = (unsigned)(json_number(gpu->json, "power_max_w", 600) * 1000);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned *mode)
{
    DEVICE("nvmlDeviceGetPowerManagementMode", device);
    NEED(mode);
    (void)gpu;
    *mode = 1;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    DEVICE("nvmlDeviceGetTotalEnergyConsumption", device);
    NEED(millijoules);
    *millijoules = (unsigned long long)(lab_energy_j(device->gpu, gpu) * 1000);
    return leave(OK);
}

static int temperature(const struct lab_gpu *gpu)
{
    double idle = json_number(gpu->json, "idle_c", 30), busy = json_number(gpu->json, "busy_c", 62);
    return (int)(idle + (busy - idle) * lab_load(gpu).utilisation + 0.5);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *celsius)
{
    DEVICE("nvmlDeviceGetTemperature", device);
    NEED(celsius && !sensor);
    *celsius = (unsigned)temperature(gpu);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *reading)
{
    DEVICE("nvmlDeviceGetTemperature", device);
    NEED(reading);
    if (reading->version != (unsigned)(sizeof *reading | 1u << 24))
        return leave(VERSION_MISMATCH);
    NEED(!reading->sensor);
    reading->temperature = temperature(gpu);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *celsius)
{
    DEVICE("nvmlDeviceGetTemperatureThreshold", device);
    NEED(celsius);
    if (threshold > 1)
        return leave(UNSUPPORTED);
    *celsius = (unsigned)json_number(gpu->json, threshold ? "slowdown_c" : "shutdown_c", threshold ? 90 : 95);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *speed)
{
    DEVICE("nvmlDeviceGetFanSpeed", device);
    NEED(speed);
    (void)gpu;
    return leave(UNSUPPORTED); /* the Server Edition has no fan */
}

static unsigned clock_of(int index, const struct lab_gpu *gpu, unsigned type, bool most)
{
    static const unsigned idle[] = {180, 180, 405, 600}, busy[] = {2430, 2430, 12481, 2107};
    bool running = most || lab_busy(index, gpu);
    unsigned clock = running ? busy[type] : idle[type];
    return running && !most && type < 2 ? (unsigned)json_number(gpu->json, "busy_mhz", clock) : clock;
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    DEVICE("nvmlDeviceGetClockInfo", device);
    NEED(mhz && type < 4);
    *mhz = clock_of(device->gpu, gpu, type, false);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned type, unsigned *mhz)
{
    DEVICE("nvmlDeviceGetMaxClockInfo", device);
    NEED(mhz && type < 4);
    *mhz = clock_of(device->gpu, gpu, type, true);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, unsigned type, unsigned id, unsigned *mhz)
{
    return id ? UNSUPPORTED : nvmlDeviceGetClockInfo(device, type, mhz);
}

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *state_out)
{
    DEVICE("nvmlDeviceGetPerformanceState", device);
    NEED(state_out);
    *state_out = lab_busy(device->gpu, gpu) ? 1 : 8;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, unsigned *state_out) { return nvmlDeviceGetPerformanceState(device, state_out); }

static unsigned long long reasons(int index, const struct lab_gpu *gpu)
{
    unsigned long long set = (unsigned long long)json_number(gpu->json, "clocks_event_reasons", 0);
    if (!lab_busy(index, gpu))
        return set | 1; /* idle */
    return lab_power_w(gpu) >= gpu->power_limit_w ? set | 4 : set; /* software power cap */
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    DEVICE("nvmlDeviceGetCurrentClocksEventReasons", device);
    NEED(mask);
    *mask = reasons(device->gpu, gpu);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask) { return nvmlDeviceGetCurrentClocksEventReasons(device, mask); }

API nvmlReturn_t nvmlDeviceGetSupportedClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    DEVICE("nvmlDeviceGetSupportedClocksEventReasons", device);
    NEED(mask);
    (void)gpu;
    *mask = 0x1ff;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *kb_per_s)
{
    DEVICE("nvmlDeviceGetPcieThroughput", device);
    NEED(kb_per_s && counter < 2);
    *kb_per_s = (unsigned)(700 + (marks_age(device->gpu) < LAB_RECENT_SECONDS ? 50e6 : lab_load(gpu).utilisation * 12e6));
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    DEVICE("nvmlDeviceGetFieldValues", device);
    NEED(values && count > 0);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *v = &values[i];
        v->timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        v->latencyUsec = 0;
        v->nvmlReturn = OK;
        v->valueType = 1;
        v->value.ull = 0;
        switch (v->fieldId) {
        case 1: v->value.ui = (unsigned)json_number(gpu->json, "ecc_mode", 1); break;
        case 83:
            v->valueType = 3;
            v->value.ull = (unsigned long long)(lab_energy_j(device->gpu, gpu) * 1000);
            break;
        case 94: v->value.ui = replays(gpu, device->gpu); break;
        case 142: v->value.ui = (unsigned)json_number(gpu->json, "remapped_corrected", 0); break;
        case 143: v->value.ui = (unsigned)json_number(gpu->json, "remapped_uncorrected", 0); break;
        case 144: v->value.ui = json_true(gpu->json, "remapped_pending"); break;
        case 145: v->value.ui = json_true(gpu->json, "remapped_failed"); break;
        case 95: case 173: case 179: case 180: break;
        case 185: case 186: v->value.ui = (unsigned)(lab_power_w(gpu) * 1000 + 0.5); break;
        case 187: v->value.ui = (unsigned)(json_number(gpu->json, "power_min_w", 300) * 1000); break;
        case 188: v->value.ui = (unsigned)(json_number(gpu->json, "power_max_w", 600) * 1000); break;
        case 189: v->value.ui = (unsigned)(json_number(gpu->json, "power_default_w", 600) * 1000); break;
        case 190: case 192: v->value.ui = (unsigned)(gpu->power_limit_w * 1000); break;
        case 230: v->value.ui = (unsigned)json_number(gpu->json, "recovery_action", 0); break;
        default: v->nvmlReturn = UNSUPPORTED;
        }
    }
    return leave(OK);
}

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;

/* Those that have a context of the stand-in for libcuda, and those that the state file names: `processes`, a list of
 * {"pid", "mib"}. The engine stand-in uses no GPU. */
static nvmlReturn_t processes(nvmlDevice_t device, unsigned *count, process_t *infos)
{
    DEVICE("nvmlDeviceGetComputeRunningProcesses", device);
    NEED(count);
    int pids[64];
    uint64_t bytes[64];
    unsigned room = *count, found = (unsigned)marks_users(device->gpu, pids, bytes, 64);
    const struct json *named = json_get(gpu->json, "processes");
    if (found > 64)
        found = 64;
    unsigned total = found;
    for (const struct json *p = named && named->type == JSON_ARRAY ? named->child : NULL; p; p = p->next)
        total++;
    *count = total;
    if (total && (room < total || !infos))
        return leave(INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < total; i++) {
        const struct json *p = i < found ? NULL : json_at(named, (int)(i - found));
        infos[i].pid = p ? (unsigned)json_number(p, "pid", 1) : (unsigned)pids[i];
        infos[i].memory = p ? (unsigned long long)json_number(p, "mib", 0) << 20 : bytes[i];
        infos[i].gpu_instance = infos[i].compute_instance = ~0u;
    }
    return leave(OK);
}

static nvmlReturn_t no_processes(nvmlDevice_t device, unsigned *count)
{
    DEVICE("nvmlDeviceGetGraphicsRunningProcesses", device);
    NEED(count);
    (void)gpu;
    *count = 0;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *infos) { return processes(device, count, infos); }
API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, void *infos) { return processes(device, count, infos); }
API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, void *infos) { (void)infos; return no_processes(device, count); }

/* ---- topology -------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned *level)
{
    DEVICE("nvmlDeviceGetTopologyCommonAncestor", device);
    NEED(level && other && other >= devices && other < devices + device_count);
    const struct lab_gpu *peer = &state->gpus[other->gpu];
    if (device == other)
        *level = 0;
    else if (gpu->numa != peer->numa)
        *level = 50;
    else
        *level = gpu->pci_switch >= 0 && gpu->pci_switch == peer->pci_switch ? 10 : 40;
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned kind, unsigned *status)
{
    DEVICE("nvmlDeviceGetP2PStatus", device);
    NEED(status && other && other >= devices && other < devices + device_count);
    (void)gpu;
    if (kind > 4)
        return leave(INVALID_ARGUMENT);
    if (kind == 2)
        *status = 5; /* no NVLink */
    else if (kind == 3)
        *status = lab_native_atomics(state, device->gpu, other->gpu) ? 0 : 5;
    else
        *status = lab_can_access(state, device->gpu, other->gpu) ? 0 : (unsigned)json_number(json_get(state->json, "p2p"), "status", 1);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask)
{
    DEVICE("nvmlDeviceGetCpuAffinity", device);
    NEED(mask && words);
    memset(mask, 0, words * sizeof *mask);
    const char *at = json_string(gpu->json, "cpu_affinity", "0-31");
    while (*at >= '0' && *at <= '9') {
        char *end;
        unsigned long first = strtoul(at, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long cpu = first; cpu <= last && cpu < words * 64ul; cpu++)
            mask[cpu / 64] |= 1ul << (cpu % 64);
        at = *end == ',' ? end + 1 : end;
    }
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *mask, unsigned scope)
{
    DEVICE("nvmlDeviceGetMemoryAffinity", device);
    NEED(mask && words);
    (void)scope;
    memset(mask, 0, words * sizeof *mask);
    mask[0] = 1ul << (gpu->numa < 64 ? gpu->numa : 0);
    return leave(OK);
}

API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    DEVICE("nvmlDeviceGetNumaNodeId", device);
    NEED(node);
    (void)gpu;
    return leave(UNSUPPORTED); /* the GPU's memory is no NUMA node of the host */
}
