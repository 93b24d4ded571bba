// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that crosses processes, for JavaScript. JS thread only.
 */
#include "bindings.h"

namespace tensorferry::gpu {
namespace {

Answer exportMemoryOf(const Call& call, Open<Device> device, Big address) {
  return answerOf(exportMemory(*device, address), [&](const ExportedMemory& exported) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("handle", Napi::Buffer<uint8_t>::Copy(call.env, exported.handle.bytes, sizeof(IpcHandle)));
    object.Set("base", bigint(call.env, exported.base));
    object.Set("byteLength", static_cast<double>(exported.bytes));
    return object;
  });
}

Answer deviceOfAddressOf(const Call& call, Open<Device> device, Big address) {
  return answerOf(deviceOfAddress(*device, address), [&](int ordinal) { return Napi::Number::New(call.env, ordinal); });
}

Answer importMemoryOf(const Call& call, Open<Device> device, BytesOf<IpcHandle> handle) {
  return answerOf(importMemory(device, handle.value), [&](const std::shared_ptr<Mapping>& mapping) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("address", bigint(call.env, mapping->address));
    object.Set("mapping", wrapResource(call.env, mapping));
    return object;
  });
}

}  // namespace

void bindSharing(Functions& functions) {
  functions.add<exportMemoryOf>("exportMemory", "(device, address)")
      .add<deviceOfAddressOf>("deviceOfAddress", "(device, address)")
      .add<importMemoryOf>("importMemory", "(device, a handle of 64 bytes)")
      .add<close<Open<Mapping>>>("closeImport", "(mapping)");
}

}  // namespace tensorferry::gpu
