// SPDX-License-Identifier: Apache-2.0
/*
 * One rank as UCX knows it: context, worker, arena and peers, all in the hands of one thread, which sleeps until the worker
 * or JavaScript has something to do.
 *
 * Public functions may be called by any thread: they leave their work to the endpoint's thread, and wait for it where they
 * say so. All others run on that thread. Invariants: UCX calls back only while the thread lets it progress; what it reports
 * is looked at afterwards, so no state changes under a function's feet. Every endpoint of UCX has peer error mode, at both
 * ends, since both are made here. After `close` there is no thread and no unfinished job.
 */
#pragma once

#include <tensorferry/descriptor.h>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "arena.h"
#include "transfer.h"
#include "ucp_library.h"

namespace tensorferry::ucx {

/**
 * How chunks travel: written by remote keys where a transport does so in hardware, and sent elsewhere; written so, or refused;
 * sent; written also where UCX only emulates it. What UCX emulates ends the process of a rank whose peer dies: it answers each
 * write, and takes it for a fault of its own that the answer cannot leave.
 */
enum class Way : uint8_t { fitting, put, message, emulated };

struct Settings {
  uint32_t rank = 0;
  /** How long a wait lasts without a word of the peer. */
  std::chrono::milliseconds deadline{60'000};
  size_t slots = 1;
  size_t peers = 1;
  Way way = Way::fitting;
  /** Names and values of UCX's own configuration; a name that it does not know, and need not, begins with '?'. */
  std::vector<std::pair<std::string, std::string>> config;
};

class Endpoint final : public ThreadOwner, public std::enable_shared_from_this<Endpoint> {
 public:
  static constexpr napi_type_tag typeTag{0xd47c2be90a5f4163, 0x85e1f06b29c7da34};
  static constexpr const char* kind = "endpoint";

  Endpoint(std::shared_ptr<const Library> library, Settings settings)
      : library_(std::move(library)), api_(library_->api), settings_(std::move(settings)) {}
  ~Endpoint() override { close(); }

  /** Starts the thread and waits until UCX works. */
  Status open();
  void close() noexcept override;
  bool isOpen() const noexcept { return isOpen_; }
  /** What peers need to reach this rank, and the transports that UCX found. */
  const std::string& address() const noexcept { return address_; }
  const std::vector<std::string>& transports() const noexcept { return transports_; }

  void addPeer(const std::shared_ptr<Peer>& peer);
  /** Done when the peer has answered. */
  void connect(const std::shared_ptr<ConnectJob>& job);
  /** Fails what is under way with the peer. Waits until it is known no more, not until its link is closed. */
  void closePeer(const std::shared_ptr<Peer>& peer);
  /** How the peer is reached, in UCX's words, and whether chunks are written by remote keys. Waits. */
  std::pair<std::string, bool> describe(const std::shared_ptr<Peer>& peer);
  /** Lets UCX know memory, until `forget`. Waits. */
  std::shared_ptr<Region> remember(uint64_t address, uint64_t length);
  void forget(const std::shared_ptr<Region>& region);
  void addFlow(const std::shared_ptr<Flow>& flow);
  /** Ends when nobody touches memory of the flow any more; a run under way fails. */
  void closeFlow(const std::shared_ptr<Flow>& flow);
  /** Begins a run of each flow. All fail together. */
  void start(const std::shared_ptr<Transfer>& transfer, std::vector<std::shared_ptr<Flow>> flows);
  void cancel(const std::shared_ptr<Transfer>& transfer) noexcept;
  void cancel(const std::shared_ptr<ConnectJob>& job) noexcept;

 private:
  /** One call of UCX that is under way. */
  struct Operation;
  /** A message that has come: of a chunk, its bytes are in place. */
  struct Arrival {
    Frame frame;
    std::string body;
    std::shared_ptr<Run> run;
    uint64_t length = 0;
  };
  /** A message whose bytes have not come yet. */
  struct Offer {
    Frame frame;
    void* descriptor;
    size_t length;
  };
  using Work = std::function<void()>;

  // thread.cc
  Status openUcx();
  void closeUcx() noexcept;
  void serve(std::promise<Status> opened) noexcept;
  bool post(Work work);
  /** Runs it on the thread and waits. False where the thread is gone. */
  bool ask(const Work& work);
  bool step();
  void sleep();
  void tick();
  void progressUntil(Time end);
  void takeLeave();
  void endAll();

  // peers.cc
  static void epFailed(void* argument, abi::Ep* ep, abi::Status status);
  void reach(const std::shared_ptr<Peer>& peer);
  void closeLink(const std::shared_ptr<Peer>& peer);
  void bidFarewell(const std::shared_ptr<Peer>& peer);
  void linkClosed(const std::shared_ptr<Peer>& peer);
  Status gone(const Peer& peer, abi::Status status) const;
  void lost(const std::shared_ptr<Peer>& peer, abi::Status status);
  void failPeer(const std::shared_ptr<Peer>& peer, const Status& status);
  void say(const std::shared_ptr<Peer>& peer, FrameKind kind, const Flow* flow = nullptr, uint64_t run = 0,
           uint64_t chunk = 0, std::string body = {});
  void flushOutput(const std::shared_ptr<Peer>& peer);
  void welcomed(const std::shared_ptr<Peer>& peer);
  bool choosesPut(const std::string& lanes) const;
  std::chrono::milliseconds lingerTime() const noexcept;
  void tickPeer(const std::shared_ptr<Peer>& peer, Time now);
  std::string textOf(abi::Status status) const { return api_.statusText(status); }

