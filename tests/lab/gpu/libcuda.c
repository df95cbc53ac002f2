/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN for NVIDIA's libcuda.so.1 (the CUDA driver API), laboratory only.
 *
 * The GPUs are those of the state file (README.md). Copies and kernels change the memory's content at once, when they
 * are started (lab_bytes.h); time is modelled (lab_time.h), and events read the modelled clock. Kernels are in
 * libcuda_kernels.c.
 */
#define _DEFAULT_SOURCE
#include "libcuda.h"
#include "lab_marks.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct { int code; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; /* something was put into a stream */
static pid_t owner; /* the process that initialised; a fork has no access */
static int ordinals; /* visible devices */
int physical[LAB_MAX_GPUS];
static struct context *contexts;
static struct context primaries[LAB_MAX_GPUS];
static struct stream *streams;
static struct event *events;
static struct block *blocks;
uint64_t write_count;
static _Thread_local CUcontext stack[64];
static _Thread_local int depth;

/* Every call but cuInit and the texts: the lock, an initialised process, the state, and its faults for this call.
 * `ordinal` is the device that the call is about, or -1. Returns 0 with the lock held, else an error without it. */
CUresult enter(const char *call, int ordinal, int peer, const struct lab_state **state)
{
    pthread_mutex_lock(&lock);
    CUresult error = OK;
    if (owner != getpid())
        error = NOT_INITIALIZED;
    else if (!(*state = lab_state()))
        error = UNKNOWN;
    else {
        int gpu = ordinal >= 0 && ordinal < ordinals ? physical[ordinal] : -1;
        int other = peer >= 0 && peer < ordinals ? physical[peer] : -1;
        lab_hang(*state, call, gpu, other);
        error = lab_error(*state, call, gpu);
        if (!error && gpu >= 0 && ((*state)->gpu_count <= gpu || (*state)->gpus[gpu].fell_off))
            error = strcmp(call, "cuCtxCreate") && strcmp(call, "cuDevicePrimaryCtxRetain") ? LAUNCH_FAILED : DEVICE_UNAVAILABLE;
        if (!error && current() && current()->broken && ordinal == current_device())
            error = current()->broken; /* until the context is destroyed, as on a real GPU */
    }
    if (error)
        pthread_mutex_unlock(&lock);
    return error;
}

CUresult leave(CUresult result)
{
    pthread_mutex_unlock(&lock);
    return result;
}

CUcontext current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

int current_device(void)
{
    return current() ? current()->device : -1;
}

bool is_context(CUcontext wanted)
{
    for (struct context *c = contexts; c; c = c->next)
        if (c == wanted)
            return true;
    for (int i = 0; i < ordinals; i++)
        if (wanted == &primaries[i])
            return wanted->active;
    return false;
}

/* ---- initialisation -------------------------------------------------------------------------- */

/* CUDA_VISIBLE_DEVICES: numbers and UUIDs or their beginnings; the list ends at the first entry that names no GPU */
static void choose_visible(const struct lab_state *state, const int *usable, int usable_count)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    ordinals = 0;
    if (!visible) {
        for (int i = 0; i < usable_count; i++)
            physical[ordinals++] = usable[i];
        return;
    }
    while (*visible && ordinals < usable_count) {
        size_t length = strcspn(visible, ",");
        int found = -1;
        while (length && (*visible == ' ' || *visible == '\t'))
            visible++, length--;
        while (length && (visible[length - 1] == ' ' || visible[length - 1] == '\t'))
            length--;
        if (length > 4 && !strncmp(visible, "GPU-", 4)) {
            for (int i = 0; i < usable_count; i++)
                if (!strncmp(state->gpus[usable[i]].uuid, visible, length))
                    found = found < 0 ? usable[i] : -2;
        } else if (length && length <= 3) {
            int number = 0;
            for (size_t i = 0; i < length; i++)
                number = visible[i] >= '0' && visible[i] <= '9' && number >= 0 ? number * 10 + visible[i] - '0' : -1;
            if (number >= 0 && number < usable_count)
                found = usable[number];
        }
        if (found < 0)
            return;
        for (int i = 0; i < ordinals; i++)
            if (physical[i] == found) { /* named twice: nothing is visible */
                ordinals = 0;
                return;
            }
        physical[ordinals++] = found;
        visible += strcspn(visible, ",");
        if (*visible == ',')
            visible++;
    }
}

static CUresult initialise(void)
{
    char module[64];
    int usable[LAB_MAX_GPUS], usable_count = 0;
    const struct lab_state *state = lab_state();
    if (!state)
        return UNKNOWN;
    lab_hang(state, "cuInit", -1, -1);
    if (lab_open_node("/dev/nvidiactl", 195, 255))
        return NO_DEVICE;
    if (!lab_module_version(module, sizeof module))
        return NO_DEVICE;
    if (strcmp(module, RACKWELL_LAB_DRIVER_VERSION))
        return SYSTEM_DRIVER_MISMATCH;
    int uvm = lab_device_major("nvidia-uvm");
    if (uvm == 0 || lab_open_node("/dev/nvidia-uvm", uvm > 0 ? uvm : (int)json_number(state->json, "uvm_major", 0), 0))
        return UNKNOWN;
    if (lab_hmm_enabled())
        return NOT_INITIALIZED;
    for (int i = 0; i < state->gpu_count; i++) {
        char node[32];
        snprintf(node, sizeof node, "/dev/nvidia%d", state->gpus[i].minor);
        if (!state->gpus[i].fell_off && !lab_open_node(node, 195, state->gpus[i].minor))
            usable[usable_count++] = i;
    }
    choose_visible(state, usable, usable_count);
    if (!ordinals)
        return NO_DEVICE;
    int error = (int)json_number(state->json, "cu_init_error", 0);
    if (!error)
        error = lab_error(state, "cuInit", -1);
    for (int i = 0; !error && i < ordinals; i++) {
        error = (int)json_number(state->gpus[physical[i]].json, "cu_init_error", 0);
        if (!error)
            error = lab_error(state, "cuInit", physical[i]);
    }
    return error;
}

API CUresult cuInit(unsigned flags)
{
    if (flags)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    CUresult result = OK;
    if (owner && owner != getpid())
        result = NOT_INITIALIZED; /* a fork of an initialised process */
    else if (!owner) {
        result = initialise();
        if (!result)
            owner = getpid();
    }
    return leave(result);
}

/* what the driver of this branch can do at most: 595 -> CUDA 13.2 */
API CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return INVALID_VALUE;
    int branch = atoi(RACKWELL_LAB_DRIVER_VERSION);
    *version = branch >= 610 ? 13030 : branch >= 595 ? 13020 : branch >= 590 ? 13010 : branch >= 580 ? 13000 : branch >= 575 ? 12090 : 12080;
    return OK;
}

