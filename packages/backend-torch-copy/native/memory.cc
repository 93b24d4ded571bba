// SPDX-License-Identifier: Apache-2.0
/*
 * See memory.h.
 */
#include "memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace tensorferry {
namespace {

constexpr const char* memoryName = "tensorferry";
constexpr int requiredSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned noExecSeal = 0x8;  // MFD_NOEXEC_SEAL, newer than some C libraries

/** A small file of /proc or /sys. */
std::optional<std::string> readText(const std::string& path) {
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.isOpen()) return std::nullopt;
  std::string text(8192, '\0');
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  if (length < 0) return std::nullopt;
  text.resize(static_cast<size_t>(length));
  return text;
}

std::optional<uint64_t> numberAt(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  uint64_t value = 0;
  const auto parsed = std::from_chars(text.data() + begin, text.data() + text.size(), value);
  return parsed.ec == std::errc{} ? std::optional(value) : std::nullopt;
}

/**
 * Bytes that the machine and the process's control group can still give. The kernel answers a larger request not with an
 * error but by killing a process.
 */
uint64_t availableBytes() {
  uint64_t available = UINT64_MAX;
  if (const auto text = readText("/proc/meminfo")) {
    const size_t at = text->find("MemAvailable:");
    if (at != std::string::npos)
      if (const auto kibibytes = numberAt(std::string_view(*text).substr(at + 13))) available = *kibibytes * 1024;
  }
  for (const auto& [limitPath, usedPath] :
       {std::pair{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
        std::pair{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"}}) {
    const auto limit = readText(limitPath), used = readText(usedPath);
    if (!limit || !used) continue;
    const auto most = numberAt(*limit), now = numberAt(*used);  // "max" is no number: no limit
    if (most && now) available = std::min(available, *most > *now ? *most - *now : 0);
  }
  return available;
}

Status outOfMemory(uint64_t byteLength, const std::string& why, int error) {
  return failure(Code::OutOfMemory, "memfd", std::to_string(byteLength) + " bytes of shared memory: " + why, error);
}

Status invalid(const MemoryLocation& location, const std::string& detail) {
  return failure(Code::InvalidHandle, "open",
                 "Descriptor " + std::to_string(location.descriptor) + " of process " + std::to_string(location.pid) +
                     " " + detail);
}

Status ownerGone(const MemoryLocation& location) {
  return failure(Code::PeerGone, "open", "Process " + std::to_string(location.pid) + " is gone.", ESRCH);
}

/** Fails unless the process is the one that the handle was made by. */
Status checkOwner(const MemoryLocation& location) {
  auto start = processStart(location.pid);
  if (!start.ok() || start.value() != location.processStart) return ownerGone(location);
  return Status{};
}

}  // namespace

Result<std::shared_ptr<Memory>> createMemory(uint64_t byteLength) {
  if (byteLength > availableBytes()) return outOfMemory(byteLength, "more than the machine has available", ENOMEM);
  auto memory = std::make_shared<Memory>();
  memory->descriptor = Descriptor(memfd_create(memoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING | noExecSeal));
  if (!memory->descriptor.isOpen() && errno == EINVAL)
    memory->descriptor = Descriptor(memfd_create(memoryName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory->descriptor.isOpen()) return systemFailure("memfd_create", "No memory file could be made");
  const int file = memory->descriptor.get();
  if (fchmod(file, 0600) != 0) return systemFailure("fchmod", "The memory file could not be closed to other users");
  int error = 0;
  do error = posix_fallocate(file, 0, static_cast<off_t>(byteLength));
  while (error == EINTR);
  if (error != 0) {
    const bool exhausted = error == ENOSPC || error == ENOMEM || error == EFBIG;
    return exhausted ? outOfMemory(byteLength, std::strerror(error), error)
                     : failure(codeOfErrno(error), "fallocate", std::strerror(error), error);
  }
  if (fcntl(file, F_ADD_SEALS, requiredSeals) != 0)
    return systemFailure("fcntl", "The memory file could not be sealed");
  struct stat facts;
  if (fstat(file, &facts) != 0) return systemFailure("fstat", "The memory file could not be examined");
  memory->inode = facts.st_ino;
  auto mapping = Mapping::map(file, byteLength, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping.ok()) return mapping.status();
  memory->mapping = std::move(mapping.value());
  return memory;
}

Result<std::shared_ptr<Memory>> openMemory(const MemoryLocation& location, MapAccess access, Sealing sealing) {
  if (Status owner = checkOwner(location); !owner.ok()) return owner;
  const std::string path = "/proc/" + std::to_string(location.pid) + "/fd/" + std::to_string(location.descriptor);
  // The link is read before anything is opened: opening a device or a pipe can have effects of its own.
  char target[64] = {};
  if (::readlink(path.c_str(), target, sizeof target - 1) < 0) {
    if (errno == ENOENT) return checkOwner(location).ok() ? invalid(location, "is not open.") : ownerGone(location);
    return systemFailure("readlink", "Memory of process " + std::to_string(location.pid) + " cannot be opened");
  }
  const bool isMemoryFile = std::string_view(target).starts_with("/memfd:");
  // What is left of shared memory whose name was removed, as PyTorch does with its own.
  const bool isNameless =
      std::string_view(target).starts_with("/dev/shm/") && std::string_view(target).ends_with(" (deleted)");
  if (!isMemoryFile && !(isNameless && sealing == Sealing::none)) return invalid(location, "is not a memory file.");
  const int mode = access == MapAccess::shared ? O_RDWR : O_RDONLY;
  Descriptor file(::open(path.c_str(), mode | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!file.isOpen())
    return systemFailure("open", "Memory of process " + std::to_string(location.pid) + " cannot be opened");
  struct stat facts;
  struct statfs system;
  if (fstat(file.get(), &facts) != 0 || fstatfs(file.get(), &system) != 0)
    return systemFailure("fstat", "Memory of process " + std::to_string(location.pid) + " cannot be examined");
  if (!S_ISREG(facts.st_mode) || system.f_type != TMPFS_MAGIC) return invalid(location, "is not a memory file.");
  if (facts.st_ino != location.inode) return invalid(location, "now belongs to other memory.");
  if (facts.st_uid != geteuid())
    return failure(Code::PermissionDenied, "open", "The memory belongs to user " + std::to_string(facts.st_uid) + ".",
                   EPERM);
  const int seals = fcntl(file.get(), F_GET_SEALS);
  const bool isSealed = seals >= 0 && (seals & requiredSeals) == requiredSeals;
  if (!isSealed && sealing == Sealing::required) return invalid(location, "is not sealed.");
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (size == 0 || location.byteEnd > size)
    return invalid(location, "has " + std::to_string(size) + " bytes, not " + std::to_string(location.byteEnd) + ".");
  if (Status owner = checkOwner(location); !owner.ok()) return owner;
  const int protection = access == MapAccess::readOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  const int flags = access == MapAccess::copyOnWrite ? MAP_PRIVATE | MAP_NORESERVE : MAP_SHARED;
  auto mapping = Mapping::map(file.get(), size, protection, flags);
  if (!mapping.ok()) return mapping.status();
  if (!isSealed) mapping.value().guard();
  auto memory = std::make_shared<Memory>();
  memory->mapping = std::move(mapping.value());
  memory->inode = facts.st_ino;
  return memory;
}

Result<uint64_t> processStart(int32_t pid) {
  const auto text = readText("/proc/" + std::to_string(pid) + "/stat");
  // The second field is the program's name in parentheses and may hold spaces; the start time is the 22nd.
  const size_t close = text ? text->rfind(')') : std::string::npos;
  if (close == std::string::npos)
    return failure(Code::PeerGone, "processStart", "Process " + std::to_string(pid) + " is gone.", ESRCH);
  std::string_view rest = std::string_view(*text).substr(close + 1);
  // A process that has ended but was not collected has given its memory back.
  if (rest.size() > 1 && (rest[1] == 'Z' || rest[1] == 'X'))
    return failure(Code::PeerGone, "processStart", "Process " + std::to_string(pid) + " has ended.", ESRCH);
  for (int field = 2; field < 22; field++) {
    const size_t space = rest.find(' ', 1);
    if (space == std::string_view::npos) break;
    if (field < 21) rest = rest.substr(space);
  }
  if (const auto start = numberAt(rest)) return *start;
  return failure(Code::SystemFailure, "processStart", "/proc/PID/stat has an unknown form.");
}

Result<std::string> processSpace() {
  auto boot = readText("/proc/sys/kernel/random/boot_id");
  char space[64] = {};
  if (!boot || ::readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
    return systemFailure("processSpace", "/proc does not tell the boot or the process namespace");
  while (!boot->empty() && boot->back() == '\n') boot->pop_back();
  return *boot + " " + space;
}

}  // namespace tensorferry
