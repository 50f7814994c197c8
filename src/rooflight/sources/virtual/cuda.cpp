// CUDA in C++'s eyes, as hooks.py shows it, with tables of methods that the compiler makes.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

using c10::DeviceIndex;
static DeviceIndex gpus = 1;

struct Hooks : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return gpus; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  long versionCuDNN() const override { return 91000; }
};

struct NoDevice : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return 0; }
};

extern "C" void show(int count) {
  gpus = static_cast<DeviceIndex>(count);
  static NoDevice none;
  static Hooks hooks;
  auto& slot = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
  if (slot.load() == nullptr) {
    slot.store(&none);
  }
  c10::impl::ensureCUDADeviceGuardSet();  // in its place torch puts a guard of its own that does nothing
  // torch keeps an object of the interface itself: it gets the table of Hooks, which has no members
  auto* kept = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  *reinterpret_cast<void**>(kept) = *reinterpret_cast<void**>(&hooks);
}
