// SPDX-License-Identifier: Apache-2.0
/*
 * What a test can set: the settings, the planned faults, and the random numbers that they seed.
 *
 * Guarded by the world's lock, as everything in the world.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tensorferry::gpu::simulator {

/** Small, seeded, and the same everywhere. */
class Random {
 public:
  explicit Random(uint64_t seed = 1) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() noexcept {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /** Below `bound`, which is not zero. */
  uint64_t below(uint64_t bound) noexcept { return next() % bound; }
  bool chance(unsigned percent) noexcept { return below(100) < percent; }

 private:
  uint64_t state_;
};

enum class FaultKind { Fail, Hang, Stall, Late };

struct Fault {
  FaultKind kind;
  std::string function;
  /** Zero: every call. */
  uint64_t call;
  int code;
  uint64_t seen = 0;
};

struct Settings {
  int devices = 2;
  uint64_t seed = 1;
  uint64_t memory = uint64_t{8} << 30;
  int capabilityMajor = 9;
  int capabilityMinor = 0;
  int processors = 4;
  /** The newest architecture that the run-time compiler knows. */
  int compiler = 121;
  std::string name = "Simulated-GPU";
  std::string peers = "all";
  bool ipc = true;
  std::string node;
  bool duplicates = false;
  unsigned pace = 3;
  unsigned query = 50;
  unsigned stuck = 20000;
  std::string report;
  std::vector<Fault> faults;
  /** Stalled work is to go on; whoever does that says so here. */
  bool releasing = false;

  /** Answers the parts of the text that were not understood. */
  std::vector<std::string> apply(const std::string& text);
  bool canAccess(int device, int peer) const;
};

}  // namespace tensorferry::gpu::simulator
