// SPDX-License-Identifier: Apache-2.0
/*
 * Command queues for JavaScript. JS thread only; everything that may wait is a job.
 */
#include "bindings.h"
#include "command_queue.h"

namespace tensorferry {
namespace {

/** A queue in JavaScript hands; empty once closed. */
struct QueueHandle {
  static constexpr napi_type_tag typeTag{0xb5d0a7e36c1f4e92, 0x9e47c3a86d20f51b};
  std::shared_ptr<CommandQueue> queue;
};

/** Jobs let go of their queue when they have run: JavaScript may hold a job for long, and a closed queue must be free. */
template <typename Body>
void run(Job& job, const char* op, Body body) noexcept {
  Status status = caught(op, body);
  if (!status.ok()) job.fail(std::move(status));
}

class OpenJob final : public Job {
 public:
  OpenJob(QueueSettings settings, bool asAgent, double milliseconds)
      : settings_(std::move(settings)), asAgent_(asAgent), milliseconds_(milliseconds) {}
  void run(size_t) noexcept override {
    tensorferry::run(*this, "open queue", [&] {
      auto opened = asAgent_ ? CommandQueue::serve(settings_, cancelToken)
                             : CommandQueue::connect(settings_, Deadline(milliseconds_), cancelToken);
      if (!opened.ok()) return opened.status();
      queue_ = opened.value();
      return Status{};
    });
  }
  Napi::Value value(Napi::Env env) override { return wrap(env, std::make_shared<QueueHandle>(std::move(queue_))); }

 private:
  QueueSettings settings_;
  bool asAgent_;
  double milliseconds_;
  std::shared_ptr<CommandQueue> queue_;
};

class EnqueueJob final : public Job {
 public:
  EnqueueJob(std::shared_ptr<CommandQueue> queue, std::vector<std::string> messages, double milliseconds)
      : queue_(std::move(queue)), messages_(std::move(messages)), milliseconds_(milliseconds) {}
  void run(size_t) noexcept override {
    const auto queue = std::move(queue_);
    tensorferry::run(*this, "enqueue",
                     [&] { return queue->enqueue(messages_, Deadline(milliseconds_), cancelToken, movedBytes); });
  }

 private:
  std::shared_ptr<CommandQueue> queue_;
  std::vector<std::string> messages_;
  double milliseconds_;
};

class DequeueJob final : public Job {
 public:
  DequeueJob(std::shared_ptr<CommandQueue> queue, uint64_t most, double milliseconds)
      : queue_(std::move(queue)), most_(most), milliseconds_(milliseconds) {}
  void run(size_t) noexcept override {
    const auto queue = std::move(queue_);
    tensorferry::run(*this, "dequeue", [&] {
      auto taken = queue->dequeue(most_, Deadline(milliseconds_), cancelToken);
      if (!taken.ok()) return taken.status();
      taken_ = std::move(taken.value());
      return Status{};
    });
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    Napi::Array lengths = Napi::Array::New(env, taken_.lengths.size());
    for (size_t i = 0; i < taken_.lengths.size(); i++) lengths.Set(static_cast<uint32_t>(i), taken_.lengths[i]);
    object.Set("bytes", toBytes(env, taken_.bytes));
    object.Set("lengths", lengths);
    object.Set("skipped", static_cast<double>(taken_.skipped));
    return object;
  }

 private:
  std::shared_ptr<CommandQueue> queue_;
  uint64_t most_;
  double milliseconds_;
  CommandQueue::Taken taken_;
};

class StatusJob final : public Job {
 public:
  explicit StatusJob(std::shared_ptr<CommandQueue> queue) : queue_(std::move(queue)) {}
  void run(size_t) noexcept override {
    const auto queue = std::move(queue_);
    tensorferry::run(*this, "queue status", [&] {
      auto status = queue->status();
      if (!status.ok()) return status.status();
      status_ = status.value();
      return Status{};
    });
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Object object = Napi::Object::New(env);
    object.Set("head", Napi::BigInt::New(env, status_.head));
    object.Set("tail", Napi::BigInt::New(env, status_.tail));
    object.Set("items", status_.items);
    object.Set("space", status_.space);
    return object;
  }

