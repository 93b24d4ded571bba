// SPDX-License-Identifier: Apache-2.0
/*
 * See products.h. Factors are widened once, by whoever comes first. A unit of work is some rows of a block of columns, so that
 * the factor's part for these columns stays in the caches.
 */
#include "products.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <tensorferry/tables/product_table.h>

#include "../kernels.h"

namespace tensorferry {
namespace {

constexpr uint64_t unitRows = 256;

class ProductJob final : public Job {
 public:
  explicit ProductJob(const ProductTable& table) : t_(table) {}

  size_t count() const noexcept override { return blocksDown() * blocksAcross(); }

  void run(size_t index) noexcept override {
    if (t_.rows == 0 || t_.columns == 0) return;
    std::call_once(widened_, [this] { widening_ = caught("addProduct", [this] { return widen(); }); });
    if (!widening_.ok()) return fail(widening_);
    const uint64_t column = index / blocksDown() * blockElements, row = index % blocksDown() * unitRows;
    const auto columns = static_cast<size_t>(std::min<uint64_t>(blockElements, t_.columns - column));
    for (uint64_t at = row; at < std::min(t_.rows, row + unitRows) && !shouldStop(); at++) addRow(at, column, columns);
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "addProduct", "The addition was cancelled."));
  }

 private:
  uint64_t blocksDown() const noexcept { return (t_.rows + unitRows - 1) / unitRows; }
  uint64_t blocksAcross() const noexcept { return (t_.columns + blockElements - 1) / blockElements; }

  uint8_t* place(ProductSide side, uint64_t row, uint64_t column) const noexcept {
    const auto& [down, across] = t_.steps[side];
    return reinterpret_cast<uint8_t*>(t_.addresses[side]) + static_cast<int64_t>(row) * down +
           static_cast<int64_t>(column) * across;
  }

  /** Both factors as float32: `a_` row by row, `b_` row by row. */
  Status widen() {
    a_.resize(t_.rank * t_.columns);
    b_.resize(t_.rows * t_.rank);
    const auto load = kernels().load[t_.factorType];
    for (uint64_t r = 0; r < t_.rank; r++)
      load(a_.data() + r * t_.columns, place(ProductA, r, 0), t_.steps[ProductA][1], t_.columns);
    for (uint64_t row = 0; row < t_.rows; row++)
      load(b_.data() + row * t_.rank, place(ProductB, row, 0), t_.steps[ProductB][1], t_.rank);
    return {};
  }

  void addRow(uint64_t row, uint64_t column, size_t count) noexcept {
    const Kernels& table = kernels();
    alignas(64) float values[blockElements];
    table.load[t_.type](values, place(ProductBase, row, column), t_.steps[ProductBase][1], count);
    table.addProduct(values, a_.data() + column, t_.columns, b_.data() + row * t_.rank, t_.rank, t_.scale, count);
    table.store[t_.type][static_cast<size_t>(Wide::Float32)](place(ProductDestination, row, column),
                                                             t_.steps[ProductDestination][1], values, count);
    movedBytes.add(count * dtypeBytes[t_.type]);
  }

  const ProductTable t_;
  std::once_flag widened_;
  Status widening_;
  std::vector<float> a_, b_;
};

}  // namespace

Result<std::shared_ptr<Job>> makeProductJob(const uint64_t* words, size_t count) {
  auto read = readProductTable(words, count);
  if (!read.ok()) return read.status();
  return std::shared_ptr<Job>(std::make_shared<ProductJob>(read.value()));
}

}  // namespace tensorferry
