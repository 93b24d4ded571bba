// SPDX-License-Identifier: Apache-2.0
/*
 * Long work off the JS thread, answered by one callback on it.
 *
 * `Jobs` belongs to one JavaScript environment and is used on its JS thread; only `finished` is called by pool threads.
 * A `Job` runs on a pool; JavaScript may cancel it and read its progress at any time.
 * Invariants: the callback of a job comes exactly once, unless the environment goes away first; JS references are kept
 * here and die on the JS thread; when the environment goes away, all threads end before anything else is released.
 */
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "cancel.h"
#include "napi_status.h"
#include "thread_pool.h"
#include "type_tags.h"

namespace tensorferry {

class Jobs;

class Job : public ParallelTask {
 public:
  static constexpr napi_type_tag typeTag{0x7f2f3f6d1c9a4b01, 0x9d2b8e53a6c04f11};
  static constexpr const char* kind = "job";

  void cancel() noexcept override { cancelToken.cancel(); }
  void done() noexcept override;

  /** Keeps the first failure. Any thread. */
  void fail(Status status) noexcept {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    failed_.cancel();
  }

  /** True where the remaining indices should do nothing. */
  bool shouldStop() const noexcept { return cancelToken.isCancelled() || failed_.isCancelled(); }

  /** The outcome, once done. A job that was cancelled may have finished all the same; it then counts as done. */
  Status status() noexcept {
    std::lock_guard lock(mutex_);
    return status_;
  }

  /** What JavaScript gets on success. JS thread, after the last index. */
  virtual Napi::Value value(Napi::Env env) { return env.Undefined(); }

  CancelToken cancelToken;
  ProgressCounter movedBytes;

 private:
  friend class Jobs;
  std::weak_ptr<Job> self_;
  Jobs* jobs_ = nullptr;
  CancelToken failed_;
  std::mutex mutex_;
  Status status_;
};

/** A job that no pool runs. Whoever works on it calls `done` once. */
class EventJob : public Job {
 private:
  void run(size_t) noexcept final {}
};

/** What has threads of its own, which must end before the environment does. */
struct ThreadOwner {
  virtual ~ThreadOwner() = default;
  /** Ends the threads; jobs that they work on are done then. JS thread; may be called again. */
  virtual void close() = 0;
};

/** A pool in JavaScript hands. */
struct JobPool : ThreadOwner {
  static constexpr napi_type_tag typeTag{0x2c1be06aa5a14d22, 0x8f0b3c7715e94a02};
  explicit JobPool(unsigned threads, std::chrono::microseconds awake = {}) : pool(threads, awake) {}
  void close() override { pool.close(); }
  ThreadPool pool;
};

class Jobs {
 public:
  /** Makes the environment's instance. Call it once, when the addon is initialised. */
  static Jobs* create(Napi::Env env, const char* name) {
    auto* jobs = new Jobs(env);
    napi_value resource = Napi::String::New(env, name);
    // Made before the cleanup hook below: hooks run newest first, so pools end while this function can still be called.
    if (napi_create_threadsafe_function(env, nullptr, nullptr, resource, 0, 1, nullptr, nullptr, jobs, &Jobs::deliver,
                                        &jobs->callback_) != napi_ok) {
      delete jobs;
      return nullptr;
    }
    napi_unref_threadsafe_function(env, jobs->callback_);
    napi_set_instance_data(env, jobs, [](napi_env, void* data, void*) { delete static_cast<Jobs*>(data); }, nullptr);
    napi_add_env_cleanup_hook(env, &Jobs::shutDown, jobs);
    return jobs;
  }

  static Jobs* of(Napi::Env env) {
    void* data = nullptr;
    napi_get_instance_data(env, &data);
    return static_cast<Jobs*>(data);
  }

  /** `awake` as of a ThreadPool. */
  std::shared_ptr<JobPool> makePool(unsigned threads, std::chrono::microseconds awake = {}) {
    auto pool = std::make_shared<JobPool>(threads, awake);
    closeAtEnd(pool);
    return pool;
  }

  /** Closes the object when the environment goes away, if it is there then. */
  void closeAtEnd(const std::shared_ptr<ThreadOwner>& owner) {
    std::erase_if(owners_, [](const auto& weak) { return weak.expired(); });
    owners_.push_back(owner);
  }

  /** Gives a job to JavaScript before the work on it begins. */
  Napi::Value begin(const std::shared_ptr<ThreadOwner>& owner, const std::shared_ptr<EventJob>& job,
                    Napi::Function callback) {
    return keep(owner, job, callback);
  }

  /** Takes a job back that is done, before its callback was called, which then is not. False where that is too late. */
  bool take(Job* job) {
    if (running_.find(job) == running_.end()) return false;
    forget(job);
    return true;
  }

