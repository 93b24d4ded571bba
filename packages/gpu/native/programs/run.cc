// SPDX-License-Identifier: Apache-2.0
/*
 * One run of a program: steps are issued in the order of the table, then everything is waited for.
 *
 * Invariants: nothing is left on the device when a run ends. The driver is never asked to queue so much that it would make
 * the worker wait inside a call: at most two gates of `gateSteps` are open per stream.
 */
#include <algorithm>
#include <array>
#include <deque>

#include "pins.h"
#include "program.h"

namespace tensorferry::gpu {
namespace {

/** Launches between two gates of a stream; drivers hold a thousand or so before they block. */
constexpr unsigned gateSteps = 256, gateLimit = 2;

/** A place in a stream that is looked for. */
struct Mark {
  size_t event;
  uint64_t bytes;
  bool isGate;
};

class Run {
 public:
  Run(Program& program, Waker& waker, const CancelToken& token, ProgressCounter& progress) noexcept
      : program_(program),
        device_(*program.device),
        api_(device_.api()),
        communicator_(program.communicator.get()),
        calls_(program.calls.get()),
        waker_(waker),
        token_(token),
        progress_(progress) {}

  Result<std::vector<double>> execute() {
    Status status = prepare();
    if (status.ok()) status = issue();
    // From here on the program must come to its end on the device, whatever happened.
    if (!status.ok()) giveUp();
    status = drain(std::move(status));
    if (status.ok() && calls_ != nullptr) status = calls_->finish();
    if (!status.ok()) return status;
    return times();
  }

 private:
  Status prepare() {
    if (Status status = interrupted(); !status.ok()) return status;
    if (communicator_ != nullptr)
      if (Status status = communicator_->usable(); !status.ok()) return status;
    if (Status status = program_.upload(waker_, token_); !status.ok()) return status;
    if (Status status = device_.events.reserve(program_.list.events); !status.ok()) return status;
    return device_.timedEvents.reserve(2 * program_.list.spans);
  }

  /** Why no further step may be issued, if so. */
  Status interrupted() const {
    if (token_.isCancelled()) return failure(Code::Cancelled, "program", "The run was cancelled.");
    if (communicator_ != nullptr && !communicator_->isOpen())
      return failure(Code::PeerGone, "program", "The communicator was closed during the run.");
    return {};
  }

  Status issue() {
    const auto& steps = program_.list.steps;
    for (size_t i = 0; i < steps.size(); i++) {
      Status status = isInGroup_ ? Status{} : interrupted();
      if (status.ok() && !isInGroup_) status = passGates(steps[i].stream);
      if (status.ok()) status = issueStep(steps[i]);
      if (!status.ok()) {
        if (status.item < 0) status.item = static_cast<int64_t>(i);
        return status;
      }
    }
    return {};
  }

  Status issueStep(const Step& step) {
    const StreamHandle stream = device_.streams[step.stream].get();
    isUsed_[step.stream] = true;
    unmarked_[step.stream]++;
    switch (step.kind) {
      case StepKind::Copy:
        return copy(step.address, step.source, step.amount, stream);
      case StepKind::HostCopy:
        return copyHost(step.address, step.source, step.amount, stream);
      case StepKind::Moves: {
        const auto& batch = program_.batches[step.number];
        if (batch.compiled.unitCount == 0) return {};
        return device_.kernels.move(moveParameter(batch.compiled, program_.addressOf(batch.offset)), stream);
      }
      case StepKind::Reduce: {
        const auto& reduction = program_.reductions[step.number];
        if (reduction.compiled.records == 0) return {};
        return device_.kernels.reduce(reduceParameter(reduction.compiled, program_.addressOf(reduction.offset)),
                                      reduction.compiled.usefulBlocks, stream);
      }
      case StepKind::Quantize: {
        const auto& quantization = program_.quantizations[step.number];
        if (quantization.compiled.records == 0) return {};
        const uint64_t table = program_.addressOf(quantization.offset);
        for (const FormLaunch& launch : quantization.compiled.launches) {
          Status status = device_.kernels.forms(launch, table, stream);
          if (!status.ok()) return status;
        }
        if (!quantization.compiled.launches.empty()) return {};
        return device_.kernels.quantize(quantizeParameter(quantization.compiled, table),
                                        quantization.compiled.usefulBlocks, stream);
      }
      case StepKind::Product: {
        const auto& product = program_.products[step.number];
        if (product.usefulBlocks == 0) return {};
        return device_.kernels.products(product.parameter, product.usefulBlocks, stream);
      }
      case StepKind::Ring:
        return device_.kernels.ring(program_.list.rings[step.number], stream);
      case StepKind::Changes:
        return issueChanges(step, stream);
      case StepKind::Digest:
        return issueDigest(step, stream);
      case StepKind::Record:
        return callRuntime(api_, api_.recordEvent, device_.events.at(step.number), stream);
      case StepKind::Wait:
        return callRuntime(api_, api_.waitEvent, stream, device_.events.at(step.number), 0u);
      case StepKind::BeginGroup:
        return beginGroup();
      case StepKind::Send:
      case StepKind::Receive:
        return message(step, stream);
      case StepKind::EndGroup:
        return endGroup();
      case StepKind::Span:
        return callRuntime(api_, api_.recordEvent, device_.timedEvents.at(2 * step.number + (step.isEnd ? 1 : 0)),
                           stream);
      case StepKind::Progress:
        return mark(step.stream, step.amount, false);
      case StepKind::Spin:
        return device_.kernels.spin(step.amount, stream);
      case StepKind::Call: {
        const WordRange& range = program_.list.calls[step.number];
        return calls_->enqueue(program_.list.callWords.data() + range.first, range.count, stream);
      }
    }
    return {};
  }

