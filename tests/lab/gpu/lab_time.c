/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_time.h.
 */
#include "lab_time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { TRANSFER, DELAY, WAIT, MEET, MARK };

struct meeting {
    int expected, there, references;
    double seconds;
    bool stuck;
};

struct operation {
    struct operation *next;
    enum kind kind;
    int references;
    bool done, arrived;
    double end;
    double left;  /* bytes of a transfer, then 0 */
    double delay; /* seconds: after the bytes, of a delay, of a meeting that has begun */
    double rate;
    bool settled, counted; /* its rate is found; its resources know */
    int route[LAB_ROUTE + 1], hops; /* the flow's, and its group's limit when that holds */
    struct flow flow;
    struct operation *other;
    struct meeting *meeting;
};

struct lane {
    struct lane *next;
    struct operation *head, *last; /* `last` stays when it is done */
};

double lab_capacity[LAB_RESOURCES];
static struct lane *lanes;
static double now;

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "rackwell lab: out of memory\n");
        abort();
    }
    return memory;
}

struct meeting *meeting_new(int expected, double seconds, bool stuck)
{
    struct meeting *m = must(calloc(1, sizeof *m));
    *m = (struct meeting){.expected = expected, .references = 1, .seconds = seconds, .stuck = stuck};
    return m;
}

void meeting_drop(struct meeting *m)
{
    if (m && !--m->references)
        free(m);
}

/* ---- operations -------------------------------------------------------------------------------- */

bool operation_done(const struct operation *o) { return o->done; }
double operation_end(const struct operation *o) { return o->end; }
double time_now(void) { return now; }

struct operation *operation_keep(struct operation *o)
{
    o->references++;
    return o;
}

void operation_drop(struct operation *o)
{
    while (o && !--o->references) {
        struct operation *other = o->other;
        meeting_drop(o->meeting);
        free(o);
        o = other;
    }
}

/* ---- lanes ------------------------------------------------------------------------------------- */

struct lane *lane_new(void)
{
    struct lane *lane = must(calloc(1, sizeof *lane));
    lane->next = lanes;
    lanes = lane;
    return lane;
}

static void finish(struct lane *lane)
{
    struct operation *o = lane->head;
    o->done = true;
    o->end = now;
    lane->head = o->next;
    o->next = NULL;
    operation_drop(o->other);
    o->other = NULL;
    operation_drop(o);
}

void lane_free(struct lane *lane)
{
    for (struct lane **at = &lanes; *at; at = &(*at)->next)
        if (*at == lane) {
            *at = lane->next;
            break;
        }
    while (lane->head)
        finish(lane);
    operation_drop(lane->last);
    free(lane);
}

static struct operation *add(struct lane *lane, enum kind kind)
{
    struct operation *o = must(calloc(1, sizeof *o));
    o->kind = kind;
    o->references = 2; /* the queue's, and `last` */
    if (lane->head)
        lane->last->next = o;
    else
        lane->head = o;
    operation_drop(lane->last);
    lane->last = o;
    return o;
}

void lane_transfer(struct lane *lane, const struct flow *flow)
{
    struct operation *o = add(lane, TRANSFER);
    o->flow = *flow;
    o->left = flow->bytes;
    o->delay = flow->latency;
}

void lane_delay(struct lane *lane, double seconds) { add(lane, DELAY)->delay = seconds; }

void lane_wait(struct lane *lane, struct operation *other)
{
    if (!other->done)
        add(lane, WAIT)->other = operation_keep(other);
}

void lane_meet(struct lane *lane, struct meeting *meeting)
{
    struct operation *o = add(lane, MEET);
    o->meeting = meeting;
    o->delay = meeting->seconds;
    meeting->references++;
}

struct operation *lane_mark(struct lane *lane) { return operation_keep(add(lane, MARK)); }
struct operation *lane_last(const struct lane *lane) { return lane->last; }

/* ---- sharing ------------------------------------------------------------------------------------ */

static struct operation **running; /* transfers that move bytes now */
static int running_count, running_room;

/* More than one GPU of a switch writes behind other roots: then all its writers share the group's limit. */
static bool collapsed(int group)
{
    int source = -1;
    for (int i = 0; i < running_count; i++)
        if (running[i]->flow.group == group) {
            if (source >= 0 && source != running[i]->flow.source)
                return true;
            source = running[i]->flow.source;
        }
    return false;
}

