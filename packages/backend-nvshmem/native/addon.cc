// SPDX-License-Identifier: Apache-2.0
/*
 * The addon's functions for JavaScript. JS thread only; what waits runs on threads.
 */
#include <tensorferry/addon.h>

#include <tensorferry_gpu/arguments.h>
#include "exchange.h"

namespace tensorferry::nvshmem {
namespace {

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

/** Threads that wait for other PEs. */
constexpr unsigned waitingThreads = 8;

struct Shared {
  std::shared_ptr<JobPool> pool;
};

/** What JavaScript holds of an exchange: itself, and the same object as a program takes it. */
struct ExchangeHandle {
  static constexpr napi_type_tag typeTag{0x2e95c0a7d81b4f13, 0xa6041fd27be84903};
  static constexpr const char* kind = "exchange";
  bool isOpen() const noexcept { return object->session->isOpen(); }
  std::shared_ptr<Exchange> object;
};

using Int = Whole<INT32_MAX>;

template <typename Work, typename Give = Nothing>
Answer startJob(const Call& call, Napi::Function callback, Work work, Give give = {}) {
  return call.start(call.shared<Shared>().pool, makeJob("job", std::move(work), std::move(give)), callback);
}

Answer openLibraryOf(const Call& call, std::vector<std::string> names) {
  OpenedLibrary opened = openLibrary(names);
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("tried", toJs(call.env, opened.tried));
  if (opened.library != nullptr) {
    object.Set("library", wrap(call.env, opened.library));
    object.Set("path", opened.path);
    object.Set("version", opened.version);
  } else {
    object.Set("problem", opened.problem);
  }
  return object;
}

Answer createUniqueId(const Call& call, Open<Library> library) {
  UniqueId id{};
  id.version = versionOf<UniqueId>();
  const int answer = library->api.createUniqueId(&id);
  if (answer != 0)
    return failure(Code::SystemFailure, library->api.createUniqueId.name, "The library refused.", answer);
  return Napi::Buffer<uint8_t>::Copy(call.env, reinterpret_cast<const uint8_t*>(&id), sizeof id);
}

Answer startJoin(const Call& call, Open<Library> library, std::vector<std::string> runtime,
                 std::vector<std::string> driver, Int ordinal, BytesOf<UniqueId> id, Int rank, Int size,
                 Napi::Function callback) {
  if (rank >= size) return call.refusal();
  gpu::OpenedLibraries opened = gpu::openLibraries(gpu::Vendor::Cuda, {runtime, driver, {}, {}});
  if (opened.libraries == nullptr)
    return failure(Code::NotFound, call.function, opened.runtime.problem + " " + opened.driver.problem);
  auto session = std::make_shared<Session>(library, opened.libraries, static_cast<int>(ordinal), static_cast<int>(rank),
                                           static_cast<int>(size));
  return startJob(
      call, callback, [session, id](Job& job) { return session->join(id.value, job.cancelToken); },
      [session](Napi::Env env) { return wrap(env, session); });
}

Answer startAllocate(const Call& call, Open<Session> session, Whole<> bytes, Napi::Function callback) {
  return startJob(
      call, callback, [session, bytes](Job& job) { return session->allocate(bytes, job.cancelToken); },
      [](Napi::Env env, void* address) { return bigint(env, address); });
}

Answer startLeave(const Call& call, Open<Session> session, Napi::Function callback) {
  return startJob(call, callback, [session](Job& job) { return session->leave(job.cancelToken); });
}

Status abandon(const Call&, Held<Session> session) {
  session->abandon();
  return {};
}

Answer pointerTo(const Call& call, Open<Session> session, Big address, Int pe) {
  if (pe >= static_cast<uint64_t>(session->size)) return call.refusal();
  gpu::DeviceScope scope(session->gpu(), session->ordinal);
  if (Status status = scope.status(); !status.ok()) return status;
  return bigint(call.env, session->api().pointer(address.as<const void>(), static_cast<int>(pe)));
}

Answer createExchange(const Call& call, Open<Session> session, Big address, Whole<> bytes, Whole<1 << 16> slots) {
  auto made = Exchange::create(session, address.as<void>(), bytes, static_cast<uint32_t>(slots));
  return answerOf(std::move(made), [&](const std::shared_ptr<Exchange>& exchange) {
    Napi::Object object = Napi::Object::New(call.env);
    object.Set("exchange", wrap(call.env, std::make_shared<ExchangeHandle>(ExchangeHandle{exchange})));
    object.Set("calls", wrap<gpu::StreamCalls>(call.env, exchange));
    return object;
  });
}

Status setRun(const Call&, Open<ExchangeHandle> exchange, Whole<Exchange::runLimit> run) {
  exchange->object->setRun(run);
  return {};
}

Status closeExchange(const Call&, Open<ExchangeHandle> exchange) {
  exchange->object->close();
  return {};
}

template <Status (Exchange::*step)(const CancelToken&)>
Answer startStep(const Call& call, Open<ExchangeHandle> handle, Napi::Function callback) {
  return startJob(call, callback,
                  [exchange = handle->object](Job& job) { return (exchange.get()->*step)(job.cancelToken); });
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  auto* shared = new Shared;
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  Jobs* jobs = beginAddon(env, exports, "tensorferry-nvshmem", abiVersion);
  if (jobs == nullptr) return exports;
  shared->pool = jobs->makePool(waitingThreads);
  Functions functions(env, exports, shared);
  functions.add<openLibraryOf>("openLibrary", "(list of names)")
      .add<createUniqueId>("createUniqueId", "(library)")
      .add<startJoin>("startJoin",
                      "(library, names of the runtime, names of the driver, device, identity, rank, size, callback)")
      .add<startAllocate>("startAllocate", "(session, bytes, callback)")
      .add<startLeave>("startLeave", "(session, callback)")
      .add<abandon>("abandon", "(session)")
      .add<pointerTo>("pointerTo", "(session, address, PE)")
      .add<createExchange>("createExchange", "(session, address, bytes, slots)")
      .add<setRun>("setRun", "(exchange, number)")
      .add<startStep<&Exchange::quiet>>("startQuiet", "(exchange, callback)")
      .add<startStep<&Exchange::reset>>("startReset", "(exchange, callback)")
      .add<startStep<&Exchange::decline>>("startDecline", "(exchange, callback)")
      .add<closeExchange>("closeExchange", "(exchange)");
  bindJobControls<Open<Job>>(functions);
  return exports;
}

}  // namespace
}  // namespace tensorferry::nvshmem

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  return tensorferry::initialised(env, exports, tensorferry::nvshmem::initialise);
}

NODE_API_MODULE(nvshmem, Init)
