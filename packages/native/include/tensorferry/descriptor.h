// SPDX-License-Identifier: Apache-2.0
/*
 * A file descriptor with one owner. Any thread, one at a time.
 *
 * Invariant: the number is closed exactly once.
 */
#pragma once

#include <unistd.h>

#include <utility>

namespace tensorferry {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = std::exchange(other.number_, -1);
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const noexcept { return number_; }
  bool isOpen() const noexcept { return number_ >= 0; }
  /** Gives the number to the caller, who closes it. */
  int release() noexcept { return std::exchange(number_, -1); }
  void reset() noexcept {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

}  // namespace tensorferry
