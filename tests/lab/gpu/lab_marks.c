/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_marks.h.
 */
#define _DEFAULT_SOURCE
#include "lab_marks.h"
#include "lab_state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 64, FORMAT = 1 };

struct slot {
    atomic_int pid;
    atomic_int contexts[LAB_MAX_GPUS];
    atomic_ullong bytes[LAB_MAX_GPUS];
};

struct marks {
    atomic_ullong format, seed, processes;
    struct {
        atomic_llong at; /* CLOCK_REALTIME, ns */
        atomic_ullong copies, bytes;
    } gpus[LAB_MAX_GPUS];
    struct slot slots[SLOTS];
};

static struct slot *own;
static pid_t owner;

static struct marks *marks(void)
{
    static struct marks *found;
    static bool tried;
    char path[4096];
    const char *named = getenv("RACKWELL_LAB_LINKS");
    if (found || tried)
        return found;
    tried = true;
    if (named && *named)
        snprintf(path, sizeof path, "%s", named);
    else
        lab_rooted(path, sizeof path, "/dev/shm/rackwell-lab-links");
    /* not O_CREAT on what is there: the kernel forbids that for another user's file in a sticky directory */
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT && (fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666)) >= 0)
        fchmod(fd, 0666);
    if (fd < 0)
        return NULL;
    struct stat file;
    if (!fstat(fd, &file) && S_ISREG(file.st_mode) && (file.st_size >= (off_t)sizeof *found || !ftruncate(fd, sizeof *found))) {
        void *memory = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        found = memory == MAP_FAILED ? NULL : memory;
    }
    close(fd);
    if (found && found->format != FORMAT && found->format)
        found = NULL; /* another release's */
    else if (found)
        found->format = FORMAT;
    return found;
}

static long long wall_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

void marks_copy(int gpu, double bytes)
{
    struct marks *m = marks();
    if (!m || gpu < 0)
        return;
    m->gpus[gpu].at = wall_clock();
    m->gpus[gpu].copies++;
    m->gpus[gpu].bytes += (unsigned long long)bytes;
}

double marks_age(int gpu)
{
    struct marks *m = marks();
    long long at = m ? m->gpus[gpu].at : 0;
    return at ? (double)(wall_clock() - at) / 1e9 : 1e9;
}

uint64_t marks_copies(int gpu)
{
    struct marks *m = marks();
    return m ? m->gpus[gpu].copies : 0;
}

uint64_t marks_bytes(int gpu)
{
    struct marks *m = marks();
    return m ? m->gpus[gpu].bytes : 0;
}

uint64_t marks_process(uint64_t seed)
{
    struct marks *m = marks();
    if (!m)
        return 0;
    if (m->seed != seed) {
        m->seed = seed;
        m->processes = 0;
    }
    return m->processes++;
}

static bool lives(int pid) { return pid > 0 && (!kill(pid, 0) || errno == EPERM); }

static struct slot *own_slot(void)
{
    struct marks *m = marks();
    if (owner == getpid() || !m)
        return own;
    owner = getpid();
    own = NULL;
    for (int i = 0; i < SLOTS && !own; i++) {
        int pid = m->slots[i].pid;
        if (!lives(pid) && atomic_compare_exchange_strong(&m->slots[i].pid, &pid, owner))
            own = &m->slots[i];
    }
    for (int gpu = 0; own && gpu < LAB_MAX_GPUS; gpu++) {
        own->contexts[gpu] = 0;
        own->bytes[gpu] = 0;
    }
    return own;
}

void marks_use(int gpu, int contexts, uint64_t bytes)
{
    struct slot *slot = own_slot();
    if (!slot || gpu < 0)
        return;
    slot->contexts[gpu] = contexts;
    slot->bytes[gpu] = bytes;
}

uint64_t marks_own(int gpu) { return own && owner == getpid() ? own->bytes[gpu] : 0; }

__attribute__((destructor)) static void forget(void)
{
    if (own && owner == getpid())
        own->pid = 0;
}

int marks_users(int gpu, int *pids, uint64_t *bytes, int most)
{
    struct marks *m = marks();
    int count = 0;
    for (int i = 0; m && i < SLOTS; i++) {
        int pid = m->slots[i].pid;
        if (!m->slots[i].contexts[gpu] || !lives(pid))
            continue;
        if (count < most) {
            pids[count] = pid;
            bytes[count] = m->slots[i].bytes[gpu];
        }
        count++;
    }
    return count;
}
