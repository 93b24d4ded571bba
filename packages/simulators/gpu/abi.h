// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers and layouts of the CUDA, NVRTC and NCCL interfaces that this library imitates. Own names, no vendor header.
 *
 * Runtime and driver share their numbers for all codes here; where the names differ, the runtime's is used.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#define TENSORFERRY_SIM_API extern "C" __attribute__((visibility("default")))

namespace tensorferry::gpu::simulator {

namespace code {
inline constexpr int success = 0;
inline constexpr int invalidValue = 1;
inline constexpr int outOfMemory = 2;
inline constexpr int notInitialized = 3;
inline constexpr int invalidPitch = 12;
inline constexpr int noDevice = 100;
inline constexpr int invalidDevice = 101;
inline constexpr int invalidImage = 200;
inline constexpr int invalidContext = 201;
inline constexpr int noBinaryForDevice = 209;
inline constexpr int peerAccessUnsupported = 217;
inline constexpr int operatingSystem = 304;
inline constexpr int invalidHandle = 400;
inline constexpr int notFound = 500;
inline constexpr int notReady = 600;
inline constexpr int illegalAddress = 700;
inline constexpr int timeout = 702;
inline constexpr int peerAccessAlreadyEnabled = 704;
inline constexpr int contextDestroyed = 709;
inline constexpr int hostMemoryAlreadyRegistered = 712;
inline constexpr int hostMemoryNotRegistered = 713;
inline constexpr int notPermitted = 800;
inline constexpr int notSupported = 801;
inline constexpr int unknown = 999;
}  // namespace code

namespace nccl {
inline constexpr int success = 0;
inline constexpr int unhandledCudaError = 1;
inline constexpr int systemError = 2;
inline constexpr int internalError = 3;
inline constexpr int invalidArgument = 4;
inline constexpr int invalidUsage = 5;
inline constexpr int remoteError = 6;
inline constexpr int inProgress = 7;
inline constexpr int version = 22809;
}  // namespace nccl

namespace nvrtc {
inline constexpr int success = 0;
inline constexpr int outOfMemory = 1;
inline constexpr int creationFailure = 2;
inline constexpr int invalidInput = 3;
inline constexpr int invalidProgram = 4;
inline constexpr int invalidOption = 5;
inline constexpr int compilation = 6;
inline constexpr int internalError = 11;
}  // namespace nvrtc

enum MemoryKind : int { hostToHost = 0, hostToDevice = 1, deviceToHost = 2, deviceToDevice = 3, inferred = 4 };

struct PointerAttributes {
  int type;  // 0 unregistered, 1 host, 2 device
  int device;
  void* devicePointer;
  void* hostPointer;
  long reserved[8];
};
static_assert(sizeof(PointerAttributes) == 88);

struct IpcHandle {
  char bytes[64];
};

struct UniqueId {
  char bytes[128];
};

struct Uuid {
  char bytes[16];
};

/** The head of ncclConfig_t, which is all that counts here; `size` says how long the caller's is. */
struct NcclConfig {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};
inline constexpr unsigned ncclConfigMagic = 0xcafebeef;

}  // namespace tensorferry::gpu::simulator
