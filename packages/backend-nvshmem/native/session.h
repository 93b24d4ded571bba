// SPDX-License-Identifier: Apache-2.0
/*
 * One process's part in an NVSHMEM job: joined by all PEs together, left by all together or not at all.
 *
 * Joining, allocating and leaving wait for the other PEs, on threads of the pool; the rest is called by any thread, one at
 * a time. The library knows one job per process; a session finds out whether it got the one that it asked for.
 * Invariant: a session that was not left in order is never used again and nothing of it is given back: the library would
 * wait for PEs that are gone.
 */
#pragma once

#include <atomic>
#include <memory>

#include <tensorferry/cancel.h>
#include <tensorferry_gpu/gpu_libraries.h>
#include <tensorferry_gpu/gpu_objects.h>

#include "nvshmem_library.h"

namespace tensorferry::nvshmem {

class Session : public std::enable_shared_from_this<Session> {
 public:
  static constexpr napi_type_tag typeTag{0x6a10be4f7c2d4912, 0x9e83d56b01fa4702};
  static constexpr const char* kind = "session";

  Session(std::shared_ptr<Library> library, std::shared_ptr<gpu::Libraries> libraries, int ordinal, int rank,
          int size) noexcept
      : ordinal(ordinal), rank(rank), size(size), library_(std::move(library)), libraries_(std::move(libraries)) {}
  ~Session() { close(); }

  /** Ends when all PEs have joined. */
  Status join(const UniqueId& id, const CancelToken& token);
  /** The same block of all PEs; ends when all have it. */
  Result<void*> allocate(size_t bytes, const CancelToken& token);
  /** Frees nothing by itself: leaving gives all memory back. Ends when all PEs have left. */
  Status leave(const CancelToken& token);
  /** Gives up the session without the library's knowledge. */
  void abandon() noexcept;
  bool isAbandoned() const noexcept { return abandoned_.load(std::memory_order_acquire); }
  bool isOpen() const noexcept { return open_.load(std::memory_order_acquire); }

  const NvshmemApi& api() const noexcept { return library_->api; }
  const gpu::GpuApi& gpu() const noexcept { return libraries_->api; }

  const int ordinal, rank, size;
  /** For what belongs to no program: telling others, and letting go of waits where telling does not end. */
  gpu::Stream telling, releasing;

 private:
  void close() noexcept;

  const std::shared_ptr<Library> library_;
  const std::shared_ptr<gpu::Libraries> libraries_;
  std::atomic<bool> open_{false}, abandoned_{false};
};

}  // namespace tensorferry::nvshmem
