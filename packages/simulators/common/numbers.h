// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers in the text of settings. Any thread.
 */
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace tensorferry::simulators {

/** A number with an optional k, m or g behind it. False, and no use of `value`, where the text is another. */
inline bool readNumber(const std::string& text, uint64_t& value) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return false;
  char* end = nullptr;
  value = std::strtoull(text.c_str(), &end, 0);
  const std::string suffix = end;
  const unsigned shift = suffix == "k" ? 10 : suffix == "m" ? 20 : suffix == "g" ? 30 : 0;
  value <<= shift;
  return suffix.empty() || shift != 0;
}

}  // namespace tensorferry::simulators
