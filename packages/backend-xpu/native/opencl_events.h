// SPDX-License-Identifier: Apache-2.0
/*
 * Completions made of OpenCL's events. Any thread; the callback comes on a thread of the driver.
 *
 * Invariant: an event is held as long as its completion lives; the driver itself holds it for commands that wait for it.
 */
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>

#include "driver.h"
#include "opencl_api.h"

namespace tensorferry::xpu {

Status openClFailure(const char* function, int32_t answer);

template <typename Function, typename... Values>
Status callOpenCl(const Function& function, Values... values) {
  const int32_t answer = function(values...);
  return answer == cl::code::success ? Status{} : openClFailure(function.name, answer);
}

class ClCompletion final : public Completion {
 public:
  ClCompletion(const cl::Api& api, cl::EventHandle event, bool timed) noexcept
      : api_(api), event_(event), timed_(timed) {}
  ~ClCompletion() override { api_.releaseEvent(event_); }

  Result<bool> isDone() override;
  Result<bool> wait(std::chrono::nanoseconds limit) override;
  std::optional<double> seconds() override;
  cl::EventHandle event() const noexcept { return event_; }

 private:
  /** What the callback, which may come late, shares with who waits. */
  struct Waiting {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
  };

  const cl::Api& api_;
  const cl::EventHandle event_;
  const bool timed_;
  std::mutex mutex_;
  std::shared_ptr<Waiting> waiting_;
};

}  // namespace tensorferry::xpu
