// SPDX-License-Identifier: Apache-2.0
/*
 * What the tests of kernels share: checks that count, seeded numbers, launches of kernels as plain C++, a naive reference.
 * One thread.
 */
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <tensorferry/moves.h>
#include <tensorferry/status.h>

#include <tensorferry_gpu/simulated_kernel.h>
#include "batch.h"

namespace tensorferry::gpu::test {

inline int checks = 0, failures = 0;

inline bool check(bool holds, const std::string& what) {
  checks++;
  if (holds) return true;
  if (failures++ < 20) std::printf("FAILED: %s\n", what.c_str());
  return false;
}

template <typename T>
std::string why(const Result<T>& result) {
  return result.ok() ? "" : result.status().detail;
}

/** The same numbers for the same seed on every machine. */
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15ull + 1) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  /** From 0 to below `limit`. */
  uint64_t below(uint64_t limit) { return next() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  void fill(void* memory, size_t length) {
    auto* bytes = static_cast<uint8_t*>(memory);
    for (size_t at = 0; at < length; at++) bytes[at] = static_cast<uint8_t>(next());
  }

 private:
  uint64_t state_;
};

inline uint64_t addressOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

inline void launch(const char* name, const void* parameter, size_t bytes, unsigned blocks,
                   unsigned threads = blockThreads) {
  size_t count = 0;
  const SimulatedKernel* kernels = tensorferry_simulated_kernels(&count);
  for (size_t i = 0; i < count; i++) {
    if (std::strcmp(kernels[i].name, name) != 0) continue;
    check(kernels[i].parameterBytes == bytes, std::string(name) + ": size of its parameter");
    return kernels[i].run(parameter, blocks, threads);
  }
  check(false, std::string("no kernel is named ") + name);
}

/** A table at an address that is a multiple of 16, as if it was uploaded. */
class Uploaded {
 public:
  explicit Uploaded(const std::vector<uint64_t>& table)
      : memory_(static_cast<uint64_t*>(std::aligned_alloc(16, (table.size() * 8 + 15) / 16 * 16 + 16))) {
    if (!table.empty()) std::memcpy(memory_, table.data(), table.size() * 8);
  }
  ~Uploaded() { std::free(memory_); }
  Uploaded(const Uploaded&) = delete;
  Uploaded& operator=(const Uploaded&) = delete;
  uint64_t address() const { return addressOf(memory_); }

 private:
  uint64_t* memory_;
};

inline bool runMoves(const MoveList& moves, unsigned blocks, const std::string& what) {
  auto compiled = compileMoves(moves);
  if (!check(compiled.ok(), what + ": compiles; " + why(compiled))) return false;
  const Batch& batch = compiled.value();
  const Uploaded table(batch.table);
  const MoveParameter parameter = moveParameter(batch, table.address());
  launch("tensorferry_move", &parameter, sizeof parameter, blocks);
  return true;
}

/** A move without dimensions. */
inline Move moveOf(DType destinationType, DType sourceType, uint64_t destination, uint64_t source) {
  Move move{};
  move.kind = MoveKind::Copy;
  move.destinationType = static_cast<uint8_t>(destinationType);
  move.sourceType = static_cast<uint8_t>(sourceType);
  move.destinationSize = dtypeBytes[move.destinationType];
  move.sourceSize = dtypeBytes[move.sourceType];
  move.destination = destination;
  move.source = source;
  return move;
}

inline void addDimension(Move& move, uint64_t length, int64_t destinationStep, int64_t sourceStep) {
  move.dimensions[move.dimensionCount++] = {length, destinationStep, sourceStep};
}

inline Move runOf(uint64_t destination, uint64_t source, uint64_t bytes) {
  Move move = moveOf(DType::UInt8, DType::UInt8, destination, source);
  addDimension(move, bytes, 1, 1);
  return move;
}

/** Elements from bits to bits, one after another. */
void castNaively(uint8_t toType, void* to, uint8_t fromType, const void* from, size_t count);

/** Executes a move element by element; addresses of the destination are shifted by `shift`. */
void moveNaively(const Move& move, int64_t shift);

void testBatches();
void testCopies();
void testLargeRegions();
void testCasts();
void testReductions();
void testBlockScaling();
void testComparisons();
void testChanges();
void testProducts();
void testDigests();

}  // namespace tensorferry::gpu::test
