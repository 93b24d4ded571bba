// SPDX-License-Identifier: Apache-2.0
/*
 * Command lists and events of the simulated driver.
 */
#include <chrono>

#include "api.h"
#include "world.h"

namespace tensorferry::xpu::simulator {
namespace {

ze::Result createList(ze::ContextHandle handle, ze::DeviceHandle, const ze::QueueDescription* description,
                      ze::ListHandle* list) {
  return guarded("zeCommandListCreateImmediate", [&](Call& call) {
    World& world = call.world;
    const auto context = find(call, world.contexts, handle);
    if (context == nullptr) return ze::code::invalidNullHandle;
    const bool wantsOrder = (description->flags & ze::queueInOrder) != 0;
    if (wantsOrder && world.settings.apiVersion < ze::versionWithInOrder) return ze::code::invalidEnumeration;
    auto made = std::make_shared<List>();
    made->context = context;
    made->isInOrder = wantsOrder;
    *list = world.lists.issue(std::move(made));
    return ze::code::success;
  });
}

ze::Result destroyList(ze::ListHandle handle) {
  return guarded("zeCommandListDestroy", [&](Call& call) {
    const auto list = find(call, call.world.lists, handle);
    if (list == nullptr) return ze::code::invalidNullHandle;
    if (!list->queue.empty() && !call.world.isLost)
      call.world.violation("destroy-in-use", "A list was destroyed before its work was done.");
    call.world.lists.release(handle);
    return ze::code::success;
  });
}

/** Makes a command by `fill` and queues it. */
template <typename Fill>
ze::Result append(const char* function, ze::ListHandle handle, ze::EventHandle signal, uint32_t waitCount,
                  ze::EventHandle* waits, Fill fill) {
  return guarded(function, [&](Call& call) {
    const auto list = find(call, call.world.lists, handle);
    if (list == nullptr) return ze::code::invalidNullHandle;
    auto command = std::make_shared<Command>();
    fill(*command);
    if (command->kind != Command::Kind::Barrier)
      judgeRange(call.world, function, command->destination,
                 (command->rows - 1) * command->destinationPitch + command->width);
    if (command->kind == Command::Kind::Copy)
      judgeRange(call.world, function, command->source, (command->rows - 1) * command->sourcePitch + command->width);
    return submit(call, *list, std::move(command), signal, waitCount, waits);
  });
}

ze::Result barrier(ze::ListHandle list, ze::EventHandle signal, uint32_t waitCount, ze::EventHandle* waits) {
  return append("zeCommandListAppendBarrier", list, signal, waitCount, waits, [](Command&) {});
}

ze::Result copy(ze::ListHandle list, void* destination, const void* source, size_t size, ze::EventHandle signal,
                uint32_t waitCount, ze::EventHandle* waits) {
  return append("zeCommandListAppendMemoryCopy", list, signal, waitCount, waits, [&](Command& command) {
    command.kind = Command::Kind::Copy;
    command.destination = static_cast<uint8_t*>(destination);
    command.source = static_cast<const uint8_t*>(source);
    command.width = size;
  });
}

ze::Result copyRegion(ze::ListHandle list, void* destination, const ze::CopyRegion* to, uint32_t toPitch, uint32_t,
                      const void* source, const ze::CopyRegion* from, uint32_t fromPitch, uint32_t,
                      ze::EventHandle signal, uint32_t waitCount, ze::EventHandle* waits) {
  return append("zeCommandListAppendMemoryCopyRegion", list, signal, waitCount, waits, [&](Command& command) {
    command.kind = Command::Kind::Copy;
    command.destination = static_cast<uint8_t*>(destination) + to->originX + size_t{to->originY} * toPitch;
    command.source = static_cast<const uint8_t*>(source) + from->originX + size_t{from->originY} * fromPitch;
    command.width = to->width;
    command.rows = to->height;
    command.destinationPitch = toPitch;
    command.sourcePitch = fromPitch;
  });
}

ze::Result fill(ze::ListHandle list, void* memory, const void* pattern, size_t patternSize, size_t size,
                ze::EventHandle signal, uint32_t waitCount, ze::EventHandle* waits) {
  if (patternSize != 1) return ze::code::unsupportedSize;
  return append("zeCommandListAppendMemoryFill", list, signal, waitCount, waits, [&](Command& command) {
    command.kind = Command::Kind::Fill;
    command.destination = static_cast<uint8_t*>(memory);
    command.byte = *static_cast<const uint8_t*>(pattern);
    command.width = size;
  });
}

ze::Result createPool(ze::ContextHandle handle, const ze::EventPoolDescription* description, uint32_t,
                      ze::DeviceHandle*, ze::PoolHandle* pool) {
  return guarded("zeEventPoolCreate", [&](Call& call) {
    const auto context = find(call, call.world.contexts, handle);
    if (context == nullptr) return ze::code::invalidNullHandle;
    const bool timed = (description->flags & ze::poolTimestamps) != 0;
    if (timed && !call.world.settings.timestamps) return ze::code::unsupportedFeature;
    *pool = call.world.pools.issue(std::make_shared<Pool>(Pool{context, description->count, timed}));
    return ze::code::success;
  });
}

ze::Result destroyPool(ze::PoolHandle handle) {
  return guarded("zeEventPoolDestroy", [&](Call& call) {
    const auto pool = find(call, call.world.pools, handle);
    if (pool == nullptr) return ze::code::invalidNullHandle;
    for (const auto& [number, event] : call.world.events.all())
      if (event->pool == pool) call.world.violation("pool-in-use", "A pool was destroyed before its events.");
    call.world.pools.release(handle);
    return ze::code::success;
  });
}

ze::Result createEvent(ze::PoolHandle handle, const ze::EventDescription* description, ze::EventHandle* event) {
  return guarded("zeEventCreate", [&](Call& call) {
    const auto pool = find(call, call.world.pools, handle);
    if (pool == nullptr) return ze::code::invalidNullHandle;
    if (description->index >= pool->count) return ze::code::invalidArgument;
    auto made = std::make_shared<Event>();
    made->pool = pool;
    made->index = description->index;
    *event = call.world.events.issue(std::move(made));
    return ze::code::success;
  });
}

ze::Result destroyEvent(ze::EventHandle handle) {
  return guarded("zeEventDestroy", [&](Call& call) {
    const auto event = find(call, call.world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    if (event->signalling + event->waited > 0 && !call.world.isLost)
      call.world.violation("destroy-in-use", "An event was destroyed that queued work needs.");
    call.world.events.release(handle);
    return ze::code::success;
  });
}

ze::Result signalEvent(ze::EventHandle handle) {
  return guarded("zeEventHostSignal", [&](Call& call) {
    const auto event = find(call, call.world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    event->signalled = true;
    event->end = nanoseconds();
    call.world.changed.notify_all();
    call.world.wanted.notify_all();
    return ze::code::success;
  });
}

ze::Result waitEvent(ze::EventHandle handle, uint64_t timeout) {
  return guarded("zeEventHostSynchronize", [&](Call& call) {
    World& world = call.world;
    const auto event = find(call, world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    const auto limit = std::chrono::nanoseconds(std::min<uint64_t>(timeout, 3'600'000'000'000));
    world.waiting++;
    world.wanted.notify_all();
    world.changed.wait_until(call.lock, std::chrono::system_clock::now() + limit,
                             [&] { return event->signalled || world.isLost; });
    world.waiting--;
    if (world.isLost) return ze::code::deviceLost;
    return event->signalled ? ze::code::success : ze::code::notReady;
  });
}

ze::Result queryEvent(ze::EventHandle handle) {
  return guarded("zeEventQueryStatus", [&](Call& call) {
    const auto event = find(call, call.world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    if (event->signalled) return ze::code::success;
    if (call.world.random.chance(call.world.settings.query)) {
      call.world.allowed++;
      call.world.wanted.notify_all();
    }
    return ze::code::notReady;
  });
}

ze::Result resetEvent(ze::EventHandle handle) {
  return guarded("zeEventHostReset", [&](Call& call) {
    const auto event = find(call, call.world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    if (event->signalling + event->waited > 0)
      call.world.violation("reset-in-use", "An event was reset that queued work needs.");
    event->signalled = false;
    return ze::code::success;
  });
}

ze::Result eventTimes(ze::EventHandle handle, ze::KernelTimestamps* times) {
  return guarded("zeEventQueryKernelTimestamp", [&](Call& call) {
    const auto event = find(call, call.world.events, handle);
    if (event == nullptr) return ze::code::invalidNullHandle;
    if (!event->pool->timed) return ze::code::invalidArgument;
    if (!event->signalled) return ze::code::notReady;
    const uint32_t bits = call.world.settings.tickBits;
    const uint64_t mask = bits < 64 ? (uint64_t{1} << bits) - 1 : ~uint64_t{0};
    times->global = times->context = {event->start / 8 & mask, event->end / 8 & mask};
    return ze::code::success;
  });
}

}  // namespace

TENSORFERRY_ENTRY(createList)
TENSORFERRY_ENTRY(destroyList)
TENSORFERRY_ENTRY(barrier)
TENSORFERRY_ENTRY(copy)
TENSORFERRY_ENTRY(copyRegion)
TENSORFERRY_ENTRY(fill)
TENSORFERRY_ENTRY(createPool)
TENSORFERRY_ENTRY(destroyPool)
TENSORFERRY_ENTRY(createEvent)
TENSORFERRY_ENTRY(destroyEvent)
TENSORFERRY_ENTRY(signalEvent)
TENSORFERRY_ENTRY(waitEvent)
TENSORFERRY_ENTRY(queryEvent)
TENSORFERRY_ENTRY(resetEvent)
TENSORFERRY_ENTRY(eventTimes)

}  // namespace tensorferry::xpu::simulator
