/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN for NVIDIA's libnccl.so.2, laboratory only: all-reduces of one process, over the GPUs of the stand-in for
 * libcuda. The sums are real, their time is modelled (libcuda_sums.c). It has no more functions than are below.
 */
#define _DEFAULT_SOURCE
#include "lab_state.h"
#include "libcuda_sums.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

typedef int ncclResult_t;
typedef struct { char internal[128]; } ncclUniqueId;
typedef struct communicator *ncclComm_t;

enum { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, IN_PROGRESS };

/* all communicators of one ring; an all-reduce that not all ranks have started yet waits in `open` */
struct ring {
    struct ring *next;
    ncclUniqueId id;
    int ranks, joined, members;
    int ordinals[LAB_MAX_GPUS];
    bool taken[LAB_MAX_GPUS];
    struct turn *open;
};

struct turn {
    struct turn *next;
    uint64_t number;
    size_t count;
    int type, joined;
    struct lab_sum *sum;
};

struct communicator {
    struct ring *ring;
    int rank, device;
    uint64_t turns;
    bool aborted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t joined = PTHREAD_COND_INITIALIZER;
static struct ring *rings;
static _Thread_local int group;
static _Thread_local char last_error[256];

static ncclResult_t fail(ncclResult_t code, const char *why)
{
    snprintf(last_error, sizeof last_error, "%s", why);
    return code;
}

/* ---- the driver ----------------------------------------------------------------------------------- */

static void *symbol(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    return library ? dlsym(library, name) : NULL;
}

#define CALL(result, type, name, ...) \
    do { \
        void *found = symbol(name); \
        type; \
        memcpy(&function, &found, sizeof function); \
        if (function) \
            result = function(__VA_ARGS__); \
    } while (0)

static ncclResult_t cuda(int code, const char *call)
{
    char text[128];
    if (!code)
        return SUCCESS;
    snprintf(text, sizeof text, code == -1 ? "the stand-in for libcuda is not here: no %s" : "Cuda failure in %s: error %d", call, code);
    return fail(UNHANDLED_CUDA_ERROR, text);
}

static ncclResult_t fault(const char *call)
{
    const struct lab_state *state = lab_state();
    if (!state)
        return fail(SYSTEM_ERROR, "the state file of the laboratory cannot be read");
    const struct json *nccl = json_get(state->json, "nccl");
    int code = (int)json_number(json_get(nccl, "errors"), call, 0);
    const struct json *hang = json_get(nccl, "hang");
    if (hang && hang->type == JSON_STRING && !strcmp(hang->string, call))
        for (;;)
            pause();
    if (!code && !strcmp(call, "ncclAllReduce"))
        code = (int)json_number(nccl, "error", 0);
    return code ? fail(code, "as the state file of the laboratory says") : SUCCESS;
}

/* ---- version and texts ---------------------------------------------------------------------------- */

API ncclResult_t ncclGetVersion(int *version)
{
    if (!version)
        return fail(INVALID_ARGUMENT, "version is NULL");
    const struct lab_state *state = lab_state();
    *version = (int)json_number(state ? json_get(state->json, "nccl") : NULL, "version", 22705);
    return SUCCESS;
}

API const char *ncclGetErrorString(ncclResult_t code)
{
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return code >= 0 && code < 8 ? texts[code] : "unknown result code";
}

API const char *ncclGetLastError(ncclComm_t communicator)
{
    (void)communicator;
    return last_error;
}

API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    if (!id)
        return fail(INVALID_ARGUMENT, "id is NULL");
    return getrandom(id->internal, sizeof id->internal, 0) == sizeof id->internal ? SUCCESS : fail(SYSTEM_ERROR, "no random bytes");
}

/* ---- communicators ---------------------------------------------------------------------------------- */

static struct ring *ring_of(const ncclUniqueId *id, int ranks)
{
    for (struct ring *r = rings; r; r = r->next)
        if (!memcmp(&r->id, id, sizeof *id))
            return r;
    struct ring *r = calloc(1, sizeof *r);
    if (r) {
        r->id = *id;
        r->ranks = ranks;
        r->next = rings;
        rings = r;
    }
    return r;
}

