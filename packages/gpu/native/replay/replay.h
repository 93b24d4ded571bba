// SPDX-License-Identifier: Apache-2.0
/*
 * Copies of replay batches from host slots to device slots, on streams of their own, with events behind them.
 *
 * Made, started and asked on the JS thread, none of which ever waits for the device; waits and copies of pageable memory run
 * on threads of this object. Given back as resource.h says, after everything that was started has ended.
 * Invariants: memory is not unregistered under a copy, whoever pinned it. A slot is on one stream for ever, and the event it
 * is asked by stands there behind its latest copy, so that whoever waits for it waits for that copy. A start that failed may
 * have queued a part; `fence` and giving back wait for that too.
 */
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <vector>

#include <tensorferry_gpu/resource.h>
#include "device.h"
#include "pins.h"
#include "waiting.h"

namespace tensorferry::gpu {

class Pin;

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

/** Slots of a replay object, and streams that they take turns on. */
constexpr uint64_t slotLimit = 65'536, streamLimit = 16;

/** How copies are queued. All ways keep the contract; they differ in what the link and the submitter pay for it. */
struct ReplayWay {
  /** Slots take turns among so many streams: while one tells that its copy has ended, the link carries the next one's. */
  size_t streams = 1;
  /** Where more copies than this are under way on a stream, so many share an event. */
  size_t copiesPerEvent = 1;
  /** Events tell time. */
  bool isTimed = true;
};

struct ReplayLane;

/**
 * The events around a slot's latest copy. The one behind it is another one than last time, so that the copy after this one
 * may take it for its own beginning. Changed by whoever starts copies, read by all threads.
 */
struct ReplaySlot {
  /** A slot's event, as long as it stands where it stood then. */
  struct Recorded {
    ReplaySlot* slot = nullptr;
    uint32_t recordings = 0;
    EventHandle event() const noexcept;
    bool operator==(const Recorded&) const = default;
  };

  Event begin, ready[2];
  ReplayLane* lane = nullptr;
  std::atomic<uint32_t> recordings{0};
  /** The latest copy's number on its stream; 0 before the first. */
  std::atomic<uint64_t> place{0};
  /** The event behind it, and how many copies of the stream stand before that; null: none yet. */
  std::atomic<EventHandle> mark{nullptr};
  std::atomic<uint64_t> marked{0};
  /** Which part of the time until that event is this copy's. */
  double share = 1;
  size_t bytes = 0;
  /** What the copy may have begun behind: on its own stream (none: its own event), and among all. */
  Recorded before, beforeOnLink;
  /** Whose copy began behind each event, and how long it took where that event stands elsewhere by now. */
  std::atomic<ReplaySlot*> follower[2]{nullptr, nullptr};
  std::atomic<double> kept{-1};

  /** Seconds of its latest copy; negative where they are not known. */
  double seconds(const GpuApi& api) const noexcept;
  EventHandle readyOf(uint32_t count) const noexcept { return ready[(count + 1) % 2].get(); }
};

/** A stream of copies. What has ended once is known without asking the device again. */
struct ReplayLane {
  Stream stream;
  std::atomic<uint64_t> queued{0}, ended{0};
  /** Before this time it cannot have done what was queued, whatever the link. Nanoseconds of the steady clock. */
  std::atomic<int64_t> busyUntil{0};
  std::atomic<ReplaySlot*> latest{nullptr};
  /** Slots whose copies have no event behind them yet. JS thread. */
  std::vector<ReplaySlot*> unmarked;

  void noteEnded(uint64_t count) noexcept {
    uint64_t known = ended.load(std::memory_order_relaxed);
    while (known < count && !ended.compare_exchange_weak(known, count, std::memory_order_acq_rel)) {
    }
  }
};

class Replay final : public Resource, public PinUser {
 public:
  static constexpr napi_type_tag typeTag{0x52c7d0e94a1b4d0a, 0x8f13b60e7c2d49a1};
  static constexpr const char* kind = "replay object";

  /** Makes streams and the events of this many slots. */
  static Result<std::shared_ptr<Replay>> create(const std::shared_ptr<Device>& device, size_t slotCount,
                                                const ReplayWay& way, Jobs& jobs);

