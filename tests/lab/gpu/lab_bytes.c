/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: see lab_bytes.h.
 */
#define _DEFAULT_SOURCE
#include "lab_bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* ---- pieces ------------------------------------------------------------------------------------- */

enum { SHARE_LEAST = 1 << 20 }; /* smaller writes are not looked up */

struct piece {
    struct piece *next; /* of those that can be found by their content */
    int references;
    bool listed;
    uint64_t hash;
    size_t size;
    char *data;
};

static struct piece *pieces;

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "rackwell lab: out of memory\n");
        abort();
    }
    return memory;
}

struct piece *piece_new(size_t size)
{
    struct piece *p = must(calloc(1, sizeof *p));
    p->references = 1;
    p->size = size;
    p->data = must(malloc(size));
    return p;
}

char *piece_data(struct piece *p) { return p->data; }

struct piece *piece_keep(struct piece *p)
{
    if (p)
        p->references++;
    return p;
}

void piece_drop(struct piece *p)
{
    if (!p || --p->references)
        return;
    for (struct piece **at = &pieces; p->listed && *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    free(p->data);
    free(p);
}

static uint64_t hash(const char *data, size_t size)
{
    uint64_t lanes[4] = {1, 2, 3, 4}, word;
    size_t i = 0;
    for (; i + 32 <= size; i += 32)
        for (int l = 0; l < 4; l++) {
            memcpy(&word, data + i + 8 * l, 8);
            lanes[l] = (lanes[l] ^ word) * LAB_STEP;
            lanes[l] ^= lanes[l] >> 29;
        }
    for (; i < size; i++)
        lanes[0] = (lanes[0] ^ (unsigned char)data[i]) * LAB_STEP;
    return lab_mix(lanes[0] + lab_mix(lanes[1] + lab_mix(lanes[2] + lab_mix(lanes[3] + size))));
}

/* The piece with this content; the caller owns a reference. */
static struct piece *piece_of(const char *data, size_t size)
{
    const uint64_t wanted = hash(data, size);
    for (struct piece *p = pieces; p; p = p->next)
        if (p->hash == wanted && p->size == size && !memcmp(p->data, data, size))
            return piece_keep(p);
    struct piece *p = piece_new(size);
    memcpy(p->data, data, size);
    p->hash = wanted;
    p->listed = true;
    p->next = pieces;
    pieces = p;
    return p;
}

/* ---- extents ---------------------------------------------------------------------------------- */

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

/* Where the bytes of an extent from `at` on are; NULL: they follow from a rule. */
static const char *stored(const struct bytes *b, const struct extent *e, size_t at)
{
    return e->kind == REAL ? b->start + at : e->kind == SHARED ? e->piece->data + e->from + (at - e->at) : NULL;
}

/* Writes the bytes [at, at + size) of an extent to `out`. */
static void render(const struct bytes *b, const struct extent *e, size_t at, size_t size, char *out)
{
    const char *there = stored(b, e, at);
    if (there) {
        memmove(out, there, size);
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
    rest.from = e->from + (at - e->at);
    piece_keep(rest.piece);
    if (e->kind == PATTERN)
        rest.value = e->value + (at - e->at) / 8 * LAB_STEP;
    e->size = at - e->at;
    insert(b, i + 1, rest);
}

/* Lets an extent begin at `at`. A rule can be cut at whole words only: a word that is cut becomes real. */
static void cut(struct bytes *b, size_t at)
{
    if (at % 8 && at < b->size && !stored(b, bytes_extent(b, at), at)) {
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
    if (a->kind != b->kind || a->kind == SHARED)
        return false;
    if (a->kind == VALUE)
        return a->value == b->value;
    return a->kind == REAL || a->value + a->size / 8 * LAB_STEP == b->value;
}

/* One extent in place of all that lie in its range, joined with its neighbours where they say the same. The extent's
 * reference to a piece becomes the block's. */
static void put(struct bytes *b, struct extent e)
{
    if (!e.size)
        return;
    cut(b, e.at);
    cut(b, e.at + e.size);
    if (b->own && e.kind != REAL && e.size >= SHARE_LEAST) {
        uintptr_t from = ((uintptr_t)b->start + e.at + 4095) / 4096 * 4096, to = ((uintptr_t)b->start + e.at + e.size) / 4096 * 4096;
        madvise((void *)from, to - from, MADV_DONTNEED);
    }
    size_t first = find(b, e.at), last = first;
    while (last < b->count && b->extents[last].at < e.at + e.size)
        piece_drop(b->extents[last++].piece);
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
    insert(b, 0, (struct extent){.at = 0, .size = size, .kind = real ? REAL : VALUE});
    b->own = !real;
}

void bytes_close(struct bytes *b)
{
    for (size_t i = 0; i < b->count; i++)
        piece_drop(b->extents[i].piece);
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
    if (b->own && size >= SHARE_LEAST) {
        put(b, (struct extent){.at = at, .size = size, .kind = SHARED, .piece = piece_of(in, size)});
        return;
    }
    put(b, (struct extent){.at = at, .size = size, .kind = REAL});
    if (size)
        memmove(b->start + at, in, size);
}

void bytes_share(struct bytes *b, size_t at, struct piece *piece, size_t size)
{
    put(b, (struct extent){.at = at, .size = size, .kind = SHARED, .piece = piece_keep(piece)});
}

void bytes_rule(struct bytes *b, size_t at, size_t size, int kind, uint64_t value)
{
    put(b, (struct extent){.at = at, .size = size, .kind = kind, .value = value});
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
        piece_drop(e->piece);
        e->piece = NULL;
        e->kind = REAL;
    }
    put(b, (struct extent){.at = at, .size = size, .kind = REAL});
    return b->start + at;
}

static void copy_piece(struct bytes *to, size_t to_at, const struct bytes *from, struct extent e, bool aligned)
{
    /* whole words of a rule stay a rule; what is left at the ends, or lies askew, becomes real */
    size_t head = (8 - e.at % 8) % 8, body = e.size > head ? (e.size - head) / 8 * 8 : 0;
    const struct extent *rule = bytes_extent(from, e.at);
    if (e.kind == SHARED && to->own) {
        put(to, (struct extent){.at = to_at, .size = e.size, .kind = SHARED, .piece = piece_keep(rule->piece), .from = rule->from + (e.at - rule->at)});
        return;
    }
    if (stored(from, rule, e.at) || !aligned || !body) {
        put(to, (struct extent){.at = to_at, .size = e.size, .kind = REAL});
        render(from, rule, e.at, e.size, to->start + to_at);
        return;
    }
    uint64_t value = rule->value + (e.kind == PATTERN ? (e.at + head - rule->at) / 8 * LAB_STEP : 0);
    size_t tail = e.size - head - body;
    if (head) {
        put(to, (struct extent){.at = to_at, .size = head, .kind = REAL});
        render(from, rule, e.at, head, to->start + to_at);
    }
    if (tail) {
        put(to, (struct extent){.at = to_at + head + body, .size = tail, .kind = REAL});
        render(from, rule, e.at + head + body, tail, to->start + to_at + head + body);
    }
    put(to, (struct extent){.at = to_at + head, .size = body, .kind = e.kind, .value = value});
}

void bytes_copy(struct bytes *to, size_t to_at, struct bytes *from, size_t from_at, size_t size)
{
    if (!size || (to == from && to_at == from_at))
        return;
    if (to == from) { /* within one block: rare, and the extents must not change under the loop */
        char *source = bytes_real(from, from_at, size);
        put(to, (struct extent){.at = to_at, .size = size, .kind = REAL});
        memmove(to->start + to_at, source, size);
        return;
    }
    const bool aligned = from_at % 8 == to_at % 8;
    for (size_t end = from_at + size; from_at < end;) {
        const struct extent *e = bytes_extent(from, from_at);
        size_t stop = e->at + e->size < end ? e->at + e->size : end;
        copy_piece(to, to_at, from, (struct extent){.at = from_at, .size = stop - from_at, .kind = e->kind}, aligned);
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
    const char *there = stored(b, e, at);
    if (there) {
        for (uint64_t i = 0; i < n; i++) {
            uint64_t word;
            memcpy(&word, there + i * 8, 8);
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
