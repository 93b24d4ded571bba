// SPDX-License-Identifier: Apache-2.0
/*
 * The counting semaphores that processes of one user share by name: those of a command queue, of completions, and those
 * that JavaScript holds. Any thread; `wait` blocks its thread and is done on a pool thread.
 *
 * Invariant: only semaphores of this user that nobody else can write are opened; closed when the object goes away.
 */
#pragma once

#include <semaphore.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <tensorferry/cancel.h>
#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

namespace tensorferry {

/** A point of the monotonic clock, or never. */
class Deadline {
 public:
  /** A negative time never comes. */
  explicit Deadline(double milliseconds);
  bool isPast() const noexcept { return leftNanoseconds() == 0; }
  int64_t leftNanoseconds() const noexcept;

 private:
  int64_t at_ = -1;
};

class Semaphore {
 public:
  static constexpr napi_type_tag typeTag{0xe4a07a31d85b4c3f, 0x93c2f5d04b7e1a68};

  Semaphore() = default;
  Semaphore(Semaphore&& other) noexcept
      : name_(std::move(other.name_)), handle_(std::exchange(other.handle_, nullptr)), inode_(other.inode_) {}
  Semaphore& operator=(Semaphore&& other) noexcept {
    if (this != &other) {
      close();
      name_ = std::move(other.name_);
      handle_ = std::exchange(other.handle_, nullptr);
      inode_ = other.inode_;
    }
    return *this;
  }
  ~Semaphore() { close(); }

  static Result<Semaphore> create(const std::string& name, uint32_t initial);
  static Result<Semaphore> open(const std::string& name);
  /** False where there is no such name, or it belongs to another user: `errno` says which. */
  static bool unlink(const std::string& name) noexcept { return ::sem_unlink(name.c_str()) == 0; }
  /** Lets the one who waits go on and removes the name: what ends a command, of whatever client. */
  static Status complete(const std::string& name);

  enum class Waited { taken, timedOut, cancelled };
  /** Takes one within the time. A slice of it passes before a cancellation is noticed. */
  Waited wait(const Deadline& deadline, const CancelToken& cancel) noexcept;
  /** Takes one within one slice: for those who must look at something else from time to time. */
  Waited waitSlice(const Deadline& deadline) noexcept;
  bool tryTake() noexcept { return ::sem_trywait(handle_) == 0; }
  /** False where the count is at its limit. */
  bool post() noexcept { return ::sem_post(handle_) == 0; }
  int value() const noexcept;
  /** Whether the name still leads to this semaphore. */
  bool isCurrent() const noexcept;

 private:
  static Result<Semaphore> adopt(const std::string& name, sem_t* handle);
  void close() noexcept {
    if (handle_ != nullptr) ::sem_close(std::exchange(handle_, nullptr));
  }
  std::string name_;
  sem_t* handle_ = nullptr;
  ino_t inode_ = 0;
};

}  // namespace tensorferry
