// SPDX-License-Identifier: Apache-2.0
/*
 * See lmdb_check.h. The structures are those of version 0.9 on machines of 64 bits, which are the same on all of them but for
 * the order of bytes.
 */
#include "lmdb_check.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace tensorferry::lmdb {
namespace {

using Damage = std::optional<std::string>;

constexpr uint32_t magic = 0xBEEFC0DE, dataVersion = 1;
constexpr uint64_t noPage = ~uint64_t{0};
constexpr size_t pageHeader = 16, nodeHeader = 8, leastPage = 256, greatestPage = 0x8000, deepest = 32;
constexpr unsigned branch = 1, leaf = 2, overflow = 4;
constexpr unsigned bigData = 1, subDatabase = 2, duplicates = 4;

struct Database {
  uint32_t pad;
  uint16_t flags, depth;
  uint64_t branchPages, leafPages, overflowPages, entries, root;
};
static_assert(sizeof(Database) == 48);

struct Meta {
  uint32_t magic, version;
  uint64_t address, mapBytes;
  Database free, main;
  uint64_t lastPage, transaction;
};
static_assert(sizeof(Meta) == 136);

struct Node {
  uint16_t low, high, flags, keyBytes;
};

template <typename T>
T read(const std::vector<char>& bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

bool readAt(int descriptor, std::vector<char>& into, uint64_t at) {
  return ::pread(descriptor, into.data(), into.size(), static_cast<off_t>(at)) == static_cast<ssize_t>(into.size());
}

struct Header {
  Meta meta;
  size_t pageBytes;
  Damage damage;
};

Header damaged(std::string what) { return {{}, 0, std::move(what)}; }

/** The newer meta page, once both are found right. */
Header readHeader(int descriptor) {
  std::vector<char> bytes(pageHeader + sizeof(Meta));
  if (!readAt(descriptor, bytes, 0)) return damaged("it is too short for a meta page");
  const Meta first = read<Meta>(bytes, pageHeader);
  const size_t pageBytes = first.free.pad;
  if (first.magic != magic || first.version != dataVersion) return damaged("it does not begin as a file of LMDB 0.9");
  if (pageBytes < leastPage || pageBytes > greatestPage * 2 || (pageBytes & (pageBytes - 1)) != 0)
    return damaged("its pages have " + std::to_string(pageBytes) + " bytes");
  if (!readAt(descriptor, bytes, pageBytes)) return damaged("it is too short for its second meta page");
  const Meta second = read<Meta>(bytes, pageHeader);
  if (second.magic != magic || second.version != dataVersion || second.free.pad != first.free.pad)
    return damaged("its second meta page is not one");
  struct stat facts;
  if (fstat(descriptor, &facts) != 0) return damaged("its length is unknown");
  const uint64_t pages = static_cast<uint64_t>(facts.st_size) / pageBytes;
  const Meta& newer = second.transaction > first.transaction ? second : first;
  for (const Meta* meta : {&first, &second}) {
    for (const Database* database : {&meta->free, &meta->main})
      if (database->root != noPage && (database->root > meta->lastPage || database->root < 2))
        return damaged("a root of it is page " + std::to_string(database->root));
  }
  if (newer.lastPage >= pages)
    return damaged("it has " + std::to_string(pages) + " pages, and page " + std::to_string(newer.lastPage) +
                   " is in use");
  return {newer, pageBytes, std::nullopt};
}

class Walk {
 public:
  Walk(int descriptor, const Header& header)
      : descriptor_(descriptor), header_(header), seen_(header.meta.lastPage + 1) {}

  Damage all() {
    if (Damage damage = tree(header_.meta.free.root, true, 0)) return damage;
    return tree(header_.meta.main.root, false, 0);
  }

 private:
  Damage about(uint64_t page, const std::string& what) const { return "page " + std::to_string(page) + " " + what; }

  bool claim(uint64_t first, uint64_t count) {
    if (first < 2 || count == 0 || first > header_.meta.lastPage || count > header_.meta.lastPage - first + 1)
      return false;
    for (uint64_t page = first; page < first + count; page++) {
      if (seen_[page]) return false;
      seen_[page] = true;
    }
    return true;
  }

  /** The bytes of a value that has pages of its own. */
  Damage overflowPages(uint64_t page, uint64_t bytes, std::vector<char>& value) {
    std::vector<char> head(pageHeader);
    if (page > header_.meta.lastPage || !readAt(descriptor_, head, page * header_.pageBytes))
      return about(page, "is not in the file");
    const uint64_t count = (pageHeader - 1 + bytes) / header_.pageBytes + 1;
    if (read<uint64_t>(head, 0) != page || (read<uint16_t>(head, 10) & overflow) == 0 ||
        read<uint32_t>(head, 12) < count)
      return about(page, "does not begin a long value");
    if (!claim(page, read<uint32_t>(head, 12))) return about(page, "is reached twice, or leaves the file");
    value.resize(bytes);
    return readAt(descriptor_, value, page * header_.pageBytes + pageHeader) ? Damage{} : about(page, "cannot be read");
  }

  /** A list of free pages: their number, then each. */
  Damage freeList(uint64_t page, const std::vector<char>& list) const {
    const uint64_t count = list.size() < 8 ? noPage : read<uint64_t>(list, 0);
    if (count > list.size() / 8 - 1 || list.size() < 8)
      return about(page, "lists more free pages than it has room for");
    for (uint64_t i = 1; i <= count; i++) {
      const uint64_t free = read<uint64_t>(list, 8 * i);
      if (free < 2 || free > header_.meta.lastPage) return about(page, "lists a free page that is none");
    }
    return std::nullopt;
  }

  Damage leafNode(uint64_t page, const std::vector<char>& bytes, size_t at, bool isFree, size_t depth) {
    const Node node = read<Node>(bytes, at);
    const uint64_t length = node.low | uint64_t{node.high} << 16;
    const size_t data = at + nodeHeader + node.keyBytes;
    const uint64_t stored = (node.flags & bigData) != 0 ? sizeof(uint64_t) : length;
    if (data + stored > bytes.size() || (node.flags & duplicates) != 0)
      return about(page, "has an entry that leaves it");
    std::vector<char> value(bytes.begin() + static_cast<ptrdiff_t>(data),
                            bytes.begin() + static_cast<ptrdiff_t>(data + stored));
    if ((node.flags & bigData) != 0)
      if (Damage damage = overflowPages(read<uint64_t>(bytes, data), length, value)) return damage;
    if (isFree) return node.keyBytes == sizeof(uint64_t) ? freeList(page, value) : about(page, "has a wrong key");
    if ((node.flags & subDatabase) == 0) return std::nullopt;
    if (value.size() != sizeof(Database)) return about(page, "has a database of a wrong length");
    return tree(read<Database>(value, 0).root, false, depth + 1);
  }

  Damage tree(uint64_t page, bool isFree, size_t depth) {
    if (page == noPage) return std::nullopt;
    if (depth > deepest || !claim(page, 1)) return about(page, "is reached twice, or not in the file");
    std::vector<char> bytes(header_.pageBytes);
    if (!readAt(descriptor_, bytes, page * header_.pageBytes)) return about(page, "cannot be read");
    const unsigned flags = read<uint16_t>(bytes, 10) & ~0x10u;
    const size_t lower = read<uint16_t>(bytes, 12), upper = read<uint16_t>(bytes, 14);
    if (read<uint64_t>(bytes, 0) != page || (flags != branch && flags != leaf))
      return about(page, "does not say that it is one");
    if (lower < pageHeader || lower > upper || upper > bytes.size() || lower % 2 != 0)
      return about(page, "has wrong bounds");
    const size_t count = (lower - pageHeader) / 2;
    if (count == 0 || (flags == branch && count < 2)) return about(page, "is empty");
    for (size_t i = 0; i < count; i++) {
      const size_t at = read<uint16_t>(bytes, pageHeader + 2 * i);
      if (at < upper || at + nodeHeader > bytes.size()) return about(page, "has an entry that leaves it");
      const Node node = read<Node>(bytes, at);
      if (at + nodeHeader + node.keyBytes > bytes.size()) return about(page, "has a key that leaves it");
      const uint64_t child = node.low | uint64_t{node.high} << 16 | uint64_t{node.flags} << 32;
      Damage damage = flags == branch ? tree(child, isFree, depth + 1) : leafNode(page, bytes, at, isFree, depth);
      if (damage) return damage;
    }
    return std::nullopt;
  }

  const int descriptor_;
  const Header header_;
  std::vector<bool> seen_;
};

}  // namespace

Damage damageOfHeader(int descriptor) { return readHeader(descriptor).damage; }

Damage damageOfPages(int descriptor) {
  const Header header = readHeader(descriptor);
  return header.damage ? header.damage : Walk(descriptor, header).all();
}

bool isOfEarlierBoot(int descriptor) {
  struct stat facts;
  timespec now{}, up{};
  if (fstat(descriptor, &facts) != 0 || clock_gettime(CLOCK_REALTIME, &now) != 0 ||
      clock_gettime(CLOCK_BOOTTIME, &up) != 0)
    return false;
  return facts.st_mtim.tv_sec < now.tv_sec - up.tv_sec - 1;
}

}  // namespace tensorferry::lmdb
