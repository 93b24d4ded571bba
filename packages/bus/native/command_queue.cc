// SPDX-License-Identifier: Apache-2.0
/*
 * See command_queue.h.
 */
#include "command_queue.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "checksum.h"

namespace tensorferry {
namespace {

constexpr const char* database = "command_queue";
constexpr std::string_view headKey = "__head__", tailKey = "__tail__";
/** How long the maker of a queue may take between its first and its last step. */
constexpr double makingMilliseconds = 2'000;
constexpr double checkMilliseconds = 500;

std::string_view bytesOf(const uint64_t& number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }

/** The last field of a sealed entry, before its value: the name "crc32c" in MessagePack, and that a number follows. */
constexpr std::string_view sealHead =
    "\xa6"
    "crc32c"
    "\xce";
constexpr size_t sealBytes = sealHead.size() + sizeof(uint32_t);
/** First bytes of MessagePack maps of none to fourteen fields, which have room for one more. */
constexpr uint8_t smallestMap = 0x80, largestMap = 0x8e;

uint8_t firstByte(std::string_view entry) { return entry.empty() ? 0 : static_cast<uint8_t>(entry.front()); }

/** A map with the checksum of all before it as one more field, which readers that do not know it pass over. */
std::string sealed(std::string_view message) {
  std::string entry;
  entry.reserve(message.size() + sealBytes);
  entry.append(message);
  if (firstByte(message) < smallestMap || firstByte(message) > largestMap) return entry;
  entry.front() = static_cast<char>(firstByte(message) + 1);
  entry.append(sealHead);
  const uint32_t sum = crc32c(entry);
  for (int shift = 24; shift >= 0; shift -= 8) entry.push_back(static_cast<char>(sum >> shift));
  return entry;
}

bool isSealed(std::string_view entry) {
  return entry.size() > sealBytes && firstByte(entry) > smallestMap && firstByte(entry) <= largestMap + 1 &&
         entry.substr(entry.size() - sealBytes, sealHead.size()) == sealHead;
}

/** Whether a sealed entry is what its producer put there. */
bool isSound(std::string_view entry) {
  uint32_t stated = 0;
  for (const char byte : entry.substr(entry.size() - sizeof stated)) stated = stated << 8 | static_cast<uint8_t>(byte);
  return crc32c(entry.substr(0, entry.size() - sizeof stated)) == stated;
}

/** Adds what the producer of a sealed entry sealed; how many bytes that is. */
size_t appendUnsealed(std::string& bytes, std::string_view entry) {
  const size_t length = entry.size() - sealBytes, begin = bytes.size();
  bytes.append(entry.substr(0, length));
  bytes[begin] = static_cast<char>(firstByte(entry) - 1);
  return length;
}

/** A position; one that was never written is 0. */
Result<uint64_t> position(const LmdbFile::Transaction& transaction, std::string_view key) {
  auto stored = transaction.get(key);
  if (!stored.ok()) {
    if (stored.status().code == Code::NotFound) return uint64_t{0};
    return stored.status();
  }
  if (stored.value().size() != sizeof(uint64_t))
    return failure(Code::InvalidHandle, "read queue", "a position of the queue is damaged");
  uint64_t value = 0;
  std::memcpy(&value, stored.value().data(), sizeof value);
  return value;
}

struct Positions {
  uint64_t head, tail;
};

Result<Positions> positions(const LmdbFile::Transaction& transaction) {
  auto head = position(transaction, headKey);
  if (!head.ok()) return head.status();
  auto tail = position(transaction, tailKey);
  if (!tail.ok()) return tail.status();
  if (tail.value() < head.value()) return failure(Code::InvalidHandle, "read queue", "the queue ends before it begins");
  return Positions{head.value(), tail.value()};
}

std::string stemOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  const size_t dot = name.rfind('.');
  return dot == std::string::npos || dot == 0 ? name : name.substr(0, dot);
}

/** Beside the file: one agent for it. */
std::string fileLockOf(const std::string& path) { return path + "-agent"; }

/** Where semaphores are: one agent for their names, which queues of equal names in several folders would share. */
std::string nameLockOf(const std::string& path) { return "/dev/shm/cq_agent_" + stemOf(path); }

/** What the holder of a lock wrote into it. */
std::string holderOf(const Descriptor& lock) {
  char text[4096];
  const ssize_t length = ::pread(lock.get(), text, sizeof text, 0);
  return length <= 0 ? "this queue" : std::string(text, static_cast<size_t>(length));
}

/** A file whose lock says that an agent serves the queue; freed by the kernel when the agent dies. */
Result<Descriptor> lockAsAgent(const std::string& name, const std::string& path) {
  for (int attempt = 0; attempt < 10; attempt++) {
    Descriptor file(::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.isOpen()) return systemFailure("open", name);
    struct stat opened, named;
    if (fstat(file.get(), &opened) != 0) return systemFailure("fstat", name);
    if (opened.st_uid != geteuid()) return failure(Code::PermissionDenied, "open", name + " belongs to another user.");
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK)
        return failure(Code::AlreadyExists, "flock",
                       "Another agent serves " + holderOf(file) +
                           ". Queues of one name have the same semaphores, whatever their folder.",
                       EWOULDBLOCK);
      return systemFailure("flock", name);
    }
    // The agent before may have removed the file between the two calls.
    if (::lstat(name.c_str(), &named) != 0 || named.st_ino != opened.st_ino) continue;
    const std::string holder = path + ", process " + std::to_string(getpid());
    if (::ftruncate(file.get(), 0) != 0 || ::pwrite(file.get(), holder.data(), holder.size(), 0) < 0)
      return systemFailure("write", name);
    return file;
  }
  return failure(Code::SystemFailure, "flock", name + " keeps being replaced.");
}

