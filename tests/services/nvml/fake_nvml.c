/* A libnvidia-ml.so.1 for tests: a node with eight H100 SXM that answers as a scenario says.
   gcc -shared -fPIC -O1 -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fake_nvml.c   (tests/nvml_fake.py does it)
   LD_LIBRARY_PATH=DIR FAKE_NVML_FILE=FILE python … : set before python starts. Functions not here raise NVMLError_FunctionNotFound.

   A scenario is a text, a line a rule; of two that fit, the later counts:

       WHO CALL[:ARGUMENT…] ANSWER [; ANSWER …]

   WHO     node, 3, 2-5 or * (every GPU)
   CALL    the function's name with its _v2; * is every one. Beside them: links, mig-instances, mig-name:INSTANCE, fabric, fabric-version, field:ID:SCOPE
   ANSWER  = VALUE …   it succeeds with these (numbers; {i} is the GPU, 33+{i} a sum; a string is the rest of the line, \xff a byte)
           code N      it fails with NVML's return value N
           hang        it never returns, and SIGTERM does not end the process: as in state D
           crash       SIGSEGV
           wait S      it takes S seconds, then answers as the earlier rules say
           print N     it prints N MiB to standard output, then as the earlier rules say
           quit        the process ends with 0
           pass [N]    as the earlier rules say, N times
           healthy     as the built-in rules say
   With several answers each call gets the next, and the last one stays: values that change while they are read, a GPU that falls off
   in the middle (* pass 20 ; code 15).
   include FILE takes the rules of another file beside it; lines of `without SYMBOL`, `bus N`, `expect …` and # are for the tests.

   FAKE_NVML is a list of short plays, e.g. "lost=3,hang=nvmlDeviceGetPowerUsage:5": see PLAYS. */
#include "nvml_min.h"
#include <ctype.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- rules */

