// SPDX-License-Identifier: Apache-2.0
/*
 * See peer_memory.h.
 */
#include "peer_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <utility>

#include <tensorferry/descriptor.h>

namespace tensorferry {
namespace {

Status noPeerMemory(int32_t pid, int32_t descriptor, const std::string& what) {
  return failure(Code::InvalidHandle, "open",
                 "Descriptor " + std::to_string(descriptor) + " of process " + std::to_string(pid) + " " + what);
}

}  // namespace

Result<PeerCredentials> peerCredentials(int socket) {
  ucred facts{};
  socklen_t length = sizeof facts;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &facts, &length) != 0)
    return systemFailure("getsockopt", "The client at the other end of the socket cannot be told");
  return PeerCredentials{facts.pid, facts.uid};
}

uint32_t ownUser() noexcept { return ::geteuid(); }

Result<std::shared_ptr<PeerMemory>> PeerMemory::open(int32_t pid, int32_t descriptor, uint64_t inode,
                                                     uint64_t byteLength) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(descriptor);
  // Looked at before it is opened: opening a device or a pipe can have effects of its own.
  struct stat facts;
  if (::stat(path.c_str(), &facts) != 0)
    return errno == ENOENT ? noPeerMemory(pid, descriptor, "is not open.")
                           : systemFailure("stat", "Memory of process " + std::to_string(pid));
  if (!S_ISREG(facts.st_mode)) return noPeerMemory(pid, descriptor, "is no memory.");
  Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.isOpen()) return systemFailure("open", "Memory of process " + std::to_string(pid) + " cannot be opened");
  struct statfs system;
  if (::fstat(file.get(), &facts) != 0 || ::fstatfs(file.get(), &system) != 0)
    return systemFailure("fstat", "Memory of process " + std::to_string(pid) + " cannot be examined");
  if (!S_ISREG(facts.st_mode) || system.f_type != TMPFS_MAGIC) return noPeerMemory(pid, descriptor, "is no memory.");
  if (facts.st_uid != ownUser())
    return failure(
        Code::PermissionDenied, "open",
        "The memory of process " + std::to_string(pid) + " belongs to user " + std::to_string(facts.st_uid) + ".");
  if (facts.st_ino != inode) return noPeerMemory(pid, descriptor, "is other memory by now.");
  if (static_cast<uint64_t>(facts.st_size) < byteLength)
    return noPeerMemory(
        pid, descriptor,
        "has " + std::to_string(facts.st_size) + " bytes, too few for " + std::to_string(byteLength) + ".");
  if (byteLength == 0) return std::make_shared<PeerMemory>(Mapping());
  auto mapping = Mapping::map(file.get(), byteLength, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping.ok()) return mapping.status();
  mapping.value().guard();
  return std::make_shared<PeerMemory>(std::move(mapping.value()));
}

}  // namespace tensorferry
