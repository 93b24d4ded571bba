// SPDX-License-Identifier: Apache-2.0
/*
 * Layouts of the CUDA, NVRTC and NCCL interfaces that this library imitates. Own names, no vendor header.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry_gpu/gpu_codes.h>

#define TENSORFERRY_SIM_API extern "C" __attribute__((visibility("default")))

namespace tensorferry::gpu::simulator {

/** The version of NCCL that is imitated. */
inline constexpr int collectivesVersion = 22809;

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
