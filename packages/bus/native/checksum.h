// SPDX-License-Identifier: Apache-2.0
/*
 * CRC-32C (Castagnoli) of bytes: finds what a disk, a stray write or a torn page changed, not what somebody forged. Any
 * thread.
 */
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tensorferry {

namespace detail {
constexpr std::array<uint32_t, 256> crc32cTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t rest = byte;
    for (int bit = 0; bit < 8; bit++) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82f63b78u : 0u);
    table[byte] = rest;
  }
  return table;
}
inline constexpr auto crcTable = crc32cTable();
}  // namespace detail

constexpr uint32_t crc32c(std::string_view bytes) {
  uint32_t sum = 0xffffffffu;
  for (const char byte : bytes) sum = (sum >> 8) ^ detail::crcTable[(sum ^ static_cast<uint8_t>(byte)) & 0xff];
  return ~sum;
}

// The check value that the catalogue of CRCs gives for this one.
static_assert(crc32c("123456789") == 0xe3069283u);

}  // namespace tensorferry
