// SPDX-License-Identifier: Apache-2.0
/*
 * Runs from their start to their end, and the flows that they are of.
 *
 * Invariants: a job is done once, when all of its runs have ended and nobody touches their memory; where one fails, all end.
 * `closeFlow` returns when the flow's memory is free.
 */
#include "endpoint.h"

namespace tensorferry::tcp {
namespace {

/** A run of so few bytes is written by whoever starts it: waking a thread would take longer. */
constexpr uint64_t fewBytes = 64 * 1024;

}  // namespace

Result<std::shared_ptr<Flow>> Endpoint::addFlow(const std::shared_ptr<Peer>& peer, uint32_t program, bool isSending,
                                                wire::ByteStream stream) {
  if (stream.byteLength() == 0) return failure(Code::InvalidArgument, "addFlow", "The flow has no bytes.");
  auto flow = std::make_shared<Flow>();
  flow->program = program;
  flow->isSending = isSending;
  flow->peer = peer;
  flow->stream = std::move(stream);
  Lock lock(mutex_);
  if (!isOpen_ || peer->isClosed) return failure(Code::InvalidHandle, "addFlow", "The endpoint was closed.");
  auto& flows = isSending ? peer->sends : peer->receives;
  if (!flows.emplace(program, flow).second)
    return failure(Code::AlreadyExists, "addFlow", "The program has such a flow.");
  return flow;
}

void Endpoint::closeFlow(const std::shared_ptr<Flow>& flow) {
  Lock lock(mutex_);
  flow->isClosed = true;
  if (flow->run != nullptr)
    fail(*flow->run->transfer, failure(Code::InvalidHandle, "close", "The program was closed, or its memory freed."));
  auto& flows = flow->isSending ? flow->peer->sends : flow->peer->receives;
  if (const auto found = flows.find(flow->program); found != flows.end() && found->second == flow) flows.erase(found);
  released_.wait(lock, [&] { return flow->touching == 0; });
}

Status Endpoint::refusalOf(const std::vector<std::shared_ptr<Flow>>& flows) const {
  for (const auto& flow : flows) {
    if (!isOpen_ || flow->isClosed || flow->peer->isClosed)
      return failure(Code::InvalidHandle, "start", "The program was closed, or its peer has a new driver.");
    if (flow->run != nullptr) return failure(Code::InvalidArgument, "start", "The program is under way.");
  }
  return {};
}

void Endpoint::start(const std::shared_ptr<Transfer>& transfer, const std::vector<std::shared_ptr<Flow>>& flows) {
  Lock lock(mutex_);
  if (const Status refusal = refusalOf(flows); !refusal.ok()) {
    transfer->fail(refusal);
    return transfer->done();
  }
  for (const auto& flow : flows) {
    auto run = std::make_shared<Run>();
    run->transfer = transfer;
    run->flow = flow;
    run->ledger = wire::ChunkLedger(flow->chunks());
    transfer->runs.push_back(run);
    flow->run = run;
    flow->peer->running++;
  }
  transfer->unsettled = flows.size();
  transfer->isShort =
      std::all_of(flows.begin(), flows.end(), [](const auto& flow) { return flow->stream.byteLength() <= fewBytes; });
  for (const auto& run : std::vector(transfer->runs))
    if (!run->hasEnded) begin(run, lock);
  wakeClock();
}

void Endpoint::begin(const std::shared_ptr<Run>& run, Lock& lock) {
  Flow& flow = *run->flow;
  const auto& peer = flow.peer;
  peer->lastProgress = Clock::now();
  peer->nextAnnouncement = peer->lastProgress + std::chrono::seconds(1);
  if (!flow.isSending) {
    run->number = ++flow.begun;
    if (!peer->incoming.empty()) announce(flow, LanePointer(peer->incoming.front()), lock);
    else dialIfNeeded(peer);
    return;
  }
  if (flow.ready > flow.used) push(run, flow.ready);
  dialIfNeeded(peer);
  if (run->number == 0 || peer->outgoing.empty()) return;
  if (flow.stream.byteLength() <= fewBytes) pump(LanePointer(peer->outgoing.front()), lock);
  if (!run->hasEnded && run->ledger.open() > 0) wakeSenders(*peer);
}

void Endpoint::touch(Run& run) noexcept {
  run.touching++;
  run.flow->touching++;
}

void Endpoint::release(const std::shared_ptr<Run>& run) {
  run->touching--;
  if (--run->flow->touching == 0) released_.notify_all();
  settle(run);
}

void Endpoint::endRun(const std::shared_ptr<Run>& run, const Status& status) {
  if (run->hasEnded) return;
  run->hasEnded = true;
  Flow& flow = *run->flow;
  flow.peer->running--;
  flow.run.reset();
  if (flow.isSending) {
    // The rest of a chunk that has begun would be read from memory that is not this run's any more. A chunk that was
    // confirmed has no rest, even if the thread that wrote it has not come back yet.
    for (const auto& lane : std::vector(flow.peer->outgoing)) {
      const auto& work = lane->work;
      if (!work.isActive || work.run != run) continue;
      if (work.frame.run != run->number || !run->ledger.isDone(work.chunk))
        breakLane(lane, "the transfer ended within a chunk");
    }
    stopPushing(*run);
  }
  if (!status.ok()) run->transfer->fail(status);
  settle(run);
}

void Endpoint::settle(const std::shared_ptr<Run>& run) {
  if (!run->hasEnded || run->touching > 0 || run->isSettled) return;
  run->isSettled = true;
  const auto& transfer = run->transfer;
  if (--transfer->unsettled > 0) return;
  transfer->runs.clear();
  transfer->done();
}

void Endpoint::fail(Transfer& transfer, const Status& status) {
  transfer.fail(status);
  for (const auto& run : std::vector(transfer.runs)) {
    if (run->hasEnded) continue;
    const auto flow = run->flow;
    const auto number = run->number;
    endRun(run, status);
    if (flow->isSending || flow->peer->incoming.empty()) continue;
    const auto& lane = flow->peer->incoming.front();
    const Frame frame{FrameKind::withdrawn, flow->program, number, 0, 0};
    lane->output.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    wake(lane);
  }
}

void Endpoint::cancel(const std::shared_ptr<Transfer>& transfer) noexcept {
  Lock lock(mutex_);
  fail(*transfer, failure(Code::Cancelled, "start", "The transfer was cancelled."));
}

}  // namespace tensorferry::tcp
