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

}  // namespace

template <>
struct Holder<CommandQueue> {
  static std::shared_ptr<CommandQueue> take(Napi::Value value) {
    auto handle = unwrap<QueueHandle>(value);
    return handle == nullptr ? nullptr : handle->queue;
  }
};

namespace {

using Queue = std::shared_ptr<CommandQueue>;

/** Jobs let go of their queue when they have run: JavaScript may hold a job for long, and a closed queue must be free. */
template <typename Work, typename Give = Nothing>
std::shared_ptr<Job> queueJob(const char* op, Queue queue, Work work, Give give = {}) {
  auto run = [queue = std::move(queue), work = std::move(work)](Job& job) mutable {
    const auto held = std::move(queue);
    return work(*held, job);
  };
  return makeJob(op, std::move(run), std::move(give));
}

Answer startOpenQueue(const Call& call, Pool pool, std::string path, bool asAgent, Whole<1u << 30, 1> capacity,
                      Whole<> mapBytes, double milliseconds, Napi::Function callback) {
  const QueueSettings settings{path, capacity, mapBytes};
  const auto open = [settings, asAgent, milliseconds](Job& job) {
    return asAgent ? CommandQueue::serve(settings, job.cancelToken)
                   : CommandQueue::connect(settings, Deadline(milliseconds), job.cancelToken);
  };
  const auto give = [](Napi::Env env, auto& queue) {
    return wrap(env, std::make_shared<QueueHandle>(QueueHandle{std::move(queue)}));
  };
  return call.start(pool, makeJob("open queue", open, give), callback);
}

Answer startEnqueue(const Call& call, Pool pool, Queue queue, ByteArrays messages, double milliseconds,
                    Napi::Function callback) {
  const auto enqueue = [messages = std::move(messages), milliseconds](CommandQueue& open, Job& job) {
    return open.enqueue(messages.value, Deadline(milliseconds), job.cancelToken, job.movedBytes);
  };
  return call.start(pool, queueJob("enqueue", std::move(queue), enqueue), callback);
}

Answer startDequeue(const Call& call, Pool pool, Queue queue, Whole<1u << 20, 1> most, double milliseconds,
                    Napi::Function callback) {
  const auto dequeue = [most, milliseconds](CommandQueue& open, Job& job) {
    return open.dequeue(most, Deadline(milliseconds), job.cancelToken);
  };
  const auto give = [](Napi::Env env, const CommandQueue::Taken& taken) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    Napi::Array lengths = Napi::Array::New(env, taken.lengths.size());
    for (size_t i = 0; i < taken.lengths.size(); i++) lengths.Set(static_cast<uint32_t>(i), taken.lengths[i]);
    object.Set("bytes", toBytes(env, taken.bytes));
    object.Set("lengths", lengths);
    object.Set("skipped", static_cast<double>(taken.skipped));
    Napi::Array corrupt = Napi::Array::New(env, taken.corrupt.size());
    for (size_t i = 0; i < taken.corrupt.size(); i++)
      corrupt.Set(static_cast<uint32_t>(i), static_cast<double>(taken.corrupt[i]));
    object.Set("corrupt", corrupt);
    return object;
  };
  return call.start(pool, queueJob("dequeue", std::move(queue), dequeue, give), callback);
}

Answer startQueueStatus(const Call& call, Pool pool, Queue queue, Napi::Function callback) {
  const auto read = [](CommandQueue& open, Job&) { return open.status(); };
  const auto give = [](Napi::Env env, const QueueStatus& status) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("head", bigint(env, status.head));
    object.Set("tail", bigint(env, status.tail));
    object.Set("items", status.items);
    object.Set("space", status.space);
    return object;
  };
  return call.start(pool, queueJob("queue status", std::move(queue), read, give), callback);
}

Answer queueSetAside(const Call& call, Queue queue) { return Napi::String::New(call.env, queue->setAside()); }

/** Work that still runs keeps the queue open until it ends. */
Status closeQueue(const Call&, std::shared_ptr<QueueHandle> handle, bool destroy) {
  if (handle->queue != nullptr && destroy) handle->queue->destroy();
  handle->queue = nullptr;
  return {};
}

}  // namespace

void bindQueue(Functions& functions) {
  functions.add<startOpenQueue>("startOpenQueue", "(pool, path, asAgent, capacity, mapBytes, milliseconds, callback)")
      .add<startEnqueue>("startEnqueue", "(pool, open queue, messages, milliseconds, callback)")
      .add<startDequeue>("startDequeue", "(pool, open queue, most, milliseconds, callback)")
      .add<startQueueStatus>("startQueueStatus", "(pool, open queue, callback)")
      .add<queueSetAside>("queueSetAside", "(open queue)")
      .add<closeQueue>("closeQueue", "(queue, destroy)");
}

}  // namespace tensorferry
