// SPDX-License-Identifier: Apache-2.0
/*
 * The endpoint's thread: from the first call of UCX to the last, what JavaScript leaves to it, and what it waits for.
 *
 * Invariant: the thread sleeps only after the worker was armed, and after it has seen that nothing was left to it; so neither
 * can be missed.
 */
#include <poll.h>
#include <sys/eventfd.h>

#include "endpoint.h"

namespace tensorferry::ucx {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds shortTick{50}, longTick{1000};
/** How long peers may take to hear that this rank ends. */
constexpr milliseconds farewellTime{1000};
/** How long the thread waits for more of a run before it sleeps: whoever sends the next message had to wake it. */
constexpr std::chrono::microseconds awakeTime{50};
/** Calls of UCX before others have a turn. */
constexpr int mostSteps = 64;

/** What a function of UCX prints. */
template <typename Print>
std::string printed(const Print& print) {
  char* text = nullptr;
  size_t length = 0;
  FILE* const stream = ::open_memstream(&text, &length);
  if (stream == nullptr) return {};
  print(stream);
  std::fclose(stream);
  std::string copy(text, length);
  std::free(text);
  return copy;
}

std::vector<std::string> transportsIn(const std::string& text) {
  std::vector<std::string> found;
  for (size_t at = 0; (at = text.find("resource ", at)) != std::string::npos; at++) {
    const size_t end = text.find('\n', at), slash = text.rfind('/', end);
    if (end == std::string::npos || slash == std::string::npos || slash < at) continue;
    const size_t begin = text.rfind(' ', slash) + 1;
    found.push_back(text.substr(begin, text.find_last_not_of(' ', end - 1) + 1 - begin));
  }
  return found;
}

}  // namespace

Status Endpoint::open() {
  bell_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_.isOpen()) return systemFailure("eventfd", "No thread can be woken");
  std::promise<Status> opened;
  auto answer = opened.get_future();
  thread_ = std::thread([this, promise = std::move(opened)]() mutable { serve(std::move(promise)); });
  const Status status = answer.get();
  if (status.ok()) isOpen_ = true;
  else thread_.join();
  return status;
}

void Endpoint::close() noexcept {
  isOpen_ = false;
  if (!thread_.joinable()) return;
  {
    std::lock_guard lock(mutex_);
    isClosing_ = true;
  }
  ::eventfd_write(bell_.get(), 1);
  thread_.join();
  // JavaScript may hold the object for long.
  bell_.reset();
  arena_.close();
}

bool Endpoint::post(Work work) {
  {
    std::lock_guard lock(mutex_);
    if (isClosing_ || !thread_.joinable()) return false;
    posted_.push_back(std::move(work));
  }
  ::eventfd_write(bell_.get(), 1);
  return true;
}

bool Endpoint::ask(const Work& work) {
  std::promise<void> done;
  const auto answer = done.get_future();
  if (!post([&] {
        work();
        done.set_value();
      }))
    return false;
  answer.wait();
  return true;
}

