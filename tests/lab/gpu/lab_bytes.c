/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_bytes.h.
 */
#include "lab_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the pattern ----------------------------------------------------------------------------- */

uint64_t lab_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* the inverse of an odd number modulo 2^64 */
static uint64_t inverse(uint64_t odd)
{
    uint64_t x = odd;
    for (int i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}

static uint64_t unshift(uint64_t z, int by)
{
    uint64_t x = z;
    for (int have = by; have < 64; have += by)
        x = z ^ (x >> by);
    return x;
}

static uint64_t unmix(uint64_t z)
{
    z = unshift(z, 31) * inverse(0x94D049BB133111EBull);
    z = unshift(z, 27) * inverse(0xBF58476D1CE4E5B9ull);
    return unshift(z, 30);
}

/* The only i for which word i of the pattern of `seed` is `word`: mixing loses nothing. */
static uint64_t place_of(uint64_t word, uint64_t seed)
{
    return (unmix(word) - seed) * inverse(LAB_STEP);
}

/* ---- extents ---------------------------------------------------------------------------------- */

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "rackwell lab: out of memory\n");
        abort();
    }
    return memory;
}

static size_t find(const struct bytes *b, size_t at)
{
    size_t low = 0, high = b->count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (b->extents[middle].at <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const struct extent *bytes_extent(const struct bytes *b, size_t at)
{
    return &b->extents[find(b, at)];
}

static uint64_t word_of(const struct extent *e, size_t at)
{
    return e->kind == VALUE ? e->value : lab_mix(e->value + (at - e->at) / 8 * LAB_STEP);
}

/* Writes the bytes [at, at + size) of an extent to `out`. */
static void render(const struct bytes *b, const struct extent *e, size_t at, size_t size, char *out)
{
    if (e->kind == REAL) {
        memmove(out, b->start + at, size);
        return;
    }
    for (size_t end = at + size; at < end;) {
        uint64_t word = word_of(e, at);
        size_t skip = at % 8, length = 8 - skip < end - at ? 8 - skip : end - at;
        memcpy(out, (const char *)&word + skip, length);
        out += length;
        at += length;
    }
}

static void insert(struct bytes *b, size_t index, struct extent e)
{
    if (b->count == b->room) {
        b->room = b->room ? b->room * 2 : 8;
        b->extents = must(realloc(b->extents, b->room * sizeof *b->extents));
    }
    memmove(b->extents + index + 1, b->extents + index, (b->count - index) * sizeof *b->extents);
    b->extents[index] = e;
    b->count++;
}

static void cut_aligned(struct bytes *b, size_t at)
{
    if (at == 0 || at >= b->size)
        return;
    size_t i = find(b, at);
    struct extent *e = &b->extents[i], rest = *e;
    if (e->at == at)
        return;
    rest.size = e->at + e->size - at;
    rest.at = at;
    if (e->kind == PATTERN)
        rest.value = e->value + (at - e->at) / 8 * LAB_STEP;
    e->size = at - e->at;
    insert(b, i + 1, rest);
}

/* Lets an extent begin at `at`. A rule can be cut at whole words only: a word that is cut becomes real. */
static void cut(struct bytes *b, size_t at)
{
    if (at % 8 && at < b->size && bytes_extent(b, at)->kind != REAL) {
        size_t word = at / 8 * 8;
        cut_aligned(b, word);
        cut_aligned(b, word + 8);
        struct extent *e = &b->extents[find(b, word)];
        render(b, e, e->at, e->size, b->start + e->at);
        e->kind = REAL;
    }
    cut_aligned(b, at);
}

static bool joins(const struct extent *a, const struct extent *b)
{
    if (a->kind != b->kind)
        return false;
    if (a->kind == VALUE)
        return a->value == b->value;
    return a->kind == REAL || a->value + a->size / 8 * LAB_STEP == b->value;
}

/* One extent in place of all that lie in its range, joined with its neighbours where they say the same. */
static void put(struct bytes *b, struct extent e)
{
    if (!e.size)
        return;
    cut(b, e.at);
    cut(b, e.at + e.size);
    size_t first = find(b, e.at), last = first;
    while (last < b->count && b->extents[last].at < e.at + e.size)
        last++;
    if (last < b->count && joins(&e, &b->extents[last]))
        e.size += b->extents[last++].size;
    if (first > 0 && joins(&b->extents[first - 1], &e)) {
        struct extent before = b->extents[--first];
        before.size += e.size;
        e = before;
    }
    b->extents[first] = e;
    memmove(b->extents + first + 1, b->extents + last, (b->count - last) * sizeof *b->extents);
    b->count -= last - first - 1;
}

/* ---- what the library calls --------------------------------------------------------------------- */

void bytes_open(struct bytes *b, char *start, size_t size, bool real)
{
    memset(b, 0, sizeof *b);
    b->start = start;
    b->size = size;
    insert(b, 0, (struct extent){0, size, real ? REAL : VALUE, 0});
}

void bytes_close(struct bytes *b)
{
    free(b->extents);
    b->extents = NULL;
}

void bytes_read(const struct bytes *b, size_t at, size_t size, void *out)
{
    char *to = out;
    for (size_t i = find(b, at), end = at + size; at < end; i++) {
        const struct extent *e = &b->extents[i];
        size_t length = e->at + e->size < end ? e->at + e->size - at : end - at;
        render(b, e, at, length, to);
        to += length;
        at += length;
    }
}

void bytes_write(struct bytes *b, size_t at, size_t size, const void *in)
{
    put(b, (struct extent){at, size, REAL, 0});
    if (size)
        memmove(b->start + at, in, size);
}

void bytes_rule(struct bytes *b, size_t at, size_t size, int kind, uint64_t value)
{
    put(b, (struct extent){at, size, kind, value});
}

char *bytes_real(struct bytes *b, size_t at, size_t size)
{
    if (!size)
        return b->start + at;
    cut(b, at);
    cut(b, at + size);
    for (size_t i = find(b, at); i < b->count && b->extents[i].at < at + size; i++) {
        struct extent *e = &b->extents[i];
        if (e->kind != REAL)
            render(b, e, e->at, e->size, b->start + e->at);
    }
    put(b, (struct extent){at, size, REAL, 0});
    return b->start + at;
}

static void copy_piece(struct bytes *to, size_t to_at, const struct bytes *from, struct extent e, bool aligned)
{
    /* whole words of a rule stay a rule; what is left at the ends, or lies askew, becomes real */
    size_t head = e.kind == REAL ? 0 : (8 - e.at % 8) % 8, body = e.size > head ? (e.size - head) / 8 * 8 : 0;
    const struct extent *rule = bytes_extent(from, e.at);
    if (e.kind == REAL || !aligned || !body) {
        put(to, (struct extent){to_at, e.size, REAL, 0});
        render(from, rule, e.at, e.size, to->start + to_at);
        return;
    }
    uint64_t value = rule->value + (e.kind == PATTERN ? (e.at + head - rule->at) / 8 * LAB_STEP : 0);
    size_t tail = e.size - head - body;
    if (head) {
        put(to, (struct extent){to_at, head, REAL, 0});
        render(from, rule, e.at, head, to->start + to_at);
    }
    if (tail) {
        put(to, (struct extent){to_at + head + body, tail, REAL, 0});
        render(from, rule, e.at + head + body, tail, to->start + to_at + head + body);
    }
    put(to, (struct extent){to_at + head, body, e.kind, value});
}

void bytes_copy(struct bytes *to, size_t to_at, struct bytes *from, size_t from_at, size_t size)
{
    if (!size || (to == from && to_at == from_at))
        return;
    if (to == from) { /* within one block: rare, and the extents must not change under the loop */
        char *source = bytes_real(from, from_at, size);
        put(to, (struct extent){to_at, size, REAL, 0});
        memmove(to->start + to_at, source, size);
        return;
    }
    const bool aligned = from_at % 8 == to_at % 8;
    for (size_t end = from_at + size; from_at < end;) {
        const struct extent *e = bytes_extent(from, from_at);
        size_t stop = e->at + e->size < end ? e->at + e->size : end;
        copy_piece(to, to_at, from, (struct extent){from_at, stop - from_at, e->kind, 0}, aligned);
        to_at += stop - from_at;
        from_at = stop;
    }
}

/* ---- comparing ---------------------------------------------------------------------------------- */

static void count_wrong(struct comparison *c, uint64_t index, uint64_t word, uint64_t poison)
{
    c->wrong++;
    if (index < c->first)
        c->first = index;
    c->poisoned += word == poison;
    c->zeros += word == 0;
}

/* `n` words of one extent, the first of which is word `index` of the whole; `seed` belongs to the whole */
static void compare_extent(struct comparison *c, const struct bytes *b, const struct extent *e, size_t at, uint64_t index,
                           uint64_t n, uint64_t seed, uint64_t poison)
{
    const uint64_t expected = seed + index * LAB_STEP;
    if (e->kind == REAL) {
        for (uint64_t i = 0; i < n; i++) {
            uint64_t word;
            memcpy(&word, b->start + at + i * 8, 8);
            if (word != lab_mix(expected + i * LAB_STEP))
                count_wrong(c, index + i, word, poison);
        }
        return;
    }
    if (e->kind == PATTERN) {
        const uint64_t there = e->value + (at - e->at) / 8 * LAB_STEP;
        if (there == expected)
            return;
        /* another seed: no word is right, since mixing is one to one */
        c->wrong += n;
        c->first = index < c->first ? index : c->first;
        c->poisoned += place_of(poison, there) < n;
        c->zeros += place_of(0, there) < n;
        return;
    }
    const uint64_t right = place_of(e->value, expected); /* the one word, if it is among them, that is right by chance */
    const uint64_t wrong = n - (right < n);
    if (!wrong)
        return;
    c->wrong += wrong;
    const uint64_t first = index + (right == 0);
    c->first = first < c->first ? first : c->first;
    c->poisoned += e->value == poison ? wrong : 0;
    c->zeros += e->value == 0 ? wrong : 0;
}

struct comparison bytes_compare(const struct bytes *b, size_t at, size_t words, uint64_t seed, uint64_t poison)
{
    struct comparison c = {0, ~0ull, 0, 0};
    for (uint64_t index = 0; index < words;) {
        const struct extent *e = bytes_extent(b, at);
        uint64_t n = (e->at + e->size - at) / 8;
        if (!n) { /* a word across two extents */
            uint64_t word;
            bytes_read(b, at, 8, &word);
            if (word != lab_mix(seed + index * LAB_STEP))
                count_wrong(&c, index, word, poison);
            n = 1;
        } else {
            n = n < words - index ? n : words - index;
            compare_extent(&c, b, e, at, index, n, seed, poison);
        }
        index += n;
        at += n * 8;
    }
    return c;
}
