// SPDX-License-Identifier: Apache-2.0
/*
 * The way to a device by Level Zero: a context, immediate command lists, and memory of the device and of the host.
 *
 * Invariant: the order of a queue is kept by the driver where it says that it does, by barriers otherwise.
 */
#include <algorithm>
#include <limits>

#include "level_zero_events.h"
#include "library.h"

namespace tensorferry::xpu {
namespace level_zero {
namespace {

constexpr size_t alignment = 64;

/** A device as the platform knows it. */
struct Listed {
  ze::DriverHandle driver;
  ze::DeviceHandle device;
  ze::DeviceProperties properties;
  uint32_t apiVersion;
};

class LevelZeroHold final : public Hold {
 public:
  explicit LevelZeroHold(std::shared_ptr<EventCompletion> event, const ze::Api& api) noexcept
      : event_(std::move(event)), api_(api) {}
  ~LevelZeroHold() override { release(); }
  Status release() noexcept override {
    if (std::exchange(released_, true)) return {};
    return callLevelZero(api_.signalEvent, event_->event());
  }

 private:
  const std::shared_ptr<EventCompletion> event_;
  const ze::Api& api_;
  bool released_ = false;
};

class LevelZeroQueue final : public Queue {
 public:
  LevelZeroQueue(const ze::Api& api, ze::ListHandle list, bool isInOrder, std::shared_ptr<EventPool> events,
                 std::shared_ptr<EventPool> timedEvents) noexcept
      : api_(api),
        list_(list),
        isInOrder_(isInOrder),
        events_(std::move(events)),
        timedEvents_(std::move(timedEvents)) {}
  ~LevelZeroQueue() override { api_.destroyList(list_); }

  Status copy(uint64_t destination, uint64_t source, uint64_t length) override {
    return appendCopy(destination, source, length, nullptr);
  }

  Status fill(uint64_t destination, uint8_t byte, uint64_t length) override {
    if (Status status = keepOrder(); !status.ok()) return status;
    return append(api_.fill, reinterpret_cast<void*>(destination), &byte, sizeof byte, length, nullptr);
  }

  bool takesRows(const Rows& rows) const override {
    constexpr uint64_t most = std::numeric_limits<uint32_t>::max();
    return rows.count > 1 && rows.count <= most && rows.length <= rows.destinationStep &&
           rows.length <= rows.sourceStep && rows.destinationStep <= most && rows.sourceStep <= most;
  }

  Status copyRows(const Rows& rows) override {
    if (!takesRows(rows)) return Queue::copyRows(rows);
    if (Status status = keepOrder(); !status.ok()) return status;
    ze::CopyRegion region;
    region.width = static_cast<uint32_t>(rows.length);
    region.height = static_cast<uint32_t>(rows.count);
    region.depth = 1;
    return append(api_.copyRegion, reinterpret_cast<void*>(rows.destination), &region,
                  static_cast<uint32_t>(rows.destinationStep), 0u, reinterpret_cast<const void*>(rows.source), &region,
                  static_cast<uint32_t>(rows.sourceStep), 0u, nullptr);
  }

  Result<CompletionRef> submitCopy(uint64_t destination, uint64_t source, uint64_t length, bool timed) override {
    auto done = EventCompletion::make(timed && timedEvents_ != nullptr ? timedEvents_ : events_);
    if (!done.ok()) return done.status();
    if (Status status = appendCopy(destination, source, length, done.value()->event()); !status.ok())
      return signalled(done.value(), std::move(status));
    owesBarrier_ = !isInOrder_;
    return CompletionRef(done.value());
  }

  Result<CompletionRef> mark() override {
    auto done = EventCompletion::make(events_);
    if (!done.ok()) return done.status();
    if (Status status = barrier(done.value()->event(), nullptr); !status.ok())
      return signalled(done.value(), std::move(status));
    return CompletionRef(done.value());
  }

  Status waitFor(const CompletionRef& completion) override {
    const auto event = std::dynamic_pointer_cast<EventCompletion>(completion);
    if (event == nullptr) return failure(Code::InvalidArgument, "waitFor", "The work is of another driver.");
    auto passed = waitForEvent(event);
    return passed.ok() ? Status{} : passed.status();
  }

  Result<std::shared_ptr<Hold>> hold() override {
    auto event = EventCompletion::make(events_);
    if (!event.ok()) return event.status();
    auto passed = waitForEvent(event.value());
    if (!passed.ok()) return signalled(event.value(), passed.status());
    return std::shared_ptr<Hold>(std::make_shared<LevelZeroHold>(event.value(), api_));
  }

