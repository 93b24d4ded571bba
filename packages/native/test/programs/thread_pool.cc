// SPDX-License-Identifier: Apache-2.0
/*
 * Tests thread_pool.h: every task runs and ends once, whoever submits it and whenever; threads that stay awake take tasks and
 * leave as soon as those that sleep do.
 */
#include <tensorferry/thread_pool.h>

#include <cstdio>

using namespace tensorferry;

namespace {

int failures = 0;

void check(bool holds, const char* what) {
  if (holds) return;
  failures++;
  std::printf("FAILED: %s\n", what);
}

struct Counts {
  std::atomic<size_t> runs{0}, ends{0}, cancels{0};
};

class Counted final : public ParallelTask {
 public:
  Counted(Counts& counts, size_t indices) : counts_(counts), indices_(indices) {}
  size_t count() const noexcept override { return indices_; }
  void run(size_t) noexcept override { counts_.runs++; }
  void done() noexcept override { counts_.ends++; }
  void cancel() noexcept override { counts_.cancels++; }

 private:
  Counts& counts_;
  const size_t indices_;
};

double secondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/** Two threads submit, with pauses in which the pool's threads fall asleep or nearly do. */
void submitFromTwo(std::chrono::microseconds awake) {
  constexpr size_t each = 1000, indices = 3;
  Counts counts;
  {
    ThreadPool pool(2, awake);
    const auto submit = [&](unsigned seed) {
      for (size_t i = 0; i < each; i++) {
        check(pool.submit(std::make_shared<Counted>(counts, indices)), "an open pool takes a task");
        seed = seed * 1664525u + 1013904223u;
        if (seed >> 29 == 0) std::this_thread::sleep_for(std::chrono::microseconds(seed >> 24));
      }
    };
    std::thread other(submit, 1u);
    submit(2u);
    other.join();
    while (counts.ends < 2 * each) std::this_thread::yield();
  }
  check(counts.runs == 2 * each * indices, "every index runs once");
  check(counts.ends == 2 * each, "every task ends once");
  check(counts.cancels == 0, "nothing is cancelled that has ended");
}

/** A thread that would stay awake for long takes the next task at once, and leaves when the pool is closed. */
void leaveWhileAwake() {
  Counts counts;
  const auto begin = std::chrono::steady_clock::now();
  ThreadPool pool(3, std::chrono::seconds(600));
  for (size_t i = 1; i <= 20; i++) {
    check(pool.submit(std::make_shared<Counted>(counts, 1)), "an open pool takes a task");
    while (counts.ends < i) std::this_thread::yield();
  }
  pool.close();
  check(secondsSince(begin) < 60, "nobody waits until threads would sleep");
  check(!pool.submit(std::make_shared<Counted>(counts, 1)), "a closed pool takes no task");
  check(counts.runs == 20 && counts.ends == 20, "every task ran once");
}

}  // namespace

int main() {
  submitFromTwo({});
  submitFromTwo(std::chrono::microseconds(50));
  leaveWhileAwake();
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
