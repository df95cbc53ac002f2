/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN, laboratory only: modules and kernels of the stand-in for libcuda.
 *
 * PTX is looked at, not run: a module has the entries that its text has, and an entry does what rackwell's probe means by
 * that name (src/rackwell/probe/kernels.ptx). It does it to the memory's real content, and takes modelled time.
 */
#define _DEFAULT_SOURCE
#include "libcuda.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what an entry does ------------------------------------------------------------------------- */

enum { MOST_ARGUMENTS = 5 };

struct launch {
    const struct lab_state *state;
    struct stream *stream;
    uint64_t argument[MOST_ARGUMENTS];
    uint64_t threads;
    int device; /* ordinal of the GPU that runs it */
};

/* Memory that the kernel touches: 0, or what breaks the context. Nothing is touched when size is 0. */
static CUresult touch(const struct launch *l, uint64_t pointer, uint64_t size, uint64_t align, struct block **block, size_t *at)
{
    *block = NULL;
    *at = 0;
    if (!size)
        return OK;
    if (pointer % align)
        return MISALIGNED_ADDRESS;
    *block = size <= SIZE_MAX / 2 ? memory_at(pointer, size, at) : NULL;
    return *block && reaches(l->stream->context, (*block)->device) ? OK : ILLEGAL_ADDRESS;
}

#define TOUCH(pointer, size, align, block, at) \
    do { \
        CUresult touched = touch(l, pointer, size, align, &(block), &(at)); \
        if (touched) \
            return touched; \
    } while (0)

static void move(const struct launch *l, int from, int to, double bytes)
{
    struct transfer t = {.from = from, .to = to, .by = l->device, .kernel = true, .direct = true, .bytes = bytes};
    book(l->state, l->stream, &t);
}

static void apply_rule(const struct launch *l, struct block *block, size_t at, size_t size, int kind, uint64_t value)
{
    struct span hit = corrupted(l->state, size, l->device, block->device, true);
    char *before = hit.size ? malloc(hit.size) : NULL;
    if (before)
        bytes_read(&block->bytes, at + hit.at, hit.size, before);
    bytes_rule(&block->bytes, at, size, kind, value);
    if (block->device < 0)
        bytes_real(&block->bytes, at, size); /* the host looks at it without asking */
    if (before)
        corrupt(l->state, &block->bytes, at, size, l->device, block->device, true, before);
    free(before);
    changed(block);
    move(l, l->device, block->device, (double)size);
}

static CUresult fill(const struct launch *l)
{
    struct block *block;
    size_t at;
    TOUCH(l->argument[0], l->argument[1] * 8, 8, block, at);
    if (block)
        apply_rule(l, block, at, l->argument[1] * 8, PATTERN, l->argument[2]);
    return OK;
}

static CUresult poison(const struct launch *l)
{
    struct block *block;
    size_t at;
    TOUCH(l->argument[0], l->argument[1] * 8, 8, block, at);
    if (block)
        apply_rule(l, block, at, l->argument[1] * 8, VALUE, l->argument[2]);
    return OK;
}

static CUresult compare(const struct launch *l)
{
    struct block *block, *answer;
    size_t at, answer_at;
    const uint64_t words = l->argument[1];
    uint64_t result[4];
    TOUCH(l->argument[0], words * 8, 8, block, at);
    if (!block)
        return OK;
    TOUCH(l->argument[4], sizeof result, 8, answer, answer_at);
    struct comparison c = bytes_compare(&block->bytes, at, words, l->argument[2], l->argument[3]);
    struct span hit = corrupted(l->state, words * 8, block->device, l->device, true);
    if (hit.size) { /* read from far, over a way that spoils it */
        c.wrong += hit.size / 8;
        c.first = hit.at / 8 < c.first ? hit.at / 8 : c.first;
    }
    if (c.wrong) {
        bytes_read(&answer->bytes, answer_at, sizeof result, result);
        result[0] += c.wrong;
        result[1] = c.first < result[1] ? c.first : result[1];
        result[2] += c.poisoned;
        result[3] += c.zeros;
        bytes_write(&answer->bytes, answer_at, sizeof result, result);
        changed(answer);
    }
    move(l, block->device, l->device, (double)words * 8);
    return OK;
}

