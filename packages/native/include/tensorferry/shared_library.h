// SPDX-License-Identifier: Apache-2.0
/*
 * Opens a vendor's shared library and looks functions up in it. Any thread.
 *
 * Invariant: a library that serves stays open for the life of the process, because drivers leave threads behind. One that
 * does not is closed, and the next name is tried.
 */
#pragma once

#include <dlfcn.h>
#include <link.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace tensorferry {

/** What became of opening a library: `path` where it was opened, else `problem`. */
struct LibraryOpening {
  std::vector<std::string> tried;
  std::string path, problem;
};

/** Where a library was really loaded from. */
inline std::string pathOf(void* library, const std::string& name) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr || map->l_name == nullptr) return name;
  char* real = realpath(map->l_name, nullptr);
  std::string path = real == nullptr ? map->l_name : real;
  std::free(real);
  return path;
}

/** Opens the first library that serves; `faultOf` says of an open one why it does not, or nothing. True where one does. */
template <typename Fault>
bool openFirst(const std::vector<std::string>& names, LibraryOpening& opening, Fault faultOf) {
  for (const std::string& name : names) {
    opening.tried.push_back(name);
    std::string problem;
    void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      const char* text = dlerror();
      problem = text == nullptr ? name + " could not be opened" : text;
    } else {
      const std::string path = pathOf(library, name), fault = faultOf(library);
      if (fault.empty()) {
        opening.path = path;
        opening.problem.clear();
        return true;
      }
      problem = path + " " + fault;
      dlclose(library);
    }
    opening.problem += (opening.problem.empty() ? "" : "; ") + problem;
  }
  if (names.empty()) opening.problem = "no name was given";
  return false;
}

/** Looks functions up by name and keeps the first required one that is missing. */
class SymbolTable {
 public:
  explicit SymbolTable(void* library) noexcept : library_(library) {}

  /** An entry has the function's name and a pointer to it. An empty name: the library has no such function. */
  template <typename Entry>
  void find(Entry& entry, const char* name, bool isRequired = true) {
    void* symbol = *name == '\0' ? nullptr : dlsym(library_, name);
    entry.name = name;
    entry.function = reinterpret_cast<decltype(entry.function)>(symbol);
    if (symbol == nullptr && isRequired && missing_.empty()) missing_ = name;
  }

  /** What is wrong with the library; nothing where it has all that is required. */
  std::string fault() const { return missing_.empty() ? "" : "has no function " + missing_; }

 private:
  void* const library_;
  std::string missing_;
};

}  // namespace tensorferry
