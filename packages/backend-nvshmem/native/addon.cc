// SPDX-License-Identifier: Apache-2.0
/*
 * The addon's functions for JavaScript. JS thread only; what waits runs on threads.
 */
#include <cstring>

#include <tensorferry/addon.h>

#include <tensorferry_gpu/arguments.h>
#include "exchange.h"

namespace tensorferry::nvshmem {
namespace {

using gpu::argument;
using gpu::bigint;
using gpu::readBigint;
using gpu::readNumber;
using gpu::readTexts;

/** Raised whenever a function exported here changes its meaning; TypeScript refuses another number. */
constexpr int abiVersion = 1;

/** Threads that wait for other PEs. */
constexpr unsigned waitingThreads = 8;

struct Shared {
  std::shared_ptr<JobPool> pool;
};
Shared& sharedOf(const Napi::CallbackInfo& info) { return *static_cast<Shared*>(info.Data()); }

template <typename Body>
class BodyJob final : public Job {
 public:
  explicit BodyJob(Body body) : body_(std::move(body)) {}
  void run(size_t) noexcept override {
    Status status = caught("job", [&]() -> Status { return body_(*this); });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return give ? give(env) : env.Undefined(); }
  std::function<Napi::Value(Napi::Env)> give;

 private:
  Body body_;
};

template <typename Body>
Napi::Value startJob(const Napi::CallbackInfo& info, size_t callbackAt, Body body,
                     std::function<Napi::Value(Napi::Env)> give = nullptr) {
  auto job = std::make_shared<BodyJob<Body>>(std::move(body));
  job->give = std::move(give);
  return Jobs::of(info.Env())->start(sharedOf(info).pool, job, info[callbackAt].As<Napi::Function>());
}

Napi::Value openLibraryOf(const Napi::CallbackInfo& info) {
  return guarded(info, "openLibrary", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    const auto names = readTexts(argument(info, 0));
    if (!names) return toJs(env, badArgument("openLibrary", "(list of names)"));
    OpenedLibrary opened = openLibrary(*names);
    Napi::Object object = Napi::Object::New(env);
    Napi::Array tried = Napi::Array::New(env, opened.tried.size());
    for (size_t i = 0; i < opened.tried.size(); i++) tried.Set(static_cast<uint32_t>(i), opened.tried[i]);
    object.Set("tried", tried);
    if (opened.library != nullptr) {
      object.Set("library", wrap(env, opened.library));
      object.Set("path", opened.path);
      object.Set("version", opened.version);
    } else {
      object.Set("problem", opened.problem);
    }
    return succeed(env, object);
  });
}

Napi::Value createUniqueId(const Napi::CallbackInfo& info) {
  return guarded(info, "createUniqueId", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto library = unwrap<Library>(argument(info, 0));
    if (library == nullptr) return badHandle(env, "createUniqueId", "library");
    UniqueId id{};
    id.version = versionOf<UniqueId>();
    const int answer = library->api.createUniqueId(&id);
    if (answer != 0)
      return toJs(env, failure(Code::SystemFailure, library->api.createUniqueId.name, "The library refused.", answer));
    return succeed(env, Napi::Buffer<uint8_t>::Copy(env, reinterpret_cast<const uint8_t*>(&id), sizeof id));
  });
}

