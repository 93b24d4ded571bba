// SPDX-License-Identifier: Apache-2.0
/*
 * See device.h. Order at the end: threads, then resources by rank, then what programs ran with.
 */
#include "device.h"

#include <algorithm>
#include <chrono>

#include "waiting.h"

namespace tensorferry::gpu {

bool Resource::close() noexcept {
  if (closed_.exchange(true, std::memory_order_acq_rel)) return false;
  scheduleFinish();
  return true;
}

void Resource::scheduleFinish() noexcept {
  if (auto self = weak_from_this().lock()) device->runAfterPrograms([self] { self->finish(); });
}

Device::Device(std::shared_ptr<Libraries> libraries, int ordinal, DeviceOptions options, Jobs& jobs)
    : programs(jobs.makePool(1, hasSpareCores() ? std::chrono::microseconds(200) : std::chrono::microseconds(0))),
      calls(jobs.makePool(1)),
      connections(jobs.makePool(2)),
      events(libraries->api, false),
      timedEvents(libraries->api, true),
      marks(libraries->api, false),
      tables(libraries->api),
      libraries_(std::move(libraries)),
      ordinal_(ordinal),
      options_(std::move(options)) {}

Status Device::open(const CancelToken& token) {
  const auto attempt = [&]() -> Status {
    DeviceScope scope(api(), ordinal_);
    if (Status status = scope.status(); !status.ok()) return status;
    if (Status status = callDriver(api(), api().initialise, 0u); !status.ok()) return status;
    for (size_t i = 0; i <= streamCount; i++) {
      auto stream = makeStream(api());
      if (!stream.ok()) return stream.status();
      (i == streamCount ? uploads : streams[i]) = std::move(stream.value());
    }
    if (token.isCancelled()) return failure(Code::Cancelled, "openDevice", "Opening the device was cancelled.");
    return kernels.load(*libraries_, ordinal_, options_.kernelCache, options_.blocks);
  };
  const Status status = caught("openDevice", attempt);
  if (!status.ok()) clear();
  (status.ok() ? open_ : dead_).store(true, std::memory_order_release);
  return status;
}

void Device::close() noexcept {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  open_.store(false, std::memory_order_release);
  for (const auto& pool : {connections, calls, programs}) pool->pool.close();
  open_.store(false, std::memory_order_release);  // it may have been opening
  DeviceScope scope(api(), ordinal_);
  std::vector<std::shared_ptr<Resource>> left;
  for (const auto& weak : resources_)
    if (auto resource = weak.lock()) left.push_back(std::move(resource));
  std::stable_sort(left.begin(), left.end(), [](const auto& a, const auto& b) { return a->rank() < b->rank(); });
  for (const auto& resource : left) resource->finish();
  clear();
  dead_.store(true, std::memory_order_release);
}

void Device::clear() noexcept {
  DeviceScope scope(api(), ordinal_);
  tables.clear();
  kernels.clear();
  events.clear();
  timedEvents.clear();
  marks.clear();
  uploads.reset();
  for (Stream& stream : streams) stream.reset();
}

void Device::adopt(const std::shared_ptr<Resource>& resource) {
  std::lock_guard lock(mutex_);
  if (resources_.size() == resources_.capacity())
    std::erase_if(resources_, [](const auto& weak) { return weak.expired(); });
  resources_.push_back(resource);
}

void Device::runAfterPrograms(std::function<void()> body) noexcept {
  const auto run = [this, body = std::move(body)] {
    DeviceScope scope(api(), ordinal_);
    body();
  };
  {
    std::lock_guard lock(mutex_);
    pendingReleases_++;
  }
  const auto counted = [this, run](const CancelToken&) {
    run();
    std::lock_guard lock(mutex_);
    pendingReleases_--;
    released_.notify_all();
  };
  if (!programs->pool.submit(std::make_shared<Task>(counted))) counted(CancelToken{});
}

bool Device::isReleasing() {
  std::lock_guard lock(mutex_);
  return pendingReleases_ > 0;
}

bool Device::waitForReleases(const CancelToken& token) {
  std::unique_lock lock(mutex_);
  if (pendingReleases_ == 0) return false;
  while (pendingReleases_ > 0 && !token.isCancelled()) released_.wait_for(lock, std::chrono::milliseconds(1));
  return !token.isCancelled();
}

}  // namespace tensorferry::gpu
