// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that other processes of the host can map: sealed memory files without a name.
 *
 * Any thread. Invariants: a file is fully allocated before anyone maps it and sealed against shrinking, so that no access
 * to a mapping can fail later; what `openMemory` maps has been proven to be such a file of this user, or is guarded.
 */
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <tensorferry/descriptor.h>
#include <tensorferry/memory/mapping.h>
#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

namespace tensorferry {

/** A mapped memory file. The descriptor is open only on the owner's side. */
struct Memory {
  static constexpr napi_type_tag typeTag{0x51c7a9e2bb3f4d06, 0xb1f0a6d27c58e913};
  Descriptor descriptor;
  Mapping mapping;
  uint64_t inode = 0;
};

/** A new zeroed file of `byteLength` bytes (at least 1), mapped for reading and writing. */
Result<std::shared_ptr<Memory>> createMemory(uint64_t byteLength);

struct MemoryLocation {
  int32_t pid;
  uint64_t processStart;
  int32_t descriptor;
  uint64_t inode;
  /** The mapping must reach at least this far. */
  uint64_t byteEnd;
};

/** What writes to a mapping of another process's file do. */
enum class MapAccess {
  /** Writes are faults. */
  readOnly,
  /** Writes stay private to this process. */
  copyOnWrite,
  /** Writes reach the owner and everyone who maps the file. */
  shared,
};

/** Whether a file must be one that can never become shorter. */
enum class Sealing {
  required,
  /** Any file in memory that has no name: where it is not sealed, its mapping is guarded. */
  none,
};

/** Maps another process's file. */
Result<std::shared_ptr<Memory>> openMemory(const MemoryLocation& location, MapAccess access, Sealing sealing);

/** When the process started, in clock ticks since boot. */
Result<uint64_t> processStart(int32_t pid);

/** Names the space in which process numbers mean something: the boot and the process namespace. */
Result<std::string> processSpace();

}  // namespace tensorferry
