// SPDX-License-Identifier: Apache-2.0
/*
 * Events of one device, used again and again, and completions made of them.
 *
 * Any thread. Invariants: an event is used again only after it was signalled and after every queue that waits for it has
 * passed the wait; the pool outlives its events and ends after all of them.
 */
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <tensorferry_xpu/level_zero_api.h>
#include "driver.h"

namespace tensorferry::xpu {

/** The name of a result of Level Zero, for messages. */
const char* levelZeroName(ze::Result result) noexcept;
Status levelZeroFailure(const char* function, ze::Result result);

template <typename Function, typename... Values>
Status callLevelZero(const Function& function, Values... values) {
  const ze::Result result = function(values...);
  return result == ze::code::success ? Status{} : levelZeroFailure(function.name, result);
}

/** How long an event's ticks are. */
struct TickFacts {
  double seconds = 0;
  uint64_t mask = ~uint64_t{0};
};

class EventPool : public std::enable_shared_from_this<EventPool> {
 public:
  EventPool(const ze::Api& api, ze::ContextHandle context, ze::DeviceHandle device, bool timed,
            TickFacts ticks) noexcept
      : api_(api), context_(context), device_(device), timed_(timed), ticks_(ticks) {}
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;
  ~EventPool();

  /** An event that is not signalled. */
  Result<ze::EventHandle> take();
  /** Back; it may not have been signalled yet. */
  void give(ze::EventHandle event) noexcept;

  const ze::Api& api() const noexcept { return api_; }
  bool timed() const noexcept { return timed_; }
  const TickFacts& ticks() const noexcept { return ticks_; }

 private:
  Status grow();

  const ze::Api& api_;
  const ze::ContextHandle context_;
  const ze::DeviceHandle device_;
  const bool timed_;
  const TickFacts ticks_;
  std::mutex mutex_;
  std::vector<ze::PoolHandle> pools_;
  std::vector<ze::EventHandle> all_, clean_, used_;
};

class EventCompletion final : public Completion {
 public:
  EventCompletion(std::shared_ptr<EventPool> pool, ze::EventHandle event) noexcept
      : pool_(std::move(pool)), event_(event) {}
  ~EventCompletion() override { pool_->give(event_); }

  static Result<std::shared_ptr<EventCompletion>> make(const std::shared_ptr<EventPool>& pool);

  Result<bool> isDone() override;
  Result<bool> wait(std::chrono::nanoseconds limit) override;
  std::optional<double> seconds() override;
  ze::EventHandle event() const noexcept { return event_; }
  const EventPool* pool() const noexcept { return pool_.get(); }

 private:
  const std::shared_ptr<EventPool> pool_;
  const ze::EventHandle event_;
};

}  // namespace tensorferry::xpu
