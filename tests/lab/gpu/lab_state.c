/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_state.h.
 */
#define _DEFAULT_SOURCE
#include "lab_state.h"
#include "lab_marks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

/* ---- JSON ------------------------------------------------------------------------------------ */

struct reader {
    const char *start, *at;
    int depth;
};

static void skip_space(struct reader *r)
{
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')
        r->at++;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

static char *read_string(struct reader *r)
{
    if (*r->at != '"')
        return NULL;
    const char *from = ++r->at;
    while (*r->at && *r->at != '"')
        r->at += (r->at[0] == '\\' && r->at[1]) ? 2 : 1;
    if (*r->at != '"')
        return NULL;
    char *out = malloc((size_t)(r->at - from) + 1), *to = out;
    if (!out)
        return NULL;
    for (const char *p = from; p < r->at; p++) {
        if (*p != '\\') {
            *to++ = *p;
            continue;
        }
        switch (*++p) {
        case 'n': *to++ = '\n'; break;
        case 't': *to++ = '\t'; break;
        case 'r': *to++ = '\r'; break;
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'u': { /* the state file has names and paths only: ASCII is enough */
            int code = 0;
            for (int i = 1; i <= 4; i++) {
                int digit = hex_digit(p[i]);
                if (digit < 0) {
                    free(out);
                    return NULL;
                }
                code = code * 16 + digit;
            }
            p += 4;
            *to++ = code < 128 ? (char)code : '?';
            break;
        }
        default: *to++ = *p;
        }
    }
    *to = 0;
    r->at++;
    return out;
}

/* own digits instead of strtod: the decimal point must not follow the host program's locale */
static bool read_number(struct reader *r, double *out)
{
    const char *p = r->at;
    double sign = 1, value = 0, scale = 1;
    if (*p == '-') {
        sign = -1;
        p++;
    }
    if (*p < '0' || *p > '9')
        return false;
    while (*p >= '0' && *p <= '9')
        value = value * 10 + (*p++ - '0');
    if (*p == '.')
        for (p++; *p >= '0' && *p <= '9'; p++)
            value += (*p - '0') * (scale /= 10);
    if (*p == 'e' || *p == 'E') {
        int exponent = 0, down = 0;
        p++;
        if (*p == '+' || *p == '-')
            down = *p++ == '-';
        while (*p >= '0' && *p <= '9' && exponent < 400)
            exponent = exponent * 10 + (*p++ - '0');
        while (exponent-- > 0)
            value = down ? value / 10 : value * 10;
    }
    r->at = p;
    *out = sign * value;
    return true;
}

static struct json *read_value(struct reader *r);

static bool read_members(struct reader *r, struct json *parent, bool object)
{
    const char close = object ? '}' : ']';
    struct json **end = &parent->child;
    r->at++;
    skip_space(r);
    if (*r->at == close) {
        r->at++;
        return true;
    }
    for (;;) {
        char *key = NULL;
        skip_space(r);
        if (object) {
            key = read_string(r);
            if (!key)
                return false;
            skip_space(r);
            if (*r->at != ':') {
                free(key);
                return false;
            }
            r->at++;
        }
        struct json *value = read_value(r);
        if (!value) {
            free(key);
            return false;
        }
        value->key = key;
        *end = value;
        end = &value->next;
        skip_space(r);
        if (*r->at == close) {
            r->at++;
            return true;
        }
        if (*r->at != ',')
            return false;
        r->at++;
    }
}

static struct json *read_value(struct reader *r)
{
    struct json *value = calloc(1, sizeof *value);
    bool ok = false;
    if (!value)
        return NULL;
    skip_space(r);
    if (++r->depth <= 64) {
        if (*r->at == '{') {
            value->type = JSON_OBJECT;
            ok = read_members(r, value, true);
        } else if (*r->at == '[') {
            value->type = JSON_ARRAY;
            ok = read_members(r, value, false);
        } else if (*r->at == '"') {
            value->type = JSON_STRING;
            value->string = read_string(r);
            ok = value->string != NULL;
        } else if (!strncmp(r->at, "true", 4)) {
            value->type = JSON_TRUE;
            r->at += 4;
            ok = true;
        } else if (!strncmp(r->at, "false", 5)) {
            value->type = JSON_FALSE;
            r->at += 5;
            ok = true;
        } else if (!strncmp(r->at, "null", 4)) {
            r->at += 4;
            ok = true;
        } else {
            value->type = JSON_NUMBER;
            ok = read_number(r, &value->number);
        }
    }
    r->depth--;
    if (!ok) {
        json_free(value);
        return NULL;
    }
    return value;
}

struct json *json_parse(const char *text, size_t *error_at)
{
    struct reader r = {text, text, 0};
    struct json *value = read_value(&r);
    if (value) {
        skip_space(&r);
        if (!*r.at)
            return value;
        json_free(value);
    }
    *error_at = (size_t)(r.at - r.start);
    return NULL;
}

void json_free(struct json *value)
{
    while (value) {
        struct json *next = value->next;
        json_free(value->child);
        free(value->key);
        free(value->string);
        free(value);
        value = next;
    }
}

const struct json *json_get(const struct json *object, const char *key)
{
    if (!object || object->type != JSON_OBJECT)
        return NULL;
    for (const struct json *member = object->child; member; member = member->next)
        if (!strcmp(member->key, key))
            return member;
    return NULL;
}

const struct json *json_at(const struct json *array, int index)
{
    if (!array || array->type != JSON_ARRAY)
        return NULL;
    const struct json *item = array->child;
    while (item && index-- > 0)
        item = item->next;
    return item;
}

double json_number(const struct json *object, const char *key, double otherwise)
{
    const struct json *value = json_get(object, key);
    return value && value->type == JSON_NUMBER ? value->number : otherwise;
}

const char *json_string(const struct json *object, const char *key, const char *otherwise)
{
    const struct json *value = json_get(object, key);
    return value && value->type == JSON_STRING ? value->string : otherwise;
}

bool json_true(const struct json *object, const char *key)
{
    const struct json *value = json_get(object, key);
    return value && value->type == JSON_TRUE;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static char *read_file(const char *path, size_t limit)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    char *text = malloc(limit + 1);
    size_t have = 0;
    while (text && have < limit) {
        ssize_t got = read(fd, text + have, limit - have);
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    close(fd);
    if (text)
        text[have] = 0;
    return text;
}

/* RACKWELL_LAB_ROOT puts another directory in place of / (unit tests) */
void lab_rooted(char *out, size_t size, const char *path)
{
    const char *root = getenv("RACKWELL_LAB_ROOT");
    snprintf(out, size, "%s%s", root ? root : "", path);
}

static void state_path(char *out, size_t size)
{
    const char *path = getenv("RACKWELL_LAB_GPUS");
    if (path && *path)
        snprintf(out, size, "%s", path);
    else
        lab_rooted(out, size, "/proc/driver/nvidia/rackwell-lab-gpus.json");
}

static unsigned read_hex(const char **text)
{
    unsigned value = 0;
    while (hex_digit(**text) >= 0)
        value = value * 16 + (unsigned)hex_digit(*(*text)++);
    return value;
}

static bool read_bus_id(const char *text, struct lab_gpu *gpu)
{
    gpu->domain = read_hex(&text);
    if (*text++ != ':')
        return false;
    gpu->bus = read_hex(&text);
    if (*text++ != ':')
        return false;
    gpu->device = read_hex(&text);
    if (*text++ != '.')
        return false;
    gpu->function = read_hex(&text);
    return !*text;
}

static bool read_uuid(const char *text, struct lab_gpu *gpu)
{
    int nibbles = 0;
    if (strncmp(text, "GPU-", 4) || strlen(text) >= sizeof gpu->uuid)
        return false;
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", text);
    memset(gpu->uuid_bytes, 0, sizeof gpu->uuid_bytes);
    for (text += 4; *text; text++) {
        int digit = hex_digit(*text);
        if (*text == '-')
            continue;
        if (digit < 0 || nibbles >= 32)
            return false;
        gpu->uuid_bytes[nibbles / 2] |= (unsigned char)(nibbles % 2 ? digit : digit << 4);
        nibbles++;
    }
    return nibbles == 32;
}

static int by_bus_id(const void *left, const void *right)
{
    const struct lab_gpu *a = left, *b = right;
    if (a->domain != b->domain)
        return a->domain < b->domain ? -1 : 1;
    if (a->bus != b->bus)
        return a->bus < b->bus ? -1 : 1;
    return a->device < b->device ? -1 : a->device > b->device;
}

static bool fill(struct lab_state *state, const char *path)
{
    const struct json *list = json_get(state->json, "gpus");
    if (!list || list->type != JSON_ARRAY) {
        fprintf(stderr, "rackwell lab: %s: no list `gpus`\n", path);
        return false;
    }
    state->gpu_count = 0;
    for (const struct json *item = list->child; item && state->gpu_count < LAB_MAX_GPUS; item = item->next) {
        struct lab_gpu *gpu = &state->gpus[state->gpu_count++];
        memset(gpu, 0, sizeof *gpu);
        gpu->json = item;
        if (!read_uuid(json_string(item, "uuid", ""), gpu) || !read_bus_id(json_string(item, "bus_id", ""), gpu)) {
            fprintf(stderr, "rackwell lab: %s: gpus[%d] needs uuid GPU-… and bus_id 0000:06:00.0\n", path,
                    state->gpu_count - 1);
            return false;
        }
        snprintf(gpu->name, sizeof gpu->name, "%s",
                 json_string(item, "name", "NVIDIA RTX PRO 6000 Blackwell Server Edition"));
        gpu->minor = (int)json_number(item, "minor", state->gpu_count - 1);
        gpu->numa = (int)json_number(item, "numa", 0);
        gpu->pci_switch = (int)json_number(item, "switch", -1);
        gpu->memory_mib = json_number(item, "memory_mib", 97887);
        gpu->reserved_mib = json_number(item, "reserved_mib", 636);
        gpu->power_limit_w = json_number(item, "power_limit_w", 600);
        gpu->idle_w = json_number(item, "idle_w", 88);
        gpu->busy_w = json_number(item, "busy_w", 250);
        gpu->fell_off = json_true(item, "fell_off");
    }
    qsort(state->gpus, (size_t)state->gpu_count, sizeof state->gpus[0], by_bus_id);
    return true;
}

/* callers hold their library's lock */
const struct lab_state *lab_state(void)
{
    static struct lab_state *current;
    static struct stat seen;
    char path[4096];
    struct stat now;
    state_path(path, sizeof path);
    if (stat(path, &now)) {
        fprintf(stderr, "rackwell lab: %s: %s\n", path, strerror(errno));
        return NULL;
    }
    if (current && now.st_mtim.tv_sec == seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == seen.st_mtim.tv_nsec &&
        now.st_ino == seen.st_ino && now.st_dev == seen.st_dev && now.st_size == seen.st_size)
        return current;
    char *text = read_file(path, 1 << 20);
    size_t error_at = 0;
    struct lab_state *fresh = calloc(1, sizeof *fresh);
    if (!text || !fresh || !(fresh->json = json_parse(text, &error_at))) {
        fprintf(stderr, "rackwell lab: %s: not JSON at byte %zu\n", path, error_at);
        free(text);
        free(fresh);
        return NULL;
    }
    free(text);
    if (!fill(fresh, path)) {
        json_free(fresh->json);
        free(fresh);
        return NULL;
    }
    /* the old state is kept: another thread may still read it, and it changes a few times in a test */
    seen = now;
    current = fresh;
    return current;
}

/* ---- load ------------------------------------------------------------------------------------ */

struct lab_load lab_load(const struct lab_gpu *gpu)
{
    struct lab_load load = {false, 0, 0, 0};
    const char *path = getenv("RACKWELL_LAB_LOAD");
    char *text = read_file(path && *path ? path : "/dev/shm/rackwell-lab-load", 4096);
    double field[4] = {0, 0, 0, 0};
    int fields = 0;
    if (!text)
        return load;
    struct reader r = {text, text, 0};
    for (; fields < 4; fields++) {
        skip_space(&r);
        if (!read_number(&r, &field[fields]))
            break;
    }
    free(text);
    if (fields < 3)
        return load;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    double age = (double)now.tv_sec + (double)now.tv_nsec / 1e9 - field[0];
    double utilisation = field[1] < 0 ? 0 : field[1] > 100 ? 1 : field[1] / 100;
    if (age < 0)
        age = 0;
    load.joules = field[2] + utilisation * (gpu->busy_w - gpu->idle_w) * (age < LAB_STALE_SECONDS ? age : LAB_STALE_SECONDS);
    load.busy = age <= LAB_STALE_SECONDS;
    if (load.busy) {
        load.utilisation = utilisation;
        load.memory_mib = field[3];
    }
    return load;
}

double lab_power_w(const struct lab_gpu *gpu)
{
    double watts = gpu->idle_w + (gpu->busy_w - gpu->idle_w) * lab_load(gpu).utilisation;
    return watts < gpu->power_limit_w ? watts : gpu->power_limit_w;
}

double lab_energy_j(int index, const struct lab_gpu *gpu)
{
    /* the part since the load's last line is guessed, so the next line may say less: a counter never falls */
    static double highest[LAB_MAX_GPUS];
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    double joules = gpu->idle_w * ((double)up.tv_sec + (double)up.tv_nsec / 1e9) + lab_load(gpu).joules;
    if (joules > highest[index])
        highest[index] = joules;
    return highest[index];
}

double lab_used_mib(int index, const struct lab_gpu *gpu)
{
    int pids[64];
    uint64_t bytes[64];
    double used = json_number(gpu->json, "memory_used_mib", 0) + lab_load(gpu).memory_mib;
    double most = gpu->memory_mib - gpu->reserved_mib;
    int users = marks_users(index, pids, bytes, 64);
    const struct json *named = json_get(gpu->json, "processes");
    for (const struct json *p = named && named->type == JSON_ARRAY ? named->child : NULL; p; p = p->next)
        used += json_number(p, "mib", 0);
    for (int i = 0; i < users && i < 64; i++)
        used += (double)(bytes[i] >> 20);
    return used < most ? used : most;
}

bool lab_busy(int index, const struct lab_gpu *gpu)
{
    return lab_load(gpu).utilisation > 0 || marks_age(index) < LAB_RECENT_SECONDS;
}

/* ---- what the kernel module would answer ----------------------------------------------------- */

/* calls `look` for each character device of a /proc/devices until it answers true */
static bool each_device(const char *path, bool (*look)(int major, const char *name, void *with), void *with)
{
    char *text = read_file(path, 65536);
    bool found = false;
    for (char *line = text; line && *line && !found;) {
        int major;
        char name[64];
        if (!strncmp(line, "Block devices", 13))
            break;
        if (sscanf(line, " %d %63s", &major, name) == 2)
            found = look(major, name, with);
        line = strchr(line, '\n');
        if (line)
            line++;
    }
    free(text);
    return found;
}

static bool is_others(int major, const char *name, void *with)
{
    return major == *(int *)with && strncmp(name, "nvidia", 6);
}

/* has the running kernel another driver for this character major? then its node must not be opened for a test */
static bool kernel_has_major(int major)
{
    return each_device("/proc/devices", is_others, &major);
}

struct device_wanted {
    const char *name;
    int major;
};

static bool is_wanted(int major, const char *name, void *with)
{
    struct device_wanted *wanted = with;
    if (!strncmp(name, "nvidia", 6) && wanted->major < 0)
        wanted->major = 0;
    if (strcmp(name, wanted->name))
        return false;
    wanted->major = major;
    return true;
}

int lab_device_major(const char *name)
{
    char path[4096];
    struct device_wanted wanted = {name, -1};
    lab_rooted(path, sizeof path, "/proc/devices");
    each_device(path, is_wanted, &wanted);
    return wanted.major;
}

int lab_open_node(const char *name, int major, int minor)
{
    char path[4096];
    struct stat node;
    lab_rooted(path, sizeof path, name);
    if (stat(path, &node))
        return errno;
    if (!S_ISCHR(node.st_mode))
        return ENXIO;
    if (minor >= 0 && (int)minor(node.st_rdev) != minor)
        return ENXIO;
    if (major > 0 && (int)major(node.st_rdev) != major)
        return ENXIO;
    if (faccessat(AT_FDCWD, path, R_OK | W_OK, AT_EACCESS))
        return errno;
    if (kernel_has_major((int)major(node.st_rdev)))
        return major > 0 ? 0 : ENXIO; /* a dynamic number that belongs to another driver by now */
    /* no driver behind it: the open fails with ENXIO, unless the device cgroup forbids it before that */
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    return errno == EPERM || errno == EACCES ? errno : 0;
}

bool lab_module_version(char *out, size_t size)
{
    char path[4096];
    lab_rooted(path, sizeof path, "/sys/module/nvidia/version");
    char *text = read_file(path, 256);
    if (!text)
        return false;
    text[strcspn(text, " \r\n")] = 0;
    snprintf(out, size, "%s", text);
    free(text);
    return *out != 0;
}

bool lab_hmm_enabled(void)
{
    char path[4096];
    lab_rooted(path, sizeof path, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm");
    char *text = read_file(path, 16);
    bool enabled = text && text[0] != 'Y';
    free(text);
    return enabled;
}

/* ---- links and faults ------------------------------------------------------------------------ */

/* The third number of the entry [from, to, …] of p2p.<list>; 1 when it has none; -1 when there is no entry. */
double lab_pair(const struct lab_state *state, const char *list, int from, int to)
{
    const struct json *pairs = json_get(json_get(state->json, "p2p"), list);
    if (!pairs || pairs->type != JSON_ARRAY)
        return -1;
    for (const struct json *pair = pairs->child; pair; pair = pair->next) {
        const struct json *a = json_at(pair, 0), *b = json_at(pair, 1), *c = json_at(pair, 2);
        if (a && b && (int)a->number == from && (int)b->number == to)
            return c ? c->number : 1;
    }
    return -1;
}

bool lab_can_access(const struct lab_state *state, int from, int to)
{
    const struct json *can = json_get(json_get(state->json, "p2p"), "can_access");
    if (from == to)
        return false;
    if (can && can->type == JSON_FALSE)
        return false;
    if (can && can->type == JSON_ARRAY) {
        const struct json *cell = json_at(json_at(can, from), to);
        if (cell && (cell->type == JSON_FALSE || (cell->type == JSON_NUMBER && cell->number == 0)))
            return false;
    }
    return lab_pair(state, "no_access_pairs", from, to) < 0;
}

bool lab_native_atomics(const struct lab_state *state, int from, int to)
{
    return lab_can_access(state, from, to) && json_true(json_get(state->json, "p2p"), "native_atomics");
}

double lab_gb_per_s(const struct lab_state *state, const char *kind, double otherwise)
{
    return json_number(json_get(json_get(state->json, "p2p"), "gb_per_s"), kind, otherwise);
}

double lab_pair_gb_per_s(const struct lab_state *state, int from, int to)
{
    double slow = lab_pair(state, "slow_pairs", from, to);
    if (slow > 0)
        return slow;
    const struct lab_gpu *a = &state->gpus[from], *b = &state->gpus[to];
    double usual = lab_gb_per_s(state, "default", 53.5);
    if (a->pci_switch >= 0 && a->pci_switch == b->pci_switch)
        return lab_gb_per_s(state, "same_switch", usual);
    if (a->numa != b->numa)
        usual = lab_gb_per_s(state, "cross_numa", usual);
    double root = lab_gb_per_s(state, "cross_root", usual);
    return root < usual ? root : usual;
}

double lab_latency_us(const struct lab_state *state, int from, int to, bool direct)
{
    const struct json *given = json_get(json_get(state->json, "p2p"), "latency_us");
    const struct lab_gpu *a = &state->gpus[from], *b = to >= 0 ? &state->gpus[to] : NULL;
    double own = to >= 0 ? lab_pair(state, "latency_pairs", from, to) : -1;
    if (own >= 0)
        return own;
    if (!b)
        return json_number(given, "host", 1.1);
    if (from == to)
        return json_number(given, "local", 0.32);
    if (given && given->type == JSON_NUMBER)
        return given->number;
    if (!direct)
        return json_number(given, "staged", 14);
    if (a->pci_switch >= 0 && a->pci_switch == b->pci_switch)
        return json_number(given, "same_switch", 0.71);
    return a->numa == b->numa ? json_number(given, "same_socket", 1.02) : json_number(given, "cross_numa", 1.36);
}

int lab_link_generation(const struct lab_gpu *gpu)
{
    int host = (int)json_number(gpu->json, "pcie_gen_max", 5), own = (int)json_number(gpu->json, "pcie_gen_gpu_max", 5);
    int most = host < own ? host : own, trained = (int)json_number(gpu->json, "pcie_gen", most);
    return trained < most ? trained : most;
}

int lab_link_width(const struct lab_gpu *gpu)
{
    int most = (int)json_number(gpu->json, "pcie_width_max", 16), trained = (int)json_number(gpu->json, "pcie_width", most);
    return trained < most ? trained : most;
}

void lab_hang(const struct lab_state *state, const char *call, int gpu, int peer)
{
    const struct json *hang = json_get(state->json, "hang");
    const char *wanted = NULL;
    if (!hang)
        return;
    if (hang->type == JSON_STRING)
        wanted = hang->string;
    else if (hang->type == JSON_OBJECT)
        wanted = json_string(hang, "call", NULL);
    if (!wanted || strcmp(wanted, call))
        return;
    if (json_get(hang, "gpu") && (int)json_number(hang, "gpu", -1) != gpu)
        return;
    const struct json *pair = json_get(hang, "pair");
    if (pair) {
        const struct json *a = json_at(pair, 0), *b = json_at(pair, 1);
        if (!a || !b || (int)a->number != gpu || (int)b->number != peer)
            return;
    }
    for (;;)
        pause();
}

int lab_error(const struct lab_state *state, const char *call, int gpu)
{
    int code = 0;
    if (gpu >= 0 && gpu < state->gpu_count)
        code = (int)json_number(json_get(state->gpus[gpu].json, "errors"), call, 0);
    return code ? code : (int)json_number(json_get(state->json, "errors"), call, 0);
}