static void leave_ring(struct ring *ring)
{
    if (--ring->members)
        return;
    for (struct ring **r = &rings; *r; r = &(*r)->next)
        if (*r == ring) {
            *r = ring->next;
            break;
        }
    while (ring->open) {
        struct turn *t = ring->open;
        ring->open = t->next;
        free(t);
    }
    free(ring);
}

/* with the lock held */
static ncclResult_t join(ncclComm_t *out, const ncclUniqueId *id, int ranks, int rank, int device)
{
    void *context;
    int code = -1;
    CALL(code, int (*function)(void **, int), "cuDevicePrimaryCtxRetain", &context, device);
    if (code)
        return cuda(code, "cuDevicePrimaryCtxRetain");
    struct ring *ring = ring_of(id, ranks);
    struct communicator *c = calloc(1, sizeof *c);
    if (!ring || !c || ring->ranks != ranks || ring->taken[rank]) {
        free(c);
        return fail(INVALID_ARGUMENT, "another number of ranks, or a rank that is there already");
    }
    for (int r = 0; r < ranks; r++)
        if (ring->taken[r] && ring->ordinals[r] == device) {
            free(c);
            return fail(INVALID_USAGE, "Duplicate GPU detected");
        }
    ring->ordinals[rank] = device;
    ring->taken[rank] = true;
    ring->joined++;
    ring->members++;
    *c = (struct communicator){.ring = ring, .rank = rank, .device = device};
    *out = c;
    pthread_cond_broadcast(&joined);
    return SUCCESS;
}

static ncclResult_t start(void)
{
    int code = -1;
    CALL(code, int (*function)(unsigned), "cuInit", 0);
    return cuda(code, "cuInit");
}

API ncclResult_t ncclCommInitAll(ncclComm_t *communicators, int count, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t result = fault("ncclCommInitAll");
    if (result)
        return result;
    if (!communicators || count < 1 || count > LAB_MAX_GPUS)
        return fail(INVALID_ARGUMENT, "Invalid device count requested");
    if ((result = start()) || (result = ncclGetUniqueId(&id)))
        return result;
    pthread_mutex_lock(&lock);
    memset(communicators, 0, (size_t)count * sizeof *communicators);
    for (int i = 0; i < count && !result; i++)
        result = join(&communicators[i], &id, count, i, devices ? devices[i] : i);
    for (int i = 0; i < count && result; i++)
        if (communicators[i]) {
            struct ring *ring = communicators[i]->ring;
            free(communicators[i]);
            communicators[i] = NULL;
            leave_ring(ring);
        }
    pthread_mutex_unlock(&lock);
    return result;
}

API ncclResult_t ncclCommInitRank(ncclComm_t *communicator, int ranks, ncclUniqueId id, int rank)
{
    ncclResult_t result = fault("ncclCommInitRank");
    int device = 0, code = -1;
    if (result)
        return result;
    if (!communicator || ranks < 1 || ranks > LAB_MAX_GPUS || rank < 0 || rank >= ranks)
        return fail(INVALID_ARGUMENT, "Invalid rank requested");
    if ((result = start()))
        return result;
    CALL(code, int (*function)(int *), "cuCtxGetDevice", &device);
    if (code)
        return cuda(code, "cuCtxGetDevice");
    pthread_mutex_lock(&lock);
    result = join(communicator, &id, ranks, rank, device);
    /* the ranks of one process only: the others are threads of it, or follow in this group */
    while (!result && !group && (*communicator)->ring->joined < ranks)
        pthread_cond_wait(&joined, &lock);
    pthread_mutex_unlock(&lock);
    return result;
}

static ncclResult_t close_communicator(ncclComm_t c)
{
    int code = 0;
    if (!c)
        return fail(INVALID_ARGUMENT, "no communicator");
    pthread_mutex_lock(&lock);
    CALL(code, int (*function)(int), "cuDevicePrimaryCtxRelease_v2", c->device);
    leave_ring(c->ring);
    pthread_mutex_unlock(&lock);
    free(c);
    return cuda(code, "cuDevicePrimaryCtxRelease");
}

