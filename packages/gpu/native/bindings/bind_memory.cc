// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of devices and pinned host memory for JavaScript. JS thread only, but memory is made on the device's threads.
 */
#include <tensorferry_gpu/arguments.h>
#include "bindings.h"

namespace tensorferry::gpu {
namespace {

class AllocateJob final : public Job {
 public:
  AllocateJob(std::shared_ptr<Device> device, uint64_t byteLength) noexcept
      : device_(std::move(device)), byteLength_(byteLength) {}
  void run(size_t) noexcept override {
    Status status = caught("allocate", [&] {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "allocate", "The allocation was cancelled.");
      auto made = allocateMemory(device_, byteLength_, cancelToken);
      if (made.ok()) memory_ = std::make_shared<Handle<Memory>>(std::move(made.value()));
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("memory", wrap(env, memory_));
    object.Set("address", bigint(env, memory_->object->address));
    return object;
  }

 private:
  std::shared_ptr<Device> device_;
  uint64_t byteLength_;
  std::shared_ptr<Handle<Memory>> memory_;
};

class AllocateHostJob final : public Job {
 public:
  AllocateHostJob(std::shared_ptr<Device> device, uint64_t byteLength, Shared& shared) noexcept
      : device_(std::move(device)), byteLength_(byteLength), shared_(shared) {}
  void run(size_t) noexcept override {
    Status status = caught("allocateHost", [&] {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "allocateHost", "The allocation was cancelled.");
      auto made = allocateHostMemory(device_, byteLength_, cancelToken);
      if (made.ok()) memory_ = std::move(made.value());
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  ~AllocateHostJob() override {
    if (memory_ != nullptr) memory_->close();  // nobody took it
  }

  Napi::Value value(Napi::Env env) override {
    auto handle = std::make_shared<HostHandle>(std::exchange(memory_, nullptr));
    const HostMemory& memory = *handle->object;
    Napi::Object object = Napi::Object::New(env);
    object.Set("memory", wrap(env, handle));
    object.Set("address", bigint(env, reinterpret_cast<uint64_t>(memory.address)));
    if (!memory.isOpen()) {  // the device closed meanwhile
      object.Set("buffer", Napi::ArrayBuffer::New(env, 0));
      return object;
    }
    auto* held = new std::shared_ptr<HostHandle>(handle);
    auto buffer = Napi::ArrayBuffer::New(
        env, memory.address, memory.byteLength,
        [](Napi::Env, void*, std::shared_ptr<HostHandle>* owner) { delete owner; }, held);
    if (buffer.IsEmpty()) {
      held->reset();  // as in type_tags.h: a thread that is being terminated gets no buffer
      return object;
    }
    handle->buffer = Napi::Reference<Napi::ArrayBuffer>::New(buffer, 0);
    std::erase_if(shared_.hostHandles, [](const auto& weak) { return weak.expired(); });
    shared_.hostHandles.push_back(handle);
    object.Set("buffer", buffer);
    return object;
  }

 private:
  std::shared_ptr<Device> device_;
  uint64_t byteLength_;
  Shared& shared_;
  std::shared_ptr<HostMemory> memory_;
};

/** The device, length and callback of an allocation, or what is wrong. */
template <typename MakeJob>
Napi::Value startAllocation(const Napi::CallbackInfo& info, const char* function, MakeJob makeJob) {
  Napi::Env env = info.Env();
  auto device = unwrap<Device>(argument(info, 0));
  if (device == nullptr || !device->isOpen()) return badHandle(env, function, "device");
  const auto byteLength = readNumber(argument(info, 1), largestExact);
  if (!byteLength || *byteLength == 0 || !argument(info, 2).IsFunction())
    return toJs(env, badArgument(function, "(device, byteLength of at least 1, callback)"));
  return Jobs::of(env)->start(device->calls, makeJob(device, *byteLength), info[2].As<Napi::Function>());
}

Napi::Value startAllocate(const Napi::CallbackInfo& info) {
  return guarded(info, "startAllocate", [&]() -> Napi::Value {
    return startAllocation(info, "startAllocate", [](const auto& device, uint64_t byteLength) {
      return std::make_shared<AllocateJob>(device, byteLength);
    });
  });
}

Napi::Value startAllocateHost(const Napi::CallbackInfo& info) {
  return guarded(info, "startAllocateHost", [&]() -> Napi::Value {
    return startAllocation(info, "startAllocateHost", [&](const auto& device, uint64_t byteLength) {
      return std::make_shared<AllocateHostJob>(device, byteLength, sharedOf(info));
    });
  });
}

Napi::Value freeMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "freeMemory", [&]() -> Napi::Value {
    auto memory = openResource<Memory>(argument(info, 0));
    if (memory == nullptr) return badHandle(info.Env(), "freeMemory", "device memory");
    memory->close();
    return succeed(info.Env());
  });
}

Napi::Value freeHostMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "freeHostMemory", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto handle = unwrap<HostHandle>(argument(info, 0));
    if (handle == nullptr || !handle->object->isOpen()) return badHandle(env, "freeHostMemory", "host memory");
    if (!argument(info, 1).IsArrayBuffer())
      return toJs(env, badArgument("freeHostMemory", "(memory, the memory's own buffer)"));
    auto buffer = info[1].As<Napi::ArrayBuffer>();
    if (!buffer.IsDetached()) {
      if (buffer.Data() != handle->object->address)
        return toJs(env, badArgument("freeHostMemory", "(memory, the memory's own buffer)"));
      buffer.Detach();
    } else if (!handle->buffer.IsEmpty() && !handle->buffer.Value().IsEmpty() && !handle->buffer.Value().IsDetached()) {
      return toJs(env, badArgument("freeHostMemory", "(memory, the memory's own buffer)"));
    }
    handle->object->close();
    return succeed(env);
  });
}

