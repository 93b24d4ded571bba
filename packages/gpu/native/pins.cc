// SPDX-License-Identifier: Apache-2.0
/*
 * See pins.h.
 */
#include "pins.h"

#include <unistd.h>

#include <algorithm>
#include <memory>

namespace tensorferry::gpu {
namespace {

/** Of memory that is not registered, a driver copies at most so much in one call: who wants to pin waits for that. */
constexpr uint64_t unregisteredPart = 8 << 20;

}  // namespace

void PinnedRange::reset() noexcept {
  if (book_ != nullptr) std::exchange(book_, nullptr)->unpin(pieces_);
}

PinBook& PinBook::of(const GpuApi& api) {
  static std::mutex mutex;
  static std::map<void*, PinBook*> books;  // never destroyed: pins may go while the process ends
  std::lock_guard lock(mutex);
  PinBook*& book = books[reinterpret_cast<void*>(api.registerHost.function)];
  if (book == nullptr) book = new PinBook(api);
  return *book;
}

Result<PinBook::Piece> PinBook::registerPages(uint64_t start, uint64_t end) {
  const int answer =
      api_.registerHost(reinterpret_cast<void*>(start), end - start, portableHostMemory | mappedHostMemory);
  if (answer == code::success) return Piece{end, 1, true};
  api_.clearError();
  if (answer == code::hostAlreadyRegistered) return Piece{end, 1, false};
  return runtimeFailure(api_, api_.registerHost.name, answer);
}

Result<PinnedRange> PinBook::pin(uint64_t address, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (bytes == 0 || address == 0 || address > UINT64_MAX - bytes - page)
    return failure(Code::InvalidArgument, "pinHost", "This is not a range of host memory.");
  const uint64_t start = address / page * page, end = (address + bytes + page - 1) / page * page;
  const auto changing = change();
  std::lock_guard lock(mutex_);
  std::vector<uint64_t> taken;
  uint64_t at = start;
  auto next = pieces_.upper_bound(start);
  if (next != pieces_.begin() && std::prev(next)->second.end > start) --next;
  while (at < end) {
    if (next != pieces_.end() && next->first <= at) {
      next->second.pins++;
      taken.push_back(next->first);
      at = next->second.end;
      ++next;
      continue;
    }
    const uint64_t until = next == pieces_.end() ? end : std::min(end, next->first);
    auto piece = registerPages(at, until);
    if (!piece.ok()) {
      unpinLocked(taken);
      return piece.status();
    }
    pieces_.emplace(at, piece.value());
    version_.fetch_add(1, std::memory_order_acq_rel);
    taken.push_back(at);
    at = until;
  }
  return PinnedRange(this, std::move(taken));
}

HostRuns PinBook::runsOf(uint64_t address, uint64_t bytes) {
  const uint64_t end = address + bytes;
  HostRuns found;
  std::lock_guard lock(mutex_);
  auto next = pieces_.upper_bound(address);
  if (next != pieces_.begin() && std::prev(next)->second.end > address) --next;
  for (uint64_t at = address; at < end;) {
    const bool isInside = next != pieces_.end() && next->first <= at;
    const uint64_t until = isInside ? next->second.end : next == pieces_.end() ? end : next->first;
    const uint64_t stop = std::min(end, until);
    found.runs.push_back({at, stop - at});
    found.isPinned = found.isPinned && isInside;
    if (isInside) ++next;
    at = stop;
  }
  return found;
}

uint64_t PinBook::partOf(uint64_t address, uint64_t bytes, std::vector<PinnedRange>& held) {
  std::lock_guard lock(mutex_);
  auto next = pieces_.upper_bound(address);
  if (next != pieces_.begin()) {
    const auto piece = std::prev(next);
    if (piece->second.end > address) {
      held.reserve(held.size() + 1);
      std::vector<uint64_t> pinned{piece->first};
      piece->second.pins++;
      held.push_back(PinnedRange(this, std::move(pinned)));
      return std::min(bytes, piece->second.end - address);
    }
  }
  const uint64_t free = std::min(bytes, unregisteredPart);
  return next == pieces_.end() ? free : std::min(free, next->first - address);
}

void PinBook::addUser(std::weak_ptr<PinUser> user) {
  std::lock_guard lock(usersMutex_);
  std::erase_if(users_, [](const auto& weak) { return weak.expired(); });
  users_.push_back(std::move(user));
}

void PinBook::settleUsers() noexcept {
  caught("unpin", [this] {
    std::vector<std::shared_ptr<PinUser>> users;
    {
      std::lock_guard lock(usersMutex_);
      for (const auto& weak : users_)
        if (auto user = weak.lock()) users.push_back(std::move(user));
    }
    for (const auto& user : users) user->settle();
    return Status{};
  });
}

void PinBook::unpin(const std::vector<uint64_t>& pieces) noexcept {
  settleUsers();
  const auto changing = change();
  std::lock_guard lock(mutex_);
  unpinLocked(pieces);
}

void PinBook::unpinLocked(const std::vector<uint64_t>& pieces) noexcept {
  for (const uint64_t start : pieces) {
    const auto found = pieces_.find(start);
    if (found == pieces_.end() || --found->second.pins > 0) continue;
    if (found->second.isOurs && api_.unregisterHost(reinterpret_cast<void*>(start)) != code::success) api_.clearError();
    pieces_.erase(found);
    version_.fetch_add(1, std::memory_order_acq_rel);
  }
}

}  // namespace tensorferry::gpu
