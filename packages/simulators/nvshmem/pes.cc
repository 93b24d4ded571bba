// SPDX-License-Identifier: Apache-2.0
/*
 * See pes.h.
 */
#include "pes.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace tensorferry::gpu::simulator {

PeRoom::~PeRoom() {
  if (head != nullptr) munmap(head, sizeof(PeRoomHead));
  if (file >= 0) close(file);
}

PeSettings PeSettings::read() {
  PeSettings settings;
  const char* text = std::getenv("TENSORFERRY_NVSHMEM_SIMULATOR");
  std::istringstream words(text == nullptr ? "" : text);
  for (std::string word; words >> word;) {
    size_t number = 0;
    char suffix = 0;
    if (std::sscanf(word.c_str(), "heap=%zu%c", &number, &suffix) >= 1)
      settings.heapBytes = suffix == 'k' ? number << 10 : suffix == 'm' ? number << 20 : number;
    std::sscanf(word.c_str(), "version=%d.%d.%d", &settings.version[0], &settings.version[1], &settings.version[2]);
  }
  return settings;
}

Pes& pes(World& world) {
  static Pes* const known = new Pes;
  if (known->epoch != world.epoch) {
    *known = Pes{};
    known->epoch = world.epoch;
  }
  return *known;
}

PeRef findPe(World& world, int device, const char* function) {
  auto& all = pes(world).byDevice;
  const auto found = all.find(device);
  if (found != all.end()) return found->second;
  world.violation("nvshmem-not-initialised",
                  std::string(function) + " on device " + std::to_string(device) + ", which has no PE.");
  return nullptr;
}

bool Pe::offsetOf(World& world, uintptr_t address, size_t bytes, const char* function, size_t& offset) const {
  if (address >= heap && address < heap + heapBytes) {
    offset = address - heap;
    const auto after = blocks.upper_bound(offset);
    if (after != blocks.begin()) {
      const auto& block = *std::prev(after);
      if (offset + bytes <= block.first + block.second) return true;
    }
  }
  world.violation("nvshmem-not-symmetric", std::string(function) + ": " + std::to_string(bytes) + " bytes at " +
                                               hex(address) + " are not in one block of the symmetric heap.");
  return false;
}

bool waitUntil(Call& call, const char* what, const std::function<bool()>& holds) {
  World& world = call.world;
  const uint64_t epoch = world.epoch;
  const uint64_t end = nanoseconds() + uint64_t{world.settings.stuck} * 1000000;
  while (!holds()) {
    world.waiting++;
    world.changed.wait_until(call.lock, std::chrono::system_clock::now() + std::chrono::milliseconds(1));
    world.waiting--;
    if (world.epoch != epoch) return false;
    if (nanoseconds() > end && !holds()) {
      world.violation("stuck", std::string(what) + ": not all PEs came.");
      return false;
    }
  }
  return true;
}

bool meet(Call& call, Pe& pe, const char* what) {
  const auto room = pe.room;
  const uint32_t size = pe.size;
  const uint64_t number = pe.slot(pe.rank).meetings.fetch_add(1, std::memory_order_acq_rel) + 1;
  call.world.changed.notify_all();
  return waitUntil(call, what, [&] {
    for (uint32_t other = 0; other < size; other++)
      if (room->head->slots[other].meetings.load(std::memory_order_acquire) < number) return false;
    return true;
  });
}

}  // namespace tensorferry::gpu::simulator
