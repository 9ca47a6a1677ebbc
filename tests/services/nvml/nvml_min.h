/* Of NVML's interface what fake_nvml.c plays, so that it needs a C compiler and no SDK. Sizes and values as in nvml.h of CUDA 12.9
   and 13 (https://docs.nvidia.com/deploy/nvml-api): tests/live/test_nvml_header_live.py lets the compiler compare. */
#define NVML_SUCCESS 0
#define NVML_ERROR_INVALID_ARGUMENT 2
#define NVML_ERROR_NOT_SUPPORTED 3
#define NVML_ERROR_NO_PERMISSION 4
#define NVML_ERROR_NOT_FOUND 6
#define NVML_ERROR_INSUFFICIENT_SIZE 7
#define NVML_ERROR_DRIVER_NOT_LOADED 9
#define NVML_ERROR_TIMEOUT 10
#define NVML_ERROR_FUNCTION_NOT_FOUND 13
#define NVML_ERROR_GPU_IS_LOST 15
#define NVML_ERROR_RESET_REQUIRED 16
#define NVML_ERROR_LIB_RM_VERSION_MISMATCH 18
#define NVML_ERROR_ARGUMENT_VERSION_MISMATCH 25
#define NVML_ERROR_UNKNOWN 999
typedef int nvmlReturn_t;
typedef struct nvmlDevice_st *nvmlDevice_t;
#define NVML_VALUE_TYPE_UNSIGNED_INT 1
typedef struct { char busIdLegacy[16]; unsigned domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
  unsigned version;
  unsigned long long aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed, volatileCor,
      aggregateUncBucketL2, aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu, aggregateUncBucketOther;
  unsigned bThresholdExceeded;
} nvmlEccSramErrorStatus_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned version, bChannelRepairPending, bTpcRepairPending; } nvmlRepairStatus_t;
typedef struct { unsigned version; int marginTemperature; } nvmlMarginTemperature_t;
typedef struct { unsigned long long referenceTime, violationTime; } nvmlViolationTime_t;
typedef struct { unsigned max, high, partial, low, none; } nvmlRowRemapperHistogramValues_t;
typedef struct { unsigned version; unsigned char clusterUuid[16]; nvmlReturn_t status; unsigned cliqueId; unsigned char state; unsigned healthMask; } nvmlGpuFabricInfoV_t;
typedef struct { unsigned char clusterUuid[16]; nvmlReturn_t status; unsigned cliqueId; unsigned char state; } nvmlGpuFabricInfo_t;
typedef struct {
  unsigned fieldId, scopeId;
  long long timestamp, latencyUsec;
  int valueType;
  nvmlReturn_t nvmlReturn;
  union { double dVal; unsigned uiVal; unsigned long long ullVal; } value;
} nvmlFieldValue_t;
typedef struct { unsigned pid; unsigned long long usedGpuMemory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
