// SPDX-License-Identifier: Apache-2.0
/*
 * See kernels.h.
 */
#include "kernels.h"

#include <algorithm>
#include <optional>

#include "kernel_cache.h"
#include "kernel_compiler.h"

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
  const std::string key = compilationKey(libraries, target.value());
  const std::optional<std::string> cached = cache ? cache->read(key) : std::nullopt;
  if (!cached || !loadImage(*cached).ok()) {
    auto image = compileKernels(libraries, target.value());
    if (!image.ok()) return image.status();
    if (Status status = loadImage(image.value()); !status.ok()) return status;
    if (cache) cache->write(key, image.value());
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

Status Kernels::loadImage(const std::string& image) {
  ModuleHandle handle = nullptr;
  Status status = callDriver(*api_, api_->loadModule, &handle, static_cast<const void*>(image.c_str()));
  if (!status.ok()) return status;
  Module module(*api_, handle);
  const std::pair<FunctionHandle*, const char*> functions[] = {
      {&move_, "tensorferry_move"},       {&reduce_, "tensorferry_reduce"},   {&quantize_, "tensorferry_quantize"},
      {&forms_, "tensorferry_forms"},     {&tiles_, "tensorferry_tiles"},     {&groups_, "tensorferry_groups"},
      {&compare_, "tensorferry_compare"}, {&changes_, "tensorferry_changes"}, {&products_, "tensorferry_products"},
      {&digest_, "tensorferry_digest"},   {&ring_, "tensorferry_ring"},       {&spin_, "tensorferry_spin"}};
  for (const auto& [function, name] : functions) {
    status = callDriver(*api_, api_->getFunction, function, handle, name);
    if (!status.ok()) return status;
  }
  module_ = std::move(module);
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