static const char BUILT_IN[] =
    "node nvmlInit_v2 = 0\nnode nvmlShutdown = 0\nnode nvmlSystemGetDriverVersion = 570.133.20\n"
    "node nvmlSystemGetNVMLVersion = 12.570.133.20\nnode nvmlSystemGetCudaDriverVersion_v2 = 12080\nnode nvmlDeviceGetCount_v2 = 8\n"
    "* nvmlDeviceGetHandleByIndex_v2 = 0\n* nvmlDeviceGetName = NVIDIA H100 80GB HBM3\n"
    "* nvmlDeviceGetUUID = GPU-00000000-0000-0000-0000-00000000000{i}\n* nvmlDeviceGetSerial = 165000000000{i}\n"
    "* nvmlDeviceGetMinorNumber = {i}\n* nvmlDeviceGetVbiosVersion = 96.00.99.00.01\n* nvmlDeviceGetInforomImageVersion = G520.0200.00.05\n"
    "* nvmlDeviceGetGspFirmwareVersion = 570.133.20\n* nvmlDeviceGetBoardPartNumber = 692-2G520-0200-000\n"
    "0 nvmlDeviceGetPciInfo_v3 = 00000000:19:00.0\n1 nvmlDeviceGetPciInfo_v3 = 00000000:3B:00.0\n"
    "2 nvmlDeviceGetPciInfo_v3 = 00000000:4C:00.0\n3 nvmlDeviceGetPciInfo_v3 = 00000000:5D:00.0\n"
    "4 nvmlDeviceGetPciInfo_v3 = 00000000:9B:00.0\n5 nvmlDeviceGetPciInfo_v3 = 00000000:BB:00.0\n"
    "6 nvmlDeviceGetPciInfo_v3 = 00000000:CB:00.0\n7 nvmlDeviceGetPciInfo_v3 = 00000000:DB:00.0\n"
    "* nvmlDeviceGetMemoryInfo = 85520809984 1073741824\n* nvmlDeviceGetEccMode = 1 1\n* nvmlDeviceGetTotalEccErrors = 0\n"
    "* nvmlDeviceGetMemoryErrorCounter:*:*:2 = 0\n* nvmlDeviceGetMemoryErrorCounter:*:*:7 = 0\n* nvmlDeviceGetSramEccErrorStatus = 0\n"
    "* nvmlDeviceGetRepairStatus = 0 0\n* nvmlDeviceGetRemappedRows = 0 0 0 0\n* nvmlDeviceGetRowRemapperHistogram = 640 0 0 0 0\n"
    "* nvmlDeviceGetTemperature = 33+{i}\n* nvmlDeviceGetTemperatureThreshold:0 = 92\n* nvmlDeviceGetTemperatureThreshold:1 = 89\n"
    "* nvmlDeviceGetTemperatureThreshold:2-3 = 87\n* nvmlDeviceGetMarginTemperature = 54\n* nvmlDeviceGetPowerUsage = 71300\n"
    "* nvmlDeviceGetEnforcedPowerLimit = 700000\n* nvmlDeviceGetPowerManagementLimit = 700000\n"
    "* nvmlDeviceGetPowerManagementDefaultLimit = 700000\n* nvmlDeviceGetTotalEnergyConsumption = 1000000\n"
    "* nvmlDeviceGetClockInfo:0-1 = 1980\n* nvmlDeviceGetClockInfo:2 = 2619\n* nvmlDeviceGetMaxClockInfo:0-1 = 1980\n"
    "* nvmlDeviceGetMaxClockInfo:2 = 2619\n* nvmlDeviceGetPerformanceState = 0\n* nvmlDeviceGetCurrentClocksEventReasons = 1\n"
    "* nvmlDeviceGetCurrentClocksThrottleReasons = 1\n* nvmlDeviceGetSupportedClocksEventReasons = 0x1ff\n"
    "* nvmlDeviceGetViolationStatus = 1000000 0\n* nvmlDeviceGetUtilizationRates = 0 0\n* nvmlDeviceGetCurrPcieLinkGeneration = 5\n"
    "* nvmlDeviceGetMaxPcieLinkGeneration = 5\n* nvmlDeviceGetGpuMaxPcieLinkGeneration = 5\n* nvmlDeviceGetCurrPcieLinkWidth = 16\n"
    "* nvmlDeviceGetMaxPcieLinkWidth = 16\n* nvmlDeviceGetPcieReplayCounter = 0\n* nvmlDeviceGetPersistenceMode = 1\n"
    "* nvmlDeviceGetComputeMode = 0\n* nvmlDeviceGetMigMode = 0 0\n* nvmlDeviceGetMaxMigDeviceCount = 7\n* mig-instances = 0\n* mig-name = 1g.10gb\n"
    "* nvmlDeviceGetMigDeviceHandleByIndex = 0\n* nvmlDeviceGetGpuInstanceId = 0\n* nvmlDeviceGetComputeInstanceId = 0\n"
    "* nvmlDeviceGetGpuFabricInfoV = 0\n* nvmlDeviceGetGpuFabricInfo = 0\n* fabric-version = 2\n* fabric = 3 0 0 2\n* nvmlDeviceGetFieldValues = 0\n* field:82 = 41\n* field:230 = 0\n"
    "* links = 18\n* nvmlDeviceGetNvLinkState = 1\n* nvmlDeviceGetNvLinkErrorCounter = 0\n* nvmlDeviceGetNvLinkVersion = 6\n"
    "* nvmlDeviceGetNvLinkRemoteDeviceType = 1\n* nvmlDeviceGetNvLinkRemotePciInfo_v2 = 00000000:07:00.0\n* nvmlDeviceGetP2PStatus = 0\n"
    "* nvmlDeviceGetComputeRunningProcesses_v3 =\n* nvmlDeviceGetGraphicsRunningProcesses_v3 =\n";

