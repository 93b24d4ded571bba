// SPDX-License-Identifier: Apache-2.0
/*
 * See torch_memory.h.
 */
#include "torch_memory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include <tensorferry/descriptor.h>

namespace tensorferry {
namespace {

constexpr size_t headerBytes = 64;

struct SharedFile {
  Descriptor descriptor;
  uint64_t byteLength;
};

Result<SharedFile> openShared(const std::string& name) {
  Descriptor file(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0));
  if (!file.isOpen()) return systemFailure("shm_open", "Shared memory " + name);
  struct stat facts;
  if (fstat(file.get(), &facts) != 0) return systemFailure("fstat", name);
  if (facts.st_uid != geteuid() || !S_ISREG(facts.st_mode))
    return failure(Code::PermissionDenied, "shm_open", "Shared memory " + name + " belongs to another user.");
  return SharedFile{std::move(file), static_cast<uint64_t>(facts.st_size)};
}

}  // namespace

Result<std::shared_ptr<TorchMemory>> TorchMemory::open(const std::string& name, uint64_t byteLength) {
  auto file = openShared(name);
  if (!file.ok()) return file.status();
  if (file.value().byteLength < headerBytes || file.value().byteLength - headerBytes < byteLength)
    return failure(Code::InvalidHandle, "shm_open",
                   "Shared memory " + name + " has " + std::to_string(file.value().byteLength) +
                       " bytes, too few for " + std::to_string(byteLength) + ".");
  auto mapping =
      Mapping::map(file.value().descriptor.get(), headerBytes + byteLength, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping.ok()) return mapping.status();
  mapping.value().guard();
  const std::atomic_ref<int32_t> count(*static_cast<int32_t*>(mapping.value().address()));
  if (count.load() < 1) return failure(Code::PeerGone, "shm_open", "Shared memory " + name + " has no owner any more.");
  return std::make_shared<TorchMemory>(name, std::move(mapping.value()));
}

void* TorchMemory::payload() const noexcept {
  return mapping_.address() == nullptr ? nullptr : static_cast<char*>(mapping_.address()) + headerBytes;
}

void TorchMemory::giveBackCount() noexcept {
  if (mapping_.address() == nullptr || !std::exchange(isCounted_, false)) return;
  std::atomic_ref<int32_t> count(*static_cast<int32_t*>(mapping_.address()));
  if (count.fetch_sub(1) == 1) ::shm_unlink(name_.c_str());
}

void TorchMemory::close() noexcept {
  giveBackCount();
  mapping_.reset();
}

Status returnCudaCount(const std::string& name, uint64_t index) {
  auto file = openShared(name);
  if (!file.ok()) return file.status();
  const uint64_t places =
      file.value().byteLength < headerBytes ? 0 : (file.value().byteLength - headerBytes) / sizeof(int64_t);
  if (index >= places)
    return failure(Code::InvalidHandle, "shm_open", name + " has " + std::to_string(places) + " counts.");
  auto mapping =
      Mapping::map(file.value().descriptor.get(), file.value().byteLength, PROT_READ | PROT_WRITE, MAP_SHARED);
  if (!mapping.ok()) return mapping.status();
  mapping.value().guard();
  auto* counts = reinterpret_cast<int64_t*>(static_cast<char*>(mapping.value().address()) + headerBytes);
  std::atomic_ref<int64_t> count(counts[index]);
  // Below zero it would count for whatever gets this place next.
  int64_t seen = count.load();
  while (seen > 0 && !count.compare_exchange_weak(seen, seen - 1)) {
  }
  return seen > 0 ? Status{} : failure(Code::PeerGone, "shm_open", "The count in " + name + " was given back before.");
}

void removeCudaCounts(const std::string& name) noexcept { ::shm_unlink(name.c_str()); }

}  // namespace tensorferry