 private:
  /** An event that the device waits for, and the one that it signals after that. */
  struct Passing {
    CompletionRef waited, passed;
  };

  Status appendCopy(uint64_t destination, uint64_t source, uint64_t length, ze::EventHandle signal) {
    if (Status status = keepOrder(); !status.ok()) return status;
    return append(api_.copy, reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source), length,
                  signal);
  }

  /** Every command begins with the list and ends with the events to wait for, of which there are none. */
  template <typename Function, typename... Values>
  Status append(const Function& function, Values... values) {
    const ze::Result result = function(list_, values..., 0, nullptr);
    return result == ze::code::success ? Status{} : levelZeroFailure(function.name, result);
  }

  Status barrier(ze::EventHandle signal, ze::EventHandle wait) {
    const ze::Result result = api_.barrier(list_, signal, wait == nullptr ? 0 : 1, wait == nullptr ? nullptr : &wait);
    if (result != ze::code::success) return levelZeroFailure(api_.barrier.name, result);
    owesBarrier_ = false;
    return {};
  }

  /** Before a command rather than behind it: a barrier that fails must not leave a command running that seems to have failed. */
  Status keepOrder() { return owesBarrier_ ? barrier(nullptr, nullptr) : Status{}; }

  /** An event that nothing will signal does so itself, so that its pool can use it again. */
  Status signalled(const std::shared_ptr<EventCompletion>& event, Status status) {
    api_.signalEvent(event->event());
    return status;
  }

  Result<CompletionRef> waitForEvent(const std::shared_ptr<EventCompletion>& event) {
    std::erase_if(passing_, [](const Passing& one) {
      auto done = one.passed->isDone();
      return done.ok() && done.value();
    });
    passing_.reserve(passing_.size() + 1);
    auto passed = EventCompletion::make(events_);
    if (!passed.ok()) return passed.status();
    if (Status status = barrier(passed.value()->event(), event->event()); !status.ok())
      return signalled(passed.value(), std::move(status));
    passing_.push_back({event, passed.value()});
    return CompletionRef(passed.value());
  }

  const ze::Api& api_;
  const ze::ListHandle list_;
  const bool isInOrder_;
  const std::shared_ptr<EventPool> events_, timedEvents_;
  std::vector<Passing> passing_;
  /** What comes next must not overtake a copy. */
  bool owesBarrier_ = false;
};

class LevelZeroDevice final : public DriverDevice {
 public:
  LevelZeroDevice(const ze::Api& api, const Listed& listed) noexcept : api_(api), listed_(listed) {}

  ~LevelZeroDevice() override {
    events_.reset();
    timedEvents_.reset();
    if (context_ != nullptr) api_.destroyContext(context_);
  }

  Status open(const Capabilities& forbidden) {
    ze::ContextDescription description;
    if (Status status = callLevelZero(api_.createContext, listed_.driver, &description, &context_); !status.ok())
      return status;
    chooseGroup();
    probeHostMemory(forbidden);
    probeImport(forbidden);
    return makeEvents(forbidden);
  }

  const Capabilities& capabilities() const noexcept override { return capabilities_; }

  Result<std::unique_ptr<Queue>> openQueue() override {
    ze::QueueDescription description;
    description.ordinal = group_;
    ze::ListHandle list = nullptr;
    bool isInOrder = false;
    // Older drivers may ignore a flag that they do not know: only newer ones are asked.
    if (listed_.apiVersion >= ze::versionWithInOrder) {
      description.flags = ze::queueInOrder;
      isInOrder = api_.createList(context_, listed_.device, &description, &list) == ze::code::success;
    }
    description.flags = 0;
    if (!isInOrder)
      if (Status status = callLevelZero(api_.createList, context_, listed_.device, &description, &list); !status.ok())
        return status;
    capabilities_.inOrderQueues = isInOrder;
    return std::unique_ptr<Queue>(std::make_unique<LevelZeroQueue>(api_, list, isInOrder, events_, timedEvents_));
  }

