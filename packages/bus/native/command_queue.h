// SPDX-License-Identifier: Apache-2.0
/*
 * A queue of commands that many processes fill and one empties: entries in an LMDB file, counted by three semaphores.
 *
 * Any thread; all functions but `close` may block and run on pool threads. Entries stand under position modulo capacity;
 * positions are 64-bit and only grow. A producer takes a free place, writes, and posts an item.
 *
 * An entry is sealed: its last field is a checksum of what is before it. It stays a command for readers that do not know the
 * field, and entries of producers that do not write it are taken as they are.
 *
 * Invariants: an entry that is missing or unreadable, or not what its checksum says, gives its place back. A producer that died between its semaphore and
 * its write costs nothing for longer than the queue is empty for `settleMilliseconds`; one that died before it posted
 * leaves an entry that is found all the same. The counts never let an entry be overwritten.
 */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorferry/cancel.h>
#include <tensorferry/descriptor.h>
#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

#include "lmdb_file.h"
#include "semaphores.h"

namespace tensorferry {

/** How long a queue must be empty before free places that nobody counts are found again. */
inline constexpr double settleMilliseconds = 2'000;

struct QueueSettings {
  std::string path;
  uint64_t capacity;
  uint64_t mapBytes;
};

struct QueueStatus {
  uint64_t head, tail;
  int items, space;
};

class CommandQueue {
 public:
  static constexpr napi_type_tag typeTag{0x0f3c8d1e52b94a77, 0x8c61d2f0a94be35d};

  /**
   * Makes the queue or takes over the one left behind. Busy (AlreadyExists) where another agent has it, or has one of this
   * name in another folder.
   */
  static Result<std::shared_ptr<CommandQueue>> serve(const QueueSettings& settings, const CancelToken& cancel);
  /** Opens a queue that an agent serves, and waits for it until the deadline. */
  static Result<std::shared_ptr<CommandQueue>> connect(const QueueSettings& settings, const Deadline& deadline,
                                                       const CancelToken& cancel);

  /** Puts all messages; DeadlineExceeded where the queue stays full, PeerGone where it was replaced. */
  Status enqueue(const std::vector<std::string>& messages, const Deadline& deadline, const CancelToken& cancel,
                 ProgressCounter& enqueued);

  struct Taken {
    /** The messages, one behind the other: one block is cheaper to hand on than many. */
    std::string bytes;
    std::vector<uint32_t> lengths;
    /** Entries that were not there. */
    uint64_t skipped = 0;
    /** Places of entries that are not what was put there. */
    std::vector<uint64_t> corrupt;
    bool isEmpty() const noexcept { return lengths.empty() && skipped == 0 && corrupt.empty(); }
  };
  /** Takes 1 to `most` messages; PeerGone where somebody removed the files. */
  Result<Taken> dequeue(uint64_t most, const Deadline& deadline, const CancelToken& cancel);

  Result<QueueStatus> status();

  /** What was set aside because it could not be trusted; empty where nothing was. */
  const std::string& setAside() const noexcept { return file_->setAside; }

  /** Removes files and semaphores. Only for the agent. */
  void destroy() noexcept;

 private:
  explicit CommandQueue(QueueSettings settings) : settings_(std::move(settings)) {}
  std::string semaphoreName(const char* kind) const;
  Status takeOver(const CancelToken& cancel);
  void removeLocks() noexcept;
  Status openCounts();
  Status makeCounts();
  Status reconcile();
  bool isCurrent() const noexcept;
  Result<Taken> take(uint64_t most);
  /** Looks for what semaphores do not say. True where there are entries. */
  bool recount();

  QueueSettings settings_;
  Descriptor nameLock_, fileLock_;
  std::shared_ptr<LmdbFile> file_;
  Semaphore items_, space_, ready_;
  uint64_t emptyAt_ = 0;
  int emptySpace_ = -1;
  std::unique_ptr<Deadline> settled_;
};

}  // namespace tensorferry
