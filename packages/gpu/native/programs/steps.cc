// SPDX-License-Identifier: Apache-2.0
/*
 * See steps.h. One pass; what a step needs of earlier ones is remembered by number.
 */
#include "steps.h"

#include <array>
#include <cstring>

#include <tensorferry/tables/ring_table.h>
#include "device_limits.h"

namespace tensorferry::gpu {
namespace {

/** Words that follow the first, by kind. */
constexpr std::array<size_t, 20> wordsOf = {0, 3, 1, 1, 1, 1, 0, 3, 3, 0, 2, 1, 1, 1, 1, 2, 1, 2, ringParameterWords,
                                            3};

constexpr uint64_t exact = (uint64_t{1} << 53) - 1;
/** A minute. Longer spins would only hang a device. */
constexpr uint64_t spinLimit = 60'000'000'000;

class Parser {
 public:
  Parser(const uint64_t* words, size_t count, const StepLimits& limits)
      : words_(words), count_(count), limits_(limits) {}

  Result<StepList> parse() {
    for (size_t at = 0; at < count_; index_++) {
      const char* problem = one(at);
      if (problem != nullptr) return refuse(problem);
    }
    if (group_ >= 0) return refuse("A group begins and does not end.");
    for (const uint8_t state : spans_)
      if (state == begun) return refuse("A span begins and does not end.");
    list_.events = events_.size();
    list_.spans = spans_.size();
    return std::move(list_);
  }

 private:
  static constexpr uint8_t begun = 1, ended = 2;

  Status refuse(const char* problem) const {
    Status status = failure(Code::InvalidArgument, "createProgram", problem);
    status.item = static_cast<int64_t>(index_);
    return status;
  }

  static bool isRegion(uint64_t address, uint64_t bytes) noexcept {
    return bytes == 0 || (address != 0 && bytes <= byteLimit && address <= UINT64_MAX - bytes);
  }

