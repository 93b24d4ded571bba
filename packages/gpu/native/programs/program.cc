// SPDX-License-Identifier: Apache-2.0
/*
 * See program.h. All tables of a program lie in one block of table memory.
 */
#include "program.h"

#include <algorithm>
#include <cstring>

namespace tensorferry::gpu {
namespace {

/** Tables begin at multiples of this. */
constexpr uint64_t tableAlignment = 256;
/** Pinned memory through which tables go, at most. */
constexpr size_t uploadPiece = 4 << 20;

/** The first move with more elements than any device has bytes, if there is one; whatever else is wrong is found later. */
int64_t findTooLarge(WordTable table) noexcept {
  int64_t index = 0;
  for (size_t at = 0; at + 3 <= table.count; index++) {
    const size_t dimensions = (table.words[at] >> 24) & 0xff;
    const uint64_t* shape = table.words + at + 3;
    at += 3 + 3 * dimensions;
    if (at > table.count) break;
    if (std::find(shape, shape + dimensions, 0) != shape + dimensions) continue;
    uint64_t elements = 1;
    for (size_t i = 0; i < dimensions; i++) {
      if (shape[i] > byteLimit / elements) return index;
      elements *= shape[i];
    }
  }
  return -1;
}

/** Moves of one table, with sizes that no sum can wrap. */
Result<MoveList> parseTable(WordTable table, bool refuseOverlap) {
  MoveList moves;
  Status excess;
  if (const int64_t index = findTooLarge(table); index >= 0) {
    excess = failure(Code::InvalidArgument, "createProgram", "A region is larger than any device.");
    excess.item = index;
    return excess;
  }
  moves.reserve(table.count / usualMoveWords);
  Status status = parseMoves(table.words, table.count, refuseOverlap, [&](const Move& move) {
    if (!excess.ok()) return;
    const char* problem = nullptr;
    for (size_t i = 0; i < move.dimensionCount; i++) {
      const Dimension& dimension = move.dimensions[i];
      const auto isTooFar = [&](int64_t step) {
        return step < 0 || static_cast<uint64_t>(step) > byteLimit / dimension.length;
      };
      if (isTooFar(dimension.destinationStep) || isTooFar(dimension.sourceStep))
        problem = "A step is negative, or leads further than any device's memory.";
    }
    if (move.pid != 0) problem = "Memory of another process is reached by mapping it, not by a process number.";
    if (move.destination == 0 || (move.kind == MoveKind::Copy && move.source == 0)) problem = "An address is zero.";
    if (problem == nullptr) return moves.add(move);
    excess = failure(Code::InvalidArgument, "createProgram", problem);
    excess.item = move.index;
  });
  if (status.ok()) status = std::move(excess);
  if (!status.ok()) return status;
  return moves;
}

}  // namespace

template <typename Compiled>
void Program::place(std::vector<PlacedTable<Compiled>>& tables, Compiled compiled) {
  uint64_t bytes = 8 * compiled.table.size();
  if constexpr (requires { compiled.scratchWords; }) bytes += 8 * compiled.scratchWords;
  tables.push_back({std::move(compiled), tableBytes_});
  tableBytes_ += (bytes + tableAlignment - 1) / tableAlignment * tableAlignment;
}

Result<std::shared_ptr<Program>> Program::create(const std::shared_ptr<Device>& device, WordTable steps,
                                                 const std::vector<WordTable>& moves,
                                                 std::shared_ptr<Communicator> communicator,
                                                 std::shared_ptr<StreamCalls> calls) {
  if (communicator != nullptr) {
    if (Status status = communicator->usable(); !status.ok()) return status;
    if (communicator->device != device)
      return failure(Code::InvalidArgument, "createProgram", "The communicator belongs to another device.");
  }
  auto list = parseSteps(steps.words, steps.count,
                         {moves.size(), communicator == nullptr ? 0 : communicator->ranks, calls.get()});
  if (!list.ok()) return list.status();
  if (!list.value().usesCommunicator) communicator = nullptr;
  auto program = std::make_shared<Program>(device, std::move(list.value()), std::move(communicator), std::move(calls));
  for (const WordTable& table : moves) {
    auto parsed = parseTable(table, true);
    if (!parsed.ok()) return parsed.status();
    auto batch = compileMoves(parsed.value());
    if (!batch.ok()) return batch.status();
    program->place(program->batches, std::move(batch.value()));
  }
  for (const WordRange& range : program->list.reductions) {
    auto reduction = compileReduce(steps.words + range.first, range.count);
    if (!reduction.ok()) return reduction.status();
    program->place(program->reductions, std::move(reduction.value()));
  }
  for (const WordRange& range : program->list.quantizations) {
    auto quantization = compileQuantize(steps.words + range.first, range.count);
    if (!quantization.ok()) return quantization.status();
    program->place(program->quantizations, std::move(quantization.value()));
  }
  for (const WordRange& range : program->list.changes) {
    auto changes = compileChanges(steps.words + range.first, range.count);
    if (!changes.ok()) return changes.status();
    program->place(program->changes, std::move(changes.value()));
  }
  for (const WordRange& range : program->list.products) {
    auto product = compileProduct(steps.words + range.first, range.count);
    if (!product.ok()) return product.status();
    program->products.push_back(product.value());
  }
  for (const WordRange& range : program->list.digests) {
    auto digest = compileDigest(steps.words + range.first, range.count);
    if (!digest.ok()) return digest.status();
    program->place(program->digests, std::move(digest.value()));
  }
  // Behind all tables, so that none is uploaded over it.
  for (const auto& placed : program->changes) {
    program->scratch.push_back(program->tableBytes_);
    program->tableBytes_ += placed.compiled.scratchBytes;
  }
  device->adopt(program);
  return program;
}

Status Program::upload(Waker& waker, const CancelToken& token) {
  if (tableBytes_ == 0 || block_.address != nullptr) return {};
  auto block = device->tables.take(tableBytes_);
  if (!block.ok()) return block.status();
  std::vector<const std::vector<uint64_t>*> tables;
  std::vector<uint64_t> offsets;
  const auto list = [&](const auto& placed) {
    if (placed.compiled.table.empty()) return;
    tables.push_back(&placed.compiled.table);
    offsets.push_back(placed.offset);
  };
  std::for_each(batches.begin(), batches.end(), list);
  std::for_each(reductions.begin(), reductions.end(), list);
  std::for_each(quantizations.begin(), quantizations.end(), list);
  std::for_each(changes.begin(), changes.end(), list);
  std::for_each(digests.begin(), digests.end(), list);
  Status status = uploadWords(*device, block.value().address, tables, offsets, waker, token);
  if (!status.ok()) {
    device->tables.put(block.value());
    return status;
  }
  block_ = block.value();
  // The host's copies have served.
  for (auto& batch : batches) batch.compiled.table = {};
  for (auto& reduction : reductions) reduction.compiled.table = {};
  for (auto& quantization : quantizations) quantization.compiled.table = {};
  for (auto& change : changes) change.compiled.table = {};
  for (auto& digest : digests) digest.compiled.table = {};
  return {};
}

void Program::giveBack() noexcept {
  if (block_.address != nullptr) device->tables.put(std::exchange(block_, TableBlock{}));
}

Status uploadWords(Device& device, void* block, const std::vector<const std::vector<uint64_t>*>& tables,
                   const std::vector<uint64_t>& offsets, Waker& waker, const CancelToken& token) {
  const GpuApi& api = device.api();
  uint64_t total = 0;
  for (size_t i = 0; i < tables.size(); i++) total = std::max(total, offsets[i] + 8 * tables[i]->size());
  const size_t piece = std::min<size_t>(total, uploadPiece);
  auto staging = device.tables.staging(piece);
  if (!staging.ok()) return staging.status();
  const StreamHandle stream = device.uploads.get();
  size_t first = 0;
  for (uint64_t at = 0; at < total; at += piece) {
    const uint64_t end = std::min<uint64_t>(total, at + piece);
    for (size_t i = first; i < tables.size() && offsets[i] < end; i++) {
      const uint64_t tableEnd = offsets[i] + 8 * tables[i]->size();
      if (tableEnd <= at) {
        first = i + 1;
        continue;
      }
      const uint64_t from = std::max(at, offsets[i]), to = std::min(end, tableEnd);
      const auto* bytes = reinterpret_cast<const char*>(tables[i]->data());
      std::memcpy(static_cast<char*>(staging.value()) + (from - at), bytes + (from - offsets[i]), to - from);
    }
    Status status = callRuntime(api, api.copy, static_cast<void*>(static_cast<char*>(block) + at),
                                static_cast<const void*>(staging.value()), static_cast<size_t>(end - at),
                                inferredDirection, stream);
    if (status.ok()) status = waitForStream(api, stream, waker, token);
    if (!status.ok()) return status;
  }
  return {};
}

Status waitForStream(const GpuApi& api, StreamHandle stream, Waker& waker, const CancelToken& token) {
  Backoff backoff(waker, token);
  int answer = api.queryStream(stream);
  for (; answer == code::notReady; answer = api.queryStream(stream)) backoff.pause();
  return answer == code::success ? Status{} : runtimeFailure(api, api.queryStream.name, answer);
}

Result<CompiledComparison> compileComparison(WordTable table) {
  auto moves = parseTable(table, false);
  if (!moves.ok()) return moves.status();
  if (moves.value().size() == 0) return CompiledComparison{{}, 1};
  const Move move = moves.value().at(0);
  if (moves.value().size() > 1 || move.kind != MoveKind::Copy)
    return failure(Code::InvalidArgument, "startCompare", "A comparison is a table of one copy.");
  auto batch = compileCompare(move);
  if (!batch.ok()) return batch.status();
  return CompiledComparison{std::move(batch.value()), move.destinationSize};
}

Result<Comparison> compareRegions(Device& device, const Batch& batch, size_t elementBytes, Waker& waker,
                                  const CancelToken& token) {
  const GpuApi& api = device.api();
  Difference difference = noDifference;
  if (batch.unitCount > 0) {
    DeviceScope scope(api, device.ordinal());
    if (Status status = scope.status(); !status.ok()) return status;
    const uint64_t tableBytes = (8 * batch.table.size() + tableAlignment - 1) / tableAlignment * tableAlignment;
    auto block = device.tables.take(tableBytes + sizeof difference);
    if (!block.ok()) return block.status();
    const auto compare = [&]() -> Status {
      const std::vector<uint64_t> initial = {difference.bytes, difference.first};
      Status status =
          uploadWords(device, block.value().address, {&batch.table, &initial}, {0, tableBytes}, waker, token);
      if (!status.ok()) return status;
      const auto address = reinterpret_cast<uint64_t>(block.value().address);
      const StreamHandle stream = device.uploads.get();
      status = device.kernels.compare(compareParameter(batch, address, address + tableBytes), stream);
      if (!status.ok()) return status;
      auto staging = device.tables.staging(sizeof difference);
      if (!staging.ok()) return staging.status();
      status = callRuntime(api, api.copy, staging.value(), reinterpret_cast<const void*>(address + tableBytes),
                           sizeof difference, inferredDirection, stream);
      const Status waited = waitForStream(api, stream, waker, token);
      if (status.ok()) status = waited;
      if (status.ok()) std::memcpy(&difference, staging.value(), sizeof difference);
      return status;
    };
    const Status status = compare();
    device.tables.put(block.value());
    if (!status.ok()) return status;
  }
  if (difference.bytes == 0) return Comparison{0, -1};
  return Comparison{difference.bytes, static_cast<int64_t>(difference.first / elementBytes)};
}

}  // namespace tensorferry::gpu
