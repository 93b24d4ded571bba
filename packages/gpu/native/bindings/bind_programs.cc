// SPDX-License-Identifier: Apache-2.0
/*
 * Programs and comparisons for JavaScript. JS thread only; the work itself runs on the device's worker.
 */
#include <algorithm>

#include <tensorferry_gpu/arguments.h>
#include "bindings.h"
#include "programs/program.h"
#include "worker_job.h"

namespace tensorferry::gpu {
namespace {

class ProgramJob final : public WorkerJob {
 public:
  explicit ProgramJob(std::shared_ptr<Program> program) noexcept : program_(std::move(program)) {}
  void run(size_t) noexcept override {
    Status status = caught("program", [&] {
      auto times = runProgram(*program_, waker_, cancelToken, movedBytes);
      if (times.ok()) times_ = std::move(times.value());
      return times.ok() ? Status{} : times.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    auto array = Napi::Float64Array::New(env, times_.size());
    std::copy(times_.begin(), times_.end(), array.Data());
    return array;
  }

 private:
  std::shared_ptr<Program> program_;
  std::vector<double> times_;
};

class CompareJob final : public WorkerJob {
 public:
  CompareJob(std::shared_ptr<Device> device, Batch batch, size_t elementBytes) noexcept
      : device_(std::move(device)), batch_(std::move(batch)), elementBytes_(elementBytes) {}
  void run(size_t) noexcept override {
    Status status = caught("compare", [&] {
      if (cancelToken.isCancelled()) return failure(Code::Cancelled, "compare", "The comparison was cancelled.");
      auto result = compareRegions(*device_, batch_, elementBytes_, waker_, cancelToken);
      if (result.ok()) result_ = result.value();
      return result.ok() ? Status{} : result.status();
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("differing", static_cast<double>(result_.differing));
    object.Set("first", static_cast<double>(result_.first));
    return object;
  }

 private:
  std::shared_ptr<Device> device_;
  Batch batch_;
  size_t elementBytes_;
  Comparison result_{0, -1};
};

WordTable wordsOf(Napi::Value value) {
  auto array = value.As<Napi::BigUint64Array>();
  return {array.Data(), array.ElementLength()};
}

std::optional<std::vector<WordTable>> readTables(Napi::Value value) {
  if (!value.IsArray()) return std::nullopt;
  auto array = value.As<Napi::Array>();
  std::vector<WordTable> tables;
  for (uint32_t i = 0; i < array.Length(); i++) {
    Napi::Value table = array.Get(i);
    if (!isWords(table)) return std::nullopt;
    tables.push_back(wordsOf(table));
  }
  return tables;
}

Napi::Value createProgram(const Napi::CallbackInfo& info) {
  return guarded(info, "createProgram", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "createProgram", "device");
    const auto moves = readTables(argument(info, 2));
    if (!isWords(argument(info, 1)) || !moves)
      return toJs(env, badArgument("createProgram", "(device, steps, tables of moves, communicator or undefined)"));
    std::shared_ptr<Communicator> communicator;
    if (!argument(info, 3).IsUndefined()) {
      communicator = openResource<Communicator>(info[3]);
      if (communicator == nullptr) return badHandle(env, "createProgram", "communicator");
    }
    std::shared_ptr<StreamCalls> calls;
    if (!argument(info, 4).IsUndefined()) {
      calls = unwrap<StreamCalls>(info[4]);
      if (calls == nullptr) return badHandle(env, "createProgram", "taker of calls");
    }
    auto program = Program::create(device, wordsOf(info[1]), *moves, std::move(communicator), std::move(calls));
    if (!program.ok()) return toJs(env, program.status());
    return succeed(env, wrapResource(env, program.value()));
  });
}

Napi::Value startProgram(const Napi::CallbackInfo& info) {
  return guarded(info, "startProgram", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto program = openResource<Program>(argument(info, 0));
    if (program == nullptr) return badHandle(env, "startProgram", "program");
    if (!argument(info, 1).IsFunction()) return toJs(env, badArgument("startProgram", "(program, callback)"));
    if (program->communicator != nullptr)
      if (Status status = program->communicator->usable(); !status.ok()) return toJs(env, status);
    return Jobs::of(env)->start(program->device->programs, std::make_shared<ProgramJob>(program),
                                info[1].As<Napi::Function>());
  });
}

Napi::Value closeProgram(const Napi::CallbackInfo& info) {
  return guarded(info, "closeProgram", [&]() -> Napi::Value {
    auto program = openResource<Program>(argument(info, 0));
    if (program == nullptr) return badHandle(info.Env(), "closeProgram", "program");
    program->close();
    return succeed(info.Env());
  });
}

Napi::Value startCompare(const Napi::CallbackInfo& info) {
  return guarded(info, "startCompare", [&]() -> Napi::Value {
    Napi::Env env = info.Env();
    auto device = unwrap<Device>(argument(info, 0));
    if (device == nullptr || !device->isOpen()) return badHandle(env, "startCompare", "device");
    if (!isWords(argument(info, 1)) || !argument(info, 2).IsFunction())
      return toJs(env, badArgument("startCompare", "(device, a table of one move, callback)"));
    auto move = compileComparison(wordsOf(info[1]));
    if (!move.ok()) return toJs(env, move.status());
    auto job = std::make_shared<CompareJob>(device, std::move(move.value().batch), move.value().elementBytes);
    return Jobs::of(env)->start(device->programs, std::move(job), info[2].As<Napi::Function>());
  });
}

}  // namespace

void bindPrograms(Napi::Env env, Napi::Object exports, Shared* shared) {
  exportFunction<createProgram>(env, exports, "createProgram", shared);
  exportFunction<startProgram>(env, exports, "startProgram", shared);
  exportFunction<closeProgram>(env, exports, "closeProgram", shared);
  exportFunction<startCompare>(env, exports, "startCompare", shared);
}

}  // namespace tensorferry::gpu