Status Endpoint::openUcx() {
  const auto wrong = [&](const char* op, const std::string& what, abi::Status status) {
    return failure(status == abi::outOfMemory ? Code::OutOfMemory : Code::SystemFailure, op,
                   what + ": " + textOf(status), status);
  };
  abi::Config* config = nullptr;
  if (const auto status = api_.readConfig(nullptr, nullptr, &config); status != abi::ok)
    return wrong("ucp_config_read", "The configuration of UCX cannot be read", status);
  for (const auto& [name, value] : settings_.config) {
    const bool isOptional = name[0] == '?';
    const auto status = api_.modifyConfig(config, name.c_str() + isOptional, value.c_str());
    if (status == abi::ok || isOptional) continue;
    api_.releaseConfig(config);
    return wrong("ucp_config_modify", "UCX does not take " + value + " as UCX_" + name, status);
  }
  abi::Params params{};
  params.mask = abi::paramFeatures | abi::paramEstimatedEps;
  params.features = abi::featureMessages | abi::featureRma | abi::featureWakeup;
  params.estimatedEps = settings_.peers;
  const auto initialised = api_.init(abi::major, abi::minor, &params, config, &context_);
  api_.releaseConfig(config);
  if (initialised != abi::ok) return wrong("ucp_init", "UCX found no transport that it can use", initialised);
  transports_ = transportsIn(printed([&](FILE* stream) { api_.printContext(context_, stream); }));
  abi::WorkerParams workerParams{};
  workerParams.mask = abi::workerThreadMode;
  workerParams.threadMode = abi::threadSingle;
  if (const auto status = api_.createWorker(context_, &workerParams, &worker_); status != abi::ok)
    return wrong("ucp_worker_create", "UCX made no worker", status);
  abi::WorkerAttr attr{};
  attr.mask = abi::workerAttrAddress | abi::workerAttrMaxHeader;
  if (const auto status = api_.queryWorker(worker_, &attr); status != abi::ok)
    return wrong("ucp_worker_query", "UCX does not tell its address", status);
  address_.assign(reinterpret_cast<const char*>(attr.address), attr.addressLength);
  api_.releaseAddress(worker_, attr.address);
  if (attr.maxHeader < sizeof(Frame))
    return failure(Code::Unsupported, "ucp_worker_query",
                   "The transports of UCX take headers of " + std::to_string(attr.maxHeader) + " bytes only");
  if (const auto status = api_.eventDescriptor(worker_, &workerEvents_); status != abi::ok)
    return wrong("ucp_worker_get_efd", "No transport of UCX can wake a thread", status);
  abi::HandlerParam handler{};
  handler.mask = abi::handlerId | abi::handlerCallback | abi::handlerArgument;
  handler.handler = &Endpoint::arrived;
  handler.argument = this;
  if (const auto status = api_.setHandler(worker_, &handler); status != abi::ok)
    return wrong("ucp_worker_set_am_recv_handler", "UCX takes no messages", status);
  if (!arena_.open(settings_.slots)) return systemFailure("mmap", "There is no memory for staging");
  abi::MapParams map{};
  map.mask = abi::mapAddress | abi::mapLength;
  map.address = arena_.base();
  map.length = arena_.length();
  if (const auto status = api_.mapMemory(context_, &map, &arenaMemory_); status != abi::ok) {
    return wrong("ucp_mem_map", "UCX cannot register " + std::to_string(arena_.length() >> 20) + " MiB for staging",
                 status);
  }
  return {};
}

void Endpoint::closeUcx() noexcept {
  for (const auto& weak : regions_) {
    if (const auto region = weak.lock(); region != nullptr && region->memory != nullptr) {
      api_.unmapMemory(context_, region->memory);
      region->memory = nullptr;
    }
  }
  if (arenaMemory_ != nullptr) api_.unmapMemory(context_, arenaMemory_);
  if (worker_ != nullptr) api_.destroyWorker(worker_);
  if (context_ != nullptr) api_.cleanup(context_);
}

void Endpoint::serve(std::promise<Status> opened) noexcept {
  const Status status = caught("open", [&] { return openUcx(); });
  if (!status.ok()) {
    closeUcx();
    opened.set_value(status);
    return;
  }
  opened.set_value(status);
  lastTick_ = Clock::now();
  while (true) {
    std::vector<Work> works;
    {
      std::lock_guard lock(mutex_);
      works.swap(posted_);
      if (isClosing_ && works.empty()) break;
    }
    for (const auto& work : works) work();
    const bool isBusy = step() || !works.empty();
    tick();
    if (isBusy) awakeUntil_ = Clock::now() + awakeTime;
    else sleep();
  }
  takeLeave();
  closeUcx();
  endAll();
}

/** Lets UCX work, then looks at what it reported. False where there was nothing. */
bool Endpoint::step() {
  bool isBusy = false;
  for (int steps = 0; steps < mostSteps && api_.progress(worker_) != 0; steps++) isBusy = true;
  // What is looked at may end or begin more, which has its turn next time.
  const auto ended = std::exchange(ended_, {});
  const auto arrivals = std::exchange(arrivals_, {});
  isBusy = isBusy || !ended.empty() || !arrivals.empty();
  for (const auto& [operation, status] : ended) finish(operation, status);
  for (const auto& arrival : arrivals) {
    if (arrival.run != nullptr) gotChunk(arrival.run, arrival.frame.run, arrival.frame.chunk, arrival.length);
    else handle(arrival.frame, arrival.body);
  }
  for (size_t waiting = offers_.size(); waiting > 0 && accept(offers_.front()); waiting--) {
    offers_.pop_front();
    isBusy = true;
  }
  for (const auto& [weak, generation, status] : std::exchange(failures_, {}))
    if (const auto peer = weak.lock(); peer != nullptr && peer->generation == generation) lost(peer, status);
  std::erase_if(closing_, [this](const auto& waiting) {
    if (waiting.first->touching > 0) return false;
    dropLayout(*waiting.first);
    waiting.second->set_value();
    return true;
  });
  return isBusy || !ended_.empty();
}

