/*
 * Copies of replay batches from host slots to device slots, on a stream of their own, with an event per slot.
 *
 * Made, started and asked on the JS thread, none of which ever waits for the device; waits and copies of pageable memory run
 * on threads of this object. Given back as resource.h says, after everything that was started has ended.
 * Invariants: memory is not unregistered under a copy, whoever pinned it. A slot's event is recorded behind its latest copy, so that whoever waits for it waits for that copy. A start
 * that failed may have queued a part; `fence` and giving back wait for that too.
 */
#pragma once

#include <atomic>
#include <deque>
#include <optional>

#include "device.h"
#include "pins.h"
#include "resource.h"
#include "waiting.h"

namespace tensorferry::gpu {

/** What a start or a question answers besides the vendor's own numbers, which are not negative. */
namespace replay {
inline constexpr int isClosed = -1;
/** The memory is pageable and so long that the driver would keep the caller waiting: start it as a job. */
inline constexpr int needsThread = -2;
}  // namespace replay

/** Makes a device current for calls that are made often: nothing is done where it is so already. */
class CurrentDevice {
 public:
  CurrentDevice(const GpuApi& api, int ordinal) noexcept {
    int current = -1;
    if (api.getDevice(&current) != code::success || current != ordinal) scope_.emplace(api, ordinal);
  }

 private:
  std::optional<DeviceScope> scope_;
};

class Replay final : public Resource, public PinUser {
 public:
  static constexpr napi_type_tag typeTag{0x52c7d0e94a1b4d0a, 0x8f13b60e7c2d49a1};

  /**
   * The events around a slot's latest copy; all tell time. The one behind it is another one than last time, so that the
   * copy after this one may take it for its own beginning. Changed by whoever starts copies, read by all threads.
   */
  struct Slot {
    Event begin, ready[2];
    std::atomic<uint32_t> recordings{0};
    /** The slot whose copy was still under way when this one's was queued behind it, and its recordings then. */
    const Slot* before = nullptr;
    uint32_t beforeRecordings = 0;

    /** The event behind the latest of so many copies. */
    EventHandle readyOf(uint32_t count) const noexcept { return ready[(count + 1) % 2].get(); }
    EventHandle latest() const noexcept { return readyOf(recordings.load(std::memory_order_acquire)); }
  };

  /** Makes streams and the events of this many slots. */
  static Result<std::shared_ptr<Replay>> create(const std::shared_ptr<Device>& device, size_t slotCount, Jobs& jobs);

  Replay(std::shared_ptr<Device> owner, Jobs& jobs)
      : Resource(std::move(owner)), submissions(jobs.makePool(1)), waits(jobs.makePool(1)) {}

  int rank() const noexcept override { return 0; }
  const GpuApi& api() const noexcept { return device->api(); }

  /** Whether all copies started so far have ended; the vendor's answer, or `isClosed`. */
  int query() const noexcept;

  /** Waits for the copies started so far, those on threads too, but not for ever. */
  void settle() noexcept override;

  /** A thread begins, or has done, to copy pageable memory. */
  void beginOnThread() noexcept { onThreads_.fetch_add(1, std::memory_order_acq_rel); }
  void endOnThread() noexcept { onThreads_.fetch_sub(1, std::memory_order_acq_rel); }

  /** Copies run on the first; what a consumer has us wait or spin for runs on the second. */
  Stream copies, own;
  std::deque<Slot> slots;
  /** Into which the latest copy was queued. */
  std::atomic<const Slot*> latest{nullptr};
  /** Threads for copies of pageable memory and fences behind them, and for waits. */
  const std::shared_ptr<JobPool> submissions, waits;

 protected:
  void giveBack() noexcept override;

 private:
  std::atomic<int> onThreads_{0};
  /** Held while the streams are waited for or given back. */
  std::mutex mutex_;
};

/** One copy with everything found out beforehand. */
class ReplayCopy {
 public:
  static constexpr napi_type_tag typeTag{0x1f6e9a3b70d54d0b, 0x9c52e8d1460f4bb7};

  ReplayCopy(std::shared_ptr<Replay> owner, size_t slot, uint64_t destination, uint64_t source, size_t bytes) noexcept
      : replay(std::move(owner)), slot_(replay->slots[slot]), destination_(destination), source_(source), bytes_(bytes) {}

  /** Queues the copy and answers the vendor's number, `isClosed` or `needsThread`. JS thread. */
  int start();

  /** Queues the copy, which may wait until pageable memory has been read. A thread of `submissions`. */
  int startPageable();

  /** The vendor's answer about the slot's event, or `isClosed`. */
  int query() const noexcept;

  /** See `waitForEvent`, for the slot's event. A thread of `submissions` or `waits`. */
  Status wait(Waker& waker, const CancelToken& token, bool isPatient) const;

  /** Seconds of the slot's last copy on the device; negative where there are none. */
  double seconds() const noexcept;

  /** Makes later work of a stream wait for the slot's copy. */
  Status holdStream(StreamHandle stream) const;

  const std::shared_ptr<Replay> replay;

 private:
  void look();
  int queue() noexcept;

  Replay::Slot& slot_;
  const uint64_t destination_, source_;
  const size_t bytes_;
  HostRuns runs_;
  uint64_t seenVersion_ = 0;
  bool isKnownToDriver_ = false;
};

/**
 * Waits until an event is reached. A cancelled token ends it at once where `isPatient` is false. Where it is true the memory
 * that the event guards is in use until then, and only a device that does not answer any more is given up.
 */
Status waitForEvent(const GpuApi& api, EventHandle event, Waker& waker, const CancelToken& token, bool isPatient);

/** The failure behind a number that a start or a question answered. */
Status replayFailure(const GpuApi& api, int answer);

/** Pins a host slot; fails where somebody else has registered only a part of it. On a thread of `calls`. */
Result<std::shared_ptr<Pin>> pinHostSlot(const std::shared_ptr<Device>& device, uint64_t address, uint64_t bytes);

/** Dense slots, one behind the other on either side. */
struct RawSlots {
  uint64_t destination, source;
  size_t bytes, slots;
  /** An event behind each copy, the least that tells when a slot is ready. */
  bool hasEvents;
};

/** Seconds that the vendor's copy function alone takes for so many copies, slot by slot. A thread of `submissions`. */
Result<double> timeRawCopies(Replay& replay, const RawSlots& raw, size_t count, const CancelToken& token);

}  // namespace tensorferry::gpu
