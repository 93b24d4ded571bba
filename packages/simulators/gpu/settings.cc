// SPDX-License-Identifier: Apache-2.0
/*
 * Reads the text of settings. A part that is not understood changes nothing and is named.
 */
#include "settings.h"

#include <algorithm>
#include <cstdlib>

#include "../common/numbers.h"

namespace tensorferry::gpu::simulator {
namespace {

using simulators::readNumber;

template <typename Integer>
bool readInto(const std::string& text, Integer& target, uint64_t limit = INT32_MAX) {
  uint64_t value = 0;
  if (!readNumber(text, value) || value > limit) return false;
  target = static_cast<Integer>(value);
  return true;
}

std::vector<std::string> split(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool readFault(FaultKind kind, const std::string& text, std::vector<Fault>& faults) {
  const bool hasCode = kind == FaultKind::Fail || kind == FaultKind::Late;
  const auto parts = split(text, ":");
  if (parts.size() != (hasCode ? 3u : 2u)) return false;
  Fault fault{kind, parts[0], 0, 0};
  if (parts[1] != "*" && (!readInto(parts[1], fault.call, UINT64_MAX) || fault.call == 0)) return false;
  if (hasCode && !readInto(parts[2], fault.code)) return false;
  faults.push_back(std::move(fault));
  return true;
}

bool readCapability(const std::string& text, Settings& settings) {
  const auto parts = split(text, ".");
  return parts.size() == 2 && readInto(parts[0], settings.capabilityMajor) &&
         readInto(parts[1], settings.capabilityMinor);
}

bool readPeers(const std::string& text, std::string& peers) {
  if (text != "all" && text != "none") {
    for (const auto& pair : split(text, "+")) {
      const auto ends = split(pair, "-");
      int device = 0;
      if (ends.size() != 2 || !readInto(ends[0], device) || !readInto(ends[1], device)) return false;
    }
  }
  peers = text;
  return true;
}

bool applyOne(const std::string& key, const std::string& value, Settings& settings) {
  if (key == "devices") return readInto(value, settings.devices, 64);
  if (key == "seed") return readInto(value, settings.seed, UINT64_MAX);
  if (key == "memory") return readInto(value, settings.memory, UINT64_MAX);
  if (key == "capability") return readCapability(value, settings);
  if (key == "processors") return readInto(value, settings.processors);
  if (key == "compiler") return readInto(value, settings.compiler);
  if (key == "name") return settings.name = value, true;
  if (key == "peers") return readPeers(value, settings.peers);
  if (key == "ipc") return readInto(value, settings.ipc, 1);
  if (key == "node") return settings.node = value, true;
  if (key == "duplicates") return readInto(value, settings.duplicates, 1);
  if (key == "pace") return readInto(value, settings.pace);
  if (key == "query") return readInto(value, settings.query, 100);
  if (key == "stuck") return readInto(value, settings.stuck);
  if (key == "report") return settings.report = value, true;
  if (key == "fail") return readFault(FaultKind::Fail, value, settings.faults);
  if (key == "hang") return readFault(FaultKind::Hang, value, settings.faults);
  if (key == "stall") return readFault(FaultKind::Stall, value, settings.faults);
  if (key == "late") return readFault(FaultKind::Late, value, settings.faults);
  if (key == "clear" && value == "faults") return settings.faults.clear(), true;
  if (key == "release" && value == "stalls") return settings.releasing = true;
  return false;
}

}  // namespace

std::vector<std::string> Settings::apply(const std::string& text) {
  std::vector<std::string> refused;
  for (const auto& part : split(text, ",; \t\r\n")) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos || !applyOne(part.substr(0, equals), part.substr(equals + 1), *this))
      refused.push_back(part);
  }
  return refused;
}

bool Settings::canAccess(int device, int peer) const {
  if (device == peer || peers == "none") return false;
  if (peers == "all") return true;
  const std::string one = std::to_string(device) + "-" + std::to_string(peer);
  const std::string other = std::to_string(peer) + "-" + std::to_string(device);
  for (const auto& pair : split(peers, "+"))
    if (pair == one || pair == other) return true;
  return false;
}

}  // namespace tensorferry::gpu::simulator