static void share(void)
{
    double left[LAB_RESOURCES];
    int users[LAB_RESOURCES] = {0}, used[LAB_RESOURCES], used_count = 0, open = running_count;
    for (int i = 0; i < running_count; i++) {
        struct operation *o = running[i];
        const struct flow *f = &o->flow;
        o->rate = 0;
        o->settled = o->counted = false;
        o->hops = f->hops;
        memcpy(o->route, f->route, sizeof f->route);
        if (f->group >= 0 && f->group_limit > 0 && collapsed(f->group)) {
            int group = LAB_RESOURCES - 1 - f->group; /* the last resources stand for the groups */
            o->route[o->hops++] = group;
            lab_capacity[group] = f->group_limit;
        }
        for (int h = 0; h < o->hops; h++) {
            int r = o->route[h];
            if (!users[r]++) {
                used[used_count++] = r;
                left[r] = lab_capacity[r];
            }
        }
    }
    while (open) {
        /* all that are not settled get more, until the first of them or of their resources is at its limit */
        double more = 1e300;
        for (int i = 0; i < running_count; i++)
            if (!running[i]->settled && running[i]->flow.limit - running[i]->rate < more)
                more = running[i]->flow.limit - running[i]->rate;
        for (int u = 0; u < used_count; u++)
            if (users[used[u]] && left[used[u]] / users[used[u]] < more)
                more = left[used[u]] / users[used[u]];
        if (more < 0)
            more = 0;
        for (int u = 0; u < used_count; u++)
            left[used[u]] -= more * users[used[u]];
        for (int i = 0; i < running_count; i++)
            if (!running[i]->settled)
                running[i]->rate += more;
        int before = open;
        for (int i = 0; i < running_count; i++) {
            struct operation *o = running[i];
            if (o->settled)
                continue;
            bool full = o->rate >= o->flow.limit * (1 - 1e-9);
            for (int h = 0; h < o->hops; h++)
                full = full || left[o->route[h]] <= lab_capacity[o->route[h]] * 1e-9;
            o->settled = full;
        }
        for (int i = 0; i < running_count; i++) {
            struct operation *o = running[i];
            if (!o->settled || o->counted)
                continue;
            o->counted = true;
            open--;
            for (int h = 0; h < o->hops; h++)
                users[o->route[h]]--;
        }
        if (open == before)
            break;
    }
}

/* ---- time --------------------------------------------------------------------------------------- */

static bool at_once(struct lane *lane)
{
    struct operation *o = lane->head;
    switch (o->kind) {
    case MARK: return true;
    case WAIT: return o->other->done;
    case DELAY: return o->delay <= 0;
    case TRANSFER: return !o->flow.stuck && o->left <= 0 && o->delay <= 0;
    case MEET:
        if (!o->arrived) {
            o->arrived = true;
            o->meeting->there++;
        }
        return !o->meeting->stuck && o->meeting->there >= o->meeting->expected && o->delay <= 0;
    }
    return false;
}

static bool runs(const struct operation *o)
{
    return o->kind == DELAY || (o->kind == TRANSFER && !o->flow.stuck) ||
           (o->kind == MEET && !o->meeting->stuck && o->meeting->there >= o->meeting->expected);
}

/* One step: to the next end of anything. False: nothing runs. */
static bool step(void)
{
    double least = 1e300;
    bool any = false;
    running_count = 0;
    for (struct lane *lane = lanes; lane; lane = lane->next) {
        struct operation *o = lane->head;
        if (!o || !runs(o))
            continue;
        any = true;
        if (o->kind == TRANSFER && o->left > 0) {
            if (running_count == running_room) {
                running_room = running_room ? running_room * 2 : 64;
                running = must(realloc(running, (size_t)running_room * sizeof *running));
            }
            running[running_count++] = o;
        } else if (o->delay < least)
            least = o->delay;
    }
    if (!any)
        return false;
    share();
    for (int i = 0; i < running_count; i++)
        if (running[i]->left < least * running[i]->rate)
            least = running[i]->left / running[i]->rate;
    now += least;
    for (struct lane *lane = lanes; lane; lane = lane->next) {
        struct operation *o = lane->head;
        if (!o || !runs(o))
            continue;
        if (o->kind == TRANSFER && o->left > 0) {
            o->left -= least * o->rate;
            if (o->left < o->flow.bytes * 1e-12 || o->left < 1e-6)
                o->left = 0;
        } else {
            o->delay -= least;
            if (o->delay < 1e-15)
                o->delay = 0;
        }
    }
    return true;
}

bool time_run(const struct operation *until)
{
    for (;;) {
        bool moved = true;
        while (moved) {
            moved = false;
            for (struct lane *lane = lanes; lane; lane = lane->next)
                while (lane->head && at_once(lane)) {
                    finish(lane);
                    moved = true;
                }
        }
        if (until->done)
            return true;
        if (!step())
            return false;
    }
}
