/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only. The content of a piece of device memory.
 *
 * A check fills, copies and compares hundreds of MiB for each of 56 pairs. So content that a rule describes (one value
 * everywhere, or the pattern of rackwell_fill) is kept as that rule, large pieces that are the same in several places are
 * kept once, and only the rest takes memory and time. What is read is the same either way: a test that could tell the
 * difference would be a bug.
 */
#ifndef RACKWELL_LAB_BYTES_H
#define RACKWELL_LAB_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* bytes that do not change any more, wherever they stand */
struct piece;

/* REAL: the bytes at `start`. SHARED: those of `piece` from `from` on; each such extent holds a reference. VALUE: each 8-byte word is `value`. PATTERN: word i of the extent is
 * lab_mix(value + i * LAB_STEP). Words are counted from the block's start, so VALUE and PATTERN begin at a multiple of 8. */
struct extent {
    size_t at, size;
    enum { REAL, VALUE, PATTERN, SHARED } kind;
    uint64_t value;
    struct piece *piece;
    size_t from;
};

struct bytes {
    char *start;
    size_t size;
    bool own; /* pages that hold nothing any more may be given back */
    struct extent *extents; /* sorted, without gaps */
    size_t count, room;
};

struct comparison {
    uint64_t wrong, first, poisoned, zeros;
};

#define LAB_STEP 0x9E3779B97F4A7C15ull

uint64_t lab_mix(uint64_t z);

/* All zero, or `real` (whatever is at `start`, e.g. the caller's own memory). */
void bytes_open(struct bytes *b, char *start, size_t size, bool real);
void bytes_close(struct bytes *b);
void bytes_read(const struct bytes *b, size_t at, size_t size, void *out);
void bytes_write(struct bytes *b, size_t at, size_t size, const void *in);
/* at and size are multiples of 8 */
void bytes_rule(struct bytes *b, size_t at, size_t size, int kind, uint64_t value);
void bytes_share(struct bytes *b, size_t at, struct piece *piece, size_t size);
void bytes_copy(struct bytes *to, size_t to_at, struct bytes *from, size_t from_at, size_t size);
/* Makes the range real, and gives its address. */
char *bytes_real(struct bytes *b, size_t at, size_t size);
/* The extent in which `at` lies. */
const struct extent *bytes_extent(const struct bytes *b, size_t at);
/* Words that differ from lab_mix(seed + i * LAB_STEP); `first` is all ones when there are none. at is a multiple of 8. */
struct comparison bytes_compare(const struct bytes *b, size_t at, size_t words, uint64_t seed, uint64_t poison);

/* A piece of that size with nothing in it yet: to be written before it is shared. The caller owns a reference. */
struct piece *piece_new(size_t size);
char *piece_data(struct piece *piece);
struct piece *piece_keep(struct piece *piece);
void piece_drop(struct piece *piece);

#endif
