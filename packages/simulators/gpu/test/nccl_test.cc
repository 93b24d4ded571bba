// SPDX-License-Identifier: Apache-2.0
/*
 * Sends and receives between threads and between processes, groups, errors and aborts.
 */
#include <thread>

#include "check.h"

namespace {

constexpr int seeds = 100;

struct Rank {
  int rank;
  int ranks;
  void* communicator = nullptr;
  void* stream = nullptr;
};

/** Runs a body on a thread for each rank, each on its device. */
void onRanks(int ranks, const std::function<void(Rank&)>& body) {
  UniqueId identifier;
  OK(ncclGetUniqueId(&identifier));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([=, &body] {
      Rank own{rank, ranks};
      OK(cudaSetDevice(rank));
      OK(ncclCommInitRank(&own.communicator, ranks, identifier, rank));
      own.stream = newStream();
      body(own);
      OK(cudaStreamDestroy(own.stream));
    });
  for (auto& thread : threads) thread.join();
}

std::vector<char> pattern(int from, int to, int round, size_t bytes) {
  std::vector<char> made(bytes);
  for (size_t index = 0; index < bytes; index++)
    made[index] = static_cast<char>(from * 31 + to * 7 + round * 3 + index);
  return made;
}

void checkMemory(const char* memory, const std::vector<char>& expected) {
  std::vector<char> seen(expected.size());
  OK(cudaMemcpy(seen.data(), memory, seen.size(), 2));
  CHECK(seen == expected);
}

}  // namespace

TEST(all_ranks_exchange_in_groups) {
  for (int seed = 1; seed <= seeds; seed++) {
    begin("devices=4,seed=" + std::to_string(seed));
    onRanks(4, [](Rank& own) {
      constexpr int rounds = 3;
      constexpr size_t bytes = 1009;
      std::vector<char*> in, out;
      OK(ncclGroupStart());
      for (int peer = 0; peer < own.ranks; peer++)
        for (int round = 0; round < rounds; round++) {
          out.push_back(newMemory(bytes));
          in.push_back(newMemory(bytes));
          OK(cudaMemcpyAsync(out.back(), pattern(own.rank, peer, round, bytes).data(), bytes, 1, own.stream));
          OK(ncclSend(out.back(), bytes, 0, peer, own.communicator, own.stream));
          OK(ncclRecv(in.back(), bytes, 0, peer, own.communicator, own.stream));
        }
      OK(ncclGroupEnd());
      OK(cudaStreamSynchronize(own.stream));
      size_t at = 0;
      for (int peer = 0; peer < own.ranks; peer++)
        for (int round = 0; round < rounds; round++) checkMemory(in[at++], pattern(peer, own.rank, round, bytes));
      int error = -1;
      OK(ncclCommGetAsyncError(own.communicator, &error));
      EQUAL(error, 0);
      for (char* memory : in) OK(cudaFree(memory));
      for (char* memory : out) OK(cudaFree(memory));
      OK(ncclCommDestroy(own.communicator));
    });
    CLEAN();
    EQUAL(number("maxGroup"), 24);
    EQUAL(number("maxGroupPerPeer"), 3);
  }
}

TEST(one_thread_drives_all_ranks) {
  begin("devices=2,pace=0");
  UniqueId identifier;
  OK(ncclGetUniqueId(&identifier));
  void* communicators[2];
  void* streams[2];
  char* memory[2];
  OK(ncclGroupStart());
  for (int rank = 0; rank < 2; rank++) {
    OK(cudaSetDevice(rank));
    OK(ncclCommInitRank(&communicators[rank], 2, identifier, rank));
  }
  OK(ncclGroupEnd());
  int value = -1;
  OK(ncclCommCount(communicators[1], &value));
  EQUAL(value, 2);
  OK(ncclCommUserRank(communicators[1], &value));
  EQUAL(value, 1);
  for (int rank = 0; rank < 2; rank++) {
    OK(cudaSetDevice(rank));
    streams[rank] = newStream();
    memory[rank] = newMemory(777);
    OK(cudaMemsetAsync(memory[rank], rank + 1, 777, streams[rank]));
  }
  OK(ncclGroupStart());
  OK(ncclSend(memory[0], 777, 0, 1, communicators[0], streams[0]));
  OK(ncclRecv(memory[1], 777, 0, 0, communicators[1], streams[1]));
  EQUAL(number("groups"), 0);  // nothing is queued before the end of the group
  OK(ncclGroupEnd());
  EQUAL(number("groups"), 2);
  OK(cudaStreamSynchronize(streams[1]));
  checkMemory(memory[1], std::vector<char>(777, 1));
  for (int rank = 0; rank < 2; rank++) {
    OK(cudaStreamDestroy(streams[rank]));
    OK(cudaFree(memory[rank]));
    OK(ncclCommDestroy(communicators[rank]));
  }
  EQUAL(ncclCommDestroy(communicators[0]), 4);
  EQUAL(violations("use-after-destroy"), 1);
}

