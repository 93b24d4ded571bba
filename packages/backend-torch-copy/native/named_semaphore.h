/*
 * Named POSIX semaphores. Any thread; waiting blocks its thread and is therefore done on one of its own.
 *
 * Invariant: a semaphore is closed when the last holder drops it, also while the environment goes away.
 */
#pragma once

#include <semaphore.h>

#include <cstdint>
#include <memory>
#include <string>

#include <tensorferry/napi_jobs.h>
#include <tensorferry/status.h>

namespace tensorferry {

struct Semaphore {
  static constexpr napi_type_tag typeTag{0xe4a07a31d85b4c3f, 0x93c2f5d04b7e1a68};
  explicit Semaphore(sem_t* semaphore) : handle(semaphore) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;
  ~Semaphore() { sem_close(handle); }
  sem_t* handle;
};

/** Makes a new one for this user only, or opens an existing one. */
Result<std::shared_ptr<Semaphore>> openSemaphore(const std::string& name, bool create, uint32_t initial);

/** A job that takes one from the semaphore. A negative deadline means none. */
std::shared_ptr<Job> makeWaitJob(std::shared_ptr<Semaphore> semaphore, double milliseconds);

}  // namespace tensorferry
