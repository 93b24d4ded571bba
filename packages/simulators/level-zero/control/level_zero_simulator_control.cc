// SPDX-License-Identifier: Apache-2.0
/*
 * The control functions of the simulated Level Zero driver for JavaScript. Test only; not part of the product.
 *
 *   openSimulator(path) -> { configure(text), report(), reset() }
 *   readMemory(address, bytes), writeMemory(address, Uint8Array), setEnvironment(name, text)
 *
 * Memory of the simulated driver and of OpenCL on a processor is host memory in truth. `setEnvironment` reaches what
 * libraries read, also from a worker thread, whose own environment is a copy.
 */
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include <tensorferry/napi_setup.h>

namespace {

uint64_t numberOf(const Napi::Value& value) {
  bool lossless = false;
  return value.As<Napi::BigInt>().Uint64Value(&lossless);
}

template <typename Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

Napi::Value openSimulator(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  void* library = dlopen(info[0].As<Napi::String>().Utf8Value().c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    Napi::Error::New(env, dlerror()).ThrowAsJavaScriptException();
    return env.Undefined();
  }
  auto* configure = find<int(const char*)>(library, "tensorferry_level_zero_configure");
  auto* report = find<size_t(char*, size_t)>(library, "tensorferry_level_zero_report");
  auto* reset = find<void()>(library, "tensorferry_level_zero_reset");
  Napi::Object object = Napi::Object::New(env);
  object.Set("configure", Napi::Function::New(env, [configure](const Napi::CallbackInfo& call) -> Napi::Value {
               return Napi::Number::New(call.Env(), configure(call[0].As<Napi::String>().Utf8Value().c_str()));
             }));
  object.Set("report", Napi::Function::New(env, [report](const Napi::CallbackInfo& call) -> Napi::Value {
               std::string text(report(nullptr, 0) + 4096, '\0');
               text.resize(std::min(text.size() - 1, report(text.data(), text.size())));
               return Napi::String::New(call.Env(), text);
             }));
  object.Set("reset", Napi::Function::New(env, [reset](const Napi::CallbackInfo& call) -> Napi::Value {
               reset();
               return call.Env().Undefined();
             }));
  return object;
}

Napi::Value readMemory(const Napi::CallbackInfo& info) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(numberOf(info[0]));
  return Napi::Buffer<uint8_t>::Copy(info.Env(), bytes, static_cast<size_t>(info[1].As<Napi::Number>().Int64Value()));
}

Napi::Value writeMemory(const Napi::CallbackInfo& info) {
  auto bytes = info[1].As<Napi::Uint8Array>();
  std::memcpy(reinterpret_cast<void*>(numberOf(info[0])), bytes.Data(), bytes.ElementLength());
  return info.Env().Undefined();
}

Napi::Value setEnvironment(const Napi::CallbackInfo& info) {
  ::setenv(info[0].As<Napi::String>().Utf8Value().c_str(), info[1].As<Napi::String>().Utf8Value().c_str(), 1);
  return info.Env().Undefined();
}

}  // namespace

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  exports.Set("openSimulator", Napi::Function::New(env, openSimulator));
  exports.Set("readMemory", Napi::Function::New(env, readMemory));
  exports.Set("writeMemory", Napi::Function::New(env, writeMemory));
  exports.Set("setEnvironment", Napi::Function::New(env, setEnvironment));
  return exports;
}

NODE_API_MODULE(simulator_control, Init)
