// SPDX-License-Identifier: Apache-2.0
/*
 * What was made on a device and is given back at its end: the base of all handles that JavaScript holds.
 *
 * `isOpen` is for the JS thread; giving back happens on the device's worker, after the programs that were started before,
 * or on the JS thread when the device itself closes.
 * Invariant: `giveBack` runs exactly once. A handle that JavaScript forgets closes its resource.
 */
#pragma once

#include <atomic>
#include <memory>

#include <tensorferry/status.h>
#include <tensorferry/type_tags.h>

namespace tensorferry::gpu {

class Device;

class Resource : public std::enable_shared_from_this<Resource> {
 public:
  explicit Resource(std::shared_ptr<Device> owner) noexcept : device(std::move(owner)) {}
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;
  virtual ~Resource() = default;

  bool isOpen() const noexcept { return !closed_.load(std::memory_order_acquire); }

  /** From now on nothing new uses it; it is given back when what uses it has ended. False where it was closed before. */
  bool close() noexcept;

  /** Gives it back at once, if that has not happened; nothing uses it any more. The device is current. */
  void finish() noexcept {
    closed_.store(true, std::memory_order_release);
    if (!given_.exchange(true)) giveBack();
  }

  /** Device closing gives back in rising order: first what uses other things. */
  virtual int rank() const noexcept { return 1; }

  const std::shared_ptr<Device> device;

 protected:
  virtual void giveBack() noexcept = 0;
  /** Arranges that `finish` runs, with the device current. */
  virtual void scheduleFinish() noexcept;

 private:
  std::atomic<bool> closed_{false}, given_{false};
};

/** A resource in JavaScript hands. */
template <typename Kind>
struct Handle {
  static constexpr napi_type_tag typeTag = Kind::typeTag;
  explicit Handle(std::shared_ptr<Kind> held) noexcept : object(std::move(held)) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { object->close(); }

  const std::shared_ptr<Kind> object;
};

}  // namespace tensorferry::gpu
