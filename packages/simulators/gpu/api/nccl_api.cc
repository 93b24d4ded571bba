// SPDX-License-Identifier: Apache-2.0
/*
 * The calls of NCCL: meeting in a room, groups, errors, and leaving.
 */
#include <algorithm>
#include <cstring>

#include "nccl_rooms.h"
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

struct PendingPart {
  CommunicatorRef communicator;
  Part part;
  StreamRef stream;
  bool stall;
  int late;
};

/** What a thread has collected since its outermost group began. */
struct Group {
  uint64_t epoch = 0;
  int depth = 0;
  int error = 0;
  std::vector<PendingPart> parts;
  std::vector<CommunicatorRef> joining;
};

Group& threadGroup(World& world) {
  thread_local Group group;
  if (group.epoch != world.epoch) {
    group = Group{};
    group.epoch = world.epoch;
  }
  return group;
}

int refuse(World& world, int error, std::string text) {
  world.communicators.lastError = std::move(text);
  return error;
}

CommunicatorRef findCommunicator(World& world, const void* handle, const char* function) {
  auto communicator = world.communicators.handles.find(handle);
  if (communicator == nullptr) {
    const bool released = world.communicators.handles.wasReleased(handle);
    world.violation(released ? "use-after-destroy" : "bad-handle",
                    std::string(function) + " with a communicator that " + (released ? "is gone." : "does not exist."));
  }
  return communicator;
}

/** Waits until all ranks have come, or one is gone. */
int waitJoined(Call& call, const CommunicatorRef& communicator) {
  World& world = call.world;
  const int answer = drive(
      world, call.lock, "ncclCommInitRank of rank " + std::to_string(communicator->rank),
      [](std::vector<StreamRef>&) {},
      [&] {
        watchPeers(world, *communicator, false);
        return communicator->aborted || communicator->asyncError != 0 || allJoined(world, *communicator);
      });
  if (answer != 0) return refuse(world, collectives::systemError, "Not all ranks came.");
  return communicator->asyncError;
}

int start(Call& call, void** out, int ranks, const UniqueId& identifier, int rank, bool blocking) {
  World& world = call.world;
  if (out == nullptr || ranks < 1 || ranks > static_cast<int>(maxRanks) || rank < 0 || rank >= ranks)
    return refuse(world, collectives::invalidArgument, "Bad rank or number of ranks.");
  *out = nullptr;
  if (world.settings.devices == 0) return refuse(world, collectives::unhandledDeviceError, "No device.");
  call.thread.bound = true;
  auto communicator = std::make_shared<Communicator>();
  const auto count = static_cast<uint32_t>(ranks);
  if (const int error = enterRoom(world, identifier, count, communicator->room); error != 0)
    return refuse(world, error, "The unique id does not lead to the other ranks.");
  communicator->rank = static_cast<uint32_t>(rank);
  communicator->device = call.thread.device;
  communicator->blocking = blocking;
  communicator->sent.resize(count);
  communicator->received.resize(count);
  communicator->polls = static_cast<unsigned>(world.random.below(4));
  RankSlot& slot = communicator->room->head->slots[rank];
  const auto process = static_cast<uint32_t>(getpid());
  uint32_t absent = 0;
  if (!slot.process.compare_exchange_strong(absent, process)) {
    world.violation("nccl-rank-twice", "Rank " + std::to_string(rank) + " joined twice with one unique id.");
    return refuse(world, collectives::invalidUsage, "The rank has joined already.");
  }
  slot.start.store(processStart(process));
  slot.device.store(deviceKey(world, communicator->device));
  slot.state.store(static_cast<uint32_t>(RankState::Joined), std::memory_order_release);
  *out = world.communicators.handles.issue(communicator);
  world.announce();
  wakePacer(world);
  Group& group = threadGroup(world);
  if (group.depth > 0) {
    group.joining.push_back(communicator);
    return collectives::success;
  }
  if (!blocking) return collectives::inProgress;
  const int error = waitJoined(call, communicator);
  if (error != 0 && world.communicators.handles.release(*out) != nullptr) {
    slot.state.store(static_cast<uint32_t>(RankState::Aborted), std::memory_order_release);
    *out = nullptr;
  }
  return error;
}