/* play → rules; %s is what stands behind its = */
static const struct { const char *play, *rules; } PLAYS[] = {
    {"no-driver", "node nvmlInit_v2 code 9\n"},
    {"init", "node nvmlInit_v2 code %s\n"},
    {"count", "node nvmlDeviceGetCount_v2 = %s\n"},
    {"lost", "%s * code 15\n"}, /* its handle is refused, too */
    {"lost-late", "%s * code 15\n%s nvmlDeviceGetHandleByIndex_v2 healthy\n"},
    {"unknown", "%s * code 999\n%s nvmlDeviceGetHandleByIndex_v2 healthy\n%s nvmlDeviceGetName healthy\n%s nvmlDeviceGetUUID healthy\n"
                "%s nvmlDeviceGetSerial healthy\n%s nvmlDeviceGetMinorNumber healthy\n%s nvmlDeviceGetPciInfo_v3 healthy\n"},
    {"ecc", "%s nvmlDeviceGetTotalEccErrors:0 = 40\n%s nvmlDeviceGetTotalEccErrors:1:0 = 3\n%s nvmlDeviceGetTotalEccErrors:1:1 = 9\n"
            "%s nvmlDeviceGetMemoryErrorCounter:0:*:2 = 20\n%s nvmlDeviceGetMemoryErrorCounter:0:*:7 = 20\n"
            "%s nvmlDeviceGetMemoryErrorCounter:1:*:2 = 2\n%s nvmlDeviceGetMemoryErrorCounter:1:0:7 = 1\n"
            "%s nvmlDeviceGetMemoryErrorCounter:1:1:7 = 7\n%s nvmlDeviceGetSramEccErrorStatus = 1\n"},
    {"remap", "%s nvmlDeviceGetRemappedRows = 0 1 1 0\n%s nvmlDeviceGetMemoryErrorCounter:1:1:2 = 1\n%s field:230 = 4\n"},
    {"remap-failed", "%s nvmlDeviceGetRemappedRows = 0 0 0 1\n%s nvmlDeviceGetRowRemapperHistogram = 639 0 0 0 1\n"},
    {"heat", "%s nvmlDeviceGetTemperature = 91\n%s nvmlDeviceGetClockInfo:0-1 = 810\n%s nvmlDeviceGetCurrentClocksEventReasons = 0x48\n"},
    {"link", "%s nvmlDeviceGetNvLinkState:4-5 = 0\n%s nvmlDeviceGetNvLinkErrorCounter:4:0 = 1200\n"},
    {"new-links", "%s nvmlDeviceGetNvLinkErrorCounter code 3\n%s field:206-215 = 0\n%s field:214:7 = 1\n"}, /* counters of NVLink 5 */
    {"narrow", "%s nvmlDeviceGetCurrPcieLinkWidth = 8\n%s nvmlDeviceGetPcieReplayCounter = 5120\n"},
    {"fabric", "%s fabric = 2 0 0 2\n"},
    {"fabric-slow", "%s fabric = 3 0 0 1\n"},
    {"mig", "%s nvmlDeviceGetMigMode = 1 1\n%s mig-instances = 2\n"},
    {"busy", "%s nvmlDeviceGetComputeRunningProcesses_v3 = 91823 75161927680 91824 0xffffffffffffffff\n"},
    {"garbage", "%s nvmlDeviceGetName = \\xff\\xfe\\x80\n%s nvmlDeviceGetMemoryInfo = 85520809984 0xffffffffffffffff\n"
                "%s nvmlDeviceGetTemperature = 0xffffffff\n%s nvmlDeviceGetPowerUsage = 0xfffffffe\n%s nvmlDeviceGetUtilizationRates = 4000 0\n"},
};

#define ANY (-1000000)
#define GPUS 128
typedef struct { int first, last, built_in, args[4][2], n; char call[64], *answers; unsigned asked[GPUS + 1]; } Rule;
typedef struct { int code, n; char text[256]; unsigned long long v[32]; } Said;
static Rule rules[2048];
static int known = -1;

static void range(const char *text, int *low, int *high) {
  if (*text == '*') { *low = ANY; *high = -ANY; return; }
  char *end; *low = *high = (int)strtol(text, &end, 0);
  if (*end == '-') *high = (int)strtol(end + 1, NULL, 0);
}