static CUresult copy(const struct launch *l)
{
    struct block *to, *from;
    size_t to_at, from_at;
    const uint64_t size = l->argument[2] <= SIZE_MAX / 32 ? l->argument[2] * 16 : SIZE_MAX, repeat = l->argument[3];
    if (!repeat)
        return OK;
    TOUCH(l->argument[0], size, 16, to, to_at);
    TOUCH(l->argument[1], size, 16, from, from_at);
    if (!to)
        return OK;
    /* it goes over a link between the running GPU and the memory that is not its own; between two others', both ways */
    if (from->device != l->device && to->device != l->device && from->device != to->device && from->device >= 0 && to->device >= 0)
        move(l, from->device, l->device, (double)(size * repeat));
    if (from->device < 0 || to->device < 0) {
        bytes_copy(&to->bytes, to_at, &from->bytes, from_at, size);
        if (to->device < 0)
            bytes_real(&to->bytes, to_at, size);
        changed(to);
    } else
        transmit(l->state, to, to_at, from, from_at, size, true, true);
    move(l, from->device, to->device, (double)(size * repeat));
    return OK;
}

static CUresult chain(const struct launch *l)
{
    struct block *block;
    size_t at;
    const uint64_t base = l->argument[0], n = l->argument[1], stride = l->argument[2];
    if (!n)
        return OK;
    if (stride && n > SIZE_MAX / 2 / stride)
        return ILLEGAL_ADDRESS;
    TOUCH(base, (n - 1) * stride + 8, 8, block, at);
    if (stride % 8)
        return MISALIGNED_ADDRESS;
    char *start = bytes_real(&block->bytes, at, (n - 1) * stride + 8);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t next = base + (i + 1 == n ? 0 : i + 1) * stride;
        memcpy(start + i * stride, &next, 8);
    }
    changed(block);
    move(l, l->device, block->device, (double)n * 8);
    return OK;
}

static CUresult chase(const struct launch *l)
{
    struct block *answer, *block;
    size_t answer_at, at;
    uint64_t place = l->argument[0], left = l->argument[1], result[2];
    int of = l->device;
    TOUCH(l->argument[2], sizeof result, 8, answer, answer_at);
    for (uint64_t done = 0; left; left--) {
        TOUCH(place, 8, 8, block, at);
        of = block->device;
        bytes_read(&block->bytes, at, 8, &place);
        if (++done && place == l->argument[0]) /* all the way round: the rest of whole rounds ends here too */
            left = (left - 1) % done + 1;
    }
    const struct lab_gpu *gpu = &l->state->gpus[physical[l->device]];
    double seconds = (double)l->argument[1] * links_latency(l->state, physical[l->device], of < 0 ? -1 : physical[of]);
    result[0] = (uint64_t)(seconds * json_number(gpu->json, "busy_mhz", 2430) * 1e6 + 0.5);
    result[1] = place;
    bytes_write(&answer->bytes, answer_at, sizeof result, result);
    changed(answer);
    lane_delay(lane_of(l->stream), seconds);
    return OK;
}

static CUresult add(const struct launch *l)
{
    struct block *block;
    size_t at;
    uint64_t value, more = l->threads * l->argument[1];
    if (!more)
        return OK;
    TOUCH(l->argument[0], 8, 8, block, at);
    /* without atomics on that way, threads overwrite what the others have just written */
    if (block->device >= 0 && block->device != l->device && !lab_native_atomics(l->state, physical[l->device], physical[block->device]))
        more = l->argument[1];
    if (corrupted(l->state, 8, l->device, block->device, true).size)
        more--;
    bytes_read(&block->bytes, at, 8, &value);
    value += more;
    bytes_write(&block->bytes, at, 8, &value);
    changed(block);
    lane_delay(lane_of(l->stream), links_latency(l->state, physical[l->device], block->device < 0 ? -1 : physical[block->device]));
    return OK;
}

