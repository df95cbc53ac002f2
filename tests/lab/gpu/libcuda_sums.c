/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: all-reduces, for the stand-in for libnccl.
 *
 * The sums are real. They are done when somebody looks at the memory: a measurement repeats the same all-reduce a hundred
 * times and looks once.
 */
#define _DEFAULT_SOURCE
#include "libcuda_sums.h"
#include "libcuda.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC optimize("O3")

enum { MOST_PENDING = 64, PIECE = 1 << 16 };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };

struct lab_sum {
    int ranks, joined, type, repeats;
    size_t size;
    bool wrong;
    int ordinals[LAB_MAX_GPUS];
    CUdeviceptr send[LAB_MAX_GPUS], receive[LAB_MAX_GPUS];
    struct meeting *meeting;
};

static struct lab_sum *pending[MOST_PENDING];
static int pending_count;

size_t lab_type_width(int type)
{
    static const size_t widths[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return type >= 0 && type < TYPES ? widths[type] : 0;
}

/* ---- arithmetic --------------------------------------------------------------------------------- */

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float from_bfloat(uint16_t half) { return from_bits((uint32_t)half << 16); }

static uint16_t to_bfloat(float value)
{
    uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16); /* to the nearest, ties to even */
}

static float from_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, rest = half & 0x3ff;
    if (!exponent)
        return from_bits(sign | to_bits((float)rest / 16777216.0f));
    return from_bits(sign | (exponent == 31 ? 0xffu : exponent + 112) << 23 | rest << 13);
}

static uint16_t to_half(float value)
{
    uint32_t bits = to_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) /* rounds to more than the greatest */
        return (uint16_t)(sign | 0x7c00);
    if (magnitude < 0x38800000) /* below the normal ones: units of 2^-24 */
        return (uint16_t)(sign | (uint32_t)lrintf(from_bits(magnitude) * 16777216.0f));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | ((magnitude >> 13) - (112u << 10)));
}

#define ADD_PLAIN(name, type) \
    static void name(void *to, const void *from, size_t size) \
    { \
        typedef type __attribute__((may_alias)) item; \
        item *a = to; \
        const item *b = from; \
        for (size_t i = 0; i < size / sizeof(item); i++) \
            a[i] = (item)(a[i] + b[i]); \
    }
ADD_PLAIN(add_u8, uint8_t)
ADD_PLAIN(add_u32, uint32_t)
ADD_PLAIN(add_u64, uint64_t)
ADD_PLAIN(add_float, float)
ADD_PLAIN(add_double, double)

#define ADD_HALF(name, read, write) \
    static void name(void *to, const void *from, size_t size) \
    { \
        typedef uint16_t __attribute__((may_alias)) item; \
        item *a = to; \
        const item *b = from; \
        for (size_t i = 0; i < size / sizeof(item); i++) \
            a[i] = write(read(a[i]) + read(b[i])); \
    }
ADD_HALF(add_half, from_half, to_half)
ADD_HALF(add_bfloat, from_bfloat, to_bfloat)

static void (*const adders[TYPES])(void *, const void *, size_t) = {
    add_u8, add_u8, add_u32, add_u32, add_u64, add_u64, add_half, add_float, add_double, add_bfloat};

/* ---- carrying out ------------------------------------------------------------------------------- */

struct place { struct block *block; size_t at; };

static struct place find(CUdeviceptr pointer, size_t size)
{
    struct place p;
    p.block = memory_at(pointer, size, &p.at);
    return p;
}

/* One piece: `out` becomes the sum of what the ranks send. */
static void add_up(const struct lab_sum *s, const struct place *sends, size_t at, size_t size, char *out)
{
    char piece[PIECE];
    bytes_read(&sends[0].block->bytes, sends[0].at + at, size, out);
    for (int r = 1; r < s->ranks; r++) {
        bytes_read(&sends[r].block->bytes, sends[r].at + at, size, piece);
        adders[s->type](out, piece, size);
    }
}

/* The same again, `times` times, after all ranks have got `out`. */
static void repeat(const struct lab_sum *s, char *out, size_t size, int times)
{
    char one[PIECE];
    while (times-- > 0) {
        memcpy(one, out, size);
        for (int r = 1; r < s->ranks; r++)
            adders[s->type](out, one, size);
        if (!memcmp(one, out, size))
            return; /* zero, or beyond all numbers: stays */
    }
}

/* How many bytes from `at` on are one value for each rank, given in `words`; 0: they are not. */
static size_t uniform(const struct lab_sum *s, const struct place *places, size_t at, uint64_t *words)
{
    size_t size = s->size - at;
    for (int r = 0; r < s->ranks; r++) {
        const struct extent *e = bytes_extent(&places[r].block->bytes, places[r].at + at);
        size_t left = e->at + e->size - places[r].at - at;
        if (e->kind != VALUE || (places[r].at + at) % 8)
            return 0;
        size = left < size ? left : size;
        words[r] = e->value;
    }
    return size / 8 * 8;
}