static void take(char *text, int built_in, const char *folder);

static void take_file(const char *path) {
  static char text[1 << 18];
  char folder[512], copy[1 << 16];
  FILE *file = fopen(path, "r");
  if (!file) { fprintf(stderr, "no scenario %s\n", path); _exit(70); }
  size_t size = fread(text, 1, sizeof copy - 1, file);
  fclose(file);
  memcpy(copy, text, size); copy[size] = 0;
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash) *slash = 0; else strcpy(folder, ".");
  take(copy, 0, folder);
}

static void take(char *text, int built_in, const char *folder) {
  char *after = NULL;
  for (char *line = strtok_r(text, "\n", &after); line; line = strtok_r(NULL, "\n", &after)) {
    char who[32], call[96], path[1024]; int at = 0;
    if (sscanf(line, "%31s %95s %n", who, call, &at) < 2 || *who == '#' || !strcmp(who, "without") || !strcmp(who, "bus") || !strcmp(who, "expect")) continue;
    if (!strcmp(who, "include")) { snprintf(path, sizeof path, "%s/%s", folder, call); take_file(path); continue; }
    Rule *rule = &rules[known++];
    if (!at || known >= (int)(sizeof rules / sizeof *rules)) { fprintf(stderr, "no rule: %s\n", line); _exit(70); }
    if (!strcmp(who, "node")) rule->first = rule->last = -1;
    else if (*who == '*') { rule->first = 0; rule->last = GPUS; }
    else range(who, &rule->first, &rule->last);
    rule->built_in = built_in;
    rule->answers = strdup(line + at);
    char *more = NULL, *part = strtok_r(call, ":", &more);
    snprintf(rule->call, sizeof rule->call, "%.63s", part);
    while (rule->n < 4 && (part = strtok_r(NULL, ":", &more))) range(part, &rule->args[rule->n][0], &rule->args[rule->n][1]), rule->n++;
  }
}

static void take_plays(const char *all) {
  char copy[4096], *after = NULL;
  snprintf(copy, sizeof copy, "%s", all);
  for (char *play = strtok_r(copy, ",", &after); play; play = strtok_r(NULL, ",", &after)) {
    char text[4096], *value = strchr(play, '='), *to = text;
    if (value) *value++ = 0; else value = "";
    if (!strcmp(play, "hang") || !strcmp(play, "crash")) { /* FUNCTION:GPU, or FUNCTION of the node */
      char *gpu = strchr(value, ':');
      if (gpu) *gpu++ = 0;
      snprintf(text, sizeof text, "%s %s %s\n", gpu ? gpu : "node", value, play);
      take(text, 0, ".");
      continue;
    }
    size_t i = 0, n = sizeof PLAYS / sizeof *PLAYS;
    while (i < n && strcmp(PLAYS[i].play, play)) i++;
    if (i == n) { fprintf(stderr, "no play %s\n", play); _exit(70); }
    for (const char *from = PLAYS[i].rules; *from;) {
      if (from[0] == '%' && from[1] == 's') { to += sprintf(to, "%s", value); from += 2; } else *to++ = *from++;
    }
    *to = 0;
    take(text, 0, ".");
  }
}

static void begin(void) {
  static char built_in[sizeof BUILT_IN];
  if (known >= 0) return;
  known = 0;
  memcpy(built_in, BUILT_IN, sizeof BUILT_IN);
  take(built_in, 1, ".");
  if (getenv("FAKE_NVML_FILE") && *getenv("FAKE_NVML_FILE")) take_file(getenv("FAKE_NVML_FILE"));
  if (getenv("FAKE_NVML")) take_plays(getenv("FAKE_NVML"));
}

static int fits(const Rule *rule, const char *call, int gpu, int n, const int *args) {
  if (gpu < rule->first || gpu > rule->last || rule->n > n) return 0;
  if (strcmp(rule->call, "*") && strcmp(rule->call, call)) return 0;
  for (int i = 0; i < rule->n; i++) if (args[i] < rule->args[i][0] || args[i] > rule->args[i][1]) return 0;
  return 1;
}

