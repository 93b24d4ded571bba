// SPDX-License-Identifier: Apache-2.0
/*
 * Persistent threads that run parallel-for tasks in the order of their submission; idle threads help the first task.
 *
 * Any thread may submit. `run` is called on pool threads, `done` exactly once on the thread that ran the last index. Threads
 * that have nothing to do may stay awake for a while: to wake one costs as much as a short task takes.
 * Invariant: the destructor cancels what is queued, waits until every task is done, and joins.
 */
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace tensorferry {

/** Work over the indices `0 .. count - 1`, which may run in any order and at the same time. */
class ParallelTask {
 public:
  virtual ~ParallelTask() = default;
  /** Read once, at submission. A task of no indices runs index 0. */
  virtual size_t count() const noexcept { return 1; }
  virtual void run(size_t index) noexcept = 0;
  virtual void done() noexcept = 0;
  /** Makes the indices that have not run do nothing. */
  virtual void cancel() noexcept = 0;

 private:
  friend class ThreadPool;
  size_t total_ = 0, taken_ = 0, finished_ = 0;  // guarded by the pool's mutex
};

class ThreadPool {
 public:
  /** `awake`: how long a thread looks for the next task before it sleeps. Throws where a thread cannot be made; those that were have ended then. */
  explicit ThreadPool(unsigned threads, std::chrono::microseconds awake = {}) : awake_(awake) {
    // Signals belong to the process's main thread: a handler on a pool thread would run in the middle of a copy.
    sigset_t all, before;
    sigfillset(&all);
    // A fault in memory that was cut short is the thread's own, and has a handler.
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      for (unsigned i = 0; i < std::max(1u, threads); i++) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error& error) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      close();
      throw std::system_error(error.code(), "A thread could not be made");
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      close();
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  ~ThreadPool() { close(); }

  size_t size() const noexcept { return threads_.size(); }

  /** False once the pool is closed; the task is then not run and `done` is not called. */
  bool submit(std::shared_ptr<ParallelTask> task) {
    task->total_ = std::max<size_t>(1, task->count());
    {
      std::lock_guard lock(mutex_);
      if (closed_) return false;
      active_.push_back(task);
      queue_.push_back(std::move(task));
      isCalled_.store(true, std::memory_order_release);
    }
    wake_.notify_all();
    return true;
  }

  /** Cancels every task, waits for all of them and ends the threads. Not from a pool thread. */
  void close() noexcept {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
      isCalled_.store(true, std::memory_order_release);
      for (auto& task : active_) task->cancel();
    }
    wake_.notify_all();
    for (auto& thread : threads_)
      if (thread.joinable()) thread.join();
  }

 private:
  /** Returns when there may be a task, or when it is time to sleep. */
  void stayAwake() const noexcept {
    const auto until = std::chrono::steady_clock::now() + awake_;
    while (!isCalled_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  }

  void work() noexcept {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (queue_.empty() && !closed_ && awake_.count() > 0) {
        isCalled_.store(false, std::memory_order_relaxed);
        lock.unlock();
        stayAwake();
        lock.lock();
      }
      wake_.wait(lock, [this] { return closed_ || !queue_.empty(); });
      if (queue_.empty()) return;
      std::shared_ptr<ParallelTask> task = queue_.front();
      const size_t index = task->taken_++;
      if (task->taken_ == task->total_) queue_.pop_front();
      lock.unlock();
      task->run(index);
      lock.lock();
      if (++task->finished_ < task->total_) continue;
      active_.erase(std::find(active_.begin(), active_.end(), task));
      lock.unlock();
      task->done();
      task.reset();
      lock.lock();
    }
  }

  const std::chrono::microseconds awake_;
  std::atomic<bool> isCalled_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<ParallelTask>> queue_;
  std::vector<std::shared_ptr<ParallelTask>> active_;
  std::vector<std::thread> threads_;
  bool closed_ = false;
};

}  // namespace tensorferry
