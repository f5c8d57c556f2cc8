/* libcuda.so.1 for a machine without a GPU: it can be loaded, but has no device.

   It has the functions that vLLM's and torch's libraries link to. cuInit and cuDriverGetVersion
   succeed; every other call fails with CUDA_ERROR_NO_DEVICE. */

#define CUDA_SUCCESS 0
#define CUDA_ERROR_NO_DEVICE 100
#define DRIVER_VERSION 13000 /* CUDA 13.0 */

#define WITHOUT_DEVICE(name) \
    int name(void) { return CUDA_ERROR_NO_DEVICE; }

int cuInit(unsigned flags) {
    (void)flags;
    return CUDA_SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

WITHOUT_DEVICE(cuCtxGetCurrent)
WITHOUT_DEVICE(cuCtxSetCurrent)
WITHOUT_DEVICE(cuDeviceGetAttribute)
WITHOUT_DEVICE(cuDeviceGetCount)
WITHOUT_DEVICE(cuDevicePrimaryCtxRetain)
WITHOUT_DEVICE(cuGetErrorName)
WITHOUT_DEVICE(cuGetErrorString)
WITHOUT_DEVICE(cuGetProcAddress_v2)
WITHOUT_DEVICE(cuMemAddressFree)
WITHOUT_DEVICE(cuMemAddressReserve)
WITHOUT_DEVICE(cuMemCreate)
WITHOUT_DEVICE(cuMemGetAllocationGranularity)
WITHOUT_DEVICE(cuMemMap)
WITHOUT_DEVICE(cuMemRelease)
WITHOUT_DEVICE(cuMemSetAccess)
WITHOUT_DEVICE(cuMemUnmap)
WITHOUT_DEVICE(cuPointerGetAttribute)
WITHOUT_DEVICE(cuTensorMapEncodeTiled)
