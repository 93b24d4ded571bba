// SPDX-License-Identifier: Apache-2.0
/*
 * A range of memory mapped from a file, with one owner. Any thread, one at a time.
 *
 * Invariant: unmapped exactly once. The caller sees to it that the file cannot shrink below the mapping, or has it guarded.
 */
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "../status.h"
#include "truncation_guard.h"

namespace tensorferry {

class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)),
        length_(std::exchange(other.length_, 0)),
        guard_(std::move(other.guard_)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      address_ = std::exchange(other.address_, nullptr);
      length_ = std::exchange(other.length_, 0);
      guard_ = std::move(other.guard_);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  /** Maps `length` bytes (at least 1) from the start of the file. */
  static Result<Mapping> map(int descriptor, size_t length, int protection, int flags) {
    void* address = ::mmap(nullptr, length, protection, flags, descriptor, 0);
    if (address == MAP_FAILED) return systemFailure("mmap", std::to_string(length) + " bytes could not be mapped");
    Mapping mapping;
    mapping.address_ = address;
    mapping.length_ = length;
    return mapping;
  }

  /** From here on the file may become shorter: that is met with zeros, and remembered. */
  void guard() { guard_ = TruncationGuard(address_, length_); }
  bool isCut() const noexcept { return guard_.isCut(); }

  void* address() const noexcept { return address_; }
  size_t length() const noexcept { return length_; }
  void reset() noexcept {
    guard_.reset();
    if (address_ != nullptr) ::munmap(std::exchange(address_, nullptr), std::exchange(length_, 0));
  }

 private:
  void* address_ = nullptr;
  size_t length_ = 0;
  TruncationGuard guard_;
};

}  // namespace tensorferry
