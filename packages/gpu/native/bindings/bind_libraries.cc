// SPDX-License-Identifier: Apache-2.0
/*
 * Libraries and facts of devices for JavaScript. JS thread only.
 */
#include <tensorferry_gpu/gpu_libraries.h>
#include <tensorferry_gpu/gpu_objects.h>

#include "bindings.h"
#include "kernel_compiler.h"

namespace tensorferry {

template <>
struct Reader<gpu::Vendor> {
  static std::optional<gpu::Vendor> read(Napi::Value value) {
    const auto name = Reader<std::string>::read(value);
    if (name == "cuda") return gpu::Vendor::Cuda;
    return name == "rocm" ? std::optional(gpu::Vendor::Rocm) : std::nullopt;
  }
};

template <>
struct Reader<gpu::LibraryNames> {
  static std::optional<gpu::LibraryNames> read(Napi::Value value) {
    if (!value.IsObject()) return std::nullopt;
    gpu::LibraryNames names;
    const auto take = [&](const char* key, std::vector<std::string>& into) {
      auto list = Reader<std::vector<std::string>>::read(value.As<Napi::Object>().Get(key));
      if (list) into = std::move(*list);
      return list.has_value();
    };
    const bool areLists = take("runtime", names.runtime) && take("driver", names.driver) &&
                          take("compiler", names.compiler) && take("collectives", names.collectives);
    return areLists ? std::optional(std::move(names)) : std::nullopt;
  }
};

namespace gpu {
namespace {

Napi::Object describe(Napi::Env env, const LibraryFound& found) {
  Napi::Object object = Napi::Object::New(env);
  object.Set("tried", toJs(env, found.tried));
  if (!found.path.empty()) object.Set("path", found.path);
  if (!found.version.empty()) object.Set("version", found.version);
  if (found.path.empty()) object.Set("problem", found.problem);
  return object;
}

Answer openLibrariesOf(const Call& call, Vendor vendor, LibraryNames names) {
  OpenedLibraries opened = openLibraries(vendor, names);
  Napi::Object object = Napi::Object::New(call.env);
  if (opened.libraries != nullptr) object.Set("libraries", wrap(call.env, opened.libraries));
  object.Set("runtime", describe(call.env, opened.runtime));
  object.Set("driver", describe(call.env, opened.driver));
  object.Set("compiler", describe(call.env, opened.compiler));
  object.Set("collectives", describe(call.env, opened.collectives));
  return object;
}

Answer deviceCount(const Call& call, Open<Libraries> libraries) {
  const GpuApi& api = libraries->api;
  int count = 0;
  const int answer = api.getDeviceCount(&count);
  if (answer != code::success) api.clearError();
  if (answer == code::noDevice) return Napi::Number::New(call.env, 0);
  if (answer != code::success) return runtimeFailure(api, api.getDeviceCount.name, answer);
  return Napi::Number::New(call.env, count);
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

Answer deviceFacts(const Call& call, Open<Libraries> libraries, Ordinal ordinal) {
  auto facts = factsOf(libraries->api, static_cast<int>(ordinal));
  if (!facts.ok()) libraries->api.clearError();
  return answerOf(std::move(facts), [&](const Facts& facts) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("name", facts.name);
    object.Set("uuid", facts.uuid);
    object.Set("busId", facts.busId);
    object.Set("totalBytes", static_cast<double>(facts.total));
    object.Set("freeBytes", static_cast<double>(facts.free));
    object.Set("processors", facts.processors);
    object.Set("architecture", facts.architecture);
    return object;
  });
}

Answer canAccessPeer(const Call& call, Open<Libraries> libraries, Ordinal ordinal, Ordinal peer) {
  const GpuApi& api = libraries->api;
  int can = 0;
  Status status = callRuntime(api, api.canAccessPeer, &can, static_cast<int>(ordinal), static_cast<int>(peer));
  if (!status.ok()) {
    api.clearError();
    return status;
  }
  return Napi::Boolean::New(call.env, can != 0);
}

Answer createUniqueId(const Call& call, Open<Libraries> libraries) {
  const GpuApi& api = libraries->api;
  if (!api.hasCollectives)
    return failure(Code::Unsupported, call.function, "No collectives library (NCCL or RCCL) was opened.");
  UniqueId id{};
  const int answer = api.createUniqueId(&id);
  if (answer != collectives::success) return collectivesFailure(api, api.createUniqueId.name, answer, nullptr);
  return Napi::Buffer<uint8_t>::Copy(call.env, id.bytes, sizeof id.bytes);
}

}  // namespace

void bindLibraries(Functions& functions) {
  functions.add<openLibrariesOf>("openLibraries", "(\"cuda\" or \"rocm\", lists of names)")
      .add<deviceCount>("deviceCount", "(libraries)")
      .add<deviceFacts>("deviceFacts", "(libraries, ordinal)")
      .add<canAccessPeer>("canAccessPeer", "(libraries, ordinal, peer)")
      .add<createUniqueId>("createUniqueId", "(libraries)");
}

}  // namespace gpu
}  // namespace tensorferry
