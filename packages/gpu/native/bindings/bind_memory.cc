// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of devices and pinned host memory for JavaScript. JS thread only, but memory is made on the device's threads.
 */
#include "bindings.h"

namespace tensorferry::gpu {
namespace {

/** Exposes the bytes of pinned memory, where the device is still open. */
Napi::Value describe(Napi::Env env, Shared& shared, const std::shared_ptr<HostHandle>& handle) {
  const HostMemory& memory = *handle->object;
  Napi::Object object = Napi::Object::New(env);
  object.Set("memory", wrap(env, handle));
  object.Set("address", bigint(env, memory.address));
  if (!memory.isOpen()) {  // the device closed meanwhile
    object.Set("buffer", Napi::ArrayBuffer::New(env, 0));
    return object;
  }
  auto buffer = sharedBuffer(env, memory.address, memory.byteLength, handle);
  if (buffer.IsEmpty()) return object;
  handle->buffer = Napi::Reference<Napi::ArrayBuffer>::New(buffer, 0);
  std::erase_if(shared.hostHandles, [](const auto& weak) { return weak.expired(); });
  shared.hostHandles.push_back(handle);
  object.Set("buffer", buffer);
  return object;
}

Answer startAllocate(const Call& call, Open<Device> device, Whole<largestExact, 1> byteLength,
                     Napi::Function callback) {
  const auto allocate = [=](Job& job) -> Result<std::shared_ptr<Handle<Memory>>> {
    if (job.cancelToken.isCancelled()) return cancelledEarly("allocate", "The allocation");
    return handleOf(allocateMemory(device, byteLength, job.cancelToken));
  };
  const auto give = [](Napi::Env env, auto& made) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("address", bigint(env, made->object->address));
    object.Set("memory", wrap(env, std::move(made)));
    return object;
  };
  return call.start(device->calls, makeJob("allocate", allocate, give), callback);
}

Answer startAllocateHost(const Call& call, Open<Device> device, Whole<largestExact, 1> byteLength,
                         Napi::Function callback) {
  const auto allocate = [=](Job& job) -> Result<std::shared_ptr<HostHandle>> {
    if (job.cancelToken.isCancelled()) return cancelledEarly("allocateHost", "The allocation");
    auto made = allocateHostMemory(device, byteLength, job.cancelToken);
    if (!made.ok()) return made.status();
    return std::make_shared<HostHandle>(std::move(made.value()));
  };
  const auto give = [&shared = call.shared<Shared>()](Napi::Env env, auto& made) {
    return describe(env, shared, std::exchange(made, nullptr));
  };
  return call.start(device->calls, makeJob("allocateHost", allocate, give), callback);
}

Status freeHostMemory(const Call& call, Open<HostHandle> handle, Napi::ArrayBuffer buffer) {
  if (!buffer.IsDetached()) {
    if (buffer.Data() != handle->object->address) return call.refusal();
    buffer.Detach();
  } else if (!handle->buffer.IsEmpty() && !handle->buffer.Value().IsEmpty() && !handle->buffer.Value().IsDetached()) {
    return call.refusal();
  } else {
    handle->object->leaveToScript();
  }
  handle->object->close();
  return {};
}

Answer pinHost(const Call& call, Open<Device> device, Big address, Whole<> byteLength) {
  return answerOf(pinHostMemory(device, address, byteLength),
                  [&](const std::shared_ptr<Pin>& pin) { return wrapResource(call.env, pin); });
}

}  // namespace

void detachHostBuffers(Shared& shared, const Device& device) {
  for (const auto& weak : shared.hostHandles) {
    auto handle = weak.lock();
    if (handle == nullptr || handle->object->device.get() != &device || handle->buffer.IsEmpty()) continue;
    Napi::ArrayBuffer buffer = handle->buffer.Value();
    if (buffer.IsEmpty() || !handle->isOpen()) continue;
    if (buffer.IsDetached()) handle->object->leaveToScript();
    else buffer.Detach();
  }
}

void bindMemory(Functions& functions) {
  functions.add<startAllocate>("startAllocate", "(device, byteLength of at least 1, callback)")
      .add<close<Open<Memory>>>("freeMemory", "(memory)")
      .add<startAllocateHost>("startAllocateHost", "(device, byteLength of at least 1, callback)")
      .add<freeHostMemory>("freeHostMemory", "(memory, the memory's own buffer)")
      .add<pinHost>("pinHost", "(device, address, byteLength)")
      .add<close<Open<Pin>>>("unpinHost", "(pin)")
      .add<addressOf>("addressOf", "(a Uint8Array that is not detached)");
}

}  // namespace tensorferry::gpu