  /** Queues the job; `callback` gets `{ code, ..., value }`. Returns the job for JavaScript, or why it cannot run. */
  Result<Napi::Value> start(const std::shared_ptr<JobPool>& pool, std::shared_ptr<Job> job, Napi::Function callback) {
    const Napi::Value handle = keep(pool, job, callback);
    if (!pool->pool.submit(job)) {
      forget(job.get());
      return failure(Code::InvalidHandle, "start", "The pool is closed.");
    }
    return handle;
  }

 private:
  struct Running {
    std::shared_ptr<Job> job;
    std::shared_ptr<ThreadOwner> owner;
    Napi::FunctionReference callback;
  };

  explicit Jobs(Napi::Env env) : env_(env) {}

  Napi::Value keep(const std::shared_ptr<ThreadOwner>& owner, const std::shared_ptr<Job>& job,
                   Napi::Function callback) {
    job->self_ = job;
    job->jobs_ = this;
    running_.emplace(job.get(), Running{job, owner, Napi::Persistent(callback)});
    if (running_.size() == 1) napi_ref_threadsafe_function(env_, callback_);
    return wrap<Job>(env_, job);
  }

  friend class Job;
  void finished(std::shared_ptr<Job> job) noexcept {
    auto* held = new std::shared_ptr<Job>(std::move(job));
    if (napi_call_threadsafe_function(callback_, held, napi_tsfn_blocking) != napi_ok) delete held;
  }

  void forget(Job* job) {
    running_.erase(job);
    if (running_.empty()) napi_unref_threadsafe_function(env_, callback_);
  }

  static void deliver(napi_env env, napi_value, void* context, void* data) {
    std::unique_ptr<std::shared_ptr<Job>> held(static_cast<std::shared_ptr<Job>*>(data));
    if (env == nullptr) return;
    auto* jobs = static_cast<Jobs*>(context);
    const auto found = jobs->running_.find(held->get());
    if (found == jobs->running_.end()) return;
    Napi::HandleScope scope(env);
    Napi::Function callback = found->second.callback.Value();
    std::shared_ptr<ThreadOwner> owner =
        found->second.owner;  // may be the last one: dropped after the call, not inside it
    jobs->forget(held->get());
    const Status status = (*held)->status();
    Napi::Value value = status.ok() ? (*held)->value(env) : Napi::Env(env).Undefined();
    callback.Call({toJs(env, status, value)});
  }

  static void shutDown(void* data) {
    auto* jobs = static_cast<Jobs*>(data);
    for (auto& weak : jobs->owners_)
      if (auto owner = weak.lock()) owner->close();
    jobs->running_.clear();
  }

  Napi::Env env_;
  napi_threadsafe_function callback_ = nullptr;
  std::map<Job*, Running> running_;
  std::vector<std::weak_ptr<ThreadOwner>> owners_;
};

inline void Job::done() noexcept {
  if (auto self = self_.lock()) jobs_->finished(std::move(self));
}

template <typename T>
struct IsResult : std::false_type {};
template <typename T>
struct IsResult<Result<T>> : std::true_type {};

/** What a job without a value gives. */
struct Nothing {
  Napi::Value operator()(Napi::Env env) const { return env.Undefined(); }
};

/**
 * A job of one function, which gets the job and answers a Status, or a value that `give` turns into one of JavaScript. Both
 * live as long as the job, which JavaScript may hold for long: a function that must let go of something moves it out.
 */
template <typename Base, typename Work, typename Give>
class WorkJob final : public Base {
 public:
  WorkJob(const char* op, Work work, Give give) : op_(op), work_(std::move(work)), give_(std::move(give)) {}

  void run(size_t) noexcept override {
    Status status = caught(op_, [&]() -> Status {
      if constexpr (hasValue) {
        made_.emplace(work_(*this));
        return made_->ok() ? Status{} : made_->status();
      } else {
        return work_(*this);
      }
    });
    if (!status.ok()) this->fail(std::move(status));
  }

  Napi::Value value(Napi::Env env) override {
    if constexpr (hasValue) return give_(env, made_->value());
    else return give_(env);
  }

 private:
  using Made = std::invoke_result_t<Work&, Base&>;
  static constexpr bool hasValue = IsResult<Made>::value;

  const char* const op_;
  Work work_;
  Give give_;
  std::optional<Made> made_;
};

/** A job of a function; failures of the standard library name `op`. `Base` is what the function needs of its job. */
template <typename Base = Job, typename Work, typename Give = Nothing>
std::shared_ptr<Job> makeJob(const char* op, Work work, Give give = {}) {
  return std::make_shared<WorkJob<Base, Work, Give>>(op, std::move(work), std::move(give));
}

}  // namespace tensorferry
