// SPDX-License-Identifier: Apache-2.0
/*
 * Programs and comparisons for JavaScript. JS thread only; the work itself runs on the device's worker.
 */
#include <algorithm>

#include "bindings.h"
#include "programs/program.h"
#include "worker_job.h"

namespace tensorferry {

/** Valid while the function runs. */
template <>
struct Reader<gpu::WordTable> {
  static std::optional<gpu::WordTable> read(Napi::Value value) {
    const auto words = Reader<Napi::BigUint64Array>::read(value);
    return words ? std::optional(gpu::WordTable{words->Data(), words->ElementLength()}) : std::nullopt;
  }
};

namespace gpu {
namespace {

Answer createProgram(const Call& call, Open<Device> device, WordTable steps, std::vector<WordTable> moves,
                     std::optional<Open<Communicator>> communicator, std::optional<Open<StreamCalls>> calls) {
  auto program = Program::create(device, steps, moves, communicator.value_or(Open<Communicator>()),
                                 calls.value_or(Open<StreamCalls>()));
  return answerOf(std::move(program), [&](const auto& made) { return wrapResource(call.env, made); });
}

Answer startProgram(const Call& call, Open<Program> program, Napi::Function callback) {
  if (program->communicator != nullptr)
    if (Status status = program->communicator->usable(); !status.ok()) return status;
  const auto run = [program](WorkerJob& job) {
    return runProgram(*program, job.waker, job.cancelToken, job.movedBytes);
  };
  const auto give = [](Napi::Env env, const std::vector<double>& times) -> Napi::Value {
    auto array = Napi::Float64Array::New(env, times.size());
    std::copy(times.begin(), times.end(), array.Data());
    return array;
  };
  return call.start(program->device->programs, makeJob<WorkerJob>("program", run, give), callback);
}

Answer startCompare(const Call& call, Open<Device> device, WordTable table, Napi::Function callback) {
  auto compiled = compileComparison(table);
  if (!compiled.ok()) return compiled.status();
  const auto compare = [device, move = std::move(compiled.value())](WorkerJob& job) -> Result<Comparison> {
    if (job.cancelToken.isCancelled()) return cancelledEarly("compare", "The comparison");
    return compareRegions(*device, move.batch, move.elementBytes, job.waker, job.cancelToken);
  };
  const auto give = [](Napi::Env env, const Comparison& result) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("differing", static_cast<double>(result.differing));
    object.Set("first", static_cast<double>(result.first));
    return object;
  };
  return call.start(device->programs, makeJob<WorkerJob>("compare", compare, give), callback);
}

}  // namespace

void bindPrograms(Functions& functions) {
  functions
      .add<createProgram>("createProgram",
                          "(device, steps, tables of moves, communicator or undefined, taker of calls or undefined)")
      .add<startProgram>("startProgram", "(program, callback)")
      .add<close<Open<Program>>>("closeProgram", "(program)")
      .add<startCompare>("startCompare", "(device, a table of one move, callback)");
}

}  // namespace gpu
}  // namespace tensorferry
