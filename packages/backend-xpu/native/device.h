// SPDX-License-Identifier: Apache-2.0
/*
 * An open device as the addon uses it: two queues, memory, threads, and all that was made on it.
 *
 * Made and closed on the JS thread, opened on one of its threads. A queue is used by whoever holds its lock; the work queue
 * by the worker, which does batches one after another, and for short times by the JS thread.
 * Invariants: after `close` nothing runs, everything made on the device is given back and every handle refuses. Memory that
 * a device which does not answer may still use is not given back.
 */
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include <tensorferry/napi_jobs.h>
#include <tensorferry/open_devices.h>

#include "driver.h"

namespace tensorferry::xpu {

/** Copies of replay slots have a queue of their own; everything else is in the other one. */
enum class QueueKind : uint8_t { Copies, Work };
inline constexpr size_t queueCount = 2;

/** What must be let go of before the device goes. */
class Dependent {
 public:
  virtual ~Dependent() = default;
  virtual void abandon() noexcept = 0;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  static constexpr napi_type_tag typeTag{0x5d0c8f21b7a94e10, 0xa3e6114cf0927d5b};
  static constexpr const char* kind = "device";

  Device(std::shared_ptr<Platform> platform, size_t ordinal, Capabilities forbidden, Jobs& jobs);
  ~Device() { close(); }

  /** Connects and makes queues. On a thread of `calls`. */
  Status open();
  /** JS thread. Again does nothing. */
  void close() noexcept;
  bool isOpen() const noexcept { return open_.load(std::memory_order_acquire); }
  /** It was opened in vain. */
  bool isDead() const noexcept { return dead_.load(std::memory_order_acquire); }

  const Capabilities& capabilities() const noexcept { return driver_->capabilities(); }
  DriverDevice& driver() noexcept { return *driver_; }

  Result<uint64_t> allocate(uint64_t length);
  /** Nothing uses the memory any more. */
  Status free(uint64_t address);
  /** Whether an address lies in memory that was allocated here. */
  bool owns(uint64_t address);

  /** Runs the body with the queue, alone. Fails where the device is closed. */
  template <typename Body>
  auto withQueue(QueueKind kind, Body body) -> decltype(body(std::declval<Queue&>())) {
    std::lock_guard lock(locks_[static_cast<size_t>(kind)]);
    auto& queue = queues_[static_cast<size_t>(kind)];
    if (queue == nullptr) return failure(Code::InvalidHandle, "queue", "The device is closed.");
    return body(*queue);
  }

  /** Waits until both queues have done all that was submitted so far; `patience` as in `waitFor`. */
  Status drain(const CancelToken& token, std::chrono::nanoseconds patience);

  void adopt(const std::shared_ptr<Dependent>& dependent);

  /** The worker for batches, a thread for slow calls, and threads that wait. */
  const std::shared_ptr<JobPool> work, calls, waits;

 private:
  Status connect();

  const std::shared_ptr<Platform> platform_;
  const size_t ordinal_;
  const Capabilities forbidden_;
  std::atomic<bool> open_{false}, dead_{false};
  bool closed_ = false;
  std::unique_ptr<DriverDevice> driver_;
  std::array<std::mutex, queueCount> locks_;
  std::array<std::unique_ptr<Queue>, queueCount> queues_;
  std::mutex memoryLock_;
  /** Lengths by address. */
  std::map<uint64_t, uint64_t> memory_;
  std::vector<std::weak_ptr<Dependent>> dependents_;
};

/** Waits for a completion; stops early when the token is cancelled, but not before `patience` has passed since then. */
Status waitFor(Completion& completion, const CancelToken& token, std::chrono::nanoseconds patience);

using Devices = OpenDevices<Device>;

/** A prepared copy into a slot, which is started again and again. JS thread; `completion` also from threads that wait. */
class Copy final : public Dependent {
 public:
  static constexpr napi_type_tag typeTag{0x1f6b6e0c94d84a37, 0xb1d3a58e27c06f44};
  static constexpr const char* kind = "copy";

  Copy(std::shared_ptr<Device> owner, uint64_t destination, uint64_t source, uint64_t length, bool timed) noexcept
      : device(std::move(owner)), destination_(destination), source_(source), length_(length), timed_(timed) {}

  bool isOpen() const noexcept { return device->isOpen(); }
  Status start();
  /** Of the last start; null where nothing is to wait for. */
  CompletionRef completion() const noexcept {
    std::lock_guard lock(mutex_);
    return completion_;
  }
  void abandon() noexcept override {
    std::lock_guard lock(mutex_);
    completion_ = nullptr;
  }

  const std::shared_ptr<Device> device;

 private:
  const uint64_t destination_, source_, length_;
  const bool timed_;
  mutable std::mutex mutex_;
  CompletionRef completion_;
};

/** A hold in JavaScript hands; forgetting it releases it. */
class HeldQueue final : public Dependent {
 public:
  static constexpr napi_type_tag typeTag{0x62f07d0f35b24c8e, 0x90ab3cf1de457702};
  static constexpr const char* kind = "hold";
  explicit HeldQueue(std::shared_ptr<Hold> hold) noexcept : hold_(std::move(hold)) {}
  Status end(bool isFailure) noexcept {
    if (hold_ == nullptr) return failure(Code::InvalidHandle, "releaseHold", "The hold has ended.");
    Status status = isFailure ? hold_->fail() : hold_->release();
    if (status.ok()) hold_ = nullptr;
    return status;
  }
  void abandon() noexcept override {
    if (hold_ != nullptr) hold_->release();
    hold_ = nullptr;
  }

 private:
  std::shared_ptr<Hold> hold_;
};

}  // namespace tensorferry::xpu
