// SPDX-License-Identifier: Apache-2.0
/*
 * NVSHMEM's host library in this process: found by a list of names, opened, its functions looked up.
 *
 * JS thread; what was opened is only read afterwards and stays loaded until the process ends.
 */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorferry/shared_library.h>
#include <tensorferry/type_tags.h>

#include "nvshmem_api.h"

namespace tensorferry::nvshmem {

struct Library {
  static constexpr napi_type_tag typeTag{0x0c6f83d1ba5e4e11, 0xb7a2f09c5d1e4301};
  static constexpr const char* kind = "library";
  NvshmemApi api;
};

struct OpenedLibrary : LibraryOpening {
  /** Null where none could be opened; then `problem` says why. */
  std::shared_ptr<Library> library;
  std::string version;
};

/** A library that lacks a function or is too old is left, and the next name is tried. */
OpenedLibrary openLibrary(const std::vector<std::string>& names);

}  // namespace tensorferry::nvshmem
