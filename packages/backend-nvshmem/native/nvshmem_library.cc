// SPDX-License-Identifier: Apache-2.0
/*
 * See nvshmem_library.h.
 */
#include "nvshmem_library.h"

#include <dlfcn.h>

namespace tensorferry::nvshmem {
namespace {

template <typename Function>
void find(void* library, gpu::Entry<Function>& entry, const char* symbol, std::string& missing) {
  entry.name = symbol;
  entry.function = reinterpret_cast<decltype(entry.function)>(dlsym(library, symbol));
  if (entry.function == nullptr && missing.empty()) missing = symbol;
}

std::string problemWith(void* handle, NvshmemApi& api, std::string& version) {
  std::string missing;
#define TENSORFERRY_NVSHMEM_FIND(member, signature, symbol) find(handle, api.member, symbol, missing);
  TENSORFERRY_NVSHMEM_FUNCTIONS(TENSORFERRY_NVSHMEM_FIND)
#undef TENSORFERRY_NVSHMEM_FIND
  if (!missing.empty()) return "has no function " + missing + ": it is too old, or another library";
  int major = 0, minor = 0, patch = 0;
  api.version(&major, &minor, &patch);
  version = std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
  if (major >= oldestMajor) return "";
  return "is version " + version + "; the oldest that serves is " + std::to_string(oldestMajor) + ".0";
}

}  // namespace

OpenedLibrary openLibrary(const std::vector<std::string>& names) {
  OpenedLibrary opened;
  for (const std::string& name : names) {
    opened.tried.push_back(name);
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    std::string problem;
    if (handle == nullptr) {
      const char* text = dlerror();
      problem = text == nullptr ? name + " could not be opened" : text;
    } else {
      auto library = std::make_shared<Library>();
      const std::string fault = problemWith(handle, library->api, opened.version);
      if (fault.empty()) {
        opened.library = std::move(library);
        opened.path = name;
        opened.problem.clear();
        return opened;
      }
      problem = name + " " + fault;
      dlclose(handle);
    }
    opened.problem += (opened.problem.empty() ? "" : "; ") + problem;
  }
  if (names.empty()) opened.problem = "no name was given";
  opened.problem += ".";
  return opened;
}

}  // namespace tensorferry::nvshmem