API CUresult cuGetErrorName(CUresult code, const char **name)
{
    if (!name)
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *name = errors[i].name;
            return OK;
        }
    *name = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult code, const char **text)
{
    if (!text)
        return INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code) {
            *text = errors[i].text;
            return OK;
        }
    *text = NULL;
    return INVALID_VALUE;
}

/* ---- devices --------------------------------------------------------------------------------- */

API CUresult cuDeviceGetCount(int *count)
{
    ENTER("cuDeviceGetCount", -1, -1);
    if (count)
        *count = ordinals;
    return leave(count ? OK : INVALID_VALUE);
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    ENTER("cuDeviceGet", -1, -1);
    if (!device)
        return leave(INVALID_VALUE);
    if (ordinal < 0 || ordinal >= ordinals)
        return leave(INVALID_DEVICE);
    *device = ordinal;
    return leave(OK);
}

#define DEVICE(ordinal) \
    if ((ordinal) < 0 || (ordinal) >= ordinals || state->gpu_count <= physical[ordinal]) \
        return leave(INVALID_DEVICE); \
    const struct lab_gpu *gpu = &state->gpus[physical[ordinal]]

API CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    ENTER("cuDeviceGetName", -1, -1);
    DEVICE(device);
    if (!name || size <= 0)
        return leave(INVALID_VALUE);
    snprintf(name, (size_t)size, "%s", gpu->name);
    return leave(OK);
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    ENTER("cuDeviceGetUuid", -1, -1);
    DEVICE(device);
    if (!uuid)
        return leave(INVALID_VALUE);
    memcpy(uuid->bytes, gpu->uuid_bytes, sizeof uuid->bytes);
    return leave(OK);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid(uuid, device);
}

API CUresult cuDeviceGetPCIBusId(char *id, int size, CUdevice device)
{
    ENTER("cuDeviceGetPCIBusId", -1, -1);
    DEVICE(device);
    if (!id || size < 13)
        return leave(INVALID_VALUE);
    snprintf(id, (size_t)size, "%04X:%02X:%02X.%X", gpu->domain, gpu->bus, gpu->device, gpu->function);
    return leave(OK);
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    ENTER("cuDeviceGetByPCIBusId", -1, -1);
    if (!device || !id)
        return leave(INVALID_VALUE);
    unsigned domain = 0, bus = 0, slot = 0;
    char *end = NULL;
    domain = (unsigned)strtoul(id, &end, 16);
    if (*end == ':') {
        bus = (unsigned)strtoul(end + 1, &end, 16);
        if (*end == ':')
            slot = (unsigned)strtoul(end + 1, &end, 16);
        else { /* no domain */
            slot = bus;
            bus = domain;
            domain = 0;
        }
    }
    for (int i = 0; i < ordinals; i++) {
        const struct lab_gpu *gpu = &state->gpus[physical[i]];
        if (gpu->domain == domain && gpu->bus == bus && gpu->device == slot) {
            *device = i;
            return leave(OK);
        }
    }
    return leave(INVALID_DEVICE);
}

static void capability(const struct lab_gpu *gpu, int *major, int *minor)
{
    const char *text = json_string(gpu->json, "compute_capability", "12.0");
    const char *dot = strchr(text, '.');
    *major = atoi(text);
    *minor = dot ? atoi(dot + 1) : 0;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    ENTER("cuDeviceComputeCapability", -1, -1);
    DEVICE(device);
    if (!major || !minor)
        return leave(INVALID_VALUE);
    capability(gpu, major, minor);
    return leave(OK);
}

static size_t total_bytes(const struct lab_gpu *gpu)
{
    return (size_t)(gpu->memory_mib - gpu->reserved_mib) << 20;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    ENTER("cuDeviceTotalMem", -1, -1);
    DEVICE(device);
    if (!bytes)
        return leave(INVALID_VALUE);
    *bytes = total_bytes(gpu);
    return leave(OK);
}

/* GB202 as in RTX PRO 6000 Blackwell; attributes that are not here read as 0 */
static const short attribute_numbers[] = {1, 2, 3, 4, 8, 10, 12, 15, 31, 32, 39, 40, 41, 78, 79, 80, 81, 82, 83, 86, 90, 95, 97, 99, 106, 111, 120};
static const int attribute_values[] = {1024, 1024, 1024, 64, 49152, 32, 65536, 1, 1, 1, 1536, 2, 1, 1, 1, 1, 102400, 65536, 1, 0, 1, 1, 101376, 1, 24, 1024, 1};

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    ENTER("cuDeviceGetAttribute", -1, -1);
    DEVICE(device);
    int major, minor;
    if (!value || attribute < 1)
        return leave(INVALID_VALUE);
    capability(gpu, &major, &minor);
    *value = 0;
    switch (attribute) {
    case 5: *value = 2147483647; break;
    case 6: case 7: *value = 65535; break;
    case 13: *value = 2430000; break;
    case 16: *value = (int)json_number(gpu->json, "multiprocessors", 188); break;
    case 33: *value = (int)gpu->bus; break;
    case 34: *value = (int)gpu->device; break;
    case 36: *value = 12481000; break;
    case 37: *value = 512; break;
    case 38: *value = 128 << 20; break;
    case 50: *value = (int)gpu->domain; break;
    case 75: *value = major; break;
    case 76: *value = minor; break;
    case 134: *value = gpu->numa; break;
    case 139: *value = (int)json_number(gpu->json, "pci_device_id", 0x2BB510DE); break;
    default:
        for (size_t i = 0; i < sizeof attribute_numbers / sizeof *attribute_numbers; i++)
            if (attribute_numbers[i] == attribute)
                *value = attribute_values[i];
    }
    return leave(OK);
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    ENTER("cuDeviceCanAccessPeer", device, peer);
    if (!can)
        return leave(INVALID_VALUE);
    if (device < 0 || device >= ordinals || peer < 0 || peer >= ordinals)
        return leave(INVALID_DEVICE);
    *can = lab_can_access(state, physical[device], physical[peer]);
    return leave(OK);
}

API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to)
{
    ENTER("cuDeviceGetP2PAttribute", from, to);
    if (!value)
        return leave(INVALID_VALUE);
    if (from < 0 || from >= ordinals || to < 0 || to >= ordinals || from == to)
        return leave(INVALID_DEVICE);
    const struct lab_gpu *a = &state->gpus[physical[from]], *b = &state->gpus[physical[to]];
    bool can = lab_can_access(state, physical[from], physical[to]);
    switch (attribute) {
    case 1: *value = a->numa != b->numa; break; /* rank: 0 is the faster link */
    case 2: case 4: *value = can; break;
    case 3: *value = lab_native_atomics(state, physical[from], physical[to]); break;
    case 5: *value = 0; break;
    default: return leave(INVALID_VALUE);
    }
    return leave(OK);
}