  Replay(std::shared_ptr<Device> owner, const ReplayWay& chosen, Jobs& jobs)
      : Resource(std::move(owner)),
        way(chosen),
        pins(PinBook::of(device->api())),
        submissions(jobs.makePool(1)),
        waits(jobs.makePool(1)) {}

  int rank() const noexcept override { return 0; }
  const GpuApi& api() const noexcept { return device->api(); }

  /** Whether all copies started so far have ended; the vendor's answer, or `isClosed`. */
  int query() const noexcept;

  /** Waits for the copies started so far, those on threads too, but not for ever. */
  void settle() noexcept override;

  /** Events behind everything queued now: of the copies, or of what is queued for consumers. */
  Result<std::vector<Event>> fence(bool isOfCopies) const;

  /** A thread begins, or has done, to copy pageable memory. */
  void beginOnThread() noexcept { onThreads_.fetch_add(1, std::memory_order_acq_rel); }
  void endOnThread() noexcept { onThreads_.fetch_sub(1, std::memory_order_acq_rel); }

  const ReplayWay way;
  PinBook& pins;
  std::deque<ReplayLane> lanes;
  /** What a consumer has us wait or spin for runs here. */
  Stream own;
  std::deque<ReplaySlot> slots;
  /** The slot whose event was recorded last, on whichever stream. */
  std::atomic<ReplaySlot*> latest{nullptr};
  /** Threads for copies of pageable memory and fences behind them, and for waits. */
  const std::shared_ptr<JobPool> submissions, waits;

 protected:
  void giveBack() noexcept override;

 private:
  std::atomic<int> onThreads_{0};
  /** Held while the streams are waited for or given back. */
  std::mutex mutex_;
};

/** What one waits for: an event, and what is known once it is reached. */
struct ReplayMark {
  EventHandle event = nullptr;
  uint64_t marked = 0;
};

/** One copy with everything found out beforehand. */
class ReplayCopy {
 public:
  static constexpr napi_type_tag typeTag{0x1f6e9a3b70d54d0b, 0x9c52e8d1460f4bb7};
  static constexpr const char* kind = "replay copy";

  ReplayCopy(std::shared_ptr<Replay> owner, size_t slot, uint64_t destination, uint64_t source, size_t bytes) noexcept
      : replay(std::move(owner)),
        slot_(replay->slots[slot]),
        destination_(destination),
        source_(source),
        bytes_(bytes) {}

  bool isOpen() const noexcept { return replay->isOpen(); }

  /** Queues the copy and answers the vendor's number, `isClosed` or `needsThread`. JS thread. */
  int start();

  /** Queues the copy, which may wait until pageable memory has been read. A thread of `submissions`. */
  int startPageable();

  /** Whether the slot's copy has ended: the vendor's answer, or `isClosed`. JS thread. */
  int query() noexcept;

  /** The event behind the slot's copy, recorded now where there is none; none where the copy is known to have ended. */
  Result<ReplayMark> mark();

  /** The event that was recorded behind the slot's copy. */
  ReplayMark marked() const noexcept {
    return {slot_.mark.load(std::memory_order_acquire), slot_.marked.load(std::memory_order_relaxed)};
  }

  /** See `waitForEvent`, for the slot's event. A thread of `submissions` or `waits`. */
  Status wait(const ReplayMark& mark, Waker& waker, const CancelToken& token, bool isPatient) const;

  /** Seconds of the slot's last copy on the device; negative where there are none. */
  double seconds() const noexcept;

  /** Makes later work of a stream wait for the slot's copy. JS thread. */
  Status holdStream(StreamHandle stream);

  const std::shared_ptr<Replay> replay;

 private:
  void look();
  int queue(bool isOnJsThread) noexcept;
  int begin(ReplayLane& lane) noexcept;
  int recordMark(bool isForAll) noexcept;
  bool hasEnded() const noexcept { return slot_.place.load() <= slot_.lane->ended.load(std::memory_order_acquire); }

  ReplaySlot& slot_;
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

}  // namespace tensorferry::gpu
