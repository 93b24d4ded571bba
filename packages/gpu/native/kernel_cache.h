// SPDX-License-Identifier: Apache-2.0
/*
 * Compiled kernels kept in a folder between processes. Any thread; several processes may share a folder.
 *
 * Invariant: nothing is read from or written to a folder that somebody else could write. An image is given only where its
 * length and checksum are right; files appear whole or not at all.
 */
#pragma once

#include <optional>
#include <string>

#include <tensorferry/descriptor.h>
#include <tensorferry/status.h>

namespace tensorferry::gpu {

class KernelCache {
 public:
  /** Opens the folder, making it where there is none. Fails with PermissionDenied where others may enter it. */
  static Result<KernelCache> open(const std::string& folder);

  /** The image stored under this key, if it is there and whole. */
  std::optional<std::string> read(const std::string& key) const;
  /** A cache that cannot be written serves nobody, but hurts nobody either: failures are ignored. */
  void write(const std::string& key, const std::string& image) const;

 private:
  explicit KernelCache(Descriptor folder) noexcept : folder_(std::move(folder)) {}
  Descriptor folder_;
};

}  // namespace tensorferry::gpu