/* ---- contexts -------------------------------------------------------------------------------- */

static void free_block(struct block **at)
{
    settle();
    struct block *gone = *at;
    *at = gone->next;
    if (!gone->registered)
        munmap(gone->bytes.start, gone->bytes.size);
    bytes_close(&gone->bytes);
    free(gone);
}

/* what other processes and NVML see of this one */
static void tell_use(int ordinal)
{
    int count = 0;
    uint64_t bytes = 0;
    for (struct context *c = contexts; c; c = c->next)
        count += c->device == ordinal;
    count += primaries[ordinal].active;
    for (struct block *b = blocks; b; b = b->next)
        bytes += b->device == ordinal ? b->bytes.size : 0;
    marks_use(physical[ordinal], count, bytes);
}

static void drop_context(CUcontext context)
{
    for (struct block **b = &blocks; *b;)
        if ((*b)->context == context)
            free_block(b);
        else
            b = &(*b)->next;
    for (struct stream **s = &streams; *s;)
        if ((*s)->context == context) {
            struct stream *gone = *s;
            *s = gone->next;
            lane_free(gone->lane);
            free(gone);
        } else
            s = &(*s)->next;
    if (context->null_stream.lane)
        lane_free(context->null_stream.lane);
    context->null_stream.lane = NULL;
    drop_modules(context);
    for (struct event **e = &events; *e;)
        if ((*e)->context == context) {
            struct event *gone = *e;
            *e = gone->next;
            operation_drop(gone->record);
            free(gone);
        } else
            e = &(*e)->next;
    /* another thread may still hold it as its current one: it stays, as the ruin that it is on a real GPU too */
    context->broken = CONTEXT_IS_DESTROYED;
    int kept = 0;
    for (int i = 0; i < depth; i++)
        if (stack[i] != context)
            stack[kept++] = stack[i];
    depth = kept;
}

API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    ENTER("cuCtxCreate", device, -1);
    if (!out)
        return leave(INVALID_VALUE);
    if (device < 0 || device >= ordinals)
        return leave(INVALID_DEVICE);
    if (depth >= 64)
        return leave(INVALID_VALUE);
    struct context *context = calloc(1, sizeof *context);
    if (!context)
        return leave(OUT_OF_MEMORY);
    context->device = device;
    context->flags = flags;
    context->active = true;
    context->null_stream.context = context;
    context->null_stream.lane = lane_new();
    context->next = contexts;
    contexts = context;
    tell_use(device);
    stack[depth++] = context;
    *out = context;
    return leave(OK);
}

API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags, CUdevice device)
{
    (void)affinity, (void)count;
    return cuCtxCreate_v2(out, flags, device);
}

API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return cuCtxCreate_v2(out, flags, device);
}

API CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER("cuCtxDestroy", -1, -1);
    for (struct context **c = &contexts; *c; c = &(*c)->next)
        if (*c == context) {
            *c = context->next;
            drop_context(context);
            tell_use(context->device);
            return leave(OK);
        }
    return leave(INVALID_CONTEXT);
}

API CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER("cuCtxSetCurrent", -1, -1);
    if (context && !is_context(context))
        return leave(INVALID_CONTEXT);
    if (depth > 0)
        depth--;
    if (context)
        stack[depth++] = context;
    return leave(OK);
}

API CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER("cuCtxGetCurrent", -1, -1);
    if (context)
        *context = current();
    return leave(context ? OK : INVALID_VALUE);
}

API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER("cuCtxPushCurrent", -1, -1);
    if (!is_context(context))
        return leave(INVALID_CONTEXT);
    if (depth >= 64)
        return leave(INVALID_VALUE);
    stack[depth++] = context;
    return leave(OK);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER("cuCtxPopCurrent", -1, -1);
    if (!depth)
        return leave(INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    return leave(OK);
}

API CUresult cuCtxGetDevice(CUdevice *device)
{
    ENTER("cuCtxGetDevice", -1, -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!device)
        return leave(INVALID_VALUE);
    *device = current_device();
    return leave(OK);
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    ENTER("cuCtxGetDevice", -1, -1);
    if (!context)
        context = current();
    if (!context || !is_context(context))
        return leave(INVALID_CONTEXT);
    if (!device)
        return leave(INVALID_VALUE);
    *device = context->device;
    return leave(OK);
}

API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    ENTER("cuCtxGetApiVersion", -1, -1);
    if (context && !is_context(context))
        return leave(INVALID_CONTEXT);
    if (!version)
        return leave(INVALID_VALUE);
    *version = 3020;
    return leave(OK);
}

API CUresult cuCtxGetFlags(unsigned *flags)
{
    ENTER("cuCtxGetFlags", -1, -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!flags)
        return leave(INVALID_VALUE);
    *flags = current()->flags;
    return leave(OK);
}

/* The host waits: modelled time goes on. What cannot end is waited for until somebody puts in what it lacks. */
static void await(struct operation *o)
{
    keep_promises();
    if (!o)
        return;
    operation_keep(o);
    if (!operation_done(o))
        links_next_sample();
    while (!time_run(o))
        pthread_cond_wait(&progress, &lock);
    operation_drop(o);
}

static void wait_for_context(CUcontext context)
{
    await(lane_last(context->null_stream.lane));
    for (struct stream *s = streams; s; s = s->next)
        if (s->context == context)
            await(lane_last(s->lane));
}

