/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. What the parts of the stand-in for libcuda share.
 */
#ifndef RACKWELL_LIBCUDA_H
#define RACKWELL_LIBCUDA_H

#include "lab_bytes.h"
#include "lab_links.h"
#include "lab_state.h"
#include "lab_time.h"

#include <pthread.h>

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct { unsigned char bytes[16]; } CUuuid;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, DEVICE_UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY_FOR_GPU = 209, PEER_ACCESS_UNSUPPORTED = 217, INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700,
    PEER_ACCESS_ALREADY_ENABLED = 704, PEER_ACCESS_NOT_ENABLED = 705, PRIMARY_CONTEXT_ACTIVE = 708, CONTEXT_IS_DESTROYED = 709, MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719, NOT_SUPPORTED = 801, SYSTEM_DRIVER_MISMATCH = 803, UNKNOWN = 999
};

struct stream {
    struct stream *next;
    CUcontext context;
    struct lane *lane;
    bool blocking;
    bool asked; /* was told NOT_READY since something was put in */
};

struct event {
    struct event *next;
    CUcontext context;
    struct operation *record; /* NULL: never recorded */
    bool timing, asked;
};

struct context {
    struct context *next;
    int device; /* ordinal */
    unsigned flags;
    int references; /* of the primary context */
    bool primary, active;
    bool peers[LAB_MAX_GPUS]; /* by ordinal: may this context reach that device's memory? */
    CUresult broken;          /* a kernel failed: what every further call answers */
    struct stream null_stream;
};

struct block {
    struct block *next;
    struct bytes bytes;
    int device; /* ordinal; -1: pinned host memory */
    CUcontext context;
    bool registered; /* the caller's own memory */
    /* What was last copied in whole from where, at which state of both: the same copy again moves nothing. */
    uint64_t writes, copied_source_writes, copied_at;
    const char *copied_from, *copied_to;
    size_t copied_size;
};

struct span { size_t at, size; };

extern int physical[LAB_MAX_GPUS]; /* ordinal -> index in the state */
extern uint64_t write_count;

/* Every call but cuInit and the texts: the lock, an initialised process, the state, and its faults for this call.
 * `ordinal` is the device that the call is about, or -1. Returns 0 with the lock held, else an error without it. */
CUresult enter(const char *call, int ordinal, int peer, const struct lab_state **state);
CUresult leave(CUresult result);

#define ENTER(call, ordinal, peer) \
    const struct lab_state *state = NULL; \
    do { \
        CUresult entered = enter(call, ordinal, peer, &state); \
        if (entered) \
            return entered; \
    } while (0)

CUcontext current(void);
int current_device(void);
bool is_context(CUcontext context);
/* Does the context reach memory on that device (ordinal; -1: pinned host memory)? */
bool reaches(CUcontext context, int device);

/* Device or pinned memory that holds the whole range; `at` is where it begins in the block. */
struct block *memory_at(CUdeviceptr pointer, size_t size, size_t *at);
/* The block's content is another now. */
void changed(struct block *block);
struct stream *stream_of(CUstream stream);
/* The default stream of the device's primary context; NULL when that is not in use. */
struct stream *primary_stream(int ordinal);
struct lane *lane_of(struct stream *stream);
/* Puts a transfer between ordinals (-1: the host) into a stream. */
void book(const struct lab_state *state, struct stream *stream, const struct transfer *ordinals);
/* Which bytes of a transfer the fault hits: size 0 for none. */
struct span corrupted(const struct lab_state *state, size_t size, int from, int to, bool kernel);
/* Copies between blocks, with the fault. */
void transmit(const struct lab_state *state, struct block *to, size_t to_at, struct block *from, size_t from_at, size_t size, bool kernel,
              bool direct);
void corrupt(const struct lab_state *state, struct bytes *to, size_t at, size_t size, int from, int to_device, bool kernel, const char *before);

/* libcuda_kernels.c */
void drop_modules(CUcontext context);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, int *options, void **values);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared);
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void **parameters, void **extra);
struct launch_config;
CUresult cuLaunchKernelEx(const struct launch_config *config, CUfunction f, void **parameters, void **extra);

/* What was put off is done now: before the memory is looked at or changed. */
void settle(void);
void keep_promises(void);

/* libcuda_sums.c: all-reduces whose result nobody has looked at yet */
void settle_sums(void);

#endif