/* The answer that is up: number `asked` of those with ; between them, `pass N` counting N times; the last one stays. */
static void pick(const char *answers, unsigned asked, char *one, size_t size) {
  for (const char *from = answers;; ) {
    const char *to = strstr(from, " ; ");
    size_t length = to ? (size_t)(to - from) : strlen(from);
    snprintf(one, size, "%.*s", (int)length, from);
    unsigned times = 1; sscanf(one, "pass %u", &times);
    if (!to || asked < times) return;
    asked -= times; from = to + 3;
  }
}

static void values(Said *said, const char *text, int gpu) {
  char *to = said->text, *end = said->text + sizeof said->text - 8;
  while (isspace((unsigned char)*text)) text++;
  while (*text && to < end) {
    unsigned byte;
    if (!strncmp(text, "{i}", 3)) { to += sprintf(to, "%d", gpu); text += 3; }
    else if (sscanf(text, "\\x%2x", &byte) == 1) { *to++ = (char)byte; text += 4; }
    else *to++ = *text++;
  }
  while (to > said->text && isspace((unsigned char)to[-1])) to--;
  *to = 0;
  for (char *from = said->text; *from && said->n < 32;) {
    char *after; unsigned long long sum = strtoull(from, &after, 0);
    if (after == from) break; /* a string */
    while (*after == '+') sum += strtoull(after + 1, &after, 0);
    said->v[said->n++] = sum;
    from = after + strspn(after, " ");
  }
}

static Said ask(const char *call, int gpu, int n, ...) {
  Said said; char one[512]; int args[4] = {0}, built_in = 0; va_list list;
  va_start(list, n);
  for (int i = 0; i < n; i++) args[i] = va_arg(list, int);
  va_end(list);
  memset(&said, 0, sizeof said);
  begin();
  for (int at = known - 1; at >= 0; at--) {
    Rule *rule = &rules[at];
    if ((built_in && !rule->built_in) || !fits(rule, call, gpu, n, args)) continue;
    pick(rule->answers, rule->asked[gpu + 1]++, one, sizeof one);
    if (!strncmp(one, "pass", 4)) continue;
    if (!strncmp(one, "healthy", 7)) { built_in = 1; continue; }
    if (!strncmp(one, "wait ", 5)) { usleep((useconds_t)(atof(one + 5) * 1e6)); continue; }
    if (!strncmp(one, "print ", 6)) {
      static char block[1 << 20];
      memset(block, '#', sizeof block);
      for (int left = atoi(one + 6); left > 0; left--) if (write(1, block, sizeof block) < 0) _exit(71);
      continue;
    }
    if (!strncmp(one, "quit", 4)) _exit(0);
    if (!strncmp(one, "crash", 5)) raise(SIGSEGV);
    if (!strncmp(one, "hang", 4)) { signal(SIGTERM, SIG_IGN); for (;;) pause(); }
    if (!strncmp(one, "code ", 5)) { said.code = atoi(one + 5); return said; }
    if (*one == '=') { values(&said, one + 1, gpu); return said; }
    fprintf(stderr, "no answer: %s\n", one); _exit(70);
  }
  said.code = NVML_ERROR_NOT_SUPPORTED;
  return said;
}

/* ---- functions */

static int id(nvmlDevice_t d) { return (int)((size_t)d - 1) % 100; }
static int instance(nvmlDevice_t d) { return (int)((size_t)d - 1) / 100; } /* 0 for the GPU itself */
#define ASK(gpu, ...) Said said = ask(__func__, gpu, __VA_ARGS__); if (said.code) return said.code
#define U32 unsigned int
#define U64 unsigned long long