static CUresult spin(const struct launch *l)
{
    struct block *block;
    size_t at;
    TOUCH(l->argument[0], 4, 4, block, at);
    /* takes no modelled time: nothing is late for what is put into the stream behind it */
    return OK;
}

/* `pointers`: which arguments are addresses, as bits */
static const struct kernel { const char *name; int arguments; unsigned pointers; CUresult (*run)(const struct launch *); } kernels[] = {
    {"rackwell_fill", 3, 1, fill},   {"rackwell_poison", 3, 1, poison}, {"rackwell_compare", 5, 1 | 16, compare}, {"rackwell_copy", 4, 1 | 2, copy},
    {"rackwell_chain", 3, 1, chain}, {"rackwell_chase", 3, 1 | 4, chase}, {"rackwell_add", 2, 1, add},           {"rackwell_spin", 1, 1, spin},
};

/* ---- modules ------------------------------------------------------------------------------------ */

struct function {
    struct function *next;
    CUmodule module;
    char *name;
    int arguments;
    const struct kernel *kernel; /* NULL: an entry that nothing here can do */
};

struct module {
    struct module *next;
    CUcontext context;
    struct function *functions;
};

static struct module *modules;

static bool is_name(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }

/* PTX without its comments: the caller frees it. */
static char *without_comments(const char *text)
{
    char *out = malloc(strlen(text) + 1), *to = out;
    while (out && *text) {
        if (text[0] == '/' && text[1] == '/')
            text += strcspn(text, "\n");
        else if (text[0] == '/' && text[1] == '*') {
            const char *end = strstr(text + 2, "*/");
            text = end ? end + 2 : text + strlen(text);
        } else
            *to++ = *text++;
    }
    if (out)
        *to = 0;
    return out;
}

static const char *skip_space(const char *at)
{
    while (isspace((unsigned char)*at))
        at++;
    return at;
}

/* the number behind a directive that must come next, in tenths: `.version 7.0` -> 70, `.target sm_75` -> 75 */
static const char *directive(const char *at, const char *name, const char *prefix, int *value)
{
    at = skip_space(at);
    if (strncmp(at, name, strlen(name)))
        return NULL;
    at = skip_space(at + strlen(name));
    if (strncmp(at, prefix, strlen(prefix)))
        return NULL;
    at += strlen(prefix);
    *value = 0;
    if (!isdigit((unsigned char)*at))
        return NULL;
    for (; isdigit((unsigned char)*at) || *at == '.'; at++)
        if (*at != '.')
            *value = *value * 10 + *at - '0';
    return at;
}

static bool balanced(const char *text)
{
    int depth = 0;
    for (; *text && depth >= 0; text++)
        depth += (*text == '{') - (*text == '}');
    return depth == 0;
}

static void add_entry(CUmodule module, const char *at)
{
    struct function *f = calloc(1, sizeof *f);
    size_t length = 0;
    at = skip_space(at);
    while (is_name(at[length]))
        length++;
    f->module = module;
    f->name = strndup(at, length);
    const char *end = at + strcspn(at, ")");
    for (const char *p = strstr(at, ".param"); p && p < end; p = strstr(p + 1, ".param"))
        f->arguments++;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i].name, f->name))
            f->kernel = &kernels[i];
    f->next = module->functions;
    module->functions = f;
}

