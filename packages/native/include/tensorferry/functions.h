// SPDX-License-Identifier: Apache-2.0
/*
 * Functions that an addon exports. A function states by its parameters what it takes (arguments.h) and answers a value for
 * JavaScript or a Status. JS thread only.
 *
 * Invariant: a function runs only where all arguments are what it takes and none is left over. A wrong handle answers
 * InvalidHandle where its type has a kind; any other wrong argument answers InvalidArgument with the arguments expected.
 */
#pragma once

#include <tuple>
#include <utility>

#include "arguments.h"
#include "napi_jobs.h"

namespace tensorferry {

/** What an exported function answers: the value of a success, or the failure. */
using Answer = Result<Napi::Value>;

/** One call of an exported function. */
struct Call {
  const Napi::CallbackInfo& info;
  const Napi::Env env;
  const char* const function;
  /** The arguments in words. */
  const char* const expected;
  void* const data;

  /** What the functions of the addon share. */
  template <typename Shared>
  Shared& shared() const noexcept {
    return *static_cast<Shared*>(data);
  }
  Status refusal() const { return refusal(expected); }
  Status refusal(const char* arguments) const { return badArgument(function, arguments); }

  Answer start(const std::shared_ptr<JobPool>& pool, std::shared_ptr<Job> job, Napi::Function callback) const {
    return Jobs::of(env)->start(pool, std::move(job), callback);
  }
};

inline Napi::Value toAnswer(Napi::Env env, const Status& status) { return toJs(env, status, env.Undefined()); }
inline Napi::Value toAnswer(Napi::Env env, Answer answer) {
  return answer.ok() ? succeed(env, answer.value()) : toJs(env, answer.status());
}
/** For functions on the path of every batch, which answer a bare value. */
inline Napi::Value toAnswer(Napi::Env, Napi::Value value) { return value; }

template <typename Result, typename... Arguments, size_t... at>
Napi::Value callWith(const Call& call, Result (*function)(const Call&, Arguments...), std::index_sequence<at...>) {
  const size_t given = call.info.Length();
  std::tuple<std::optional<Arguments>...> read{
      Reader<Arguments>::read(at < given ? call.info[at] : call.env.Undefined())...};
  const char* missing = nullptr;
  ((missing = missing == nullptr && !std::get<at>(read) ? kindOf<Arguments>() : missing), ...);
  if (missing != nullptr) return toJs(call.env, notOpen(call.function, missing));
  if (given > sizeof...(Arguments) || !(std::get<at>(read).has_value() && ...)) return toJs(call.env, call.refusal());
  return toAnswer(call.env, function(call, std::move(*std::get<at>(read))...));
}

template <typename Result, typename... Arguments>
Napi::Value callWith(const Call& call, Result (*function)(const Call&, Arguments...)) {
  return callWith(call, function, std::index_sequence_for<Arguments...>());
}

/** What an addon exports. `shared` outlives the environment's functions. */
class Functions {
 public:
  Functions(Napi::Env env, Napi::Object exports, void* shared = nullptr) noexcept
      : env_(env), exports_(exports), shared_(shared) {}

  /** Exports a function; `expected` says its arguments in words, in parentheses. */
  template <auto function>
  Functions& add(const char* name, const char* expected) {
    const auto call = [name, expected, shared = shared_](const Napi::CallbackInfo& info) {
      return guarded(info, name, [&] { return callWith(Call{info, info.Env(), name, expected, shared}, function); });
    };
    exports_.Set(name, Napi::Function::New(env_, call, name));
    return *this;
  }

 private:
  Napi::Env env_;
  Napi::Object exports_;
  void* shared_;
};

/** A function that closes an object, by its handle. */
template <typename Handle>
Status close(const Call&, Handle object) {
  object->close();
  return {};
}

/** What JavaScript gets of a fallible value. */
template <typename T, typename Give>
Answer answerOf(Result<T> made, Give give) {
  if (!made.ok()) return made.status();
  return Napi::Value(give(made.value()));
}

inline Napi::Value bigint(Napi::Env env, uint64_t value) { return Napi::BigInt::New(env, value); }
inline Napi::Value bigint(Napi::Env env, const void* pointer) {
  return Napi::BigInt::New(env, reinterpret_cast<uint64_t>(pointer));
}

/** Where bytes of JavaScript lie. */
inline Answer addressOf(const Call& call, Napi::Uint8Array bytes) {
  if (bytes.ArrayBuffer().IsDetached()) return call.refusal();
  return bigint(call.env, bytes.Data());
}

/** Texts as a list of JavaScript. */
inline Napi::Array toJs(Napi::Env env, const std::vector<std::string>& texts) {
  Napi::Array list = Napi::Array::New(env, texts.size());
  for (size_t i = 0; i < texts.size(); i++) list.Set(static_cast<uint32_t>(i), texts[i]);
  return list;
}

/**
 * Bytes at an address as an array buffer that shares ownership of what holds them. Empty where the thread is being
 * terminated, as in type_tags.h.
 */
template <typename Holder>
Napi::ArrayBuffer sharedBuffer(Napi::Env env, void* bytes, size_t length, std::shared_ptr<Holder> holder) {
  auto* held = new std::shared_ptr<Holder>(std::move(holder));
  auto buffer = Napi::ArrayBuffer::New(
      env, bytes, length, [](Napi::Env, void*, std::shared_ptr<Holder>* owner) { delete owner; }, held);
  if (buffer.IsEmpty()) held->reset();
  return buffer;
}

}  // namespace tensorferry