/* one string, one number, one number for an argument, two numbers */
#define STRING(name) nvmlReturn_t name(nvmlDevice_t d, char *s, U32 n) { ASK(id(d), 0); snprintf(s, n, "%s", said.text); return NVML_SUCCESS; }
#define NODE_STRING(name) nvmlReturn_t name(char *s, U32 n) { ASK(-1, 0); snprintf(s, n, "%s", said.text); return NVML_SUCCESS; }
#define NUMBER(name, type) nvmlReturn_t name(nvmlDevice_t d, type *v) { ASK(id(d), 0); *v = (type)said.v[0]; return NVML_SUCCESS; }
#define NUMBER_OF(name, type) nvmlReturn_t name(nvmlDevice_t d, int of, type *v) { ASK(id(d), 1, of); *v = (type)said.v[0]; return NVML_SUCCESS; }
#define NUMBER_OF_TWO(name, type) nvmlReturn_t name(nvmlDevice_t d, int a, int b, type *v) { ASK(id(d), 2, a, b); *v = (type)said.v[0]; return NVML_SUCCESS; }
#define PAIR(name) nvmlReturn_t name(nvmlDevice_t d, U32 *a, U32 *b) { ASK(id(d), 0); *a = (U32)said.v[0]; *b = (U32)said.v[1]; return NVML_SUCCESS; }

nvmlReturn_t nvmlInit_v2(void) { ASK(-1, 0); return NVML_SUCCESS; }
nvmlReturn_t nvmlInitWithFlags(U32 flags) { (void)flags; return nvmlInit_v2(); }
nvmlReturn_t nvmlShutdown(void) { ASK(-1, 0); return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) { /* as NVIDIA's own library prints them */
  switch (r) {
    case 1: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case 8: return "Insufficient External Power";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case 11: return "Interrupt Request Issue";
    case 12: return "NVML Shared Library Not Found";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case 14: return "Corrupted infoROM";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case 17: return "GPU access blocked by the operating system";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    case 19: return "In use by another client";
    case 20: return "Insufficient Memory";
    case 21: return "No data";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
  } }
NODE_STRING(nvmlSystemGetDriverVersion)
NODE_STRING(nvmlSystemGetNVMLVersion)
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { ASK(-1, 0); *v = (int)said.v[0]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(U32 *n) { ASK(-1, 0); *n = (U32)said.v[0]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(U32 i, nvmlDevice_t *d) {
  if (i >= 100) return NVML_ERROR_INVALID_ARGUMENT;
  *d = (nvmlDevice_t)(size_t)(i + 1); ASK((int)i, 0); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *s, U32 n) { /* of an instance: with its profile, mig-name:INSTANCE */
  ASK(id(d), 0);
  if (!instance(d)) { snprintf(s, n, "%s", said.text); return NVML_SUCCESS; }
  Said mine = ask("mig-name", id(d), 1, instance(d) - 1);
  if (mine.code) return mine.code;
  snprintf(s, n, "%.100s MIG %.60s", said.text, mine.text);
  return NVML_SUCCESS; }
STRING(nvmlDeviceGetSerial)
STRING(nvmlDeviceGetVbiosVersion)
STRING(nvmlDeviceGetInforomImageVersion)
STRING(nvmlDeviceGetBoardPartNumber)
nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t d, char *s) { ASK(id(d), 0); snprintf(s, 64, "%.63s", said.text); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *s, U32 n) {
  ASK(id(d), 0);
  if (instance(d)) snprintf(s, n, "MIG-00000000-0000-0000-0000-%012d", (int)(size_t)d); else snprintf(s, n, "%s", said.text);
  return NVML_SUCCESS; }
NUMBER(nvmlDeviceGetMinorNumber, U32)
static void fill(nvmlPciInfo_t *p, const char *text) {
  memset(p, 0, sizeof *p);
  sscanf(text, "%x:%x:%x", &p->domain, &p->bus, &p->device);
  snprintf(p->busId, sizeof p->busId, "%.31s", text); snprintf(p->busIdLegacy, sizeof p->busIdLegacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0xff); }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) { ASK(id(d), 0); fill(p, said.text); return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) { /* total, used */
  ASK(id(d), 0); m->total = said.v[0]; m->used = said.v[1]; m->free = m->total > m->used ? m->total - m->used : 0; return NVML_SUCCESS; }
