// SPDX-License-Identifier: Apache-2.0
/*
 * The way to a device by OpenCL: one context, in-order queues, and shared virtual memory, whose addresses copies take as
 * they are, also together with plain host memory.
 */
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "library.h"
#include "opencl_events.h"

namespace tensorferry::xpu {
namespace opencl {
namespace {

constexpr uint32_t alignment = 64;

struct Listed {
  cl::DeviceHandle device;
  uint64_t type;
};

class ClHold final : public Hold {
 public:
  ClHold(const cl::Api& api, cl::EventHandle event) noexcept : api_(api), event_(event) {}
  ~ClHold() override {
    release();
    if (passed_ != nullptr) api_.releaseEvent(passed_);
    api_.releaseEvent(event_);
  }
  /** Signalled when the hold is passed; some drivers do not survive a failure of what nobody holds. */
  cl::EventHandle* passed() noexcept { return &passed_; }
  Status release() noexcept override { return end(cl::statusComplete); }
  Status fail() noexcept override { return end(cl::code::outOfResources); }

 private:
  Status end(int32_t status) noexcept {
    if (std::exchange(released_, true)) return {};
    return callOpenCl(api_.setUserEvent, event_, status);
  }

  const cl::Api& api_;
  const cl::EventHandle event_;
  cl::EventHandle passed_ = nullptr;
  bool released_ = false;
};

class ClQueue final : public Queue {
 public:
  ClQueue(const cl::Api& api, cl::ContextHandle context, cl::QueueHandle queue, bool timed) noexcept
      : api_(api), context_(context), queue_(queue), timed_(timed) {}
  ~ClQueue() override { api_.releaseQueue(queue_); }

  Status copy(uint64_t destination, uint64_t source, uint64_t length) override {
    return append(destination, source, length, nullptr);
  }

  Status fill(uint64_t destination, uint8_t byte, uint64_t length) override {
    const int32_t answer =
        api_.fill(queue_, reinterpret_cast<void*>(destination), &byte, sizeof byte, length, 0, nullptr, nullptr);
    return answer == cl::code::success ? Status{} : openClFailure(api_.fill.name, answer);
  }

  Result<CompletionRef> submitCopy(uint64_t destination, uint64_t source, uint64_t length, bool timed) override {
    cl::EventHandle event = nullptr;
    if (Status status = append(destination, source, length, &event); !status.ok()) return status;
    return submitted(event, timed && timed_);
  }

  Result<CompletionRef> mark() override {
    cl::EventHandle event = nullptr;
    const int32_t answer = api_.marker(queue_, 0, nullptr, &event);
    if (answer != cl::code::success) return openClFailure(api_.marker.name, answer);
    return submitted(event, false);
  }

  Status waitFor(const CompletionRef& completion) override {
    const auto done = std::dynamic_pointer_cast<ClCompletion>(completion);
    if (done == nullptr) return failure(Code::InvalidArgument, "waitFor", "The work is of another driver.");
    return barrierAfter(done->event(), nullptr);
  }

  Result<std::shared_ptr<Hold>> hold() override {
    int32_t answer = cl::code::success;
    const auto event = api_.userEvent(context_, &answer);
    if (event == nullptr) return openClFailure(api_.userEvent.name, answer);
    auto held = std::make_shared<ClHold>(api_, event);
    if (Status status = barrierAfter(event, held->passed()); !status.ok()) return status;
    return std::shared_ptr<Hold>(std::move(held));
  }

 private:
  Status append(uint64_t destination, uint64_t source, uint64_t length, cl::EventHandle* event) {
    const int32_t answer = api_.copy(queue_, 0, reinterpret_cast<void*>(destination),
                                     reinterpret_cast<const void*>(source), length, 0, nullptr, event);
    return answer == cl::code::success ? Status{} : openClFailure(api_.copy.name, answer);
  }

  Status barrierAfter(cl::EventHandle event, cl::EventHandle* passed) {
    const int32_t answer = api_.barrier(queue_, 1, &event, passed);
    return answer == cl::code::success ? Status{} : openClFailure(api_.barrier.name, answer);
  }

  /** What is not flushed may never start. A flush that fails is told by the event. */
  Result<CompletionRef> submitted(cl::EventHandle event, bool timed) {
    auto completion = std::make_shared<ClCompletion>(api_, event, timed);
    api_.flush(queue_);
    return CompletionRef(std::move(completion));
  }

  const cl::Api& api_;
  const cl::ContextHandle context_;
  const cl::QueueHandle queue_;
  const bool timed_;
};

class ClDevice final : public DriverDevice {
 public:
  ClDevice(const cl::Api& api, cl::DeviceHandle device) noexcept : api_(api), device_(device) {}
  ~ClDevice() override {
    if (context_ != nullptr) api_.releaseContext(context_);
  }

  Status open(const Capabilities& forbidden) {
    int32_t answer = cl::code::success;
    context_ = api_.createContext(nullptr, 1, &device_, nullptr, nullptr, &answer);
    if (context_ == nullptr) return openClFailure(api_.createContext.name, answer);
    capabilities_.inOrderQueues = true;
    if (forbidden.timingEvents) return {};
    if (auto queue = makeQueue(true); queue.ok()) capabilities_.timingEvents = true;
    return {};
  }

  const Capabilities& capabilities() const noexcept override { return capabilities_; }

  Result<std::unique_ptr<Queue>> openQueue() override { return makeQueue(capabilities_.timingEvents); }

  Result<void*> allocate(uint64_t length) override {
    void* memory = api_.allocate(context_, cl::memoryReadWrite, length, alignment);
    if (memory == nullptr)
      return failure(Code::OutOfMemory, api_.allocate.name,
                     "OpenCL has no " + std::to_string(length) + " bytes of shared virtual memory.");
    return memory;
  }

