// SPDX-License-Identifier: Apache-2.0
/*
 * See batch.h. Compiles additions of products.
 */
#include <algorithm>
#include <cstring>

#include <tensorferry/tables/product_table.h>

#include "../batch.h"
#include "../grid.h"

namespace tensorferry::gpu {

Result<ProductWork> compileProduct(const uint64_t* words, size_t count) {
  auto read = readProductTable(words, count);
  if (!read.ok()) return read.status();
  const ProductTable& table = read.value();
  ProductRecord record{};
  const auto widthOf = [&](ProductSide side) {
    return commonWidth({table.addresses[side], static_cast<uint64_t>(table.steps[side][0]),
                        static_cast<uint64_t>(table.steps[side][1])});
  };
  const auto copySteps = [&](ProductSide side, int64_t (&steps)[2]) {
    std::copy(table.steps[side].begin(), table.steps[side].end(), steps);
  };
  record.destination = table.addresses[ProductDestination];
  record.base = table.addresses[ProductBase];
  record.b = table.addresses[ProductB];
  record.a = table.addresses[ProductA];
  copySteps(ProductDestination, record.destinationSteps);
  copySteps(ProductBase, record.baseSteps);
  copySteps(ProductB, record.bSteps);
  copySteps(ProductA, record.aSteps);
  record.rows = static_cast<uint32_t>(table.rows);
  record.columns = static_cast<uint32_t>(table.columns);
  record.rank = static_cast<uint32_t>(table.rank);
  record.scale = table.scale;
  record.type = table.type;
  record.factorType = table.factorType;
  record.destinationWidth = widthOf(ProductDestination);
  record.baseWidth = widthOf(ProductBase);
  record.bWidth = widthOf(ProductB);
  record.aWidth = widthOf(ProductA);
  record.tiles = ((table.rows + productRows - 1) / productRows) * ((table.columns + 3) / 4);
  ProductWork work;
  work.table.resize((sizeof record + 15) / 16 * 2);
  std::memcpy(work.table.data(), &record, sizeof record);
  work.usefulBlocks =
      static_cast<uint32_t>(std::min<uint64_t>((record.tiles + blockThreads - 1) / blockThreads, 0x7fffffff));
  return work;
}

}  // namespace tensorferry::gpu
