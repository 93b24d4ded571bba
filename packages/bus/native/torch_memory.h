// SPDX-License-Identifier: Apache-2.0
/*
 * Memory that PyTorch shares by name, and the counts of its owners. Any thread.
 *
 * Invariant: the count that a payload carries is given back exactly once, when the memory is closed or its handle is
 * dropped; whoever gives back the last one removes the name. Only files of this user are opened.
 */
#pragma once

#include <memory>
#include <string>

#include <tensorferry/memory/mapping.h>
#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

namespace tensorferry {

class TorchMemory {
 public:
  static constexpr napi_type_tag typeTag{0x4be1907d3fca4d58, 0x82d5f61e0b7ca943};

  /** Maps the file to its end; it must hold `byteLength` bytes behind its header. */
  static Result<std::shared_ptr<TorchMemory>> open(const std::string& name, uint64_t byteLength);
  TorchMemory(std::string name, Mapping mapping) : name_(std::move(name)), mapping_(std::move(mapping)) {}
  ~TorchMemory() { close(); }

  /** First byte of the storage; null once closed. */
  void* payload() const noexcept;
  /** Whether the file was made shorter than what is mapped. */
  bool isCut() const noexcept { return mapping_.isCut(); }
  /** Gives back the count of the payload, if that has not happened. */
  void giveBackCount() noexcept;
  /** Gives back the count and unmaps the memory. */
  void close() noexcept;

 private:
  bool isCounted_ = true;
  std::string name_;
  Mapping mapping_;
};

/** Gives back one count of CUDA memory: a 64-bit number at place `index` behind the file's header. */
Status returnCudaCount(const std::string& name, uint64_t index);

/** Removes a file of counts whose owner has died: PyTorch leaves it behind then. */
void removeCudaCounts(const std::string& name) noexcept;

}  // namespace tensorferry
