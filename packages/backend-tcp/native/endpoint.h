// SPDX-License-Identifier: Apache-2.0
/*
 * One rank on the network: its listeners, its threads, its peers and everything under way with them.
 *
 * Functions for JavaScript lock the mutex themselves; they may be called by any thread. All others say what they need. A
 * thread never waits while it holds the mutex, and never makes a system call that could block.
 * Invariants: nothing of a stranger is read but a hello; a chunk is confirmed when its bytes are in place; a job is done
 * exactly once. After `close` there is no thread, no socket and no unfinished job.
 */
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "lane.h"
#include "poller.h"

namespace tensorferry::tcp {

struct Settings {
  uint32_t rank = 0;
  wire::EndpointId id{};
  /** What whoever dials this endpoint must prove to hold. */
  wire::Bytes32 key{};
  size_t threads = 1;
  /** Most lanes to one peer. */
  size_t lanes = 1;
  /** How long a wait lasts without progress. */
  std::chrono::milliseconds deadline{60'000};
};

class Endpoint final : public ThreadOwner, public std::enable_shared_from_this<Endpoint> {
 public:
  static constexpr napi_type_tag typeTag{0x90d3f2b57c1e4a68, 0x8c27a4f6de10b935};
  static constexpr const char* kind = "endpoint";
  using Lock = std::unique_lock<std::mutex>;

  explicit Endpoint(Settings settings) : settings_(settings) {}
  ~Endpoint() override { close(); }

  /** Listens at these addresses and starts the threads; the addresses with their ports. */
  Result<std::vector<Address>> open(const std::vector<Address>& addresses);
  void close() noexcept override;
  bool isOpen() const noexcept { return isOpen_; }

  /** The peer of this name, with these ways to it; those of before are forgotten. */
  std::shared_ptr<Peer> addPeer(uint32_t rank, const wire::EndpointId& id, const wire::Bytes32& key,
                                std::vector<Path> paths);
  /** Fails what is under way with the peer, and drops its lanes. */
  void closePeer(const std::shared_ptr<Peer>& peer);
  /** Done when there is a lane to the peer. */
  void connect(const std::shared_ptr<ConnectJob>& job);

  Result<std::shared_ptr<Flow>> addFlow(const std::shared_ptr<Peer>& peer, uint32_t program, bool isSending,
                                        wire::ByteStream stream);
  /** Ends when nobody touches memory of the flow any more; a run under way fails. */
  void closeFlow(const std::shared_ptr<Flow>& flow);
  /** Begins a run of each flow. All fail together. */
  void start(const std::shared_ptr<Transfer>& transfer, const std::vector<std::shared_ptr<Flow>>& flows);
  /** Serves a short transfer for a moment, on the thread that waits for it; whether it is done. */
  bool attend(const std::shared_ptr<Transfer>& transfer);
  /** Leaves to the threads what was attended. To be called when the turn ends in which something was. */
  void endAttending();
  void cancel(const std::shared_ptr<Transfer>& transfer) noexcept;
  void cancel(const std::shared_ptr<ConnectJob>& job) noexcept;

  /** The ways that lanes to or from the peer take at present. */
  std::vector<std::string> describe(const std::shared_ptr<Peer>& peer);

 private:
  struct Thread {
    Poller poller;
    std::thread thread;
    /** Lanes to pump. */
    std::vector<LanePointer> wanted;
  };
  struct Listener {
    Descriptor socket;
    bool isPaused = false;
  };
  /** Lanes are numbered from here on; what is below in an event is a listener. */
  static constexpr uint64_t firstLane = 1u << 16;

  // threads.cc: what threads wait for.
  Result<Listener> listen(const Address& address, Address& listening);
  void serve(size_t thread) noexcept;
  void handle(const Event& event, Lock& lock);
  void accept(size_t listener, Lock& lock);
  void resumeListeners();
  void wake(const LanePointer& lane);
  void wakeClock();
  void awaitRoom(Lane& lane, bool awaitsRoom);
  Status addLane(const LanePointer& lane, bool awaitsRoom);

