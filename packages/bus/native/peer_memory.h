// SPDX-License-Identifier: Apache-2.0
/*
 * What a client at the other end of a Unix socket is, and memory that it has open under a descriptor. Any thread.
 *
 * Invariant: only regular files of this user in memory are mapped, and only while the process that is stated has the file
 * that is stated under its descriptor. Nothing that a client states is taken on trust.
 */
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tensorferry/memory/mapping.h>
#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

namespace tensorferry {

/** Who connected a Unix socket, as the kernel noted it then. */
struct PeerCredentials {
  int32_t pid;
  uint32_t uid;
};

Result<PeerCredentials> peerCredentials(int socket);

/** User that this process acts as. */
uint32_t ownUser() noexcept;

/** Memory of another process, mapped; what is written here is seen there. */
class PeerMemory {
 public:
  static constexpr napi_type_tag typeTag{0x9d3b7710e6a24c1f, 0xb4c86f05d1e27a93};

  /** `inode` notices a descriptor that was closed and used again. */
  static Result<std::shared_ptr<PeerMemory>> open(int32_t pid, int32_t descriptor, uint64_t inode, uint64_t byteLength);
  explicit PeerMemory(Mapping mapping) : mapping_(std::move(mapping)) {}

  /** First byte; null once closed. */
  void* bytes() const noexcept { return mapping_.address(); }
  /** Whether the process made its file shorter than what is mapped. */
  bool isCut() const noexcept { return mapping_.isCut(); }
  void close() noexcept { mapping_.reset(); }

 private:
  Mapping mapping_;
};

}  // namespace tensorferry
