// SPDX-License-Identifier: Apache-2.0
/*
 * Reads the text of settings. A part that is not understood changes nothing and is named.
 */
#include "settings.h"

#include <cstdlib>
#include <sstream>

#include "../common/numbers.h"

namespace tensorferry::xpu::simulator {
namespace {

using simulators::readNumber;

bool readFailure(const std::string& text, Settings& settings) {
  const size_t first = text.find(':'), second = text.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return false;
  PlannedFailure failure;
  failure.function = text.substr(0, first);
  const std::string count = text.substr(first + 1, second - first - 1);
  uint64_t code = 0;
  failure.always = count == "*";
  if (!failure.always && (!readNumber(count, failure.in) || failure.in == 0)) return false;
  if (!readNumber(text.substr(second + 1), code)) return false;
  failure.code = static_cast<uint32_t>(code);
  settings.failures.push_back(failure);
  return true;
}

bool readFault(const std::string& name, Settings& settings) {
  if (name == "early-signal") return settings.earlySignal = true;
  if (name == "forget-waits") return settings.forgetWaits = true;
  if (name == "forget-order") return settings.forgetOrder = true;
  return false;
}

bool readOne(const std::string& key, const std::string& value, Settings& settings) {
  if (key == "name") return !(settings.name = value).empty();
  if (key == "report") return !(settings.report = value).empty();
  if (key == "fail") return readFailure(value, settings);
  if (key == "fault") return readFault(value, settings);
  if (key == "clear" && value == "faults") {
    settings.failures.clear();
    settings.lostAfter = 0;
    settings.earlySignal = settings.forgetWaits = settings.forgetOrder = false;
    return true;
  }
  uint64_t number = 0, minor = 0;
  if (key == "api") {
    const size_t dot = value.find('.');
    if (dot == std::string::npos || !readNumber(value.substr(0, dot), number) ||
        !readNumber(value.substr(dot + 1), minor))
      return false;
    settings.apiVersion = static_cast<uint32_t>(number << 16 | minor);
    return true;
  }
  if (!readNumber(value, number)) return false;
  const std::map<std::string, uint32_t*> small = {{"devices", &settings.devices},
                                                  {"pace", &settings.pace},
                                                  {"query", &settings.query},
                                                  {"tickBits", &settings.tickBits}};
  const std::map<std::string, uint64_t*> large = {
      {"seed", &settings.seed}, {"memory", &settings.memory}, {"lost", &settings.lostAfter}};
  const std::map<std::string, bool*> flags = {
      {"timestamps", &settings.timestamps}, {"import", &settings.import}, {"hostmemory", &settings.hostMemory}};
  if (const auto found = small.find(key); found != small.end()) *found->second = static_cast<uint32_t>(number);
  else if (const auto wide = large.find(key); wide != large.end()) *wide->second = number;
  else if (const auto flag = flags.find(key); flag != flags.end()) *flag->second = number != 0;
  else return false;
  return true;
}

}  // namespace

std::vector<std::string> readSettings(const std::string& text, Settings& settings) {
  std::vector<std::string> unknown;
  std::istringstream parts(text);
  for (std::string part; parts >> part;) {
    const size_t equals = part.find('=');
    if (equals == std::string::npos || !readOne(part.substr(0, equals), part.substr(equals + 1), settings))
      unknown.push_back(part);
  }
  return unknown;
}

}  // namespace tensorferry::xpu::simulator
