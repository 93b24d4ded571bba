// SPDX-License-Identifier: Apache-2.0
/*
 * Copies and fills. A copy from pageable memory is staged at once; one from page-locked memory reads when it runs; one to
 * pageable memory is waited for. Larger ones run in pieces, in any order, with other work between them.
 */
#include <algorithm>
#include <cstring>
#include <numeric>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

/** Rows of bytes. A plain copy is one row. */
struct Shape {
  size_t width = 0;
  size_t height = 1;
  size_t targetPitch = 0;
  size_t sourcePitch = 0;
  size_t targetSpan() const { return width == 0 || height == 0 ? 0 : (height - 1) * targetPitch + width; }
  size_t sourceSpan() const { return width == 0 || height == 0 ? 0 : (height - 1) * sourcePitch + width; }
};

struct Piece {
  size_t row;
  size_t rows;
  size_t begin;
  size_t bytes;
};

/** Cuts the work in a random number of pieces, in random order. */
std::vector<Piece> cut(Random& random, const Shape& shape) {
  std::vector<Piece> pieces;
  if (shape.width == 0 || shape.height == 0) return pieces;
  const bool byRows = shape.height > 1;
  const size_t whole = byRows ? shape.height : shape.width;
  const size_t grain = byRows ? 1 : 64;
  const size_t count = std::min<size_t>(1 + random.below(4), std::max<size_t>(whole / grain, 1));
  size_t at = 0;
  for (size_t index = 0; index < count; index++) {
    const size_t end = index + 1 == count ? whole : whole * (index + 1) / count / grain * grain;
    if (end > at) pieces.push_back(byRows ? Piece{at, end - at, 0, shape.width} : Piece{0, 1, at, end - at});
    at = std::max(at, end);
  }
  for (size_t index = pieces.size(); index > 1; index--) std::swap(pieces[index - 1], pieces[random.below(index)]);
  return pieces;
}

/** Memory that a late operation uses must still be there. */
bool stillThere(World& world, const Span& span, const char* kind) {
  return span.bytes == 0 || locate(world, span.start, span.bytes, kind).error == 0;
}

class Copy final : public Operation {
 public:
  Copy(World& world, char* target, const char* source, const Shape& shape, bool stage)
      : target_(target), source_(source), shape_(shape) {
    if (stage) {
      staged_.resize(shape.width * shape.height);
      for (size_t row = 0; row < shape.height; row++)
        std::memcpy(staged_.data() + row * shape.width, source + row * shape.sourcePitch, shape.width);
      source_ = staged_.data();
      shape_.sourcePitch = shape.width;
    } else {
      uses.push_back({reinterpret_cast<uintptr_t>(source), shape.sourceSpan()});
    }
    uses.push_back({reinterpret_cast<uintptr_t>(target), shape.targetSpan()});
    pieces_ = cut(world.random, shape_);
  }
  const char* kind() const override { return "a copy"; }
  Progress advance(World& world, Lock&) override {
    for (const auto& use : uses)
      if (!stillThere(world, use, kind())) return Progress::Finished;
    if (pieces_.empty()) return Progress::Finished;
    const Piece piece = pieces_.back();
    pieces_.pop_back();
    for (size_t row = piece.row; row < piece.row + piece.rows; row++)
      std::memmove(target_ + row * shape_.targetPitch + piece.begin, source_ + row * shape_.sourcePitch + piece.begin,
                   piece.bytes);
    return pieces_.empty() ? Progress::Finished : Progress::Advanced;
  }

 private:
  char* target_;
  const char* source_;
  Shape shape_;
  std::vector<char> staged_;
  std::vector<Piece> pieces_;
};

class Fill final : public Operation {
 public:
  Fill(World& world, char* target, int value, size_t bytes) : target_(target), value_(value) {
    uses.push_back({reinterpret_cast<uintptr_t>(target), bytes});
    pieces_ = cut(world.random, Shape{bytes, 1, bytes, bytes});
  }
  const char* kind() const override { return "a fill"; }
  Progress advance(World& world, Lock&) override {
    if (!stillThere(world, uses[0], kind()) || pieces_.empty()) return Progress::Finished;
    const Piece piece = pieces_.back();
    pieces_.pop_back();
    std::memset(target_ + piece.begin, value_, piece.bytes);
    return pieces_.empty() ? Progress::Finished : Progress::Advanced;
  }

 private:
  char* target_;
  int value_;
  std::vector<Piece> pieces_;
};

const char* counterOf(const Located& target, const Located& source) {
  if (target.place == Place::Device && source.place == Place::Device)
    return target.device != source.device || target.imported || source.imported ? "peer" : "deviceToDevice";
  if (target.place == Place::Device) return "hostToDevice";
  return source.place == Place::Device ? "deviceToHost" : "hostToHost";
}

