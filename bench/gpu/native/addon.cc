// SPDX-License-Identifier: Apache-2.0
/*
 * The addon of measurements: what no user of the packages needs. Its libraries are those that @tensorferry/gpu has opened.
 */
#include <tensorferry_gpu/arguments.h>
#include <tensorferry_gpu/gpu_libraries.h>

#include "raw_copies.h"

namespace tensorferry::gpu {
namespace {

constexpr int abiVersion = 1;
constexpr size_t slotLimit = 65'536, streamLimit = 16;

/** The thread that measures, of one environment. */
struct Shared {
  std::shared_ptr<JobPool> pool;
};

Answer startRawCopies(const Call& call, Open<Libraries> libraries, Whole<INT32_MAX> ordinal, Big destination,
                      Big source, Whole<> bytes, Whole<slotLimit, 1> slots, Whole<lastRawSignal> signal,
                      Whole<streamLimit, 1> streams, Whole<slotLimit, 1> every, Whole<UINT32_MAX> count,
                      Napi::Function callback) {
  const RawSlots raw{destination, source, bytes, slots, static_cast<RawSignal>(signal.value), streams, every};
  const auto time = [libraries, ordinal, raw, count](Job& job) {
    return timeRawCopies(libraries->api, static_cast<int>(ordinal), raw, count, job.cancelToken);
  };
  const auto give = [](Napi::Env env, const RawTimes& times) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("submitSeconds", times.submitting);
    object.Set("seconds", times.all);
    return object;
  };
  return call.start(call.shared<Shared>().pool, makeJob("timeRawCopies", time, give), callback);
}

Napi::Object initialise(Napi::Env env, Napi::Object exports) {
  auto* shared = new Shared;
  napi_add_env_cleanup_hook(env, [](void* data) { delete static_cast<Shared*>(data); }, shared);
  Jobs* jobs = beginAddon(env, exports, "tensorferry-raw-copies", abiVersion);
  if (jobs == nullptr) return exports;
  shared->pool = jobs->makePool(1);
  Functions functions(env, exports, shared);
  bindJobControls<Open<Job>>(functions);
  functions.add<startRawCopies>("startRawCopies",
                                "(libraries, ordinal, destination, source, byteLength, slots, signal, streams, copies "
                                "per signal, count, callback)");
  return exports;
}

}  // namespace
}  // namespace tensorferry::gpu

Napi::Object Init(Napi::Env env, Napi::Object exports) { return tensorferry::gpu::initialise(env, exports); }

NODE_API_MODULE(raw_copies, Init)
