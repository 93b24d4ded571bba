// SPDX-License-Identifier: Apache-2.0
/*
 * A program: checked steps with the tables that its kernels read, run any number of times by the device's worker.
 *
 * Made on the JS thread; uploaded at its first run.
 * Invariant: a program at rest has no work on the device. Its tables stay on the device until it is closed and no run of
 * it is left.
 */
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <tensorferry_gpu/resource.h>
#include "communicator.h"
#include "device.h"
#include "kernels/batch.h"
#include "steps.h"
#include "waiting.h"

namespace tensorferry::gpu {

/** Words in JavaScript hands. */
struct WordTable {
  const uint64_t* words;
  size_t count;
};

/** A table of one compilation, and where it lies in the program's block. */
template <typename Compiled>
struct PlacedTable {
  Compiled compiled;
  uint64_t offset = 0;
};

class Program final : public Resource {
 public:
  static constexpr napi_type_tag typeTag{0x83d6e91f4b274d08, 0x9b2c5ad1709e48b7};
  static constexpr const char* kind = "program";

  /** Checks and compiles. `communicator` and `calls` may be null. */
  static Result<std::shared_ptr<Program>> create(const std::shared_ptr<Device>& device, WordTable steps,
                                                 const std::vector<WordTable>& moves,
                                                 std::shared_ptr<Communicator> communicator,
                                                 std::shared_ptr<StreamCalls> calls = nullptr);

  Program(std::shared_ptr<Device> owner, StepList list, std::shared_ptr<Communicator> group,
          std::shared_ptr<StreamCalls> called) noexcept
      : Resource(std::move(owner)), communicator(std::move(group)), calls(std::move(called)), list(std::move(list)) {}

  int rank() const noexcept override { return 0; }

  /** Brings the tables to the device, once. The worker, with the device current. */
  Status upload(Waker& waker, const CancelToken& token);

  /** Address of a table that was uploaded. */
  uint64_t addressOf(uint64_t offset) const noexcept { return reinterpret_cast<uint64_t>(block_.address) + offset; }

  const std::shared_ptr<Communicator> communicator;
  const std::shared_ptr<StreamCalls> calls;
  const StepList list;
  std::vector<PlacedTable<Batch>> batches;
  std::vector<PlacedTable<Reduction>> reductions, quantizations;
  std::vector<PlacedTable<ChangeWork>> changes;
  std::vector<PlacedTable<DigestWork>> digests;
  /** Without tables. */
  std::vector<ProductWork> products;
  /** Where the scratch memory of each of them lies. */
  std::vector<uint64_t> scratch;

 protected:
  void giveBack() noexcept override;

 private:
  template <typename Compiled>
  void place(std::vector<PlacedTable<Compiled>>& tables, Compiled compiled);

  uint64_t tableBytes_ = 0;
  TableBlock block_;
};

/** Copies words to a block of the device, through pinned memory. The worker, with the device current. */
Status uploadWords(Device& device, void* block, const std::vector<const std::vector<uint64_t>*>& tables,
                   const std::vector<uint64_t>& offsets, Waker& waker, const CancelToken& token);

/** Waits until a stream is done. The token does not end this: memory is in use until then. */
Status waitForStream(const GpuApi& api, StreamHandle stream, Waker& waker, const CancelToken& token);

/**
 * Runs a program once and answers the microseconds of its spans. The worker. Ends when the device has done everything,
 * also on failure; a cancelled or failed run of a program with a communicator aborts that.
 */
Result<std::vector<double>> runProgram(Program& program, Waker& waker, const CancelToken& token,
                                       ProgressCounter& progress);

struct Comparison {
  /** Bytes that differ. */
  uint64_t differing;
  /** First element with such a byte; -1 where there is none. */
  int64_t first;
};

/** The table of a comparison. */
struct CompiledComparison {
  Batch batch;
  size_t elementBytes;
};

/** Compiles a table of one move whose two sides are to be compared. */
Result<CompiledComparison> compileComparison(WordTable table);

/** Compares the two sides of one move. The worker. */
Result<Comparison> compareRegions(Device& device, const Batch& batch, size_t elementBytes, Waker& waker,
                                  const CancelToken& token);

}  // namespace tensorferry::gpu
