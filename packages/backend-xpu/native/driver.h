// SPDX-License-Identifier: Apache-2.0
/*
 * What both ways to an Intel device have in common: a platform that lists devices, a device with memory and queues, and
 * completions of what was submitted.
 *
 * A device's memory functions and its completions may be used by any thread, a queue by one thread at a time. Nothing
 * throws but std::bad_alloc. Work of one queue is done in the order of its submission, but for rows of one call.
 */
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tensorferry/shared_library.h>
#include <tensorferry/status.h>

namespace tensorferry::xpu {

/** What a driver offers beyond the least; found out by trying, never by a version alone. */
struct Capabilities {
  /** Host memory that the device reaches without a copy by the driver. */
  bool pinnedHost = false;
  /** How long a copy took on the device. */
  bool timingEvents = false;
  /** Memory of others becomes such host memory. */
  bool hostPointerImport = false;
  /** The driver keeps the order of a queue; otherwise barriers do. */
  bool inOrderQueues = false;
};

struct DeviceFacts {
  std::string name;
  /** "gpu", "accelerator" or "cpu". */
  std::string kind;
  std::string driverVersion;
  uint64_t totalBytes = 0;
  uint64_t maxAllocationBytes = 0;
};

/** Work that was submitted. Lives on while anything on the device waits for it. */
class Completion {
 public:
  virtual ~Completion() = default;
  /** Never blocks. Fails where the work failed. */
  virtual Result<bool> isDone() = 0;
  /** Blocks so long at most. */
  virtual Result<bool> wait(std::chrono::nanoseconds limit) = 0;
  /** Time on the device of a copy that is done. */
  virtual std::optional<double> seconds() { return std::nullopt; }
};
using CompletionRef = std::shared_ptr<Completion>;

/** Keeps a queue from going on. Releasing is final. */
class Hold {
 public:
  virtual ~Hold() = default;
  virtual Status release() noexcept = 0;
  /** Ends it such that what waited for it fails, where the driver knows that. */
  virtual Status fail() noexcept { return failure(Code::Unsupported, "fail", "The driver cannot fail what waits."); }
};

/** Rows of bytes at equal distances on both sides. */
struct Rows {
  uint64_t destination, source;
  uint64_t length, count;
  uint64_t destinationStep, sourceStep;
};

class Queue {
 public:
  virtual ~Queue() = default;
  virtual Status copy(uint64_t destination, uint64_t source, uint64_t length) = 0;
  virtual Status fill(uint64_t destination, uint8_t byte, uint64_t length) = 0;
  /** True where one command takes all these rows. */
  virtual bool takesRows(const Rows&) const { return false; }
  virtual Status copyRows(const Rows& rows) {
    for (uint64_t i = 0; i < rows.count; i++) {
      Status status = copy(rows.destination + i * rows.destinationStep, rows.source + i * rows.sourceStep, rows.length);
      if (!status.ok()) return status;
    }
    return {};
  }
  /** A copy, and its completion, which knows how long the copy took where that is asked for and the driver can tell. */
  virtual Result<CompletionRef> submitCopy(uint64_t destination, uint64_t source, uint64_t length, bool timed) = 0;
  /** The completion of all that was submitted. */
  virtual Result<CompletionRef> mark() = 0;
  /** What is submitted later starts after it. */
  virtual Status waitFor(const CompletionRef& completion) = 0;
  /** What is submitted later does not start before the hold is released. */
  virtual Result<std::shared_ptr<Hold>> hold() = 0;
};

class DriverDevice {
 public:
  virtual ~DriverDevice() = default;
  virtual const Capabilities& capabilities() const noexcept = 0;
  virtual Result<std::unique_ptr<Queue>> openQueue() = 0;
  virtual Result<void*> allocate(uint64_t length) = 0;
  /** Nothing uses the memory any more. */
  virtual Status free(void* memory) noexcept = 0;
  /** Host memory, pinned where the driver has such. Length of at least 1. */
  virtual Result<void*> allocateStaging(uint64_t length) = 0;
  virtual void freeStaging(void* memory) noexcept = 0;
  /** Makes host memory of somebody else pinned; only with the capability. */
  virtual Status importHost(void* memory, uint64_t length) = 0;
  virtual Status releaseHost(void* memory) noexcept = 0;
};

class Platform {
 public:
  virtual ~Platform() = default;
  virtual const std::vector<DeviceFacts>& devices() const noexcept = 0;
  /** `forbidden` is not used even where the driver has it. */
  virtual Result<std::unique_ptr<DriverDevice>> open(size_t ordinal, const Capabilities& forbidden) = 0;
};

/** What became of looking for a library: a platform, or a problem in words. */
struct Found : LibraryOpening {
  int32_t nativeCode = 0;
  std::shared_ptr<Platform> platform;
};

/** Open the first library of these names that works. Slow the first time. */
Found openLevelZero(const std::vector<std::string>& names);
Found openOpenCl(const std::vector<std::string>& names);

}  // namespace tensorferry::xpu