void nap() noexcept {
  const timespec time{0, 5'000'000};
  nanosleep(&time, nullptr);
}

Status cancelled(const char* op) { return failure(Code::Cancelled, op, "The wait was cancelled."); }

}  // namespace

std::string CommandQueue::semaphoreName(const char* kind) const {
  return std::string("/cq_") + kind + stemOf(settings_.path);
}

Status CommandQueue::makeCounts() {
  auto transaction = file_->begin(false);
  if (!transaction.ok()) return transaction.status();
  auto at = positions(transaction.value());
  if (!at.ok()) return at.status();
  const uint64_t count = std::min(at.value().tail - at.value().head, settings_.capacity);
  Semaphore::unlink(semaphoreName(""));
  Semaphore::unlink(semaphoreName("space_"));
  auto items = Semaphore::create(semaphoreName(""), static_cast<uint32_t>(count));
  if (!items.ok()) return items.status();
  auto space = Semaphore::create(semaphoreName("space_"), static_cast<uint32_t>(settings_.capacity - count));
  if (!space.ok()) return space.status();
  items_ = std::move(items.value());
  space_ = std::move(space.value());
  return Status{};
}

Status CommandQueue::openCounts() {
  auto items = Semaphore::open(semaphoreName(""));
  if (!items.ok()) return items.status();
  auto space = Semaphore::open(semaphoreName("space_"));
  if (!space.ok()) return space.status();
  items_ = std::move(items.value());
  space_ = std::move(space.value());
  return Status{};
}

Status CommandQueue::reconcile() {
  auto current = status();
  if (!current.ok()) return current.status();
  const auto& [head, tail, items, space] = current.value();
  const int64_t count = static_cast<int64_t>(tail - head);
  for (int64_t have = items; have < count; have++) items_.post();
  for (int64_t have = items; have > count && items_.tryTake(); have--) {
  }
  const int64_t free = std::max<int64_t>(0, static_cast<int64_t>(settings_.capacity) - count);
  for (int64_t have = space; have > free && space_.tryTake(); have--) {
  }
  // Too few free places are found again when the queue is empty: a producer may be about to write into one of them.
  return Status{};
}

Result<std::shared_ptr<CommandQueue>> CommandQueue::serve(const QueueSettings& settings, const CancelToken& cancel) {
  std::shared_ptr<CommandQueue> queue(new CommandQueue(settings));
  const Status status = queue->takeOver(cancel);
  if (status.ok()) return queue;
  queue->removeLocks();
  return status;
}

