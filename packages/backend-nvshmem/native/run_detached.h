// SPDX-License-Identifier: Apache-2.0
/*
 * Calls of a library that may wait for other processes for ever.
 *
 * Such a call runs on a thread of its own. Who waits for it can stop waiting; the thread is then left alone.
 * Invariant: what the call needs belongs to it, so that it may outlive everybody who waits.
 */
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <tensorferry/cancel.h>
#include <tensorferry/status.h>

namespace tensorferry::nvshmem {

/** Ends with the body's answer, or with Cancelled when the token is cancelled before. */
inline Status runDetached(const char* op, const CancelToken& token, std::function<Status()> body) {
  struct Attempt {
    std::mutex mutex;
    std::condition_variable over;
    bool isOver = false;
    Status status;
  };
  auto attempt = std::make_shared<Attempt>();
  std::thread([attempt, op, body = std::move(body)] {
    Status status = caught(op, body);
    std::lock_guard lock(attempt->mutex);
    attempt->status = std::move(status);
    attempt->isOver = true;
    attempt->over.notify_all();
  }).detach();
  std::unique_lock lock(attempt->mutex);
  while (!attempt->isOver && !token.isCancelled()) attempt->over.wait_for(lock, std::chrono::milliseconds(1));
  if (attempt->isOver) return attempt->status;
  return failure(Code::Cancelled, op, "Nobody waits any more for the other processes; the call was left alone.");
}

}  // namespace tensorferry::nvshmem
