// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that crosses processes, for JavaScript. JS thread only.
 */
#include <cstring>

#include <tensorferry_gpu/arguments.h>
#include "bindings.h"

namespace tensorferry::gpu {
namespace {

Napi::Value exportMemoryOf(const Napi::CallbackInfo& info) {
  return guarded(info, "exportMemory", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "exportMemory", "device");
    const auto address = readBigint(argument(info, 1));
    if (!address) return toJs(env, badArgument("exportMemory", "(device, address)"));
    auto exported = exportMemory(*device, *address);
    if (!exported.ok()) return toJs(env, exported.status());
    Napi::Object object = Napi::Object::New(env);
    object.Set("handle", Napi::Buffer<uint8_t>::Copy(env, exported.value().handle.bytes, sizeof(IpcHandle)));
    object.Set("base", bigint(env, exported.value().base));
    object.Set("byteLength", static_cast<double>(exported.value().bytes));
    return succeed(env, object);
  });
}

Napi::Value deviceOfAddressOf(const Napi::CallbackInfo& info) {
  return guarded(info, "deviceOfAddress", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "deviceOfAddress", "device");
    const auto address = readBigint(argument(info, 1));
    if (!address) return toJs(env, badArgument("deviceOfAddress", "(device, address)"));
    auto ordinal = deviceOfAddress(*device, *address);
    if (!ordinal.ok()) return toJs(env, ordinal.status());
    return succeed(env, Napi::Number::New(env, ordinal.value()));
  });
}

Napi::Value importMemoryOf(const Napi::CallbackInfo& info) {
  return guarded(info, "importMemory", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "importMemory", "device");
    IpcHandle handle{};
    if (!isBytes(argument(info, 1)) || info[1].As<Napi::Uint8Array>().ElementLength() != sizeof handle)
      return toJs(env, badArgument("importMemory", "(device, a handle of 64 bytes)"));
    std::memcpy(&handle, info[1].As<Napi::Uint8Array>().Data(), sizeof handle);
    auto mapping = importMemory(device, handle);
    if (!mapping.ok()) return toJs(env, mapping.status());
    Napi::Object object = Napi::Object::New(env);
    object.Set("address", bigint(env, mapping.value()->address));
    object.Set("mapping", wrapResource(env, mapping.value()));
    return succeed(env, object);
  });
}

Napi::Value closeImport(const Napi::CallbackInfo& info) {
  return guarded(info, "closeImport", [&]() -> Napi::Value {
    auto mapping = openResource<Mapping>(argument(info, 0));
    if (mapping == nullptr) return badHandle(info.Env(), "closeImport", "mapping");
    mapping->close();
    return succeed(info.Env());
  });
}

}  // namespace

void bindSharing(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<exportMemoryOf>(env, exports, "exportMemory", shared);
  exportFunction<deviceOfAddressOf>(env, exports, "deviceOfAddress", shared);
  exportFunction<importMemoryOf>(env, exports, "importMemory", shared);
  exportFunction<closeImport>(env, exports, "closeImport", shared);
}

}  // namespace tensorferry::gpu
