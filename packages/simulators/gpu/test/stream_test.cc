// SPDX-License-Identifier: Apache-2.0
/*
 * Order of work: a missing wait shows wrong data under some seed, a right one under none.
 */
#include <atomic>
#include <set>
#include <thread>

#include "check.h"

namespace {

constexpr int seeds = 200;
constexpr size_t bytes = 4096;

void fillHost(char* host, char value) { std::memset(host, value, bytes); }
bool allAre(const char* host, char value) {
  for (size_t index = 0; index < bytes; index++)
    if (host[index] != value) return false;
  return true;
}

/** Two streams, one writes, the other reads; answers whether the reader saw all of it. */
bool produceAndConsume(int seed, bool wait) {
  begin("seed=" + std::to_string(seed) + ",pace=0");
  void* producer = newStream();
  void* consumer = newStream();
  void* event = newEvent();
  char* memory = newMemory(bytes);
  char* in = newHost(bytes);
  char* out = newHost(bytes);
  fillHost(in, 42);
  fillHost(out, 0);
  OK(cudaMemcpyAsync(memory, in, bytes, 1, producer));
  OK(cudaEventRecord(event, producer));
  if (wait) OK(cudaStreamWaitEvent(consumer, event, 0));
  OK(cudaMemcpyAsync(out, memory, bytes, 2, consumer));
  OK(cudaStreamSynchronize(consumer));
  const bool right = allAre(out, 42);
  OK(cudaStreamSynchronize(producer));
  for (void* stream : {producer, consumer}) OK(cudaStreamDestroy(stream));
  OK(cudaEventDestroy(event));
  OK(cudaFree(memory));
  OK(cudaFreeHost(in));
  OK(cudaFreeHost(out));
  CLEAN();
  return right;
}

}  // namespace

TEST(a_missing_wait_is_seen) {
  int wrong = 0;
  for (int seed = 1; seed <= seeds; seed++) {
    wrong += !produceAndConsume(seed, false);
    CHECK(produceAndConsume(seed, true));
  }
  CHECK(wrong > 20);
}

TEST(a_host_that_does_not_wait_reads_too_early) {
  begin("pace=0");
  void* stream = newStream();
  char* memory = newMemory(bytes);
  char* out = newHost(bytes);
  fillHost(out, 1);
  OK(cudaMemsetAsync(memory, 9, bytes, stream));
  OK(cudaMemcpyAsync(out, memory, bytes, 2, stream));
  CHECK(allAre(out, 1));
  OK(cudaStreamSynchronize(stream));
  CHECK(allAre(out, 9));
}

TEST(a_source_changed_too_early_is_seen_when_page_locked) {
  begin("pace=0");
  void* stream = newStream();
  char* memory = newMemory(bytes);
  std::vector<char> pageable(bytes, 1);
  char* pinned = newHost(bytes);
  fillHost(pinned, 1);
  std::vector<char> out(bytes);
  OK(cudaMemcpyAsync(memory, pageable.data(), bytes, 1, stream));
  fillHost(pageable.data(), 2);
  OK(cudaMemcpyAsync(out.data(), memory, bytes, 2, stream));  // pageable target: done on return
  CHECK(allAre(out.data(), 1));
  OK(cudaMemcpyAsync(memory, pinned, bytes, 1, stream));
  fillHost(pinned, 2);
  OK(cudaMemcpyAsync(out.data(), memory, bytes, 2, stream));
  CHECK(allAre(out.data(), 2));
}

TEST(pieces_of_copies_interleave) {
  // A copy read by another stream without a wait may be seen half done.
  int halves = 0;
  for (int seed = 1; seed <= seeds; seed++) {
    begin("pace=0,seed=" + std::to_string(seed));
    void* one = newStream();
    void* two = newStream();
    char* memory = newMemory(bytes);
    char* out = newHost(bytes);
    OK(cudaMemsetAsync(memory, 0, bytes, one));
    OK(cudaStreamSynchronize(one));
    OK(cudaMemsetAsync(memory, 1, bytes, one));
    OK(cudaMemcpyAsync(out, memory, bytes, 2, two));
    OK(cudaStreamSynchronize(two));
    halves += !allAre(out, 0) && !allAre(out, 1);
    OK(cudaStreamSynchronize(one));
  }
  CHECK(halves > 5);
}