  Result<void*> allocate(uint64_t length) override {
    ze::DeviceMemoryDescription description;
    const ze::RelaxedLimits relaxed;
    if (length > listed_.properties.maxAllocationBytes) description.next = &relaxed;
    void* memory = nullptr;
    const ze::Result result = api_.allocateDevice(context_, &description, length, alignment, listed_.device, &memory);
    if (result == ze::code::success) return memory;
    Status status = levelZeroFailure(api_.allocateDevice.name, result);
    if (result == ze::code::unsupportedSize) status.code = Code::OutOfMemory;
    return status;
  }

  Status free(void* memory) noexcept override { return callLevelZero(api_.free, context_, memory); }

  Result<void*> allocateStaging(uint64_t length) override {
    if (capabilities_.pinnedHost) return hostMemory(length);
    void* memory = std::aligned_alloc(alignment, (length + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return failure(Code::OutOfMemory, "aligned_alloc", "The host has no memory for a copy.");
    return memory;
  }

  void freeStaging(void* memory) noexcept override {
    if (capabilities_.pinnedHost) {
      api_.free(context_, memory);
    } else {
      std::free(memory);
    }
  }

  Status importHost(void* memory, uint64_t length) override {
    if (import_ == nullptr) return failure(Code::Unsupported, ze::importName, "The driver imports no host memory.");
    const ze::Result result = import_(listed_.driver, memory, static_cast<size_t>(length));
    return result == ze::code::success ? Status{} : levelZeroFailure(ze::importName, result);
  }

  Status releaseHost(void* memory) noexcept override {
    const ze::Result result = release_(listed_.driver, memory);
    return result == ze::code::success ? Status{} : levelZeroFailure(ze::releaseName, result);
  }

 private:
  /** Engines that only copy leave the others to computations. */
  void chooseGroup() {
    uint32_t count = 0;
    if (api_.queueGroups(listed_.device, &count, nullptr) != ze::code::success) return;
    std::vector<ze::QueueGroupProperties> groups(count);
    if (count == 0 || api_.queueGroups(listed_.device, &count, groups.data()) != ze::code::success) return;
    const auto copiesOnly = std::find_if(groups.begin(), groups.end(), [](const auto& group) {
      return (group.flags & ze::groupCopies) != 0 && (group.flags & ze::groupComputes) == 0 && group.queues > 0;
    });
    if (copiesOnly != groups.end()) group_ = static_cast<uint32_t>(copiesOnly - groups.begin());
  }

  Result<void*> hostMemory(uint64_t length) {
    ze::HostMemoryDescription description;
    void* memory = nullptr;
    if (Status status =
            callLevelZero(api_.allocateHost, context_, &description, static_cast<size_t>(length), alignment, &memory);
        !status.ok())
      return status;
    return memory;
  }

  void probeHostMemory(const Capabilities& forbidden) {
    if (forbidden.pinnedHost) return;
    auto memory = hostMemory(alignment);
    if (!memory.ok()) return;
    capabilities_.pinnedHost = true;
    api_.free(context_, memory.value());
  }

  void probeImport(const Capabilities& forbidden) {
    if (forbidden.hostPointerImport) return;
    void *import = nullptr, *release = nullptr;
    if (api_.extensionFunction(listed_.driver, ze::importName, &import) != ze::code::success || import == nullptr)
      return;
    if (api_.extensionFunction(listed_.driver, ze::releaseName, &release) != ze::code::success || release == nullptr)
      return;
    import_ = reinterpret_cast<ze::ImportFunction*>(import);
    release_ = reinterpret_cast<ze::ReleaseFunction*>(release);
    capabilities_.hostPointerImport = true;
  }

  Status makeEvents(const Capabilities& forbidden) {
    events_ = std::make_shared<EventPool>(api_, context_, listed_.device, false, TickFacts{});
    const ze::DeviceProperties& facts = listed_.properties;
    if (!forbidden.timingEvents && facts.timerResolution > 0 && facts.kernelTimestampValidBits > 0) {
      TickFacts ticks{static_cast<double>(facts.timerResolution) * 1e-9, ~uint64_t{0}};
      if (facts.kernelTimestampValidBits < 64) ticks.mask = (uint64_t{1} << facts.kernelTimestampValidBits) - 1;
      auto timed = std::make_shared<EventPool>(api_, context_, listed_.device, true, ticks);
      auto event = timed->take();
      if (event.ok()) {
        api_.signalEvent(event.value());
        timed->give(event.value());
        timedEvents_ = std::move(timed);
        capabilities_.timingEvents = true;
      }
    }
    auto event = events_->take();
    if (!event.ok()) return event.status();
    api_.signalEvent(event.value());
    events_->give(event.value());
    return {};
  }

  const ze::Api& api_;
  const Listed listed_;
  ze::ContextHandle context_ = nullptr;
  uint32_t group_ = 0;
  Capabilities capabilities_;
  ze::ImportFunction* import_ = nullptr;
  ze::ReleaseFunction* release_ = nullptr;
  std::shared_ptr<EventPool> events_, timedEvents_;
};

class LevelZeroPlatform final : public Platform {
 public:
  explicit LevelZeroPlatform(const ze::Api& api) noexcept : api_(api) {}

  Status list() {
    if (Status status = callLevelZero(api_.initialise, 0u); !status.ok()) return status;
    uint32_t count = 0;
    if (Status status = callLevelZero(api_.drivers, &count, static_cast<ze::DriverHandle*>(nullptr)); !status.ok())
      return status;
    std::vector<ze::DriverHandle> drivers(count);
    if (count > 0)
      if (Status status = callLevelZero(api_.drivers, &count, drivers.data()); !status.ok()) return status;
    for (const auto driver : drivers)
      if (Status status = listDriver(driver); !status.ok()) return status;
    return {};
  }

  const std::vector<DeviceFacts>& devices() const noexcept override { return facts_; }

  Result<std::unique_ptr<DriverDevice>> open(size_t ordinal, const Capabilities& forbidden) override {
    if (ordinal >= listed_.size()) return failure(Code::NotFound, "open", "There is no such device.");
    auto device = std::make_unique<LevelZeroDevice>(api_, listed_[ordinal]);
    if (Status status = device->open(forbidden); !status.ok()) return status;
    return std::unique_ptr<DriverDevice>(std::move(device));
  }

 private:
  Status listDriver(ze::DriverHandle driver) {
    uint32_t apiVersion = 0, count = 0;
    ze::DriverProperties properties;
    if (Status status = callLevelZero(api_.driverApiVersion, driver, &apiVersion); !status.ok()) return status;
    if (Status status = callLevelZero(api_.driverProperties, driver, &properties); !status.ok()) return status;
    if (Status status = callLevelZero(api_.devices, driver, &count, static_cast<ze::DeviceHandle*>(nullptr));
        !status.ok())
      return status;
    std::vector<ze::DeviceHandle> devices(count);
    if (count > 0)
      if (Status status = callLevelZero(api_.devices, driver, &count, devices.data()); !status.ok()) return status;
    for (const auto device : devices) {
      Listed listed{driver, device, {}, apiVersion};
      if (Status status = callLevelZero(api_.deviceProperties, device, &listed.properties); !status.ok()) return status;
      if (listed.properties.type != ze::gpuDevice) continue;
      listed.properties.name[sizeof listed.properties.name - 1] = '\0';
      listed_.push_back(listed);
      facts_.push_back({listed.properties.name, "gpu",
                        std::to_string(properties.driverVersion) + " (Level Zero " + std::to_string(apiVersion >> 16) +
                            "." + std::to_string(apiVersion & 0xffff) + ")",
                        memoryOf(device), listed.properties.maxAllocationBytes});
    }
    return {};
  }

  uint64_t memoryOf(ze::DeviceHandle device) {
    uint32_t count = 0;
    if (api_.memoryProperties(device, &count, nullptr) != ze::code::success || count == 0) return 0;
    std::vector<ze::MemoryProperties> memories(count);
    if (api_.memoryProperties(device, &count, memories.data()) != ze::code::success) return 0;
    uint64_t total = 0;
    for (const auto& memory : memories) total += memory.totalBytes;
    return total;
  }

  const ze::Api& api_;
  std::vector<Listed> listed_;
  std::vector<DeviceFacts> facts_;
};

void fillApi(ze::Api& api, SymbolTable& table) {
#define TENSORFERRY_LEVEL_ZERO_FIND(member, symbol, ...) table.find(api.member, #symbol);
  TENSORFERRY_LEVEL_ZERO_FUNCTIONS(TENSORFERRY_LEVEL_ZERO_FIND)
#undef TENSORFERRY_LEVEL_ZERO_FIND
}

}  // namespace
}  // namespace level_zero

Found openLevelZero(const std::vector<std::string>& names) {
  return openPlatform<level_zero::LevelZeroPlatform, ze::Api>(names, level_zero::fillApi);
}

}  // namespace tensorferry::xpu
