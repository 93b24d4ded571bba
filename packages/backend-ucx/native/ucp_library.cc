// SPDX-License-Identifier: Apache-2.0
/*
 * See ucp_library.h.
 */
#include "ucp_library.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace tensorferry::ucx {
namespace {

/**
 * What UCX does to a whole process unless told otherwise when it loads: it takes over signals of crashes and SIGHUP, patches
 * mmap and malloc, starts a thread for a file system, and writes its log to the standard output.
 */
constexpr std::pair<const char*, const char*> manners[] = {
    {"UCX_ERROR_SIGNALS", ""}, {"UCX_HANDLE_ERRORS", "none"}, {"UCX_DEBUG_SIGNO", "0"},      {"UCX_MEM_EVENTS", "n"},
    {"UCX_VFS_ENABLE", "n"},   {"UCX_LOG_LEVEL", "fatal"},    {"UCX_MEM_LOG_LEVEL", "fatal"}};

/** Sets what the user has not, while a library loads. */
class Manners {
 public:
  Manners() {
    for (const auto& [name, value] : manners) {
      if (getenv(name) != nullptr) continue;
      setenv(name, value, 0);
      set_.push_back(name);
    }
  }
  ~Manners() {
    for (const char* name : set_) unsetenv(name);
  }

 private:
  std::vector<const char*> set_;
};

/** Files of UCP that the process has loaded. */
std::set<std::string> loadedFiles() {
  std::set<std::string> files;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* found) {
        const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        const std::string file = path.substr(path.rfind('/') + 1);
        if (file.rfind("libucp", 0) != 0) return 0;
        char* real = realpath(path.c_str(), nullptr);
        static_cast<std::set<std::string>*>(found)->insert(real == nullptr ? path : real);
        std::free(real);
        return 0;
      },
      &files);
  return files;
}

std::string versionText(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

/** Fills the library in, or says what is wrong with it. */
std::string fill(Library& library, void* handle) {
  SymbolTable table(handle);
#define TENSORFERRY_UCP_FIND(member, name, ...) table.find(library.api.member, name);
  TENSORFERRY_UCP(TENSORFERRY_UCP_FIND)
#undef TENSORFERRY_UCP_FIND
  // The version comes first: an old library also lacks functions.
  auto& api = library.api;
  if (api.getVersion.function == nullptr || api.versionString.function == nullptr) return table.fault();
  api.getVersion(&library.major, &library.minor, &library.release);
  library.version = api.versionString();
  if (library.major != abi::major || library.minor < abi::minor) {
    return "has version " + library.version + ", and " + versionText(abi::major, abi::minor) +
           " or later of major version " + std::to_string(abi::major) + " is needed";
  }
  return table.fault();
}

}  // namespace

OpenedLibrary openLibrary(const std::vector<std::string>& names) {
  static std::shared_ptr<const Library> kept;
  OpenedLibrary opened;
  auto library = std::make_shared<Library>();
  const Manners manners;
  const auto before = loadedFiles();
  const bool isOpen = openFirst(names, opened.opening, [&](void* handle) -> std::string {
    const auto after = loadedFiles();
    if (after.size() > 1 && after.size() > before.size())
      return "would be a second UCX in this process, which has " + *before.begin();
    return fill(*library, handle);
  });
  if (!isOpen) return opened;
  library->path = opened.opening.path;
  if (kept == nullptr || kept->path != library->path) kept = std::move(library);
  opened.library = kept;
  return opened;
}

}  // namespace tensorferry::ucx
