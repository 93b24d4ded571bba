// SPDX-License-Identifier: Apache-2.0
/*
 * Settings from outside, the report, reset, and the report at the end of the process.
 */
#include "control.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator_control.h"
#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

int applyText(World& world, const std::string& text) {
  const uint64_t seed = world.settings.seed;
  const auto refused = world.settings.apply(text);
  if (std::exchange(world.settings.releasing, false))
    for (const auto& entry : world.streams.active)
      for (const auto& operation : entry.second->queue) operation->stalled = false;
  for (const auto& part : refused) world.violation("bad-setting", part);
  if (world.settings.seed != seed || text.find("seed=") != std::string::npos)
    world.random = Random(world.settings.seed);
  return refused.empty() ? 0 : -1;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char one : text) {
    if (one == '"' || one == '\\') out += '\\';
    out += static_cast<unsigned char>(one) < 0x20 ? ' ' : one;
  }
  return out + "\"";
}

void member(std::string& out, const char* name, uint64_t value) {
  if (out.back() != '{') out += ",";
  out += quoted(name) + ":" + std::to_string(value);
}

std::string counts(const std::map<std::string, uint64_t>& values) {
  std::string out = "{";
  for (const auto& entry : values) member(out, entry.first.c_str(), entry.second);
  return out + "}";
}

std::string liveText(World& world) {
  uint64_t memory = 0, bytes = 0, virtualMemory = 0, imported = 0, host = 0, registrations = 0, importedEvents = 0;
  for (const auto& entry : world.memory.allocations) {
    const Allocation& allocation = entry.second;
    memory += allocation.kind == Kind::Device;
    virtualMemory += allocation.kind == Kind::Virtual;
    imported += allocation.kind == Kind::Imported;
    if (allocation.kind == Kind::Device) bytes += allocation.bytes;
  }
  for (const auto& entry : world.memory.host) (entry.second.registered ? registrations : host)++;
  for (const auto& entry : world.events.handles.all()) importedEvents += entry.second->imported;
  std::string out = "{";
  member(out, "memory", memory);
  member(out, "memoryBytes", bytes);
  member(out, "virtualMemory", virtualMemory);
  member(out, "hostMemory", host);
  member(out, "hostRegistrations", registrations);
  member(out, "streams", world.streams.handles.size());
  member(out, "events", world.events.handles.size() - importedEvents);
  member(out, "importedMemory", imported);
  member(out, "importedEvents", importedEvents);
  member(out, "modules", world.modules.handles.size());
  member(out, "programs", world.modules.programs.size());
  member(out, "communicators", world.communicators.handles.size());
  return out + "}";
}

void writeAtExit() {
  World& here = world();
  Lock lock(here.mutex, std::try_to_lock);
  if (!lock.owns_lock() || here.settings.report.empty()) return;
  const std::string path = here.settings.report + "/" + std::to_string(getpid()) + ".json";
  if (FILE* file = std::fopen(path.c_str(), "w")) {
    std::fputs(reportText(here).c_str(), file);
    std::fclose(file);
  }
}

}  // namespace

void readEnvironment(World& world) {
  world.settings = Settings{};
  if (const char* text = std::getenv("TENSORFERRY_GPU_SIMULATOR")) applyText(world, text);
  world.random = Random(world.settings.seed);
  static const int registered = std::atexit(writeAtExit);
  (void)registered;
}

std::string reportText(World& world) {
  checkGuards(world);
  const Report& report = world.report;
  std::string out = "{\"violations\":[";
  for (size_t index = 0; index < report.violations.size(); index++)
    out += std::string(index == 0 ? "" : ",") + "{\"name\":" + quoted(report.violations[index].name) +
           ",\"detail\":" + quoted(report.violations[index].detail) + "}";
  out += "],\"violationCount\":" + std::to_string(report.violationCount);
  out += ",\"pending\":" + std::to_string(world.streams.pending);
  out += ",\"live\":" + liveText(world) + ",\"calls\":" + counts(report.calls) +
         ",\"launches\":" + counts(report.launches);
  out += ",\"bytes\":" + counts(report.bytes);
  std::string group = "{";
  member(group, "groups", report.ncclGroups);
  member(group, "operations", report.ncclOperations);
  member(group, "maxGroup", report.ncclMaxGroup);
  member(group, "maxGroupPerPeer", report.ncclMaxGroupPerPeer);
  return out + ",\"nccl\":" + group + "}}";
}

void resetWorld(World& world) {
  world.epoch++;
  for (const auto& entry : world.communicators.handles.all()) {
    Communicator& communicator = *entry.second;
    communicator.aborted = true;
    communicator.room->head->slots[communicator.rank].state.store(static_cast<uint32_t>(RankState::Aborted));
  }
  world.communicators.handles.clear();
  world.communicators.rooms.clear();
  world.communicators.made.clear();
  world.communicators.lastError.clear();
  for (const auto& entry : world.streams.active) {
    entry.second->queue.clear();
    entry.second->completed = entry.second->submitted;
  }
  world.streams.active.clear();
  world.streams.legacy.clear();
  world.streams.handles.clear();
  world.streams.pending = 0;
  for (const auto& entry : world.events.handles.all())
    if (entry.second->interprocess && !entry.second->imported) entry.second->cell->life.store(0);
  world.events.handles.clear();
  world.events.pending.clear();
  world.modules.handles.clear();
  world.modules.functions.clear();
  world.modules.programs.clear();
  closeImports(world);
  world.memory.quarantine.clear();
  world.memory.allocations.clear();
  world.memory.shared.clear();
  world.memory.used.clear();
  world.memory.host.clear();
  world.sticky.clear();
  world.peers.clear();
  world.contexts.clear();
  world.report = Report{};
  readEnvironment(world);
  world.changed.notify_all();
}

TENSORFERRY_SIM_API int tensorferry_sim_configure(const char* text) {
  return guarded("tensorferry_sim_configure", -1, [&](Call& call) -> int {
    const int answer = applyText(call.world, text == nullptr ? "" : text);
    call.world.changed.notify_all();
    if (call.world.pacing) call.world.pacer.notify_one();
    return answer;
  });
}

TENSORFERRY_SIM_API size_t tensorferry_sim_report(char* buffer, size_t size) {
  size_t length = 0;
  guarded("tensorferry_sim_report", -1, [&](Call& call) -> int {
    const std::string text = reportText(call.world);
    length = text.size();
    if (buffer != nullptr && size > 0) std::snprintf(buffer, size, "%s", text.c_str());
    return 0;
  });
  return length;
}

TENSORFERRY_SIM_API void tensorferry_sim_reset() {
  guarded("tensorferry_sim_reset", -1, [](Call& call) -> int {
    resetWorld(call.world);
    return 0;
  });
}

TENSORFERRY_SIM_API size_t tensorferry_sim_settle() {
  size_t pending = 0;
  guarded("tensorferry_sim_settle", -1, [&](Call& call) -> int {
    while (runAny(call.world, call.lock, 1000) > 0) {
    }
    retire(call.world, false);
    pending = call.world.streams.pending;
    return 0;
  });
  return pending;
}

}  // namespace tensorferry::gpu::simulator
