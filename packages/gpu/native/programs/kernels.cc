// SPDX-License-Identifier: Apache-2.0
/*
 * See kernels.h.
 */
#include "kernels.h"

#include <algorithm>
#include <optional>

#include "kernel_cache.h"
#include "kernel_compiler.h"
#include "kernels/kernel_source.h"

namespace tensorferry::gpu {
namespace {

/** Blocks of a launch in one dimension. */
constexpr uint32_t mostBlocks = 0x7fffffff;

/** How often a processor is given new blocks of groups, each of which begins with work that is no group's. */
constexpr uint32_t groupRounds = 6;

/** Kilohertz of AMD's wall clock: the attribute's number and what it nearly always is. */
constexpr int wallClockRate = 10017, usualClockRate = 100'000;

}  // namespace

Status Kernels::load(const Libraries& libraries, int ordinal, const std::string& cacheFolder, uint32_t blocks) {
  const GpuApi& api = libraries.api;
  api_ = &api;
  auto target = targetOf(api, ordinal);
  if (!target.ok()) return target.status();
  std::optional<KernelCache> cache;
  if (!cacheFolder.empty()) {
    auto opened = KernelCache::open(cacheFolder);
    if (!opened.ok()) return opened.status();
    cache.emplace(std::move(opened.value()));
  }
  std::vector<unsigned> missing;
  for (unsigned part = 1; part <= kernelParts; part++) {
    const auto cached = cache ? cache->read(compilationKey(libraries, target.value(), part)) : std::nullopt;
    if (!cached || !loadPart(part, *cached).ok()) missing.push_back(part);
  }
  if (!missing.empty()) {
    auto images = compileKernels(libraries, target.value(), missing);
    if (!images.ok()) return images.status();
    for (size_t at = 0; at < missing.size(); at++) {
      const std::string& image = images.value()[at];
      if (Status status = loadPart(missing[at], image); !status.ok()) return status;
      if (cache) cache->write(compilationKey(libraries, target.value(), missing[at]), image);
    }
  }
  int processors = 0, rate = 0;
  Status status = callRuntime(api, api.getAttribute, &processors, attributeNumbers(api.vendor).processors, ordinal);
  if (!status.ok()) return status;
  const auto count = static_cast<uint32_t>(std::max(1, processors));
  // Blocks that come one after the other keep more of the memory busy than resident ones that go round. Between devices the
  // link decides, and both are alike.
  moveBlocks_ = blocks > 0 ? blocks : mostBlocks;
  reduceBlocks_ = blocks > 0 ? blocks : residentBlocks(reduce_, count);
  // The limit is for what moves bytes beside other work: conversions compute, and want all processors.
  groupBlocks_ = groupRounds * residentBlocks(groups_, count, formThreads);
  compareBlocks_ = blocks > 0 ? blocks : residentBlocks(compare_, count);
  if (api.vendor == Vendor::Rocm)
    clockRate_ = static_cast<uint64_t>(
        api.getAttribute(&rate, wallClockRate, ordinal) == code::success && rate > 0 ? rate : usualClockRate);
  return {};
}

Status Kernels::loadPart(unsigned part, const std::string& image) {
  ModuleHandle handle = nullptr;
  Status status = callDriver(*api_, api_->loadModule, &handle, static_cast<const void*>(image.c_str()));
  if (!status.ok()) return status;
  Module module(*api_, handle);
  struct Kernel {
    unsigned part;
    FunctionHandle* function;
    const char* name;
  };
  const Kernel kernels[] = {{1, &move_, "tensorferry_move"},         {1, &reduce_, "tensorferry_reduce"},
                            {1, &compare_, "tensorferry_compare"},   {1, &forms_, "tensorferry_forms"},
                            {1, &ring_, "tensorferry_ring"},         {1, &spin_, "tensorferry_spin"},
                            {2, &quantize_, "tensorferry_quantize"}, {2, &changes_, "tensorferry_changes"},
                            {2, &digest_, "tensorferry_digest"},     {3, &tiles_, "tensorferry_tiles"},
                            {4, &groups_, "tensorferry_groups"},     {5, &products_, "tensorferry_products"}};
  for (const Kernel& kernel : kernels) {
    if (kernel.part != part) continue;
    status = callDriver(*api_, api_->getFunction, kernel.function, handle, kernel.name);
    if (!status.ok()) return status;
  }
  modules_.push_back(std::move(module));
  return {};
}

uint32_t Kernels::residentBlocks(FunctionHandle function, uint32_t processors, uint32_t threads) const {
  int perProcessor = 0;
  if (!api_->occupancy || api_->occupancy(&perProcessor, function, static_cast<int>(threads), 0) != code::success ||
      perProcessor < 1)
    perProcessor = 1;
  return processors * static_cast<uint32_t>(perProcessor);
}

template <typename Parameter>
Status Kernels::launchKernel(FunctionHandle function, unsigned blocks, unsigned threads, Parameter parameter,
                             StreamHandle stream) const {
  void* parameters[] = {&parameter};
  return callDriver(*api_, api_->launch, function, blocks, 1u, 1u, threads, 1u, 1u, 0u, stream,
                    static_cast<void**>(parameters), static_cast<void**>(nullptr));
}

Status Kernels::move(const MoveParameter& parameter, StreamHandle stream) const {
  return launchKernel(move_, std::min(moveBlocks_, parameter.unitCount), blockThreads, parameter, stream);
}

Status Kernels::reduce(const ReduceParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const {
  return launchKernel(reduce_, std::clamp(usefulBlocks, 1u, reduceBlocks_), blockThreads, parameter, stream);
}

Status Kernels::quantize(const QuantizeParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const {
  return launchKernel(quantize_, std::clamp(usefulBlocks, 1u, mostBlocks), blockThreads, parameter, stream);
}

Status Kernels::forms(const FormLaunch& launch, uint64_t table, StreamHandle stream) const {
  const FormParameter parameter = formParameter(launch, table);
  const uint32_t blocks = std::clamp(launch.usefulBlocks, 1u, mostBlocks);
  switch (launch.record.step) {
    case FormStep::Tiles:
      return launchKernel(tiles_, blocks, formThreads, parameter, stream);
    case FormStep::Groups:
      return launchKernel(groups_, std::min(blocks, groupBlocks_), formThreads, parameter, stream);
    default:
      return launchKernel(forms_, blocks, blockThreads, parameter, stream);
  }
}

Status Kernels::changes(const ChangeParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const {
  return launchKernel(changes_, std::clamp(usefulBlocks, 1u, mostBlocks), blockThreads, parameter, stream);
}

Status Kernels::products(const ProductParameter& parameter, uint32_t usefulBlocks, StreamHandle stream) const {
  return launchKernel(products_, std::clamp(usefulBlocks, 1u, mostBlocks), productThreads, parameter, stream);
}

Status Kernels::digest(const DigestParameter& parameter, StreamHandle stream) const {
  return launchKernel(digest_, std::clamp(usefulBlocks(parameter), 1u, mostBlocks), digestThreads, parameter, stream);
}

Status Kernels::ring(const RingParameter& parameter, StreamHandle stream) const {
  const uint64_t indices = ringIndices(parameter);
  const uint64_t perBlock = ringIsShared(parameter.step) ? blockThreads / teamThreads : blockThreads;
  const auto blocks = static_cast<uint32_t>(std::clamp<uint64_t>((indices + perBlock - 1) / perBlock, 1, mostBlocks));
  return launchKernel(ring_, blocks, blockThreads, parameter, stream);
}

Status Kernels::compare(const CompareParameter& parameter, StreamHandle stream) const {
  return launchKernel(compare_, std::min(compareBlocks_, parameter.move.unitCount), blockThreads, parameter, stream);
}

Status Kernels::spin(uint64_t nanoseconds, StreamHandle stream) const {
  return launchKernel(spin_, 1, 1, SpinParameter{nanoseconds, clockRate_}, stream);
}

}  // namespace tensorferry::gpu
