/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. What the stand-in for libnccl asks of the stand-in for libcuda, beside CUDA's own calls.
 */
#ifndef RACKWELL_LIBCUDA_SUMS_H
#define RACKWELL_LIBCUDA_SUMS_H

#include <stddef.h>

struct lab_sum;

/* An all-reduce (sum) that `ranks` GPUs, given by their ordinals, will take part in; `type` as NCCL numbers it.
 * NULL when CUDA is not initialised here. */
struct lab_sum *rackwell_lab_sum_open(int ranks, const int *ordinals, size_t count, int type);
/* One rank puts its part into a stream: 0, or CUDA's error. After the last rank's the sum is closed. */
int rackwell_lab_sum_join(struct lab_sum *sum, int rank, unsigned long long send, unsigned long long receive, void *stream);

/* bytes of an element; 0: no type that can be summed here */
size_t lab_type_width(int type);

#endif