  Status copy(uint64_t destination, uint64_t source, uint64_t bytes, StreamHandle stream) {
    return callRuntime(api_, api_.copy, reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source),
                       static_cast<size_t>(bytes), inferredDirection, stream);
  }

  /** To or from memory of the host that this program has not pinned, and whose pages others may pin and let go of. */
  Status copyHost(uint64_t destination, uint64_t source, uint64_t bytes, StreamHandle stream) {
    return PinBook::of(api_).copyParts(destination, source, bytes, held_, [&](uint64_t at, uint64_t part) {
      return copy(destination + at, source + at, part, stream);
    });
  }

  /** All launches, and the result to the host. */
  Status issueChanges(const Step& step, StreamHandle stream) {
    const auto& [work, offset] = program_.changes[step.number];
    const uint64_t table = program_.addressOf(offset), scratch = program_.addressOf(program_.scratch[step.number]);
    for (const ChangeLaunch& launch : work.launches) {
      Status status =
          device_.kernels.changes(changeParameter(work, launch, table, scratch), launch.usefulBlocks, stream);
      if (!status.ok()) return status;
    }
    if (step.address == 0) return {};
    return copyHost(step.address, changeResult(work, table), sizeof(uint64_t), stream);
  }

  Status issueDigest(const Step& step, StreamHandle stream) {
    const auto& [work, offset] = program_.digests[step.number];
    const uint64_t table = program_.addressOf(offset);
    if (work.results == 0) return {};
    for (const DigestStep one : {DigestStep::Clear, DigestStep::Sum}) {
      const DigestParameter parameter = digestParameter(work, one, table);
      if (parameter.count == 0) continue;
      if (Status status = device_.kernels.digest(parameter, stream); !status.ok()) return status;
    }
    return copyHost(step.address, table + 8ull * work.resultsAt, 8ull * work.results, stream);
  }

  Status beginGroup() {
    const int answer = api_.beginGroup();
    if (answer != collectives::success) return groupFailure(api_.beginGroup.name, answer);
    isInGroup_ = true;
    return {};
  }

  Status message(const Step& step, StreamHandle stream) {
    const auto bytes = static_cast<size_t>(step.amount);
    const int peer = static_cast<int>(step.number);
    const bool isSend = step.kind == StepKind::Send;
    auto* address = reinterpret_cast<void*>(step.address);
    const int answer = isSend ? api_.send(address, bytes, collectives::int8, peer, communicator_->handle(), stream)
                              : api_.receive(address, bytes, collectives::int8, peer, communicator_->handle(), stream);
    if (answer == collectives::success || answer == collectives::inProgress) return {};
    const Status status = groupFailure(isSend ? api_.send.name : api_.receive.name, answer);
    isInGroup_ = false;
    api_.endGroup();  // groups belong to the thread: one left open would swallow what comes next
    return status;
  }

  Status endGroup() {
    isInGroup_ = false;
    const auto stop = [this] { return !interrupted().ok(); };
    Status status = communicator_->settle(api_.endGroup.name, api_.endGroup(), stop);
    const Status reason = interrupted();
    return status.code == Code::Cancelled && !reason.ok() ? reason : status;
  }

  Status groupFailure(const char* function, int answer) const {
    return collectivesFailure(api_, function, answer, communicator_->handle());
  }

