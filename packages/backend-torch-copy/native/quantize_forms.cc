// SPDX-License-Identifier: Apache-2.0
/*
 * See quantize_forms.h. Work is cut into bands: rows that share scales, and so many columns that a band stays in the caches
 * between the search for its largest magnitudes and its codes. Where a block is larger than that, or all share a global
 * scale, a first pass finds magnitudes and a second one waits for it.
 *
 * Invariant: indices of the first pass are all taken before any of the second, and none of them waits, so waiting ends.
 */
#include "quantize_forms.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <vector>

#include <tensorferry/elements.h>
#include <tensorferry/memory/stream.h>

#include "kernels.h"

namespace tensorferry {
namespace {

/** Elements of a piece, which is what loops are given at once, and about so many of an index of the job. */
constexpr uint64_t pieceElements = blockElements, indexElements = 1u << 19;

/** A block of more elements is searched and coded in two passes. */
constexpr uint64_t blockOfOnePass = 1u << 18;

/** Conversions that touch more than this leave nothing useful in the caches. */
constexpr uint64_t streamingElements = 16u << 20;

size_t numberOf(uint8_t plainType) {
  return plainType == static_cast<uint8_t>(DType::BFloat16)  ? 0
         : plainType == static_cast<uint8_t>(DType::Float16) ? 1
                                                             : 2;
}

void raise(std::atomic<uint32_t>& maximum, uint32_t value) noexcept {
  uint32_t before = maximum.load(std::memory_order_relaxed);
  while (before < value && !maximum.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

/** Columns of neighbouring blocks of one width, a piece at most; a wider block stands alone. */
struct Chunk {
  uint64_t column, block, blocks, width;
};

/** How one pass is cut into items: matrices, then bands of rows within rows of blocks, then parts of the columns. */
struct Cut {
  uint64_t blockRows, bandRows, bandsOfBlock, bands, chunksOfPart, parts, items = 0, itemsOfIndex = 1;
  uint64_t indices() const noexcept { return (items + itemsOfIndex - 1) / itemsOfIndex; }
};

/** Rows of a matrix that share scales, and chunks of columns. */
struct Item {
  uint64_t matrix, blockRow, row, endRow, chunk, endChunk;
  /** Whether the first rows of the blocks are among them. */
  bool isFirst;
};

/** A scale as the bytes of its type. What no byte of float8_e8m0fnu stands for becomes NaN. */
void storeScale(uint8_t* at, uint8_t type, QuantizeForm form, uint32_t stored) noexcept {
  const float value = floatOf(stored);
  uint32_t bits = stored;
  if (form == QuantizeForm::Fp8) {
    const uint32_t byte = stored >> 23;
    switch (static_cast<DType>(type)) {
      case DType::BFloat16:
        bits = encodeBFloat16(value);
        break;
      case DType::Float16:
        bits = Float16::encode(value);
        break;
      case DType::Float8E8M0:
        bits = stored == 0x400000u ? 0 : (stored & 0x7fffffu) != 0 || byte == 0 || byte > 254 ? 255 : byte;
        break;
      default:
        break;
    }
  }
  for (size_t i = 0; i < dtypeBytes[type]; i++) at[i] = static_cast<uint8_t>(bits >> (8 * i));
}

uint32_t loadBits(const uint8_t* at, size_t bytes) noexcept {
  uint32_t bits = 0;
  for (size_t i = 0; i < bytes; i++) bits |= static_cast<uint32_t>(at[i]) << (8 * i);
  return bits;
}

/** The value of a stored scale: a number of fp8, a code of NVFP4, a byte of the MX forms. */
float loadScale(const uint8_t* at, uint8_t type, QuantizeForm form) noexcept {
  const uint32_t bits = loadBits(at, dtypeBytes[type]);
  if (form == QuantizeForm::Nvfp4) return decodeFloat8E4M3(bits);
  if (form != QuantizeForm::Fp8 || type == static_cast<uint8_t>(DType::Float8E8M0)) return decodeFloat8E8M0(bits);
  if (type == static_cast<uint8_t>(DType::BFloat16)) return decodeBFloat16(bits);
  return type == static_cast<uint8_t>(DType::Float16) ? Float16::decode(bits) : floatOf(bits);
}

Reading readingOf(QuantizeRule rule) noexcept {
  switch (rule) {
    case QuantizeRule::Nvfp4Modelopt:
    case QuantizeRule::Nvfp4ModeloptCuda:
      return Reading::WithoutMinusZero;
    case QuantizeRule::Nvfp4TransformerEngine1x16:
    case QuantizeRule::Nvfp4TransformerEngine16x16:
      return Reading::Twice;
    case QuantizeRule::Nvfp4TransformerEngine4Over6:
      return Reading::TwiceAndDivided;
    default:
      return Reading::Once;
  }
}

class FormsJob final : public Job {
 public:
  explicit FormsJob(QuantizeTable table)
      : t_(std::move(table)),
        form_(formOf(t_.rule)),
        type_(numberOf(t_.plainType)),
        elementBytes_(dtypeBytes[t_.plainType]),
        isPacked_(t_.op != QuantizeOp::Largest && isPacked(form_)) {
    if (t_.matrixCount * t_.rows.length * t_.columns.length == 0) return;
    mergeRows();
    across_ = t_.blocksAcross();
    past_ = t_.matrixCount * t_.rows.length * t_.columns.length > streamingElements;
    cutColumns();
    const bool isQuantization = t_.op == QuantizeOp::Quantize, isNvfp4 = form_ == QuantizeForm::Nvfp4;
    const bool asksForAll = isQuantization && isNvfp4 && !t_.hasMaxima && !t_.keepsGlobal;
    const uint64_t blockElementCount =
        std::min(t_.rowsOfMaximum(), t_.rows.length) * std::min(t_.blockColumns, t_.columns.length);
    isSearchedApart_ = isQuantization && !isNvfp4 && !t_.hasMaxima && blockElementCount > blockOfOnePass;
    isOne_ = asksForAll || (t_.op == QuantizeOp::Largest && t_.isOneMaximum);
    if (asksForAll || isSearchedApart_ || t_.op == QuantizeOp::Largest) {
      found_ = std::vector<std::atomic<uint32_t>>(isOne_ ? 1 : t_.matrixCount * t_.blocksDown() * across_);
      searches_ = cut(t_.blockRows, true);
    }
    // Rows of a block stay together only where its magnitude is not known before.
    const bool isKnown = !isQuantization || isSearchedApart_ || (t_.hasMaxima && !isNvfp4);
    if (t_.op != QuantizeOp::Largest) conversions_ = cut(t_.rowsOfMaximum(), isKnown);
  }

  size_t count() const noexcept override {
    return static_cast<size_t>(searches_.indices() + (t_.op == QuantizeOp::Largest ? 1 : conversions_.indices()));
  }

  void run(size_t index) noexcept override {
    if (index < searches_.indices()) {
      eachItem(searches_, index, [&](const Item& item) { search(item); });
      const std::lock_guard lock(searchMutex_);
      if (++searched_ == searches_.indices()) ended_.notify_all();
      return;
    }
    {
      std::unique_lock lock(searchMutex_);
      ended_.wait(lock, [this] { return searched_ == searches_.indices(); });
    }
    if (t_.op == QuantizeOp::Largest) {
      joinMaxima();
    } else {
      const uint64_t own = index - searches_.indices();
      const GlobalScaling global = globalScaling();
      if (own == 0 && t_.op == QuantizeOp::Quantize && form_ == QuantizeForm::Nvfp4 && !t_.keepsGlobal) {
        const float stored = quiet(global.stored);
        std::memcpy(reinterpret_cast<void*>(t_.global), &stored, sizeof stored);
      }
      eachItem(conversions_, own, [&](const Item& item) {
        for (uint64_t chunk = item.chunk; chunk < item.endChunk && !shouldStop(); chunk++) {
          if (t_.op == QuantizeOp::Quantize) quantize(item, chunkAt(chunk), global);
          else dequantize(item, chunkAt(chunk), global);
        }
      });
      finishStreaming();
    }
    if (cancelToken.isCancelled()) fail(failure(Code::Cancelled, "quantize", "The conversion was cancelled."));
  }

 private:
  /** Rows that lie densely one after the other, and blocks that end with them, become one row. */
  void mergeRows() {
    if (t_.blockRows != 1 || t_.rowsOfMaximum() != 1 || t_.originColumn != 0 || !t_.matrices.empty() ||
        t_.columns.length % t_.blockColumns != 0)
      return;
    const auto columns = static_cast<int64_t>(t_.columns.length),
               blocks = columns / static_cast<int64_t>(t_.blockColumns);
    const std::array<int64_t, partCount> lengths{columns, isPacked_ ? columns / 2 : columns, blocks, blocks};
    for (size_t part = 0; part < partCount; part++)
      if (t_.rows.steps[part] != t_.columns.steps[part] * lengths[part]) return;
    t_.columns.length *= t_.rows.length;
    t_.rows.length = 1;
  }

  void cutColumns() {
    const uint64_t length = t_.columns.length;
    firstWidth_ =
        t_.originColumn > 0 || t_.blockColumns > length ? std::min(t_.blockColumns - t_.originColumn, length) : 0;
    const uint64_t left = length - firstWidth_;
    blocksOfChunk_ = std::max<uint64_t>(1, pieceElements / t_.blockColumns);
    wholeBlocks_ = left / t_.blockColumns;
    lastWidth_ = left % t_.blockColumns;
    chunks_ =
        (firstWidth_ > 0 ? 1 : 0) + (wholeBlocks_ + blocksOfChunk_ - 1) / blocksOfChunk_ + (lastWidth_ > 0 ? 1 : 0);
  }

  Chunk chunkAt(uint64_t at) const noexcept {
    const uint64_t firsts = firstWidth_ > 0 ? 1 : 0;
    if (at < firsts) return {0, 0, 1, firstWidth_};
    const uint64_t before = (at - firsts) * blocksOfChunk_;
    if (before < wholeBlocks_)
      return {firstWidth_ + before * t_.blockColumns, firsts + before, std::min(blocksOfChunk_, wholeBlocks_ - before),
              t_.blockColumns};
    return {firstWidth_ + wholeBlocks_ * t_.blockColumns, firsts + wholeBlocks_, 1, lastWidth_};
  }

  Cut cut(uint64_t blockRows, bool cutsBlocks) const {
    Cut made{};
    const uint64_t columns = std::max<uint64_t>(1, t_.columns.length), rows = std::min(blockRows, t_.rows.length);
    const uint64_t fitting = std::max<uint64_t>(1, indexElements / columns);
    made.blockRows = blockRows;
    made.bandRows = cutsBlocks ? std::min(rows, fitting) : blockRows;
    made.bandsOfBlock = (rows + made.bandRows - 1) / made.bandRows;
    made.bands = QuantizeTable::blocksOver(t_.rows.length, blockRows, t_.originRow) * made.bandsOfBlock;
    const uint64_t elements = std::min(made.bandRows, t_.rows.length) * columns;
    made.parts = std::min(chunks_, (elements + indexElements - 1) / indexElements);
    made.chunksOfPart = (chunks_ + made.parts - 1) / made.parts;
    made.parts = (chunks_ + made.chunksOfPart - 1) / made.chunksOfPart;
    made.items = t_.matrixCount * made.bands * made.parts;
    made.itemsOfIndex = std::max<uint64_t>(1, indexElements / std::max<uint64_t>(1, elements / made.parts));
    return made;
  }

  template <typename Visit>
  void eachItem(const Cut& cut, uint64_t index, const Visit& visit) const noexcept {
    const uint64_t end = std::min(cut.items, (index + 1) * cut.itemsOfIndex);
    for (uint64_t at = index * cut.itemsOfIndex; at < end && !shouldStop(); at++) {
      const uint64_t part = at % cut.parts, band = at / cut.parts % cut.bands, within = band % cut.bandsOfBlock;
      Item item{at / cut.parts / cut.bands, band / cut.bandsOfBlock, 0, 0, part * cut.chunksOfPart, 0, within == 0};
      const uint64_t top = item.blockRow * cut.blockRows, first = top > t_.originRow ? top - t_.originRow : 0;
      item.row = first + within * cut.bandRows;
      item.endRow = std::min({item.row + cut.bandRows, top + cut.blockRows - t_.originRow, t_.rows.length});
      item.endChunk = std::min(chunks_, item.chunk + cut.chunksOfPart);
      if (item.row < item.endRow) visit(item);
    }
  }

  uint8_t* place(Part part, uint64_t matrix, uint64_t row, uint64_t column) const noexcept {
    int64_t offset =
        static_cast<int64_t>(row) * t_.rows.steps[part] + static_cast<int64_t>(column) * t_.columns.steps[part];
    for (size_t d = t_.matrices.size(); d > 0; d--) {
      offset += static_cast<int64_t>(matrix % t_.matrices[d - 1].length) * t_.matrices[d - 1].steps[part];
      matrix /= t_.matrices[d - 1].length;
    }
    return reinterpret_cast<uint8_t*>(t_.addresses[part] + static_cast<uint64_t>(offset));
  }

  /** Gives the parts of a chunk that loops take at once: first column, blocks and their width. */
  template <typename Visit>
  static void eachPiece(const Chunk& chunk, const Visit& visit) {
    for (uint64_t at = 0; at < chunk.width; at += pieceElements)
      visit(chunk.column + at, static_cast<size_t>(chunk.blocks),
            static_cast<size_t>(std::min(chunk.width - at, pieceElements)));
  }

  /** Elements as a dense row: where they lie, or in the buffer. */
  const uint8_t* denseRow(uint64_t matrix, uint64_t row, uint64_t column, size_t elements,
                          uint8_t* buffer) const noexcept {
    const uint8_t* from = place(PlainPart, matrix, row, column);
    const int64_t step = t_.columns.steps[PlainPart];
    if (step == static_cast<int64_t>(elementBytes_)) return from;
    for (size_t i = 0; i < elements; i++)
      std::memcpy(buffer + i * elementBytes_, from + static_cast<int64_t>(i) * step, elementBytes_);
    return buffer;
  }

  /** Largest magnitudes of the blocks of a chunk over some rows. */
  void findLargest(const Item& item, const Chunk& chunk, float* largest) const noexcept {
    const RuleKernels& table = kernels().rules;
    uint32_t bits[pieceElements];
    alignas(64) uint8_t buffer[pieceElements * sizeof(float)];
    std::fill_n(bits, chunk.blocks, 0u);
    for (uint64_t row = item.row; row < item.endRow; row++)
      eachPiece(chunk, [&](uint64_t column, size_t blocks, size_t width) {
        table.largest[type_](bits, denseRow(item.matrix, row, column, blocks * width, buffer), blocks, width);
      });
    table.magnitudes[type_](largest, bits, chunk.blocks);
  }

  uint64_t numberOfBlock(const Item& item, const Chunk& chunk) const noexcept {
    return (item.matrix * t_.blocksDown() + item.blockRow) * across_ + chunk.block;
  }

  void search(const Item& item) noexcept {
    float largest[pieceElements];
    for (uint64_t at = item.chunk; at < item.endChunk; at++) {
      const Chunk chunk = chunkAt(at);
      findLargest(item, chunk, largest);
      for (uint64_t i = 0; i < chunk.blocks; i++)
        raise(found_[isOne_ ? 0 : numberOfBlock(item, chunk) + i], bitsOf(largest[i]));
    }
  }

  /** Joins what was found with what is there. */
  void joinMaxima() const noexcept {
    const uint64_t down = isOne_ ? 1 : t_.blocksDown(), across = isOne_ ? 1 : across_;
    for (uint64_t at = 0; at < found_.size(); at++) {
      uint8_t* to = place(MaximaPart, at / across / down, at / across % down, at % across);
      const uint32_t before = loadBits(to, 4) & 0x7fffffffu, own = found_[at].load(std::memory_order_relaxed);
      const float value = quiet(floatOf(own > before ? own : before));
      std::memcpy(to, &value, sizeof value);
    }
  }

  GlobalScaling globalScaling() const noexcept {
    if (form_ != QuantizeForm::Nvfp4) return {};
    const auto numberAt = [](uint64_t address) { return floatOf(loadBits(reinterpret_cast<uint8_t*>(address), 4)); };
    if (t_.op == QuantizeOp::Dequantize || t_.keepsGlobal) return globalFromStored(t_.rule, numberAt(t_.global));
    const float amax = t_.hasMaxima ? absolute(numberAt(t_.addresses[MaximaPart]))
                                    : floatOf(found_[0].load(std::memory_order_relaxed));
    return globalFromMaximum(t_.rule, amax, StatedSource{static_cast<DType>(t_.plainType)});
  }

  void largestOf(const Item& item, const Chunk& chunk, float* largest) const noexcept {
    if (t_.hasMaxima && form_ != QuantizeForm::Nvfp4) {
      for (uint64_t i = 0; i < chunk.blocks; i++)
        largest[i] = absolute(floatOf(loadBits(place(MaximaPart, item.matrix, item.blockRow, chunk.block + i), 4)));
    } else if (isSearchedApart_) {
      for (uint64_t i = 0; i < chunk.blocks; i++)
        largest[i] = floatOf(found_[numberOfBlock(item, chunk) + i].load(std::memory_order_relaxed));
    } else {
      findLargest(item, chunk, largest);
    }
  }

  void quantize(const Item& item, const Chunk& chunk, const GlobalScaling& global) noexcept {
    const RuleKernels& table = kernels().rules;
    const auto rule = static_cast<size_t>(t_.rule);
    uint32_t stored[pieceElements];
    alignas(64) float largest[pieceElements], factors[pieceElements];
    alignas(64) uint8_t buffer[pieceElements * sizeof(float)], codes[pieceElements], packed[pieceElements / 2];
    const bool isOwn = item.isFirst && t_.rule != QuantizeRule::Nvfp4TransformerEngine16x16;
    largestOf(item, chunk, largest);
    table.scale[rule][type_](stored, factors, largest, chunk.blocks, global);
    for (uint64_t row = item.row; row < item.endRow; row++) {
      eachPiece(chunk, [&](uint64_t column, size_t blocks, size_t width) {
        const size_t elements = blocks * width;
        const uint8_t* plain = denseRow(item.matrix, row, column, elements, buffer);
        if (t_.rule == QuantizeRule::Nvfp4TransformerEngine4Over6)
          table.choose[type_](stored, factors, largest, plain, blocks, width, global);
        table.encode[static_cast<size_t>(encodingOf(t_.rule))][type_](codes, plain, factors, blocks, width);
        if (isPacked_) table.pack(packed, codes, elements);
        writeCodes(item.matrix, row, column, isPacked_ ? packed : codes, isPacked_ ? elements / 2 : elements);
      });
      if (t_.rule == QuantizeRule::Nvfp4TransformerEngine16x16) writeScales(item.matrix, row, chunk, stored);
      movedBytes.add(chunk.blocks * chunk.width * elementBytes_);
    }
    if (isOwn) writeScales(item.matrix, form_ == QuantizeForm::Nvfp4 ? item.row : item.blockRow, chunk, stored);
  }

  void writeCodes(uint64_t matrix, uint64_t row, uint64_t column, const uint8_t* bytes, size_t count) const noexcept {
    uint8_t* to = place(CodePart, matrix, row, isPacked_ ? column / 2 : column);
    const int64_t step = t_.columns.steps[CodePart];
    if (step != 1) {
      for (size_t i = 0; i < count; i++) to[static_cast<int64_t>(i) * step] = bytes[i];
    } else if (past_) {
      streamBytes(to, bytes, count);
    } else {
      std::memcpy(to, bytes, count);
    }
  }

  void writeScales(uint64_t matrix, uint64_t row, const Chunk& chunk, const uint32_t* stored) const noexcept {
    uint8_t* to = place(ScalePart, matrix, row, chunk.block);
    const int64_t step = t_.columns.steps[ScalePart];
    if (form_ != QuantizeForm::Fp8 && step == 1) {
      for (uint64_t i = 0; i < chunk.blocks; i++) to[i] = static_cast<uint8_t>(stored[i]);
      return;
    }
    for (uint64_t i = 0; i < chunk.blocks; i++)
      storeScale(to + static_cast<int64_t>(i) * step, t_.scaleType, form_, stored[i]);
  }

  void dequantize(const Item& item, const Chunk& chunk, const GlobalScaling& global) noexcept {
    const RuleKernels& table = kernels().rules;
    alignas(64) float factors[pieceElements], values[pieceElements];
    alignas(64) uint8_t bytes[pieceElements], codes[pieceElements];
    const Reading reading = readingOf(t_.rule);
    const float second = reading == Reading::Twice ? global.stored / 2688.0f : global.stored;
    for (uint64_t row = item.row; row < item.endRow; row++) {
      if (row == item.row || form_ == QuantizeForm::Nvfp4) readFactors(item, chunk, row, global.stored, factors);
      eachPiece(chunk, [&](uint64_t column, size_t blocks, size_t width) {
        const size_t elements = blocks * width, count = isPacked_ ? elements / 2 : elements;
        const uint8_t* from = place(CodePart, item.matrix, row, isPacked_ ? column / 2 : column);
        const int64_t step = t_.columns.steps[CodePart];
        if (step != 1) {
          for (size_t i = 0; i < count; i++) bytes[i] = from[static_cast<int64_t>(i) * step];
          from = bytes;
        }
        if (isPacked_) {
          table.unpack(codes, from, elements);
          table.readFloat4[static_cast<size_t>(reading)](values, codes, factors, blocks, width, second);
        } else {
          table.readFloat8(values, from, factors, blocks, width, second);
        }
        kernels().store[t_.plainType][static_cast<size_t>(Wide::Float32)](
            place(PlainPart, item.matrix, row, column), t_.columns.steps[PlainPart], values, elements);
      });
      movedBytes.add(chunk.blocks * chunk.width * elementBytes_);
    }
  }

  /** What numbers are multiplied by first, block by block. */
  void readFactors(const Item& item, const Chunk& chunk, uint64_t row, float global, float* factors) const noexcept {
    const uint8_t* from =
        place(ScalePart, item.matrix, form_ == QuantizeForm::Nvfp4 ? row : item.blockRow, chunk.block);
    const int64_t step = t_.columns.steps[ScalePart];
    for (uint64_t i = 0; i < chunk.blocks; i++) {
      const float scale = loadScale(from + static_cast<int64_t>(i) * step, t_.scaleType, form_);
      const bool isDivided = t_.rule == QuantizeRule::Nvfp4CompressedTensors;
      const bool isMultiplied = form_ == QuantizeForm::Nvfp4 && readingOf(t_.rule) <= Reading::WithoutMinusZero;
      factors[i] = isDivided ? scale / global : isMultiplied ? scale * global : scale;
    }
  }

  QuantizeTable t_;
  QuantizeForm form_;
  size_t type_, elementBytes_;
  bool isPacked_, past_ = false, isSearchedApart_ = false, isOne_ = false;
  uint64_t across_ = 0;
  /** Columns: a short first block, whole ones, a short last one. */
  uint64_t firstWidth_ = 0, wholeBlocks_ = 0, lastWidth_ = 0, blocksOfChunk_ = 1, chunks_ = 0;
  Cut searches_{}, conversions_{};
  /** The bits of largest magnitudes that the first pass finds. */
  std::vector<std::atomic<uint32_t>> found_;
  std::mutex searchMutex_;
  std::condition_variable ended_;
  uint64_t searched_ = 0;  // guarded by searchMutex_
};

}  // namespace

std::shared_ptr<Job> makeFormsJob(QuantizeTable table) { return std::make_shared<FormsJob>(std::move(table)); }

}  // namespace tensorferry