PAIR(nvmlDeviceGetEccMode)
NUMBER_OF_TWO(nvmlDeviceGetTotalEccErrors, U64) /* 0 corrected, 1 uncorrected : 0 volatile, 1 aggregate */
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, int type, int span, int place, U64 *v) { /* : 2 DRAM, 7 SRAM */
  ASK(id(d), 3, type, span, place); *v = said.v[0]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, nvmlEccSramErrorStatus_t *s) { ASK(id(d), 0); s->bThresholdExceeded = (U32)said.v[0]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t d, nvmlRepairStatus_t *s) { /* of channel, of TPC */
  ASK(id(d), 0); s->bChannelRepairPending = (U32)said.v[0]; s->bTpcRepairPending = (U32)said.v[1]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, U32 *fixed, U32 *broken, U32 *pending, U32 *failure) {
  ASK(id(d), 0); *fixed = (U32)said.v[0]; *broken = (U32)said.v[1]; *pending = (U32)said.v[2]; *failure = (U32)said.v[3]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *h) { /* banks with all spare rows left, many, some, few, none */
  ASK(id(d), 0); h->max = (U32)said.v[0]; h->high = (U32)said.v[1]; h->partial = (U32)said.v[2]; h->low = (U32)said.v[3]; h->none = (U32)said.v[4]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, int cause, U32 *n, U64 *pages) { /* how many */
  ASK(id(d), 1, cause);
  U32 there = (U32)said.v[0], room = *n;
  *n = there;
  if (there && (!pages || room < there)) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (U32 i = 0; i < there; i++) pages[i] = 0x1000ULL * (i + 1);
  return NVML_SUCCESS; }
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, U32)

NUMBER_OF(nvmlDeviceGetTemperature, U32)
NUMBER_OF(nvmlDeviceGetTemperatureThreshold, U32)
nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t d, nvmlMarginTemperature_t *m) { ASK(id(d), 0); m->marginTemperature = (int)said.v[0]; return NVML_SUCCESS; }
NUMBER(nvmlDeviceGetFanSpeed, U32)
NUMBER(nvmlDeviceGetPowerUsage, U32)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, U32)
NUMBER(nvmlDeviceGetPowerManagementLimit, U32)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, U32)
NUMBER(nvmlDeviceGetTotalEnergyConsumption, U64)
NUMBER_OF(nvmlDeviceGetClockInfo, U32)
NUMBER_OF(nvmlDeviceGetMaxClockInfo, U32)
NUMBER(nvmlDeviceGetPerformanceState, U32)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, U64)
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, U64)
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, U64)
nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t d, int policy, nvmlViolationTime_t *times) { /* reference, violation */
  ASK(id(d), 1, policy); times->referenceTime = said.v[0]; times->violationTime = said.v[1]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) { ASK(id(d), 0); u->gpu = (U32)said.v[0]; u->memory = (U32)said.v[1]; return NVML_SUCCESS; }

NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, U32)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, U32)
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, U32)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, U32)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, U32)
NUMBER(nvmlDeviceGetPcieReplayCounter, U32)
NUMBER(nvmlDeviceGetPersistenceMode, U32)
NUMBER(nvmlDeviceGetComputeMode, U32)

PAIR(nvmlDeviceGetMigMode)
NUMBER(nvmlDeviceGetMaxMigDeviceCount, U32)
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, U32 i, nvmlDevice_t *m) {
  ASK(id(d), 1, (int)i);
  if (i >= ask("mig-instances", id(d), 0).v[0]) return NVML_ERROR_NOT_FOUND;
  *m = (nvmlDevice_t)((size_t)d + 100 * (i + 1)); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, U32 *v) { ASK(id(d), 0); *v = (U32)instance(d); return NVML_SUCCESS; }
NUMBER(nvmlDeviceGetComputeInstanceId, U32)

