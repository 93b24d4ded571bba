// SPDX-License-Identifier: Apache-2.0
/*
 * SHA-256 (FIPS 180-4) and its keyed form (RFC 2104), for proofs that connections give each other. Plain values; any thread.
 *
 * Invariant: comparing two codes takes the same time wherever they differ.
 */
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tensorferry::wire {

/** 32 bytes: a digest, a code, a key or a challenge. */
using Bytes32 = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& add(const void* data, size_t length) noexcept {
    const auto* bytes = static_cast<const uint8_t*>(data);
    total_ += length;
    while (length > 0) {
      const size_t taken = length < block_.size() - filled_ ? length : block_.size() - filled_;
      std::memcpy(block_.data() + filled_, bytes, taken);
      filled_ += taken;
      bytes += taken;
      length -= taken;
      if (filled_ == block_.size()) compress();
    }
    return *this;
  }

  Bytes32 finish() noexcept {
    const uint64_t bits = total_ * 8;
    const uint8_t one = 0x80, zero = 0;
    add(&one, 1);
    while (filled_ != 56) add(&zero, 1);
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    add(length, sizeof length);
    Bytes32 digest;
    for (size_t i = 0; i < digest.size(); i++) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
    return digest;
  }

 private:
  void compress() noexcept {
    static constexpr uint32_t constants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    uint32_t words[64];
    for (int i = 0; i < 16; i++)
      words[i] = static_cast<uint32_t>(block_[4 * i]) << 24 | static_cast<uint32_t>(block_[4 * i + 1]) << 16 |
                 static_cast<uint32_t>(block_[4 * i + 2]) << 8 | block_[4 * i + 3];
    for (int i = 16; i < 64; i++) {
      const uint32_t a = words[i - 15], b = words[i - 2];
      words[i] = words[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + words[i - 7] +
                 (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    auto s = state_;
    for (int i = 0; i < 64; i++) {
      const uint32_t first = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                             ((s[4] & s[5]) ^ (~s[4] & s[6])) + constants[i] + words[i];
      const uint32_t second = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                              ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (size_t i = 0; i < s.size(); i++) state_[i] += s[i];
    filled_ = 0;
  }

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

/** The keyed code of some bytes. */
inline Bytes32 hmacSha256(const Bytes32& key, const void* data, size_t length) noexcept {
  std::array<uint8_t, 64> inner{}, outer{};
  for (size_t i = 0; i < inner.size(); i++) {
    const uint8_t byte = i < key.size() ? key[i] : 0;
    inner[i] = byte ^ 0x36;
    outer[i] = byte ^ 0x5c;
  }
  const Bytes32 first = Sha256().add(inner.data(), inner.size()).add(data, length).finish();
  return Sha256().add(outer.data(), outer.size()).add(first.data(), first.size()).finish();
}

inline bool equalCodes(const Bytes32& a, const Bytes32& b) noexcept {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); i++) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace tensorferry::wire
