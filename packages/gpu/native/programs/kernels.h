// SPDX-License-Identifier: Apache-2.0
/*
 * The kernels on one device: loaded once, launched by the worker.
 */
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tensorferry_gpu/gpu_libraries.h>
#include <tensorferry_gpu/gpu_objects.h>

#include <tensorferry/replay/ring_words.h>
#include "kernels/batch.h"

namespace tensorferry::gpu {

class Kernels {
 public:
  /**
   * Loads the kernels, compiling them where the cache folder (if any) has none. The device is current. `blocks` limits what
   * moves and reduces; 0 means as many as do best.
   */
  Status load(const Libraries& libraries, int ordinal, const std::string& cacheFolder, uint32_t blocks);
  void clear() noexcept { modules_.clear(); }

  Status move(const MoveParameter& parameter, StreamHandle stream) const;
  /** `usefulBlocks` as a compiled reduction states them. */
  Status reduce(const ReduceParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const;
  Status quantize(const QuantizeParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const;
  Status forms(const FormLaunch& launch, uint64_t table, StreamHandle stream) const;
  Status changes(const ChangeParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const;
  Status products(const ProductParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const;
  Status digest(const DigestParameter& parameter, StreamHandle stream) const;
  Status ring(const RingParameter& parameter, StreamHandle stream) const;
  Status compare(const CompareParameter& parameter, StreamHandle stream) const;
  Status spin(uint64_t nanoseconds, StreamHandle stream) const;

 private:
  /** Loads the kernels of a part, counted from 1. */
  Status loadPart(unsigned part, const std::string& image);
  template <typename Parameter>
  Status launchKernel(FunctionHandle function, unsigned blocks, unsigned threads, Parameter parameter,
                      StreamHandle stream) const;
  uint32_t residentBlocks(FunctionHandle function, uint32_t processors, uint32_t threads = blockThreads) const;

  const GpuApi* api_ = nullptr;
  std::vector<Module> modules_;
  FunctionHandle move_ = nullptr, reduce_ = nullptr, quantize_ = nullptr, forms_ = nullptr, tiles_ = nullptr,
                 groups_ = nullptr, compare_ = nullptr, changes_ = nullptr, products_ = nullptr, digest_ = nullptr,
                 ring_ = nullptr, spin_ = nullptr;
  uint32_t moveBlocks_ = 1, reduceBlocks_ = 1, groupBlocks_ = 1, compareBlocks_ = 1;
  uint64_t clockRate_ = 0;
};

}  // namespace tensorferry::gpu