static void fabric(nvmlGpuFabricInfoV_t *f, const Said *said) { /* state, status, clique, health mask, summary */
  f->state = (unsigned char)said->v[0]; f->status = (nvmlReturn_t)said->v[1]; f->cliqueId = (U32)said->v[2]; f->healthMask = (U32)said->v[3]; }
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t *f) {
  ASK(id(d), 0);
  Said newest = ask("fabric-version", id(d), 0);
  said = ask("fabric", id(d), 0);
  if (said.code) return said.code;
  if (f->version >> 24 > newest.v[0]) /* a driver that does not know the newest struct */ return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  fabric(f, &said);
  if (f->version >> 24 >= 3) ((unsigned char *)f)[36] = (unsigned char)said.v[4];
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t d, nvmlGpuFabricInfo_t *f) {
  ASK(id(d), 0);
  said = ask("fabric", id(d), 0);
  if (said.code) return said.code;
  f->state = (unsigned char)said.v[0]; f->status = (nvmlReturn_t)said.v[1]; f->cliqueId = (U32)said.v[2]; return NVML_SUCCESS; }

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *v) {
  ASK(id(d), 0);
  for (int i = 0; i < n; i++) { /* value, and its type where it is no unsigned int */
    Said one = ask("field", id(d), 2, (int)v[i].fieldId, (int)v[i].scopeId);
    v[i].nvmlReturn = one.code; v[i].valueType = one.n > 1 ? (int)one.v[1] : NVML_VALUE_TYPE_UNSIGNED_INT; v[i].value.ullVal = one.v[0];
  }
  return NVML_SUCCESS; }

static int no_link(nvmlDevice_t d, U32 link) { return link >= ask("links", id(d), 0).v[0]; }
#define LINK(name, type) nvmlReturn_t name(nvmlDevice_t d, U32 link, type *v) { \
  ASK(id(d), 1, (int)link); if (no_link(d, link)) return NVML_ERROR_INVALID_ARGUMENT; *v = (type)said.v[0]; return NVML_SUCCESS; }
LINK(nvmlDeviceGetNvLinkState, U32)
LINK(nvmlDeviceGetNvLinkVersion, U32)
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, U32)
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, U32 link, int counter, U64 *v) { /* counter 0 replay, 1 recovery, 2 CRC flit, 3 CRC data */
  ASK(id(d), 2, (int)link, counter); if (no_link(d, link)) return NVML_ERROR_INVALID_ARGUMENT; *v = said.v[0]; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, U32 link, nvmlPciInfo_t *p) {
  ASK(id(d), 1, (int)link); if (no_link(d, link)) return NVML_ERROR_INVALID_ARGUMENT; fill(p, said.text); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t d, nvmlDevice_t peer, int what, U32 *v) { /* :peer:what */
  ASK(id(d), 2, id(peer), what); *v = (U32)said.v[0]; return NVML_SUCCESS; }

static nvmlReturn_t processes(const Said *said, U32 *n, nvmlProcessInfo_t *p) { /* pid and bytes, pid and bytes, … */
  U32 there = (U32)said->n / 2, room = *n;
  *n = there;
  if (there && (!p || room < there)) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (U32 i = 0; i < there; i++) { memset(p + i, 0, sizeof *p); p[i].pid = (U32)said->v[2 * i]; p[i].usedGpuMemory = said->v[2 * i + 1]; p[i].gpuInstanceId = p[i].computeInstanceId = ~0u; }
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, U32 *n, nvmlProcessInfo_t *p) { ASK(id(d), 0); return processes(&said, n, p); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, U32 *n, nvmlProcessInfo_t *p) { ASK(id(d), 0); return processes(&said, n, p); }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t d, U32 *n, nvmlProcessInfo_t *p) { return nvmlDeviceGetComputeRunningProcesses_v3(d, n, p); }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t d, U32 *n, nvmlProcessInfo_t *p) { return nvmlDeviceGetGraphicsRunningProcesses_v3(d, n, p); }
