// SPDX-License-Identifier: Apache-2.0
/*
 * The control functions of the simulated driver for JavaScript. Test only; not part of the product.
 *
 *   openSimulator(path) -> { configure(text), report(), reset(), settle(), allocateVirtual(bytes), freeVirtual(address),
 *                            read(address, bytes), write(address, Uint8Array),
 *                            createStream(device), destroyStream(stream), readOnStream(stream, address, bytes) }
 *
 * `read` and `write` touch simulated device memory directly, which is host memory in truth. The streams are a consumer's:
 * `readOnStream` queues a copy of device memory behind what the stream has to do, and answers what it read.
 */
#include <dlfcn.h>

#include <cstring>
#include <string>

#include <tensorferry/napi_setup.h>

namespace {

struct Simulator {
  int (*configure)(const char*);
  size_t (*report)(char*, size_t);
  void (*reset)();
  size_t (*settle)();
  void* (*allocateVirtual)(size_t);
  int (*freeVirtual)(void*);
  int (*getDevice)(int*);
  int (*setDevice)(int);
  int (*createStream)(void**, unsigned);
  int (*destroyStream)(void*);
  int (*copyAsync)(void*, const void*, size_t, int, void*);
};
Simulator simulator;

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

uint64_t addressOf(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

Napi::Value openSimulator(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  void* library = dlopen(info[0].As<Napi::String>().Utf8Value().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Napi::Error::New(env, dlerror()).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  find(library, "tensorferry_sim_configure", simulator.configure);
  find(library, "tensorferry_sim_report", simulator.report);
  find(library, "tensorferry_sim_reset", simulator.reset);
  find(library, "tensorferry_sim_settle", simulator.settle);
  find(library, "tensorferry_sim_allocate_virtual", simulator.allocateVirtual);
  find(library, "tensorferry_sim_free_virtual", simulator.freeVirtual);
  find(library, "cudaGetDevice", simulator.getDevice);
  find(library, "cudaSetDevice", simulator.setDevice);
  find(library, "cudaStreamCreateWithFlags", simulator.createStream);
  find(library, "cudaStreamDestroy", simulator.destroyStream);
  find(library, "cudaMemcpyAsync", simulator.copyAsync);
  Napi::Object object = Napi::Object::New(env);
  const auto add = [&](const char* name, auto function) { object.Set(name, Napi::Function::New(env, function, name)); };
  add("configure", [](const Napi::CallbackInfo& call) -> Napi::Value {
    return Napi::Number::New(call.Env(), simulator.configure(call[0].As<Napi::String>().Utf8Value().c_str()));
  });
  add("report", [](const Napi::CallbackInfo& call) -> Napi::Value {
    std::string text(simulator.report(nullptr, 0) + 4096, '\0');
    text.resize(std::min(text.size() - 1, simulator.report(text.data(), text.size())));
    return Napi::String::New(call.Env(), text);
  });
  add("reset", [](const Napi::CallbackInfo& call) -> Napi::Value {
    simulator.reset();
    return call.Env().Undefined();
  });
  add("settle", [](const Napi::CallbackInfo& call) -> Napi::Value {
    return Napi::Number::New(call.Env(), static_cast<double>(simulator.settle()));
  });
  add("allocateVirtual", [](const Napi::CallbackInfo& call) -> Napi::Value {
    void* address = simulator.allocateVirtual(static_cast<size_t>(call[0].As<Napi::Number>().Int64Value()));
    return Napi::BigInt::New(call.Env(), reinterpret_cast<uint64_t>(address));
  });
  add("freeVirtual", [](const Napi::CallbackInfo& call) -> Napi::Value {
    return Napi::Number::New(call.Env(), simulator.freeVirtual(reinterpret_cast<void*>(addressOf(call[0]))));
  });
  add("read", [](const Napi::CallbackInfo& call) -> Napi::Value {
    const auto* bytes = reinterpret_cast<const uint8_t*>(addressOf(call[0]));
    return Napi::Buffer<uint8_t>::Copy(call.Env(), bytes, static_cast<size_t>(call[1].As<Napi::Number>().Int64Value()));
  });
  add("write", [](const Napi::CallbackInfo& call) -> Napi::Value {
    auto bytes = call[1].As<Napi::Uint8Array>();
    std::memcpy(reinterpret_cast<void*>(addressOf(call[0])), bytes.Data(), bytes.ElementLength());
    return call.Env().Undefined();
  });
  add("createStream", [](const Napi::CallbackInfo& call) -> Napi::Value {
    int former = 0;
    void* stream = nullptr;
    simulator.getDevice(&former);
    simulator.setDevice(call[0].As<Napi::Number>().Int32Value());
    simulator.createStream(&stream, 1);
    simulator.setDevice(former);
    return Napi::BigInt::New(call.Env(), reinterpret_cast<uint64_t>(stream));
  });
  add("destroyStream", [](const Napi::CallbackInfo& call) -> Napi::Value {
    return Napi::Number::New(call.Env(), simulator.destroyStream(reinterpret_cast<void*>(addressOf(call[0]))));
  });
  add("readOnStream", [](const Napi::CallbackInfo& call) -> Napi::Value {
    const auto bytes = static_cast<size_t>(call[2].As<Napi::Number>().Int64Value());
    auto buffer = Napi::Buffer<uint8_t>::New(call.Env(), bytes);
    // The memory is pageable, so the driver returns when the copy is done.
    simulator.copyAsync(buffer.Data(), reinterpret_cast<const void*>(addressOf(call[1])), bytes, 4,
                        reinterpret_cast<void*>(addressOf(call[0])));
    return buffer;
  });
  return object;
}

}  // namespace

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  exports.Set("openSimulator", Napi::Function::New(env, openSimulator));
  return exports;
}

NODE_API_MODULE(simulator_control, Init)
