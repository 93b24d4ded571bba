/*
 * See pins.h.
 */
#include "pins.h"

#include <unistd.h>

#include <memory>

namespace tensorferry::gpu {

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
    taken.push_back(at);
    at = until;
  }
  return PinnedRange(this, std::move(taken));
}

void PinBook::unpin(const std::vector<uint64_t>& pieces) noexcept {
  std::lock_guard lock(mutex_);
  unpinLocked(pieces);
}

void PinBook::unpinLocked(const std::vector<uint64_t>& pieces) noexcept {
  for (const uint64_t start : pieces) {
    const auto found = pieces_.find(start);
    if (found == pieces_.end() || --found->second.pins > 0) continue;
    if (found->second.isOurs && api_.unregisterHost(reinterpret_cast<void*>(start)) != code::success) api_.clearError();
    pieces_.erase(found);
  }
}

}  // namespace tensorferry::gpu
