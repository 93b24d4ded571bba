// SPDX-License-Identifier: Apache-2.0
/*
 * See changes.h. A search goes over units of the tensors; what it finds in one waits until all before it are written.
 */
#include "changes.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include <tensorferry/tables/change_table.h>

#include "../kernels.h"

namespace tensorferry {
namespace {

/** Elements of one unit of a search, and changes of one unit of a writing. */
constexpr uint64_t searchUnit = 256 * 1024, writeUnit = 64 * 1024;

/** What a unit found: positions, and the bytes of the elements, one after the other. */
struct Found {
  std::vector<uint32_t> positions;
  std::vector<uint8_t> values;
  uint64_t count = 0;
};

class FindJob final : public Job {
 public:
  explicit FindJob(ChangeTable table) : t_(std::move(table)) {}

  size_t count() const noexcept override { return (t_.elements + searchUnit - 1) / searchUnit; }

  void run(size_t index) noexcept override {
    if (t_.elements == 0) return;
    Status status = caught("diff", [&]() -> Status {
      Found found;
      const uint64_t begin = index * searchUnit, end = std::min(t_.elements, begin + searchUnit);
      for (uint64_t at = begin; at < end && !shouldStop(); at += blockElements)
        findBlock(found, at, static_cast<size_t>(std::min<uint64_t>(blockElements, end - at)));
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "diff", "The search was cancelled.");
      movedBytes.add(2 * (end - begin) * t_.size);
      finish(index, std::move(found));
      return {};
    });
    if (!status.ok()) fail(std::move(status));
  }

  Napi::Value value(Napi::Env env) override { return Napi::Number::New(env, static_cast<double>(total_)); }

 private:
  /** Elements from a position on, dense: where they lie, or gathered. */
  const uint8_t* dense(ChangeSide side, uint64_t at, size_t count, uint8_t* gathered) const noexcept {
    const auto* first = reinterpret_cast<const uint8_t*>(t_.addresses[side]);
    if (t_.isDense(side)) return first + at * t_.size;
    const ChangeDimension& last = t_.dimensions.back();
    for (size_t i = 0; i < count;) {
      const uint8_t* from = first + t_.offsetOf(side, at + i);
      const uint64_t row = std::min<uint64_t>(count - i, last.length - (at + i) % last.length);
      for (uint64_t k = 0; k < row; k++, i++, from += last.steps[side])
        std::memcpy(gathered + i * t_.size, from, t_.size);
    }
    return gathered;
  }

  void findBlock(Found& found, uint64_t at, size_t count) {
    uint8_t gatheredBase[blockElements * 8], gatheredCurrent[blockElements * 8];
    uint32_t places[blockElements + findSlack];
    const uint8_t* base = dense(BaseSide, at, count, gatheredBase);
    const uint8_t* current = dense(CurrentSide, at, count, gatheredCurrent);
    const size_t many = kernels().findChanges[std::countr_zero(t_.size)](places, base, current, count);
    const size_t held = found.positions.size();
    const size_t kept = static_cast<size_t>(std::min<uint64_t>(many, t_.room - std::min<uint64_t>(t_.room, held)));
    found.count += many;
    if (kept == 0) return;
    found.positions.resize(held + kept);
    found.values.resize((held + kept) * t_.size);
    for (size_t i = 0; i < kept; i++) found.positions[held + i] = static_cast<uint32_t>(at + places[i]);
    uint8_t* values = found.values.data() + held * t_.size;
    switch (t_.size) {
      case 1:
        return gather<1>(values, current, places, kept);
      case 2:
        return gather<2>(values, current, places, kept);
      case 4:
        return gather<4>(values, current, places, kept);
      default:
        return gather<8>(values, current, places, kept);
    }
  }

  template <size_t size>
  static void gather(uint8_t* values, const uint8_t* current, const uint32_t* places, size_t count) noexcept {
    for (size_t i = 0; i < count; i++) std::memcpy(values + i * size, current + places[i] * size, size);
  }

  /** Writes what units found, as far as all before them have ended. */
  void finish(size_t index, Found found) {
    std::lock_guard lock(mutex_);
    waiting_.emplace(index, std::move(found));
    for (auto next = waiting_.begin(); next != waiting_.end() && next->first == ended_; next = waiting_.erase(next)) {
      const Found& one = next->second;
      const uint64_t left = t_.room - std::min(t_.room, total_);
      const uint64_t kept = std::min<uint64_t>(left, one.positions.size());
      if (kept > 0) {
        std::memcpy(reinterpret_cast<uint8_t*>(t_.positions) + total_ * sizeof(uint32_t), one.positions.data(),
                    kept * sizeof(uint32_t));
        std::memcpy(reinterpret_cast<uint8_t*>(t_.values) + total_ * t_.size, one.values.data(), kept * t_.size);
      }
      total_ += one.count;
      ended_++;
    }
  }

  const ChangeTable t_;
  std::mutex mutex_;  // guards what follows
  std::map<size_t, Found> waiting_;
  size_t ended_ = 0;
  uint64_t total_ = 0;
};

class WriteJob final : public Job {
 public:
  explicit WriteJob(ChangeTable table) : t_(std::move(table)) {}

  size_t count() const noexcept override { return (t_.room + writeUnit - 1) / writeUnit; }

  void run(size_t index) noexcept override {
    // The first thread looks at all positions, and the others wait for it: that takes a small part of the time.
    std::call_once(checked_, [this] { wrong_ = firstWrong(); });
    if (wrong_ >= 0) return;
    const uint64_t begin = index * writeUnit, end = std::min(t_.room, begin + writeUnit);
    if (!shouldStop()) write(begin, end);
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "apply", "The writing was cancelled."));
  }

  Napi::Value value(Napi::Env env) override { return Napi::Number::New(env, static_cast<double>(wrong_)); }

 private:
  uint32_t position(uint64_t at) const noexcept {
    uint32_t value;
    std::memcpy(&value, reinterpret_cast<const uint8_t*>(t_.positions) + at * sizeof value, sizeof value);
    return value;
  }

  int64_t firstWrong() const noexcept {
    uint64_t least = 0;
    for (uint64_t at = 0; at < t_.room; at++) {
      const uint64_t next = position(at);
      if (next < least || next >= t_.elements) return static_cast<int64_t>(at);
      least = next + 1;
    }
    return -1;
  }

  void write(uint64_t begin, uint64_t end) noexcept {
    auto* destination = reinterpret_cast<uint8_t*>(t_.addresses[BaseSide]);
    const auto* values = reinterpret_cast<const uint8_t*>(t_.values);
    const bool isDense = t_.isDense(BaseSide);
    for (uint64_t at = begin; at < end; at++) {
      const uint64_t place = position(at);
      std::memcpy(destination + (isDense ? place * t_.size : t_.offsetOf(BaseSide, place)), values + at * t_.size,
                  t_.size);
    }
    movedBytes.add((end - begin) * t_.size);
  }

  const ChangeTable t_;
  std::once_flag checked_;
  int64_t wrong_ = -1;
};

}  // namespace

Result<std::shared_ptr<Job>> makeChangeJob(const uint64_t* words, size_t count) {
  auto read = readChangeTable(words, count);
  if (!read.ok()) return read.status();
  if (read.value().isWriting) return std::shared_ptr<Job>(std::make_shared<WriteJob>(std::move(read.value())));
  return std::shared_ptr<Job>(std::make_shared<FindJob>(std::move(read.value())));
}

}  // namespace tensorferry