Napi::Value startJoin(const Napi::CallbackInfo& info) {
  return guarded(info, "startJoin", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto library = unwrap<Library>(argument(info, 0));
    if (library == nullptr) return badHandle(env, "startJoin", "library");
    const auto runtime = readTexts(argument(info, 1)), driver = readTexts(argument(info, 2));
    const auto ordinal = readNumber(argument(info, 3), INT32_MAX), rank = readNumber(argument(info, 5), INT32_MAX),
               size = readNumber(argument(info, 6), INT32_MAX);
    const bool isIdentity =
        gpu::isBytes(argument(info, 4)) && info[4].As<Napi::Uint8Array>().ByteLength() == sizeof(UniqueId);
    if (!runtime || !driver || !ordinal || !isIdentity || !rank || !size || *rank >= *size ||
        !argument(info, 7).IsFunction())
      return toJs(
          env,
          badArgument("startJoin",
                      "(library, names of the runtime, names of the driver, device, identity, rank, size, callback)"));
    gpu::OpenedLibraries opened = gpu::openLibraries(gpu::Vendor::Cuda, {*runtime, *driver, {}, {}});
    if (opened.libraries == nullptr)
      return toJs(env, failure(Code::NotFound, "startJoin", opened.runtime.problem + " " + opened.driver.problem));
    UniqueId id;
    std::memcpy(&id, info[4].As<Napi::Uint8Array>().Data(), sizeof id);
    auto session = std::make_shared<Session>(library, opened.libraries, static_cast<int>(*ordinal),
                                             static_cast<int>(*rank), static_cast<int>(*size));
    return startJob(
        info, 7, [session, id](Job& job) { return session->join(id, job.cancelToken); },
        [session](Napi::Env where) { return wrap(where, session); });
  });
}

std::shared_ptr<Session> openSession(Napi::Value value) {
  auto session = unwrap<Session>(value);
  return session != nullptr && session->isOpen() ? session : nullptr;
}

Napi::Value startAllocate(const Napi::CallbackInfo& info) {
  return guarded(info, "startAllocate", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto session = openSession(argument(info, 0));
    if (session == nullptr) return badHandle(env, "startAllocate", "session");
    const auto bytes = readNumber(argument(info, 1), gpu::largestExact);
    if (!bytes || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startAllocate", "(session, bytes, callback)"));
    auto address = std::make_shared<void*>(nullptr);
    return startJob(
        info, 2,
        [session, bytes = static_cast<size_t>(*bytes), address](Job& job) -> Status {
          auto made = session->allocate(bytes, job.cancelToken);
          if (!made.ok()) return made.status();
          *address = made.value();
          return {};
        },
        [address](Napi::Env where) { return bigint(where, reinterpret_cast<uint64_t>(*address)); });
  });
}

Napi::Value startLeave(const Napi::CallbackInfo& info) {
  return guarded(info, "startLeave", [&]() -> Napi::Value {
    auto session = openSession(argument(info, 0));
    if (session == nullptr) return badHandle(info.Env(), "startLeave", "session");
    if (!argument(info, 1).IsFunction()) return toJs(info.Env(), badArgument("startLeave", "(session, callback)"));
    return startJob(info, 1, [session](Job& job) { return session->leave(job.cancelToken); });
  });
}

Napi::Value abandon(const Napi::CallbackInfo& info) {
  return guarded(info, "abandon", [&]() -> Napi::Value {
    auto session = unwrap<Session>(argument(info, 0));
    if (session == nullptr) return badHandle(info.Env(), "abandon", "session");
    session->abandon();
    return succeed(info.Env());
  });
}

Napi::Value pointerTo(const Napi::CallbackInfo& info) {
  return guarded(info, "pointerTo", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto session = openSession(argument(info, 0));
    if (session == nullptr) return badHandle(env, "pointerTo", "session");
    const auto address = readBigint(argument(info, 1));
    const auto pe = readNumber(argument(info, 2), static_cast<uint64_t>(session->size) - 1);
    if (!address || !pe) return toJs(env, badArgument("pointerTo", "(session, address, PE)"));
    gpu::DeviceScope scope(session->gpu(), session->ordinal);
    if (Status status = scope.status(); !status.ok()) return toJs(env, status);
    void* there = session->api().pointer(reinterpret_cast<const void*>(*address), static_cast<int>(*pe));
    return succeed(env, bigint(env, reinterpret_cast<uint64_t>(there)));
  });
}

/** What JavaScript holds of an exchange: itself, and the same object as a program takes it. */
struct ExchangeHandle {
  static constexpr napi_type_tag typeTag{0x2e95c0a7d81b4f13, 0xa6041fd27be84903};
  std::shared_ptr<Exchange> object;
};