  Status free(void* memory) noexcept override {
    api_.free(context_, memory);
    return {};
  }

  Result<void*> allocateStaging(uint64_t length) override {
    void* memory = std::aligned_alloc(alignment, (length + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return failure(Code::OutOfMemory, "aligned_alloc", "The host has no memory for a copy.");
    return memory;
  }
  void freeStaging(void* memory) noexcept override { std::free(memory); }

  Status importHost(void*, uint64_t) override {
    return failure(Code::Unsupported, "importHost", "OpenCL imports no host memory.");
  }
  Status releaseHost(void*) noexcept override {
    return failure(Code::Unsupported, "releaseHost", "OpenCL imports no host memory.");
  }

 private:
  Result<std::unique_ptr<Queue>> makeQueue(bool timed) {
    const uint64_t properties[] = {cl::queueProperties, timed ? cl::queueProfiling : 0, 0};
    int32_t answer = cl::code::success;
    const auto queue = api_.createQueue(context_, device_, properties, &answer);
    if (queue == nullptr) return openClFailure(api_.createQueue.name, answer);
    return std::unique_ptr<Queue>(std::make_unique<ClQueue>(api_, context_, queue, timed));
  }

  const cl::Api& api_;
  const cl::DeviceHandle device_;
  cl::ContextHandle context_ = nullptr;
  Capabilities capabilities_;
};

class ClPlatform final : public Platform {
 public:
  explicit ClPlatform(const cl::Api& api) noexcept : api_(api) {}

  Status list() {
    uint32_t count = 0;
    if (Status status = callOpenCl(api_.platforms, 0u, static_cast<cl::PlatformHandle*>(nullptr), &count); !status.ok())
      return status;
    std::vector<cl::PlatformHandle> platforms(count);
    if (count > 0)
      if (Status status = callOpenCl(api_.platforms, count, platforms.data(), static_cast<uint32_t*>(nullptr));
          !status.ok())
        return status;
    for (const auto platform : platforms)
      if (Status status = listPlatform(platform); !status.ok()) return status;
    // Processors that run OpenCL are the last choice.
    std::stable_sort(listed_.begin(), listed_.end(),
                     [](const Listed& a, const Listed& b) { return rank(a.type) < rank(b.type); });
    for (const Listed& listed : listed_) facts_.push_back(factsOf(listed));
    return {};
  }

  const std::vector<DeviceFacts>& devices() const noexcept override { return facts_; }

  Result<std::unique_ptr<DriverDevice>> open(size_t ordinal, const Capabilities& forbidden) override {
    if (ordinal >= listed_.size()) return failure(Code::NotFound, "open", "There is no such device.");
    auto device = std::make_unique<ClDevice>(api_, listed_[ordinal].device);
    if (Status status = device->open(forbidden); !status.ok()) return status;
    return std::unique_ptr<DriverDevice>(std::move(device));
  }

 private:
  static int rank(uint64_t type) noexcept {
    return (type & cl::deviceGpu) != 0 ? 0 : (type & cl::deviceAccelerator) != 0 ? 1 : 2;
  }

  template <typename Value>
  Value infoOf(cl::DeviceHandle device, uint32_t what) const {
    Value value{};
    api_.deviceInfo(device, what, sizeof value, &value, nullptr);
    return value;
  }

  std::string textOf(cl::DeviceHandle device, uint32_t what) const {
    char text[1024] = {};
    api_.deviceInfo(device, what, sizeof text - 1, text, nullptr);
    return text;
  }

  Status listPlatform(cl::PlatformHandle platform) {
    uint32_t count = 0;
    const int32_t answer = api_.devices(platform, cl::deviceAll, 0, nullptr, &count);
    if (answer == cl::code::deviceNotFound || count == 0) return {};
    if (answer != cl::code::success) return openClFailure(api_.devices.name, answer);
    std::vector<cl::DeviceHandle> devices(count);
    if (Status status =
            callOpenCl(api_.devices, platform, cl::deviceAll, count, devices.data(), static_cast<uint32_t*>(nullptr));
        !status.ok())
      return status;
    for (const auto device : devices)
      if ((infoOf<uint64_t>(device, cl::deviceSvmCapabilities) & cl::svmCoarseBuffer) != 0)
        listed_.push_back({device, infoOf<uint64_t>(device, cl::deviceType)});
    return {};
  }

  DeviceFacts factsOf(const Listed& listed) const {
    static constexpr const char* kinds[] = {"gpu", "accelerator", "cpu"};
    return {textOf(listed.device, cl::deviceName), kinds[rank(listed.type)],
            textOf(listed.device, cl::driverVersion) + " (" + textOf(listed.device, cl::deviceVersion) + ")",
            infoOf<uint64_t>(listed.device, cl::deviceGlobalMemory),
            infoOf<uint64_t>(listed.device, cl::deviceMaxAllocation)};
  }

  const cl::Api& api_;
  std::vector<Listed> listed_;
  std::vector<DeviceFacts> facts_;
};

void fillApi(cl::Api& api, SymbolTable& table) {
#define TENSORFERRY_OPENCL_FIND(member, symbol, ...) table.find(api.member, #symbol);
  TENSORFERRY_OPENCL_FUNCTIONS(TENSORFERRY_OPENCL_FIND)
#undef TENSORFERRY_OPENCL_FIND
}

}  // namespace
}  // namespace opencl

Found openOpenCl(const std::vector<std::string>& names) {
  return openPlatform<opencl::ClPlatform, cl::Api>(names, opencl::fillApi);
}

}  // namespace tensorferry::xpu
