// SPDX-License-Identifier: Apache-2.0
/*
 * Runs from their start to their end, and the flows that they are of.
 *
 * Invariants: a job is done once, when all of its runs have ended and nobody touches their memory; where one fails, all end.
 */
#include "endpoint.h"

namespace tensorferry::ucx {

void Endpoint::addFlow(const std::shared_ptr<Flow>& flow) {
  post([flow] {
    const auto& peer = flow->peer;
    (flow->isSending ? peer->sends : peer->receives).push_back(flow);
  });
}

void Endpoint::closeFlow(const std::shared_ptr<Flow>& flow) {
  const auto done = std::make_shared<std::promise<void>>();
  const auto closed = done->get_future();
  const bool isPosted = post([this, flow, done] {
    flow->isClosed = true;
    if (flow->run != nullptr) {
      fail(*flow->run->transfer, failure(Code::InvalidHandle, "close", "The program was closed, or its memory freed."));
    }
    std::erase(flow->isSending ? flow->peer->sends : flow->peer->receives, flow);
    closing_.push_back({flow, done});
  });
  if (isPosted) closed.wait();
}

void Endpoint::start(const std::shared_ptr<Transfer>& transfer, std::vector<std::shared_ptr<Flow>> flows) {
  const auto refuse = [transfer](Code code, const char* why) {
    transfer->fail(failure(code, "start", why));
    transfer->done();
  };
  const bool isPosted = post([this, transfer, flows = std::move(flows), refuse] {
    for (const auto& flow : flows) {
      if (flow->isClosed || flow->peer->isClosed)
        return refuse(Code::InvalidHandle, "The program was closed, or its peer has a new driver.");
      if (flow->run != nullptr) return refuse(Code::InvalidArgument, "The program is under way.");
    }
    for (const auto& flow : flows) {
      auto run = std::make_shared<Run>();
      run->transfer = transfer;
      run->flow = flow;
      transfer->runs.push_back(run);
      flow->run = run;
      if (flow->peer->running++ == 0) flow->peer->lastHeard = flow->peer->nextHello = Clock::now();
    }
    transfer->unsettled = flows.size();
    for (const auto& run : std::vector(transfer->runs))
      if (!run->hasEnded) begin(run);
  });
  if (!isPosted) refuse(Code::InvalidHandle, "The driver was closed.");
}

void Endpoint::begin(const std::shared_ptr<Run>& run) {
  Flow& flow = *run->flow;
  if (!flow.isSending) return announce(run);
  if (flow.ready > flow.used) push(run, flow.ready);
  else reach(flow.peer);
}

void Endpoint::touch(Run& run) noexcept {
  run.touching++;
  run.flow->touching++;
}

void Endpoint::release(const std::shared_ptr<Run>& run) {
  run->touching--;
  run->flow->touching--;
  if (run->touching > 0) return;
  if (run->hasEnded) return settle(run);
  // The sender gave it up, and what was on its way has come.
  if (!run->flow->isSending && run->number == 0) announce(run);
}

void Endpoint::endRun(const std::shared_ptr<Run>& run, const Status& status) {
  if (run->hasEnded) return;
  run->hasEnded = true;
  Flow& flow = *run->flow;
  Peer& peer = *flow.peer;
  peer.running--;
  flow.run.reset();
  if (flow.isSending) {
    if (status.ok()) std::erase(peer.pushing, run);
    else stopPushing(run);
  } else if (!status.ok() && peer.link == Link::open && run->number != 0) {
    say(flow.peer, FrameKind::withdrawn, &flow, run->number);
  }
  if (!status.ok()) run->transfer->fail(status);
  if (run->touching > 0 && peer.lingering++ == 0) peer.lingersUntil = Clock::now() + lingerTime();
  run->isLingering = run->touching > 0;
  settle(run);
}

void Endpoint::settle(const std::shared_ptr<Run>& run) {
  if (!run->hasEnded || run->touching > 0 || run->isSettled) return;
  run->isSettled = true;
  if (std::exchange(run->isLingering, false)) run->flow->peer->lingering--;
  const auto transfer = run->transfer;
  if (--transfer->unsettled > 0) return;
  transfer->runs.clear();
  transfer->done();
}

void Endpoint::fail(Transfer& transfer, const Status& status) {
  transfer.fail(status);
  for (const auto& run : std::vector(transfer.runs)) endRun(run, status);
}

void Endpoint::cancel(const std::shared_ptr<Transfer>& transfer) noexcept {
  post([this, transfer] { fail(*transfer, failure(Code::Cancelled, "start", "The transfer was cancelled.")); });
}

}  // namespace tensorferry::ucx
