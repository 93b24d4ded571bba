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
  ProductWork work;
  ProductParameter& parameter = work.parameter;
  const auto widthOf = [&](ProductSide side) {
    return commonWidth({table.addresses[side], static_cast<uint64_t>(table.steps[side][0]),
                        static_cast<uint64_t>(table.steps[side][1])});
  };
  const auto copySteps = [&](ProductSide side, int64_t (&steps)[2]) {
    std::copy(table.steps[side].begin(), table.steps[side].end(), steps);
  };
  parameter.destination = table.addresses[ProductDestination];
  parameter.base = table.addresses[ProductBase];
  parameter.b = table.addresses[ProductB];
  parameter.a = table.addresses[ProductA];
  copySteps(ProductDestination, parameter.destinationSteps);
  copySteps(ProductBase, parameter.baseSteps);
  copySteps(ProductB, parameter.bSteps);
  copySteps(ProductA, parameter.aSteps);
  parameter.rows = static_cast<uint32_t>(table.rows);
  parameter.columns = static_cast<uint32_t>(table.columns);
  parameter.rank = static_cast<uint32_t>(table.rank);
  parameter.scale = table.scale;
  parameter.type = table.type;
  parameter.factorType = table.factorType;
  parameter.destinationWidth = widthOf(ProductDestination);
  parameter.baseWidth = widthOf(ProductBase);
  parameter.bWidth = widthOf(ProductB);
  parameter.aWidth = widthOf(ProductA);
  parameter.tiles = ((table.rows + productTileRows - 1) / productTileRows) *
                    ((table.columns + productTileColumns - 1) / productTileColumns);
  const auto isWide = [&](ProductSide side, uint64_t length, uint64_t type) {
    const uint64_t size = dtypeBytes[type];
    return length % 4 == 0 && table.steps[side][1] == static_cast<int64_t>(size) &&
           commonWidth({table.addresses[side], static_cast<uint64_t>(table.steps[side][0])}) >= 4 * size;
  };
  parameter.isWide =
      isWide(ProductDestination, table.columns, table.type) && isWide(ProductBase, table.columns, table.type);
  parameter.isWideB = isWide(ProductB, table.rank, table.factorType);
  parameter.isWideA = isWide(ProductA, table.columns, table.factorType);
  work.usefulBlocks = static_cast<uint32_t>(std::min<uint64_t>(parameter.tiles, 0x7fffffff));
  return work;
}

}  // namespace tensorferry::gpu
