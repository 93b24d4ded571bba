// SPDX-License-Identifier: Apache-2.0
/*
 * Opens a driver's library and what is found by it. Any thread.
 */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorferry/shared_library.h>

#include "driver.h"

namespace tensorferry::xpu {

/** A platform over the first library of these names that serves. `fill` looks functions up in an open one. */
template <typename PlatformKind, typename Api, typename Fill>
Found openPlatform(const std::vector<std::string>& names, Fill fill) {
  Found found;
  // Never freed: what was opened stays open, and threads of the driver may still call at the end of the process.
  auto* api = new Api();
  const auto faultOf = [&](void* library) {
    SymbolTable table(library);
    fill(*api, table);
    return table.fault();
  };
  if (!openFirst(names, found, faultOf)) {
    delete api;
    return found;
  }
  auto platform = std::make_shared<PlatformKind>(*api);
  if (Status status = platform->list(); !status.ok()) {
    found.problem = status.op + ": " + status.detail;
    found.nativeCode = status.nativeCode;
    return found;
  }
  found.platform = std::move(platform);
  return found;
}

}  // namespace tensorferry::xpu