TEST(nothing_is_buffered) {
  begin("devices=2");
  onRanks(2, [](Rank& own) {
    OK(tensorferry_sim_configure("stuck=200"));
    char* memory = newMemory(64);
    // Both send first, outside of a group: with no buffers this never gets on.
    const int peer = 1 - own.rank;
    OK(ncclSend(memory, 64, 0, peer, own.communicator, own.stream));
    OK(ncclRecv(memory, 64, 0, peer, own.communicator, own.stream));
    EQUAL(cudaStreamSynchronize(own.stream), 702);
    OK(ncclCommAbort(own.communicator));
    OK(cudaStreamSynchronize(own.stream));  // abort lets the stream go
    OK(cudaFree(memory));
  });
  EQUAL(violations("stuck"), 2);
}

TEST(different_sizes_are_an_error_on_both_sides) {
  begin("devices=2,stuck=5000");
  onRanks(2, [](Rank& own) {
    char* memory = newMemory(64);
    if (own.rank == 0) OK(ncclSend(memory, 64, 0, 1, own.communicator, own.stream));
    else OK(ncclRecv(memory, 63, 0, 0, own.communicator, own.stream));
    int error = 0;
    while (error == 0) {
      OK(ncclCommGetAsyncError(own.communicator, &error));
      cudaStreamQuery(own.stream);
    }
    // The one that sees it first may abort, which is what the other may see first.
    CHECK(error == 5 || error == 6);
    CHECK(std::strlen(ncclGetLastError(own.communicator)) > 0);
    OK(ncclCommAbort(own.communicator));
    OK(cudaStreamSynchronize(own.stream));
    OK(cudaFree(memory));
  });
  EQUAL(violations("nccl-size-mismatch"), 1);
}

TEST(an_abort_is_seen_by_the_other) {
  begin("devices=2");
  onRanks(2, [](Rank& own) {
    char* memory = newMemory(64);
    if (own.rank == 0) {
      OK(ncclCommAbort(own.communicator));
    } else {
      OK(ncclRecv(memory, 64, 0, 0, own.communicator, own.stream));
      int error = 0;
      while (error == 0) OK(ncclCommGetAsyncError(own.communicator, &error));
      EQUAL(error, 6);
      EQUAL(ncclSend(memory, 64, 0, 0, own.communicator, own.stream), 6);
      OK(ncclCommAbort(own.communicator));
      OK(cudaStreamSynchronize(own.stream));
    }
    OK(cudaFree(memory));
  });
}

TEST(arguments_are_checked) {
  begin("devices=2");
  UniqueId identifier;
  OK(ncclGetUniqueId(&identifier));
  void* communicator = nullptr;
  EQUAL(ncclCommInitRank(&communicator, 1, identifier, 1), 4);
  OK(ncclCommInitRank(&communicator, 1, identifier, 0));
  void* other = nullptr;
  EQUAL(ncclCommInitRank(&other, 1, identifier, 0), 5);
  EQUAL(violations("nccl-rank-twice"), 1);
  void* stream = newStream();
  char* memory = newMemory(64);
  EQUAL(ncclSend(memory, 65, 0, 0, communicator, stream), 4);
  EQUAL(violations("out-of-bounds"), 1);
  EQUAL(ncclSend(memory, 64, 0, 1, communicator, stream), 4);
  EQUAL(ncclSend(memory, 64, 77, 0, communicator, stream), 4);
  std::vector<char> host(64);
  EQUAL(ncclSend(host.data(), 64, 0, 0, communicator, stream), 4);
  EQUAL(violations("bad-address"), 1);
  OK(cudaSetDevice(1));
  char* foreign = newMemory(64);
  void* foreignStream = newStream();
  EQUAL(ncclSend(foreign, 64, 0, 0, communicator, stream), 4);
  EQUAL(ncclSend(memory, 64, 0, 0, communicator, foreignStream), 4);
  EQUAL(violations("wrong-device"), 2);
  EQUAL(ncclGroupEnd(), 5);
  // An error inside a group comes out at its end, and nothing of it runs.
  OK(ncclGroupStart());
  EQUAL(ncclSend(memory, 64, 77, 0, communicator, stream), 4);
  OK(ncclRecv(memory, 64, 0, 0, communicator, stream));
  EQUAL(ncclGroupEnd(), 4);
  EQUAL(number("pending"), 0);
  // Zero bytes and the rank itself are fine in a group.
  OK(ncclGroupStart());
  OK(ncclSend(nullptr, 0, 7, 0, communicator, stream));
  OK(ncclRecv(nullptr, 0, 7, 0, communicator, stream));
  OK(ncclGroupEnd());
  OK(cudaStreamSynchronize(stream));
  OK(ncclCommDestroy(communicator));
}

