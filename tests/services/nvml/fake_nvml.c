/* A libnvidia-ml.so.1 for tests: a node with eight H100 that plays what FAKE_NVML says.
   gcc -shared -fPIC -O1 -Wl,-soname,libnvidia-ml.so.1 -o DIR/libnvidia-ml.so.1 fake_nvml.c
   LD_LIBRARY_PATH=DIR python … : set before python starts. Functions not here raise NVMLError_FunctionNotFound.

   FAKE_NVML is a list of plays, e.g. "lost=3,hang=nvmlDeviceGetPowerUsage:5":
     no-driver | init=CODE   nvmlInit fails
     count=N                 as many GPUs
     lost=I                  GPU I answers GPU_IS_LOST, and its handle is refused
     lost-late=I             the same, but its handle is given
     unknown=I               GPU I answers UNKNOWN to all but its names
     ecc=I                   uncorrectable errors since the driver was loaded, over the SRAM threshold
     remap=I                 a row remap is pending, with an uncorrectable row; recovery action: drain and reset
     remap-failed=I          a row remap failed
     heat=I                  over the slowdown temperature, throttling
     link=I                  two NVLinks down
     new-links=I             counters of NVLink 5 in place of the old, and a recovery of link 7 that failed
     narrow=I                PCIe x8
     fabric=I                fabric in progress
     fabric-slow=I           fabric with less bandwidth than it should have
     mig=I                   MIG is on, two instances
     busy=I                  two processes
     hang=FUNCTION:I         that call never returns for GPU I (FUNCTION alone: for nothing but the node)
     crash=FUNCTION:I        that call ends the process
     garbage=I               numbers that no GPU has and strings that are no UTF-8 */
#include "nvml_min.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int id(nvmlDevice_t d) { return (int)((size_t)d - 1) % 100; }
static int is_mig(nvmlDevice_t d) { return (int)((size_t)d - 1) >= 100; }

/* Finds "play" or "play=VALUE" in FAKE_NVML; VALUE goes to `value`. */
static int plays(const char *play, char *value, size_t size) {
  const char *all = getenv("FAKE_NVML");
  size_t n = strlen(play);
  for (; all && *all; all += strcspn(all, ","), all += *all == ',') {
    if (strncmp(all, play, n) || (all[n] && all[n] != '=' && all[n] != ',')) continue;
    if (value) { size_t m = all[n] == '=' ? strcspn(all + n + 1, ",") : 0; if (m >= size) m = size - 1; memcpy(value, all + n + (all[n] == '='), m); value[m] = 0; }
    return 1;
  }
  return 0;
}
static int on(const char *play, nvmlDevice_t d) { char v[64]; return plays(play, v, sizeof v) && atoi(v) == id(d); }
static void act(const char *play, const char *function, int gpu) {
  char v[128], me[128];
  if (!plays(play, v, sizeof v)) return;
  if (gpu < 0) snprintf(me, sizeof me, "%s", function); else snprintf(me, sizeof me, "%s:%d", function, gpu);
  if (strcmp(v, me)) return;
  if (!strcmp(play, "crash")) raise(SIGSEGV);
  signal(SIGTERM, SIG_IGN); /* as a process in state D does */
  for (;;) pause();
}
#define NODE act("hang", __func__, -1); act("crash", __func__, -1)
#define ENTER(d) act("hang", __func__, id(d)); act("crash", __func__, id(d)); \
  if (on("lost", d) || on("lost-late", d)) return NVML_ERROR_GPU_IS_LOST
#define CHECK(d) ENTER(d); if (on("unknown", d)) return NVML_ERROR_UNKNOWN

nvmlReturn_t nvmlInitWithFlags(unsigned int f) {
  char v[16]; (void)f; act("hang", "nvmlInit_v2", -1);
  if (plays("no-driver", NULL, 0)) return NVML_ERROR_DRIVER_NOT_LOADED;
  return plays("init", v, sizeof v) ? (nvmlReturn_t)atoi(v) : NVML_SUCCESS; }
nvmlReturn_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
nvmlReturn_t nvmlShutdown(void) { return NVML_SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t r) { /* as NVIDIA's own library prints them */
  switch (r) {
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_RESET_REQUIRED: return "GPU requires reset";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    default: return "Unknown Error";
  } }
