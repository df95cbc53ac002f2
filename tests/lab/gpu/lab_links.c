/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_links.h.
 */
#define _DEFAULT_SOURCE
#include "lab_links.h"
#include "lab_bytes.h"
#include "lab_marks.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* resources, by GPU or by switch */
enum { SEND = 0, RECEIVE = 64, UPLINK_OUT = 128, UPLINK_IN = 192, MEMORY = 256, SOCKETS = 320 };

static const struct json *p2p(const struct lab_state *state) { return json_get(state->json, "p2p"); }

/* ---- noise -------------------------------------------------------------------------------------- */

static uint64_t sample;

void links_next_sample(void) { sample++; }

/* one number for this process: from the state's `seed` and the process's turn, or by chance */
static uint64_t process_seed(const struct lab_state *state)
{
    static uint64_t seed;
    static pid_t owner;
    if (owner == getpid())
        return seed;
    owner = getpid();
    const struct json *given = json_get(state->json, "seed");
    if (given && given->type == JSON_NUMBER) {
        uint64_t base = lab_mix((uint64_t)given->number + 1);
        seed = lab_mix(base + marks_process(base) * LAB_STEP);
    } else if (getrandom(&seed, sizeof seed, 0) != sizeof seed)
        seed = (uint64_t)owner;
    return seed;
}

/* about normal, mean 0, sd 1: twelve even numbers together */
static double normal(uint64_t seed)
{
    double sum = -6;
    for (uint64_t i = 0; i < 12; i++)
        sum += (double)(lab_mix(seed + i * LAB_STEP) >> 11) / 9007199254740992.0;
    return sum;
}

static double factor(const struct lab_state *state, const char *key, uint64_t what)
{
    double sd = json_number(p2p(state), key, 0);
    double found = sd > 0 ? 1 + sd * normal(lab_mix(process_seed(state) ^ lab_mix(what))) : 1;
    return found > 0.1 ? found : 0.1;
}

/* one factor for all that a pair does until the host waits: a measured sample has this noise, however many copies it is */
static double noise(const struct lab_state *state, uint64_t what)
{
    return factor(state, "noise", what + (sample << 24)) * factor(state, "run_noise", what | 1ull << 60);
}

double links_noise(const struct lab_state *state, unsigned what)
{
    return noise(state, 1ull << 23 | what);
}

/* ---- errors ------------------------------------------------------------------------------------- */

/* Counts `more` errors on in the text of an aer_dev_correctable: bad packets, and the total. */
static void count_on(char *out, size_t size, const char *text, unsigned long more)
{
    size_t used = 0;
    for (out[0] = 0; *text && used < size; text += strcspn(text, "\n"), text += *text == '\n') {
        const char *space = strchr(text, ' ');
        int name = space ? (int)(space - text) : 0;
        bool counted = !strncmp(text, "BadTLP ", 7) || !strncmp(text, "TOTAL_ERR_COR ", 14);
        if (space)
            used += (size_t)snprintf(out + used, size - used, "%.*s %lu\n", name, text, strtoul(space, NULL, 10) + (counted ? more : 0));
    }
}

/* A link with `aer_correctable_per_gb` has errors as it carries: the laboratory lets this process write the counter. */
static void count_errors(const struct lab_gpu *gpu, int index, double bytes)
{
    static double due[LAB_MAX_GPUS];
    char name[80], path[4096], text[1024] = "", fresh[1100];
    due[index] += json_number(gpu->json, "aer_correctable_per_gb", 0) * bytes / 1e9;
    if (due[index] < 1)
        return;
    snprintf(name, sizeof name, "/sys/bus/pci/devices/%04x:%02x:%02x.%x/aer_dev_correctable", gpu->domain, gpu->bus, gpu->device, gpu->function);
    lab_rooted(path, sizeof path, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && read(fd, text, sizeof text - 1) > 0) {
        unsigned long more = (unsigned long)due[index];
        due[index] -= (double)more;
        count_on(fresh, sizeof fresh, text, more);
        if (pwrite(fd, fresh, strlen(fresh), 0) < 0)
            due[index] = 0;
    }
    if (fd >= 0)
        close(fd);
    else
        due[index] = 0;
}

static void carried(const struct lab_state *state, int gpu, double bytes)
{
    marks_copy(gpu, bytes);
    count_errors(&state->gpus[gpu], gpu, bytes);
}

void links_touch(const struct lab_state *state, int gpu, double bytes) { carried(state, gpu, bytes); }

/* ---- what a link carries ------------------------------------------------------------------------ */

/* what a link that is as good as it can be carries, one way */
static double full_link(const struct lab_state *state)
{
    double most = lab_gb_per_s(state, "default", 53.5);
    static const char *const others[] = {"same_switch", "cross_numa", "host"};
    for (int i = 0; i < 3; i++) {
        double other = lab_gb_per_s(state, others[i], most);
        most = other > most ? other : most;
    }
    return lab_gb_per_s(state, "link", most);
}