/* 0, or the driver's refusal and why */
static CUresult read_module(CUmodule module, const char *image, int capability, const char **why)
{
    static const char *const nothing = "";
    int version = 0, target = 0, newest = atoi(RACKWELL_LAB_DRIVER_VERSION);
    newest = newest >= 595 ? 92 : newest >= 590 ? 91 : newest >= 580 ? 90 : newest >= 575 ? 88 : 87;
    *why = nothing;
    if (!memcmp(image, "\177ELF", 4) || !memcmp(image, "\x50\xed\x55\xba", 4)) {
        *why = "the laboratory has no GPU that runs machine code: give PTX";
        return NO_BINARY_FOR_GPU;
    }
    char *text = without_comments(image);
    CUresult result = INVALID_PTX;
    const char *at = text ? directive(text, ".version", "", &version) : NULL;
    if (!at)
        *why = "line 1; fatal   : Missing .version directive at start of file";
    else if (version > newest) {
        *why = "fatal   : Unsupported .version; this driver's newest is older";
        result = UNSUPPORTED_PTX_VERSION;
    } else if (!(at = directive(at, ".target", "sm_", &target)))
        *why = "error   : Missing .target directive";
    else if (target > capability) {
        *why = "error   : .target is newer than the GPU";
        result = NO_BINARY_FOR_GPU;
    } else if (!balanced(at))
        *why = "fatal   : Parsing error near '}': syntax error";
    else {
        result = OK;
        for (at = strstr(at, ".entry"); at; at = strstr(at + 1, ".entry"))
            add_entry(module, at + strlen(".entry"));
    }
    free(text);
    return result;
}

static void free_module(CUmodule module)
{
    while (module->functions) {
        struct function *f = module->functions;
        module->functions = f->next;
        free(f->name);
        free(f);
    }
    free(module);
}

void drop_modules(CUcontext context)
{
    for (struct module **m = &modules; *m;)
        if (!context || (*m)->context == context) {
            struct module *gone = *m;
            *m = gone->next;
            free_module(gone);
        } else
            m = &(*m)->next;
}

API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
    ENTER("cuModuleLoadData", current_device(), -1);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!out || !image || (count && (!options || !values)))
        return leave(INVALID_VALUE);
    char *log = NULL;
    size_t log_size = 0;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == 5) /* CU_JIT_ERROR_LOG_BUFFER */
            log = values[i];
        else if (options[i] == 6)
            log_size = (size_t)(uintptr_t)values[i];
    }
    const char *capability = json_string(state->gpus[physical[current_device()]].json, "compute_capability", "12.0");
    const char *dot = strchr(capability, '.'), *why;
    struct module *module = calloc(1, sizeof *module);
    if (!module)
        return leave(OUT_OF_MEMORY);
    CUresult error = read_module(module, image, atoi(capability) * 10 + (dot ? atoi(dot + 1) : 0), &why);
    if (log && log_size)
        snprintf(log, log_size, "%s%s", error ? "ptxas application ptx input, " : "", why);
    if (error) {
        free_module(module);
        return leave(error);
    }
    module->context = current();
    module->next = modules;
    modules = module;
    *out = module;
    return leave(OK);
}

API CUresult cuModuleLoadData(CUmodule *module, const void *image) { return cuModuleLoadDataEx(module, image, 0, NULL, NULL); }

static bool is_module(CUmodule wanted)
{
    for (struct module *m = modules; m; m = m->next)
        if (m == wanted)
            return true;
    return false;
}

static bool is_function(CUfunction wanted)
{
    for (struct module *m = modules; m; m = m->next)
        for (struct function *f = m->functions; f; f = f->next)
            if (f == wanted)
                return true;
    return false;
}

API CUresult cuModuleUnload(CUmodule module)
{
    ENTER("cuModuleUnload", current_device(), -1);
    for (struct module **m = &modules; *m; m = &(*m)->next)
        if (*m == module) {
            *m = module->next;
            free_module(module);
            return leave(OK);
        }
    return leave(INVALID_HANDLE);
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER("cuModuleGetFunction", current_device(), -1);
    if (!function || !name)
        return leave(INVALID_VALUE);
    if (!is_module(module))
        return leave(INVALID_HANDLE);
    for (struct function *f = module->functions; f; f = f->next)
        if (!strcmp(f->name, name)) {
            *function = f;
            return leave(OK);
        }
    return leave(NOT_FOUND);
}

API CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    ENTER("cuFuncGetAttribute", current_device(), -1);
    static const int values[] = {1024, 0, 0, 0, 40, 70, 120, 0, 49152, -1}; /* threads, shared, constant, local, registers, PTX, binary, … */
    if (!value || attribute < 0)
        return leave(INVALID_VALUE);
    if (!is_function(function))
        return leave(INVALID_HANDLE);
    *value = attribute < 10 ? values[attribute] : 0;
    return leave(OK);
}