TEST(a_wait_captures_the_record_of_its_time) {
  for (int seed = 1; seed <= seeds; seed++) {
    begin("pace=0,stuck=2000,seed=" + std::to_string(seed));
    void* one = newStream();
    void* two = newStream();
    void* three = newStream();
    void* event = newEvent();
    void* never = newEvent();
    char* memory = newMemory(bytes);
    char* out = newHost(bytes);
    OK(cudaStreamWaitEvent(two, never, 0));  // never recorded: nothing to wait for
    OK(cudaEventSynchronize(never));
    OK(cudaEventQuery(never));
    OK(cudaMemsetAsync(memory, 5, bytes, one));
    OK(cudaEventRecord(event, one));
    OK(cudaStreamWaitEvent(two, event, 0));
    // Recorded again in a stream that waits for `two`: a wait for the latest record would be a deadlock.
    void* back = newEvent();
    OK(cudaEventRecord(back, two));
    OK(cudaStreamWaitEvent(three, back, 0));
    OK(cudaEventRecord(event, three));
    OK(cudaMemcpyAsync(out, memory, bytes, 2, two));
    OK(cudaStreamSynchronize(two));
    CHECK(allAre(out, 5));
    OK(cudaEventSynchronize(event));
    EQUAL(number("violationCount"), 0);
  }
}

TEST(queries_let_work_get_on) {
  begin("pace=0,query=100");
  void* stream = newStream();
  char* memory = newMemory(bytes);
  void* event = newEvent();
  for (int index = 0; index < 20; index++) OK(cudaMemsetAsync(memory, index, bytes, stream));
  OK(cudaEventRecord(event, stream));
  int asked = 0;
  while (cudaEventQuery(event) == 600) asked++;
  CHECK(asked > 3);
  OK(cudaEventQuery(event));
  OK(cudaStreamQuery(stream));
}

TEST(work_that_nobody_drives_gets_on_late) {
  begin("pace=1,query=0");
  void* stream = newStream();
  char* memory = newMemory(bytes);
  for (int index = 0; index < 300; index++) OK(cudaMemsetAsync(memory, index, bytes, stream));
  EQUAL(cudaStreamQuery(stream), 600);
  while (cudaStreamQuery(stream) == 600) std::this_thread::yield();
  OK(cudaStreamQuery(stream));
}

TEST(the_legacy_stream_orders_blocking_streams) {
  for (int seed = 1; seed <= seeds; seed++) {
    begin("pace=0,seed=" + std::to_string(seed));
    void* one = newStream(0);
    void* two = newStream(0);
    char* memory = newMemory(bytes);
    char* out = newHost(bytes);
    OK(cudaMemsetAsync(memory, 1, bytes, one));
    OK(cudaMemsetAsync(memory, 2, bytes, nullptr));
    OK(cudaMemcpyAsync(out, memory, bytes, 2, two));
    OK(cudaStreamSynchronize(two));
    CHECK(allAre(out, 2));
  }
  // One that does not block is not ordered.
  int wrong = 0;
  for (int seed = 1; seed <= seeds; seed++) {
    begin("pace=0,seed=" + std::to_string(seed));
    void* one = newStream(1);
    char* memory = newMemory(bytes);
    char* out = newHost(bytes);
    OK(cudaMemsetAsync(memory, 2, bytes, nullptr));
    OK(cudaMemcpyAsync(out, memory, bytes, 2, one));
    OK(cudaStreamSynchronize(one));
    wrong += !allAre(out, 2);
    OK(cudaDeviceSynchronize());
  }
  CHECK(wrong > 20);
}

TEST(a_synchronous_copy_between_devices_does_not_wait) {
  begin("pace=0");
  char* one = newMemory(bytes);
  char* two = newMemory(bytes);
  std::vector<char> host(bytes, 3);
  OK(cudaMemcpy(one, host.data(), bytes, 1));
  OK(cudaMemcpy(two, one, bytes, 3));
  CHECK(number("pending") > 0);
  OK(cudaMemcpy(host.data(), two, bytes, 2));
  CHECK(allAre(host.data(), 3));
}

