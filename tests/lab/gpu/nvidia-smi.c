/* SPDX-License-Identifier: Apache-2.0
 *
 * STAND-IN for NVIDIA's nvidia-smi, laboratory only. It reads libnvidia-ml.so.1 as the real one does and knows:
 *   nvidia-smi   -L   -q   --query-gpu=FIELDS --format=csv[,noheader][,nounits]   topo -m   topo -p2p r|w|n|a|p
 *   --version   -h   and -i ID (index, UUID or PCI bus id) with -q, -L and --query-gpu
 */
#define _DEFAULT_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 64

typedef struct device *nvmlDevice_t;
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
struct memory_v1 { unsigned long long total, free, used; };

static void *nvml;

/* one NVML function by name, called with pointers and numbers only */
static int call(const char *name, void *a, void *b, void *c, void *d)
{
    void *symbol = dlsym(nvml, name);
    int (*function)(void *, void *, void *, void *);
    if (!symbol)
        return 13;
    memcpy(&function, &symbol, sizeof function);
    return function(a, b, c, d);
}

#define N(number) ((void *)(size_t)(number))

static const char *error_text(int code)
{
    void *symbol = dlsym(nvml, "nvmlErrorString");
    const char *(*function)(int);
    if (!symbol)
        return "Unknown Error";
    memcpy(&function, &symbol, sizeof function);
    return function(code);
}

static nvmlDevice_t gpus[MOST];
static unsigned gpu_count;
static bool wanted[MOST];

static unsigned number(const char *name, nvmlDevice_t gpu)
{
    unsigned value = 0;
    call(name, gpu, &value, NULL, NULL);
    return value;
}

static void text(const char *name, nvmlDevice_t gpu, char *out, size_t size)
{
    if (call(name, gpu, out, N(size), NULL))
        snprintf(out, size, "[N/A]");
}

static unsigned long long ecc(nvmlDevice_t gpu, int uncorrected, int aggregate)
{
    unsigned long long count = 0;
    call("nvmlDeviceGetTotalEccErrors", gpu, N(uncorrected), N(aggregate), &count);
    return count;
}

static unsigned long long event_reasons(nvmlDevice_t gpu)
{
    unsigned long long mask = 0;
    call("nvmlDeviceGetCurrentClocksEventReasons", gpu, &mask, NULL, NULL);
    return mask;
}

static unsigned clock_mhz(const char *name, nvmlDevice_t gpu, unsigned type)
{
    unsigned mhz = 0;
    call(name, gpu, N(type), &mhz, NULL);
    return mhz;
}

static unsigned temperature(nvmlDevice_t gpu)
{
    unsigned celsius = 0;
    call("nvmlDeviceGetTemperature", gpu, N(0), &celsius, NULL);
    return celsius;
}

static struct memory memory_of(nvmlDevice_t gpu)
{
    struct memory memory = {.version = sizeof memory | 2u << 24};
    call("nvmlDeviceGetMemoryInfo_v2", gpu, &memory, NULL, NULL);
    return memory;
}

static struct pci pci_of(nvmlDevice_t gpu)
{
    struct pci pci = {.domain = 0};
    call("nvmlDeviceGetPciInfo_v3", gpu, &pci, NULL, NULL);
    return pci;
}

static void utilisation_of(nvmlDevice_t gpu, unsigned out[2])
{
    out[0] = out[1] = 0;
    call("nvmlDeviceGetUtilizationRates", gpu, out, NULL, NULL);
}

static unsigned constraint(nvmlDevice_t gpu, bool most)
{
    unsigned low = 0, high = 0;
    call("nvmlDeviceGetPowerManagementLimitConstraints", gpu, &low, &high, NULL);
    return most ? high : low;
}

static const char *recovery_action(nvmlDevice_t gpu)
{
    static const char *const names[] = {"None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset", "GPU Reset Bus Required"};
    struct { unsigned id, scope; long long at, latency; unsigned type; int result; unsigned long long value; } field = {.id = 230};
    call("nvmlDeviceGetFieldValues", gpu, N(1), &field, NULL);
    return (unsigned)field.value < 6 ? names[(unsigned)field.value] : "Unknown";
}

/* rows of memory that were replaced: correctable, uncorrectable; is a replacement waiting for a reset, did one fail? */
static void remapped_rows(nvmlDevice_t gpu, unsigned rows[4])
{
    void *symbol = dlsym(nvml, "nvmlDeviceGetRemappedRows");
    int (*function)(nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *);
    memset(rows, 0, 4 * sizeof *rows);
    if (!symbol)
        return;
    memcpy(&function, &symbol, sizeof function);
    function(gpu, &rows[0], &rows[1], &rows[2], &rows[3]);
}

