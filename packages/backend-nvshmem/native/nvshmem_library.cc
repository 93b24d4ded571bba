// SPDX-License-Identifier: Apache-2.0
/*
 * See nvshmem_library.h.
 */
#include "nvshmem_library.h"

namespace tensorferry::nvshmem {
namespace {

std::string faultOf(void* handle, NvshmemApi& api, std::string& version) {
  SymbolTable table(handle);
#define TENSORFERRY_NVSHMEM_FIND(member, signature, symbol) table.find(api.member, symbol);
  TENSORFERRY_NVSHMEM_FUNCTIONS(TENSORFERRY_NVSHMEM_FIND)
#undef TENSORFERRY_NVSHMEM_FIND
  if (!table.fault().empty()) return table.fault() + ": it is too old, or another library";
  int major = 0, minor = 0, patch = 0;
  api.version(&major, &minor, &patch);
  version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  if (major >= oldestMajor) return "";
  return "is version " + version + "; the oldest that serves is " + std::to_string(oldestMajor) + ".0";
}

}  // namespace

OpenedLibrary openLibrary(const std::vector<std::string>& names) {
  OpenedLibrary opened;
  auto library = std::make_shared<Library>();
  if (openFirst(names, opened, [&](void* handle) { return faultOf(handle, library->api, opened.version); }))
    opened.library = std::move(library);
  else opened.problem += ".";
  return opened;
}

}  // namespace tensorferry::nvshmem
