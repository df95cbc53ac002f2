/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. What the state file says of links, as limits of a transfer. GPUs are counted as in the
 * state; -1 is the host.
 */
#ifndef RACKWELL_LAB_LINKS_H
#define RACKWELL_LAB_LINKS_H

#include "lab_state.h"
#include "lab_time.h"

struct transfer {
    int from, to;  /* where the bytes go from and to */
    int by;        /* which GPU's engine moves them */
    bool kernel;   /* its multiprocessors, not its copy engine */
    bool direct;   /* not through the host's memory */
    double bytes;
};

/* The transfer as a flow, with this moment's noise; also marks the links as busy. */
struct flow links_flow(const struct lab_state *state, const struct transfer *transfer);
/* Seconds that a load of GPU `by` needs for one word in the memory of GPU `of` (-1: the host's). */
double links_latency(const struct lab_state *state, int by, int of);
/* GB/s that this GPU's link carries as it is trained. */
double links_gb_per_s(const struct lab_state *state, int gpu);
/* A factor about 1 for something that is not a transfer. */
double links_noise(const struct lab_state *state, unsigned what);
/* Something else than a transfer moves bytes over this GPU's link. */
void links_touch(const struct lab_state *state, int gpu, double bytes);
/* Draw other noise from now on. */
void links_next_sample(void);

#endif
