// A CUDA device for torch's CPU build that stores nothing and computes nothing.
//
// Tensors in FakeTensorMode need no memory, but autograd requires a guard, streams and events for
// their device. `rehearsal.py` compiles this file and loads it before torch.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace c10::impl {

struct PretendedGuard final : public DeviceGuardImplInterface {
  static Device device() { return Device(DeviceType::CUDA, 0); }
  static Stream stream() { return Stream(Stream::DEFAULT, device()); }

  DeviceType type() const override { return DeviceType::CUDA; }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return device(); }
  Device exchangeDevice(Device) const override { return device(); }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream exchangeStream(Stream other) const noexcept override { return other; }
  void record(void**, const Stream&, const DeviceIndex, const EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, PretendedGuard);

} // namespace c10::impl

namespace {

using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;

// torch looks for a class of this name.
struct CUDAHooks : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
};

REGISTER_CUDA_HOOKS(CUDAHooks);

} // namespace
