// SPDX-License-Identifier: Apache-2.0
/*
 * See communicator.h.
 */
#include "communicator.h"

#include <chrono>
#include <condition_variable>
#include <thread>

namespace tensorferry::gpu {
namespace {

/** How long ranks of one machine wait for each other to leave in an orderly way. */
constexpr auto farewell = std::chrono::seconds(5);
constexpr auto pause = std::chrono::microseconds(200);

Status cancelled() { return failure(Code::Cancelled, "connect", "Connecting was cancelled."); }

/** A connection that an old library makes without being able to stop: whoever comes last ends it. */
struct Attempt {
  std::mutex mutex;
  std::condition_variable over;
  bool isOver = false, isForsaken = false;
  int answer = collectives::success;
  CommunicatorHandle handle = nullptr;
};

/** For libraries without non-blocking calls: connects on a thread that is left alone when the token is cancelled. */
Result<CommunicatorHandle> connectOnThread(const std::shared_ptr<Device>& device, const UniqueId& id, int rank,
                                           int ranks, const CancelToken& token) {
  auto attempt = std::make_shared<Attempt>();
  const GpuApi api = device->api();
  const int ordinal = device->ordinal();
  std::thread([attempt, api, ordinal, id, rank, ranks] {
    api.setDevice(ordinal);
    CommunicatorHandle handle = nullptr;
    const int answer = api.connectBlocking(&handle, ranks, id, rank);
    std::unique_lock lock(attempt->mutex);
    if (attempt->isForsaken && answer == collectives::success) api.abortCommunicator(handle);
    attempt->answer = answer;
    attempt->handle = handle;
    attempt->isOver = true;
    attempt->over.notify_all();
  }).detach();
  std::unique_lock lock(attempt->mutex);
  while (!attempt->isOver && !token.isCancelled()) attempt->over.wait_for(lock, std::chrono::milliseconds(1));
  if (!attempt->isOver) {
    attempt->isForsaken = true;
    return cancelled();
  }
  if (attempt->answer != collectives::success)
    return collectivesFailure(api, api.connectBlocking.name, attempt->answer, nullptr);
  return attempt->handle;
}

Result<CommunicatorHandle> connectPolling(const std::shared_ptr<Device>& device, const UniqueId& id, int rank,
                                          int ranks, const CancelToken& token) {
  const GpuApi& api = device->api();
  CommunicatorConfig config;
  CommunicatorHandle handle = nullptr;
  int answer = api.connect(&handle, ranks, id, rank, &config);
  while (answer == collectives::inProgress && !token.isCancelled()) {
    std::this_thread::sleep_for(pause);
    const int asked = api.asyncError(handle, &answer);
    if (asked != collectives::success) answer = asked;
  }
  if (answer == collectives::success) return handle;
  const Status status =
      answer == collectives::inProgress ? cancelled() : collectivesFailure(api, api.connect.name, answer, handle);
  if (handle != nullptr) api.abortCommunicator(handle);
  return status;
}

}  // namespace

Result<std::shared_ptr<Communicator>> connectCommunicator(const std::shared_ptr<Device>& device, const UniqueId& id,
                                                          uint32_t rank, uint32_t ranks, const CancelToken& token) {
  if (token.isCancelled()) return cancelled();
  const GpuApi& api = device->api();
  DeviceScope scope(api, device->ordinal());
  if (Status status = scope.status(); !status.ok()) return status;
  const auto connect = api.connect ? connectPolling : connectOnThread;
  auto handle = connect(device, id, static_cast<int>(rank), static_cast<int>(ranks), token);
  if (!handle.ok()) return handle.status();
  auto communicator = std::make_shared<Communicator>(device, handle.value(), rank, ranks);
  device->adopt(communicator);
  return communicator;
}

Status Communicator::usable() const {
  if (!isOpen()) return failure(Code::InvalidHandle, "communicator", "The communicator is closed.");
  if (aborted_.load(std::memory_order_acquire))
    return failure(Code::PeerGone, device->api().abortCommunicator.name,
                   "The communicator was aborted when a run failed or was cancelled. Connect all ranks again.");
  return {};
}

void Communicator::abort() noexcept {
  if (!aborted_.exchange(true, std::memory_order_acq_rel)) device->api().abortCommunicator(handle_);
}

Status Communicator::asyncError() const {
  const GpuApi& api = device->api();
  int state = collectives::success;
  const int answer = api.asyncError(handle_, &state);
  if (answer != collectives::success) return collectivesFailure(api, api.asyncError.name, answer, handle_);
  if (state == collectives::success || state == collectives::inProgress) return {};
  return collectivesFailure(api, api.asyncError.name, state, handle_);
}

void Communicator::scheduleFinish() noexcept {
  auto self = std::static_pointer_cast<Communicator>(weak_from_this().lock());
  if (self == nullptr) return;
  const auto part = [self](const CancelToken& token) {
    DeviceScope scope(self->device->api(), self->device->ordinal());
    self->destroy(token);
    self->finish();
  };
  if (!device->connections->pool.submit(std::make_shared<Task>(part))) self->finish();
}

void Communicator::destroy(const CancelToken& token) noexcept {
  const auto lock = use();
  const GpuApi& api = device->api();
  if (aborted_.load(std::memory_order_acquire)) return;
  if (api.connect && api.finalizeCommunicator) {
    const auto end = std::chrono::steady_clock::now() + farewell;
    const auto stop = [&] { return token.isCancelled() || std::chrono::steady_clock::now() > end; };
    const int answer = api.finalizeCommunicator(handle_);
    if (!settle(api.finalizeCommunicator.name, answer, stop).ok()) return abort();
  }
  aborted_.store(true, std::memory_order_release);
  api.destroyCommunicator(handle_);
}

void Communicator::giveBack() noexcept {
  const auto lock = use();
  abort();
}

}  // namespace tensorferry::gpu