Status CommandQueue::takeOver(const CancelToken& cancel) {
  auto fileLock = lockAsAgent(fileLockOf(settings_.path), settings_.path);
  if (!fileLock.ok()) return fileLock.status();
  fileLock_ = std::move(fileLock.value());
  auto nameLock = lockAsAgent(nameLockOf(settings_.path), settings_.path);
  if (!nameLock.ok()) return nameLock.status();
  nameLock_ = std::move(nameLock.value());
  auto file = LmdbFile::open(settings_.path, database, settings_.mapBytes, true);
  if (!file.ok()) return file.status();
  file_ = file.value();
  Status damage;
  {
    auto transaction = file_->begin(false);
    if (!transaction.ok()) return transaction.status();
    auto at = positions(transaction.value());
    if (!at.ok()) damage = at.status();
  }
  if (damage.code == Code::InvalidHandle) {
    file_.reset();
    auto replaced = LmdbFile::replace(settings_.path, database, settings_.mapBytes, damage.detail);
    if (!replaced.ok()) return replaced.status();
    file_ = replaced.value();
  } else if (!damage.ok()) {
    return damage;
  }
  const std::string readyName = semaphoreName("ready_");
  auto ready = Semaphore::open(readyName);
  if (ready.ok()) {
    const auto waited = ready.value().wait(Deadline(makingMilliseconds), cancel);
    if (waited == Semaphore::Waited::cancelled) return cancelled("serve");
    if (waited == Semaphore::Waited::taken) {
      ready.value().post();
      if (openCounts().ok()) {
        ready_ = std::move(ready.value());
        return reconcile();
      }
    }
    // Whoever began to make this queue died before its end.
    Semaphore::unlink(readyName);
  } else if (ready.status().code == Code::PermissionDenied) {
    return ready.status();
  }
  auto made = Semaphore::create(readyName, 0);
  if (!made.ok()) return made.status();
  ready_ = std::move(made.value());
  const Status status = makeCounts();
  if (!status.ok()) {
    Semaphore::unlink(readyName);
    return status;
  }
  ready_.post();
  return Status{};
}

Result<std::shared_ptr<CommandQueue>> CommandQueue::connect(const QueueSettings& settings, const Deadline& deadline,
                                                            const CancelToken& cancel) {
  std::shared_ptr<CommandQueue> queue(new CommandQueue(settings));
  for (;;) {
    Status status;
    auto ready = Semaphore::open(queue->semaphoreName("ready_"));
    if (ready.ok()) {
      const auto waited = ready.value().waitSlice(deadline);
      if (waited == Semaphore::Waited::taken) {
        ready.value().post();
        auto file = LmdbFile::open(settings.path, database, settings.mapBytes, false);
        status = file.ok() ? queue->openCounts() : file.status();
        if (status.ok()) {
          queue->file_ = file.value();
          queue->ready_ = std::move(ready.value());
          // What was opened piece by piece must still belong together.
          if (queue->isCurrent()) return queue;
        }
      }
    } else {
      status = ready.status();
    }
    if (!status.ok() && status.code != Code::NotFound && status.code != Code::PeerGone) return status;
    if (cancel.isCancelled()) return cancelled("connect");
    if (deadline.isPast())
      return failure(Code::NotFound, "connect", "No agent serves the queue " + settings.path + ".", ENOENT);
    nap();
  }
}

bool CommandQueue::isCurrent() const noexcept { return file_->isCurrent() && items_.isCurrent() && space_.isCurrent(); }

Status CommandQueue::enqueue(const std::vector<std::string>& messages, const Deadline& deadline,
                             const CancelToken& cancel, ProgressCounter& enqueued) {
  size_t done = 0;
  if (!isCurrent()) return failure(Code::PeerGone, "enqueue", "The queue " + settings_.path + " was replaced.");
  while (done < messages.size()) {
    switch (space_.wait(deadline, cancel)) {
      case Semaphore::Waited::taken:
        break;
      case Semaphore::Waited::cancelled:
        return cancelled("enqueue");
      case Semaphore::Waited::timedOut:
        return failure(
            Code::DeadlineExceeded, "enqueue",
            "The queue " + settings_.path + " stayed full: " + std::to_string(settings_.capacity) + " commands wait.");
    }
    size_t places = 1;
    while (places < messages.size() - done && space_.tryTake()) places++;
    const auto giveBack = [&](size_t from) {
      for (size_t i = from; i < places; i++) space_.post();
    };
    auto transaction = file_->begin(true);
    if (!transaction.ok()) {
      giveBack(0);
      return transaction.status();
    }
    auto at = positions(transaction.value());
    if (!at.ok()) {
      giveBack(0);
      return at.status();
    }
    auto [head, tail] = at.value();
    // Places that are counted but not there are forgotten.
    places = std::min<uint64_t>(places, settings_.capacity - std::min(settings_.capacity, tail - head));
    if (places == 0) continue;
    Status status;
    for (size_t i = 0; i < places && status.ok(); i++, tail++)
      status = transaction.value().put(bytesOf(tail % settings_.capacity), sealed(messages[done + i]));
    if (status.ok()) status = transaction.value().put(tailKey, bytesOf(tail));
    if (status.ok()) status = transaction.value().commit();
    if (!status.ok()) {
      giveBack(0);
      return status;
    }
    for (size_t i = 0; i < places; i++) items_.post();
    done += places;
    enqueued.add(places);
  }
  return Status{};
}

