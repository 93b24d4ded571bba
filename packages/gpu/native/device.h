// SPDX-License-Identifier: Apache-2.0
/*
 * A device as this addon uses it: its streams, events, kernels, table memory and threads, and all that was made on it.
 *
 * Made and closed on the JS thread; opened on one of its threads. Streams, events and tables belong to the worker: programs
 * run there one after another, and what is closed is given back there between them.
 * Invariant: after `close` nothing runs, everything made on the device is given back, and every handle refuses. Only the
 * registry of the environment ends a device, so that none of its own threads is ever the last to hold it.
 */
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tensorferry/napi_jobs.h>
#include <tensorferry/open_devices.h>
#include <tensorferry_gpu/gpu_libraries.h>
#include <tensorferry_gpu/gpu_objects.h>

#include <tensorferry_gpu/resource.h>
#include "device_limits.h"
#include "events.h"
#include "programs/kernels.h"
#include "programs/table_pool.h"

namespace tensorferry::gpu {

struct DeviceOptions {
  /** Folder for compiled kernels; empty: none. */
  std::string kernelCache;
  /** Blocks of a kernel; 0: as many as do best. */
  uint32_t blocks = 0;
};

/** A function as a task of a pool; cancelling sets the token, the function runs all the same. */
class Task final : public ParallelTask {
 public:
  explicit Task(std::function<void(const CancelToken&)> body) : body_(std::move(body)) {}
  void run(size_t) noexcept override { body_(token_); }
  void done() noexcept override { body_ = nullptr; }
  void cancel() noexcept override { token_.cancel(); }

 private:
  std::function<void(const CancelToken&)> body_;
  CancelToken token_;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  static constexpr napi_type_tag typeTag{0x3b5f9a7710c24d02, 0x8e0c27d1f7e64b21};
  static constexpr const char* kind = "device";

  Device(std::shared_ptr<Libraries> libraries, int ordinal, DeviceOptions options, Jobs& jobs);
  ~Device() { close(); }

  /** Makes streams and loads kernels. On a thread of `calls`. */
  Status open(const CancelToken& token);

  /** JS thread. Again does nothing. */
  void close() noexcept;

  bool isOpen() const noexcept { return open_.load(std::memory_order_acquire); }
  /** It was opened in vain or is closed. */
  bool isDead() const noexcept { return dead_.load(std::memory_order_acquire); }

  const GpuApi& api() const noexcept { return libraries_->api; }
  int ordinal() const noexcept { return ordinal_; }
  const DeviceOptions& options() const noexcept { return options_; }

  /** Remembers what is to be given back at the end. Any thread. */
  void adopt(const std::shared_ptr<Resource>& resource);

  /** Runs `body` on the worker, with the device current, after the programs started so far; here and now once closed. */
  void runAfterPrograms(std::function<void()> body) noexcept;

  /** Waits until what was closed so far is given back. False where nothing was to wait for, or the token was cancelled. */
  bool waitForReleases(const CancelToken& token);
  /** Whether memory is waiting to be freed. */
  bool isReleasing();

  /** The worker, threads for slow calls, and threads that wait for other ranks. */
  const std::shared_ptr<JobPool> programs, calls, connections;

  // For the worker only.
  std::array<Stream, streamCount> streams;
  Stream uploads;
  /** Of the running program: events, both ends of spans, and places looked for. */
  EventPool events, timedEvents, marks;
  TablePool tables;
  Kernels kernels;

 private:
  /** Gives back what programs run with. */
  void clear() noexcept;

  const std::shared_ptr<Libraries> libraries_;
  const int ordinal_;
  const DeviceOptions options_;
  std::atomic<bool> open_{false}, dead_{false};
  std::mutex mutex_;
  std::condition_variable released_;
  size_t pendingReleases_ = 0;
  bool closed_ = false;
  std::vector<std::weak_ptr<Resource>> resources_;
};

using Devices = OpenDevices<Device>;

}  // namespace tensorferry::gpu