API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    ENTER("cuFuncSetAttribute", current_device(), -1);
    (void)attribute, (void)value;
    return leave(is_function(function) ? OK : INVALID_HANDLE);
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared)
{
    ENTER("cuOccupancyMaxActiveBlocksPerMultiprocessor", current_device(), -1);
    (void)shared;
    if (!blocks || threads < 1)
        return leave(INVALID_VALUE);
    if (!is_function(function))
        return leave(INVALID_HANDLE);
    int warps = (threads + 31) / 32;
    *blocks = threads > 1024 ? 0 : 48 / warps < 24 ? 48 / warps : 24; /* GB202: 48 warps and 24 blocks */
    return leave(OK);
}

/* ---- starting a kernel ---------------------------------------------------------------------------- */

/* the arguments, each of 8 bytes: pointers to them, or one buffer (CU_LAUNCH_PARAM_BUFFER_POINTER and …_SIZE) */
static bool read_arguments(uint64_t *out, int count, void **parameters, void **extra)
{
    const char *buffer = NULL;
    size_t size = 0;
    for (; !parameters && extra && *extra; extra += 2) {
        if (*extra == (void *)1)
            buffer = extra[1];
        else if (*extra == (void *)2)
            size = *(size_t *)extra[1];
    }
    for (int i = 0; i < count; i++) {
        if (parameters)
            memcpy(&out[i], parameters[i], 8);
        else if (buffer && size >= (size_t)count * 8)
            memcpy(&out[i], buffer + 8 * i, 8);
        else
            return false;
    }
    return true;
}

/* the device, other than the running one, whose memory a pointer is in; -1: none */
static int far_device(const struct kernel *kernel, const uint64_t *arguments, int device)
{
    size_t at;
    for (int i = 0; i < kernel->arguments; i++) {
        struct block *block = kernel->pointers >> i & 1 && arguments[i] ? memory_at(arguments[i], 1, &at) : NULL;
        if (block && block->device >= 0 && block->device != device)
            return block->device;
    }
    return -1;
}

API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                            CUstream handle, void **parameters, void **extra)
{
    ENTER("cuLaunchKernel", current_device(), -1);
    (void)shared;
    struct stream *stream = stream_of(handle);
    if (!current())
        return leave(INVALID_CONTEXT);
    if (!stream || !is_function(function) || function->module->context != stream->context)
        return leave(INVALID_HANDLE);
    uint64_t block_size = (uint64_t)bx * by * bz, blocks = (uint64_t)gx * gy * gz;
    if (!block_size || block_size > 1024 || bz > 64 || !blocks || gx > 0x7fffffff || gy > 65535 || gz > 65535)
        return leave(INVALID_VALUE);
    struct launch l = {.state = state, .stream = stream, .threads = block_size * blocks, .device = stream->context->device};
    if (!function->kernel || function->arguments != function->kernel->arguments) {
        fprintf(stderr, "rackwell lab: kernel %s(%d parameters) is none that the laboratory knows\n", function->name, function->arguments);
        return leave(NOT_SUPPORTED);
    }
    if (!read_arguments(l.argument, function->arguments, parameters, extra))
        return leave(INVALID_VALUE);
    int gpu = physical[l.device], far = far_device(function->kernel, l.argument, l.device);
    lab_hang(state, function->name, gpu, far >= 0 ? physical[far] : -1);
    CUresult error = lab_error(state, function->name, gpu);
    if (error)
        return leave(error);
    if (function->kernel->run != spin)
        settle();
    /* what a kernel does wrong is told by the next call that waits or starts something */
    error = function->kernel->run(&l);
    if (error)
        stream->context->broken = error;
    return leave(OK);
}

struct launch_config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
};

API CUresult cuLaunchKernelEx(const struct launch_config *c, CUfunction function, void **parameters, void **extra)
{
    return c ? cuLaunchKernel(function, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->shared, c->stream, parameters, extra) : INVALID_VALUE;
}
