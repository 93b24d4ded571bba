// SPDX-License-Identifier: Apache-2.0
/*
 * See level_zero_events.h. Events are made many at a time, because a pool of the driver has a fixed size.
 */
#include "level_zero_events.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <thread>

namespace tensorferry::xpu {
namespace level_zero {
namespace {

constexpr uint32_t eventsPerPool = 64;

Code codeOf(ze::Result result) noexcept {
  switch (result) {
    case ze::code::outOfHostMemory:
    case ze::code::outOfDeviceMemory:
      return Code::OutOfMemory;
    case ze::code::insufficientPermissions:
      return Code::PermissionDenied;
    case ze::code::notAvailable:
    case ze::code::uninitialised:
      return Code::NotFound;
    case ze::code::unsupportedVersion:
    case ze::code::unsupportedFeature:
    case ze::code::unsupportedSize:
    case ze::code::unsupportedAlignment:
    case ze::code::unsupportedEnumeration:
      return Code::Unsupported;
    default:
      return Code::SystemFailure;
  }
}

}  // namespace
}  // namespace level_zero

const char* levelZeroName(ze::Result result) noexcept {
  struct Named {
    ze::Result result;
    const char* name;
  };
  static constexpr Named names[] = {
      {ze::code::notReady, "NOT_READY"},
      {ze::code::deviceLost, "DEVICE_LOST"},
      {ze::code::outOfHostMemory, "OUT_OF_HOST_MEMORY"},
      {ze::code::outOfDeviceMemory, "OUT_OF_DEVICE_MEMORY"},
      {ze::code::insufficientPermissions, "INSUFFICIENT_PERMISSIONS"},
      {ze::code::notAvailable, "NOT_AVAILABLE"},
      {ze::code::uninitialised, "UNINITIALIZED"},
      {ze::code::unsupportedVersion, "UNSUPPORTED_VERSION"},
      {ze::code::unsupportedFeature, "UNSUPPORTED_FEATURE"},
      {ze::code::invalidArgument, "INVALID_ARGUMENT"},
      {ze::code::invalidNullHandle, "INVALID_NULL_HANDLE"},
      {ze::code::handleInUse, "HANDLE_OBJECT_IN_USE"},
      {ze::code::invalidNullPointer, "INVALID_NULL_POINTER"},
      {ze::code::invalidSize, "INVALID_SIZE"},
      {ze::code::unsupportedSize, "UNSUPPORTED_SIZE"},
      {ze::code::unsupportedAlignment, "UNSUPPORTED_ALIGNMENT"},
      {ze::code::invalidSynchronization, "INVALID_SYNCHRONIZATION_OBJECT"},
      {ze::code::invalidEnumeration, "INVALID_ENUMERATION"},
      {ze::code::unsupportedEnumeration, "UNSUPPORTED_ENUMERATION"},
      {ze::code::overlappingRegions, "OVERLAPPING_REGIONS"},
  };
  for (const Named& named : names)
    if (named.result == result) return named.name;
  return "UNKNOWN";
}

Status levelZeroFailure(const char* function, ze::Result result) {
  char number[16];
  std::snprintf(number, sizeof number, "0x%08x", result);
  return failure(level_zero::codeOf(result), function,
                 std::string("ZE_RESULT ") + levelZeroName(result) + " (" + number + ").",
                 static_cast<int32_t>(result));
}

EventPool::~EventPool() {
  for (const auto event : all_) api_.destroyEvent(event);
  for (const auto pool : pools_) api_.destroyPool(pool);
}

Status EventPool::grow() {
  ze::EventPoolDescription description;
  description.flags = ze::poolHostVisible | (timed_ ? ze::poolTimestamps : 0);
  description.count = level_zero::eventsPerPool;
  ze::PoolHandle pool = nullptr;
  ze::DeviceHandle device = device_;
  pools_.reserve(pools_.size() + 1);
  if (Status status = callLevelZero(api_.createPool, context_, &description, 1u, &device, &pool); !status.ok())
    return status;
  pools_.push_back(pool);
  for (auto* list : {&all_, &clean_, &used_}) list->reserve(pools_.size() * level_zero::eventsPerPool);
  for (uint32_t i = 0; i < level_zero::eventsPerPool; i++) {
    ze::EventDescription one;
    one.index = i;
    ze::EventHandle event = nullptr;
    if (Status status = callLevelZero(api_.createEvent, pool, &one, &event); !status.ok())
      return clean_.empty() ? status : Status{};
    all_.push_back(event);
    clean_.push_back(event);
  }
  return {};
}

Result<ze::EventHandle> EventPool::take() {
  std::lock_guard lock(mutex_);
  if (clean_.empty()) {
    // What was given back earliest was signalled most likely.
    std::erase_if(used_, [&](ze::EventHandle event) {
      if (api_.queryEvent(event) != ze::code::success || api_.resetEvent(event) != ze::code::success) return false;
      clean_.push_back(event);
      return true;
    });
  }
  if (clean_.empty())
    if (Status status = grow(); !status.ok()) return status;
  const ze::EventHandle event = clean_.back();
  clean_.pop_back();
  return event;
}

void EventPool::give(ze::EventHandle event) noexcept {
  std::lock_guard lock(mutex_);
  used_.push_back(event);  // has room for all events there are
}

Result<std::shared_ptr<EventCompletion>> EventCompletion::make(const std::shared_ptr<EventPool>& pool) {
  auto event = pool->take();
  if (!event.ok()) return event.status();
  return std::make_shared<EventCompletion>(pool, event.value());
}

Result<bool> EventCompletion::isDone() {
  const ze::Result result = pool_->api().queryEvent(event_);
  if (result == ze::code::success) return true;
  if (result == ze::code::notReady) return false;
  return levelZeroFailure(pool_->api().queryEvent.name, result);
}

Result<bool> EventCompletion::wait(std::chrono::nanoseconds limit) {
  const ze::Result result = pool_->api().waitEvent(event_, static_cast<uint64_t>(limit.count()));
  if (result == ze::code::success) return true;
  if (result == ze::code::notReady) return false;
  // A wait that fails says nothing of the work. Where asking still works, the work goes on and is asked for.
  auto done = isDone();
  if (!done.ok()) return levelZeroFailure(pool_->api().waitEvent.name, result);
  if (!done.value())
    std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(limit, std::chrono::milliseconds(1)));
  return done;
}

std::optional<double> EventCompletion::seconds() {
  ze::KernelTimestamps times;
  if (!pool_->timed() || pool_->api().eventTimes(event_, &times) != ze::code::success) return std::nullopt;
  // The counter has fewer bits than its field and wraps around.
  const uint64_t ticks = (times.global.end - times.global.start) & pool_->ticks().mask;
  return static_cast<double>(ticks) * pool_->ticks().seconds;
}

}  // namespace tensorferry::xpu
