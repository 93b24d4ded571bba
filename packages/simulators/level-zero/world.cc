// SPDX-License-Identifier: Apache-2.0
/*
 * See world.h. Also the library's controls.
 */
#include "world.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulator_control.h"

namespace tensorferry::xpu::simulator {
namespace {

constexpr const char* variable = "TENSORFERRY_LEVEL_ZERO_SIMULATOR";

int configure(World& world, const char* text) {
  const uint64_t seed = world.settings.seed;
  const auto unknown = readSettings(text == nullptr ? "" : text, world.settings);
  for (const std::string& part : unknown) world.violation("bad-setting", part);
  if (world.settings.seed != seed) world.random.seed(world.settings.seed);
  world.wanted.notify_all();
  return unknown.empty() ? 0 : -1;
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c < ' ' ? ' ' : c;
  }
  return out + '"';
}

std::string report(World& world) {
  size_t pending = 0, device = 0, host = 0;
  for (const auto& [number, list] : world.lists.all()) pending += list->queue.size();
  for (const auto& [address, block] : world.memory)
    if (!block.isFreed) (block.isDevice ? device : host)++;
  std::string text = "{\"violations\":[";
  for (size_t i = 0; i < world.violations.size(); i++)
    text += (i == 0 ? "{\"name\":" : ",{\"name\":") + quoted(world.violations[i].first) +
            ",\"detail\":" + quoted(world.violations[i].second) + "}";
  const auto count = [&](const char* name, size_t value) {
    text += (text.back() == '{' ? "" : ",") + quoted(name) + ":" + std::to_string(value);
  };
  text +=
      "],\"pending\":" + std::to_string(pending) + ",\"commands\":" + std::to_string(world.commands) + ",\"live\":{";
  count("contexts", world.contexts.size());
  count("lists", world.lists.size());
  count("pools", world.pools.size());
  count("events", world.events.size());
  count("deviceMemory", device);
  count("hostMemory", host);
  count("imports", world.imports.size());
  text += "},\"calls\":{";
  for (const auto& [name, calls] : world.calls) count(name.c_str(), calls);
  return text + "}}";
}

void reportAtExit() {
  World& all = world();
  std::lock_guard lock(all.mutex);
  if (all.settings.report.empty()) return;
  if (FILE* file = std::fopen(all.settings.report.c_str(), "w")) {
    const std::string text = report(all);
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
}

void begin(World& world) {
  world.settings = Settings{};
  world.random.seed(world.settings.seed);
  configure(world, std::getenv(variable));
}

}  // namespace

World& world() {
  static World* all = [] {
    auto* made = new World();
    begin(*made);
    std::atexit(reportAtExit);
    return made;
  }();
  return *all;
}

Call::Call(World& owner, const char* name) : world(owner), function(name), lock(owner.mutex) {
  world.calls[function]++;
  for (PlannedFailure& failure : world.settings.failures) {
    if (failure.function != function) continue;
    if (failure.always || (failure.in > 0 && --failure.in == 0)) planned = failure.code;
  }
  const bool isOfDevice = std::strncmp(function, "zeCommandListAppend", 19) == 0 ||
                          std::strcmp(function, "zeEventHostSynchronize") == 0 ||
                          std::strcmp(function, "zeEventQueryStatus") == 0;
  if (world.isLost && isOfDevice && planned == ze::code::success) planned = ze::code::deviceLost;
}

uint64_t nanoseconds() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

}  // namespace tensorferry::xpu::simulator

using namespace tensorferry::xpu::simulator;

#define TENSORFERRY_EXPORT extern "C" __attribute__((visibility("default")))

TENSORFERRY_EXPORT int tensorferry_level_zero_configure(const char* text) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  return configure(all, text);
}

TENSORFERRY_EXPORT size_t tensorferry_level_zero_report(char* buffer, size_t size) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  const std::string text = report(all);
  if (size > 0) {
    const size_t length = std::min(size - 1, text.size());
    std::memcpy(buffer, text.data(), length);
    buffer[length] = '\0';
  }
  return text.size();
}

TENSORFERRY_EXPORT void tensorferry_level_zero_reset(void) {
  World& all = world();
  std::lock_guard lock(all.mutex);
  all.lists.clear();
  all.events.clear();
  all.pools.clear();
  all.contexts.clear();
  dropMemory(all);
  all.imports.clear();
  all.violations.clear();
  all.calls.clear();
  all.isLost = false;
  all.commands = all.allowed = 0;
  begin(all);
  all.changed.notify_all();
}
