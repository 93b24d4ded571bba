// SPDX-License-Identifier: Apache-2.0
/*
 * What happens in the room: letters are posted and taken, the dead are noticed, groups become work of streams.
 */
#include "communicators.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "world.h"

namespace tensorferry::gpu::simulator {
namespace {

constexpr uint64_t watchPeriod = 20000000;  // nanoseconds

uint64_t mark(uint64_t number, LetterState state) { return number * 4 + static_cast<uint64_t>(state); }

/** Where the bytes of a letter lie in this process. Holds the mapping of a foreign file. */
struct Source {
  const char* bytes = nullptr;
  void* mapping = nullptr;
  size_t mapped = 0;
  Source() = default;
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  ~Source() {
    if (mapping != nullptr) munmap(mapping, mapped);
  }
};

bool openLetter(World& world, const Letter& letter, Source& source) {
  if (letter.process == static_cast<uint32_t>(getpid())) {
    for (const auto& entry : world.memory.segments) {
      const auto segment = entry.second.lock();
      if (segment == nullptr || segment->inode != letter.inode) continue;
      source.bytes = segment->base + letter.offset;
      return true;
    }
    return false;
  }
  const int file = openForeignFile(letter.process, letter.file, letter.inode);
  if (file < 0) return false;
  const size_t skipped = letter.offset % pageBytes;
  source.mapped = letter.bytes + skipped;
  source.mapping =
      mmap(nullptr, source.mapped, PROT_READ, MAP_SHARED, file, static_cast<off_t>(letter.offset - skipped));
  close(file);
  if (source.mapping == MAP_FAILED) {
    source.mapping = nullptr;
    return false;
  }
  source.bytes = static_cast<const char*>(source.mapping) + skipped;
  return true;
}

/** A group's part on one communicator, in the queue of a stream. */
class GroupOperation final : public Operation {
 public:
  GroupOperation(CommunicatorRef communicator, std::vector<Part> parts)
      : communicator_(std::move(communicator)), parts_(std::move(parts)) {
    for (size_t index = 0; index < parts_.size(); index++) {
      open_.push_back(index);
      uses.push_back({parts_[index].address, parts_[index].bytes});
    }
  }
  const char* kind() const override { return "an NCCL group"; }
  bool released() const override { return communicator_->aborted; }

  bool blocked(World& world, std::vector<StreamRef>& needs) override {
    if (communicator_->aborted || open_.empty()) return false;
    if (communicator_->asyncError != 0) return true;
    next_ = findReady(world);
    if (next_ != none) return false;
    if (watch()) return true;
    // Ranks of this process that have to get on first.
    for (const auto& entry : world.communicators.handles.all()) {
      const Communicator& other = *entry.second;
      if (other.room == communicator_->room && other.busy()) needs.push_back(other.last.stream);
    }
    return true;
  }

  Progress advance(World& world, Lock&) override {
    if (communicator_->aborted || open_.empty()) return Progress::Finished;
    if (next_ == none) return Progress::Advanced;
    const size_t index = open_[next_];
    Part& part = parts_[index];
    const bool done = part.send ? advanceSend(world, part) : advanceReceive(world, part);
    if (done) {
      open_[next_] = open_.back();
      open_.pop_back();
    }
    next_ = none;
    return open_.empty() ? Progress::Finished : Progress::Advanced;
  }

 private:
  static constexpr size_t none = SIZE_MAX;

  Letter& letterOf(const Part& part) const {
    const uint32_t rank = communicator_->rank;
    return part.send ? communicator_->room->letter(rank, part.peer, part.number)
                     : communicator_->room->letter(part.peer, rank, part.number);
  }

  bool isReady(const Part& part) const {
    const uint64_t state = letterOf(part).state.load(std::memory_order_acquire);
    if (part.send && !part.posted) return state == 0;
    if (part.send)
      return state == mark(part.number, LetterState::Taken) || state == mark(part.number, LetterState::Mismatched);
    return state == mark(part.number, LetterState::Posted);
  }

