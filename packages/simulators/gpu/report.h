// SPDX-License-Identifier: Apache-2.0
/*
 * What the simulator found and counted.
 */
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tensorferry::gpu::simulator {

struct Violation {
  std::string name;
  std::string detail;
};

struct Report {
  /** The first ones in full, all of them counted. */
  std::vector<Violation> violations;
  uint64_t violationCount = 0;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, uint64_t> launches;
  std::map<std::string, uint64_t> bytes;
  uint64_t ncclGroups = 0;
  uint64_t ncclOperations = 0;
  uint64_t ncclMaxGroup = 0;
  uint64_t ncclMaxGroupPerPeer = 0;

  void violation(std::string name, std::string detail) {
    violationCount++;
    if (violations.size() < 200) violations.push_back({std::move(name), std::move(detail)});
  }
};

}  // namespace tensorferry::gpu::simulator
