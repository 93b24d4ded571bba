// SPDX-License-Identifier: Apache-2.0
/*
 * See nccl_rooms.h.
 */
#include "nccl_rooms.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace tensorferry::gpu::simulator {
namespace {

constexpr uint64_t roomMagic = 0x74666e63636c3031u;

struct RoomIdentifier {
  uint64_t magic;
  uint32_t process;
  int32_t file;
  uint64_t start;
  uint64_t inode;
  char unused[96];
};
static_assert(sizeof(RoomIdentifier) == sizeof(UniqueId));

size_t roomBytes(uint32_t ranks) { return roomHeadBytes + size_t{ranks} * ranks * ringLetters * sizeof(Letter); }

std::shared_ptr<Room> mapRoom(int file, uint32_t ranks) {
  auto room = std::make_shared<Room>();
  room->file = file;
  room->inode = inodeOf(file);
  room->ranks = ranks;
  room->bytes = roomBytes(ranks);
  void* head = mmap(nullptr, room->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  if (head == MAP_FAILED) return nullptr;
  room->head = static_cast<RoomHead*>(head);
  return room;
}

}  // namespace

int makeRoom(World& world, UniqueId& identifier) {
  const int file = memfd_create("tensorferry-simulated-room", MFD_CLOEXEC);
  if (file < 0) return collectives::systemError;
  if (ftruncate(file, static_cast<off_t>(roomBytes(maxRanks))) != 0) {
    close(file);
    return collectives::systemError;
  }
  // The file alone is kept: how much of it is mapped depends on the number of ranks.
  auto room = std::make_shared<Room>();
  room->file = file;
  const auto process = static_cast<uint32_t>(getpid());
  const RoomIdentifier made{roomMagic, process, file, processStart(process), inodeOf(file), {}};
  std::memcpy(&identifier, &made, sizeof made);
  auto& kept = world.communicators.made;
  kept.push_back(std::move(room));
  // Files of rooms made long ago are let go; their ranks have them mapped.
  if (kept.size() > 64) kept.erase(kept.begin());
  return collectives::success;
}

int enterRoom(World& world, const UniqueId& identifier, uint32_t ranks, std::shared_ptr<Room>& room) {
  RoomIdentifier given;
  std::memcpy(&given, &identifier, sizeof given);
  if (given.magic != roomMagic) return collectives::invalidArgument;
  room = world.communicators.rooms[given.inode].lock();
  if (room == nullptr) {
    if (!processAlive(given.process, given.start)) return collectives::remoteError;
    const int file = openForeignFile(given.process, given.file, given.inode);
    if (file < 0) return collectives::systemError;
    room = mapRoom(file, ranks);
    if (room == nullptr) return collectives::systemError;
    world.communicators.rooms[given.inode] = room;
  }
  uint32_t agreed = 0;
  if (!room->head->ranks.compare_exchange_strong(agreed, ranks) && agreed != ranks) return collectives::invalidArgument;
  return room->ranks == ranks ? collectives::success : collectives::invalidArgument;
}

uint64_t deviceKey(const World& world, int device) {
  return (hashText(world.settings.node) & ~uint64_t{0xff}) | static_cast<uint64_t>(device);
}

bool allJoined(World& world, Communicator& communicator) {
  if (communicator.ready) return true;
  const Room& room = *communicator.room;
  for (uint32_t rank = 0; rank < room.ranks; rank++)
    if (room.head->slots[rank].state.load(std::memory_order_acquire) == static_cast<uint32_t>(RankState::Absent))
      return false;
  const uint64_t own = room.head->slots[communicator.rank].device.load();
  for (uint32_t rank = 0; rank < room.ranks && !world.settings.duplicates; rank++)
    if (rank != communicator.rank && room.head->slots[rank].device.load() == own) {
      world.violation("nccl-duplicate-device", "Ranks " + std::to_string(rank) + " and " +
                                                   std::to_string(communicator.rank) + " are on the same device.");
      communicator.fail(collectives::invalidUsage, "Duplicate GPU detected.");
    }
  communicator.ready = true;
  return true;
}

}  // namespace tensorferry::gpu::simulator