struct process { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; };

static unsigned processes_of(nvmlDevice_t gpu, struct process *out, unsigned most)
{
    unsigned count = most;
    return call("nvmlDeviceGetComputeRunningProcesses_v3", gpu, &count, out, NULL) ? 0 : count;
}

/* ---- --query-gpu ------------------------------------------------------------------------------ */

/* Writes the value; returns its unit, "" for none, or NULL when there is no such field. */
static const char *field_value(nvmlDevice_t gpu, const char *field, char *out, size_t size)
{
#define IS(name) (!strcmp(field, name))
#define PUT(unit, ...) (snprintf(out, size, __VA_ARGS__), unit)
    unsigned rates[2], pair[2] = {0, 0};
    int capability[2] = {0, 0};
    char version[80] = "";
    if (IS("index")) return PUT("", "%u", number("nvmlDeviceGetIndex", gpu));
    if (IS("count")) return PUT("", "%u", gpu_count);
    if (IS("name") || IS("gpu_name")) return text("nvmlDeviceGetName", gpu, out, size), "";
    if (IS("uuid") || IS("gpu_uuid")) return text("nvmlDeviceGetUUID", gpu, out, size), "";
    if (IS("serial") || IS("gpu_serial")) return text("nvmlDeviceGetSerial", gpu, out, size), "";
    if (IS("vbios_version")) return text("nvmlDeviceGetVbiosVersion", gpu, out, size), "";
    if (IS("driver_version")) {
        call("nvmlSystemGetDriverVersion", version, N(sizeof version), NULL, NULL);
        return PUT("", "%s", version);
    }
    if (IS("pci.bus_id") || IS("gpu_bus_id")) return PUT("", "%s", pci_of(gpu).bus_id);
    if (IS("pci.domain")) return PUT("", "0x%04X", pci_of(gpu).domain);
    if (IS("pci.bus")) return PUT("", "0x%02X", pci_of(gpu).bus);
    if (IS("pci.device")) return PUT("", "0x%02X", pci_of(gpu).device);
    if (IS("pci.device_id")) return PUT("", "0x%08X", pci_of(gpu).id);
    if (IS("pci.sub_device_id")) return PUT("", "0x%08X", pci_of(gpu).subsystem);
    if (IS("pcie.link.gen.current") || IS("pcie.link.gen.gpucurrent")) return PUT("", "%u", number("nvmlDeviceGetCurrPcieLinkGeneration", gpu));
    if (IS("pcie.link.gen.max") || IS("pcie.link.gen.hostmax")) return PUT("", "%u", number("nvmlDeviceGetMaxPcieLinkGeneration", gpu));
    if (IS("pcie.link.gen.gpumax")) return PUT("", "%u", number("nvmlDeviceGetGpuMaxPcieLinkGeneration", gpu));
    if (IS("pcie.link.width.current")) return PUT("", "%u", number("nvmlDeviceGetCurrPcieLinkWidth", gpu));
    if (IS("pcie.link.width.max")) return PUT("", "%u", number("nvmlDeviceGetMaxPcieLinkWidth", gpu));
    if (IS("compute_cap")) {
        call("nvmlDeviceGetCudaComputeCapability", gpu, &capability[0], &capability[1], NULL);
        return PUT("", "%d.%d", capability[0], capability[1]);
    }
    if (IS("persistence_mode")) return PUT("", "%s", number("nvmlDeviceGetPersistenceMode", gpu) ? "Enabled" : "Disabled");
    if (IS("display_mode") || IS("display_active")) return PUT("", "Disabled");
    if (IS("addressing_mode")) return PUT("", "None");
    if (IS("compute_mode")) return PUT("", "Default");
    if (IS("mig.mode.current") || IS("mig.mode.pending")) return PUT("", "Disabled");
    if (IS("gsp.mode.current")) return PUT("", "Enabled");
    if (IS("pstate")) return PUT("", "P%u", number("nvmlDeviceGetPerformanceState", gpu));
    if (IS("fan.speed") || IS("temperature.memory")) return PUT("", "[N/A]");
    if (IS("temperature.gpu")) return PUT("", "%u", temperature(gpu));
    if (IS("temperature.gpu.tlimit")) return PUT("", "%d", 85 - (int)temperature(gpu));
    if (IS("power.management")) return PUT("", "Enabled");
    if (IS("power.draw") || IS("power.draw.average") || IS("power.draw.instant")) return PUT("W", "%.2f", number("nvmlDeviceGetPowerUsage", gpu) / 1e3);
    if (IS("power.limit")) return PUT("W", "%.2f", number("nvmlDeviceGetPowerManagementLimit", gpu) / 1e3);
    if (IS("enforced.power.limit")) return PUT("W", "%.2f", number("nvmlDeviceGetEnforcedPowerLimit", gpu) / 1e3);
    if (IS("power.default_limit")) return PUT("W", "%.2f", number("nvmlDeviceGetPowerManagementDefaultLimit", gpu) / 1e3);
    if (IS("power.min_limit")) return PUT("W", "%.2f", constraint(gpu, false) / 1e3);
    if (IS("power.max_limit")) return PUT("W", "%.2f", constraint(gpu, true) / 1e3);
    if (IS("utilization.gpu") || IS("utilization.memory")) {
        utilisation_of(gpu, rates);
        return PUT("%", "%u", rates[strcmp(field, "utilization.gpu") != 0]);
    }
    if (IS("memory.total")) return PUT("MiB", "%llu", memory_of(gpu).total >> 20);
    if (IS("memory.reserved")) return PUT("MiB", "%llu", memory_of(gpu).reserved >> 20);
    if (IS("memory.used")) return PUT("MiB", "%llu", memory_of(gpu).used >> 20);
    if (IS("memory.free")) return PUT("MiB", "%llu", memory_of(gpu).free >> 20);
    if (IS("clocks.gr") || IS("clocks.current.graphics")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetClockInfo", gpu, 0));
    if (IS("clocks.sm") || IS("clocks.current.sm")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetClockInfo", gpu, 1));
    if (IS("clocks.mem") || IS("clocks.current.memory")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetClockInfo", gpu, 2));
    if (IS("clocks.video") || IS("clocks.current.video")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetClockInfo", gpu, 3));
    if (IS("clocks.max.gr") || IS("clocks.max.graphics")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetMaxClockInfo", gpu, 0));
    if (IS("clocks.max.sm")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetMaxClockInfo", gpu, 1));
    if (IS("clocks.max.mem") || IS("clocks.max.memory")) return PUT("MHz", "%u", clock_mhz("nvmlDeviceGetMaxClockInfo", gpu, 2));
    if (IS("ecc.mode.current") || IS("ecc.mode.pending")) {
        call("nvmlDeviceGetEccMode", gpu, &pair[0], &pair[1], NULL);
        return PUT("", "%s", pair[0] ? "Enabled" : "Disabled");
    }
    if (IS("ecc.errors.corrected.volatile.total")) return PUT("", "%llu", ecc(gpu, 0, 0));
    if (IS("ecc.errors.uncorrected.volatile.total")) return PUT("", "%llu", ecc(gpu, 1, 0));
    if (IS("ecc.errors.corrected.aggregate.total")) return PUT("", "%llu", ecc(gpu, 0, 1));
    if (IS("ecc.errors.uncorrected.aggregate.total")) return PUT("", "%llu", ecc(gpu, 1, 1));
    if (IS("gpu_recovery_action")) return PUT("", "%s", recovery_action(gpu));
    if (!strncmp(field, "remapped_rows.", 14)) {
        unsigned rows[4];
        remapped_rows(gpu, rows);
        if (!strcmp(field + 14, "correctable")) return PUT("", "%u", rows[0]);
        if (!strcmp(field + 14, "uncorrectable")) return PUT("", "%u", rows[1]);
        if (!strcmp(field + 14, "pending")) return PUT("", "%s", rows[2] ? "Yes" : "No");
        if (!strcmp(field + 14, "failure")) return PUT("", "%s", rows[3] ? "Yes" : "No");
    }
    if (IS("timestamp")) {
        time_t now = time(NULL);
        strftime(version, sizeof version, "%Y/%m/%d %H:%M:%S.000", localtime(&now));
        return PUT("", "%s", version);
    }
    for (int old = 0; old < 2; old++) {
        const char *prefix = old ? "clocks_throttle_reasons." : "clocks_event_reasons.";
        if (strncmp(field, prefix, strlen(prefix)))
            continue;
        static const struct { const char *name; int bit; } bits[] = {
            {"gpu_idle", 0}, {"applications_clocks_setting", 1}, {"sw_power_cap", 2}, {"hw_slowdown", 3}, {"sync_boost", 4},
            {"sw_thermal_slowdown", 5}, {"hw_thermal_slowdown", 6}, {"hw_power_brake_slowdown", 7}};
        const char *rest = field + strlen(prefix);
        if (!strcmp(rest, "active")) return PUT("", "0x%016llX", event_reasons(gpu));
        if (!strcmp(rest, "supported")) return PUT("", "0x%016llX", 0x1ffull);
        for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
            if (!strcmp(rest, bits[i].name))
                return PUT("", "%s", event_reasons(gpu) >> bits[i].bit & 1 ? "Active" : "Not Active");
    }
    return NULL;
}

/* the heading has the long name of a field that has a short one */
static const char *heading(const char *field)
{
    static const char *const names[][2] = {
        {"clocks.gr", "clocks.current.graphics"}, {"clocks.sm", "clocks.current.sm"}, {"clocks.mem", "clocks.current.memory"},
        {"clocks.video", "clocks.current.video"}, {"clocks.max.gr", "clocks.max.graphics"}, {"clocks.max.mem", "clocks.max.memory"},
        {"gpu_name", "name"}, {"gpu_uuid", "uuid"}, {"gpu_serial", "serial"}, {"gpu_bus_id", "pci.bus_id"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(field, names[i][0]))
            return names[i][1];
    return field;
}

static int query(const char *list, const char *format)
{
    char fields[4096], *field[128];
    int count = 0;
    if (!format || strncmp(format, "csv", 3)) {
        printf("\"--format=\" switch is missing. Valid format is \"--format=csv[,noheader][,nounits]\"\n");
        return 2;
    }
    bool header = !strstr(format, "noheader"), units = !strstr(format, "nounits");
    snprintf(fields, sizeof fields, "%s", list);
    for (char *part = strtok(fields, ","); part && count < 128; part = strtok(NULL, ",")) {
        char value[256];
        while (*part == ' ')
            part++;
        part[strcspn(part, " ")] = 0;
        if (gpu_count && !field_value(gpus[0], part, value, sizeof value)) {
            printf("Field \"%s\" is not a valid field to query.\n\n", part);
            return 2;
        }
        field[count++] = part;
    }
    for (int i = 0; header && i < count; i++) {
        char value[256];
        const char *unit = field_value(gpus[0], field[i], value, sizeof value);
        printf("%s%s", i ? ", " : "", heading(field[i]));
        if (units && unit && *unit)
            printf(" [%s]", unit);
    }
    if (header)
        printf("\n");
    for (unsigned g = 0; g < gpu_count; g++) {
        if (!wanted[g])
            continue;
        for (int i = 0; i < count; i++) {
            char value[256];
            const char *unit = field_value(gpus[g], field[i], value, sizeof value);
            printf("%s%s", i ? ", " : "", value);
            if (units && unit && *unit)
                printf(" %s", unit);
        }
        printf("\n");
    }
    return 0;
}

/* ---- topo ------------------------------------------------------------------------------------ */

static void ranges(const unsigned long *mask, unsigned words, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (unsigned cpu = 0; cpu < words * 64; cpu++) {
        unsigned last = cpu;
        if (!(mask[cpu / 64] >> (cpu % 64) & 1))
            continue;
        while (last + 1 < words * 64 && (mask[(last + 1) / 64] >> ((last + 1) % 64) & 1))
            last++;
        used += (size_t)snprintf(out + used, size - used, last > cpu ? "%s%u-%u" : "%s%u", used ? "," : "", cpu, last);
        if (used >= size)
            return;
        cpu = last;
    }
}

static const char *const link_legend =
    "\nLegend:\n\n"
    "  X    = Self\n"
    "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n"
    "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node\n"
    "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)\n"
    "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)\n"
    "  PIX  = Connection traversing at most a single PCIe bridge\n"
    "  NV#  = Connection traversing a bonded set of # NVLinks\n";

static int topo_matrix(void)
{
    printf("\t\x1b[4m");
    for (unsigned i = 0; i < gpu_count; i++)
        printf("GPU%u\t", i);
    printf("CPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n");
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned long cpus[32], nodes[1];
        char cpu_list[512], node_list[64];
        printf("GPU%u\t", i);
        for (unsigned j = 0; j < gpu_count; j++) {
            unsigned level = 0;
            call("nvmlDeviceGetTopologyCommonAncestor", gpus[i], gpus[j], &level, NULL);
            printf("%s\t", i == j ? " X " : level == 10 ? "PIX" : level == 20 ? "PXB" : level == 30 ? "PHB" : level == 40 ? "NODE" : "SYS");
        }
        memset(cpus, 0, sizeof cpus);
        memset(nodes, 0, sizeof nodes);
        call("nvmlDeviceGetCpuAffinity", gpus[i], N(32), cpus, NULL);
        call("nvmlDeviceGetMemoryAffinity", gpus[i], N(1), nodes, N(0));
        ranges(cpus, 32, cpu_list, sizeof cpu_list);
        ranges(nodes, 1, node_list, sizeof node_list);
        printf("%s\t%s\t\tN/A\n", cpu_list, node_list);
    }
    fputs(link_legend, stdout);
    return 0;
}

static int topo_p2p(const char *kind)
{
    static const char kinds[] = "rwnap";
    static const char *const names[] = {"OK", "CNS", "GNS", "TNS", "DR", "NS", "U"};
    const char *at = kind && strlen(kind) == 1 ? strchr(kinds, *kind) : NULL;
    if (!at) {
        printf("Option \"-p2p\" is missing its value.\n");
        return 2;
    }
    printf(" \t\x1b[4m");
    for (unsigned i = 0; i < gpu_count; i++)
        printf("GPU%u\t", i);
    printf("\x1b[0m\n");
    for (unsigned i = 0; i < gpu_count; i++) {
        printf(" GPU%u\t", i);
        for (unsigned j = 0; j < gpu_count; j++) {
            unsigned status = 6;
            if (i != j)
                call("nvmlDeviceGetP2PStatus", gpus[i], gpus[j], N(at - kinds), &status);
            printf("%s\t", i == j ? "X" : names[status < 7 ? status : 6]);
        }
        printf("\n");
    }
    printf("\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n  GNS  = GPU not supported\n"
           "  TNS  = Topology not supported\n  NS   = Not supported\n  DR   = Disabled by regkey\n  U    = Unknown\n");
    return 0;
}

/* ---- -q and the table -------------------------------------------------------------------------- */

static void line(int indent, const char *key, const char *format, const char *value)
{
    printf("%*s%-*s : ", indent, "", 54 - indent, key);
    printf(format, value);
    printf("\n");
}

static void item(nvmlDevice_t gpu, int indent, const char *key, const char *field, const char *suffix)
{
    char value[256];
    const char *unit = field_value(gpu, field, value, sizeof value);
    printf("%*s%-*s : %s%s%s%s\n", indent, "", 54 - indent, key, value, unit && *unit ? " " : "", unit ? unit : "", suffix);
}

static void section(int indent, const char *name)
{
    printf("%*s%s\n", indent, "", name);
}

static void details(nvmlDevice_t gpu, const char *driver)
{
    struct pci pci = pci_of(gpu);
    struct memory_v1 bar1 = {0, 0, 0};
    char value[96];
    printf("GPU %s\n", pci.bus_id);
    item(gpu, 4, "Product Name", "name", "");
    line(4, "Product Brand", "%s", "NVIDIA");
    line(4, "Product Architecture", "%s", "Blackwell");
    item(gpu, 4, "Persistence Mode", "persistence_mode", "");
    line(4, "Addressing Mode", "%s", "None");
    section(4, "MIG Mode");
    line(8, "Current", "%s", "Disabled");
    line(8, "Pending", "%s", "Disabled");
    item(gpu, 4, "Serial Number", "serial", "");
    item(gpu, 4, "GPU UUID", "uuid", "");
    snprintf(value, sizeof value, "%u", number("nvmlDeviceGetMinorNumber", gpu));
    line(4, "Minor Number", "%s", value);
    item(gpu, 4, "VBIOS Version", "vbios_version", "");
    line(4, "GPU Recovery Action", "%s", recovery_action(gpu));
    line(4, "GSP Firmware Version", "%s", driver);
    section(4, "PCI");
    snprintf(value, sizeof value, "0x%02X", pci.bus);
    line(8, "Bus", "%s", value);
    snprintf(value, sizeof value, "0x%02X", pci.device);
    line(8, "Device", "%s", value);
    snprintf(value, sizeof value, "0x%04X", pci.domain);
    line(8, "Domain", "%s", value);
    item(gpu, 8, "Device Id", "pci.device_id", "");
    line(8, "Bus Id", "%s", pci.bus_id);
    item(gpu, 8, "Sub System Id", "pci.sub_device_id", "");
    section(8, "GPU Link Info");
    section(12, "PCIe Generation");
    item(gpu, 16, "Max", "pcie.link.gen.max", "");
    item(gpu, 16, "Current", "pcie.link.gen.current", "");
    item(gpu, 16, "Device Current", "pcie.link.gen.gpucurrent", "");
    item(gpu, 16, "Device Max", "pcie.link.gen.gpumax", "");
    item(gpu, 16, "Host Max", "pcie.link.gen.hostmax", "");
    section(12, "Link Width");
    item(gpu, 16, "Max", "pcie.link.width.max", "x");
    item(gpu, 16, "Current", "pcie.link.width.current", "x");
    snprintf(value, sizeof value, "%u", number("nvmlDeviceGetPcieReplayCounter", gpu));
    line(8, "Replays Since Reset", "%s", value);
    line(4, "Fan Speed", "%s", "N/A");
    item(gpu, 4, "Performance State", "pstate", "");
    section(4, "Clocks Event Reasons");
    item(gpu, 8, "Idle", "clocks_event_reasons.gpu_idle", "");
    item(gpu, 8, "Applications Clocks Setting", "clocks_event_reasons.applications_clocks_setting", "");
    item(gpu, 8, "SW Power Cap", "clocks_event_reasons.sw_power_cap", "");
    item(gpu, 8, "HW Slowdown", "clocks_event_reasons.hw_slowdown", "");
    item(gpu, 12, "HW Thermal Slowdown", "clocks_event_reasons.hw_thermal_slowdown", "");
    item(gpu, 12, "HW Power Brake Slowdown", "clocks_event_reasons.hw_power_brake_slowdown", "");
    item(gpu, 8, "Sync Boost", "clocks_event_reasons.sync_boost", "");
    item(gpu, 8, "SW Thermal Slowdown", "clocks_event_reasons.sw_thermal_slowdown", "");
    section(4, "FB Memory Usage");
    item(gpu, 8, "Total", "memory.total", "");
    item(gpu, 8, "Reserved", "memory.reserved", "");
    item(gpu, 8, "Used", "memory.used", "");
    item(gpu, 8, "Free", "memory.free", "");
    section(4, "BAR1 Memory Usage");
    call("nvmlDeviceGetBAR1MemoryInfo", gpu, &bar1, NULL, NULL);
    snprintf(value, sizeof value, "%llu MiB", bar1.total >> 20);
    line(8, "Total", "%s", value);
    snprintf(value, sizeof value, "%llu MiB", bar1.used >> 20);
    line(8, "Used", "%s", value);
    snprintf(value, sizeof value, "%llu MiB", bar1.free >> 20);
    line(8, "Free", "%s", value);
    line(4, "Compute Mode", "%s", "Default");
    section(4, "Utilization");
    item(gpu, 8, "GPU", "utilization.gpu", "");
    item(gpu, 8, "Memory", "utilization.memory", "");
    section(4, "ECC Mode");
    item(gpu, 8, "Current", "ecc.mode.current", "");
    item(gpu, 8, "Pending", "ecc.mode.pending", "");
    section(4, "ECC Errors");
    section(8, "Volatile");
    item(gpu, 12, "DRAM Correctable", "ecc.errors.corrected.volatile.total", "");
    item(gpu, 12, "DRAM Uncorrectable", "ecc.errors.uncorrected.volatile.total", "");
    section(8, "Aggregate");
    item(gpu, 12, "DRAM Correctable", "ecc.errors.corrected.aggregate.total", "");
    item(gpu, 12, "DRAM Uncorrectable", "ecc.errors.uncorrected.aggregate.total", "");
    section(4, "Remapped Rows");
    item(gpu, 8, "Correctable Error", "remapped_rows.correctable", "");
    item(gpu, 8, "Uncorrectable Error", "remapped_rows.uncorrectable", "");
    item(gpu, 8, "Pending", "remapped_rows.pending", "");
    item(gpu, 8, "Remapping Failure Occurred", "remapped_rows.failure", "");
    section(4, "Temperature");
    item(gpu, 8, "GPU Current Temp", "temperature.gpu", " C");
    item(gpu, 8, "GPU T.Limit Temp", "temperature.gpu.tlimit", " C");
    section(4, "GPU Power Readings");
    item(gpu, 8, "Average Power Draw", "power.draw.average", "");
    item(gpu, 8, "Instantaneous Power Draw", "power.draw.instant", "");
    item(gpu, 8, "Current Power Limit", "enforced.power.limit", "");
    item(gpu, 8, "Requested Power Limit", "power.limit", "");
    item(gpu, 8, "Default Power Limit", "power.default_limit", "");
    item(gpu, 8, "Min Power Limit", "power.min_limit", "");
    item(gpu, 8, "Max Power Limit", "power.max_limit", "");
    section(4, "Clocks");
    item(gpu, 8, "Graphics", "clocks.current.graphics", "");
    item(gpu, 8, "SM", "clocks.current.sm", "");
    item(gpu, 8, "Memory", "clocks.current.memory", "");
    item(gpu, 8, "Video", "clocks.current.video", "");
    section(4, "Max Clocks");
    item(gpu, 8, "Graphics", "clocks.max.graphics", "");
    item(gpu, 8, "SM", "clocks.max.sm", "");
    item(gpu, 8, "Memory", "clocks.max.memory", "");
    struct process running[MOST];
    unsigned count = processes_of(gpu, running, MOST);
    if (!count)
        line(4, "Processes", "%s", "None");
    else
        section(4, "Processes");
    for (unsigned i = 0; i < count; i++) {
        snprintf(value, sizeof value, "%u", running[i].pid);
        line(8, "Process ID", "%s", value);
        line(12, "Type", "%s", "C");
        snprintf(value, sizeof value, "%llu MiB", running[i].memory >> 20);
        line(12, "Used GPU Memory", "%s", value);
    }
    printf("\n");
}

static int query_all(const char *driver, int cuda)
{
    char value[64], now[64];
    time_t at = time(NULL);
    printf("\n==============NVSMI LOG==============\n\n");
    strftime(now, sizeof now, "%a %b %e %H:%M:%S %Y", localtime(&at));
    line(0, "Timestamp", "%s", now);
    line(0, "Driver Version", "%s", driver);
    snprintf(value, sizeof value, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    line(0, "CUDA Version", "%s", value);
    snprintf(value, sizeof value, "%u", gpu_count);
    printf("\n");
    line(0, "Attached GPUs", "%s", value);
    for (unsigned i = 0; i < gpu_count; i++)
        if (wanted[i])
            details(gpus[i], driver);
    return 0;
}

static int table(const char *driver, int cuda)
{
    printf("STAND-IN of the rackwell laboratory, not NVIDIA's nvidia-smi\n");
    printf("Driver Version: %s   CUDA Version: %d.%d\n", driver, cuda / 1000, cuda % 1000 / 10);
    for (unsigned i = 0; i < gpu_count; i++) {
        char name[96];
        unsigned rates[2];
        struct memory memory = memory_of(gpus[i]);
        text("nvmlDeviceGetName", gpus[i], name, sizeof name);
        utilisation_of(gpus[i], rates);
        printf("%3u  %-48s %s  %3uC  %3.0fW / %3.0fW  %6lluMiB / %lluMiB  %3u%%\n", i, name, pci_of(gpus[i]).bus_id, temperature(gpus[i]),
               number("nvmlDeviceGetPowerUsage", gpus[i]) / 1e3, number("nvmlDeviceGetEnforcedPowerLimit", gpus[i]) / 1e3,
               memory.used >> 20, memory.total >> 20, rates[0]);
    }
    return 0;
}

/* ---- start ------------------------------------------------------------------------------------ */

static int begin(void)
{
    char version[80] = "";
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!nvml) {
        printf("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver is "
               "properly installed and present in your system.\nPlease also try adding directory that contains libnvidia-ml.so to your system PATH.\n");
        return 12;
    }
    int error = call("nvmlInit_v2", NULL, NULL, NULL, NULL);
    if (error == 9)
        printf("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is "
               "installed and running.\n\n");
    else if (error)
        printf("Failed to initialize NVML: %s\n", error_text(error));
    if (error == 18) {
        call("nvmlSystemGetNVMLVersion", version, N(sizeof version), NULL, NULL);
        const char *library = strchr(version, '.') ? strchr(version, '.') + 1 : version;
        const char *dot = strchr(library, '.');
        const char *second = dot ? strchr(dot + 1, '.') : NULL;
        printf("NVML library version: %.*s\n", second ? (int)(second - library) : (int)strlen(library), library);
    }
    if (error)
        return error;
    call("nvmlDeviceGetCount_v2", &gpu_count, NULL, NULL, NULL);
    if (!gpu_count) {
        printf("No devices were found\n");
        return 6;
    }
    if (gpu_count > MOST)
        gpu_count = MOST;
    for (unsigned i = 0; i < gpu_count; i++) {
        error = call("nvmlDeviceGetHandleByIndex_v2", N(i), &gpus[i], NULL, NULL);
        if (error) {
            printf("Unable to determine the device handle for GPU%u: %s%s\n", i, error_text(error),
                   error == 15 ? ".  Reboot the system to recover this GPU" : "");
            return error;
        }
    }
    return 0;
}

static bool choose(const char *id)
{
    char value[96];
    for (unsigned i = 0; id && i < gpu_count; i++) {
        snprintf(value, sizeof value, "%u", i);
        bool is = !strcmp(value, id);
        text("nvmlDeviceGetUUID", gpus[i], value, sizeof value);
        struct pci pci = pci_of(gpus[i]);
        wanted[i] = is || !strcmp(value, id) || !strcasecmp(pci.bus_id, id) || !strcasecmp(pci.legacy, id);
        if (wanted[i])
            return true;
    }
    if (id) {
        printf("No devices were found\n");
        return false;
    }
    for (unsigned i = 0; i < gpu_count; i++)
        wanted[i] = true;
    return true;
}

int main(int argc, char **argv)
{
    const char *fields = NULL, *format = NULL, *id = NULL, *p2p = NULL;
    enum { TABLE, LIST, ALL, QUERY, MATRIX, P2P, VERSION } what = TABLE;
    char driver[80] = "";
    int cuda = 0;
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (!strcmp(arg, "-L") || !strcmp(arg, "--list-gpus")) what = LIST;
        else if (!strcmp(arg, "-q") || !strcmp(arg, "--query")) what = ALL;
        else if (!strncmp(arg, "--query-gpu=", 12)) what = QUERY, fields = arg + 12;
        else if (!strncmp(arg, "--format=", 9)) format = arg + 9;
        else if (!strncmp(arg, "--id=", 5)) id = arg + 5;
        else if (!strcmp(arg, "-i") && next) id = next, i++;
        else if (!strcmp(arg, "topo") && next && (!strcmp(next, "-m") || !strcmp(next, "--matrix"))) what = MATRIX, i++;
        else if (!strcmp(arg, "topo") && next && (!strcmp(next, "-p2p") || !strcmp(next, "--p2pstatus"))) what = P2P, p2p = i + 2 < argc ? argv[i + 2] : NULL, i += 2;
        else if (!strcmp(arg, "--version")) what = VERSION;
        else if (!strcmp(arg, "-h") || !strcmp(arg, "--help")) {
            printf("STAND-IN of the rackwell laboratory for nvidia-smi\n\n"
                   "nvidia-smi [-L | -q | --query-gpu=FIELDS --format=csv[,noheader][,nounits]] [-i ID]\nnvidia-smi topo -m | topo -p2p r|w|n|a|p\n");
            return 0;
        } else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
            return 2;
        }
    }
    int error = begin();
    if (error)
        return error;
    if (!choose(id))
        return 6;
    call("nvmlSystemGetDriverVersion", driver, N(sizeof driver), NULL, NULL);
    call("nvmlSystemGetCudaDriverVersion_v2", &cuda, NULL, NULL, NULL);
    switch (what) {
    case LIST:
        for (unsigned i = 0; i < gpu_count; i++) {
            char name[96], uuid[96];
            if (!wanted[i])
                continue;
            text("nvmlDeviceGetName", gpus[i], name, sizeof name);
            text("nvmlDeviceGetUUID", gpus[i], uuid, sizeof uuid);
            printf("GPU %u: %s (UUID: %s)\n", i, name, uuid);
        }
        return 0;
    case ALL: return query_all(driver, cuda);
    case QUERY: return query(fields, format);
    case MATRIX: return topo_matrix();
    case P2P: return topo_p2p(p2p);
    case VERSION: {
        char library[80] = "";
        call("nvmlSystemGetNVMLVersion", library, N(sizeof library), NULL, NULL);
        const char *short_version = strchr(library, '.') ? strchr(library, '.') + 1 : library;
        printf("NVIDIA-SMI version  : %s\nNVML version        : %s\nDRIVER version      : %s\nCUDA Version        : %d.%d\n", driver, short_version, driver,
               cuda / 1000, cuda % 1000 / 10);
        return 0;
    }
    default: return table(driver, cuda);
    }
}
