// SPDX-License-Identifier: Apache-2.0
/*
 * Libraries and facts of devices for JavaScript. JS thread only.
 */
#include <tensorferry_gpu/gpu_libraries.h>
#include <tensorferry_gpu/gpu_objects.h>

#include <tensorferry_gpu/arguments.h>
#include "bindings.h"
#include "kernel_compiler.h"

namespace tensorferry::gpu {
namespace {

Napi::Object describe(Napi::Env env, const LibraryFound& found) {
  Napi::Object object = Napi::Object::New(env);
  Napi::Array tried = Napi::Array::New(env, found.tried.size());
  for (size_t i = 0; i < found.tried.size(); i++) tried.Set(static_cast<uint32_t>(i), found.tried[i]);
  object.Set("tried", tried);
  if (!found.path.empty()) object.Set("path", found.path);
  if (!found.version.empty()) object.Set("version", found.version);
  if (found.path.empty()) object.Set("problem", found.problem);
  return object;
}

Napi::Value openLibrariesOf(const Napi::CallbackInfo& info) {
  return guarded(info, "openLibraries", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    const Napi::Value vendorName = argument(info, 0), lists = argument(info, 1);
    const std::string vendor = vendorName.IsString() ? vendorName.As<Napi::String>().Utf8Value() : "";
    const auto names = [&](const char* key) {
      return lists.IsObject() ? readTexts(lists.As<Napi::Object>().Get(key)) : std::nullopt;
    };
    auto runtime = names("runtime"), driver = names("driver"), compiler = names("compiler"),
         collectives = names("collectives");
    if ((vendor != "cuda" && vendor != "rocm") || !runtime || !driver || !compiler || !collectives)
      return toJs(env, badArgument("openLibraries", "(\"cuda\" or \"rocm\", lists of names)"));
    const LibraryNames wanted{std::move(*runtime), std::move(*driver), std::move(*compiler), std::move(*collectives)};
    OpenedLibraries opened = openLibraries(vendor == "cuda" ? Vendor::Cuda : Vendor::Rocm, wanted);
    Napi::Object object = Napi::Object::New(env);
    if (opened.libraries != nullptr) object.Set("libraries", wrap(env, opened.libraries));
    object.Set("runtime", describe(env, opened.runtime));
    object.Set("driver", describe(env, opened.driver));
    object.Set("compiler", describe(env, opened.compiler));
    object.Set("collectives", describe(env, opened.collectives));
    return succeed(env, object);
  });
}

Napi::Value deviceCount(const Napi::CallbackInfo& info) {
  return guarded(info, "deviceCount", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto libraries = unwrap<Libraries>(argument(info, 0));
    if (libraries == nullptr) return badHandle(env, "deviceCount", "set of libraries");
    const GpuApi& api = libraries->api;
    int count = 0;
    const int answer = api.getDeviceCount(&count);
    if (answer != code::success) api.clearError();
    if (answer == code::noDevice) return succeed(env, Napi::Number::New(env, 0));
    if (answer != code::success) return toJs(env, runtimeFailure(api, api.getDeviceCount.name, answer));
    return succeed(env, Napi::Number::New(env, count));
  });
}

struct Facts {
  std::string name, uuid, busId;
  size_t total = 0, free = 0;
  int processors = 0, architecture = 0;
};

