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

/** What became of a wait: whether the command is completed, and the reply where there is one. */
struct Completed {
  bool isCompleted = false;
  std::optional<std::string> reply;
};

Result<Completed> awaitReply(Semaphore& semaphore, LmdbFile& file, const std::string& key, double milliseconds,
                             const CancelToken& token) {
  switch (semaphore.wait(Deadline(milliseconds), token)) {
    case Semaphore::Waited::taken:
      break;
    case Semaphore::Waited::timedOut:
      return Completed{};
    case Semaphore::Waited::cancelled:
      return failure(Code::Cancelled, "await completion", "The wait was cancelled.");
  }
  auto values = file.get({key});
  if (!values.ok()) return values.status();
  return Completed{true, std::move(values.value()[0])};
}

Answer openCompletion(const Call& call, std::string name) {
  return answerOf(Semaphore::create(name, 0), [&](Semaphore& semaphore) {
    auto made = std::make_shared<Semaphore>(std::move(semaphore));
    return wrap(call.env, std::make_shared<CompletionHandle>(CompletionHandle{name, std::move(made)}));
  });
}

Answer startAwaitCompletion(const Call& call, Pool pool, std::shared_ptr<CompletionHandle> handle,
                            std::shared_ptr<LmdbFile> file, Bytes key, double milliseconds, Napi::Function callback) {
  if (handle->semaphore == nullptr) return call.refusal();
  auto wait = [semaphore = handle->semaphore, file, key, milliseconds](Job& job) mutable {
    const auto awaited = std::move(semaphore);  // JavaScript may hold the job for long
    const auto replies = std::move(file);
    return awaitReply(*awaited, *replies, key.value, milliseconds, job.cancelToken);
  };
  const auto give = [](Napi::Env env, const Completed& completed) -> Napi::Value {
    Napi::Object object = Napi::Object::New(env);
    object.Set("isCompleted", completed.isCompleted);
    if (completed.reply) object.Set("reply", toBytes(env, *completed.reply));
    return object;
  };
  return call.start(pool, makeJob("await completion", std::move(wait), give), callback);
}

/** A wait that still runs keeps the semaphore open until it ends. */
Status closeCompletion(const Call&, std::shared_ptr<CompletionHandle> handle) {
  if (handle->semaphore != nullptr) Semaphore::unlink(handle->name);
  handle->semaphore = nullptr;
  return {};
}

/** For a client that is to go on without a reply. */
Status completeWithoutReply(const Call&, std::string name) { return Semaphore::complete(name); }

}  // namespace

void bindCompletions(Functions& functions) {
  functions.add<openCompletion>("openCompletion", "(name)")
      .add<startAwaitCompletion>("startAwaitCompletion",
                                 "(pool, open completion, open file, key, milliseconds, callback)")
      .add<completeWithoutReply>("completeWithoutReply", "(name)")
      .add<closeCompletion>("closeCompletion", "(completion)");
}

}  // namespace tensorferry