/* the same pieces of all ranks again, in another place: their sum is there already */
struct known {
    struct piece *terms[LAB_MAX_GPUS];
    size_t from[LAB_MAX_GPUS];
    size_t size;
    struct piece *sum;
};
enum { MOST_KNOWN = 64 };

/* How many bytes from `at` on are parts of shared pieces at each rank, which `k` names; 0: they are not. */
static size_t shared(const struct lab_sum *s, const struct place *sends, size_t at, struct known *k)
{
    k->size = s->size - at;
    for (int r = 0; r < s->ranks; r++) {
        const struct extent *e = bytes_extent(&sends[r].block->bytes, sends[r].at + at);
        size_t skip = sends[r].at + at - e->at;
        if (e->kind != SHARED)
            return 0;
        k->terms[r] = e->piece;
        k->from[r] = e->from + skip;
        k->size = e->size - skip < k->size ? e->size - skip : k->size;
    }
    k->size = k->size / 8 * 8;
    return k->size;
}

static struct piece *sum_of(const struct lab_sum *s, const struct place *sends, size_t at, struct known *wanted, struct known *list, int *count)
{
    for (int i = 0; i < *count; i++)
        if (list[i].size == wanted->size && !memcmp(list[i].terms, wanted->terms, (size_t)s->ranks * sizeof *wanted->terms) &&
            !memcmp(list[i].from, wanted->from, (size_t)s->ranks * sizeof *wanted->from))
            return piece_keep(list[i].sum);
    struct piece *sum = piece_new(wanted->size);
    for (size_t done = 0; done < wanted->size; done += PIECE) {
        size_t size = wanted->size - done < PIECE ? wanted->size - done : PIECE;
        add_up(s, sends, at + done, size, piece_data(sum) + done);
        repeat(s, piece_data(sum) + done, size, s->repeats);
    }
    if (*count < MOST_KNOWN) {
        wanted->sum = piece_keep(sum);
        for (int r = 0; r < s->ranks; r++)
            piece_keep(wanted->terms[r]);
        list[(*count)++] = *wanted;
    }
    return sum;
}

static void carry_out_with(const struct lab_sum *s, struct known *list, int *count)
{
    struct place sends[LAB_MAX_GPUS], receives[LAB_MAX_GPUS];
    for (int r = 0; r < s->ranks; r++) {
        sends[r] = find(s->send[r], s->size);
        receives[r] = find(s->receive[r], s->size);
        if (!sends[r].block || !receives[r].block)
            return;
    }
    for (size_t at = 0, size; at < s->size; at += size) {
        uint64_t words[LAB_MAX_GPUS];
        char piece[PIECE];
        bool rule = true;
        size = uniform(s, sends, at, words);
        for (int r = 0; r < s->ranks; r++)
            rule = rule && size && (receives[r].at + at) % 8 == 0;
        if (rule) {
            for (int r = 1; r < s->ranks; r++)
                adders[s->type](&words[0], &words[r], 8);
            repeat(s, (char *)&words[0], 8, s->repeats);
            for (int r = 0; r < s->ranks; r++)
                bytes_rule(&receives[r].block->bytes, receives[r].at + at, size, VALUE, words[0]);
            continue;
        }
        struct known parts;
        if ((size = shared(s, sends, at, &parts)) >= PIECE) {
            struct piece *sum = sum_of(s, sends, at, &parts, list, count);
            for (int r = 0; r < s->ranks; r++)
                bytes_share(&receives[r].block->bytes, receives[r].at + at, sum, size);
            piece_drop(sum);
            continue;
        }
        size = s->size - at < PIECE ? s->size - at : PIECE;
        add_up(s, sends, at, size, piece);
        repeat(s, piece, size, s->repeats);
        for (int r = 0; r < s->ranks; r++)
            bytes_write(&receives[r].block->bytes, receives[r].at + at, size, piece);
    }
    for (int r = 0; r < s->ranks; r++) {
        if (s->wrong && r == s->ranks - 1) {
            size_t middle = s->size / 2 / 64 * 64, length = s->size - middle < 64 ? s->size - middle : 64;
            char *bytes = bytes_real(&receives[r].block->bytes, receives[r].at + middle, length);
            for (size_t i = 0; i < length; i++)
                bytes[i] ^= 0x5a;
        }
        changed(receives[r].block);
    }
}

static void carry_out(const struct lab_sum *s)
{
    struct known *list = calloc(MOST_KNOWN, sizeof *list);
    int count = 0;
    if (list)
        carry_out_with(s, list, &count);
    for (int i = 0; i < count; i++) {
        piece_drop(list[i].sum);
        for (int r = 0; r < s->ranks; r++)
            piece_drop(list[i].terms[r]);
    }
    free(list);
}

void settle_sums(void)
{
    for (int i = 0; i < pending_count; i++) {
        carry_out(pending[i]);
        free(pending[i]);
    }
    pending_count = 0;
}

/* ---- putting off -------------------------------------------------------------------------------- */

static bool overlap(CUdeviceptr a, size_t a_size, CUdeviceptr b, size_t b_size) { return a < b + b_size && b < a + a_size; }

static bool in_place(const struct lab_sum *s) { return s->send[0] == s->receive[0]; }