Napi::Value pinHost(const Napi::CallbackInfo& info) {
  return guarded(info, "pinHost", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "pinHost", "device");
    const auto address = readBigint(argument(info, 1)), byteLength = readNumber(argument(info, 2), largestExact);
    if (!address || !byteLength) return toJs(env, badArgument("pinHost", "(device, address, byteLength)"));
    auto pin = pinHostMemory(device, *address, *byteLength);
    if (!pin.ok()) return toJs(env, pin.status());
    return succeed(env, wrapResource(env, pin.value()));
  });
}

Napi::Value unpinHost(const Napi::CallbackInfo& info) {
  return guarded(info, "unpinHost", [&]() -> Napi::Value {
    auto pin = openResource<Pin>(argument(info, 0));
    if (pin == nullptr) return badHandle(info.Env(), "unpinHost", "pin");
    pin->close();
    return succeed(info.Env());
  });
}

Napi::Value addressOf(const Napi::CallbackInfo& info) {
  return guarded(info, "addressOf", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    if (!isBytes(argument(info, 0)) || info[0].As<Napi::TypedArray>().ArrayBuffer().IsDetached())
      return toJs(env, badArgument("addressOf", "(a Uint8Array that is not detached)"));
    return succeed(env, bigint(env, reinterpret_cast<uint64_t>(info[0].As<Napi::Uint8Array>().Data())));
  });
}

}  // namespace

void detachHostBuffers(Shared& shared, const Device& device) {
  for (const auto& weak : shared.hostHandles) {
    auto handle = weak.lock();
    if (handle == nullptr || handle->object->device.get() != &device || handle->buffer.IsEmpty()) continue;
    Napi::ArrayBuffer buffer = handle->buffer.Value();
    if (!buffer.IsEmpty() && !buffer.IsDetached()) buffer.Detach();
  }
}

void bindMemory(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startAllocate>(env, exports, "startAllocate", shared);
  exportFunction<freeMemory>(env, exports, "freeMemory", shared);
  exportFunction<startAllocateHost>(env, exports, "startAllocateHost", shared);
  exportFunction<freeHostMemory>(env, exports, "freeHostMemory", shared);
  exportFunction<pinHost>(env, exports, "pinHost", shared);
  exportFunction<unpinHost>(env, exports, "unpinHost", shared);
  exportFunction<addressOf>(env, exports, "addressOf", shared);
}

}  // namespace tensorferry::gpu
