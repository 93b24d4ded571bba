// SPDX-License-Identifier: Apache-2.0
/*
 * Settings of the simulated driver and planned faults. Guarded by the world's lock.
 */
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tensorferry::xpu::simulator {

/** A call that shall fail; counts down. */
struct PlannedFailure {
  std::string function;
  uint64_t in = 0;
  bool always = false;
  uint32_t code = 0;
};

struct Settings {
  uint32_t devices = 1, apiVersion = (1 << 16) | 4, pace = 2, query = 30, tickBits = 32;
  uint64_t seed = 1, memory = uint64_t{1} << 30;
  std::string name = "Simulated", report;
  bool timestamps = true, import = true, hostMemory = true;
  bool earlySignal = false, forgetWaits = false, forgetOrder = false;
  /** Commands until the device is lost; 0: never. */
  uint64_t lostAfter = 0;
  std::vector<PlannedFailure> failures;
};

/** Reads text into settings; answers the parts that were not understood. */
std::vector<std::string> readSettings(const std::string& text, Settings& settings);

}  // namespace tensorferry::xpu::simulator
