// SPDX-License-Identifier: Apache-2.0
/*
 * See memory.h. Handles that this process gave out are remembered by the allocation they name, because opening one's own
 * handle is not possible and drivers say so in no clear words.
 */
#include "memory.h"

#include <cstring>
#include <map>
#include <mutex>

namespace tensorferry::gpu {
namespace {

/** Handles given out by this process, by library and base address. */
class ExportBook {
 public:
  static ExportBook& instance() {
    static auto* book = new ExportBook();  // never destroyed: memory may go while the process ends
    return *book;
  }

  void add(const GpuApi& api, uint64_t base, const IpcHandle& handle) {
    std::lock_guard lock(mutex_);
    handles_[{key(api), base}] = handle;
  }
  void remove(const GpuApi& api, uint64_t base) noexcept {
    std::lock_guard lock(mutex_);
    handles_.erase({key(api), base});
  }
  bool has(const GpuApi& api, const IpcHandle& handle) {
    std::lock_guard lock(mutex_);
    for (const auto& [place, known] : handles_)
      if (place.first == key(api) && std::memcmp(&known, &handle, sizeof handle) == 0) return true;
    return false;
  }

 private:
  static void* key(const GpuApi& api) noexcept { return reinterpret_cast<void*>(api.exportMemory.function); }
  std::mutex mutex_;
  std::map<std::pair<void*, uint64_t>, IpcHandle> handles_;
};

/** Makes a block; once more where memory was only waiting to be freed. */
template <typename Make>
auto allocateOrWait(Device& device, const CancelToken& token, Make make) {
  // Asked first: a release may end between the attempt and the question.
  const bool isReleasing = device.isReleasing();
  auto block = make();
  if (block.ok() || block.status().code != Code::OutOfMemory) return block;
  if (device.waitForReleases(token) || isReleasing) block = make();
  return block;
}

}  // namespace

void Memory::giveBack() noexcept {
  ExportBook::instance().remove(device->api(), address);
  DeviceResource::giveBack();
}

/** A resource over the block that `makeBlock` makes. */
template <typename Kind, typename MakeBlock>
Result<std::shared_ptr<Kind>> allocate(const std::shared_ptr<Device>& device, size_t bytes, const CancelToken& token,
                                       const MakeBlock& makeBlock) {
  DeviceScope scope(device->api(), device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  auto block = allocateOrWait(*device, token, [&] { return makeBlock(device->api(), bytes); });
  if (!block.ok()) return block.status();
  std::shared_ptr<Kind> memory;
  if constexpr (std::is_same_v<Kind, HostMemory>)
    memory = std::make_shared<Kind>(device, std::move(block.value()), bytes);
  else memory = std::make_shared<Kind>(device, std::move(block.value()));
  device->adopt(memory);
  return memory;
}

Result<std::shared_ptr<Memory>> allocateMemory(const std::shared_ptr<Device>& device, size_t bytes,
                                               const CancelToken& token) {
  return allocate<Memory>(device, bytes, token, makeDeviceBlock);
}

Result<std::shared_ptr<HostMemory>> allocateHostMemory(const std::shared_ptr<Device>& device, size_t bytes,
                                                       const CancelToken& token) {
  return allocate<HostMemory>(device, bytes, token, makeHostBlock);
}

Result<std::shared_ptr<Pin>> pinHostMemory(const std::shared_ptr<Device>& device, uint64_t address, uint64_t bytes) {
  DeviceScope scope(device->api(), device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  auto range = PinBook::of(device->api()).pin(address, bytes);
  if (!range.ok()) return range.status();
  auto pin = std::make_shared<Pin>(device, std::move(range.value()));
  device->adopt(pin);
  return pin;
}

Result<ExportedMemory> exportMemory(Device& device, uint64_t address) {
  const GpuApi& api = device.api();
  DeviceScope scope(api, device.ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  if (auto owner = deviceOfAddress(device, address); !owner.ok()) return owner.status();
  if (api.vendor == Vendor::Cuda) {  // HIP knows the attribute but does not answer it everywhere
    uint32_t canBeExported = 0;
    Status status =
        callDriver(api, api.pointerAttribute, static_cast<void*>(&canBeExported), pointer::canBeExported, address);
    if (!status.ok()) return status;
    if (canBeExported == 0)
      return failure(Code::Unsupported, api.exportMemory.name,
                     "The memory comes from a virtual-memory allocator (for example expandable segments of PyTorch), "
                     "which no IPC handle can name. Turn that allocator off, or use another path.");
  }
  ExportedMemory exported{};
  Status status = callDriver(api, api.addressRange, &exported.base, &exported.bytes, address);
  if (!status.ok()) return status;
  const int answer = api.exportMemory(&exported.handle, reinterpret_cast<void*>(exported.base));
  if (answer != code::success) {
    api.clearError();
    Status refused = runtimeFailure(api, api.exportMemory.name, answer);
    // The driver found the allocation a moment ago, so a value that it calls invalid is one it cannot export.
    if (answer == code::invalidValue || answer == code::notSupported) {
      refused.code = Code::Unsupported;
      refused.detail += " No IPC handle can name this memory; memory of virtual-memory allocators has none.";
    }
    return refused;
  }
  ExportBook::instance().add(api, exported.base, exported.handle);
  return exported;
}

Result<std::shared_ptr<Mapping>> importMemory(const std::shared_ptr<Device>& device, const IpcHandle& handle) {
  const GpuApi& api = device->api();
  const char* ownMemory =
      "The handle names memory of this very process, which cannot be mapped again. Use its address instead.";
  if (ExportBook::instance().has(api, handle)) return failure(Code::InvalidArgument, api.importMemory.name, ownMemory);
  DeviceScope scope(api, device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  void* address = nullptr;
  const int answer = api.importMemory(&address, handle, lazyPeerAccess);
  if (answer != code::success) {
    api.clearError();
    Status status = runtimeFailure(api, api.importMemory.name, answer);
    if (answer == code::invalidContext)
      status = failure(Code::InvalidArgument, api.importMemory.name, ownMemory, answer);
    return status;
  }
  auto mapping = std::make_shared<Mapping>(device, ImportedBlock(api, address));
  device->adopt(mapping);
  return mapping;
}

Result<int> deviceOfAddress(Device& device, uint64_t address) {
  const GpuApi& api = device.api();
  DeviceScope scope(api, device.ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  uint32_t type = 0;
  int ordinal = -1;
  int answer = api.pointerAttribute(&type, pointer::memoryType, address);
  if (answer == code::success && type == pointer::deviceMemory)
    answer = api.pointerAttribute(&ordinal, pointer::deviceOrdinal, address);
  if (answer != code::success && answer != code::invalidValue)
    return driverFailure(api, api.pointerAttribute.name, answer);
  if (ordinal < 0)
    return failure(Code::InvalidArgument, api.pointerAttribute.name, "No device memory begins or lies at this address.",
                   answer);
  return ordinal;
}

}  // namespace tensorferry::gpu