API CUresult cuCtxSynchronize(void)
{
    ENTER("cuCtxSynchronize", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    wait_for_context(current());
    return leave(OK);
}

API CUresult cuCtxSynchronize_v2(CUcontext context)
{
    ENTER("cuCtxSynchronize", current_device(), -1);
    if (!context)
        context = current();
    if (!context || !is_context(context))
        return leave(INVALID_CONTEXT);
    wait_for_context(context);
    return leave(OK);
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRetain", device, -1);
    if (!context)
        return leave(INVALID_VALUE);
    if (device < 0 || device >= ordinals)
        return leave(INVALID_DEVICE);
    struct context *primary = &primaries[device];
    if (!primary->references++) {
        unsigned flags = primary->flags;
        memset(primary, 0, sizeof *primary);
        primary->flags = flags;
        primary->references = 1;
        primary->device = device;
        primary->primary = primary->active = true;
        primary->null_stream.context = primary;
        primary->null_stream.lane = lane_new();
        tell_use(device);
    }
    *context = primary;
    return leave(OK);
}

static CUresult release_primary(CUdevice device, bool all)
{
    if (device < 0 || device >= ordinals)
        return INVALID_DEVICE;
    struct context *primary = &primaries[device];
    if (!primary->references)
        return all ? OK : INVALID_CONTEXT;
    primary->references = all ? 0 : primary->references - 1;
    if (!primary->references) {
        primary->active = false;
        drop_context(primary);
        tell_use(device);
    }
    return OK;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxRelease", -1, -1);
    return leave(release_primary(device, false));
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    ENTER("cuDevicePrimaryCtxReset", -1, -1);
    return leave(release_primary(device, true));
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    ENTER("cuDevicePrimaryCtxSetFlags", -1, -1);
    if (device < 0 || device >= ordinals)
        return leave(INVALID_DEVICE);
    primaries[device].flags = flags;
    return leave(OK);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    ENTER("cuDevicePrimaryCtxGetState", -1, -1);
    if (device < 0 || device >= ordinals)
        return leave(INVALID_DEVICE);
    if (!flags || !active)
        return leave(INVALID_VALUE);
    *flags = primaries[device].flags;
    *active = primaries[device].active;
    return leave(OK);
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags)
{
    pthread_mutex_lock(&lock);
    bool known = peer && is_context(peer);
    int other = known ? peer->device : -1;
    pthread_mutex_unlock(&lock);
    ENTER("cuCtxEnablePeerAccess", current_device(), other);
    if (!current() || !known)
        return leave(INVALID_CONTEXT);
    if (flags)
        return leave(INVALID_VALUE);
    if (!lab_can_access(state, physical[current_device()], physical[other]))
        return leave(PEER_ACCESS_UNSUPPORTED);
    if (current()->peers[other])
        return leave(PEER_ACCESS_ALREADY_ENABLED);
    current()->peers[other] = true;
    return leave(OK);
}

API CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    ENTER("cuCtxDisablePeerAccess", current_device(), -1);
    if (!current() || !peer || !is_context(peer))
        return leave(INVALID_CONTEXT);
    if (!current()->peers[peer->device])
        return leave(PEER_ACCESS_NOT_ENABLED);
    current()->peers[peer->device] = false;
    return leave(OK);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t free_bytes(const struct lab_gpu *gpu, int ordinal)
{
    size_t total = total_bytes(gpu);
    size_t used = (size_t)(lab_used_mib(physical[ordinal], gpu) - (double)(marks_own(physical[ordinal]) >> 20)) << 20;
    for (struct block *b = blocks; b; b = b->next)
        if (b->device == ordinal)
            used += b->bytes.size;
    return used < total ? total - used : 0;
}

static CUresult new_block(size_t size, int device, CUcontext context, struct block **out)
{
    struct block *block = calloc(1, sizeof *block);
    if (!block)
        return OUT_OF_MEMORY;
    /* pages come when they are first written */
    void *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) {
        free(block);
        return OUT_OF_MEMORY;
    }
    bytes_open(&block->bytes, start, size, device < 0);
    block->device = device;
    block->context = context;
    block->next = blocks;
    blocks = block;
    *out = block;
    return OK;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    ENTER("cuMemAlloc", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!pointer || !size)
        return leave(INVALID_VALUE);
    if (size > free_bytes(&state->gpus[physical[current_device()]], current_device()))
        return leave(OUT_OF_MEMORY);
    struct block *block;
    CUresult error = new_block(size, current_device(), current(), &block);
    if (!error)
        *pointer = (CUdeviceptr)(uintptr_t)block->bytes.start;
    tell_use(current_device());
    return leave(error);
}

API CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    (void)stream;
    return cuMemAlloc_v2(pointer, size);
}

static CUresult free_at(const void *start, bool device)
{
    for (struct block **b = &blocks; *b; b = &(*b)->next)
        if ((*b)->bytes.start == start && ((*b)->device >= 0) == device && !(*b)->registered) {
            int ordinal = (*b)->device;
            free_block(b);
            if (ordinal >= 0)
                tell_use(ordinal);
            return OK;
        }
    return INVALID_VALUE;
}

API CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER("cuMemFree", -1, -1);
    return leave(pointer ? free_at((void *)(uintptr_t)pointer, true) : OK);
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    (void)stream;
    return cuMemFree_v2(pointer);
}

API CUresult cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    ENTER("cuMemHostAlloc", current_device(), -1);
    (void)flags;
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!pointer || !size)
        return leave(INVALID_VALUE);
    struct block *block;
    CUresult error = new_block(size, -1, current(), &block);
    if (!error)
        *pointer = block->bytes.start;
    return leave(error);
}

API CUresult cuMemAllocHost_v2(void **pointer, size_t size)
{
    return cuMemHostAlloc(pointer, size, 0);
}

API CUresult cuMemFreeHost(void *pointer)
{
    ENTER("cuMemFreeHost", -1, -1);
    return leave(free_at(pointer, false));
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *host, unsigned flags)
{
    ENTER("cuMemHostGetDevicePointer", -1, -1);
    (void)flags;
    if (!device || !host)
        return leave(INVALID_VALUE);
    *device = (CUdeviceptr)(uintptr_t)host;
    return leave(OK);
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    ENTER("cuMemHostRegister", -1, -1);
    (void)flags;
    if (!current())
        return leave(INVALID_CONTEXT);
    struct block *block = pointer && size ? calloc(1, sizeof *block) : NULL;
    if (!block)
        return leave(INVALID_VALUE);
    bytes_open(&block->bytes, pointer, size, true);
    block->device = -1;
    block->context = current();
    block->registered = true;
    block->next = blocks;
    blocks = block;
    return leave(OK);
}

API CUresult cuMemHostUnregister(void *pointer)
{
    ENTER("cuMemHostUnregister", -1, -1);
    for (struct block **b = &blocks; *b; b = &(*b)->next)
        if ((*b)->bytes.start == pointer && (*b)->registered) {
            free_block(b);
            return leave(OK);
        }
    return leave(713);
}

API CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total)
{
    ENTER("cuMemGetInfo", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!free_out || !total)
        return leave(INVALID_VALUE);
    const struct lab_gpu *gpu = &state->gpus[physical[current_device()]];
    *free_out = free_bytes(gpu, current_device());
    *total = total_bytes(gpu);
    return leave(OK);
}

struct block *memory_at(CUdeviceptr pointer, size_t size, size_t *at)
{
    const char *start = (const char *)(uintptr_t)pointer;
    for (struct block *b = blocks; b; b = b->next)
        if (start >= b->bytes.start && size <= b->bytes.size && start - b->bytes.start <= (ptrdiff_t)(b->bytes.size - size)) {
            *at = (size_t)(start - b->bytes.start);
            return b;
        }
    return NULL;
}

