// SPDX-License-Identifier: Apache-2.0
/*
 * See device.h. Order at the end: holds, threads, what is submitted, memory, queues, the driver's own objects.
 */
#include "device.h"

#include <algorithm>
#include <iterator>

namespace tensorferry::xpu {
namespace {

constexpr auto slice = std::chrono::milliseconds(5);
/** How long a device may take to end what was submitted before it counts as one that does not answer. */
constexpr auto closePatience = std::chrono::seconds(10);

}  // namespace

Status waitFor(Completion& completion, const CancelToken& token, std::chrono::nanoseconds patience) {
  auto waited = std::chrono::nanoseconds::zero();
  for (;;) {
    auto done = completion.wait(slice);
    if (!done.ok()) return done.status();
    if (done.value()) return {};
    if (!token.isCancelled()) continue;
    waited += slice;
    if (waited > patience) return failure(Code::Cancelled, "wait", "The wait was cancelled.");
  }
}

Device::Device(std::shared_ptr<Platform> platform, size_t ordinal, Capabilities forbidden, Jobs& jobs)
    : work(jobs.makePool(1)),
      calls(jobs.makePool(1)),
      waits(jobs.makePool(2)),
      platform_(std::move(platform)),
      ordinal_(ordinal),
      forbidden_(forbidden) {}

Status Device::open() {
  Status status = caught("openDevice", [&] { return connect(); });
  (status.ok() ? open_ : dead_).store(true, std::memory_order_release);
  return status;
}

Status Device::connect() {
  auto driver = platform_->open(ordinal_, forbidden_);
  if (!driver.ok()) return driver.status();
  driver_ = std::move(driver.value());
  for (size_t i = 0; i < queueCount; i++) {
    auto queue = driver_->openQueue();
    if (!queue.ok()) {
      for (auto& opened : queues_) opened.reset();
      driver_.reset();
      return queue.status();
    }
    std::lock_guard lock(locks_[i]);
    queues_[i] = std::move(queue.value());
  }
  return {};
}

void Device::close() noexcept {
  if (std::exchange(closed_, true)) return;
  open_.store(false, std::memory_order_release);
  std::vector<std::shared_ptr<Dependent>> dependents;
  for (const auto& weak : dependents_)
    if (auto dependent = weak.lock()) dependents.push_back(std::move(dependent));
  for (const auto& dependent : dependents)
    if (dynamic_cast<HeldQueue*>(dependent.get()) != nullptr) dependent->abandon();
  for (const auto& pool : {waits, calls, work}) pool->pool.close();
  open_.store(false, std::memory_order_release);  // it may have been opening
  if (driver_ == nullptr) return;
  CancelToken token;
  token.cancel();
  const Status drained = caught("close", [&] { return drain(token, closePatience); });
  for (const auto& dependent : dependents) dependent->abandon();
  if (drained.code == Code::Cancelled) {
    // The device may still write: what it uses stays for ever.
    for (auto& queue : queues_) queue.release();
    driver_.release();
    return;
  }
  for (const auto& [address, length] : memory_) driver_->free(reinterpret_cast<void*>(address));
  memory_.clear();
  for (size_t i = 0; i < queueCount; i++) {
    std::lock_guard lock(locks_[i]);
    queues_[i].reset();
  }
  driver_.reset();
}

Result<uint64_t> Device::allocate(uint64_t length) {
  auto memory = driver_->allocate(length);
  if (!memory.ok()) return memory.status();
  const auto address = reinterpret_cast<uint64_t>(memory.value());
  std::lock_guard lock(memoryLock_);
  memory_.emplace(address, length);
  return address;
}

Status Device::free(uint64_t address) {
  {
    std::lock_guard lock(memoryLock_);
    if (memory_.erase(address) == 0)
      return failure(Code::InvalidHandle, "freeMemory", "There is no memory of this device.");
  }
  return driver_->free(reinterpret_cast<void*>(address));
}

bool Device::owns(uint64_t address) {
  std::lock_guard lock(memoryLock_);
  const auto after = memory_.upper_bound(address);
  if (after == memory_.begin()) return false;
  const auto& [start, length] = *std::prev(after);
  return address - start < length;
}

Status Device::drain(const CancelToken& token, std::chrono::nanoseconds patience) {
  Status first;
  for (const QueueKind kind : {QueueKind::Copies, QueueKind::Work}) {
    auto mark = withQueue(kind, [](Queue& queue) { return queue.mark(); });
    // What waits for the end of everything must not go on because one call failed.
    if (!mark.ok()) mark = withQueue(kind, [](Queue& queue) { return queue.mark(); });
    Status status = mark.ok() ? waitFor(*mark.value(), token, patience) : mark.status();
    if (first.ok() || status.code == Code::Cancelled) first = std::move(status);
  }
  return first;
}

void Device::adopt(const std::shared_ptr<Dependent>& dependent) {
  // Swept when it has doubled, so that adopting stays cheap.
  if (dependents_.size() == dependents_.capacity())
    std::erase_if(dependents_, [](const auto& weak) { return weak.expired(); });
  dependents_.push_back(dependent);
}

Status Copy::start() {
  if (!device->isOpen()) return failure(Code::InvalidHandle, "startCopy", "The device is closed.");
  if (length_ == 0) return {};
  auto started = device->withQueue(
      QueueKind::Copies, [&](Queue& queue) { return queue.submitCopy(destination_, source_, length_, timed_); });
  if (!started.ok()) return started.status();
  std::lock_guard lock(mutex_);
  completion_ = std::move(started.value());
  return {};
}

}  // namespace tensorferry::xpu