 private:
  std::shared_ptr<CommandQueue> queue_;
  QueueStatus status_{};
};

constexpr uint64_t exact = (1ull << 53) - 1;

std::shared_ptr<CommandQueue> queueOf(Napi::Value value) {
  auto handle = unwrap<QueueHandle>(value);
  return handle == nullptr ? nullptr : handle->queue;
}

Napi::Value startOpenQueue(const Napi::CallbackInfo& info) {
  return guarded(info, "startOpenQueue", [&]() -> Napi::Value {
    QueueSettings settings{};
    auto pool = info.Length() == 7 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !info[1].IsString() || !info[2].IsBoolean() ||
        !readNumber(info[3], 1u << 30, settings.capacity) || settings.capacity == 0 ||
        !readNumber(info[4], exact, settings.mapBytes) || !info[5].IsNumber() || !info[6].IsFunction())
      return toJs(info.Env(),
                  badArgument("startOpenQueue", "(pool, path, asAgent, capacity, mapBytes, milliseconds, callback)"));
    settings.path = info[1].As<Napi::String>().Utf8Value();
    auto job = std::make_shared<OpenJob>(std::move(settings), info[2].As<Napi::Boolean>().Value(),
                                         info[5].As<Napi::Number>().DoubleValue());
    return Jobs::of(info.Env())->start(pool, std::move(job), info[6].As<Napi::Function>());
  });
}

Napi::Value startEnqueue(const Napi::CallbackInfo& info) {
  return guarded(info, "startEnqueue", [&]() -> Napi::Value {
    std::vector<std::string> messages;
    auto pool = info.Length() == 5 ? unwrap<JobPool>(info[0]) : nullptr;
    auto queue = info.Length() == 5 ? queueOf(info[1]) : nullptr;
    if (pool == nullptr || queue == nullptr || !readByteArrays(info[2], messages) || !info[3].IsNumber() ||
        !info[4].IsFunction())
      return toJs(info.Env(), badArgument("startEnqueue", "(pool, open queue, messages, milliseconds, callback)"));
    auto job =
        std::make_shared<EnqueueJob>(std::move(queue), std::move(messages), info[3].As<Napi::Number>().DoubleValue());
    return Jobs::of(info.Env())->start(pool, std::move(job), info[4].As<Napi::Function>());
  });
}

Napi::Value startDequeue(const Napi::CallbackInfo& info) {
  return guarded(info, "startDequeue", [&]() -> Napi::Value {
    uint64_t most = 0;
    auto pool = info.Length() == 5 ? unwrap<JobPool>(info[0]) : nullptr;
    auto queue = info.Length() == 5 ? queueOf(info[1]) : nullptr;
    if (pool == nullptr || queue == nullptr || !readNumber(info[2], 1u << 20, most) || most == 0 ||
        !info[3].IsNumber() || !info[4].IsFunction())
      return toJs(info.Env(), badArgument("startDequeue", "(pool, open queue, most, milliseconds, callback)"));
    auto job = std::make_shared<DequeueJob>(std::move(queue), most, info[3].As<Napi::Number>().DoubleValue());
    return Jobs::of(info.Env())->start(pool, std::move(job), info[4].As<Napi::Function>());
  });
}

Napi::Value startQueueStatus(const Napi::CallbackInfo& info) {
  return guarded(info, "startQueueStatus", [&]() -> Napi::Value {
    auto pool = info.Length() == 3 ? unwrap<JobPool>(info[0]) : nullptr;
    auto queue = info.Length() == 3 ? queueOf(info[1]) : nullptr;
    if (pool == nullptr || queue == nullptr || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startQueueStatus", "(pool, open queue, callback)"));
    return Jobs::of(info.Env())
        ->start(pool, std::make_shared<StatusJob>(std::move(queue)), info[2].As<Napi::Function>());
  });
}

/** Work that still runs keeps the queue open until it ends. */
Napi::Value closeQueue(const Napi::CallbackInfo& info) {
  return guarded(info, "closeQueue", [&]() -> Napi::Value {
    auto handle = info.Length() == 2 ? unwrap<QueueHandle>(info[0]) : nullptr;
    if (handle == nullptr || !info[1].IsBoolean())
      return toJs(info.Env(), badArgument("closeQueue", "(queue, destroy)"));
    if (handle->queue != nullptr && info[1].As<Napi::Boolean>().Value()) handle->queue->destroy();
    handle->queue = nullptr;
    return succeed(info.Env());
  });
}

}  // namespace

void bindQueue(Napi::Env env, Napi::Object exports) {
  exports.Set("startOpenQueue", Napi::Function::New(env, startOpenQueue));
  exports.Set("startEnqueue", Napi::Function::New(env, startEnqueue));
  exports.Set("startDequeue", Napi::Function::New(env, startDequeue));
  exports.Set("startQueueStatus", Napi::Function::New(env, startQueueStatus));
  exports.Set("closeQueue", Napi::Function::New(env, closeQueue));
}

}  // namespace tensorferry