size_t typeBytes(int type) {
  constexpr size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type < 0 || type > 11 ? 0 : bytes[type];
}

/** Hands what a thread has collected to the streams. */
int endGroup(Call& call, Group& group) {
  World& world = call.world;
  std::vector<CommunicatorRef> joining = std::move(group.joining);
  std::vector<PendingPart> parts = std::move(group.parts);
  int answer = std::exchange(group.error, 0);
  group.joining.clear();
  group.parts.clear();
  const uint64_t epoch = world.epoch;
  for (const auto& communicator : joining) {
    if (!communicator->blocking) {
      answer = answer == 0 ? collectives::inProgress : answer;
    } else if (const int error = waitJoined(call, communicator); error != 0) {
      answer = error;
    }
    if (world.epoch != epoch) return collectives::systemError;
  }
  if (answer != 0 && answer != collectives::inProgress) return answer;
  std::vector<CommunicatorRef> order;
  std::map<const Communicator*, GroupWork> work;
  for (auto& pending : parts) {
    GroupWork& one = work[pending.communicator.get()];
    if (one.parts.empty()) order.push_back(pending.communicator);
    one.parts.push_back(pending.part);
    one.stall |= pending.stall;
    if (pending.late != 0) one.late = pending.late;
    if (std::find(one.streams.begin(), one.streams.end(), pending.stream) == one.streams.end())
      one.streams.push_back(pending.stream);
  }
  for (const auto& communicator : order) {
    GroupWork& one = work[communicator.get()];
    one.stall |= call.stall;
    if (call.late != 0) one.late = call.late;
    communicator->accepted.push_back(std::move(one));
    if (communicator->blocking) {
      queueAccepted(world, communicator);
    } else {
      // The work reaches the stream later, as with the real library's background thread.
      communicator->polls = 1 + static_cast<unsigned>(world.random.below(4));
      answer = collectives::inProgress;
    }
  }
  return answer;
}

int addPart(const char* function, bool send, const void* buffer, size_t count, int type, int peer, void* handle,
            void* streamHandle) {
  return guarded(function, collectives::internalError, [&](Call& call) -> int {
    World& world = call.world;
    Group& group = threadGroup(world);
    const auto fail = [&](int error, std::string text) {
      if (group.depth > 0) group.error = error;
      return refuse(world, error, std::move(text));
    };
    const CommunicatorRef communicator = findCommunicator(world, handle, function);
    if (communicator == nullptr) return fail(collectives::invalidArgument, "Bad communicator.");
    if (!communicator->ready || !communicator->accepted.empty()) {
      world.violation(
          "nccl-before-success",
          std::string(function) + " before the previous operation of the communicator has returned success.");
      return fail(collectives::invalidArgument, "The communicator is in progress.");
    }
    if (communicator->finalized) return fail(collectives::invalidUsage, "The communicator is finalized.");
    if (communicator->asyncError != 0) return fail(communicator->asyncError, communicator->lastError);
    if (typeBytes(type) == 0 || peer < 0 || peer >= static_cast<int>(communicator->room->ranks))
      return fail(collectives::invalidArgument, "Bad data type or peer.");
    const StreamRef stream = findStream(world, streamHandle, function);
    if (stream == nullptr) return fail(collectives::unhandledDeviceError, "Bad stream.");
    if (stream->device != communicator->device) {
      world.violation("wrong-device", std::string(function) + " in a stream of device " +
                                          std::to_string(stream->device) + " on a communicator of device " +
                                          std::to_string(communicator->device) + ".");
      return fail(collectives::invalidArgument, "The stream is of another device.");
    }
    const size_t bytes = count * typeBytes(type);
    const auto address = reinterpret_cast<uintptr_t>(buffer);
    if (bytes > 0) {
      const Located place = locate(world, address, bytes, function);
      const Allocation* allocation = world.memory.find(address);
      if (place.error != 0) return fail(collectives::invalidArgument, "The buffer is not within one allocation.");
      if (allocation == nullptr) {
        world.violation("bad-address", std::string(function) + " of memory that is not device memory.");
        return fail(collectives::invalidArgument, "The buffer is not device memory.");
      }
      if (allocation->kind != Kind::Imported && allocation->device != communicator->device) {
        world.violation("wrong-device",
                        std::string(function) + " of memory of another device than the communicator's.");
        return fail(collectives::invalidArgument, "The buffer is of another device.");
      }
    }
    Part part;
    part.send = send;
    part.peer = static_cast<uint32_t>(peer);
    part.address = address;
    part.bytes = bytes;
    group.parts.push_back({communicator, part, stream, call.stall, call.late});
    return group.depth > 0 ? collectives::success : endGroup(call, group);
  });
}