  // sending.cc
  template <typename Run>
  void issue(std::unique_ptr<Operation> operation, const Run& call);
  static void ended(void* request, abi::Status status, void* userData);
  static void received(void* request, abi::Status status, size_t length, void* userData);
  void finish(Operation* operation, abi::Status status);
  void pump(const std::shared_ptr<Peer>& peer);
  bool sendChunk(const std::shared_ptr<Run>& run);
  void endSending(const std::shared_ptr<Run>& run);
  void push(const std::shared_ptr<Run>& run, uint64_t number);
  void stopPushing(const std::shared_ptr<Run>& run);
  void stopped(const std::shared_ptr<Peer>& peer, const Flow& flow, uint64_t run);
  void dropLayout(Flow& flow);
  Status takeLayout(const std::shared_ptr<Flow>& flow, const std::string& body);

  // receiving.cc
  static abi::Status arrived(void* argument, const void* header, size_t headerLength, void* data, size_t length,
                             const abi::MessageParam* param);
  std::shared_ptr<Peer> senderOf(const Frame& frame) const;
  void handle(const Frame& frame, const std::string& body);
  std::shared_ptr<Run> takeChunk(const std::shared_ptr<Peer>& peer, const Frame& frame, size_t length);
  void place(const std::shared_ptr<Run>& run, const Frame& frame, const void* data);
  bool accept(const Offer& offer);
  void begunAgain(const std::shared_ptr<Run>& run);
  void gotChunk(const std::shared_ptr<Run>& run, uint64_t number, size_t chunk, uint64_t length);
  void completeIfWhole(const std::shared_ptr<Run>& run);
  void announce(const std::shared_ptr<Run>& run);
  std::string layoutOf(const Flow& flow) const;
  void conceal(const std::shared_ptr<Run>& run);
  void answered(const std::shared_ptr<Peer>& peer, const Frame& frame, const std::string& body);
  void asked(const std::shared_ptr<Peer>& peer, const Frame& frame);

  // runs.cc
  void begin(const std::shared_ptr<Run>& run);
  void endRun(const std::shared_ptr<Run>& run, const Status& status);
  void touch(Run& run) noexcept;
  void release(const std::shared_ptr<Run>& run);
  void settle(const std::shared_ptr<Run>& run);
  void fail(Transfer& transfer, const Status& status);

  const std::shared_ptr<const Library> library_;
  const abi::Api& api_;
  const Settings settings_;
  std::thread thread_;
  Descriptor bell_;
  std::atomic<bool> isOpen_{false};
  std::string address_;
  std::vector<std::string> transports_;

  std::mutex mutex_;
  std::vector<Work> posted_;
  bool isClosing_ = false;

  // Of the thread.
  abi::Context* context_ = nullptr;
  abi::Worker* worker_ = nullptr;
  int workerEvents_ = -1;
  Arena arena_;
  abi::Memory* arenaMemory_ = nullptr;
  std::map<uint32_t, std::shared_ptr<Peer>> peers_;
  /** Peers whose links have not been closed whole, the forgotten ones included. */
  std::vector<std::shared_ptr<Peer>> linked_;
  std::vector<std::weak_ptr<Region>> regions_;
  std::unordered_map<Operation*, std::unique_ptr<Operation>> operations_;
  // What UCX reported, and was not looked at.
  std::vector<Arrival> arrivals_;
  std::deque<Offer> offers_;
  std::vector<std::pair<Operation*, abi::Status>> ended_;
  std::vector<std::tuple<std::weak_ptr<Peer>, uint64_t, abi::Status>> failures_;
  /** Those who wait until memory of a flow is free. */
  std::vector<std::pair<std::shared_ptr<Flow>, std::shared_ptr<std::promise<void>>>> closing_;
  Time lastTick_{}, awakeUntil_{};
};

struct Endpoint::Operation {
  enum class Kind { control, chunk, put, flush, receive, farewell, close };
  Kind kind = Kind::control;
  Endpoint* endpoint = nullptr;
  std::shared_ptr<Peer> peer;
  std::shared_ptr<Run> run;
  uint64_t number = 0, length = 0;
  size_t chunk = 0;
  uint8_t* slot = nullptr;
  /** What is sent; of a flush, what is said when everything before it has arrived. */
  Frame frame{};
  std::string body;
};

/** Makes a call of UCX, whose end is looked at later, by `finish`. */
template <typename Run>
void Endpoint::issue(std::unique_ptr<Operation> made, const Run& call) {
  Operation* const operation = made.get();
  operation->endpoint = this;
  operations_.emplace(operation, std::move(made));
  if (operation->run != nullptr) touch(*operation->run);
  abi::RequestParam param{};
  param.mask = abi::requestCallback | abi::requestUserData;
  param.sent = &Endpoint::ended;
  if (operation->kind == Operation::Kind::receive) param.received = &Endpoint::received;
  param.userData = operation;
  const abi::Pointer answer = call(param);
  if (!abi::isRequest(answer)) ended_.push_back({operation, abi::statusOf(answer)});
}

}  // namespace tensorferry::ucx
