// SPDX-License-Identifier: Apache-2.0
/*
 * The calls about devices: which there are, which is current, who can access whom.
 */
#include <cstdio>
#include <cstring>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

bool exists(const World& world, int device) { return device >= 0 && device < world.settings.devices; }

int attributeOf(const World& world, int attribute, int device, int* value) {
  switch (attribute) {
    case 1:
    case 2:
      return *value = 1024, 0;
    case 5:
      return *value = 2147483647, 0;
    case 10:
      return *value = 32, 0;
    case 13:
      return *value = 1980000, 0;
    case 16:
      return *value = world.settings.processors, 0;
    case 18:
    case 83:
    case 88:
      return *value = 0, 0;
    case 19:
    case 31:
    case 41:
    case 91:
    case 99:
    case 102:
      return *value = 1, 0;
    case 33:
      return *value = 0x18 + device, 0;
    case 34:
    case 50:
      return *value = 0, 0;
    case 37:
      return *value = 5120, 0;
    case 38:
      return *value = 52428800, 0;
    case 39:
      return *value = 2048, 0;
    case 40:
      return *value = 3, 0;
    case 75:
      return *value = world.settings.capabilityMajor, 0;
    case 76:
      return *value = world.settings.capabilityMinor, 0;
    case 115:
      return *value = 0, 0;
    case 125:
      return *value = world.settings.ipc ? 1 : 0, 0;
    default:
      return code::invalidValue;
  }
}

int copyText(char* target, int length, const std::string& text) {
  if (target == nullptr || length <= 0) return code::invalidValue;
  std::snprintf(target, static_cast<size_t>(length), "%s", text.c_str());
  return 0;
}

}  // namespace

TENSORFERRY_SIM_API int cudaGetDeviceCount(int* count) {
  return runtimeCall("cudaGetDeviceCount", [&](Call& call) -> int {
    if (count == nullptr) return code::invalidValue;
    *count = call.world.settings.devices;
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaSetDevice(int device) {
  return guarded("cudaSetDevice", code::unknown, [&](Call& call) -> int {
    if (!exists(call.world, device))
      return call.thread.lastError = call.world.settings.devices == 0 ? code::noDevice : code::invalidDevice;
    call.thread.device = device;
    call.thread.bound = true;
    call.world.contexts.insert(device);
    const auto sticky = call.world.sticky.find(device);
    return sticky == call.world.sticky.end() ? 0 : (call.thread.lastError = sticky->second);
  });
}

TENSORFERRY_SIM_API int cudaGetDevice(int* device) {
  return guarded("cudaGetDevice", code::unknown, [&](Call& call) -> int {
    if (device == nullptr) return call.thread.lastError = code::invalidValue;
    if (call.world.settings.devices == 0) return call.thread.lastError = code::noDevice;
    *device = call.thread.device;
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  return runtimeCall("cudaDeviceGetAttribute", [&](Call& call) -> int {
    if (value == nullptr) return code::invalidValue;
    return exists(call.world, device) ? attributeOf(call.world, attribute, device, value) : code::invalidDevice;
  });
}

TENSORFERRY_SIM_API int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return runtimeCall("cudaDeviceGetPCIBusId", [&](Call& call) -> int {
    if (!exists(call.world, device)) return code::invalidDevice;
    if (length < 13) return code::invalidValue;
    char identifier[32];
    std::snprintf(identifier, sizeof identifier, "0000:%02X:00.0", static_cast<unsigned>(0x18 + device));
    return copyText(text, length, identifier);
  });
}

TENSORFERRY_SIM_API int cudaRuntimeGetVersion(int* version) {
  return guarded("cudaRuntimeGetVersion", code::unknown,
                 [&](Call&) -> int { return version == nullptr ? code::invalidValue : (*version = 13000, 0); });
}

TENSORFERRY_SIM_API int cudaDriverGetVersion(int* version) {
  return guarded("cudaDriverGetVersion", code::unknown,
                 [&](Call&) -> int { return version == nullptr ? code::invalidValue : (*version = 13000, 0); });
}

TENSORFERRY_SIM_API int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return runtimeCall("cudaDeviceCanAccessPeer", [&](Call& call) -> int {
    if (can == nullptr) return code::invalidValue;
    if (!exists(call.world, device) || !exists(call.world, peer)) return code::invalidDevice;
    *can = call.world.settings.canAccess(device, peer) ? 1 : 0;
    return 0;
  });
}

TENSORFERRY_SIM_API int cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return runtimeCall("cudaDeviceEnablePeerAccess", [&](Call& call) -> int {
    if (flags != 0) return code::invalidValue;
    if (!exists(call.world, peer) || peer == call.thread.device) return code::invalidDevice;
    if (!call.world.settings.canAccess(call.thread.device, peer)) return code::peerUnsupported;
    return call.world.peers.emplace(call.thread.device, peer).second ? 0 : code::peerAlreadyEnabled;
  });
}

TENSORFERRY_SIM_API int cuInit(unsigned flags) {
  return guarded("cuInit", code::unknown, [&](Call& call) -> int {
    if (flags != 0) return code::invalidValue;
    return call.world.settings.devices == 0 ? code::noDevice : 0;
  });
}

TENSORFERRY_SIM_API int cuDeviceGet(int* device, int ordinal) {
  return guarded("cuDeviceGet", code::unknown, [&](Call& call) -> int {
    if (device == nullptr) return code::invalidValue;
    if (!exists(call.world, ordinal)) return code::invalidDevice;
    *device = ordinal;
    return 0;
  });
}

TENSORFERRY_SIM_API int cuDeviceGetName(char* name, int length, int device) {
  return guarded("cuDeviceGetName", code::unknown, [&](Call& call) -> int {
    return exists(call.world, device) ? copyText(name, length, call.world.settings.name) : code::invalidDevice;
  });
}

static int uuidOf(const char* function, Uuid* uuid, int device) {
  return guarded(function, code::unknown, [&](Call& call) -> int {
    if (uuid == nullptr) return code::invalidValue;
    if (!exists(call.world, device)) return code::invalidDevice;
    // The same in all processes of a node, as for real devices.
    const uint64_t words[2] = {hashText(call.world.settings.node) | 1,
                               0x5446000000000000u + static_cast<uint64_t>(device)};
    std::memcpy(uuid->bytes, words, sizeof words);
    return 0;
  });
}

TENSORFERRY_SIM_API int cuDeviceGetUuid(Uuid* uuid, int device) { return uuidOf("cuDeviceGetUuid", uuid, device); }
TENSORFERRY_SIM_API int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  return uuidOf("cuDeviceGetUuid_v2", uuid, device);
}

TENSORFERRY_SIM_API int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  return guarded("cuDevicePrimaryCtxGetState", code::unknown, [&](Call& call) -> int {
    if (flags == nullptr || active == nullptr) return code::invalidValue;
    if (!exists(call.world, device)) return code::invalidDevice;
    *flags = 0;
    *active = call.world.contexts.count(device) > 0 ? 1 : 0;
    return 0;
  });
}

TENSORFERRY_SIM_API int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return guarded("cuDeviceGetAttribute", code::unknown, [&](Call& call) -> int {
    if (value == nullptr) return code::invalidValue;
    return exists(call.world, device) ? attributeOf(call.world, attribute, device, value) : code::invalidDevice;
  });
}

}  // namespace tensorferry::gpu::simulator
