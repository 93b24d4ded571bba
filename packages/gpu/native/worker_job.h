// SPDX-License-Identifier: Apache-2.0
/*
 * A job that waits for the device in a way that cancelling can wake. Cancelled on any thread, run on a thread of a pool.
 */
#pragma once

#include <tensorferry/napi_jobs.h>

#include "waiting.h"

namespace tensorferry::gpu {

class WorkerJob : public Job {
 public:
  void cancel() noexcept override {
    Job::cancel();
    waker.wake();
  }

  Waker waker;
};

}  // namespace tensorferry::gpu