API ncclResult_t ncclCommDestroy(ncclComm_t c) { return close_communicator(c); }
API ncclResult_t ncclCommAbort(ncclComm_t c) { return close_communicator(c); }
API ncclResult_t ncclCommFinalize(ncclComm_t c) { return c ? SUCCESS : fail(INVALID_ARGUMENT, "no communicator"); }

static ncclResult_t tell(ncclComm_t c, int *out, int value)
{
    if (!c || !out)
        return fail(INVALID_ARGUMENT, "NULL");
    *out = value;
    return SUCCESS;
}

API ncclResult_t ncclCommCount(const ncclComm_t c, int *count) { return tell(c, count, c ? c->ring->ranks : 0); }
API ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) { return tell(c, rank, c ? c->rank : 0); }
API ncclResult_t ncclCommCuDevice(const ncclComm_t c, int *device) { return tell(c, device, c ? c->device : 0); }

API ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state_out)
{
    const struct lab_state *state = lab_state();
    return tell(c, state_out, c && c->turns ? (int)json_number(state ? json_get(state->json, "nccl") : NULL, "async_error", 0) : 0);
}

/* ---- all-reduce --------------------------------------------------------------------------------------- */

API ncclResult_t ncclGroupStart(void)
{
    group++;
    return SUCCESS;
}

API ncclResult_t ncclGroupEnd(void)
{
    if (!group)
        return fail(INVALID_USAGE, "ncclGroupEnd: not in a group call.");
    group--;
    return fault("ncclGroupEnd");
}

static struct turn *turn_of(struct ring *ring, uint64_t number, size_t count, int type)
{
    struct turn **at = &ring->open;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    if (*at)
        return *at;
    struct turn *t = calloc(1, sizeof *t);
    void *found = symbol("rackwell_lab_sum_open");
    struct lab_sum *(*open)(int, const int *, size_t, int);
    memcpy(&open, &found, sizeof open);
    if (!t || !open || !(t->sum = open(ring->ranks, ring->ordinals, count, type))) {
        free(t);
        return NULL;
    }
    t->number = number;
    t->count = count;
    t->type = type;
    *at = t;
    return t;
}

API ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, int type, int operation, ncclComm_t c, void *stream)
{
    static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    ncclResult_t result = fault("ncclAllReduce");
    if (result)
        return result;
    if (!c || (count && (!send || !receive)))
        return fail(INVALID_ARGUMENT, "AllReduce: an argument is NULL");
    if (type < 0 || type >= (int)(sizeof widths / sizeof *widths) || operation)
        return fail(INVALID_ARGUMENT, "AllReduce: the laboratory sums whole numbers, float16, bfloat16, float32 and float64, and does nothing else");
    if (!count)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    struct ring *ring = c->ring;
    struct turn *turn = turn_of(ring, c->turns, count, type);
    int code = -1;
    if (!turn)
        result = fail(INTERNAL_ERROR, "AllReduce: the stand-in for libcuda does not answer");
    else if (turn->count != count || turn->type != type)
        result = fail(INVALID_ARGUMENT, "AllReduce: the ranks differ in count or type");
    else {
        CALL(code, int (*function)(struct lab_sum *, int, unsigned long long, unsigned long long, void *), "rackwell_lab_sum_join", turn->sum, c->rank,
             (unsigned long long)(uintptr_t)send, (unsigned long long)(uintptr_t)receive, stream);
        result = cuda(code, "AllReduce");
        if (!result) {
            c->turns++;
            if (++turn->joined == ring->ranks) { /* the sum belongs to the driver now */
                ring->open = turn == ring->open ? turn->next : ring->open;
                for (struct turn *t = ring->open; t; t = t->next)
                    if (t->next == turn)
                        t->next = turn->next;
                free(turn);
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}
