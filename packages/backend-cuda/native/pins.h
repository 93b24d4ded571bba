/*
 * Host memory registered with the driver, counted by page, for all devices of the process.
 *
 * Any thread. Registrations count for every device (they are portable), so their book is kept per process and library, not
 * per device.
 * Invariant: a page is registered once and unregistered when its last pin goes; pages that somebody else registered are
 * left alone. A pin that reaches over the ends of earlier ones registers only what is missing.
 */
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
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

class PinBook {
 public:
  /** The book of the library that a table of functions belongs to; lives as long as the process. */
  static PinBook& of(const GpuApi& api);

  /** Pins the pages of a range of at least one byte. */
  Result<PinnedRange> pin(uint64_t address, uint64_t bytes);

 private:
  friend class PinnedRange;
  explicit PinBook(const GpuApi& api) noexcept : api_(api) {}

  struct Piece {
    uint64_t end;
    size_t pins;
    /** Registered here, not by somebody else. */
    bool isOurs;
  };

  Result<Piece> registerPages(uint64_t start, uint64_t end);
  void unpin(const std::vector<uint64_t>& pieces) noexcept;
  void unpinLocked(const std::vector<uint64_t>& pieces) noexcept;

  const GpuApi api_;
  std::mutex mutex_;
  std::map<uint64_t, Piece> pieces_;
};

}  // namespace tensorferry::gpu