  /** Reads the step at a place and moves on; answers what is wrong with it. */
  const char* one(size_t& at) {
    const uint64_t head = words_[at];
    const uint64_t kind = head & 0xff, stream = (head >> 8) & 0xff;
    if (kind == 0 || kind >= wordsOf.size()) return "Unknown kind of step.";
    if ((head >> 16) != 0) return "The upper bits of a step's first word are zero.";
    if (stream >= streamCount) return "There are eight streams.";
    if (count_ - at - 1 < wordsOf[kind]) return "The table ends inside a step.";
    const uint64_t* values = words_ + at + 1;
    at += 1 + wordsOf[kind];
    Step step{static_cast<StepKind>(kind), static_cast<uint8_t>(stream)};
    const bool isMessage = step.kind == StepKind::Send || step.kind == StepKind::Receive;
    if (group_ >= 0 && !isMessage && step.kind != StepKind::EndGroup) return "A group holds only sends and receives.";
    switch (step.kind) {
      case StepKind::Copy:
      case StepKind::HostCopy:
        if (!isRegion(values[0], values[2]) || !isRegion(values[1], values[2])) return "Not a region of memory.";
        if (values[2] == 0) return nullptr;
        step.address = values[0];
        step.source = values[1];
        step.amount = values[2];
        break;
      case StepKind::Moves:
        if (values[0] >= limits_.moveTables) return "There is no such table of moves.";
        step.number = static_cast<uint32_t>(values[0]);
        break;
      case StepKind::Reduce:
        if (values[0] > count_ - at) return "The table ends inside a reduction.";
        step.number = static_cast<uint32_t>(list_.reductions.size());
        list_.reductions.push_back({at, values[0]});
        at += values[0];
        break;
      case StepKind::Quantize:
        if (values[0] > count_ - at) return "The table ends inside a block scaling.";
        step.number = static_cast<uint32_t>(list_.quantizations.size());
        list_.quantizations.push_back({at, values[0]});
        at += values[0];
        break;
      case StepKind::Changes:
        if (values[0] > UINT64_MAX - sizeof(uint64_t)) return "Not a place for a result.";
        if (values[1] > count_ - at) return "The table ends inside changes.";
        step.address = values[0];
        step.number = static_cast<uint32_t>(list_.changes.size());
        list_.changes.push_back({at, values[1]});
        at += values[1];
        break;
      case StepKind::Product:
        if (values[0] > count_ - at) return "The table ends inside a product.";
        step.number = static_cast<uint32_t>(list_.products.size());
        list_.products.push_back({at, values[0]});
        at += values[0];
        break;
      case StepKind::Digest:
        // Results take no more words than the table.
        if (values[0] > UINT64_MAX - sizeof(uint64_t) * count_) return "Not a place for a result.";
        if (values[1] > count_ - at) return "The table ends inside a digest.";
        step.address = values[0];
        step.number = static_cast<uint32_t>(list_.digests.size());
        list_.digests.push_back({at, values[1]});
        at += values[1];
        break;
      case StepKind::Ring: {
        RingParameter parameter;
        std::memcpy(&parameter, values, sizeof parameter);
        if (const char* problem = ringFault(parameter); problem != nullptr) return problem;
        step.number = static_cast<uint32_t>(list_.rings.size());
        list_.rings.push_back(parameter);
        break;
      }
      case StepKind::Record:
        if (values[0] >= eventLimit) return "Events have numbers below 65536.";
        step.number = static_cast<uint32_t>(values[0]);
        if (events_.size() <= values[0]) events_.resize(values[0] + 1, false);
        events_[values[0]] = true;
        break;
      case StepKind::Wait:
        if (values[0] >= events_.size() || !events_[values[0]]) return "The event was not recorded before.";
        step.number = static_cast<uint32_t>(values[0]);
        break;
      case StepKind::BeginGroup:
        if (limits_.ranks == 0) return "A group needs a communicator.";
        group_ = static_cast<int>(stream);
        list_.usesCommunicator = true;
        break;
      case StepKind::Send:
      case StepKind::Receive:
        if (group_ != static_cast<int>(stream)) return "Sends and receives belong into a group of their stream.";
        if (!isRegion(values[0], values[1])) return "Not a region of memory.";
        if (values[2] >= limits_.ranks) return "The communicator has no such rank.";
        if (values[1] == 0) return nullptr;
        step.address = values[0];
        step.amount = values[1];
        step.number = static_cast<uint32_t>(values[2]);
        break;
      case StepKind::EndGroup:
        if (group_ != static_cast<int>(stream)) return "No group of this stream has begun.";
        group_ = -1;
        break;
      case StepKind::Span: {
        if (values[0] >= eventLimit || values[1] > 1) return "Spans have numbers below 65536 and begin (0) or end (1).";
        if (spans_.size() <= values[0]) spans_.resize(values[0] + 1, 0);
        uint8_t& state = spans_[values[0]];
        step.isEnd = values[1] == 1;
        if (state != (step.isEnd ? begun : 0)) return "A span begins once and then ends once.";
        state = step.isEnd ? ended : begun;
        step.number = static_cast<uint32_t>(values[0]);
        break;
      }
      case StepKind::Progress:
        if (values[0] > exact) return "Progress is a number of bytes below 2^53.";
        step.amount = values[0];
        break;
      case StepKind::Spin:
        if (values[0] > spinLimit) return "A spin lasts a minute at most.";
        step.amount = values[0];
        break;
      case StepKind::Call: {
        if (limits_.calls == nullptr) return "A call needs whom to call.";
        if (values[0] > count_ - at) return "The table ends inside a call.";
        if (const char* problem = limits_.calls->problemOf(words_ + at, values[0]); problem != nullptr) return problem;
        step.number = static_cast<uint32_t>(list_.calls.size());
        list_.calls.push_back({list_.callWords.size(), values[0]});
        list_.callWords.insert(list_.callWords.end(), words_ + at, words_ + at + values[0]);
        at += values[0];
        break;
      }
    }
    list_.steps.push_back(step);
    return nullptr;
  }

  const uint64_t* words_;
  size_t count_;
  StepLimits limits_;
  size_t index_ = 0;
  int group_ = -1;
  std::vector<bool> events_;
  std::vector<uint8_t> spans_;
  StepList list_;
};

}  // namespace

Result<StepList> parseSteps(const uint64_t* words, size_t count, const StepLimits& limits) {
  return Parser(words, count, limits).parse();
}

}  // namespace tensorferry::gpu
