/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. What the stand-ins for libcuda.so.1 and libnvidia-ml.so.1 share: the
 * machine that a state file describes, its faults, and the checks that the real driver makes on
 * device nodes and versions. README.md documents the files.
 */
#ifndef RACKWELL_LAB_STATE_H
#define RACKWELL_LAB_STATE_H

#include <stdbool.h>
#include <stddef.h>

#ifndef RACKWELL_LAB_DRIVER_VERSION
#error "compile with -DRACKWELL_LAB_DRIVER_VERSION=\"595.58.03\""
#endif

#define LAB_MAX_GPUS 64
#define LAB_STALE_SECONDS 3.0
#define LAB_RECENT_SECONDS 2.0 /* a link is busy for so long after a copy was started */

/* a JSON value; members of an object and items of an array are linked by `next` */
struct json {
    enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } type;
    char *key;
    char *string;
    double number;
    struct json *child;
    struct json *next;
};

struct json *json_parse(const char *text, size_t *error_at);
void json_free(struct json *value);
const struct json *json_get(const struct json *object, const char *key);
const struct json *json_at(const struct json *array, int index);
double json_number(const struct json *object, const char *key, double otherwise);
const char *json_string(const struct json *object, const char *key, const char *otherwise);
bool json_true(const struct json *object, const char *key);

struct lab_gpu {
    const struct json *json;
    char uuid[48];
    unsigned char uuid_bytes[16];
    char name[96];
    unsigned domain, bus, device, function;
    int minor;
    int numa;
    int pci_switch; /* -1: none */
    double memory_mib, reserved_mib;
    double power_limit_w, idle_w, busy_w;
    bool fell_off;
};

struct lab_state {
    struct json *json;
    int gpu_count; /* in the order of the PCI bus ids, as both libraries count */
    struct lab_gpu gpus[LAB_MAX_GPUS];
};

struct lab_load {
    bool busy;
    double utilisation;   /* 0..1 */
    double joules;        /* above idle, per GPU, up to now */
    double memory_mib;    /* used by the load, per GPU */
};

/* The state, read again when the file has changed; NULL (and one line on stderr) when it cannot be read. */
const struct lab_state *lab_state(void);
struct lab_load lab_load(const struct lab_gpu *gpu);
double lab_power_w(const struct lab_gpu *gpu);
double lab_energy_j(int index, const struct lab_gpu *gpu);
/* `index`: of the GPU in the state */
double lab_used_mib(int index, const struct lab_gpu *gpu);

/* The character major that /proc/devices tells for a device of the driver; 0: none, so its module is not loaded;
   -1: it tells nothing of the driver at all (tests without that file). */
int lab_device_major(const char *name);
/* 0, or the errno with which opening the node fails for this process; ENXIO when the node is not the driver's. */
int lab_open_node(const char *name, int major, int minor);
/* The kernel module's version; false when no module is loaded. */
bool lab_module_version(char *out, size_t size);
bool lab_hmm_enabled(void);

/* The path below RACKWELL_LAB_ROOT. */
void lab_rooted(char *out, size_t size, const char *path);

/* Generation and width that the link has under load. */
int lab_link_generation(const struct lab_gpu *gpu);
int lab_link_width(const struct lab_gpu *gpu);
/* Microseconds of a transfer's way; from == to: within a GPU; to == -1: the host's memory. */
double lab_latency_us(const struct lab_state *state, int from, int to, bool direct);

double lab_pair(const struct lab_state *state, const char *list, int from, int to);
/* Are atomics of `from` on the memory of `to` whole? */
bool lab_native_atomics(const struct lab_state *state, int from, int to);
bool lab_can_access(const struct lab_state *state, int from, int to);
double lab_gb_per_s(const struct lab_state *state, const char *kind, double otherwise);
double lab_pair_gb_per_s(const struct lab_state *state, int from, int to);
/* Has somebody copied through this GPU's link just now, or does the load work? */
bool lab_busy(int index, const struct lab_gpu *gpu);
/* Does not return when the state says that this call hangs here. Indices of -1 stand for "no GPU". */
void lab_hang(const struct lab_state *state, const char *call, int gpu, int peer);
int lab_error(const struct lab_state *state, const char *call, int gpu);

#endif
