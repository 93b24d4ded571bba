// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that JavaScript holds: of the device, of the host, mapped from another process, and host ranges made reachable.
 *
 * Made on threads of the device or on the JS thread; given back as resource.h says.
 * Invariant: a block is freed once, after the programs started before it was closed. The bytes of host memory that
 * JavaScript sees are detached before they are freed.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include <tensorferry_gpu/resource.h>
#include "device.h"
#include "pins.h"

namespace tensorferry::gpu {

/** A block of the device that `Block` gives back. */
template <typename Block>
class DeviceResource : public Resource {
 public:
  DeviceResource(std::shared_ptr<Device> owner, Block block) noexcept
      : Resource(std::move(owner)), address(reinterpret_cast<uint64_t>(block.get())), block_(std::move(block)) {}
  const uint64_t address;

 protected:
  void giveBack() noexcept override { block_.reset(); }

 private:
  Block block_;
};

class Memory final : public DeviceResource<DeviceBlock> {
 public:
  static constexpr napi_type_tag typeTag{0x6d0f1b2c94e84a03, 0xb7c05e9d3a1f4462};
  static constexpr const char* kind = "device memory";
  using DeviceResource::DeviceResource;

 protected:
  void giveBack() noexcept override;
};

class Mapping final : public DeviceResource<ImportedBlock> {
 public:
  static constexpr napi_type_tag typeTag{0x90c84ad27b6e4f05, 0x81d2f3057a9c4e84};
  static constexpr const char* kind = "mapping";
  using DeviceResource::DeviceResource;
};

class HostMemory final : public Resource {
 public:
  static constexpr napi_type_tag typeTag{0x2e7755a1d0f94c04, 0x9a3b6c0812de4f73};
  static constexpr const char* kind = "host memory";
  HostMemory(std::shared_ptr<Device> owner, HostBlock block, size_t bytes) noexcept
      : Resource(std::move(owner)), address(block.get()), byteLength(bytes), block_(std::move(block)) {}
  void* const address;
  const size_t byteLength;
  /** A script has transferred the bytes to another buffer: they stay until the process ends, since nothing says when it goes. */
  void leaveToScript() noexcept { isElsewhere_ = true; }

 protected:
  void giveBack() noexcept override {
    if (isElsewhere_) block_.leave();
    block_.reset();
  }

 private:
  HostBlock block_;
  std::atomic<bool> isElsewhere_{false};
};

class Pin final : public Resource {
 public:
  static constexpr napi_type_tag typeTag{0xc4e10b6f58a34d06, 0x8f60a7d4c2b14e95};
  static constexpr const char* kind = "pin";
  Pin(std::shared_ptr<Device> owner, PinnedRange range) noexcept
      : Resource(std::move(owner)), range_(std::move(range)) {}

 protected:
  void giveBack() noexcept override { range_.reset(); }

 private:
  PinnedRange range_;
};

/** Device memory. Waits for what is being freed where there is no memory left. On a thread of the device. */
Result<std::shared_ptr<Memory>> allocateMemory(const std::shared_ptr<Device>& device, size_t bytes,
                                               const CancelToken& token);

Result<std::shared_ptr<HostMemory>> allocateHostMemory(const std::shared_ptr<Device>& device, size_t bytes,
                                                       const CancelToken& token);

/** Lets the device reach host memory. The range may be pinned already. */
Result<std::shared_ptr<Pin>> pinHostMemory(const std::shared_ptr<Device>& device, uint64_t address, uint64_t bytes);

struct ExportedMemory {
  IpcHandle handle;
  /** First byte of the allocation and its length. */
  uint64_t base;
  size_t bytes;
};

/** A handle of the allocation that an address belongs to. Fails with Unsupported where no handle can name it. */
Result<ExportedMemory> exportMemory(Device& device, uint64_t address);

Result<std::shared_ptr<Mapping>> importMemory(const std::shared_ptr<Device>& device, const IpcHandle& handle);

/** The device whose memory an address is. Fails with InvalidArgument for other addresses. */
Result<int> deviceOfAddress(Device& device, uint64_t address);

}  // namespace tensorferry::gpu
