// SPDX-License-Identifier: Apache-2.0
/*
 * PyTorch's shared memory for JavaScript. JS thread only.
 *
 * Invariant: an array buffer shares ownership of its mapping; `closeTorchMemory` detaches it first.
 */
#include "bindings.h"
#include "torch_memory.h"

namespace tensorferry {
namespace {

constexpr uint64_t exact = (1ull << 53) - 1;

Napi::Value openTorchMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "openTorchMemory", [&]() -> Napi::Value {
    uint64_t byteLength = 0;
    if (info.Length() != 2 || !info[0].IsString() || !readNumber(info[1], exact - 64, byteLength))
      return toJs(info.Env(), badArgument("openTorchMemory", "(name, byteLength)"));
    auto opened = TorchMemory::open(info[0].As<Napi::String>().Utf8Value(), byteLength);
    if (!opened.ok()) return toJs(info.Env(), opened.status());
    Napi::Object object = Napi::Object::New(info.Env());
    object.Set("memory", wrap(info.Env(), opened.value()));
    object.Set("address", Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(opened.value()->payload())));
    auto* held = new std::shared_ptr<TorchMemory>(opened.value());
    auto buffer = Napi::ArrayBuffer::New(
        info.Env(), opened.value()->payload(), byteLength,
        [](Napi::Env, void*, std::shared_ptr<TorchMemory>* owner) { delete owner; }, held);
    if (buffer.IsEmpty()) {
      held->reset();  // as in type_tags.h: a thread that is being terminated gets no buffer
    } else {
      object.Set("buffer", buffer);
    }
    return succeed(info.Env(), object);
  });
}

Napi::Value closeTorchMemory(const Napi::CallbackInfo& info) {
  return guarded(info, "closeTorchMemory", [&]() -> Napi::Value {
    auto memory = info.Length() == 2 ? unwrap<TorchMemory>(info[0]) : nullptr;
    if (memory == nullptr || !info[1].IsArrayBuffer())
      return toJs(info.Env(), badArgument("closeTorchMemory", "(memory, its buffer)"));
    auto buffer = info[1].As<Napi::ArrayBuffer>();
    if (!buffer.IsDetached()) {
      if (buffer.Data() != memory->payload() && buffer.ByteLength() > 0)
        return toJs(info.Env(), badArgument("closeTorchMemory", "(memory, the memory's own buffer)"));
      buffer.Detach();
    }
    memory->close();
    return succeed(info.Env());
  });
}

Napi::Value returnCount(const Napi::CallbackInfo& info) {
  return guarded(info, "returnCudaCount", [&]() -> Napi::Value {
    uint64_t index = 0;
    if (info.Length() != 2 || !info[0].IsString() || !readNumber(info[1], exact, index))
      return toJs(info.Env(), badArgument("returnCudaCount", "(name, index)"));
    return toJs(info.Env(), returnCudaCount(info[0].As<Napi::String>().Utf8Value(), index));
  });
}

Napi::Value removeCounts(const Napi::CallbackInfo& info) {
  return guarded(info, "removeCudaCounts", [&]() -> Napi::Value {
    if (info.Length() != 1 || !info[0].IsString()) return toJs(info.Env(), badArgument("removeCudaCounts", "(name)"));
    removeCudaCounts(info[0].As<Napi::String>().Utf8Value());
    return succeed(info.Env());
  });
}

}  // namespace

void bindTorch(Napi::Env env, Napi::Object exports) {
  exports.Set("openTorchMemory", Napi::Function::New(env, openTorchMemory));
  exports.Set("closeTorchMemory", Napi::Function::New(env, closeTorchMemory));
  exports.Set("returnCudaCount", Napi::Function::New(env, returnCount));
  exports.Set("removeCudaCounts", Napi::Function::New(env, removeCounts));
}

}  // namespace tensorferry
