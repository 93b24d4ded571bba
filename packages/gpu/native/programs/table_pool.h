// SPDX-License-Identifier: Apache-2.0
/*
 * Device memory for tables that kernels read, and pinned memory through which they get there.
 *
 * Blocks have sizes that are powers of two and are used again; the driver is asked only when no block fits. Used by the
 * worker only. Invariant: a block is in one hand at a time.
 */
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include <tensorferry_gpu/gpu_objects.h>

namespace tensorferry::gpu {

/** A block of table memory; `sizeClass` is the binary logarithm of its length. */
struct TableBlock {
  void* address = nullptr;
  unsigned sizeClass = 0;
};

class TablePool {
 public:
  explicit TablePool(const GpuApi& api) noexcept : api_(api) {}

  Result<TableBlock> take(size_t bytes) {
    const unsigned sizeClass = classOf(bytes);
    if (free_[sizeClass].empty()) {
      Status status = grow(sizeClass);
      if (!status.ok()) return status;
    }
    void* address = free_[sizeClass].back();
    free_[sizeClass].pop_back();
    return TableBlock{address, sizeClass};
  }

  void put(TableBlock block) noexcept { free_[block.sizeClass].push_back(block.address); }

  /** Pinned memory for the next upload; what it held before is gone. */
  Result<void*> staging(size_t bytes) {
    if (stagingBytes_ < bytes || !staging_) {
      const size_t wanted = size_t{1} << classOf(bytes);
      staging_.reset();
      stagingBytes_ = 0;
      auto made = makeHostBlock(api_, wanted);
      if (!made.ok()) return made.status();
      staging_ = std::move(made.value());
      stagingBytes_ = wanted;
    }
    return staging_.get();
  }

  void clear() noexcept {
    for (auto& addresses : free_) addresses.clear();
    made_.fill(0);
    slabs_.clear();
    staging_.reset();
    stagingBytes_ = 0;
  }

 private:
  static constexpr unsigned smallestClass = 12, slabClass = 20;

  static unsigned classOf(size_t bytes) noexcept {
    return std::max(smallestClass, static_cast<unsigned>(std::bit_width(std::max<size_t>(1, bytes) - 1)));
  }

  /** Asks the driver for a slab of small blocks or for one large one. */
  Status grow(unsigned sizeClass) {
    const unsigned asked = std::max(sizeClass, slabClass);
    const size_t count = size_t{1} << (asked - sizeClass);
    free_[sizeClass].reserve(made_[sizeClass] + count);  // so that putting back never needs memory
    slabs_.reserve(slabs_.size() + 1);
    auto slab = makeDeviceBlock(api_, size_t{1} << asked);
    if (!slab.ok()) return slab.status();
    auto* address = static_cast<char*>(slab.value().get());
    slabs_.push_back(std::move(slab.value()));
    made_[sizeClass] += count;
    for (size_t i = count; i > 0; i--) free_[sizeClass].push_back(address + (i - 1) * (size_t{1} << sizeClass));
    return {};
  }

  const GpuApi& api_;
  std::array<std::vector<void*>, 64> free_;
  std::array<size_t, 64> made_{};
  std::vector<DeviceBlock> slabs_;
  HostBlock staging_;
  size_t stagingBytes_ = 0;
};

}  // namespace tensorferry::gpu
