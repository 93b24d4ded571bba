// SPDX-License-Identifier: Apache-2.0
/*
 * The factors of the digest of elements, which ElementDigest.ts of core states. Pure; any thread, hosts and devices.
 *
 * A digest is linear in the bits that it covers: bytes that are all ones add nothing, so that what is not covered may be
 * filled with ones.
 */
#pragma once

#include "integers.h"

namespace tensorferry {

/** Words of 32 bits that share the factor of a block. */
inline constexpr uint32_t digestBlockWords = 128, digestBlockBytes = 4 * digestBlockWords;
inline constexpr uint32_t digestHalves = 2;

/** A(half, word) for a word of a block. */
inline constexpr TENSORFERRY_SHARED uint64_t digestWordFactor(uint32_t half, uint32_t word) noexcept {
  uint64_t x = (2ull * word + half + 1) * 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) | 1;
}

/** H(half, block). */
inline constexpr TENSORFERRY_SHARED uint64_t digestBlockFactor(uint32_t half, uint64_t block) noexcept {
  uint64_t x = (block + 1) * (half == 0 ? 0x9e3779b97f4a7c15ull : 0xd1b54a32d192ed03ull);
  x = (x ^ (x >> 32)) * (half == 0 ? 0xbf58476d1ce4e5b9ull : 0x94d049bb133111ebull);
  return (x ^ (x >> 32)) | 1;
}

}  // namespace tensorferry
