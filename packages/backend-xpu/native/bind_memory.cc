// SPDX-License-Identifier: Apache-2.0
/*
 * Memory of devices, imported host memory and batches of moves for JavaScript. JS thread only; the work itself runs on the
 * device's threads.
 */
#include "arguments.h"
#include "batch.h"
#include "bindings.h"

namespace tensorferry::xpu {
namespace {

class AllocateJob final : public Job {
 public:
  AllocateJob(std::shared_ptr<Device> device, uint64_t length) noexcept : device_(std::move(device)), length_(length) {}
  void run(size_t) noexcept override {
    Status status = caught("allocate", [&] {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "allocate", "The allocation was cancelled.");
      auto made = device_->allocate(length_);
      if (made.ok()) address_ = made.value();
      return made.ok() ? Status{} : made.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return Napi::BigInt::New(env, address_); }

 private:
  std::shared_ptr<Device> device_;
  uint64_t length_, address_ = 0;
};

class FreeJob final : public Job {
 public:
  FreeJob(std::shared_ptr<Device> device, uint64_t address) noexcept : device_(std::move(device)), address_(address) {}
  void run(size_t) noexcept override {
    if (cancelToken.isCancelled()) return;  // the closing device frees it
    Status status = caught("freeMemory", [&] { return device_->free(address_); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
  uint64_t address_;
};

class DrainJob final : public Job {
 public:
  explicit DrainJob(std::shared_ptr<Device> device) noexcept : device_(std::move(device)) {}
  void run(size_t) noexcept override {
    Status status = caught("drain", [&] { return device_->drain(cancelToken, std::chrono::nanoseconds::zero()); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
};

class MovesJob final : public Job {
 public:
  MovesJob(std::shared_ptr<Device> device, MoveList moves) noexcept
      : device_(std::move(device)), moves_(std::move(moves)) {}
  void run(size_t) noexcept override {
    Status status = caught("moves", [&] { return runBatch(*device_, moves_, cancelToken, movedBytes); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<Device> device_;
  MoveList moves_;
};

Napi::Value startAllocate(const Napi::CallbackInfo& info) {
  return guarded(info, "startAllocate", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(env, "startAllocate", "device");
    const auto length = readNumber(argument(info, 1));
    if (!length || *length == 0 || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startAllocate", "(device, byteLength of at least 1, callback)"));
    return Jobs::of(env)->start(device->calls, std::make_shared<AllocateJob>(device, *length),
                                info[2].As<Napi::Function>());
  });
}

Napi::Value startFree(const Napi::CallbackInfo& info) {
  return guarded(info, "startFree", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(env, "startFree", "device");
    const auto address = readNumber(argument(info, 1));
    if (!address || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startFree", "(device, address, callback)"));
    return Jobs::of(env)->start(device->calls, std::make_shared<FreeJob>(device, *address),
                                info[2].As<Napi::Function>());
  });
}

Napi::Value startDrain(const Napi::CallbackInfo& info) {
  return guarded(info, "startDrain", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(env, "startDrain", "device");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument("startDrain", "(device, callback)"));
    return Jobs::of(env)->start(device->waits, std::make_shared<DrainJob>(device), info[1].As<Napi::Function>());
  });
}

Napi::Value startMoves(const Napi::CallbackInfo& info) {
  return guarded(info, "startMoves", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = openDevice(argument(info, 0));
    if (device == nullptr) return badHandle(env, "startMoves", "device");
    if (!isTypedArray(argument(info, 1), napi_biguint64_array) || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startMoves", "(device, table of moves, callback)"));
    auto words = info[1].As<Napi::BigUint64Array>();
    auto moves = readBatch(words.Data(), words.ElementLength());
    if (!moves.ok()) return toJs(env, moves.status());
    auto job = std::make_shared<MovesJob>(device, std::move(moves.value()));
    return Jobs::of(env)->start(device->work, std::move(job), info[2].As<Napi::Function>());
  });
}

/** Both ways of importing take (device, address, byteLength). */
template <typename Body>
Napi::Value withHostRange(const Napi::CallbackInfo& info, const char* function, Body body) {
  Napi::Env env = info.Env();
  auto device = openDevice(argument(info, 0));
  if (device == nullptr) return badHandle(env, function, "device");
  const auto address = readNumber(argument(info, 1)), length = readNumber(argument(info, 2));
  if (!address || !length) return toJs(env, badArgument(function, "(device, address, byteLength)"));
  return toJs(env, body(device->driver(), reinterpret_cast<void*>(*address), *length));
}

Napi::Value importHost(const Napi::CallbackInfo& info) {
  return guarded(info, "importHost", [&] {
    return withHostRange(info, "importHost", [](DriverDevice& driver, void* memory, uint64_t length) {
      return driver.importHost(memory, length);
    });
  });
}

Napi::Value releaseHost(const Napi::CallbackInfo& info) {
  return guarded(info, "releaseHost", [&] {
    return withHostRange(info, "releaseHost",
                         [](DriverDevice& driver, void* memory, uint64_t) { return driver.releaseHost(memory); });
  });
}

Napi::Value addressOf(const Napi::CallbackInfo& info) {
  return guarded(info, "addressOf", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    if (!isTypedArray(argument(info, 0), napi_uint8_array) || info[0].As<Napi::TypedArray>().ArrayBuffer().IsDetached())
      return toJs(env, badArgument("addressOf", "(a Uint8Array that is not detached)"));
    return succeed(env, Napi::BigInt::New(env, reinterpret_cast<uint64_t>(info[0].As<Napi::Uint8Array>().Data())));
  });
}

}  // namespace

void bindMemory(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<startAllocate>(env, exports, "startAllocate", shared);
  exportFunction<startFree>(env, exports, "startFree", shared);
  exportFunction<startDrain>(env, exports, "startDrain", shared);
  exportFunction<startMoves>(env, exports, "startMoves", shared);
  exportFunction<importHost>(env, exports, "importHost", shared);
  exportFunction<releaseHost>(env, exports, "releaseHost", shared);
  exportFunction<addressOf>(env, exports, "addressOf", shared);
}

}  // namespace tensorferry::xpu
