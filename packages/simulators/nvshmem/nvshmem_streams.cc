// SPDX-License-Identifier: Apache-2.0
/*
 * NVSHMEM's work on streams: puts, signals, waits for signals, and quiet.
 *
 * A put is done for its stream when its bytes were read. They arrive later, by a hidden stream of their own: puts and
 * signals overtake each other, however they were ordered where they were sent; only the signal of a put comes after its
 * bytes. Quiet waits for all that is under way.
 */
#include <algorithm>
#include <cstring>

#include "pes.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr int setSignal = 9, addSignal = 10;

std::atomic<uint64_t>& word(uintptr_t address) { return *reinterpret_cast<std::atomic<uint64_t>*>(address); }

/** What arrives at a PE. */
struct Delivery {
  uintptr_t target = 0;
  std::vector<char> bytes;
  /** Zero: none. */
  uintptr_t signal = 0;
  uint64_t value = 0;
  int operation = setSignal;
};

class Arrival final : public Operation {
 public:
  Arrival(World& world, Delivery delivery) : delivery_(std::move(delivery)) {
    uses.push_back({delivery_.target, delivery_.bytes.size()});
    if (delivery_.signal != 0) uses.push_back({delivery_.signal, 8});
    const size_t count = 1 + world.random.below(4);
    for (size_t at = 0; at < count; at++) {
      const size_t begin = delivery_.bytes.size() * at / count, end = delivery_.bytes.size() * (at + 1) / count;
      if (end > begin) pieces_.push_back({begin, end - begin});
    }
    for (size_t at = pieces_.size(); at > 1; at--) std::swap(pieces_[at - 1], pieces_[world.random.below(at)]);
    // Some are late: they let others pass before they begin.
    delay_ = world.random.chance(40) ? world.random.below(12) : 0;
  }
  const char* kind() const override { return "the arrival of a put"; }
  Progress advance(World& world, Lock&) override {
    if (delay_ > 0) {
      delay_--;
      return Progress::Advanced;
    }
    if (!pieces_.empty()) {
      const Span piece = pieces_.back();
      pieces_.pop_back();
      if (locate(world, delivery_.target, delivery_.bytes.size(), kind()).error != 0) return Progress::Finished;
      std::memcpy(reinterpret_cast<char*>(delivery_.target) + piece.start, delivery_.bytes.data() + piece.start,
                  piece.bytes);
      if (!pieces_.empty() || delivery_.signal != 0) return Progress::Advanced;
    }
    if (delivery_.signal != 0 && locate(world, delivery_.signal, 8, kind()).error == 0) {
      if (delivery_.operation == addSignal)
        word(delivery_.signal).fetch_add(delivery_.value, std::memory_order_acq_rel);
      else word(delivery_.signal).store(delivery_.value, std::memory_order_release);
    }
    return Progress::Finished;
  }

 private:
  Delivery delivery_;
  std::vector<Span> pieces_;
  uint64_t delay_ = 0;
};

/** Sends a delivery on its way. */
void post(World& world, Pe& pe, Delivery delivery) {
  auto& underWay = pe.underWay;
  underWay.erase(std::remove_if(underWay.begin(), underWay.end(), [](const Dependency& one) { return one.met(); }),
                 underWay.end());
  const StreamRef hidden = makeStream(world, pe.device, false, false);
  hidden->destroyed = true;  // it goes when its work is done
  const uint64_t number = submit(world, hidden, std::make_unique<Arrival>(world, std::move(delivery)));
  underWay.push_back({hidden, number});
}

class Put final : public Operation {
 public:
  Put(PeRef pe, uintptr_t source, size_t bytes, Delivery delivery)
      : pe_(std::move(pe)), source_(source), bytes_(bytes), delivery_(std::move(delivery)) {
    uses.push_back({source, bytes});
  }
  const char* kind() const override { return "a put"; }
  Progress advance(World& world, Lock&) override {
    if (bytes_ > 0) {
      if (locate(world, source_, bytes_, kind()).error != 0) return Progress::Finished;
      const auto* source = reinterpret_cast<const char*>(source_);
      delivery_.bytes.assign(source, source + bytes_);
      world.report.bytes["nvshmemPut"] += bytes_;
    }
    post(world, *pe_, std::move(delivery_));
    return Progress::Finished;
  }

 private:
  PeRef pe_;
  uintptr_t source_;
  size_t bytes_;
  Delivery delivery_;
};

/** Streams whose work may be what is waited for: nobody can tell, so all. */
void needAll(World& world, std::vector<StreamRef>& needs) {
  for (const auto& entry : world.streams.active)
    if (!entry.second->queue.empty()) needs.push_back(entry.second);
}

class SignalWait final : public Operation {
 public:
  SignalWait(uintptr_t address, int comparison, uint64_t value)
      : address_(address), comparison_(comparison), value_(value) {
    uses.push_back({address, 8});
  }
  const char* kind() const override { return "a wait for a signal"; }
  bool blocked(World& world, std::vector<StreamRef>& needs) override {
    if (locate(world, address_, 8, kind()).error != 0 || holds()) return false;
    needAll(world, needs);
    return true;
  }
  Progress advance(World&, Lock&) override { return Progress::Finished; }

