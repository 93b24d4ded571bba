// SPDX-License-Identifier: Apache-2.0
/*
 * See remote.h. Runs are gathered into vectors of up to 1024 pieces per side, so that a strided region takes few calls and
 * every byte is copied once.
 */
#include "remote.h"

#include <sys/uio.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tensorferry {
namespace {

constexpr size_t maxPieces = 1024;  // the kernel's limit per call and side

Status readFailure(int32_t pid) {
  Status status = systemFailure("process_vm_readv", "Reading memory of process " + std::to_string(pid) + " failed");
  // EFAULT says that the address is not mapped there: the peer freed what it had published.
  if (status.nativeCode == EFAULT) status.code = Code::InvalidHandle;
  return status;
}

/** Appends a piece, or lengthens the last one where they touch. */
void append(std::vector<iovec>& pieces, uint64_t address, size_t length) {
  if (!pieces.empty()) {
    iovec& last = pieces.back();
    if (reinterpret_cast<uint64_t>(last.iov_base) + last.iov_len == address) {
      last.iov_len += length;
      return;
    }
  }
  pieces.push_back({reinterpret_cast<void*>(address), length});
}

/** Forgets the first `length` bytes of the pieces from `first` on; returns the new first piece. */
size_t advance(std::vector<iovec>& pieces, size_t first, size_t length) {
  while (length > 0) {
    iovec& piece = pieces[first];
    const size_t step = std::min(length, piece.iov_len);
    piece.iov_base = static_cast<uint8_t*>(piece.iov_base) + step;
    piece.iov_len -= step;
    length -= step;
    if (piece.iov_len == 0) first++;
  }
  return first;
}

Status transfer(int32_t pid, std::vector<iovec>& local, std::vector<iovec>& remote) {
  size_t firstLocal = 0, firstRemote = 0;
  while (firstLocal < local.size()) {
    // Both sides hold the same number of bytes; where the vectors end apart, the kernel stops at the shorter one.
    const ssize_t moved =
        process_vm_readv(pid, local.data() + firstLocal, std::min(maxPieces, local.size() - firstLocal),
                         remote.data() + firstRemote, std::min(maxPieces, remote.size() - firstRemote), 0);
    if (moved < 0) return readFailure(pid);
    if (moved == 0) return failure(Code::SystemFailure, "process_vm_readv", "The kernel moved no bytes.");
    firstLocal = advance(local, firstLocal, static_cast<size_t>(moved));
    firstRemote = advance(remote, firstRemote, static_cast<size_t>(moved));
  }
  return Status{};
}

}  // namespace

Status readProcess(int32_t pid, uint64_t address, void* into, size_t length) {
  std::vector<iovec> local{{into, length}}, remote{{reinterpret_cast<void*>(address), length}};
  return length == 0 ? Status{} : transfer(pid, local, remote);
}

Status runRemoteMove(const Move& move, const Job& job) {
  size_t outer = move.dimensionCount;
  size_t run = move.destinationSize;
  if (outer > 0) {
    const Dimension& inner = move.dimensions[outer - 1];
    if (inner.destinationStep == move.destinationSize && inner.sourceStep == move.sourceSize) {
      run *= inner.length;
      outer--;
    }
  }
  std::vector<iovec> local, remote;
  std::array<uint64_t, maxDimensions> position{};
  uint64_t destination = move.destination, source = move.source;
  for (;;) {
    append(local, destination, run);
    append(remote, source, run);
    size_t dimension = outer;
    while (dimension > 0) {
      const Dimension& d = move.dimensions[dimension - 1];
      destination += d.destinationStep;
      source += d.sourceStep;
      if (++position[dimension - 1] < d.length) break;
      position[dimension - 1] = 0;
      destination -= d.destinationStep * static_cast<int64_t>(d.length);
      source -= d.sourceStep * static_cast<int64_t>(d.length);
      dimension--;
    }
    const bool finished = dimension == 0;
    if (finished || local.size() >= maxPieces || remote.size() >= maxPieces) {
      if (job.shouldStop()) return Status{};
      const Status status = transfer(move.pid, local, remote);
      if (!status.ok() || finished) return status;
      local.clear();
      remote.clear();
    }
  }
}

}  // namespace tensorferry