double links_gb_per_s(const struct lab_state *state, int index)
{
    /* GB/s of a lane and direction, without the codes' overhead */
    static const double lane[] = {0.25, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    const struct lab_gpu *gpu = &state->gpus[index];
    int now = lab_link_generation(gpu), best = (int)json_number(gpu->json, "pcie_gen_gpu_max", 5);
    double ratio = lane[now > 0 && now < 7 ? now : 5] / lane[best > 0 && best < 7 ? best : 5] * lab_link_width(gpu) / 16;
    return full_link(state) * ratio * json_number(gpu->json, "link_factor", 1);
}

static bool same_root(const struct lab_gpu *a, const struct lab_gpu *b)
{
    return a->pci_switch >= 0 && a->pci_switch == b->pci_switch;
}

static double pair_factor(const struct lab_state *state, const struct transfer *t)
{
    double slow = lab_pair(state, "slow_factors", t->from, t->to);
    double a = json_number(state->gpus[t->from].json, "link_factor", 1), b = json_number(state->gpus[t->to].json, "link_factor", 1);
    return (slow > 0 ? slow : 1) * (a < b ? a : b);
}

static double engine_factor(const struct lab_state *state, const struct transfer *t)
{
    double kernel = json_number(p2p(state), "kernel_factor", 0.94);
    if (t->by == t->to)
        return t->kernel ? json_number(p2p(state), "kernel_read_factor", kernel) : json_number(p2p(state), "read_factor", 1);
    return t->kernel ? kernel : 1;
}

static double least(double a, double b) { return a < b ? a : b; }

static void pass(struct flow *flow, int resource, double gb_per_s)
{
    flow->route[flow->hops++] = resource;
    lab_capacity[resource] = gb_per_s * 1e9;
}

struct flow links_flow(const struct lab_state *state, const struct transfer *t)
{
    struct flow flow = {.bytes = t->bytes, .group = -1};
    double gb_per_s;
    if (t->from == t->to) { /* within a GPU; -1 for both does not come up */
        gb_per_s = lab_gb_per_s(state, "local", 1420);
        pass(&flow, MEMORY + t->from, gb_per_s);
    } else {
        const int ends[2] = {t->from, t->to};
        const bool leaves = t->from < 0 || t->to < 0 || !same_root(&state->gpus[t->from], &state->gpus[t->to]);
        if (t->from < 0 || t->to < 0)
            gb_per_s = lab_gb_per_s(state, "host", 53);
        else if (!t->direct)
            gb_per_s = lab_gb_per_s(state, "staged", 18);
        else
            gb_per_s = lab_pair_gb_per_s(state, t->from, t->to) * pair_factor(state, t);
        for (int i = 0; i < 2; i++) {
            if (ends[i] < 0)
                continue;
            const struct lab_gpu *gpu = &state->gpus[ends[i]];
            const double link = links_gb_per_s(state, ends[i]);
            gb_per_s = least(gb_per_s, link);
            pass(&flow, (i ? RECEIVE : SEND) + ends[i], link);
            if (leaves && gpu->pci_switch >= 0 && gpu->pci_switch < 64)
                pass(&flow, (i ? UPLINK_IN : UPLINK_OUT) + gpu->pci_switch, lab_gb_per_s(state, "uplink", full_link(state)));
            carried(state, ends[i], t->bytes);
        }
        if (t->from >= 0 && t->to >= 0) {
            const struct lab_gpu *a = &state->gpus[t->from], *b = &state->gpus[t->to];
            double sockets = lab_gb_per_s(state, "sockets", 0);
            if (sockets > 0 && a->numa != b->numa)
                pass(&flow, SOCKETS + (a->numa < b->numa), sockets);
            gb_per_s *= engine_factor(state, t);
            flow.latency = lab_latency_us(state, t->from, t->to, t->direct) / 1e6;
            if (leaves && t->by == t->from && t->direct && a->pci_switch >= 0 && a->pci_switch < 64) {
                flow.group = a->pci_switch;
                flow.source = t->from;
                flow.group_limit = json_number(p2p(state), "concurrent_writes_gb_per_s", 0) * 1e9;
            }
            flow.stuck = t->direct && lab_pair(state, "hang_pairs", t->from, t->to) >= 0;
        }
    }
    const double more = noise(state, (uint64_t)(t->from + 1) << 16 | (uint64_t)(t->to + 1) << 8 | (unsigned)t->kernel << 1 | (t->by == t->to));
    flow.bytes /= more;
    flow.latency /= more;
    flow.limit = gb_per_s > 1e-6 ? gb_per_s * 1e9 : 1e3;
    return flow;
}

double links_latency(const struct lab_state *state, int by, int of)
{
    double us = by == of ? lab_latency_us(state, by, by, true) : of < 0 ? lab_latency_us(state, by, -1, true) : lab_latency_us(state, of, by, true);
    if (of >= 0 && by != of)
        marks_copy(of, 0);
    marks_copy(by, 0);
    return us / 1e6 / noise(state, 1ull << 22 | (uint64_t)(of + 1) << 8 | (uint64_t)(by + 1));
}
