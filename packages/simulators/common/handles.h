// SPDX-License-Identifier: Apache-2.0
/*
 * Handles that are no addresses: using one as a pointer faults at once, and a released one is told from one never issued.
 *
 * Invariant: a number is issued once in the life of the process, also across resets.
 */
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace tensorferry::simulators {

/** `Raw` is a handle as the interface has it: a pointer to nothing. */
template <typename T, typename Raw = void*>
class Handles {
 public:
  /** `tag` of 16 bits tells the kinds of handles apart. */
  explicit Handles(uint64_t tag) : tag_(tag << 48) {}

  Raw issue(std::shared_ptr<T> object) {
    const uint64_t number = next_++;
    objects_.emplace(number, std::move(object));
    return reinterpret_cast<Raw>(tag_ | number);
  }
  std::shared_ptr<T> find(const void* handle) const {
    const auto found = objects_.find(numberOf(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  /** True for a handle that was issued and is gone. */
  bool wasReleased(const void* handle) const {
    const uint64_t number = numberOf(handle);
    return number != 0 && number < next_ && objects_.count(number) == 0;
  }
  std::shared_ptr<T> release(const void* handle) {
    const auto found = objects_.find(numberOf(handle));
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  void clear() { objects_.clear(); }
  size_t size() const { return objects_.size(); }
  const std::map<uint64_t, std::shared_ptr<T>>& all() const { return objects_; }

 private:
  uint64_t numberOf(const void* handle) const {
    const auto bits = reinterpret_cast<uint64_t>(handle);
    return (bits >> 48) == (tag_ >> 48) ? bits & ((uint64_t{1} << 48) - 1) : 0;
  }
  uint64_t tag_;
  uint64_t next_ = 1;
  std::map<uint64_t, std::shared_ptr<T>> objects_;
};

}  // namespace tensorferry::simulators