  /** Any part that can get on: all of a group proceed in no particular order. */
  size_t findReady(World& world) const {
    const size_t begin = world.random.below(open_.size());
    for (size_t step = 0; step < open_.size(); step++) {
      const size_t at = (begin + step) % open_.size();
      if (isReady(parts_[open_[at]])) return at;
    }
    return none;
  }

  bool advanceSend(World& world, Part& part) {
    Letter& letter = letterOf(part);
    if (part.posted) {
      const uint64_t state = letter.state.load(std::memory_order_acquire);
      letter.state.store(0, std::memory_order_release);
      if (state == mark(part.number, LetterState::Mismatched)) {
        communicator_->fail(collectives::invalidUsage, sizeText(part, letter.bytes));
        return false;
      }
      world.report.bytes["ncclSent"] += part.bytes;
      return true;
    }
    letter.process = static_cast<uint32_t>(getpid());
    letter.bytes = part.bytes;
    if (part.bytes > 0) {
      const Located from = locate(world, part.address, part.bytes, "ncclSend");
      const Allocation* allocation = world.memory.find(part.address);
      if (from.error != 0 || allocation == nullptr) {
        communicator_->fail(collectives::unhandledDeviceError, "The memory of a send is gone.");
        return false;
      }
      letter.file = allocation->segment->file;
      letter.inode = allocation->segment->inode;
      letter.segmentBytes = allocation->segment->bytes;
      letter.offset = part.address - reinterpret_cast<uintptr_t>(allocation->segment->base);
    }
    part.posted = true;
    letter.state.store(mark(part.number, LetterState::Posted), std::memory_order_release);
    return false;
  }

  bool advanceReceive(World& world, Part& part) {
    Letter& letter = letterOf(part);
    if (letter.bytes != part.bytes) {
      world.violation("nccl-size-mismatch", sizeText(part, letter.bytes));
      communicator_->fail(collectives::invalidUsage, sizeText(part, letter.bytes));
      letter.state.store(mark(part.number, LetterState::Mismatched), std::memory_order_release);
      return false;
    }
    if (part.bytes > 0) {
      if (locate(world, part.address, part.bytes, "ncclRecv").error != 0) {
        communicator_->fail(collectives::unhandledDeviceError, "The memory of a receive is gone.");
        return false;
      }
      Source source;
      if (!openLetter(world, letter, source)) {
        communicator_->fail(collectives::remoteError,
                            "The memory of rank " + std::to_string(part.peer) + " cannot be reached.");
        return false;
      }
      const size_t rest = part.bytes - part.progress;
      const size_t length = rest <= 256 || world.random.chance(50) ? rest : rest / 2;
      std::memmove(reinterpret_cast<char*>(part.address) + part.progress, source.bytes + part.progress, length);
      part.progress += length;
      if (part.progress < part.bytes) return false;
      world.report.bytes["ncclReceived"] += part.bytes;
    }
    letter.state.store(mark(part.number, LetterState::Taken), std::memory_order_release);
    return true;
  }

  std::string sizeText(const Part& part, uint64_t other) const {
    return "Rank " + std::to_string(communicator_->rank) + (part.send ? " sends " : " receives ") +
           std::to_string(part.bytes) + " bytes " + (part.send ? "to" : "from") + " rank " + std::to_string(part.peer) +
           ", which " + (part.send ? "receives another number." : "sends " + std::to_string(other) + ".");
  }

  /** Looks now and then whether ranks with open parts are still there. True when one is not. */
  bool watch() {
    const uint64_t now = nanoseconds();
    if (now - watchedAt_ < watchPeriod) return false;
    watchedAt_ = now;
    std::vector<bool> seen(communicator_->room->ranks);
    for (const size_t index : open_) {
      const Part& part = parts_[index];
      if (seen[part.peer]) continue;
      seen[part.peer] = true;
      const RankSlot& slot = communicator_->room->head->slots[part.peer];
      const auto state = static_cast<RankState>(slot.state.load(std::memory_order_acquire));
      const bool gone = state == RankState::Aborted || state == RankState::Left ||
                        !processAlive(slot.process.load(), slot.start.load());
      // What it did before it went may have come in since this part was looked at.
      if (!gone || isReady(part)) continue;
      communicator_->fail(collectives::remoteError, "Rank " + std::to_string(part.peer) + " is gone.");
      return true;
    }
    return false;
  }