/** Waits until the work of a communicator is done. */
int drain(Call& call, const CommunicatorRef& communicator) {
  queueAccepted(call.world, communicator);
  if (!communicator->busy()) return collectives::success;
  const Dependency last = communicator->last;
  const int answer = drive(
      call.world, call.lock, std::string(call.function) + " of rank " + std::to_string(communicator->rank),
      [&](std::vector<StreamRef>& open) { open.push_back(last.stream); },
      [&] { return last.met() || communicator->asyncError != 0 || communicator->aborted; });
  return answer == 0 ? communicator->asyncError : collectives::systemError;
}

template <typename Body>
int communicatorCall(const char* function, void* handle, Body body) noexcept {
  return guarded(function, collectives::internalError, [&](Call& call) -> int {
    const CommunicatorRef communicator = findCommunicator(call.world, handle, function);
    return communicator == nullptr ? collectives::invalidArgument : body(call, communicator);
  });
}

void leave(Call& call, void* handle, const CommunicatorRef& communicator, RankState state) {
  communicator->room->head->slots[communicator->rank].state.store(static_cast<uint32_t>(state),
                                                                  std::memory_order_release);
  call.world.communicators.handles.release(handle);
  call.world.announce();
}

}  // namespace

TENSORFERRY_SIM_API int ncclGetVersion(int* version) {
  return guarded("ncclGetVersion", collectives::internalError, [&](Call&) -> int {
    return version == nullptr ? collectives::invalidArgument : (*version = collectivesVersion, 0);
  });
}

TENSORFERRY_SIM_API int ncclGetUniqueId(UniqueId* identifier) {
  return guarded("ncclGetUniqueId", collectives::internalError, [&](Call& call) -> int {
    return identifier == nullptr ? collectives::invalidArgument : makeRoom(call.world, *identifier);
  });
}

TENSORFERRY_SIM_API int ncclCommInitRank(void** out, int ranks, UniqueId identifier, int rank) {
  return guarded("ncclCommInitRank", collectives::internalError,
                 [&](Call& call) { return start(call, out, ranks, identifier, rank, true); });
}

TENSORFERRY_SIM_API int ncclCommInitRankConfig(void** out, int ranks, UniqueId identifier, int rank,
                                               const NcclConfig* config) {
  return guarded("ncclCommInitRankConfig", collectives::internalError, [&](Call& call) -> int {
    bool blocking = true;
    if (config != nullptr) {
      const bool known = config->size >= sizeof(NcclConfig) && config->size <= 4096 && config->magic == ncclConfigMagic;
      if (!known) return refuse(call.world, collectives::invalidArgument, "The configuration is not initialized.");
      if (config->blocking != 0 && config->blocking != 1 && config->blocking != INT32_MIN)
        return refuse(call.world, collectives::invalidArgument, "Bad value of blocking.");
      blocking = config->blocking != 0;
    }
    return start(call, out, ranks, identifier, rank, blocking);
  });
}