/* device memory only: what is pinned is the host's, which writes it without telling */
static struct block *block_of(CUdeviceptr pointer, size_t size)
{
    size_t at;
    struct block *block = memory_at(pointer, size, &at);
    return block && block->device >= 0 ? block : NULL;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    ENTER("cuMemGetAddressRange", -1, -1);
    struct block *block = block_of(pointer, 1);
    if (!block)
        return leave(500);
    if (base)
        *base = (CUdeviceptr)(uintptr_t)block->bytes.start;
    if (size)
        *size = block->bytes.size;
    return leave(OK);
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    ENTER("cuPointerGetAttribute", -1, -1);
    size_t at;
    struct block *block = memory_at(pointer, 1, &at);
    if (!data || !block)
        return leave(INVALID_VALUE);
    switch (attribute) {
    case 1: *(CUcontext *)data = block->context; return leave(OK);
    case 2: *(unsigned *)data = block->device >= 0 ? 2 : 1; return leave(OK); /* device or host memory */
    case 3: *(CUdeviceptr *)data = pointer; return leave(OK);
    case 9: *(int *)data = block->device; return leave(OK);
    default: return leave(NOT_SUPPORTED);
    }
}

/* ---- streams and modelled time --------------------------------------------------------------- */

/* 0, 1 (legacy) and 2 (per thread) all stand for the current context's default stream */
struct stream *stream_of(CUstream stream)
{
    if ((uintptr_t)stream <= 2)
        return current() && current()->null_stream.lane ? &current()->null_stream : NULL;
    for (struct stream *s = streams; s; s = s->next)
        if (s == stream)
            return s;
    return NULL;
}

struct stream *primary_stream(int ordinal)
{
    return ordinal >= 0 && ordinal < ordinals && primaries[ordinal].active ? &primaries[ordinal].null_stream : NULL;
}

/* The lane of a stream, for one more operation. The default stream waits for the blocking streams of its context, and
 * they wait for it. */
struct lane *lane_of(struct stream *stream)
{
    struct stream *first = &stream->context->null_stream;
    if (stream == first) {
        for (struct stream *s = streams; s; s = s->next)
            if (s->context == stream->context && s->blocking && lane_last(s->lane))
                lane_wait(stream->lane, lane_last(s->lane));
    } else if (stream->blocking && lane_last(first->lane))
        lane_wait(stream->lane, lane_last(first->lane));
    stream->asked = false;
    pthread_cond_broadcast(&progress);
    return stream->lane;
}

bool reaches(CUcontext context, int device)
{
    return device < 0 || context->device == device || context->peers[device];
}

/* Has anybody switched on peer access between the two? */
static bool joined(int a, int b)
{
    bool found = false;
    for (struct context *c = contexts; c; c = c->next)
        found = found || (c->device == a && c->peers[b]) || (c->device == b && c->peers[a]);
    for (int i = 0; i < ordinals; i++)
        found = found || (primaries[i].active && ((i == a && primaries[i].peers[b]) || (i == b && primaries[i].peers[a])));
    return found;
}

void book(const struct lab_state *state, struct stream *stream, const struct transfer *ordinal)
{
    struct transfer t = *ordinal;
    t.from = t.from >= 0 ? physical[t.from] : -1;
    t.to = t.to >= 0 ? physical[t.to] : -1;
    t.by = physical[t.by];
    struct flow flow = links_flow(state, &t);
    lane_transfer(lane_of(stream), &flow);
}

/* The fault that bytes on their way from one GPU to another suffer: a run of them in the middle is not what was sent, and
 * no call says so. Call with `before`: what was there. */
void corrupt(const struct lab_state *state, struct bytes *to, size_t at, size_t size, int from, int to_device, bool kernel, const char *before)
{
    const struct json *p2p = json_get(state->json, "p2p");
    const char *kind = json_string(p2p, "corrupt_kind", "other");
    struct span hit = corrupted(state, size, from, to_device, kernel);
    if (!hit.size)
        return;
    char *bytes = bytes_real(to, at + hit.at, hit.size);
    if (!strcmp(kind, "zero"))
        memset(bytes, 0, hit.size);
    else if (!strcmp(kind, "dropped"))
        memcpy(bytes, before, hit.size);
    else
        for (size_t i = 0; i < hit.size; i++)
            bytes[i] ^= 0x5a;
}

struct span corrupted(const struct lab_state *state, size_t size, int from, int to, bool kernel)
{
    const struct json *p2p = json_get(state->json, "p2p");
    const char *engine = json_string(p2p, "corrupt_engine", "");
    if (from < 0 || to < 0 || from == to || !size || lab_pair(state, "corrupt_pairs", physical[from], physical[to]) < 0 ||
        (*engine && strcmp(engine, kernel ? "kernel" : "copy")))
        return (struct span){0, 0};
    size_t wanted = (size_t)json_number(p2p, "corrupt_bytes", 64), at = size / 2 / 64 * 64;
    if (wanted > size - at)
        at = wanted < size ? (size - wanted) / 64 * 64 : 0;
    return (struct span){at, wanted < size - at ? wanted : size - at};
}

static void move_bytes(struct block *to_block, char *to, struct block *from_block, const char *from, size_t size)
{
    if (!size)
        return;
    if (!to_block && !from_block) {
        memmove(to, from, size);
        return;
    }
    if (!to_block) {
        bytes_read(&from_block->bytes, (size_t)(from - from_block->bytes.start), size, to);
        return;
    }
    size_t at = (size_t)(to - to_block->bytes.start);
    if (!from_block) {
        bytes_write(&to_block->bytes, at, size, from);
        changed(to_block);
        return;
    }
    if (to_block->copied_at && to_block->copied_at == to_block->writes && to_block->copied_from == from && to_block->copied_to == to &&
        to_block->copied_size == size && to_block->copied_source_writes == from_block->writes && from_block->writes < to_block->writes)
        return; /* the very copy that was made last, and neither side has been written since */
    bytes_copy(&to_block->bytes, at, &from_block->bytes, (size_t)(from - from_block->bytes.start), size);
    changed(to_block);
    if (from_block != to_block) {
        to_block->copied_at = to_block->writes;
        to_block->copied_from = from;
        to_block->copied_to = to;
        to_block->copied_size = size;
        to_block->copied_source_writes = from_block->writes;
    }
}

void changed(struct block *block)
{
    block->writes = ++write_count;
    block->copied_at = 0;
}

