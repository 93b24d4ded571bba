// SPDX-License-Identifier: Apache-2.0
/*
 * The addition of a product as ProductTable.ts writes it, read and checked. Pure; any thread. That addresses are valid is the
 * caller's promise.
 */
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../dtype.h"
#include "../status.h"

namespace tensorferry {

enum ProductSide : size_t { ProductDestination, ProductBase, ProductB, ProductA, productSides };

struct ProductTable {
  uint8_t type, factorType;
  uint64_t rows, columns, rank;
  float scale;
  std::array<uint64_t, productSides> addresses;
  /** Bytes between rows and between columns. */
  std::array<std::array<int64_t, 2>, productSides> steps;
};

inline Result<ProductTable> readProductTable(const uint64_t* words, size_t count) {
  const auto refuse = [](const char* detail) { return failure(Code::InvalidArgument, "addProduct", detail); };
  const auto isPlain = [](uint64_t type) {
    return type == static_cast<uint64_t>(DType::BFloat16) || type == static_cast<uint64_t>(DType::Float16) ||
           type == static_cast<uint64_t>(DType::Float32);
  };
  if (count != 18) return refuse("The table has the wrong length.");
  if (!isPlain(words[0]) || !isPlain(words[1])) return refuse("Products are of bfloat16, float16 and float32.");
  ProductTable table{
      static_cast<uint8_t>(words[0]), static_cast<uint8_t>(words[1]), words[2], words[3], words[4], 0, {}, {}};
  if ((table.rows | table.columns | table.rank) >= (1ull << 31)) return refuse("A matrix is too large.");
  const auto bits = static_cast<uint32_t>(words[5]);
  std::memcpy(&table.scale, &bits, sizeof bits);
  for (size_t side = 0; side < productSides; side++) {
    const uint8_t size = dtypeBytes[side < ProductB ? table.type : table.factorType];
    table.addresses[side] = words[6 + side];
    for (size_t d = 0; d < 2; d++) {
      const uint64_t stride = words[10 + 2 * side + d];
      if (stride > (1ull << 48)) return refuse("A stride is too long.");
      table.steps[side][d] = static_cast<int64_t>(stride * size);
    }
  }
  return table;
}

}  // namespace tensorferry
