// SPDX-License-Identifier: Apache-2.0
/*
 * See semaphores.h.
 */
#include "semaphores.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace tensorferry {
namespace {

/** How long a wait sleeps before it looks up: there is no way to wake it without posting. */
constexpr int64_t sliceNanoseconds = 20'000'000;
constexpr int64_t secondNanoseconds = 1'000'000'000;

int64_t now(clockid_t clock) noexcept {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * secondNanoseconds + time.tv_nsec;
}

/** Where the C library keeps a named semaphore. */
std::string fileOf(const std::string& name) { return "/dev/shm/sem." + name.substr(1); }

Result<ino_t> checkFile(const std::string& name) {
  struct stat facts;
  if (lstat(fileOf(name).c_str(), &facts) != 0) return systemFailure("lstat", "Semaphore " + name);
  if (!S_ISREG(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 022) != 0)
    return failure(Code::PermissionDenied, "sem_open",
                   "Semaphore " + name + " belongs to, or can be changed by, other users.");
  return facts.st_ino;
}

}  // namespace

Deadline::Deadline(double milliseconds) {
  if (milliseconds >= 0) at_ = now(CLOCK_MONOTONIC) + static_cast<int64_t>(std::min(milliseconds, 9e12) * 1e6);
}

int64_t Deadline::leftNanoseconds() const noexcept {
  return at_ < 0 ? INT64_MAX : std::max<int64_t>(0, at_ - now(CLOCK_MONOTONIC));
}

Result<Semaphore> Semaphore::create(const std::string& name, uint32_t initial) {
  // The mask of the process must not take away what the owner needs.
  return adopt(name, ::sem_open(name.c_str(), O_CREAT | O_EXCL, 0600, initial));
}

Result<Semaphore> Semaphore::open(const std::string& name) { return adopt(name, ::sem_open(name.c_str(), 0)); }

Result<Semaphore> Semaphore::adopt(const std::string& name, sem_t* handle) {
  if (handle == SEM_FAILED) return systemFailure("sem_open", "Semaphore " + name);
  Semaphore semaphore;
  semaphore.name_ = name;
  semaphore.handle_ = handle;
  auto inode = checkFile(name);
  if (!inode.ok()) return inode.status();
  semaphore.inode_ = inode.value();
  return semaphore;
}

Status Semaphore::complete(const std::string& name) {
  sem_t* handle = ::sem_open(name.c_str(), 0);
  if (handle == SEM_FAILED) return systemFailure("sem_open", "Semaphore " + name);
  ::sem_post(handle);
  ::sem_close(handle);
  unlink(name);
  return Status{};
}

Semaphore::Waited Semaphore::waitSlice(const Deadline& deadline) noexcept {
  if (tryTake()) return Waited::taken;
  // sem_timedwait reads the wall clock; slices keep a jump of that clock from mattering.
  const int64_t until = now(CLOCK_REALTIME) + std::min(deadline.leftNanoseconds(), sliceNanoseconds);
  const timespec time{until / secondNanoseconds, until % secondNanoseconds};
  return ::sem_timedwait(handle_, &time) == 0 ? Waited::taken : Waited::timedOut;
}

Semaphore::Waited Semaphore::wait(const Deadline& deadline, const CancelToken& cancel) noexcept {
  while (!cancel.isCancelled()) {
    if (waitSlice(deadline) == Waited::taken) return Waited::taken;
    if (deadline.isPast()) return Waited::timedOut;
  }
  return Waited::cancelled;
}

int Semaphore::value() const noexcept {
  int value = 0;
  ::sem_getvalue(handle_, &value);
  return value;
}

bool Semaphore::isCurrent() const noexcept {
  struct stat facts;
  return ::lstat(fileOf(name_).c_str(), &facts) == 0 && facts.st_ino == inode_;
}

}  // namespace tensorferry