void transmit(const struct lab_state *state, struct block *to_block, size_t to_at, struct block *from_block, size_t from_at, size_t size,
              bool kernel, bool direct)
{
    struct span hit = direct ? corrupted(state, size, from_block->device, to_block->device, kernel) : (struct span){0, 0};
    char *before = hit.size ? malloc(hit.size) : NULL;
    if (before)
        bytes_read(&to_block->bytes, to_at + hit.at, hit.size, before);
    move_bytes(to_block, to_block->bytes.start + to_at, from_block, from_block->bytes.start + from_at, size);
    if (before) {
        corrupt(state, &to_block->bytes, to_at, size, from_block->device, to_block->device, kernel, before);
        changed(to_block);
    }
    free(before);
}

/* Copies to the host's memory whose bytes have not been written yet: who starts a hundred copies to the same place before
 * it waits gets the last one's. The content of the sources cannot change meanwhile: whatever could, settles first. */
enum { MOST_PROMISED = 16 };
static struct promise { char *to; struct block *from; size_t at, size; } promised[MOST_PROMISED];
static int promised_count;

void keep_promises(void)
{
    for (int i = 0; i < promised_count; i++)
        bytes_read(&promised[i].from->bytes, promised[i].at, promised[i].size, promised[i].to);
    promised_count = 0;
}

static void promise(char *to, struct block *from, size_t at, size_t size)
{
    for (int i = 0; i < promised_count; i++) {
        bool same = promised[i].to == to && promised[i].size == size;
        if (!same && (promised[i].to >= to + size || to >= promised[i].to + promised[i].size))
            continue;
        if (same)
            promised[i] = promised[--promised_count];
        else
            keep_promises();
        break;
    }
    if (promised_count == MOST_PROMISED)
        keep_promises();
    promised[promised_count++] = (struct promise){to, from, at, size};
}

void settle(void)
{
    keep_promises();
    settle_sums();
}

static CUresult copy(const char *call, CUdeviceptr to, CUdeviceptr from, size_t size, CUstream handle, bool wait, bool peers)
{
    pthread_mutex_lock(&lock);
    struct block *to_block = block_of(to, size), *from_block = block_of(from, size);
    int to_device = to_block ? to_block->device : -1, from_device = from_block ? from_block->device : -1;
    pthread_mutex_unlock(&lock);
    bool across = to_device >= 0 && from_device >= 0 && to_device != from_device;
    ENTER(call, from_device >= 0 ? from_device : to_device, from_device >= 0 && to_device >= 0 ? to_device : -1);
    struct stream *stream = stream_of(handle);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!stream)
        return leave(INVALID_HANDLE);
    /* a number that is neither device memory nor a host address of this process cannot be told apart: the caller's kind can */
    bool to_is_device = peers || !strcmp(call, "cuMemcpyHtoD") || !strcmp(call, "cuMemcpyDtoD");
    bool from_is_device = peers || !strcmp(call, "cuMemcpyDtoH") || !strcmp(call, "cuMemcpyDtoD");
    if ((to_is_device && !to_block) || (from_is_device && !from_block) || (size && (!to || !from)))
        return leave(INVALID_VALUE);
    /* a copy to memory that is not pinned has arrived when the call returns, also of those that need not wait */
    size_t at;
    const bool later = !wait && !to_block && from_block && size && memory_at(to, size, &at);
    if (later) /* the sums settle, since they may change the source; what is promised may wait */
        settle_sums();
    else
        settle();
    struct transfer t = {.from = from_device, .to = to_device, .by = stream->context->device, .bytes = (double)size};
    if (across) {
        t.direct = joined(from_device, to_device);
        transmit(state, to_block, (size_t)((char *)(uintptr_t)to - to_block->bytes.start), from_block,
                 (size_t)((char *)(uintptr_t)from - from_block->bytes.start), size, false, t.direct);
    } else if (later)
        promise((char *)(uintptr_t)to, from_block, (size_t)((char *)(uintptr_t)from - from_block->bytes.start), size);
    else
        move_bytes(to_block, (char *)(uintptr_t)to, from_block, (const char *)(uintptr_t)from, size);
    if (from_device >= 0 || to_device >= 0)
        book(state, stream, &t);
    if (wait)
        await(lane_last(stream->lane));
    return leave(OK);
}

#define ADDRESS(pointer) ((CUdeviceptr)(uintptr_t)(pointer))

API CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) { return copy("cuMemcpyHtoD", to, ADDRESS(from), size, NULL, true, false); }
API CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) { return copy("cuMemcpyDtoH", ADDRESS(to), from, size, NULL, true, false); }
API CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy("cuMemcpyDtoD", to, from, size, NULL, false, false); }
API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) { return copy("cuMemcpyHtoD", to, ADDRESS(from), size, stream, false, false); }
API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) { return copy("cuMemcpyDtoH", ADDRESS(to), from, size, stream, false, false); }
API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) { return copy("cuMemcpyDtoD", to, from, size, stream, false, false); }
API CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { return copy("cuMemcpy", to, from, size, NULL, true, false); }
API CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) { return copy("cuMemcpy", to, from, size, stream, false, false); }

API CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size, CUstream stream)
{
    pthread_mutex_lock(&lock);
    bool known = is_context(to_context) && is_context(from_context);
    pthread_mutex_unlock(&lock);
    return known ? copy("cuMemcpyPeer", to, from, size, stream, false, true) : owner ? INVALID_CONTEXT : NOT_INITIALIZED;
}

API CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    return cuMemcpyPeerAsync(to, to_context, from, from_context, size, NULL);
}

static CUresult fill_memory(const char *call, CUdeviceptr to, const void *pattern, size_t width, size_t count, CUstream handle)
{
    ENTER(call, current_device(), -1);
    struct stream *stream = stream_of(handle);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!stream)
        return leave(INVALID_HANDLE);
    struct block *block = count <= SIZE_MAX / width ? block_of(to, count * width) : NULL;
    if (!block || to % width)
        return leave(INVALID_VALUE);
    settle();
    size_t at = (size_t)((char *)(uintptr_t)to - block->bytes.start), size = count * width;
    unsigned char word[8];
    for (size_t i = 0; i < 8; i++)
        word[(at + i) % 8] = ((const unsigned char *)pattern)[i % width];
    /* the words that it covers whole are a rule; what is over at the ends is written out */
    size_t head = (8 - at % 8) % 8 < size ? (8 - at % 8) % 8 : size, body = (size - head) / 8 * 8;
    uint64_t value;
    memcpy(&value, word, 8);
    char ends[8];
    for (size_t i = 0; i < 8; i++)
        ends[i] = (char)word[(at + i) % 8];
    bytes_write(&block->bytes, at, head, ends);
    if (body)
        bytes_rule(&block->bytes, at + head, body, VALUE, value);
    bytes_write(&block->bytes, at + head + body, size - head - body, word);
    changed(block);
    struct transfer t = {.from = block->device, .to = block->device, .by = block->device, .bytes = (double)size};
    book(state, stream, &t);
    return leave(OK);
}

API CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill_memory("cuMemsetD8", to, &value, 1, count, NULL); }
API CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill_memory("cuMemsetD16", to, &value, 2, count, NULL); }
API CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) { return fill_memory("cuMemsetD32", to, &value, 4, count, NULL); }
API CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) { return fill_memory("cuMemsetD8", to, &value, 1, count, stream); }
API CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) { return fill_memory("cuMemsetD16", to, &value, 2, count, stream); }
API CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) { return fill_memory("cuMemsetD32", to, &value, 4, count, stream); }

API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    ENTER("cuStreamCreate", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!out || flags > 1)
        return leave(INVALID_VALUE);
    struct stream *stream = calloc(1, sizeof *stream);
    if (!stream)
        return leave(OUT_OF_MEMORY);
    stream->context = current();
    stream->lane = lane_new();
    stream->blocking = !(flags & 1);
    stream->next = streams;
    streams = stream;
    *out = stream;
    return leave(OK);
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    (void)priority;
    return cuStreamCreate(out, flags);
}

API CUresult cuStreamDestroy_v2(CUstream stream)
{
    ENTER("cuStreamDestroy", -1, -1);
    for (struct stream **s = &streams; *s; s = &(*s)->next)
        if (*s == stream) {
            *s = stream->next;
            lane_free(stream->lane);
            free(stream);
            return leave(OK);
        }
    return leave(INVALID_HANDLE);
}

API CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER("cuStreamSynchronize", current_device(), -1);
    struct stream *stream = stream_of(handle);
    if (!stream)
        return leave(INVALID_HANDLE);
    await(lane_last(stream->lane));
    return leave(OK);
}

/* Who asks instead of waiting is told once that it is not done yet, so that it has a chance to look at what runs. */
static CUresult ask(struct operation *o, bool *asked)
{
    keep_promises();
    if (!o || operation_done(o))
        return OK;
    if (!*asked) {
        *asked = true;
        return NOT_READY;
    }
    links_next_sample();
    return time_run(o) ? OK : NOT_READY;
}

API CUresult cuStreamQuery(CUstream handle)
{
    ENTER("cuStreamQuery", current_device(), -1);
    struct stream *stream = stream_of(handle);
    return leave(stream ? ask(lane_last(stream->lane), &stream->asked) : INVALID_HANDLE);
}

API CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    ENTER("cuStreamGetCtx", -1, -1);
    struct stream *stream = stream_of(handle);
    if (!stream)
        return leave(INVALID_HANDLE);
    if (!context)
        return leave(INVALID_VALUE);
    *context = stream->context;
    return leave(OK);
}

static struct event *event_of(CUevent event)
{
    for (struct event *e = events; e; e = e->next)
        if (e == event)
            return e;
    return NULL;
}

API CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    ENTER("cuStreamWaitEvent", -1, -1);
    (void)flags;
    struct stream *stream = stream_of(handle);
    if (!stream || !event_of(event))
        return leave(INVALID_HANDLE);
    if (event->record)
        lane_wait(lane_of(stream), event->record);
    return leave(OK);
}

API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    ENTER("cuEventCreate", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!out)
        return leave(INVALID_VALUE);
    struct event *event = calloc(1, sizeof *event);
    if (!event)
        return leave(OUT_OF_MEMORY);
    event->context = current();
    event->timing = !(flags & 2);
    event->next = events;
    events = event;
    *out = event;
    return leave(OK);
}

API CUresult cuEventDestroy_v2(CUevent event)
{
    ENTER("cuEventDestroy", -1, -1);
    for (struct event **e = &events; *e; e = &(*e)->next)
        if (*e == event) {
            *e = event->next;
            operation_drop(event->record);
            free(event);
            return leave(OK);
        }
    return leave(INVALID_HANDLE);
}

API CUresult cuEventRecord(CUevent event, CUstream handle)
{
    ENTER("cuEventRecord", current_device(), -1);
    struct stream *stream = stream_of(handle);
    if (!stream || !event_of(event) || event->context != stream->context)
        return leave(INVALID_HANDLE);
    operation_drop(event->record);
    event->record = lane_mark(lane_of(stream));
    event->asked = false;
    return leave(OK);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return cuEventRecord(event, stream);
}

API CUresult cuEventSynchronize(CUevent event)
{
    ENTER("cuEventSynchronize", current_device(), -1);
    if (!event_of(event))
        return leave(INVALID_HANDLE);
    await(event->record);
    return leave(OK);
}

API CUresult cuEventQuery(CUevent event)
{
    ENTER("cuEventQuery", current_device(), -1);
    return leave(event_of(event) ? ask(event->record, &event->asked) : INVALID_HANDLE);
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    ENTER("cuEventElapsedTime", -1, -1);
    if (!milliseconds)
        return leave(INVALID_VALUE);
    if (!event_of(start) || !event_of(end) || !start->timing || !end->timing || !start->record || !end->record)
        return leave(INVALID_HANDLE);
    if (!operation_done(start->record) || !operation_done(end->record))
        return leave(NOT_READY);
    *milliseconds = (float)((operation_end(end->record) - operation_end(start->record)) * 1e3);
    return leave(OK);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime(milliseconds, start, end);
}

/* ---- the way in for the language bindings ----------------------------------------------------- */

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags);
API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status);