bool kindFits(int kind, bool targetDevice, bool sourceDevice) {
  if (kind == inferred) return true;
  return targetDevice == (kind == hostToDevice || kind == deviceToDevice) &&
         sourceDevice == (kind == deviceToHost || kind == deviceToDevice);
}

int copy(Call& call, void* target, const void* source, const Shape& shape, int kind, void* streamHandle,
         bool synchronous) {
  World& world = call.world;
  if (kind < hostToHost || kind > inferred) return code::invalidValue + 20;  // cudaErrorInvalidMemcpyDirection
  const StreamRef stream = findStream(world, streamHandle, call.function);
  if (stream == nullptr) return code::invalidHandle;
  if (shape.width == 0 || shape.height == 0) return 0;
  if (target == nullptr || source == nullptr) return code::invalidValue;
  const Located to = locate(world, reinterpret_cast<uintptr_t>(target), shape.targetSpan(), call.function);
  const Located from = locate(world, reinterpret_cast<uintptr_t>(source), shape.sourceSpan(), call.function);
  if (to.error != 0) return to.error;
  if (from.error != 0) return from.error;
  if (!kindFits(kind, to.place == Place::Device, from.place == Place::Device)) {
    world.violation("wrong-direction", std::string(call.function) + " names direction " + std::to_string(kind) +
                                           ", which is not where the addresses lie.");
    return code::invalidValue;
  }
  world.report.bytes[counterOf(to, from)] += shape.width * shape.height;
  const bool stage = from.place == Place::Pageable;
  const uint64_t number =
      submit(call, stream,
             std::make_unique<Copy>(world, static_cast<char*>(target), static_cast<const char*>(source), shape, stage));
  // The synchronous call waits for neither copies on devices nor the last leg of staged ones.
  const bool hostSource = from.place == Place::Pinned && synchronous;
  const bool hostTarget = to.place == Place::Pageable || (to.place == Place::Pinned && synchronous);
  if (!hostSource && !hostTarget) return 0;
  return driveTo(world, call.lock, stream, number, std::string(call.function) + " in " + stream->label());
}

}  // namespace

TENSORFERRY_SIM_API int cudaMemcpyAsync(void* target, const void* source, size_t bytes, int kind, void* stream) {
  return runtimeCall("cudaMemcpyAsync", [&](Call& call) {
    return copy(call, target, source, Shape{bytes, 1, bytes, bytes}, kind, stream, false);
  });
}

/** The driver's form. Counted, and made to fail, under the runtime's name. */
TENSORFERRY_SIM_API int cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t bytes, void* stream) {
  return cudaMemcpyAsync(reinterpret_cast<void*>(target), source, bytes, hostToDevice, stream);
}

TENSORFERRY_SIM_API int cudaMemcpy(void* target, const void* source, size_t bytes, int kind) {
  return runtimeCall("cudaMemcpy", [&](Call& call) {
    return copy(call, target, source, Shape{bytes, 1, bytes, bytes}, kind, nullptr, true);
  });
}

TENSORFERRY_SIM_API int cudaMemcpy2DAsync(void* target, size_t targetPitch, const void* source, size_t sourcePitch,
                                          size_t width, size_t height, int kind, void* stream) {
  return runtimeCall("cudaMemcpy2DAsync", [&](Call& call) -> int {
    constexpr size_t largestPitch = 2147483647;
    if (width > targetPitch || width > sourcePitch || targetPitch > largestPitch || sourcePitch > largestPitch)
      return code::invalidPitch;
    return copy(call, target, source, Shape{width, height, targetPitch, sourcePitch}, kind, stream, false);
  });
}

TENSORFERRY_SIM_API int cudaMemsetAsync(void* target, int value, size_t bytes, void* streamHandle) {
  return runtimeCall("cudaMemsetAsync", [&](Call& call) -> int {
    World& world = call.world;
    const StreamRef stream = findStream(world, streamHandle, call.function);
    if (stream == nullptr) return code::invalidHandle;
    if (bytes == 0) return 0;
    const Located to = locate(world, reinterpret_cast<uintptr_t>(target), bytes, call.function);
    if (to.error != 0) return to.error;
    if (to.place == Place::Pageable) {
      world.violation("bad-address", "cudaMemsetAsync of " + hex(reinterpret_cast<uintptr_t>(target)) +
                                         ", which no device can access.");
      return code::invalidValue;
    }
    if (stream->device != call.thread.device) {
      world.violation("wrong-device", "cudaMemsetAsync in a stream of device " + std::to_string(stream->device) +
                                          " while device " + std::to_string(call.thread.device) + " is current.");
      return code::invalidHandle;
    }
    world.report.bytes["set"] += bytes;
    submit(call, stream, std::make_unique<Fill>(world, static_cast<char*>(target), value, bytes));
    return 0;
  });
}

}  // namespace tensorferry::gpu::simulator
