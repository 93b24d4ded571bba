// SPDX-License-Identifier: Apache-2.0
/*
 * See lmdb_library.h.
 */
#include "lmdb_library.h"

#include <dlfcn.h>

namespace tensorferry::lmdb {
namespace {

constexpr const char* names[] = {"liblmdb.so.0", "liblmdb.so"};

template <typename Function>
bool find(void* handle, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(handle, name));
  return out != nullptr;
}

Result<const Library*> open() {
  void* handle = nullptr;
  for (const char* name : names)
    if (handle == nullptr) handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr)
    return failure(Code::NotFound, "dlopen", "liblmdb.so.0 is not installed (Debian: apt-get install liblmdb0).");
  static Library table;
  const bool complete =
      find(handle, "mdb_strerror", table.strerror) && find(handle, "mdb_version", table.version) &&
      find(handle, "mdb_env_create", table.env_create) && find(handle, "mdb_env_open", table.env_open) &&
      find(handle, "mdb_env_close", table.env_close) && find(handle, "mdb_env_get_fd", table.env_get_fd) &&
      find(handle, "mdb_env_set_mapsize", table.env_set_mapsize) &&
      find(handle, "mdb_env_set_maxdbs", table.env_set_maxdbs) &&
      find(handle, "mdb_reader_check", table.reader_check) && find(handle, "mdb_txn_begin", table.txn_begin) &&
      find(handle, "mdb_txn_commit", table.txn_commit) && find(handle, "mdb_txn_abort", table.txn_abort) &&
      find(handle, "mdb_dbi_open", table.dbi_open) && find(handle, "mdb_get", table.get) &&
      find(handle, "mdb_put", table.put) && find(handle, "mdb_del", table.del) && find(handle, "mdb_drop", table.drop);
  if (!complete) return failure(Code::Unsupported, "dlsym", "liblmdb lacks functions of version 0.9.");
  int major = 0, minor = 0, patch = 0;
  table.version(&major, &minor, &patch);
  // Other versions write files that clients with 0.9 cannot read.
  if (major != 0 || minor != 9) return failure(Code::Unsupported, "mdb_version", "liblmdb is not of version 0.9.");
  return &table;
}

}  // namespace

Result<const Library*> library() {
  static Result<const Library*> found = open();
  return found;
}

Status failed(const Library& lmdb, const char* op, int code, const std::string& about) {
  Code kind = code > 0 ? codeOfErrno(code) : Code::SystemFailure;
  if (code == mapFull || code == readersFull) kind = Code::OutOfMemory;
  if (code == notFound) kind = Code::NotFound;
  if (code == badValueSize) kind = Code::InvalidArgument;
  if (code == invalid || code == versionMismatch || code == corrupted) kind = Code::InvalidHandle;
  return failure(kind, op, about + ": " + lmdb.strerror(code), code);
}

}  // namespace tensorferry::lmdb
