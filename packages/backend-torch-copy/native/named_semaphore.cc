/*
 * See named_semaphore.h.
 */
#include "named_semaphore.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include <algorithm>

namespace tensorferry {
namespace {

/** How long a wait sleeps before it looks whether it was cancelled: there is no way to wake it without posting. */
constexpr int64_t sliceNanoseconds = 20'000'000;
constexpr int64_t secondNanoseconds = 1'000'000'000;

int64_t now(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec * secondNanoseconds + time.tv_nsec;
}

class WaitJob final : public Job {
 public:
  WaitJob(std::shared_ptr<Semaphore> semaphore, double milliseconds) : semaphore_(std::move(semaphore)) {
    if (milliseconds >= 0) deadline_ = now(CLOCK_MONOTONIC) + static_cast<int64_t>(std::min(milliseconds, 9e12) * 1e6);
  }

  void run(size_t) noexcept override {
    while (!cancelToken.isCancelled()) {
      const int64_t left = deadline_ < 0 ? sliceNanoseconds : std::max<int64_t>(0, deadline_ - now(CLOCK_MONOTONIC));
      // sem_timedwait reads the wall clock; slices keep a jump of that clock from mattering.
      const int64_t until = now(CLOCK_REALTIME) + std::min(left, sliceNanoseconds);
      const timespec time{until / secondNanoseconds, until % secondNanoseconds};
      if (sem_timedwait(semaphore_->handle, &time) == 0) return;
      if (errno != ETIMEDOUT && errno != EINTR) return fail(systemFailure("sem_timedwait", "Waiting failed"));
      if (deadline_ >= 0 && now(CLOCK_MONOTONIC) >= deadline_)
        return fail(failure(Code::DeadlineExceeded, "sem_timedwait", "Nobody posted before the deadline.", ETIMEDOUT));
    }
    fail(failure(Code::Cancelled, "sem_timedwait", "The wait was cancelled."));
  }

 private:
  std::shared_ptr<Semaphore> semaphore_;
  int64_t deadline_ = -1;
};

}  // namespace

Result<std::shared_ptr<Semaphore>> openSemaphore(const std::string& name, bool create, uint32_t initial) {
  sem_t* handle = create ? sem_open(name.c_str(), O_CREAT | O_EXCL, 0600, initial) : sem_open(name.c_str(), 0);
  if (handle == SEM_FAILED) return systemFailure("sem_open", "Semaphore " + name);
  return std::make_shared<Semaphore>(handle);
}

std::shared_ptr<Job> makeWaitJob(std::shared_ptr<Semaphore> semaphore, double milliseconds) {
  return std::make_shared<WaitJob>(std::move(semaphore), milliseconds);
}

}  // namespace tensorferry
