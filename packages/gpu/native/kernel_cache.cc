// SPDX-License-Identifier: Apache-2.0
/*
 * See kernel_cache.h. A file is a head and the image; its name is a hash of the key, and the head holds the key's length
 * and a second hash, so that a collision of names is found.
 */
#include "kernel_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>

namespace tensorferry::gpu {
namespace {

struct Head {
  char magic[8] = {'t', 'f', 'k', 'e', 'r', 'n', '0', '1'};
  uint64_t keyLength, keyHash, imageLength, imageHash;
};

constexpr uint64_t nameSeed = 0x6a09e667f3bcc908, checkSeed = 0xbb67ae8584caa73b;
/** No image of ours comes near. */
constexpr uint64_t imageLimit = 1 << 28;

uint64_t hash(const std::string& text, uint64_t seed) noexcept {
  uint64_t state = seed;
  for (const char character : text) {
    state = (state ^ static_cast<uint8_t>(character)) * 0x100000001b3;
    state ^= state >> 29;
  }
  return state * 0x9e3779b97f4a7c15;
}

std::string fileName(const std::string& key) {
  char name[40];
  std::snprintf(name, sizeof name, "kernels-%016llx", static_cast<unsigned long long>(hash(key, nameSeed)));
  return name;
}

Head headOf(const std::string& key, const std::string& image) {
  Head head;
  head.keyLength = key.size();
  head.keyHash = hash(key, checkSeed);
  head.imageLength = image.size();
  head.imageHash = hash(image, checkSeed);
  return head;
}

bool readAll(int descriptor, void* into, size_t length) noexcept {
  auto* at = static_cast<char*>(into);
  while (length > 0) {
    const ssize_t got = ::read(descriptor, at, length);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    length -= static_cast<size_t>(got);
  }
  return true;
}

bool writeAll(int descriptor, const void* from, size_t length) noexcept {
  auto* at = static_cast<const char*>(from);
  while (length > 0) {
    const ssize_t put = ::write(descriptor, at, length);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    length -= static_cast<size_t>(put);
  }
  return true;
}

/** Makes the folder and those above it that are missing, for the owner only. */
void makeFolders(const std::string& folder) {
  for (size_t at = folder.find('/', 1); at != std::string::npos; at = folder.find('/', at + 1))
    ::mkdir(folder.substr(0, at).c_str(), 0700);
  ::mkdir(folder.c_str(), 0700);
}

}  // namespace

Result<KernelCache> KernelCache::open(const std::string& folder) {
  makeFolders(folder);
  Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!opened.isOpen()) return systemFailure("open", "The kernel cache " + folder + " could not be opened");
  struct stat facts{};
  if (::fstat(opened.get(), &facts) != 0) return systemFailure("fstat", "The kernel cache " + folder);
  if (facts.st_uid != ::geteuid() || (facts.st_mode & 077) != 0)
    return failure(
        Code::PermissionDenied, "open",
        "The kernel cache " + folder + " must belong to this user alone: chmod 700, or name another folder.");
  return KernelCache(std::move(opened));
}

std::optional<std::string> KernelCache::read(const std::string& key) const {
  Descriptor file(::openat(folder_.get(), fileName(key).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat facts{};
  if (!file.isOpen() || ::fstat(file.get(), &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid())
    return std::nullopt;
  Head head;
  if (!readAll(file.get(), &head, sizeof head) || head.imageLength > imageLimit ||
      facts.st_size != static_cast<off_t>(sizeof head + head.imageLength))
    return std::nullopt;
  std::string image(head.imageLength, '\0');
  if (!readAll(file.get(), image.data(), image.size())) return std::nullopt;
  const Head expected = headOf(key, image);
  return std::memcmp(&head, &expected, sizeof head) == 0 ? std::optional(std::move(image)) : std::nullopt;
}

void KernelCache::write(const std::string& key, const std::string& image) const {
  static std::atomic<unsigned> number{0};
  const std::string name = fileName(key);
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const std::string temporary =
      name + "." + std::to_string(::getpid()) + "." + std::to_string(now) + "." + std::to_string(number++);
  Descriptor file(
      ::openat(folder_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.isOpen()) return;
  const Head head = headOf(key, image);
  const bool written = writeAll(file.get(), &head, sizeof head) && writeAll(file.get(), image.data(), image.size()) &&
                       ::fsync(file.get()) == 0;
  file.reset();
  if (!written || ::renameat(folder_.get(), temporary.c_str(), folder_.get(), name.c_str()) != 0)
    ::unlinkat(folder_.get(), temporary.c_str(), 0);
}

}  // namespace tensorferry::gpu