  /** Looks for this place in the stream later. */
  Status mark(size_t stream, uint64_t bytes, bool isGate) {
    if (freeMarks_.empty()) {
      const size_t next = usedMarks_++;
      if (Status status = device_.marks.reserve(usedMarks_); !status.ok()) return status;
      freeMarks_.push_back(next);
    }
    const size_t event = freeMarks_.back();
    Status status = callRuntime(api_, api_.recordEvent, device_.marks.at(event), device_.streams[stream].get());
    if (!status.ok()) return status;
    freeMarks_.pop_back();
    marks_[stream].push_back({event, bytes, isGate});
    return {};
  }

  /** Takes the marks that a stream has passed. */
  void collect(size_t stream) {
    auto& marks = marks_[stream];
    while (!marks.empty() && api_.queryEvent(device_.marks.at(marks.front().event)) == code::success) {
      progress_.add(marks.front().bytes);
      if (marks.front().isGate) gates_[stream]--;
      freeMarks_.push_back(marks.front().event);
      marks.pop_front();
    }
  }

  /** Waits until a stream has room for more. */
  Status passGates(size_t stream) {
    if (unmarked_[stream] < gateSteps) return {};
    if (Status status = mark(stream, 0, true); !status.ok()) return status;
    gates_[stream]++;
    unmarked_[stream] = 0;
    Backoff backoff(waker_, token_);
    for (;;) {
      collect(stream);
      if (gates_[stream] < gateLimit) return {};
      if (Status status = look(); !status.ok()) return status;
      const int answer = api_.queryStream(device_.streams[stream].get());
      if (answer != code::success && answer != code::notReady)
        return runtimeFailure(api_, api_.queryStream.name, answer);
      backoff.pause();
    }
  }

  /** Whether something happened that ends the run early. */
  Status look() const {
    Status status = interrupted();
    if (status.ok() && communicator_ != nullptr) status = communicator_->asyncError();
    if (status.ok() && calls_ != nullptr) status = calls_->look();
    return status;
  }

  /** Without this the other ranks, and so this device, would wait for ever. */
  void giveUp() noexcept {
    if (communicator_ != nullptr) communicator_->abort();
    if (calls_ != nullptr) calls_->giveUp();
    hasGivenUp_ = true;
  }

  /** Waits for all streams; the first failure counts. */
  Status drain(Status status) {
    Backoff backoff(waker_, token_);
    for (;;) {
      bool isBusy = false;
      for (size_t stream = 0; stream < streamCount; stream++) {
        if (!isUsed_[stream]) continue;
        const int answer = api_.queryStream(device_.streams[stream].get());
        collect(stream);
        if (answer == code::notReady) {
          isBusy = true;
          continue;
        }
        isUsed_[stream] = false;
        if (answer != code::success && status.ok()) status = runtimeFailure(api_, api_.queryStream.name, answer);
      }
      if (!hasGivenUp_ && (isBusy || !status.ok())) {
        if (status.ok()) status = look();
        if (!status.ok()) giveUp();
      }
      if (!isBusy) return status;
      // What it let go of may have been caught again by what others still send.
      if (hasGivenUp_ && calls_ != nullptr) calls_->giveUp();
      backoff.pause();
    }
  }

  Result<std::vector<double>> times() const {
    std::vector<double> microseconds(program_.list.spans, 0);
    for (const Step& step : program_.list.steps) {
      if (step.kind != StepKind::Span || !step.isEnd) continue;
      float milliseconds = 0;
      Status status = callRuntime(api_, api_.elapsed, &milliseconds, device_.timedEvents.at(2 * step.number),
                                  device_.timedEvents.at(2 * step.number + 1));
      if (!status.ok()) return status;
      microseconds[step.number] = 1000.0 * milliseconds;
    }
    return microseconds;
  }

  Program& program_;
  Device& device_;
  const GpuApi& api_;
  Communicator* const communicator_;
  StreamCalls* const calls_;
  Waker& waker_;
  const CancelToken& token_;
  ProgressCounter& progress_;
  /** Pins of others that copies need until they have ended. */
  std::vector<PinnedRange> held_;
  bool isInGroup_ = false, hasGivenUp_ = false;
  std::array<bool, streamCount> isUsed_{};
  std::array<unsigned, streamCount> unmarked_{}, gates_{};
  std::array<std::deque<Mark>, streamCount> marks_;
  std::vector<size_t> freeMarks_;
  size_t usedMarks_ = 0;
};

}  // namespace

Result<std::vector<double>> runProgram(Program& program, Waker& waker, const CancelToken& token,
                                       ProgressCounter& progress) {
  DeviceScope scope(program.device->api(), program.device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  std::unique_lock<std::mutex> lock;
  if (program.communicator != nullptr) lock = program.communicator->use();
  return Run(program, waker, token, progress).execute();
}

}  // namespace tensorferry::gpu