TEST(rows_are_copied) {
  for (int seed = 1; seed <= 50; seed++) {
    begin("seed=" + std::to_string(seed));
    void* stream = newStream();
    char* memory = newMemory(7 * 13);
    std::vector<char> in(5 * 11), out(5 * 17, 0);
    for (size_t index = 0; index < in.size(); index++) in[index] = static_cast<char>(index + 1);
    OK(cudaMemcpy2DAsync(memory, 13, in.data(), 11, 9, 5, 1, stream));
    OK(cudaMemcpy2DAsync(out.data(), 17, memory, 13, 9, 5, 2, stream));
    for (size_t row = 0; row < 5; row++)
      for (size_t column = 0; column < 17; column++)
        EQUAL(out[row * 17 + column], column < 9 ? in[row * 11 + column] : 0);
  }
}

TEST(time_between_events) {
  begin("");
  void* stream = newStream();
  void* start = newEvent(0);
  void* end = newEvent(0);
  void* untimed = newEvent(2);
  float milliseconds = -1;
  EQUAL(cudaEventElapsedTime(&milliseconds, start, end), 400);
  OK(tensorferry_sim_configure("pace=0,query=0"));
  OK(cudaEventRecord(start, stream));
  OK(cudaEventRecord(end, stream));
  EQUAL(cudaEventElapsedTime(&milliseconds, start, end), 600);
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&milliseconds, start, end));
  CHECK(milliseconds >= 0);
  EQUAL(cudaEventElapsedTime(&milliseconds, start, untimed), 400);
  void* bad = nullptr;
  EQUAL(cudaEventCreateWithFlags(&bad, 4), 1);
}

TEST(host_functions_run_in_order_and_call_nothing) {
  begin("");
  void* stream = newStream();
  static std::atomic<int> order{0};
  order = 0;
  OK(cudaLaunchHostFunc(stream, [](void*) { ++order; }, nullptr));
  int second = 0;
  OK(cudaLaunchHostFunc(stream, [](void* data) { *static_cast<int*>(data) = ++order; }, &second));
  int answer = 0;
  OK(cudaLaunchHostFunc(stream, [](void* data) { *static_cast<int*>(data) = cudaFree(nullptr); }, &answer));
  OK(cudaStreamSynchronize(stream));
  EQUAL(second, 2);
  EQUAL(answer, 800);
  EQUAL(violations("call-in-host-function"), 1);
}

TEST(wrong_lifetimes_are_named) {
  begin("devices=2");
  void* stream = newStream();
  void* event = newEvent();
  OK(cudaStreamDestroy(stream));
  EQUAL(cudaStreamDestroy(stream), 400);
  OK(cudaEventDestroy(event));
  EQUAL(cudaEventDestroy(event), 400);
  EQUAL(violations("double-destroy"), 2);
  EQUAL(cudaStreamSynchronize(stream), 400);
  EQUAL(cudaEventQuery(event), 400);
  EQUAL(violations("use-after-destroy"), 2);
  void* own = newStream();
  OK(cudaSetDevice(1));
  void* foreign = newEvent();
  EQUAL(cudaEventRecord(foreign, own), 400);
  EQUAL(violations("wrong-device"), 1);
  OK(cudaStreamWaitEvent(own, foreign, 0));
  // A stream may go before its work is done: the work still runs.
  OK(cudaSetDevice(0));
  char* memory = newMemory(bytes);
  void* done = newEvent();
  OK(cudaMemsetAsync(memory, 4, bytes, own));
  OK(cudaEventRecord(done, own));
  OK(cudaStreamDestroy(own));
  OK(cudaEventSynchronize(done));
}

TEST(threads_share_the_driver) {
  begin("devices=4");
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; rank++)
    threads.emplace_back([rank] {
      OK(cudaSetDevice(rank));
      for (int round = 0; round < 30; round++) {
        void* stream = newStream();
        void* event = newEvent();
        char* memory = newMemory(bytes);
        char* out = newHost(bytes);
        OK(cudaMemsetAsync(memory, rank + round, bytes, stream));
        OK(cudaMemcpyAsync(out, memory, bytes, 2, stream));
        OK(cudaEventRecord(event, stream));
        OK(cudaEventSynchronize(event));
        CHECK(allAre(out, static_cast<char>(rank + round)));
        OK(cudaFree(memory));
        OK(cudaFreeHost(out));
        OK(cudaEventDestroy(event));
        OK(cudaStreamDestroy(stream));
      }
    });
  for (auto& thread : threads) thread.join();
  CLEAN();
}
