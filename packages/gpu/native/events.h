// SPDX-License-Identifier: Apache-2.0
/*
 * Events of a device by number, made when first needed and used again by every program.
 *
 * Used by the worker only: programs run one after another, so a number means one event at a time.
 */
#pragma once

#include <vector>

#include <tensorferry_gpu/gpu_objects.h>

namespace tensorferry::gpu {

class EventPool {
 public:
  EventPool(const GpuApi& api, bool isTimed) noexcept : api_(api), isTimed_(isTimed) {}

  /** Makes events until there are so many. */
  Status reserve(size_t count) {
    events_.reserve(count);
    while (events_.size() < count) {
      auto event = makeEvent(api_, isTimed_);
      if (!event.ok()) return event.status();
      events_.push_back(std::move(event.value()));
    }
    return {};
  }

  size_t size() const noexcept { return events_.size(); }
  EventHandle at(size_t number) const noexcept { return events_[number].get(); }
  void clear() noexcept { events_.clear(); }

 private:
  const GpuApi& api_;
  bool isTimed_;
  std::vector<Event> events_;
};

}  // namespace tensorferry::gpu
