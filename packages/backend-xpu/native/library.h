// SPDX-License-Identifier: Apache-2.0
/*
 * Opens a shared library and looks functions up in it. Any thread.
 *
 * Invariant: a library that was opened with all its functions stays open for the life of the process, because drivers
 * leave threads behind.
 */
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "driver.h"

namespace tensorferry::xpu {

/** Where a library was really loaded from. */
inline std::string pathOf(void* library, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return name;
  char* real = realpath(map->l_name, nullptr);
  std::string path = real == nullptr ? map->l_name : real;
  std::free(real);
  return path;
}

/** `fill` answers the name of the first function that is missing, or nothing. */
template <typename Fill>
void* openLibrary(const std::vector<std::string>& names, Found& found, Fill fill) {
  for (const std::string& name : names) {
    found.tried.push_back(name);
    std::string problem;
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* text = dlerror();
      problem = text == nullptr ? name + " could not be opened" : text;
    } else {
      const std::string missing = fill(library);
      found.path = pathOf(library, name);
      if (missing.empty()) {
        found.problem.clear();
        return library;
      }
      problem = found.path + " has no function " + missing;
      found.path.clear();
      dlclose(library);
    }
    found.problem += (found.problem.empty() ? "" : "; ") + problem;
  }
  if (names.empty()) found.problem = "no name was given";
  return nullptr;
}

}  // namespace tensorferry::xpu