Result<CommandQueue::Taken> CommandQueue::take(uint64_t most) {
  Taken taken;
  auto transaction = file_->begin(true);
  if (!transaction.ok()) return transaction.status();
  auto at = positions(transaction.value());
  if (!at.ok()) return at.status();
  auto [head, tail] = at.value();
  const uint64_t begin = head;
  while (head < tail && taken.lengths.size() < most) {
    const uint64_t key = head % settings_.capacity;
    auto stored = transaction.value().get(bytesOf(key));
    if (stored.ok() && isSealed(stored.value())) {
      if (isSound(stored.value()))
        taken.lengths.push_back(static_cast<uint32_t>(appendUnsealed(taken.bytes, stored.value())));
      else taken.corrupt.push_back(key);
    } else if (stored.ok()) {
      taken.bytes.append(stored.value());
      taken.lengths.push_back(static_cast<uint32_t>(stored.value().size()));
    } else if (stored.status().code == Code::NotFound) {
      taken.skipped++;
    } else {
      return stored.status();
    }
    const Status removed = transaction.value().remove(bytesOf(key));
    if (!removed.ok()) return removed;
    head++;
  }
  if (head == begin) return taken;
  Status status = transaction.value().put(headKey, bytesOf(head));
  if (status.ok()) status = transaction.value().commit();
  if (!status.ok()) return status;
  // One item was taken before; those of the others are taken now, where they have been posted.
  for (uint64_t i = begin + 1; i < head; i++) items_.tryTake();
  for (uint64_t i = begin; i < head; i++) space_.post();
  return taken;
}

bool CommandQueue::recount() {
  auto current = status();
  if (!current.ok()) return false;
  const auto& [head, tail, items, space] = current.value();
  if (tail > head) return true;
  if (settled_ == nullptr || emptyAt_ != tail || emptySpace_ != space) {
    settled_ = std::make_unique<Deadline>(settleMilliseconds);
    emptyAt_ = tail;
    emptySpace_ = space;
  } else if (settled_->isPast()) {
    for (int64_t have = space; have < static_cast<int64_t>(settings_.capacity); have++) space_.post();
    settled_ = nullptr;
  }
  return false;
}

Result<CommandQueue::Taken> CommandQueue::dequeue(uint64_t most, const Deadline& deadline, const CancelToken& cancel) {
  auto check = std::make_unique<Deadline>(checkMilliseconds);
  for (;;) {
    const bool isCounted = items_.waitSlice(deadline) == Semaphore::Waited::taken;
    if (cancel.isCancelled()) {
      if (isCounted) items_.post();
      return cancelled("dequeue");
    }
    if (isCounted || recount()) {
      auto taken = take(most);
      if (!taken.ok() || !taken.value().isEmpty()) {
        if (!taken.ok() && isCounted) items_.post();
        return taken;
      }
    }
    if (check->isPast()) {
      if (!isCurrent()) return failure(Code::PeerGone, "dequeue", "Somebody removed the queue " + settings_.path + ".");
      check = std::make_unique<Deadline>(checkMilliseconds);
    }
    if (deadline.isPast()) return failure(Code::DeadlineExceeded, "dequeue", "No command came.", ETIMEDOUT);
  }
}

Result<QueueStatus> CommandQueue::status() {
  auto transaction = file_->begin(false);
  if (!transaction.ok()) return transaction.status();
  auto at = positions(transaction.value());
  if (!at.ok()) return at.status();
  return QueueStatus{at.value().head, at.value().tail, items_.value(), space_.value()};
}

void CommandQueue::removeLocks() noexcept {
  if (nameLock_.isOpen()) ::unlink(nameLockOf(settings_.path).c_str());
  if (fileLock_.isOpen()) ::unlink(fileLockOf(settings_.path).c_str());
}

void CommandQueue::destroy() noexcept {
  // What others made in the meantime stays.
  if (ready_.isCurrent()) Semaphore::unlink(semaphoreName("ready_"));
  if (items_.isCurrent()) Semaphore::unlink(semaphoreName(""));
  if (space_.isCurrent()) Semaphore::unlink(semaphoreName("space_"));
  if (file_ != nullptr) file_->unlink();
  removeLocks();
}

}  // namespace tensorferry