  // connections.cc: from a socket to an open lane, and its end.
  void dial(const std::shared_ptr<Peer>& peer, size_t path);
  void dialIfNeeded(const std::shared_ptr<Peer>& peer);
  void dialFailed(const std::shared_ptr<Peer>& peer);
  void connected(const LanePointer& lane);
  void handshake(const LanePointer& lane, Lock& lock);
  void greeted(const LanePointer& lane, Lock& lock);
  void judged(const LanePointer& lane, Lock& lock);
  void opened(const LanePointer& lane, Lock& lock);
  void breakLane(const LanePointer& lane, const std::string& why, Code code = Code::SystemFailure);
  void failPeer(const std::shared_ptr<Peer>& peer, const Status& status);

  // sending.cc
  void pump(const LanePointer& lane, Lock& lock);
  bool pumpOutput(const LanePointer& lane, Lock& lock);
  bool pumpChunk(const LanePointer& lane, Lock& lock);
  bool takeChunk(Lane& lane);
  void push(const std::shared_ptr<Run>& run, uint64_t number);
  void stopPushing(Run& run);
  void wakeSenders(Peer& peer);
  void answered(const LanePointer& lane, const Frame& frame, Lock& lock);
  void confirmed(const LanePointer& lane, Flow& flow, const Frame& frame, Lock& lock);

  // receiving.cc
  void drain(const LanePointer& lane, Lock& lock);
  bool drainHeader(const LanePointer& lane, Lock& lock);
  bool drainChunk(const LanePointer& lane, Lock& lock);
  void beginChunk(const LanePointer& lane, const Frame& frame);
  void endChunk(const LanePointer& lane, Lock& lock);
  void announce(const Flow& flow, const LanePointer& lane, Lock& lock);
  void announceAll(const std::shared_ptr<Peer>& peer, const LanePointer& lane, Lock& lock);
  void brokeProtocol(const LanePointer& lane, const char* how);

  // runs.cc: runs from their start to their end.
  Status refusalOf(const std::vector<std::shared_ptr<Flow>>& flows) const;
  void begin(const std::shared_ptr<Run>& run, Lock& lock);
  void endRun(const std::shared_ptr<Run>& run, const Status& status);
  void settle(const std::shared_ptr<Run>& run);
  void fail(Transfer& transfer, const Status& status);
  void touch(Run& run) noexcept;
  void release(const std::shared_ptr<Run>& run);

  // attending.cc: short transfers, served by whoever waits for them.
  std::vector<LanePointer> lanesOf(const Transfer& transfer) const;
  void beginAttending(const LanePointer& lane);
  void endAttending(const LanePointer& lane, Lock& lock);
  void endOldAttending(Lock& lock);
  std::chrono::milliseconds untilUnattended(std::chrono::milliseconds most) const noexcept;

  // clock.cc: what happens because time passes.
  std::chrono::milliseconds untilTick();
  void tick(Lock& lock);
  void tickLane(const LanePointer& lane, Time now);
  void tickPeer(const std::shared_ptr<Peer>& peer, Time now, Lock& lock);
  void chooseLanes(Peer& peer, Time now);
  std::chrono::milliseconds stallTime() const noexcept;

  const Settings settings_;
  std::mutex mutex_;
  /** Told when memory is no longer touched. */
  std::condition_variable released_;
  std::atomic<bool> isOpen_{false};
  bool isClosing_ = false;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Listener> listeners_;
  std::unordered_map<uint64_t, LanePointer> lanes_;
  /** Lanes of strangers, oldest first. */
  std::deque<LanePointer> strangers_;
  std::map<wire::EndpointId, std::shared_ptr<Peer>> peers_;
  uint64_t nextLane_ = firstLane;
  Time lastTick_{}, lastNeeded_{};
  bool isClockIdle_ = false;
  std::vector<LanePointer> attended_;
  /** Attempts to attend that were in vain since one was not, and those to leave out before the next. */
  int misses_ = 0, leftOut_ = 0;
};

/** True where something waits for the peer. */
bool isNeeded(const Peer& peer) noexcept;

/** What failed with a peer, which the failure's item names. */
Status peerFailure(const Peer& peer, Code code, const std::string& what, int32_t nativeCode = 0);

/** The ways to a peer, each with why it could not be used. */
std::string faultsOf(const Peer& peer);

}  // namespace tensorferry::tcp