Result<Facts> factsOf(const GpuApi& api, int ordinal) {
  Facts facts;
  Status status = callDriver(api, api.initialise, 0u);
  if (!status.ok()) return status;
  int device = 0;
  status = callDriver(api, api.getDriverDevice, &device, ordinal);
  if (!status.ok()) return status;
  char text[256] = {};
  status = callDriver(api, api.getName, static_cast<char*>(text), static_cast<int>(sizeof text - 1), device);
  if (!status.ok()) return status;
  facts.name = text;
  Uuid uuid{};
  status = callDriver(api, api.getUuid, &uuid, device);
  if (!status.ok()) return status;
  for (const uint8_t byte : uuid.bytes) {
    facts.uuid += "0123456789abcdef"[byte >> 4];
    facts.uuid += "0123456789abcdef"[byte & 15];
  }
  char bus[64] = {};
  status = callRuntime(api, api.getBusId, static_cast<char*>(bus), static_cast<int>(sizeof bus - 1), ordinal);
  if (!status.ok()) return status;
  facts.busId = bus;
  status = callRuntime(api, api.getAttribute, &facts.processors, attributeNumbers(api.vendor).processors, ordinal);
  if (!status.ok()) return status;
  auto target = targetOf(api, ordinal);
  if (!target.ok()) return target.status();
  facts.architecture = target.value().architecture;
  DeviceScope scope(api, ordinal);
  status = scope.status();
  if (status.ok()) status = callRuntime(api, api.getMemoryInfo, &facts.free, &facts.total);
  if (!status.ok()) return status;
  return facts;
}

Napi::Value deviceFacts(const Napi::CallbackInfo& info) {
  return guarded(info, "deviceFacts", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto libraries = unwrap<Libraries>(argument(info, 0));
    if (libraries == nullptr) return badHandle(env, "deviceFacts", "set of libraries");
    const auto ordinal = readNumber(argument(info, 1), INT32_MAX);
    if (!ordinal) return toJs(env, badArgument("deviceFacts", "(libraries, ordinal)"));
    auto facts = factsOf(libraries->api, static_cast<int>(*ordinal));
    if (!facts.ok()) {
      libraries->api.clearError();
      return toJs(env, facts.status());
    }
    Napi::Object object = Napi::Object::New(env);
    object.Set("name", facts.value().name);
    object.Set("uuid", facts.value().uuid);
    object.Set("busId", facts.value().busId);
    object.Set("totalBytes", static_cast<double>(facts.value().total));
    object.Set("freeBytes", static_cast<double>(facts.value().free));
    object.Set("processors", facts.value().processors);
    object.Set("architecture", facts.value().architecture);
    return succeed(env, object);
  });
}

Napi::Value canAccessPeer(const Napi::CallbackInfo& info) {
  return guarded(info, "canAccessPeer", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto libraries = unwrap<Libraries>(argument(info, 0));
    if (libraries == nullptr) return badHandle(env, "canAccessPeer", "set of libraries");
    const auto ordinal = readNumber(argument(info, 1), INT32_MAX), peer = readNumber(argument(info, 2), INT32_MAX);
    if (!ordinal || !peer) return toJs(env, badArgument("canAccessPeer", "(libraries, ordinal, peer)"));
    const GpuApi& api = libraries->api;
    int can = 0;
    Status status = callRuntime(api, api.canAccessPeer, &can, static_cast<int>(*ordinal), static_cast<int>(*peer));
    if (!status.ok()) api.clearError();
    return toJs(env, status, Napi::Boolean::New(env, can != 0));
  });
}

Napi::Value createUniqueId(const Napi::CallbackInfo& info) {
  return guarded(info, "createUniqueId", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto libraries = unwrap<Libraries>(argument(info, 0));
    if (libraries == nullptr) return badHandle(env, "createUniqueId", "set of libraries");
    const GpuApi& api = libraries->api;
    if (!api.hasCollectives)
      return toJs(env,
                  failure(Code::Unsupported, "createUniqueId", "No collectives library (NCCL or RCCL) was opened."));
    UniqueId id{};
    const int answer = api.createUniqueId(&id);
    if (answer != collectives::success)
      return toJs(env, collectivesFailure(api, api.createUniqueId.name, answer, nullptr));
    return succeed(env, Napi::Buffer<uint8_t>::Copy(env, id.bytes, sizeof id.bytes));
  });
}

}  // namespace

void bindLibraries(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<openLibrariesOf>(env, exports, "openLibraries", shared);
  exportFunction<deviceCount>(env, exports, "deviceCount", shared);
  exportFunction<deviceFacts>(env, exports, "deviceFacts", shared);
  exportFunction<canAccessPeer>(env, exports, "canAccessPeer", shared);
  exportFunction<createUniqueId>(env, exports, "createUniqueId", shared);
}

}  // namespace tensorferry::gpu
