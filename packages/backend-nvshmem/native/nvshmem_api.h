// SPDX-License-Identifier: Apache-2.0
/*
 * What is used of NVSHMEM's host library: functions, layouts and numbers, under names of our own. No vendor header.
 *
 * The layouts are those that the library's headers fix by static asserts; each carries its size in its version.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <tensorferry_gpu/gpu_api.h>

namespace tensorferry::nvshmem {

template <typename Layout>
constexpr int versionOf() noexcept {
  return (1 << 16) + static_cast<int>(sizeof(Layout));
}

struct UniqueId {
  int version;
  char bytes[124];
};
static_assert(sizeof(UniqueId) == 128);

struct UniqueIdArguments {
  int version;
  UniqueId* id;
  int rank, size;
};
static_assert(sizeof(UniqueIdArguments) == 24);

struct InitArguments {
  int version;
  UniqueIdArguments uniqueId;
  char unused[96];
};
static_assert(sizeof(InitArguments) == 128);

struct InitAttributes {
  int version;
  void* communicator;
  InitArguments arguments;
};
static_assert(sizeof(InitAttributes) == 144);

inline constexpr unsigned initByUniqueId = 1 << 3;
inline constexpr int signalSet = 9;
inline constexpr int atLeast = 5;

/** The oldest version that has all that is used. */
inline constexpr int oldestMajor = 3;

using gpu::StreamHandle;

// Per function: our name, its signature, its name in the library.
#define TENSORFERRY_NVSHMEM_FUNCTIONS(X)                                                             \
  X(version, void(int*, int*, int*), "nvshmemx_vendor_get_version_info")                             \
  X(createUniqueId, int(UniqueId*), "nvshmemx_get_uniqueid")                                         \
  X(setUniqueId, int(int, int, const UniqueId*, InitAttributes*), "nvshmemx_set_attr_uniqueid_args") \
  X(initialise, int(unsigned, InitAttributes*), "nvshmemx_hostlib_init_attr")                        \
  X(finalise, void(), "nvshmemx_hostlib_finalize")                                                   \
  X(ownPe, int(), "nvshmem_my_pe")                                                                   \
  X(peCount, int(), "nvshmem_n_pes")                                                                 \
  X(allocate, void*(size_t), "nvshmem_malloc")                                                       \
  X(release, void(void*), "nvshmem_free")                                                            \
  X(pointer, void*(const void*, int), "nvshmem_ptr")                                                 \
  X(putSignal, void(void*, const void*, size_t, uint64_t*, uint64_t, int, int, StreamHandle),        \
    "nvshmemx_putmem_signal_on_stream")                                                              \
  X(signal, void(uint64_t*, uint64_t, int, int, StreamHandle), "nvshmemx_signal_op_on_stream")       \
  X(wait, void(uint64_t*, int, uint64_t, StreamHandle), "nvshmemx_signal_wait_until_on_stream")      \
  X(quiet, void(StreamHandle), "nvshmemx_quiet_on_stream")

struct NvshmemApi {
#define TENSORFERRY_NVSHMEM_DECLARE(member, signature, symbol) gpu::Entry<signature> member;
  TENSORFERRY_NVSHMEM_FUNCTIONS(TENSORFERRY_NVSHMEM_DECLARE)
#undef TENSORFERRY_NVSHMEM_DECLARE
};

}  // namespace tensorferry::nvshmem
