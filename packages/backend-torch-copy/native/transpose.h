// SPDX-License-Identifier: Apache-2.0
/*
 * Copies of matrices whose two sides are dense along different dimensions. Pure functions over the memory given; any
 * thread.
 *
 * Invariant: each line of 64 bytes of either side is touched once and whole. Rows of large matrices often lie at multiples
 * of a power of two, where a cache keeps only a few lines; anything that came back to a line later would miss it. The
 * caller calls `finishStreaming` at the end.
 */
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include <tensorferry/memory/stream.h>

namespace tensorferry {

/** Rows and columns of a matrix, their bytes between neighbours on either side. */
struct Matrix {
  uint64_t rows, columns;
  int64_t destinationRow, destinationColumn, sourceRow, sourceColumn;
};

/** Copies elements one by one, whatever the steps. */
template <typename T>
void copySteps(uint8_t* destination, const uint8_t* source, const Matrix& matrix) {
  for (uint64_t r = 0; r < matrix.rows; r++) {
    uint8_t* to = destination + static_cast<int64_t>(r) * matrix.destinationRow;
    const uint8_t* from = source + static_cast<int64_t>(r) * matrix.sourceRow;
    for (uint64_t c = 0; c < matrix.columns; c++) {
      T value;
      std::memcpy(&value, from + static_cast<int64_t>(c) * matrix.sourceColumn, sizeof value);
      std::memcpy(to + static_cast<int64_t>(c) * matrix.destinationColumn, &value, sizeof value);
    }
  }
}

namespace transposing {

inline constexpr size_t line = cacheLine;
inline constexpr size_t registerBytes = 16;

template <typename T>
struct Vector {
  typedef T type __attribute__((vector_size(registerBytes)));
};

/** Elements of `a` and `b` in turn, from their lower or their upper halves. */
template <bool upper, typename V, size_t... i>
V zip(V a, V b, std::index_sequence<i...>) {
  constexpr size_t n = sizeof...(i);
  return __builtin_shufflevector(a, b, ((i % 2) * n + i / 2 + (upper ? n / 2 : 0))...);
}

/** Transposes as many rows as fit into one register, in registers; strides in elements. */
template <typename T>
void transposeBlock(T* destination, size_t destinationStride, const T* source, size_t sourceStride) {
  constexpr size_t n = registerBytes / sizeof(T);
  constexpr auto lanes = std::make_index_sequence<n>{};
  typename Vector<T>::type rows[n], next[n];
  for (size_t i = 0; i < n; i++) std::memcpy(&rows[i], source + i * sourceStride, registerBytes);
  // Each round interleaves the first half of the rows with the second; after log2(n) rounds rows have become columns.
  for (size_t round = 1; round < n; round *= 2) {
    for (size_t i = 0; i < n / 2; i++) {
      next[2 * i] = zip<false>(rows[i], rows[i + n / 2], lanes);
      next[2 * i + 1] = zip<true>(rows[i], rows[i + n / 2], lanes);
    }
    for (size_t i = 0; i < n; i++) rows[i] = next[i];
  }
  for (size_t i = 0; i < n; i++) std::memcpy(destination + i * destinationStride, &rows[i], registerBytes);
}

/** Columns of one tile: a line of the destination. */
template <typename T>
inline constexpr size_t width = line / sizeof(T);
/** Rows of one tile: two lines of the source, which processors fetch together. */
template <typename T>
inline constexpr size_t height = 2 * width<T>;

template <typename T>
void transposeTile(uint8_t* destination, const uint8_t* source, const Matrix& matrix) {
  alignas(line) T columns[width<T>][height<T>], rows[height<T>][width<T>];
  for (size_t c = 0; c < width<T>; c++)
    std::memcpy(columns[c], source + static_cast<int64_t>(c) * matrix.sourceColumn, sizeof columns[c]);
  constexpr size_t step = registerBytes / sizeof(T);
  for (size_t r = 0; r < height<T>; r += step)
    for (size_t c = 0; c < width<T>; c += step) transposeBlock<T>(&rows[r][c], width<T>, &columns[c][r], height<T>);
  for (size_t r = 0; r < height<T>; r++) {
    uint8_t* to = destination + static_cast<int64_t>(r) * matrix.destinationRow;
    // Where lines lie across others, streaming them would write each half on its own.
    if (reinterpret_cast<uintptr_t>(to) % line == 0) {
      streamBytes(to, reinterpret_cast<const uint8_t*>(rows[r]), line);
    } else {
      std::memcpy(to, rows[r], line);
    }
  }
}

}  // namespace transposing

/** Copies a matrix whose destination is dense along the columns and whose source is dense along the rows. */
template <typename T>
void transposeMatrix(uint8_t* destination, const uint8_t* source, const Matrix& matrix) {
  using transposing::height, transposing::width;
  constexpr uint64_t band = 256;  // columns at a time: each may lie on a page of its own
  for (uint64_t left = 0; left < matrix.columns; left += band) {
    const uint64_t right = std::min(matrix.columns, left + band);
    for (uint64_t r = 0; r < matrix.rows; r += height<T>) {
      for (uint64_t c = left; c < right; c += width<T>) {
        Matrix part = matrix;
        part.rows = std::min<uint64_t>(height<T>, matrix.rows - r);
        part.columns = std::min<uint64_t>(width<T>, right - c);
        uint8_t* to = destination + static_cast<int64_t>(r) * matrix.destinationRow + c * sizeof(T);
        const uint8_t* from = source + r * sizeof(T) + static_cast<int64_t>(c) * matrix.sourceColumn;
        if (part.rows == height<T> && part.columns == width<T>) {
          transposing::transposeTile<T>(to, from, matrix);
        } else {
          copySteps<T>(to, from, part);
        }
      }
    }
  }
}

template <typename T>
void copyMatrix(uint8_t* destination, const uint8_t* source, const Matrix& matrix) {
  constexpr auto size = static_cast<int64_t>(sizeof(T));
  if (matrix.destinationColumn == size && matrix.sourceRow == size) {
    transposeMatrix<T>(destination, source, matrix);
  } else {
    copySteps<T>(destination, source, matrix);
  }
}

}  // namespace tensorferry
