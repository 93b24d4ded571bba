// SPDX-License-Identifier: Apache-2.0
/*
 * See ring.h. Threads come to a job in any order: the first carries out all steps but the gather at the end, which others
 * wait for.
 */
#include "ring.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <tensorferry/replay/ring_steps.h>
#include <tensorferry/tables/ring_table.h>

namespace tensorferry {
namespace {

/** Bytes that a thread gathers at a time, about. */
constexpr uint64_t unitBytes = 1 << 20;

/** Memory of this process, by address. One thread at a time touches the words of a ring. */
struct HostRingMemory {
  static constexpr bool isTogether = false;
  template <typename T>
  static T load(uint64_t address) {
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
    return value;
  }
  template <typename T>
  static void store(uint64_t address, T value) {
    std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
  }
  static void raise(uint64_t address, uint32_t value) {
    if (value > load<uint32_t>(address)) store(address, value);
  }
  static void copy(uint64_t to, uint64_t from, uint64_t bytes, uint32_t, uint32_t) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  }
  template <typename ShareOf>
  static RingRandom differenceOf(const RingLanes& own, const ShareOf& shareOf) {
    return shareOf(own);
  }
  template <typename ShareOf>
  static uint64_t sumOf(const RingLanes& own, const ShareOf& shareOf) {
    return shareOf(own);
  }
};

struct HostStep {
  bool isCopy;
  uint64_t destination, source, bytes;
  RingParameter launch;
};

void runIndices(const RingParameter& launch, uint64_t begin, uint64_t end) noexcept {
  RingSteps<HostRingMemory>::run(launch, {begin, end, 1, {0, 1}});
}

class RingJob final : public Job {
 public:
  explicit RingJob(std::vector<HostStep> steps) : steps_(std::move(steps)) {
    if (steps_.empty() || steps_.back().isCopy || steps_.back().launch.step != RingStep::Gather) return;
    gather_ = steps_.back().launch;
    steps_.pop_back();
    rows_ = ringIndices(gather_);
    unitRows_ = std::max<uint64_t>(1, unitBytes / gather_.rowBytes);
  }

  size_t count() const noexcept override { return std::max<uint64_t>(1, (rows_ + unitRows_ - 1) / unitRows_); }

  void run(size_t index) noexcept override {
    std::call_once(begun_, [this]() noexcept { runSteps(); });
    const uint64_t begin = index * unitRows_, end = std::min(rows_, begin + unitRows_);
    // Once begun, a run is carried out: half of one would leave words that contradict each other.
    if (begin >= end) return;
    runIndices(gather_, begin, end);
    movedBytes.add((end - begin) * gather_.rowBytes);
  }

 private:
  void runSteps() noexcept {
    for (const HostStep& step : steps_) {
      if (step.isCopy) {
        HostRingMemory::copy(step.destination, step.source, step.bytes, 0, 1);
        movedBytes.add(step.bytes);
      } else {
        runIndices(step.launch, 0, ringIndices(step.launch));
      }
    }
  }

  std::vector<HostStep> steps_;
  RingParameter gather_{};
  uint64_t rows_ = 0, unitRows_ = 1;
  std::once_flag begun_;
};

}  // namespace

Result<std::shared_ptr<Job>> makeRingJob(const uint64_t* words, size_t count) {
  const auto refuse = [](const char* detail) { return failure(Code::InvalidArgument, "ring", detail); };
  constexpr size_t copyWords = 3;
  std::vector<HostStep> steps;
  for (size_t at = 0; at < count;) {
    const uint64_t kind = words[at++];
    const size_t own = kind == 1 ? copyWords : ringParameterWords;
    if (kind != 1 && kind != 2) return refuse("Unknown kind of step.");
    if (count - at < own) return refuse("The table ends inside a step.");
    HostStep step{};
    step.isCopy = kind == 1;
    if (step.isCopy) {
      step.destination = words[at];
      step.source = words[at + 1];
      step.bytes = words[at + 2];
      if (step.bytes > (1ull << 48)) return refuse("A copy is too long.");
    } else {
      std::memcpy(&step.launch, words + at, sizeof step.launch);
      if (const char* problem = ringFault(step.launch); problem != nullptr) return refuse(problem);
    }
    at += own;
    steps.push_back(step);
  }
  return std::shared_ptr<Job>(std::make_shared<RingJob>(std::move(steps)));
}

}  // namespace tensorferry
