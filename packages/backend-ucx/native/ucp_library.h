// SPDX-License-Identifier: Apache-2.0
/*
 * Finds and opens the UCX of the machine: the process has one at most, and it stays.
 *
 * `openLibrary` runs on the JS thread. Invariants: a library that is older than the declarations is refused, and so is a
 * second one in a process that has another: their symbols and threads would mix. UCX is told before it loads to leave signals,
 * memory functions and the standard output alone; what the user has set in the environment stays as it is.
 */
#pragma once

#include <tensorferry/shared_library.h>

#include <memory>

#include "ucp_abi.h"

namespace tensorferry::ucx {

struct Library {
  abi::Api api;
  /** The file, and the version as the library states it. */
  std::string path, version;
  unsigned major = 0, minor = 0, release = 0;
};

struct OpenedLibrary {
  /** Absent where none serves. */
  std::shared_ptr<const Library> library;
  LibraryOpening opening;
};

OpenedLibrary openLibrary(const std::vector<std::string>& names);

}  // namespace tensorferry::ucx