Napi::Value createExchange(const Napi::CallbackInfo& info) {
  return guarded(info, "createExchange", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto session = openSession(argument(info, 0));
    if (session == nullptr) return badHandle(env, "createExchange", "session");
    const auto address = readBigint(argument(info, 1));
    const auto bytes = readNumber(argument(info, 2), gpu::largestExact), slots = readNumber(argument(info, 3), 1 << 16);
    if (!address || !bytes || !slots)
      return toJs(env, badArgument("createExchange", "(session, address, bytes, slots)"));
    auto made = Exchange::create(session, reinterpret_cast<void*>(*address), static_cast<size_t>(*bytes),
                                 static_cast<uint32_t>(*slots));
    if (!made.ok()) return toJs(env, made.status());
    Napi::Object object = Napi::Object::New(env);
    object.Set("exchange", wrap(env, std::make_shared<ExchangeHandle>(ExchangeHandle{made.value()})));
    object.Set("calls", wrap<gpu::StreamCalls>(env, made.value()));
    return succeed(env, object);
  });
}

std::shared_ptr<Exchange> openExchange(Napi::Value value) {
  auto handle = unwrap<ExchangeHandle>(value);
  return handle != nullptr && handle->object->session->isOpen() ? handle->object : nullptr;
}

Napi::Value setRun(const Napi::CallbackInfo& info) {
  return guarded(info, "setRun", [&]() -> Napi::Value {
    auto exchange = openExchange(argument(info, 0));
    if (exchange == nullptr) return badHandle(info.Env(), "setRun", "exchange");
    const auto run = readNumber(argument(info, 1), Exchange::runLimit);
    if (!run) return toJs(info.Env(), badArgument("setRun", "(exchange, number)"));
    exchange->setRun(*run);
    return succeed(info.Env());
  });
}

Napi::Value closeExchange(const Napi::CallbackInfo& info) {
  return guarded(info, "closeExchange", [&]() -> Napi::Value {
    auto exchange = openExchange(argument(info, 0));
    if (exchange == nullptr) return badHandle(info.Env(), "closeExchange", "exchange");
    exchange->close();
    return succeed(info.Env());
  });
}

template <Status (Exchange::*step)(const CancelToken&)>
Napi::Value startStep(const Napi::CallbackInfo& info) {
  return guarded(info, "startStep", [&]() -> Napi::Value {
    auto exchange = openExchange(argument(info, 0));
    if (exchange == nullptr) return badHandle(info.Env(), "startStep", "exchange");
    if (!argument(info, 1).IsFunction()) return toJs(info.Env(), badArgument("startStep", "(exchange, callback)"));
    return startJob(info, 1, [exchange](Job& job) { return (exchange.get()->*step)(job.cancelToken); });
  });
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  auto* shared = new Shared;
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  Jobs* jobs = beginAddon(env, exports, "tensorferry-nvshmem", abiVersion);
  if (jobs == nullptr) return exports;
  shared->pool = jobs->makePool(waitingThreads);
  const auto add = [&](const char* name, Napi::Value (*function)(const Napi::CallbackInfo&)) {
    exports.Set(name, Napi::Function::New(env, function, name, shared));
  };
  add("openLibrary", openLibraryOf);
  add("createUniqueId", createUniqueId);
  add("startJoin", startJoin);
  add("startAllocate", startAllocate);
  add("startLeave", startLeave);
  add("abandon", abandon);
  add("pointerTo", pointerTo);
  add("createExchange", createExchange);
  add("setRun", setRun);
  add("startQuiet", startStep<&Exchange::quiet>);
  add("startReset", startStep<&Exchange::reset>);
  add("startDecline", startStep<&Exchange::decline>);
  add("closeExchange", closeExchange);
  bindJobControls<notOpen>(env, exports);
  return exports;
}

}  // namespace
}  // namespace tensorferry::nvshmem

Napi::Object Init(Napi::Env env, Napi::Object exports) { return tensorferry::nvshmem::initialise(env, exports); }

NODE_API_MODULE(nvshmem, Init)