  CommunicatorRef communicator_;
  std::vector<Part> parts_;
  /** Unfinished parts. */
  std::vector<size_t> open_;
  /** An index of `open_` that `blocked` found. */
  size_t next_ = none;
  uint64_t watchedAt_ = 0;
};

/** Holds back a second stream of a group until the group is done. */
class Join final : public Operation {
 public:
  const char* kind() const override { return "the end of an NCCL group"; }
  Progress advance(World&, Lock&) override { return Progress::Finished; }
};

void queueGroup(World& world, const CommunicatorRef& communicator, GroupWork work) {
  const StreamRef& first = work.streams.front();
  std::map<std::pair<bool, uint32_t>, uint64_t> perPeer;
  uint64_t most = 0;
  for (Part& part : work.parts) {
    part.number = part.send ? ++communicator->sent[part.peer] : ++communicator->received[part.peer];
    most = std::max(most, ++perPeer[{part.send, part.peer}]);
  }
  Report& report = world.report;
  report.ncclGroups++;
  report.ncclOperations += work.parts.size();
  report.ncclMaxGroup = std::max<uint64_t>(report.ncclMaxGroup, work.parts.size());
  report.ncclMaxGroupPerPeer = std::max(report.ncclMaxGroupPerPeer, most);
  auto operation = std::make_unique<GroupOperation>(communicator, std::move(work.parts));
  operation->stalled = work.stall;
  operation->lateError = work.late;
  // Groups of one communicator run in their order, and one group over several streams joins them.
  if (communicator->busy()) operation->dependencies.push_back(communicator->last);
  for (const auto& stream : work.streams)
    if (stream != first && !stream->queue.empty()) operation->dependencies.push_back({stream, stream->submitted});
  const uint64_t number = submit(world, first, std::move(operation));
  communicator->last = {first, number};
  for (const auto& stream : work.streams) {
    if (stream == first) continue;
    auto join = std::make_unique<Join>();
    join->dependencies.push_back({first, number});
    submit(world, stream, std::move(join));
  }
}

}  // namespace

Room::~Room() {
  if (head != nullptr) munmap(head, bytes);
  if (file >= 0) close(file);
}

void watchPeers(World&, Communicator& communicator, bool all) {
  if (communicator.aborted || communicator.asyncError != 0) return;
  const uint64_t now = nanoseconds();
  if (!all && now - communicator.watchedAt < watchPeriod) return;
  communicator.watchedAt = now;
  const bool joined = communicator.ready;
  for (uint32_t rank = 0; rank < communicator.room->ranks; rank++) {
    const RankSlot& slot = communicator.room->head->slots[rank];
    const auto state = static_cast<RankState>(slot.state.load(std::memory_order_acquire));
    // Who left in order is missed only where work with it is open, or before all have met.
    const bool gone = state == RankState::Aborted || (state == RankState::Left && !joined) ||
                      (state == RankState::Joined && !processAlive(slot.process.load(), slot.start.load()));
    if (gone) communicator.fail(collectives::remoteError, "Rank " + std::to_string(rank) + " is gone.");
  }
}

void queueAccepted(World& world, const CommunicatorRef& communicator) {
  while (!communicator->accepted.empty()) {
    GroupWork work = std::move(communicator->accepted.front());
    communicator->accepted.pop_front();
    queueGroup(world, communicator, std::move(work));
  }
}

void paceCommunicators(World& world) {
  for (const auto& entry : world.communicators.handles.all()) {
    if (!entry.second->aborted && entry.second->asyncError == 0 && world.random.chance(30))
      queueAccepted(world, entry.second);
    if (entry.second->busy()) watchPeers(world, *entry.second, false);
  }
}

}  // namespace tensorferry::gpu::simulator
