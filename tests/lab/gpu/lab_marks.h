/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. What the processes of one machine leave for one another in /dev/shm/rackwell-lab-links
 * (RACKWELL_LAB_LINKS names another file): libcuda writes it, NVML reads it. Everything works without the file too;
 * then links look idle and GPUs unused. Removing it is harmless.
 */
#ifndef RACKWELL_LAB_MARKS_H
#define RACKWELL_LAB_MARKS_H

#include <stdint.h>

/* A copy between GPUs, or to or from the host, passes this GPU's link now. */
void marks_copy(int gpu, double bytes);
/* Seconds since the last one; a great number when there was none. */
double marks_age(int gpu);
uint64_t marks_copies(int gpu);
uint64_t marks_bytes(int gpu);
/* Which process of this seed asks, from 0: processes that run one after the other get other noise, the same each time. */
uint64_t marks_process(uint64_t seed);
/* This process has so many contexts and bytes on a GPU. */
void marks_use(int gpu, int contexts, uint64_t bytes);
/* The bytes that marks_use told last; 0 also when there is no file. */
uint64_t marks_own(int gpu);
/* Processes with a context on the GPU: their ids and bytes, at most `most`; returns how many there are. */
int marks_users(int gpu, int *pids, uint64_t *bytes, int most);

#endif