/* Would it matter which of the two is done first? */
static bool conflict(const struct lab_sum *a, const struct lab_sum *b)
{
    for (int i = 0; i < a->ranks; i++)
        for (int j = 0; j < b->ranks; j++)
            if (overlap(a->receive[i], a->size, b->receive[j], b->size) || overlap(a->receive[i], a->size, b->send[j], b->size) ||
                overlap(a->send[i], a->size, b->receive[j], b->size))
                return true;
    return false;
}

static bool same(const struct lab_sum *a, const struct lab_sum *b)
{
    return a->ranks == b->ranks && a->size == b->size && a->type == b->type && a->wrong == b->wrong &&
           !memcmp(a->send, b->send, sizeof a->send) && !memcmp(a->receive, b->receive, sizeof a->receive);
}

/* What waits does not depend on one another, so the order in which it is done later is free. */
static void put_off(struct lab_sum *s)
{
    bool plain = true;
    for (int r = 0; r < s->ranks; r++)
        plain = plain && (s->send[r] == s->receive[r]) == in_place(s) &&
                (s->send[r] == s->receive[r] || !overlap(s->send[r], s->size, s->receive[r], s->size));
    for (int i = 0; plain && i < pending_count; i++) {
        if (same(pending[i], s)) {
            pending[i]->repeats += in_place(s);
            free(s);
            return;
        }
        if (conflict(pending[i], s))
            settle_sums();
    }
    if (!plain || pending_count == MOST_PENDING)
        settle_sums();
    pending[pending_count++] = s;
    if (!plain)
        settle_sums();
}

/* ---- what libnccl calls -------------------------------------------------------------------------- */

/* The ring that the ranks make, and what the state file says of its links. */
static double seconds(const struct lab_state *state, const struct lab_sum *s, bool *wrong, bool *stuck)
{
    const struct json *nccl = json_get(state->json, "nccl");
    double gb_per_s = json_number(nccl, "gb_per_s", 40), root = lab_gb_per_s(state, "cross_root", 1e9);
    *wrong = json_true(nccl, "wrong_results");
    *stuck = json_true(nccl, "hang");
    for (int r = 0; r < s->ranks; r++) {
        int from = physical[s->ordinals[r]], to = physical[s->ordinals[(r + 1) % s->ranks]];
        double link = links_gb_per_s(state, from) * 0.75, slow = lab_pair(state, "slow_pairs", from, to);
        gb_per_s = link < gb_per_s ? link : gb_per_s;
        gb_per_s = slow > 0 && slow < gb_per_s ? slow : gb_per_s;
        if (state->gpus[from].pci_switch < 0 || state->gpus[from].pci_switch != state->gpus[to].pci_switch)
            gb_per_s = root < gb_per_s ? root : gb_per_s;
        *wrong = *wrong || corrupted(state, s->size, s->ordinals[r], s->ordinals[(r + 1) % s->ranks], true).size;
        *stuck = *stuck || lab_pair(state, "hang_pairs", from, to) >= 0;
    }
    double moved = 2.0 * (s->ranks - 1) / s->ranks * (double)s->size;
    return (json_number(nccl, "latency_us", 30) / 1e6 + moved / (gb_per_s * 1e9)) / links_noise(state, (unsigned)s->ranks);
}

API struct lab_sum *rackwell_lab_sum_open(int ranks, const int *ordinals, size_t count, int type)
{
    const struct lab_state *state = NULL;
    bool stuck;
    struct lab_sum *s = ranks > 0 && ranks <= LAB_MAX_GPUS && lab_type_width(type) ? calloc(1, sizeof *s) : NULL;
    if (!s || enter("ncclAllReduce", -1, -1, &state)) {
        free(s);
        return NULL;
    }
    *s = (struct lab_sum){.ranks = ranks, .size = count * lab_type_width(type), .type = type};
    memcpy(s->ordinals, ordinals, (size_t)ranks * sizeof *ordinals);
    double length = seconds(state, s, &s->wrong, &stuck);
    s->meeting = meeting_new(ranks, length, stuck);
    leave(OK);
    return s;
}

API int rackwell_lab_sum_join(struct lab_sum *s, int rank, unsigned long long send, unsigned long long receive, void *handle)
{
    int ordinal = s->ordinals[rank];
    ENTER("ncclAllReduce", ordinal, -1);
    struct stream *stream = (uintptr_t)handle <= 2 ? primary_stream(ordinal) : stream_of(handle);
    if (!stream || stream->context->device != ordinal)
        return leave(INVALID_HANDLE);
    struct place from = find(send, s->size), to = find(receive, s->size);
    if (!from.block || !to.block || from.block->device != ordinal || to.block->device != ordinal)
        return leave(INVALID_VALUE);
    keep_promises();
    lane_meet(lane_of(stream), s->meeting);
    links_touch(state, physical[ordinal], (double)s->size);
    s->send[rank] = send;
    s->receive[rank] = receive;
    if (++s->joined == s->ranks) {
        meeting_drop(s->meeting);
        s->meeting = NULL;
        put_off(s);
    }
    return leave(OK);
}