#define F(since, name, function) {name, since, (void (*)(void))function}
static const struct { const char *name; int since; void (*function)(void); } table[] = {
    /* a name may stand here several times, the oldest first: the newest that the caller knows is given */
    F(2000, "cuInit", cuInit), F(2020, "cuDriverGetVersion", cuDriverGetVersion),
    F(6000, "cuGetErrorName", cuGetErrorName), F(6000, "cuGetErrorString", cuGetErrorString),
    F(11030, "cuGetProcAddress", cuGetProcAddress), F(12000, "cuGetProcAddress", cuGetProcAddress_v2),
    F(2000, "cuDeviceGet", cuDeviceGet), F(2000, "cuDeviceGetCount", cuDeviceGetCount), F(2000, "cuDeviceGetName", cuDeviceGetName),
    F(9020, "cuDeviceGetUuid", cuDeviceGetUuid), F(11040, "cuDeviceGetUuid", cuDeviceGetUuid_v2),
    F(4010, "cuDeviceGetPCIBusId", cuDeviceGetPCIBusId), F(4010, "cuDeviceGetByPCIBusId", cuDeviceGetByPCIBusId),
    F(2000, "cuDeviceComputeCapability", cuDeviceComputeCapability), F(3020, "cuDeviceTotalMem", cuDeviceTotalMem_v2),
    F(2000, "cuDeviceGetAttribute", cuDeviceGetAttribute), F(4000, "cuDeviceCanAccessPeer", cuDeviceCanAccessPeer),
    F(8000, "cuDeviceGetP2PAttribute", cuDeviceGetP2PAttribute),
    F(3020, "cuCtxCreate", cuCtxCreate_v2), F(11040, "cuCtxCreate", cuCtxCreate_v3), F(12050, "cuCtxCreate", cuCtxCreate_v4),
    F(4000, "cuCtxDestroy", cuCtxDestroy_v2), F(4000, "cuCtxSetCurrent", cuCtxSetCurrent), F(4000, "cuCtxGetCurrent", cuCtxGetCurrent),
    F(4000, "cuCtxPushCurrent", cuCtxPushCurrent_v2), F(4000, "cuCtxPopCurrent", cuCtxPopCurrent_v2),
    F(2000, "cuCtxGetDevice", cuCtxGetDevice), F(13000, "cuCtxGetDevice", cuCtxGetDevice_v2),
    F(3020, "cuCtxGetApiVersion", cuCtxGetApiVersion), F(7000, "cuCtxGetFlags", cuCtxGetFlags),
    F(2000, "cuCtxSynchronize", cuCtxSynchronize), F(13000, "cuCtxSynchronize", cuCtxSynchronize_v2),
    F(7000, "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain), F(7000, "cuDevicePrimaryCtxRelease", cuDevicePrimaryCtxRelease_v2),
    F(7000, "cuDevicePrimaryCtxReset", cuDevicePrimaryCtxReset_v2), F(7000, "cuDevicePrimaryCtxSetFlags", cuDevicePrimaryCtxSetFlags_v2),
    F(7000, "cuDevicePrimaryCtxGetState", cuDevicePrimaryCtxGetState),
    F(4000, "cuCtxEnablePeerAccess", cuCtxEnablePeerAccess), F(4000, "cuCtxDisablePeerAccess", cuCtxDisablePeerAccess),
    F(3020, "cuMemAlloc", cuMemAlloc_v2), F(11020, "cuMemAllocAsync", cuMemAllocAsync), F(3020, "cuMemFree", cuMemFree_v2),
    F(11020, "cuMemFreeAsync", cuMemFreeAsync), F(2020, "cuMemHostAlloc", cuMemHostAlloc), F(3020, "cuMemAllocHost", cuMemAllocHost_v2),
    F(2000, "cuMemFreeHost", cuMemFreeHost), F(3020, "cuMemHostGetDevicePointer", cuMemHostGetDevicePointer_v2),
    F(6050, "cuMemHostRegister", cuMemHostRegister_v2), F(4000, "cuMemHostUnregister", cuMemHostUnregister),
    F(3020, "cuMemGetInfo", cuMemGetInfo_v2), F(3020, "cuMemGetAddressRange", cuMemGetAddressRange_v2),
    F(4000, "cuPointerGetAttribute", cuPointerGetAttribute),
    F(3020, "cuMemcpyHtoD", cuMemcpyHtoD_v2), F(3020, "cuMemcpyDtoH", cuMemcpyDtoH_v2), F(3020, "cuMemcpyDtoD", cuMemcpyDtoD_v2),
    F(3020, "cuMemcpyHtoDAsync", cuMemcpyHtoDAsync_v2), F(3020, "cuMemcpyDtoHAsync", cuMemcpyDtoHAsync_v2),
    F(3020, "cuMemcpyDtoDAsync", cuMemcpyDtoDAsync_v2), F(4000, "cuMemcpy", cuMemcpy), F(4000, "cuMemcpyAsync", cuMemcpyAsync),
    F(4000, "cuMemcpyPeer", cuMemcpyPeer), F(4000, "cuMemcpyPeerAsync", cuMemcpyPeerAsync),
    F(3020, "cuMemsetD8", cuMemsetD8_v2), F(3020, "cuMemsetD16", cuMemsetD16_v2), F(3020, "cuMemsetD32", cuMemsetD32_v2),
    F(3020, "cuMemsetD8Async", cuMemsetD8Async), F(3020, "cuMemsetD16Async", cuMemsetD16Async), F(3020, "cuMemsetD32Async", cuMemsetD32Async),
    F(2000, "cuModuleLoadData", cuModuleLoadData), F(2010, "cuModuleLoadDataEx", cuModuleLoadDataEx), F(2000, "cuModuleUnload", cuModuleUnload),
    F(2000, "cuModuleGetFunction", cuModuleGetFunction), F(2020, "cuFuncGetAttribute", cuFuncGetAttribute), F(9000, "cuFuncSetAttribute", cuFuncSetAttribute),
    F(6050, "cuOccupancyMaxActiveBlocksPerMultiprocessor", cuOccupancyMaxActiveBlocksPerMultiprocessor),
    F(4000, "cuLaunchKernel", cuLaunchKernel), F(11060, "cuLaunchKernelEx", cuLaunchKernelEx),
    F(2000, "cuStreamCreate", cuStreamCreate), F(5050, "cuStreamCreateWithPriority", cuStreamCreateWithPriority),
    F(4000, "cuStreamDestroy", cuStreamDestroy_v2), F(2000, "cuStreamSynchronize", cuStreamSynchronize), F(2000, "cuStreamQuery", cuStreamQuery),
    F(9020, "cuStreamGetCtx", cuStreamGetCtx), F(3020, "cuStreamWaitEvent", cuStreamWaitEvent),
    F(2000, "cuEventCreate", cuEventCreate), F(4000, "cuEventDestroy", cuEventDestroy_v2), F(2000, "cuEventRecord", cuEventRecord),
    F(11010, "cuEventRecordWithFlags", cuEventRecordWithFlags), F(2000, "cuEventSynchronize", cuEventSynchronize), F(2000, "cuEventQuery", cuEventQuery),
    F(2000, "cuEventElapsedTime", cuEventElapsedTime), F(12080, "cuEventElapsedTime", cuEventElapsedTime_v2),
};

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags, int *status)
{
    (void)flags;
    if (!symbol || !function)
        return INVALID_VALUE;
    bool named = false;
    *function = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, symbol)) {
            named = true;
            if (table[i].since <= version)
                memcpy(function, &table[i].function, sizeof *function);
        }
    if (status)
        *status = *function ? 0 : named ? 2 : 1;
    return OK;
}

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags)
{
    CUresult error = cuGetProcAddress_v2(symbol, function, version, flags, NULL);
    return error ? error : *function ? OK : 500;
}
