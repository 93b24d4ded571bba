// SPDX-License-Identifier: Apache-2.0
/*
 * Which command runs next, and running it: a thread of the library that works in pieces, late and in any order that the
 * dependencies allow.
 */
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "world.h"

namespace tensorferry::xpu::simulator {
namespace {

struct Candidate {
  std::shared_ptr<List> list;
  std::shared_ptr<Command> command;
};

bool hasWaited(const World& world, const Command& command) {
  return world.settings.forgetWaits ||
         std::all_of(command.waits.begin(), command.waits.end(), [](const auto& event) { return event->signalled; });
}

std::vector<Candidate> runnable(World& world) {
  std::vector<Candidate> ready;
  for (const auto& [number, list] : world.lists.all()) {
    bool isFirst = true;
    for (const auto& command : list->queue) {
      const bool isBarrier = command->kind == Command::Kind::Barrier;
      const bool ordered = (isBarrier || list->isInOrder) && !world.settings.forgetOrder;
      if ((isFirst || !ordered) && hasWaited(world, *command)) ready.push_back({list, command});
      if (ordered) break;
      isFirst = false;
    }
  }
  return ready;
}

size_t bytesOf(const Command& command) {
  return command.kind == Command::Kind::Barrier ? 0 : command.width * command.rows;
}

/** Does bytes `from` to before `to` of a command. */
void touch(const Command& command, size_t from, size_t to) {
  while (from < to) {
    const size_t row = from / command.width, column = from % command.width;
    const size_t length = std::min(command.width - column, to - from);
    uint8_t* destination = command.destination + row * command.destinationPitch + column;
    if (command.kind == Command::Kind::Fill) {
      std::memset(destination, command.byte, length);
    } else {
      std::memmove(destination, command.source + row * command.sourcePitch + column, length);
    }
    from += length;
  }
}

void signal(World& world, const std::shared_ptr<Event>& event) {
  if (event == nullptr || event->signalled) return;
  event->signalled = true;
  event->end = nanoseconds();
  world.changed.notify_all();
}

void finish(World& world, const Candidate& one) {
  signal(world, one.command->signal);
  if (one.command->signal != nullptr) one.command->signal->signalling--;
  for (const auto& event : one.command->waits) event->waited--;
  auto& queue = one.list->queue;
  queue.erase(std::find(queue.begin(), queue.end(), one.command));
  world.commands++;
  if (world.settings.lostAfter > 0 && --world.settings.lostAfter == 0) {
    world.isLost = true;
    world.changed.notify_all();
  }
}

/** Runs a piece of one command. False where nothing can run. */
bool step(World& world) {
  const auto ready = runnable(world);
  if (ready.empty() || world.isLost) return false;
  const Candidate& one = ready[world.random.below(ready.size())];
  Command& command = *one.command;
  const size_t all = bytesOf(command);
  if (command.done == 0 && command.signal != nullptr) command.signal->start = nanoseconds();
  if (world.settings.earlySignal) signal(world, command.signal);
  // A third of the pieces are the rest; others cut rows and elements in two.
  const size_t rest = all - command.done;
  const size_t piece = rest < 2 || world.random.chance(33) ? rest : 1 + world.random.below(rest);
  touch(command, command.done, command.done + piece);
  command.done += piece;
  if (command.done == all) finish(world, one);
  return true;
}

void work(World& world) {
  std::unique_lock lock(world.mutex);
  for (;;) {
    const auto pace = std::chrono::milliseconds(world.settings.pace);
    const bool isWanted = world.waiting > 0 || world.allowed > 0;
    if (!isWanted) {
      if (world.settings.pace == 0 || runnable(world).empty()) {
        world.wanted.wait(lock);
        continue;
      }
      world.wanted.wait_until(lock, std::chrono::system_clock::now() + pace);
    }
    const size_t pieces = 1 + world.random.below(8);
    bool ran = false;
    for (size_t i = 0; i < pieces; i++) ran = step(world) || ran;
    if (world.allowed > 0) world.allowed--;
    if (!ran && world.waiting > 0) {
      // Somebody waits for what the host itself must signal.
      world.wanted.wait_until(lock, std::chrono::system_clock::now() + std::chrono::milliseconds(1));
    } else {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  }
}

}  // namespace

void startWorker(World& world) {
  if (!world.hasWorker) {
    world.hasWorker = true;
    std::thread([&world] { work(world); }).detach();
  }
  world.wanted.notify_all();
}

bool isUsed(World& world, uintptr_t start, size_t length) {
  if (world.isLost) return false;
  const auto meets = [&](const void* at, const Command& command, size_t pitch) {
    const auto first = reinterpret_cast<uintptr_t>(at);
    return first < start + length && start < first + (command.rows - 1) * pitch + command.width;
  };
  for (const auto& [number, list] : world.lists.all())
    for (const auto& command : list->queue) {
      if (command->kind == Command::Kind::Barrier) continue;
      if (meets(command->destination, *command, command->destinationPitch)) return true;
      if (command->kind == Command::Kind::Copy && meets(command->source, *command, command->sourcePitch)) return true;
    }
  return false;
}

ze::Result submit(Call& call, List& list, std::shared_ptr<Command> command, ze::EventHandle signal, uint32_t waitCount,
                  ze::EventHandle* waits) {
  World& world = call.world;
  if (signal != nullptr) {
    command->signal = find(call, world.events, signal);
    if (command->signal == nullptr) return ze::code::invalidNullHandle;
    if (command->signal->signalled || command->signal->signalling > 0)
      world.violation("signal-twice", std::string(call.function) + " signals an event that was not reset.");
  }
  for (uint32_t i = 0; i < waitCount; i++) {
    auto event = find(call, world.events, waits[i]);
    if (event == nullptr) return ze::code::invalidNullHandle;
    command->waits.push_back(std::move(event));
  }
  if (command->signal != nullptr) command->signal->signalling++;
  for (const auto& event : command->waits) event->waited++;
  list.queue.push_back(std::move(command));
  startWorker(world);
  return ze::code::success;
}

}  // namespace tensorferry::xpu::simulator
