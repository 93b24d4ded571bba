// SPDX-License-Identifier: Apache-2.0
/*
 * Host memory registered with the driver, counted by page, for all devices of the process.
 *
 * Any thread. Registrations count for every device (they are portable), so their book is kept per process and library, not
 * per device.
 * Invariant: a page is registered once and unregistered when its last pin goes; pages that somebody else registered are
 * left alone. A pin that reaches over the ends of earlier ones registers only what is missing.
 */
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include <tensorferry_gpu/gpu_status.h>

namespace tensorferry::gpu {

class PinBook;

/** The pages of one pin. */
class PinnedRange {
 public:
  PinnedRange() = default;
  PinnedRange(PinBook* book, std::vector<uint64_t> pieces) noexcept : book_(book), pieces_(std::move(pieces)) {}
  PinnedRange(PinnedRange&& other) noexcept
      : book_(std::exchange(other.book_, nullptr)), pieces_(std::move(other.pieces_)) {}
  PinnedRange& operator=(PinnedRange&& other) noexcept {
    if (this != &other) {
      reset();
      book_ = std::exchange(other.book_, nullptr);
      pieces_ = std::move(other.pieces_);
    }
    return *this;
  }
  ~PinnedRange() { reset(); }
  void reset() noexcept;

 private:
  PinBook* book_ = nullptr;
  std::vector<uint64_t> pieces_;
};

/** Bytes that one copy may read: of one registration, or of none. */
struct HostRun {
  uint64_t start, bytes;
};

/** A range of host memory as drivers want to have it copied: a copy that reaches over the end of a registration fails. */
struct HostRuns {
  std::vector<HostRun> runs;
  /** All of it is registered here. */
  bool isPinned = true;
};

/** Somebody whose queued work reads pinned memory without holding a pin of its own. */
class PinUser {
 public:
  virtual ~PinUser() = default;
  /** Ends when the work queued so far has ended. Any thread. */
  virtual void settle() noexcept = 0;
};

class PinBook {
 public:
  /** The book of the library that a table of functions belongs to; lives as long as the process. */
  static PinBook& of(const GpuApi& api);

  /** Pins the pages of a range of at least one byte. */
  Result<PinnedRange> pin(uint64_t address, uint64_t bytes);

  /** Rises with every registration that comes or goes; what `runsOf` answers holds as long as it stands. */
  uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

  /** Cuts a range where registrations begin and end. */
  HostRuns runsOf(uint64_t address, uint64_t bytes);

  /**
   * Hands a copy of memory that may or may not be registered to the driver, in parts of which each lies in one registration
   * or in none: drivers refuse to copy over the end of one. `copy` gets the offset and the bytes of a part and answers with
   * a status; no registration comes or goes while it runs. What is registered stays so until `held` goes, although whoever
   * pinned it may let go of it earlier: such a copy is still under way when its call returns. A registration reaches at most
   * a page further than its owner's memory.
   */
  template <typename Copy>
  Status copyParts(uint64_t destination, uint64_t source, uint64_t bytes, std::vector<PinnedRange>& held, Copy&& copy) {
    for (uint64_t at = 0; at < bytes;) {
      std::shared_lock still = holdStill();
      const uint64_t part = partOf(source + at, partOf(destination + at, bytes - at, held), held);
      if (Status status = copy(at, part); !status.ok()) return status;
      at += part;
    }
    return {};
  }

  /** From now on nothing is unregistered under the user's work, as long as the user lives. */
  void addUser(std::weak_ptr<PinUser> user);

 private:
  friend class PinnedRange;
  explicit PinBook(const GpuApi& api) noexcept : api_(api) {}

  struct Piece {
    uint64_t end;
    size_t pins;
    /** Registered here, not by somebody else. */
    bool isOurs;
  };

  /** While this is held no registration comes or goes. Who wants to change them is not kept waiting by later holders. */
  std::shared_lock<std::shared_mutex> holdStill() {
    std::lock_guard turn(turn_);
    return std::shared_lock(registrations_);
  }
  std::unique_lock<std::shared_mutex> change() {
    std::lock_guard turn(turn_);
    return std::unique_lock(registrations_);
  }

  /** How many of the bytes lie in one registration, which is pinned once more, or in none. */
  uint64_t partOf(uint64_t address, uint64_t bytes, std::vector<PinnedRange>& held);
  Result<Piece> registerPages(uint64_t start, uint64_t end);
  void settleUsers() noexcept;
  void unpin(const std::vector<uint64_t>& pieces) noexcept;
  void unpinLocked(const std::vector<uint64_t>& pieces) noexcept;

  const GpuApi api_;
  std::mutex turn_;
  std::shared_mutex registrations_;
  /** Of the pieces; taken after `registrations_`. */
  std::mutex mutex_;
  std::map<uint64_t, Piece> pieces_;
  std::atomic<uint64_t> version_{1};
  std::mutex usersMutex_;
  std::vector<std::weak_ptr<PinUser>> users_;
};

}  // namespace tensorferry::gpu