TEST(two_ranks_on_one_device_are_refused) {
  begin("devices=1");
  UniqueId identifier;
  OK(ncclGetUniqueId(&identifier));
  void* communicators[2];
  OK(ncclGroupStart());
  OK(ncclCommInitRank(&communicators[0], 2, identifier, 0));
  OK(ncclCommInitRank(&communicators[1], 2, identifier, 1));
  EQUAL(ncclGroupEnd(), 5);
}

TEST(a_group_may_use_several_streams) {
  for (int seed = 1; seed <= 30; seed++) {
    begin("devices=1,seed=" + std::to_string(seed));
    UniqueId identifier;
    OK(ncclGetUniqueId(&identifier));
    void* communicator = nullptr;
    OK(ncclCommInitRank(&communicator, 1, identifier, 0));
    void* one = newStream();
    void* two = newStream();
    char* from = newMemory(5000);
    char* to = newMemory(5000);
    char* out = newHost(5000);
    OK(cudaMemsetAsync(from, 8, 5000, one));
    OK(ncclGroupStart());
    OK(ncclRecv(to, 5000, 0, 0, communicator, two));
    OK(ncclSend(from, 5000, 0, 0, communicator, one));
    OK(ncclGroupEnd());
    OK(cudaMemcpyAsync(out, to, 5000, 2, two));
    OK(cudaStreamSynchronize(two));
    for (size_t index = 0; index < 5000; index++) EQUAL(out[index], 8);
    OK(ncclCommDestroy(communicator));
  }
}

TEST(a_communicator_that_does_not_block_is_asked_until_it_is_ready) {
  for (int seed = 1; seed <= 20; seed++) {
    begin("devices=2,seed=" + std::to_string(seed));
    UniqueId identifier;
    OK(ncclGetUniqueId(&identifier));
    const NcclConfig config{sizeof(NcclConfig), tensorferry::gpu::simulator::ncclConfigMagic, 22809, 0};
    void* communicators[2];
    int error = 0;
    EQUAL(ncclCommInitRankConfig(&communicators[0], 2, identifier, 0, &config), 7);
    OK(ncclCommGetAsyncError(communicators[0], &error));
    EQUAL(error, 7);
    EQUAL(ncclSend(nullptr, 0, 0, 0, communicators[0], nullptr), 4);
    EQUAL(violations("nccl-before-success"), 1);
    OK(cudaSetDevice(1));
    EQUAL(ncclCommInitRankConfig(&communicators[1], 2, identifier, 1, &config), 7);
    const auto settle = [&] {
      for (void* communicator : communicators) {
        do OK(ncclCommGetAsyncError(communicator, &error));
        while (error == 7);
        EQUAL(error, 0);
      }
    };
    settle();
    void* streams[2];
    char* memory[2];
    for (int rank = 0; rank < 2; rank++) {
      OK(cudaSetDevice(rank));
      streams[rank] = newStream();
      memory[rank] = newMemory(64);
    }
    OK(cudaMemsetAsync(memory[0], 1, 64, streams[0]) == 400 ? 0 : 1);  // device 1 is current
    OK(cudaSetDevice(0));
    OK(cudaMemsetAsync(memory[0], 1, 64, streams[0]));
    OK(ncclGroupStart());
    OK(ncclSend(memory[0], 64, 0, 1, communicators[0], streams[0]));
    OK(ncclRecv(memory[1], 64, 0, 0, communicators[1], streams[1]));
    EQUAL(ncclGroupEnd(), 7);
    settle();
    OK(cudaStreamSynchronize(streams[1]));
    checkMemory(memory[1], std::vector<char>(64, 1));
    for (void* communicator : communicators) {
      const int answer = ncclCommFinalize(communicator);
      CHECK(answer == 0 || answer == 7);
    }
    settle();
    for (void* communicator : communicators) OK(ncclCommDestroy(communicator));
  }
}

namespace {

struct Join {
  UniqueId identifier;
  int ranks;
  int rank;
};

}  // namespace

