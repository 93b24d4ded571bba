// SPDX-License-Identifier: Apache-2.0
/*
 * Rooms of NCCL: the shared files in which the ranks of a communicator meet. Any thread that holds the world's lock.
 */
#pragma once

#include <cstdint>
#include <memory>

#include "world.h"

namespace tensorferry::gpu::simulator {

/** Makes a room for any number of ranks and writes its identifier. Answers an error number. */
int makeRoom(World& world, UniqueId& identifier);

/** The room of an identifier, shared by all ranks of this process. Answers an error number. */
int enterRoom(World& world, const UniqueId& identifier, uint32_t ranks, std::shared_ptr<Room>& room);

/** What tells devices of all processes apart. */
uint64_t deviceKey(const World& world, int device);

/** True when all ranks are there. Two on one device are refused, as by the real library. */
bool allJoined(World& world, Communicator& communicator);

}  // namespace tensorferry::gpu::simulator