TENSORFERRY_SIM_API int ncclCommGetAsyncError(void* handle, int* error) {
  return communicatorCall("ncclCommGetAsyncError", handle, [&](Call& call, const CommunicatorRef& communicator) -> int {
    if (error == nullptr) return collectives::invalidArgument;
    World& world = call.world;
    watchPeers(world, *communicator, true);
    if (communicator->polls > 0) {
      communicator->polls--;
    } else if (communicator->asyncError == 0 && allJoined(world, *communicator)) {
      queueAccepted(world, communicator);
    }
    const bool finalizing = communicator->finalized && communicator->busy();
    if (finalizing) nudge(world, call.lock);
    const bool inProgress = !communicator->ready || !communicator->accepted.empty() || finalizing;
    *error = communicator->asyncError != 0 ? communicator->asyncError
             : inProgress                  ? collectives::inProgress
                                           : collectives::success;
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclCommCount(void* handle, int* count) {
  return communicatorCall("ncclCommCount", handle, [&](Call&, const CommunicatorRef& communicator) -> int {
    if (count == nullptr || !communicator->ready) return collectives::invalidArgument;
    *count = static_cast<int>(communicator->room->ranks);
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclCommUserRank(void* handle, int* rank) {
  return communicatorCall("ncclCommUserRank", handle, [&](Call&, const CommunicatorRef& communicator) -> int {
    if (rank == nullptr || !communicator->ready) return collectives::invalidArgument;
    *rank = static_cast<int>(communicator->rank);
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclCommCuDevice(void* handle, int* device) {
  return communicatorCall("ncclCommCuDevice", handle, [&](Call&, const CommunicatorRef& communicator) -> int {
    if (device == nullptr) return collectives::invalidArgument;
    *device = communicator->device;
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclCommFinalize(void* handle) {
  return communicatorCall("ncclCommFinalize", handle, [&](Call& call, const CommunicatorRef& communicator) -> int {
    if (communicator->finalized) return collectives::invalidUsage;
    communicator->finalized = true;
    if (communicator->blocking) return drain(call, communicator);
    return communicator->busy() ? collectives::inProgress : collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclCommDestroy(void* handle) {
  return communicatorCall("ncclCommDestroy", handle, [&](Call& call, const CommunicatorRef& communicator) -> int {
    const uint64_t epoch = call.world.epoch;
    const int answer = drain(call, communicator);
    if (call.world.epoch != epoch) return collectives::systemError;
    // Work that cannot end any more must not hold its stream for ever.
    communicator->aborted = true;
    leave(call, handle, communicator, answer == 0 ? RankState::Left : RankState::Aborted);
    return answer;
  });
}

TENSORFERRY_SIM_API int ncclCommAbort(void* handle) {
  return communicatorCall("ncclCommAbort", handle, [&](Call& call, const CommunicatorRef& communicator) -> int {
    communicator->aborted = true;
    communicator->accepted.clear();
    leave(call, handle, communicator, RankState::Aborted);
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclGroupStart() {
  return guarded("ncclGroupStart", collectives::internalError, [](Call& call) -> int {
    threadGroup(call.world).depth++;
    return collectives::success;
  });
}

TENSORFERRY_SIM_API int ncclGroupEnd() {
  return guarded("ncclGroupEnd", collectives::internalError, [](Call& call) -> int {
    Group& group = threadGroup(call.world);
    if (group.depth == 0) {
      call.world.violation("group-not-started", "ncclGroupEnd without ncclGroupStart.");
      return refuse(call.world, collectives::invalidUsage, "No group was started.");
    }
    return --group.depth > 0 ? collectives::success : endGroup(call, group);
  });
}

TENSORFERRY_SIM_API int ncclSend(const void* buffer, size_t count, int type, int peer, void* communicator,
                                 void* stream) {
  return addPart("ncclSend", true, buffer, count, type, peer, communicator, stream);
}

TENSORFERRY_SIM_API int ncclRecv(void* buffer, size_t count, int type, int peer, void* communicator, void* stream) {
  return addPart("ncclRecv", false, buffer, count, type, peer, communicator, stream);
}

TENSORFERRY_SIM_API const char* ncclGetErrorString(int error) {
  static const char* const texts[] = {"no error",
                                      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
                                      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
                                      "internal error - please report this issue to the NCCL developers",
                                      "invalid argument (run with NCCL_DEBUG=WARN for details)",
                                      "invalid usage (run with NCCL_DEBUG=WARN for details)",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return error >= 0 && error < 8 ? texts[error] : "unknown result code";
}

TENSORFERRY_SIM_API const char* ncclGetLastError(void* handle) {
  thread_local std::string text;
  guarded("ncclGetLastError", collectives::internalError, [&](Call& call) -> int {
    const auto communicator = call.world.communicators.handles.find(handle);
    text = communicator != nullptr && !communicator->lastError.empty() ? communicator->lastError
                                                                       : call.world.communicators.lastError;
    return 0;
  });
  return text.c_str();
}

}  // namespace tensorferry::gpu::simulator
