// SPDX-License-Identifier: Apache-2.0
/*
 * See exchange.h.
 */
#include "exchange.h"

#include <algorithm>
#include <cstring>
#include <thread>

namespace tensorferry::nvshmem {
namespace {

/** Between two looks at what others tell. */
constexpr auto lookPeriod = std::chrono::milliseconds(2);
constexpr auto letGoPeriod = std::chrono::milliseconds(1);
/** How long telling may take before waits are let go all the same: a network to a dead PE may never answer. */
constexpr auto tellPatience = std::chrono::seconds(2);
constexpr auto pause = std::chrono::microseconds(20);

}  // namespace

Exchange::Exchange(std::shared_ptr<Session> joined, char* block, size_t bytes, uint32_t slots) noexcept
    : session(std::move(joined)), block_(block), bytes_(bytes), slots_(slots) {}

Exchange::~Exchange() {
  if (session->isAbandoned()) new gpu::HostBlock(std::move(host_));
}

Result<std::shared_ptr<Exchange>> Exchange::create(std::shared_ptr<Session> session, void* block, size_t bytes,
                                                   uint32_t slots) {
  std::shared_ptr<Exchange> made(new Exchange(std::move(session), static_cast<char*>(block), bytes, slots));
  const size_t all = made->pairWords() + static_cast<size_t>(made->session->size);
  if (slots == 0 || bytes < 8 * all) return failure(Code::InvalidArgument, "createExchange", "The block is too small.");
  gpu::DeviceScope scope(made->session->gpu(), made->session->ordinal);
  if (Status status = scope.status(); !status.ok()) return status;
  auto host = gpu::makeHostBlock(made->session->gpu(), 3 * 8 * all);
  if (!host.ok()) return host.status();
  made->host_ = std::move(host.value());
  made->zeros_ = static_cast<uint64_t*>(made->host_.get());
  made->ones_ = made->zeros_ + all;
  made->read_ = made->ones_ + all;
  std::memset(made->zeros_, 0, 8 * all);
  std::memset(made->ones_, 0xff, 8 * all);
  std::memset(made->read_, 0, 8 * all);
  return made;
}

bool Exchange::isIdle(const gpu::Stream& stream) const noexcept {
  return session->gpu().queryStream(stream.get()) != gpu::code::notReady;
}

Status Exchange::copyWords(uint64_t* target, const uint64_t* source, size_t count, const gpu::Stream& stream) noexcept {
  const gpu::GpuApi& api = session->gpu();
  return gpu::callRuntime(api, api.copy, static_cast<void*>(target), static_cast<const void*>(source), 8 * count,
                          gpu::inferredDirection, stream.get());
}

Status Exchange::waitFor(const gpu::Stream& stream, const CancelToken& token) {
  const gpu::GpuApi& api = session->gpu();
  int answer = api.queryStream(stream.get());
  for (; answer == gpu::code::notReady; answer = api.queryStream(stream.get())) {
    if (token.isCancelled()) return failure(Code::Cancelled, "wait", "The wait was cancelled.");
    std::this_thread::sleep_for(pause);
  }
  return answer == gpu::code::success ? Status{} : gpu::runtimeFailure(api, api.queryStream.name, answer);
}

Status Exchange::quiet(const CancelToken& token) {
  gpu::DeviceScope scope(session->gpu(), session->ordinal);
  if (Status status = scope.status(); !status.ok()) return status;
  session->api().quiet(session->telling.get());
  return waitFor(session->telling, token);
}

Status Exchange::reset(const CancelToken& token) {
  gpu::DeviceScope scope(session->gpu(), session->ordinal);
  Status status = scope.status();
  if (status.ok()) status = waitFor(session->releasing, token);
  if (status.ok()) status = copyWords(words(), zeros_, pairWords() + session->size, session->telling);
  if (status.ok()) status = waitFor(session->telling, token);
  isReading_ = hasTold_ = false;
  std::fill(read_, read_ + session->size, 0);
  return status;
}

Status Exchange::decline(const CancelToken& token) {
  gpu::DeviceScope scope(session->gpu(), session->ordinal);
  if (Status status = scope.status(); !status.ok()) return status;
  tellAll();
  return waitFor(session->telling, token);
}

void Exchange::close() noexcept {
  gpu::DeviceScope scope(session->gpu(), session->ordinal);
  host_.reset();
}

const char* Exchange::problemOf(const uint64_t* call, size_t count) const noexcept {
  const auto size = static_cast<uint64_t>(session->size);
  const auto inBlock = [&](uint64_t address, uint64_t bytes) {
    const auto begin = reinterpret_cast<uint64_t>(block_);
    return address >= begin && bytes <= bytes_ && address - begin <= bytes_ - bytes;
  };
  if (count == 0) return "A call has a kind.";
  switch (static_cast<CallKind>(call[0])) {
    case CallKind::Put:
      if (count != 7) return "A put has six words.";
      if (!inBlock(call[1], call[3]) || !inBlock(call[2], call[3])) return "A put goes from the block to the block.";
      if (!inBlock(call[4], 8) || call[4] % 8 != 0) return "A word lies in the block.";
      return call[5] > iterationLimit ? "Too many iterations." : call[6] >= size ? "There is no such PE." : nullptr;
    case CallKind::Signal:
      if (count != 4) return "A signal has three words.";
      if (!inBlock(call[1], 8) || call[1] % 8 != 0) return "A word lies in the block.";
      return call[2] > iterationLimit ? "Too many iterations." : call[3] >= size ? "There is no such PE." : nullptr;
    case CallKind::Wait:
      if (count != 3) return "A wait has two words.";
      if (!inBlock(call[1], 8) || call[1] % 8 != 0) return "A word lies in the block.";
      return call[2] > iterationLimit ? "Too many iterations." : nullptr;
  }
  return "There is no such call.";
}

Status Exchange::enqueue(const uint64_t* call, size_t, gpu::StreamHandle stream) noexcept {
  const NvshmemApi& api = session->api();
  if (!session->isOpen()) return failure(Code::InvalidHandle, "enqueue", "The session is closed.");
  switch (static_cast<CallKind>(call[0])) {
    case CallKind::Put:
      api.putSignal(reinterpret_cast<void*>(call[1]), reinterpret_cast<const void*>(call[2]),
                    static_cast<size_t>(call[3]), reinterpret_cast<uint64_t*>(call[4]), valueOf(call[5]), signalSet,
                    static_cast<int>(call[6]), stream);
      break;
    case CallKind::Signal:
      api.signal(reinterpret_cast<uint64_t*>(call[1]), valueOf(call[2]), signalSet, static_cast<int>(call[3]), stream);
      break;
    case CallKind::Wait:
      api.wait(reinterpret_cast<uint64_t*>(call[1]), atLeast, valueOf(call[2]), stream);
      break;
  }
  return {};
}

int Exchange::whoGaveUp() const noexcept {
  for (int pe = 0; pe < session->size; pe++)
    if (pe != session->rank && read_[pe] != 0) return pe;
  return -1;
}

Status Exchange::told(int pe) const {
  Status status = failure(Code::PeerGone, "exchange",
                          "PE " + std::to_string(pe) + " gave its run up; what it sent since does not count.");
  status.item = pe;
  return status;
}

Status Exchange::look() noexcept {
  const auto now = Clock::now();
  if (isReading_) {
    if (!isIdle(session->telling)) return {};
    isReading_ = false;
    if (const int pe = whoGaveUp(); pe >= 0) return told(pe);
  }
  if (now - lookedAt_ < lookPeriod) return {};
  lookedAt_ = now;
  isReading_ = true;
  return copyWords(read_, gaveUp(), static_cast<size_t>(session->size), session->telling);
}

Status Exchange::finish() noexcept {
  static const CancelToken never;
  Status status = copyWords(read_, gaveUp(), static_cast<size_t>(session->size), session->telling);
  if (status.ok()) status = waitFor(session->telling, never);
  isReading_ = false;
  if (!status.ok()) return status;
  const int pe = whoGaveUp();
  return pe < 0 ? Status{} : told(pe);
}

void Exchange::tellAll() noexcept {
  const NvshmemApi& api = session->api();
  uint64_t* own = gaveUp() + session->rank;
  bool isFar = false;
  for (int pe = 0; pe < session->size; pe++) {
    if (pe == session->rank) continue;
    // A copy engine gets there also where kernels of this device wait for each other.
    if (void* there = api.pointer(own, pe); there != nullptr) {
      copyWords(static_cast<uint64_t*>(there), ones_, 1, session->telling);
    } else {
      isFar = true;
      api.signal(own, valueOf(0), signalSet, pe, session->telling.get());
    }
  }
  if (isFar) api.quiet(session->telling.get());
}

void Exchange::letGo(const gpu::Stream& stream) noexcept { copyWords(words(), ones_, pairWords(), stream); }

void Exchange::giveUp() noexcept {
  const auto now = Clock::now();
  if (!hasTold_) {
    hasTold_ = true;
    toldAt_ = letGoAt_ = now;
    if (session->isOpen()) tellAll();
    return letGo(session->telling);
  }
  if (now - letGoAt_ < letGoPeriod) return;
  if (isIdle(session->telling)) {
    letGoAt_ = now;
    letGo(session->telling);
  } else if (now - toldAt_ > tellPatience && isIdle(session->releasing)) {
    letGoAt_ = now;
    letGo(session->releasing);
  }
}

}  // namespace tensorferry::nvshmem
