/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. Modelled time: what streams have to do, and how links are shared while they do it.
 *
 * A lane is a queue of operations that run one after the other; lanes run side by side. Nothing happens until somebody
 * waits: then time goes on, from one end of an operation to the next, until what is waited for is done. In between, the
 * transfers that run share what they pass through: no resource carries more than its capacity, no transfer goes faster
 * than its own limit, and none can be given more without taking it from one that has less (max-min fairness).
 * Callers hold their library's lock.
 */
#ifndef RACKWELL_LAB_TIME_H
#define RACKWELL_LAB_TIME_H

#include <stdbool.h>

enum { LAB_RESOURCES = 512, LAB_ROUTE = 6 };

/* what a resource carries, bytes/s */
extern double lab_capacity[LAB_RESOURCES];

struct flow {
    double bytes;
    double limit;          /* bytes/s */
    double latency;        /* s, after the last byte; takes nothing of the route */
    int route[LAB_ROUTE];  /* resources */
    int hops;
    int group, source;     /* posted writes that leave switch `group` (-1: not such a write) from GPU `source`; */
    double group_limit;    /* bytes/s that all of a group get together once two sources write at once; 0: no limit */
    bool stuck;            /* never ends */
};

/* something that several lanes do together: it begins when all are there, and takes `seconds` */
struct meeting;
struct operation;
struct lane;

struct lane *lane_new(void);
/* What is still in the lane is given up. */
void lane_free(struct lane *lane);
void lane_transfer(struct lane *lane, const struct flow *flow);
void lane_delay(struct lane *lane, double seconds);
void lane_wait(struct lane *lane, struct operation *other);
void lane_meet(struct lane *lane, struct meeting *meeting);
/* A mark behind all that is in the lane; the caller owns a reference. */
struct operation *lane_mark(struct lane *lane);
/* The last operation of the lane, NULL for an unused one; no reference. */
struct operation *lane_last(const struct lane *lane);

/* The caller owns a reference. */
struct meeting *meeting_new(int expected, double seconds, bool stuck);
void meeting_drop(struct meeting *meeting);

bool operation_done(const struct operation *o);
double operation_end(const struct operation *o);
struct operation *operation_keep(struct operation *o);
void operation_drop(struct operation *o);

double time_now(void);
/* Lets time go on until the operation is done. False: it cannot end by what is in the lanes now. */
bool time_run(const struct operation *until);

#endif
