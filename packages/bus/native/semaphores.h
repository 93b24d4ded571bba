/*
 * The counting semaphores of one command queue. Any thread; `wait` blocks its thread and is done on a pool thread.
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
  static void unlink(const std::string& name) noexcept { ::sem_unlink(name.c_str()); }
  /** Lets the one who waits go on and removes the name: what ends a command, of whatever client. */
  static Status complete(const std::string& name);

  enum class Waited { taken, timedOut, cancelled };
  /** Takes one within the time. A slice of it passes before a cancellation is noticed. */
  Waited wait(const Deadline& deadline, const CancelToken& cancel) noexcept;
  /** Takes one within one slice: for those who must look at something else from time to time. */
  Waited waitSlice(const Deadline& deadline) noexcept;
  bool tryTake() noexcept { return ::sem_trywait(handle_) == 0; }
  void post() noexcept { ::sem_post(handle_); }
  int value() const noexcept;
  /** Whether the name still leads to this semaphore. */
  bool isCurrent() const noexcept;

 private:
  void close() noexcept {
    if (handle_ != nullptr) ::sem_close(std::exchange(handle_, nullptr));
  }
  std::string name_;
  sem_t* handle_ = nullptr;
  ino_t inode_ = 0;
};

}  // namespace tensorferry