nvmlReturn_t nvmlSystemGetDriverVersion(char *v, unsigned int n) { NODE; snprintf(v, n, "570.133.20"); return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetNVMLVersion(char *v, unsigned int n) { NODE; snprintf(v, n, "12.570.133.20"); return NVML_SUCCESS; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *v) { NODE; *v = 12080; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n) { char v[32]; NODE; *n = plays("count", v, sizeof v) ? (unsigned)strtoul(v, NULL, 10) : 8; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *d) {
  *d = (nvmlDevice_t)(size_t)(i + 1);
  act("hang", __func__, (int)i);
  return on("lost", *d) ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t d, char *s, unsigned int n) {
  ENTER(d); snprintf(s, n, on("garbage", d) ? "\xff\xfe\x80" : "NVIDIA H100 80GB HBM3"); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *s, unsigned int n) {
  ENTER(d);
  if (is_mig(d)) snprintf(s, n, "MIG-00000000-0000-0000-0000-%012d", (int)(size_t)d);
  else snprintf(s, n, "GPU-00000000-0000-0000-0000-%012d", id(d));
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t d, char *s, unsigned int n) { ENTER(d); snprintf(s, n, "165000000000%d", id(d)); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned int *v) { ENTER(d); *v = (unsigned)id(d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *p) {
  static const int bus[8] = {0x19, 0x3b, 0x4c, 0x5d, 0x9b, 0xbb, 0xcb, 0xdb};
  ENTER(d); memset(p, 0, sizeof *p); p->bus = (unsigned)bus[id(d) % 8];
  snprintf(p->busId, sizeof p->busId, "00000000:%02X:00.0", p->bus); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *m) {
  CHECK(d); m->total = 85520809984ULL; m->used = on("garbage", d) ? ~0ULL : 1ULL << 30; m->free = m->total - (1ULL << 30); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t d, nvmlEnableState_t *now, nvmlEnableState_t *next) { CHECK(d); *now = *next = NVML_FEATURE_ENABLED; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, nvmlMemoryErrorType_t t, nvmlEccCounterType_t c, unsigned long long *v) {
  CHECK(d); *v = on("ecc", d) ? (t == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? 3 + 6 * (c == NVML_AGGREGATE_ECC) : 40) : 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t d, nvmlMemoryErrorType_t t, nvmlEccCounterType_t c, nvmlMemoryLocation_t l, unsigned long long *v) {
  CHECK(d);
  if (l != NVML_MEMORY_LOCATION_DRAM && l != NVML_MEMORY_LOCATION_SRAM) return NVML_ERROR_NOT_SUPPORTED;
  *v = 0;
  if (on("ecc", d)) *v = t == NVML_MEMORY_ERROR_TYPE_CORRECTED ? 20 : l == NVML_MEMORY_LOCATION_DRAM ? 2 : 1 + 6 * (c == NVML_AGGREGATE_ECC);
  if (on("remap", d) && t == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && c == NVML_AGGREGATE_ECC && l == NVML_MEMORY_LOCATION_DRAM) *v = 1;
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t d, nvmlEccSramErrorStatus_t *s) { CHECK(d); s->bThresholdExceeded = (unsigned)on("ecc", d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t d, unsigned int *fixed, unsigned int *broken, unsigned int *pending, unsigned int *failure) {
  CHECK(d); *fixed = 0; *broken = *pending = (unsigned)on("remap", d); *failure = (unsigned)on("remap-failed", d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t d, nvmlRowRemapperHistogramValues_t *v) {
  CHECK(d); memset(v, 0, sizeof *v); v->max = 640 - (unsigned)on("remap-failed", d); v->none = (unsigned)on("remap-failed", d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t d, nvmlPageRetirementCause_t c, unsigned int *n, unsigned long long *a) { (void)c; (void)n; (void)a; CHECK(d); return NVML_ERROR_NOT_SUPPORTED; }
nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t d, nvmlTemperatureSensors_t s, unsigned int *t) {
  (void)s; CHECK(d); *t = on("garbage", d) ? 0xffffffffu : on("heat", d) ? 91 : 33 + (unsigned)id(d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t d, nvmlTemperatureThresholds_t w, unsigned int *t) {
  CHECK(d); if (w > NVML_TEMPERATURE_THRESHOLD_GPU_MAX) return NVML_ERROR_NOT_SUPPORTED; *t = w == NVML_TEMPERATURE_THRESHOLD_SHUTDOWN ? 92 : w == NVML_TEMPERATURE_THRESHOLD_SLOWDOWN ? 89 : 87; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = on("garbage", d) ? 0xfffffffeu : 71300; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 700000; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t d, nvmlClockType_t t, unsigned int *v) { CHECK(d); *v = t == NVML_CLOCK_MEM ? 2619 : on("heat", d) ? 810 : 1980; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t d, nvmlClockType_t t, unsigned int *v) { CHECK(d); *v = t == NVML_CLOCK_MEM ? 2619 : 1980; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t d, nvmlPstates_t *v) { CHECK(d); *v = NVML_PSTATE_0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t d, unsigned long long *v) {
  CHECK(d); *v = on("heat", d) ? nvmlClocksThrottleReasonHwSlowdown | nvmlClocksThrottleReasonHwThermalSlowdown : nvmlClocksEventReasonGpuIdle; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u) { CHECK(d); u->gpu = on("garbage", d) ? 4000 : 0; u->memory = 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 5; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 5; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = on("narrow", d) ? 8 : 16; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 16; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = on("narrow", d) ? 5120 : 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t d, nvmlEnableState_t *v) { CHECK(d); *v = NVML_FEATURE_ENABLED; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t d, nvmlComputeMode_t *v) { CHECK(d); *v = NVML_COMPUTEMODE_DEFAULT; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned int *now, unsigned int *next) { CHECK(d); *now = *next = (unsigned)on("mig", d); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned int *n) { CHECK(d); *n = 7; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned int i, nvmlDevice_t *m) {
  CHECK(d); if (i > 1) return NVML_ERROR_NOT_FOUND; *m = (nvmlDevice_t)((size_t)d + 100 + 100 * i); return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 1 + ((unsigned)(size_t)d - 1) / 100; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned int *v) { CHECK(d); *v = 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t d, nvmlGpuFabricInfoV_t *f) {
  CHECK(d);
  if (f->version != nvmlGpuFabricInfo_v2) /* a driver that does not know the newest struct */ return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  f->state = on("fabric", d) ? NVML_GPU_FABRIC_STATE_IN_PROGRESS : NVML_GPU_FABRIC_STATE_COMPLETED; f->status = NVML_SUCCESS;
  f->healthMask = on("fabric-slow", d) ? 1 : 2; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t d, int n, nvmlFieldValue_t *v) {
  CHECK(d);
  for (int i = 0; i < n; i++) {
    v[i].nvmlReturn = NVML_SUCCESS; v[i].valueType = NVML_VALUE_TYPE_UNSIGNED_INT; v[i].value.uiVal = 0;
    if (v[i].fieldId == NVML_FI_DEV_GET_GPU_RECOVERY_ACTION) v[i].value.uiVal = on("remap", d) ? 4 : 0; /* drain and reset */
    else if (v[i].fieldId == NVML_FI_DEV_MEMORY_TEMP) v[i].value.uiVal = 41;
    else if (on("new-links", d) && v[i].fieldId >= 206 && v[i].fieldId <= 215) v[i].value.uiVal = v[i].fieldId == 214 && v[i].scopeId == 7;
    else v[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
  }
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned int l, nvmlEnableState_t *v) {
  CHECK(d); if (l > 17) return NVML_ERROR_INVALID_ARGUMENT; *v = on("link", d) && (l == 4 || l == 5) ? NVML_FEATURE_DISABLED : NVML_FEATURE_ENABLED; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t d, unsigned int l, nvmlNvLinkErrorCounter_t c, unsigned long long *v) {
  CHECK(d); if (on("new-links", d)) return NVML_ERROR_NOT_SUPPORTED; *v = on("link", d) && l == 4 && c == NVML_NVLINK_ERROR_DL_REPLAY ? 1200 : 0; return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *p) {
  CHECK(d);
  if (!on("busy", d)) { *n = 0; return NVML_SUCCESS; }
  if (*n < 2 || !p) { *n = 2; return NVML_ERROR_INSUFFICIENT_SIZE; }
  *n = 2;
  for (int i = 0; i < 2; i++) { memset(p + i, 0, sizeof *p); p[i].pid = 91823u + (unsigned)i; p[i].usedGpuMemory = i ? NVML_VALUE_NOT_AVAILABLE : 70ULL << 30; }
  return NVML_SUCCESS; }
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned int *n, nvmlProcessInfo_t *p) { (void)p; CHECK(d); *n = 0; return NVML_SUCCESS; }
