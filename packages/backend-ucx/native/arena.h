// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that UCX knows, in slots of one chunk: what is scattered is gathered here before it leaves, or waits here until it
 * is scattered. One mapping, registered once; tensors are never registered for the way of a single chunk.
 *
 * Used by the endpoint's thread. Invariant: a slot is free or has one user.
 */
#pragma once

#include <sys/mman.h>

#include <vector>

#include "frame.h"

namespace tensorferry::ucx {

/** Slots of the arena that serve one purpose, so that what leaves never waits for room of what comes. */
class Slots {
 public:
  void add(uint8_t* slot) { free_.push_back(slot); }
  /** Null where all are in use. */
  uint8_t* take() noexcept {
    if (free_.empty()) return nullptr;
    uint8_t* const slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give(uint8_t* slot) noexcept {
    if (slot != nullptr) free_.push_back(slot);
  }

 private:
  std::vector<uint8_t*> free_;
};

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() { close(); }

  void close() noexcept {
    if (base_ != nullptr) ::munmap(base_, length_);
    base_ = nullptr;
  }

  /** So many slots for each purpose. False where the system gives no memory. */
  bool open(size_t slots) {
    length_ = 2 * slots * chunkBytes;
    void* const mapped = ::mmap(nullptr, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    base_ = static_cast<uint8_t*>(mapped);
    // The first slots are handed out first: few transfers touch few pages.
    for (size_t slot = slots; slot-- > 0;) {
      leaving.add(base_ + slot * chunkBytes);
      coming.add(base_ + (slots + slot) * chunkBytes);
    }
    return true;
  }

  uint8_t* base() const noexcept { return base_; }
  size_t length() const noexcept { return length_; }

  Slots leaving, coming;

 private:
  uint8_t* base_ = nullptr;
  size_t length_ = 0;
};

}  // namespace tensorferry::ucx