void Endpoint::sleep() {
  const auto isAny = [this](const auto& is) {
    return std::any_of(peers_.begin(), peers_.end(), [&](const auto& each) { return is(*each.second); });
  };
  if (isAny([](const Peer& peer) { return peer.running > 0; }) && Clock::now() < awakeUntil_) return;
  if (api_.arm(worker_) != abi::ok) return;
  {
    std::lock_guard lock(mutex_);
    if (!posted_.empty() || isClosing_) return;
  }
  const bool isNeeded = !operations_.empty() || isAny([](const Peer& peer) {
    return peer.running > 0 || peer.lingering > 0 || !peer.connecting.empty();
  });
  pollfd waited[] = {{workerEvents_, POLLIN, 0}, {bell_.get(), POLLIN, 0}};
  ::poll(waited, 2, static_cast<int>((isNeeded ? shortTick : longTick).count()));
  eventfd_t rings = 0;
  if (waited[1].revents != 0) ::eventfd_read(bell_.get(), &rings);
}

void Endpoint::tick() {
  const Time now = Clock::now();
  const auto passed = now - lastTick_;
  if (passed < shortTick) return;
  lastTick_ = now;
  const auto peers = peers_;
  // Time in which this process did not run counts for nobody.
  if (passed > 2 * longTick) {
    for (const auto& [rank, peer] : peers) peer->lastHeard += passed;
    return;
  }
  for (const auto& [rank, peer] : peers) tickPeer(peer, now);
}

/** Lets UCX work until nothing is under way, but no longer. */
void Endpoint::progressUntil(Time end) {
  while (!operations_.empty() && Clock::now() < end) {
    if (step()) continue;
    if (api_.arm(worker_) != abi::ok) continue;
    pollfd waited{workerEvents_, POLLIN, 0};
    ::poll(&waited, 1, static_cast<int>(shortTick.count()));
  }
}

/** Ends what is under way and tells the peers, as far as they listen. */
void Endpoint::takeLeave() {
  const auto ended = failure(Code::Cancelled, "close", "The driver was closed.");
  for (const auto& [rank, peer] : std::map(peers_)) {
    for (const auto& flows : {peer->sends, peer->receives})
      for (const auto& flow : flows)
        if (flow->run != nullptr) fail(*flow->run->transfer, ended);
    for (const auto& job : std::exchange(peer->connecting, {})) {
      job->fail(ended);
      job->done();
    }
    peer->isClosed = true;
    // Who holds memory is not waited for.
    if (peer->lingering > 0) closeLink(peer);
    else if (peer->link == Link::open) bidFarewell(peer);
  }
  // A link that UCX closes in good order cannot be given up: so what was said is waited for, then the link is closed at once.
  progressUntil(Clock::now() + farewellTime);
  for (const auto& peer : std::vector(linked_)) closeLink(peer);
  progressUntil(Clock::now() + farewellTime);
  for (const auto& offer : offers_) api_.releaseMessage(worker_, offer.descriptor);
  for (const auto& peer : linked_)
    for (const auto& flow : peer->sends) dropLayout(*flow);
  for (const auto& [flow, done] : closing_) dropLayout(*flow);
}

/** What UCX did not end while it was there. Nobody touches memory any more. */
void Endpoint::endAll() {
  for (const auto& peer : std::vector(linked_)) linkClosed(peer);
  ended_.clear();
  for (const auto& [key, operation] : std::exchange(operations_, {}))
    if (operation->run != nullptr) release(operation->run);
  for (const auto& [flow, done] : closing_) done->set_value();
}

std::shared_ptr<Region> Endpoint::remember(uint64_t address, uint64_t length) {
  auto region = std::make_shared<Region>();
  region->address = address;
  region->length = length;
  ask([&] {
    abi::MapParams map{};
    map.mask = abi::mapAddress | abi::mapLength;
    map.address = reinterpret_cast<void*>(address);
    map.length = length;
    if (api_.mapMemory(context_, &map, &region->memory) != abi::ok) region->memory = nullptr;
    std::erase_if(regions_, [](const auto& weak) { return weak.expired(); });
    regions_.push_back(region);
  });
  return region;
}

void Endpoint::forget(const std::shared_ptr<Region>& region) {
  ask([&] {
    if (region->memory != nullptr) api_.unmapMemory(context_, region->memory);
    region->memory = nullptr;
  });
}

}  // namespace tensorferry::ucx
