// SPDX-License-Identifier: Apache-2.0
/*
 * How a client waits for its agent to complete a command. JS thread only; the wait, and the reading of the reply behind it,
 * are one job, because every way between threads costs more than either.
 */
#include "bindings.h"
#include "lmdb_file.h"
#include "semaphores.h"

namespace tensorferry {
namespace {

/** The semaphore of one command in JavaScript hands; empty once closed. */
struct CompletionHandle {
  static constexpr napi_type_tag typeTag{0x3b9d61f0c7e84a25, 0xb26f8e1d5a907c43};
  std::string name;
  std::shared_ptr<Semaphore> semaphore;
};

class AwaitJob final : public Job {
 public:
  AwaitJob(std::shared_ptr<Semaphore> semaphore, std::shared_ptr<LmdbFile> file, std::string key, double milliseconds)
      : semaphore_(std::move(semaphore)), file_(std::move(file)), key_(std::move(key)), milliseconds_(milliseconds) {}
  void run(size_t) noexcept override {
    const auto semaphore = std::move(semaphore_);  // JavaScript may hold the job for long
    const auto file = std::move(file_);
    Status status = caught("await completion", [&] {
      switch (semaphore->wait(Deadline(milliseconds_), cancelToken)) {
        case Semaphore::Waited::taken:
          break;
        case Semaphore::Waited::timedOut:
          return Status{};
        case Semaphore::Waited::cancelled:
          return failure(Code::Cancelled, "await completion", "The wait was cancelled.");
      }
      isCompleted_ = true;
      auto values = file->get({key_});
      if (!values.ok()) return values.status();
      reply_ = std::move(values.value()[0]);
      return Status{};
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("isCompleted", isCompleted_);
    if (reply_) object.Set("reply", toBytes(env, *reply_));
    return object;
  }

 private:
  std::shared_ptr<Semaphore> semaphore_;
  std::shared_ptr<LmdbFile> file_;
  std::string key_;
  double milliseconds_;
  bool isCompleted_ = false;
  std::optional<std::string> reply_;
};

Napi::Value openCompletion(const Napi::CallbackInfo& info) {
  return guarded(info, "openCompletion", [&]() -> Napi::Value {
    if (info.Length() != 1 || !info[0].IsString()) return toJs(info.Env(), badArgument("openCompletion", "(name)"));
    auto handle = std::make_shared<CompletionHandle>();
    handle->name = info[0].As<Napi::String>().Utf8Value();
    auto semaphore = Semaphore::create(handle->name, 0);
    if (!semaphore.ok()) return toJs(info.Env(), semaphore.status());
    handle->semaphore = std::make_shared<Semaphore>(std::move(semaphore.value()));
    return succeed(info.Env(), wrap(info.Env(), std::move(handle)));
  });
}

Napi::Value startAwaitCompletion(const Napi::CallbackInfo& info) {
  return guarded(info, "startAwaitCompletion", [&]() -> Napi::Value {
    std::string key;
    auto pool = info.Length() == 6 ? unwrap<JobPool>(info[0]) : nullptr;
    auto handle = info.Length() == 6 ? unwrap<CompletionHandle>(info[1]) : nullptr;
    auto file = info.Length() == 6 ? fileOf(info[2]) : nullptr;
    if (pool == nullptr || handle == nullptr || handle->semaphore == nullptr || file == nullptr ||
        !readBytes(info[3], key) || !info[4].IsNumber() || !info[5].IsFunction())
      return toJs(info.Env(), badArgument("startAwaitCompletion",
                                          "(pool, open completion, open file, key, milliseconds, callback)"));
    auto job = std::make_shared<AwaitJob>(handle->semaphore, std::move(file), std::move(key),
                                          info[4].As<Napi::Number>().DoubleValue());
    return Jobs::of(info.Env())->start(pool, std::move(job), info[5].As<Napi::Function>());
  });
}

/** A wait that still runs keeps the semaphore open until it ends. */
Napi::Value closeCompletion(const Napi::CallbackInfo& info) {
  return guarded(info, "closeCompletion", [&]() -> Napi::Value {
    auto handle = info.Length() == 1 ? unwrap<CompletionHandle>(info[0]) : nullptr;
    if (handle == nullptr) return toJs(info.Env(), badArgument("closeCompletion", "(completion)"));
    if (handle->semaphore != nullptr) Semaphore::unlink(handle->name);
    handle->semaphore = nullptr;
    return succeed(info.Env());
  });
}

/** For a client that is to go on without a reply. */
Napi::Value completeWithoutReply(const Napi::CallbackInfo& info) {
  return guarded(info, "completeWithoutReply", [&]() -> Napi::Value {
    if (info.Length() != 1 || !info[0].IsString())
      return toJs(info.Env(), badArgument("completeWithoutReply", "(name)"));
    return toJs(info.Env(), Semaphore::complete(info[0].As<Napi::String>().Utf8Value()));
  });
}

}  // namespace

void bindCompletions(Napi::Env env, Napi::Object exports) {
  exports.Set("openCompletion", Napi::Function::New(env, openCompletion));
  exports.Set("startAwaitCompletion", Napi::Function::New(env, startAwaitCompletion));
  exports.Set("completeWithoutReply", Napi::Function::New(env, completeWithoutReply));
  exports.Set("closeCompletion", Napi::Function::New(env, closeCompletion));
}

}  // namespace tensorferry