 private:
  bool holds() const {
    const uint64_t now = word(address_).load(std::memory_order_acquire);
    switch (comparison_) {
      case 0:
        return now == value_;
      case 1:
        return now != value_;
      case 2:
        return now > value_;
      case 3:
        return now <= value_;
      case 4:
        return now < value_;
      default:
        return now >= value_;
    }
  }
  uintptr_t address_;
  int comparison_;
  uint64_t value_;
};

class Quiet final : public Operation {
 public:
  explicit Quiet(PeRef pe) : pe_(std::move(pe)) {}
  const char* kind() const override { return "quiet"; }
  bool blocked(World&, std::vector<StreamRef>& needs) override {
    bool isBlocked = false;
    for (const Dependency& one : pe_->underWay) {
      if (one.met()) continue;
      needs.push_back(one.stream);
      isBlocked = true;
    }
    return isBlocked;
  }
  Progress advance(World&, Lock&) override { return Progress::Finished; }

 private:
  PeRef pe_;
};

/** A call that queues work of a PE. The stream's device says which PE. */
template <typename Make>
void streamCall(const char* function, void* handle, Make make) noexcept {
  guarded(function, 1, [&](Call& call) -> int {
    World& world = call.world;
    const StreamRef stream = findStream(world, handle, function);
    if (stream == nullptr) return 1;
    if (stream->device != call.thread.device)
      world.violation("wrong-device", std::string(function) + " with a stream of device " +
                                          std::to_string(stream->device) + " while " +
                                          std::to_string(call.thread.device) + " is current.");
    const PeRef pe = findPe(world, stream->device, function);
    if (pe == nullptr) return 1;
    std::unique_ptr<Operation> operation = make(world, pe);
    if (operation != nullptr) submit(call, stream, std::move(operation));
    return 0;
  });
}

/** Where an address of this PE lies at another; zero with a violation where it is not symmetric. */
uintptr_t remote(World& world, const Pe& pe, const void* address, size_t bytes, int other, const char* function) {
  size_t offset = 0;
  if (other < 0 || static_cast<uint32_t>(other) >= pe.size) {
    world.violation("nvshmem-bad-pe", std::string(function) + " to PE " + std::to_string(other) + ".");
    return 0;
  }
  if (!pe.offsetOf(world, reinterpret_cast<uintptr_t>(address), bytes, function, offset) || pe.heaps[other] == 0)
    return 0;
  return pe.heaps[other] + offset;
}

}  // namespace

TENSORFERRY_SIM_API void nvshmemx_putmem_signal_on_stream(void* target, const void* source, size_t bytes,
                                                          uint64_t* signal, uint64_t value, int operation, int other,
                                                          void* stream) {
  const char* function = "nvshmemx_putmem_signal_on_stream";
  streamCall(function, stream, [&](World& world, const PeRef& pe) -> std::unique_ptr<Operation> {
    Delivery delivery;
    delivery.target = bytes == 0 ? 0 : remote(world, *pe, target, bytes, other, function);
    delivery.signal = remote(world, *pe, signal, 8, other, function);
    delivery.value = value;
    delivery.operation = operation;
    if (delivery.signal == 0 || (bytes > 0 && delivery.target == 0)) return nullptr;
    return std::make_unique<Put>(pe, reinterpret_cast<uintptr_t>(source), bytes, std::move(delivery));
  });
}

TENSORFERRY_SIM_API void nvshmemx_signal_op_on_stream(uint64_t* signal, uint64_t value, int operation, int other,
                                                      void* stream) {
  const char* function = "nvshmemx_signal_op_on_stream";
  streamCall(function, stream, [&](World& world, const PeRef& pe) -> std::unique_ptr<Operation> {
    Delivery delivery;
    delivery.signal = remote(world, *pe, signal, 8, other, function);
    delivery.value = value;
    delivery.operation = operation;
    if (delivery.signal == 0) return nullptr;
    return std::make_unique<Put>(pe, 0, 0, std::move(delivery));
  });
}

TENSORFERRY_SIM_API void nvshmemx_signal_wait_until_on_stream(uint64_t* signal, int comparison, uint64_t value,
                                                              void* stream) {
  const char* function = "nvshmemx_signal_wait_until_on_stream";
  streamCall(function, stream, [&](World& world, const PeRef& pe) -> std::unique_ptr<Operation> {
    size_t offset = 0;
    const auto address = reinterpret_cast<uintptr_t>(signal);
    if (!pe->offsetOf(world, address, 8, function, offset)) return nullptr;
    return std::make_unique<SignalWait>(address, comparison, value);
  });
}

TENSORFERRY_SIM_API void nvshmemx_quiet_on_stream(void* stream) {
  streamCall("nvshmemx_quiet_on_stream", stream,
             [](World&, const PeRef& pe) -> std::unique_ptr<Operation> { return std::make_unique<Quiet>(pe); });
}

}  // namespace tensorferry::gpu::simulator
