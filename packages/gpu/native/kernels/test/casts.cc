// SPDX-License-Identifier: Apache-2.0
/*
 * All pairs of types give the bits of the host's kernels: every pattern of 8 and 16 bits, and wider ones at random and where
 * something ends.
 */
#include <cmath>

#include "support.h"

namespace tensorferry::gpu::test {
namespace {

void addFloats(std::vector<uint8_t>& bytes, bool isDouble) {
  for (double base : {0.0,
                      1.0,
                      0.5,
                      1.5,
                      448.0,
                      464.0,
                      465.0,
                      57344.0,
                      61440.0,
                      65504.0,
                      65520.0,
                      3.3895e38,
                      3.4028235e38,
                      2147483647.0,
                      2147483648.0,
                      4294967296.0,
                      9223372036854775808.0,
                      18446744073709551616.0,
                      1e19,
                      3.7e19,
                      1e300,
                      5.96e-8,
                      2.98e-8,
                      6.1e-5,
                      1.17549435e-38,
                      1.4e-45,
                      0.0009765625,
                      0.001953125,
                      0.015625,
                      1e-320,
                      HUGE_VAL,
                      static_cast<double>(NAN)}) {
    for (const double sign : {1.0, -1.0}) {
      for (int step = -2; step <= 2; step++) {
        double wide = base * sign;
        float narrow = static_cast<float>(wide);
        for (int i = 0; i < std::abs(step); i++) {
          wide = std::nextafter(wide, step < 0 ? -HUGE_VAL : HUGE_VAL);
          narrow = std::nextafterf(narrow, step < 0 ? -HUGE_VALF : HUGE_VALF);
        }
        const auto* from = isDouble ? reinterpret_cast<uint8_t*>(&wide) : reinterpret_cast<uint8_t*>(&narrow);
        bytes.insert(bytes.end(), from, from + (isDouble ? 8 : 4));
      }
    }
  }
}

/** Elements of a type, as bytes. */
std::vector<uint8_t> inputs(uint8_t type) {
  Random random(type + 1);
  std::vector<uint8_t> bytes;
  const size_t size = dtypeBytes[type];
  if (size == 1) {
    for (unsigned i = 0; i < 256; i++) bytes.push_back(static_cast<uint8_t>(i));
    return bytes;
  }
  if (size == 2) {
    for (unsigned i = 0; i < 65536; i++) {
      bytes.push_back(static_cast<uint8_t>(i));
      bytes.push_back(static_cast<uint8_t>(i >> 8));
    }
    return bytes;
  }
  if (type == static_cast<uint8_t>(DType::Float32) || type == static_cast<uint8_t>(DType::Float64))
    addFloats(bytes, type == static_cast<uint8_t>(DType::Float64));
  const size_t special = bytes.size();
  bytes.resize(special + 40'000 * size);
  random.fill(bytes.data() + special, bytes.size() - special);
  // Random exponents are mostly far out: half of them are brought near.
  for (size_t at = special; at < bytes.size(); at += 2 * size) {
    if (type == static_cast<uint8_t>(DType::Float32)) {
      const float value =
          std::ldexp(static_cast<float>(static_cast<int32_t>(random.next())), -static_cast<int>(random.below(70)));
      std::memcpy(bytes.data() + at, &value, 4);
    } else if (type == static_cast<uint8_t>(DType::Float64)) {
      const double value =
          std::ldexp(static_cast<double>(static_cast<int64_t>(random.next())), -static_cast<int>(random.below(110)));
      std::memcpy(bytes.data() + at, &value, 8);
    } else {
      const int64_t value = static_cast<int64_t>(random.next()) >> random.below(64);
      std::memcpy(bytes.data() + at, &value, size);
    }
  }
  return bytes;
}

}  // namespace

void testCasts() {
  for (uint8_t from = 0; from < castableCount; from++) {
    const auto bytes = inputs(from);
    const size_t count = bytes.size() / dtypeBytes[from];
    for (uint8_t to = 0; to < castableCount; to++) {
      if (to == from) continue;
      const size_t size = dtypeBytes[to];
      std::vector<uint8_t> expected(count * size), single(count * size + 64, 0xa5), grouped(count * size + 64, 0xa5);
      castNaively(to, expected.data(), from, bytes.data(), count);
      MoveList moves;
      Move dense =
          moveOf(static_cast<DType>(to), static_cast<DType>(from), addressOf(grouped.data()), addressOf(bytes.data()));
      addDimension(dense, count, static_cast<int64_t>(size), dtypeBytes[from]);
      moves.add(dense);
      // A dimension of two broken in the middle of memory: nothing is dense along the innermost one.
      Move apart =
          moveOf(static_cast<DType>(to), static_cast<DType>(from), addressOf(single.data()), addressOf(bytes.data()));
      const auto half = static_cast<int64_t>(count / 2);
      addDimension(apart, count / 2, static_cast<int64_t>(size), dtypeBytes[from]);
      addDimension(apart, 2, half * static_cast<int64_t>(size), half * dtypeBytes[from]);
      moves.add(apart);
      const std::string what = std::string(dtypeNames[from]) + " to " + dtypeNames[to];
      runMoves(moves, 2, what);
      check(std::memcmp(grouped.data(), expected.data(), expected.size()) == 0, what + ", in groups");
      check(std::memcmp(single.data(), expected.data(), count / 2 * 2 * size) == 0, what + ", one by one");
      check(grouped[expected.size()] == 0xa5 && single[expected.size()] == 0xa5, what + ": nothing beyond the end");
    }
  }
}

}  // namespace tensorferry::gpu::test
