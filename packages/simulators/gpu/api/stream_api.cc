// SPDX-License-Identifier: Apache-2.0
/*
 * The calls about streams.
 */
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

int create(Call& call, void** handle, unsigned flags) {
  if (handle == nullptr || flags > 1) return code::invalidValue;
  *handle = call.world.streams.handles.issue(makeStream(call.world, call.thread.device, (flags & 1) == 0, false));
  return 0;
}

class HostFunction final : public Operation {
 public:
  HostFunction(Stream* stream, void (*function)(void*), void* data)
      : stream_(stream), function_(function), data_(data) {}
  const char* kind() const override { return "a host function"; }
  Progress advance(World& world, Lock& lock) override {
    // A reset may delete this object while the function runs.
    const auto function = function_;
    void* const data = data_;
    Stream* const stream = stream_;
    const uint64_t epoch = world.epoch;
    stream->running = true;
    threadState(world).inHostFunction = true;
    lock.unlock();
    function(data);
    lock.lock();
    threadState(world).inHostFunction = false;
    if (world.epoch == epoch) stream->running = false;
    return Progress::Finished;
  }

 private:
  Stream* stream_;
  void (*function_)(void*);
  void* data_;
};

}  // namespace

TENSORFERRY_SIM_API int cudaStreamCreateWithFlags(void** handle, unsigned flags) {
  return runtimeCall("cudaStreamCreateWithFlags", [&](Call& call) { return create(call, handle, flags); });
}

TENSORFERRY_SIM_API int cudaStreamCreateWithPriority(void** handle, unsigned flags, int) {
  return runtimeCall("cudaStreamCreateWithPriority", [&](Call& call) { return create(call, handle, flags); });
}

TENSORFERRY_SIM_API int cudaStreamDestroy(void* handle) {
  return runtimeCall("cudaStreamDestroy", [&](Call& call) -> int {
    Streams& streams = call.world.streams;
    const StreamRef stream = streams.handles.release(handle);
    if (stream == nullptr) {
      call.world.violation(streams.handles.wasReleased(handle) ? "double-destroy" : "bad-handle",
                           "cudaStreamDestroy of a stream that does not exist (any more).");
      return code::invalidHandle;
    }
    // Its work still runs; what it held goes when it is done.
    stream->destroyed = true;
    if (stream->queue.empty()) streams.active.erase(stream->number);
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaStreamSynchronize(void* handle) {
  return runtimeCall("cudaStreamSynchronize", [&](Call& call) -> int {
    const StreamRef stream = findStream(call.world, handle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    const int device = stream->device;
    const int answer =
        driveTo(call.world, call.lock, stream, stream->submitted, "cudaStreamSynchronize of " + stream->label());
    const auto sticky = call.world.sticky.find(device);
    return answer == 0 && sticky != call.world.sticky.end() ? sticky->second : answer;
  });
}

TENSORFERRY_SIM_API int cudaStreamQuery(void* handle) {
  return runtimeCall("cudaStreamQuery", [&](Call& call) -> int {
    const StreamRef stream = findStream(call.world, handle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    const uint64_t target = stream->submitted;
    nudge(call.world, call.lock);
    const auto sticky = call.world.sticky.find(stream->device);
    if (sticky != call.world.sticky.end()) return sticky->second;
    return stream->completed >= target ? 0 : code::notReady;
  });
}

TENSORFERRY_SIM_API int cudaDeviceSynchronize() {
  return runtimeCall("cudaDeviceSynchronize", [&](Call& call) -> int {
    World& world = call.world;
    const int device = call.thread.device;
    std::vector<Dependency> all;
    for (const auto& one : everythingPending(world))
      if (one.stream->device == device) all.push_back(one);
    const int answer = drive(
        world, call.lock, "cudaDeviceSynchronize",
        [&](std::vector<StreamRef>& open) {
          for (const auto& one : all)
            if (!one.met()) open.push_back(one.stream);
        },
        [&] {
          for (const auto& one : all)
            if (!one.met()) return false;
          return true;
        });
    const auto sticky = world.sticky.find(device);
    return answer == 0 && sticky != world.sticky.end() ? sticky->second : answer;
  });
}

TENSORFERRY_SIM_API int cudaLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  return runtimeCall("cudaLaunchHostFunc", [&](Call& call) -> int {
    const StreamRef stream = findStream(call.world, handle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    if (function == nullptr) return code::invalidValue;
    submit(call, stream, std::make_unique<HostFunction>(stream.get(), function, data));
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
