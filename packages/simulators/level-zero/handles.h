// SPDX-License-Identifier: Apache-2.0
/*
 * Handles that are no addresses: using one as a pointer faults at once, and a released one is never issued again.
 */
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace tensorferry::xpu::simulator {

template <typename Object, typename Raw>
class Handles {
 public:
  /** `tag` tells the kinds of handles apart. */
  explicit Handles(uint64_t tag) : tag_((0x5e00 | tag) << 48) {}

  Raw issue(std::shared_ptr<Object> object) {
    objects_.emplace(++last_, std::move(object));
    return reinterpret_cast<Raw>(tag_ | last_);
  }
  std::shared_ptr<Object> find(Raw handle) const {
    const auto found = objects_.find(numberOf(handle));
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> release(Raw handle) {
    const auto found = objects_.find(numberOf(handle));
    if (found == objects_.end()) return nullptr;
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }
  void clear() { objects_.clear(); }
  size_t size() const { return objects_.size(); }
  const std::map<uint64_t, std::shared_ptr<Object>>& all() const { return objects_; }

 private:
  uint64_t numberOf(Raw handle) const {
    const auto bits = reinterpret_cast<uint64_t>(handle);
    return (bits >> 48) == (tag_ >> 48) ? bits & ((uint64_t{1} << 48) - 1) : 0;
  }
  uint64_t tag_, last_ = 0;
  std::map<uint64_t, std::shared_ptr<Object>> objects_;
};

}  // namespace tensorferry::xpu::simulator
