// SPDX-License-Identifier: Apache-2.0
/*
 * Streams are queues of operations; nothing runs when it is queued. Operations run in pieces, when somebody waits for them,
 * asks about them, or after a while by themselves, in a seeded order that only their dependencies restrict.
 *
 * Invariant: everything here is guarded by the world's lock; a piece runs under it (a host function does not).
 */
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../common/handles.h"

namespace tensorferry::gpu::simulator {

struct World;
struct Call;
struct Stream;
using Lock = std::unique_lock<std::mutex>;
using StreamRef = std::shared_ptr<Stream>;

/** The stream has done its operation of this number and all before it. */
struct Dependency {
  StreamRef stream;
  uint64_t sequence;
  bool met() const;
};

struct Span {
  uintptr_t start;
  size_t bytes;
  bool overlaps(uintptr_t other, size_t length) const {
    return bytes != 0 && length != 0 && start < other + length && other < start + bytes;
  }
};

enum class Progress { Advanced, Finished };

class Operation {
 public:
  virtual ~Operation() = default;
  /** True when no piece can run now; adds the streams that must get on first, whether blocked or not. */
  virtual bool blocked(World&, std::vector<StreamRef>&) { return false; }
  /** Runs one piece. Called only when not blocked. */
  virtual Progress advance(World&, Lock&) = 0;
  virtual const char* kind() const = 0;
  /** True when the operation may end although it was stalled by a planned fault. */
  virtual bool released() const { return false; }

  uint64_t sequence = 0;
  std::vector<Dependency> dependencies;
  /** Memory that must stay as it is until the operation has run. */
  std::vector<Span> uses;
  bool stalled = false;
  int lateError = 0;
};

struct Stream {
  uint64_t number = 0;
  int device = 0;
  /** Waits for the legacy stream of its device and the other way round. */
  bool blocking = true;
  bool legacy = false;
  /** A host function runs without the lock. */
  bool running = false;
  bool destroyed = false;
  uint64_t submitted = 0;
  uint64_t completed = 0;
  std::deque<std::unique_ptr<Operation>> queue;

  std::string label() const { return legacy ? "the legacy stream" : "stream " + std::to_string(number); }
};

inline bool Dependency::met() const { return stream->completed >= sequence; }

struct Streams {
  simulators::Handles<Stream> handles{0x5fa1};
  /** Streams that are alive or still have work, by number. */
  std::map<uint64_t, StreamRef> active;
  std::map<int, StreamRef> legacy;
  uint64_t next = 1;
  size_t pending = 0;
};

StreamRef makeStream(World&, int device, bool blocking, bool legacy);

/** The stream of a handle: null for a bad one, with a violation. */
StreamRef findStream(World&, const void* handle, const char* function);

/** Queues the operation; answers its number. */
uint64_t submit(World&, const StreamRef& stream, std::unique_ptr<Operation> operation);

/** The same with what planned faults say about the call. */
uint64_t submit(Call&, const StreamRef& stream, std::unique_ptr<Operation> operation);

/** Starts the thread that lets work get on when nobody waits for it. Needs the lock. */
void wakePacer(World&);

/** All work queued now, as something to wait for. */
std::vector<Dependency> everythingPending(World&);

/** True when queued work uses memory in the range; names it. */
bool usedByQueue(World&, uintptr_t start, size_t bytes, std::string* user);

/** What a wait drives: the streams that lead to it. */
using Roots = std::function<void(std::vector<StreamRef>&)>;

/** Runs work until `done`, mostly what leads there. Answers 0, `contextDestroyed` after a reset, `timeout` when stuck. */
int drive(World&, Lock&, const std::string& what, const Roots& roots, const std::function<bool()>& done);

/** Drives the stream up to the number. */
int driveTo(World&, Lock&, const StreamRef& stream, uint64_t sequence, const std::string& what);

/** What a query may let happen. */
void nudge(World&, Lock&);

/** Runs up to `count` pieces of any work; answers how many ran. */
size_t runAny(World&, Lock&, size_t count);

}  // namespace tensorferry::gpu::simulator
