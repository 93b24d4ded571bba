// SPDX-License-Identifier: Apache-2.0
/*
 * The vendor's libraries of this process: found by lists of names, opened, and their functions looked up.
 *
 * Opening happens on one thread; what was opened is only read afterwards and stays loaded until the process ends, because
 * drivers do not survive being unloaded.
 * Invariant: `Libraries` exists only where all required functions of runtime and driver were found.
 */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorferry/shared_library.h>
#include <tensorferry/type_tags.h>

#include "gpu_api.h"

namespace tensorferry::gpu {

struct LibraryNames {
  /** File names or paths, tried in order. */
  std::vector<std::string> runtime, driver, compiler, collectives;
};

/** What became of one library. */
struct LibraryFound : LibraryOpening {
  std::string version;
};

struct Libraries {
  static constexpr napi_type_tag typeTag{0x51c0f30d86b24e01, 0xa1d9c7e4420b5f10};
  static constexpr const char* kind = "set of libraries";
  GpuApi api;
  /** Of the driver and of the compiler, as text: part of the key of cached kernels. */
  std::string driverVersion, compilerVersion;
};

struct OpenedLibraries {
  /** Null where runtime or driver could not be opened. */
  std::shared_ptr<Libraries> libraries;
  LibraryFound runtime, driver, compiler, collectives;
};

OpenedLibraries openLibraries(Vendor vendor, const LibraryNames& names);

}  // namespace tensorferry::gpu