CHILD(nccl_rank) {
  const auto join = hear<Join>();
  OK(cudaSetDevice(join.rank));
  void* communicator = nullptr;
  OK(ncclCommInitRank(&communicator, join.ranks, join.identifier, join.rank));
  void* stream = newStream();
  int round = 0;
  while (hear(&round, sizeof round)) {
    if (round < 0) {
      // Blocks for ever, with work open: the first process kills this one.
      char* memory = newMemory(64);
      OK(ncclRecv(memory, 64, 0, 0, communicator, stream));
      OK(ncclRecv(memory, 64, 0, 0, communicator, stream));
      tell(1);
      cudaStreamSynchronize(stream);
    }
    const size_t bytes = 100 + static_cast<size_t>(round) * 991;
    char* memory = newMemory(bytes);
    char* back = newMemory(bytes);
    OK(cudaMemcpyAsync(back, pattern(join.rank, 0, round, bytes).data(), bytes, 1, stream));
    OK(ncclGroupStart());
    OK(ncclRecv(memory, bytes, 0, 0, communicator, stream));
    OK(ncclSend(back, bytes, 0, 0, communicator, stream));
    OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(stream));
    checkMemory(memory, pattern(0, join.rank, round, bytes));
    OK(cudaFree(memory));
    OK(cudaFree(back));
    tell(round);
  }
  OK(cudaStreamDestroy(stream));
  OK(ncclCommDestroy(communicator));
  CLEAN();
}

namespace {

/** A second process and this one, as two ranks. */
struct Pair {
  Process peer{"nccl_rank", "seed=11"};
  void* communicator = nullptr;
  void* stream = nullptr;
  Pair() {
    Join join{};
    OK(ncclGetUniqueId(&join.identifier));
    join.ranks = 2;
    join.rank = 1;
    peer.send(join);
    OK(ncclCommInitRank(&communicator, 2, join.identifier, 0));
    stream = newStream();
  }
};

}  // namespace

TEST(processes_exchange) {
  begin("devices=2");
  Pair pair;
  for (int round = 0; round < 40; round++) {
    pair.peer.send(round);
    const size_t bytes = 100 + static_cast<size_t>(round) * 991;
    char* memory = newMemory(bytes);
    char* back = newMemory(bytes);
    OK(cudaMemcpyAsync(memory, pattern(0, 1, round, bytes).data(), bytes, 1, pair.stream));
    OK(ncclGroupStart());
    OK(ncclSend(memory, bytes, 0, 1, pair.communicator, pair.stream));
    OK(ncclRecv(back, bytes, 0, 1, pair.communicator, pair.stream));
    OK(ncclGroupEnd());
    OK(cudaStreamSynchronize(pair.stream));
    checkMemory(back, pattern(1, 0, round, bytes));
    EQUAL(pair.peer.receive<int>(), round);
    OK(cudaFree(memory));
    OK(cudaFree(back));
  }
  OK(cudaStreamDestroy(pair.stream));
  OK(ncclCommDestroy(pair.communicator));
  CLEAN();
}

TEST(a_killed_process_is_a_remote_error) {
  begin("devices=2,stuck=10000");
  Pair pair;
  char* memory = newMemory(64);
  pair.peer.send(-1);
  OK(ncclSend(memory, 64, 0, 1, pair.communicator, pair.stream));
  pair.peer.receive<int>();
  OK(cudaStreamSynchronize(pair.stream));
  int error = -1;
  OK(ncclCommGetAsyncError(pair.communicator, &error));
  EQUAL(error, 0);
  // The second send is never queued here; the receive of this one will never come.
  OK(ncclRecv(memory, 64, 0, 1, pair.communicator, pair.stream));
  pair.peer.kill();
  error = 0;
  while (error == 0) OK(ncclCommGetAsyncError(pair.communicator, &error));
  EQUAL(error, 6);
  EQUAL(cudaStreamQuery(pair.stream), 600);  // still blocked
  OK(ncclCommAbort(pair.communicator));
  OK(cudaStreamSynchronize(pair.stream));
  OK(cudaFree(memory));
  OK(cudaStreamDestroy(pair.stream));
  CLEAN();
}

TEST(a_stalled_operation_ends_with_an_abort) {
  begin("devices=1,stuck=50,stall=ncclGroupEnd:1");
  UniqueId identifier;
  OK(ncclGetUniqueId(&identifier));
  void* communicator = nullptr;
  OK(ncclCommInitRank(&communicator, 1, identifier, 0));
  void* stream = newStream();
  OK(ncclGroupStart());
  OK(ncclSend(nullptr, 0, 0, 0, communicator, stream));
  OK(ncclRecv(nullptr, 0, 0, 0, communicator, stream));
  OK(ncclGroupEnd());
  EQUAL(cudaStreamSynchronize(stream), 702);
  OK(ncclCommAbort(communicator));
  OK(cudaStreamSynchronize(stream));
}
