// SPDX-License-Identifier: Apache-2.0
/*
 * LMDB 0.9, opened when first used. Any thread.
 *
 * Invariant: the functions stay usable once found; the library is never closed, because its threads' keys outlive it.
 */
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

#include <tensorferry/status.h>

namespace tensorferry::lmdb {

struct MDB_env;
struct MDB_txn;
using MDB_dbi = unsigned int;
struct MDB_val {
  size_t mv_size;
  void* mv_data;
};

inline constexpr unsigned noSubFolder = 0x4000, noSync = 0x10000, readOnly = 0x20000, noThreadLocals = 0x200000,
                          noReadAhead = 0x800000;
inline constexpr unsigned create = 0x40000;
inline constexpr int notFound = -30798, corrupted = -30796, versionMismatch = -30794, invalid = -30793,
                     mapFull = -30792, readersFull = -30790, mapResized = -30785, badValueSize = -30781;

struct Library {
  const char* (*strerror)(int);
  char* (*version)(int*, int*, int*);
  int (*env_create)(MDB_env**);
  int (*env_open)(MDB_env*, const char*, unsigned, mode_t);
  void (*env_close)(MDB_env*);
  int (*env_get_fd)(MDB_env*, int*);
  int (*env_set_mapsize)(MDB_env*, size_t);
  int (*env_set_maxdbs)(MDB_env*, MDB_dbi);
  int (*reader_check)(MDB_env*, int*);
  int (*txn_begin)(MDB_env*, MDB_txn*, unsigned, MDB_txn**);
  int (*txn_commit)(MDB_txn*);
  void (*txn_abort)(MDB_txn*);
  int (*dbi_open)(MDB_txn*, const char*, unsigned, MDB_dbi*);
  int (*get)(MDB_txn*, MDB_dbi, MDB_val*, MDB_val*);
  int (*put)(MDB_txn*, MDB_dbi, MDB_val*, MDB_val*, unsigned);
  int (*del)(MDB_txn*, MDB_dbi, MDB_val*, MDB_val*);
  int (*drop)(MDB_txn*, MDB_dbi, int);
};

/** The library, or why there is none: NotFound with what to install. */
Result<const Library*> library();

/** What a call of the library answered. */
Status failed(const Library& lmdb, const char* op, int code, const std::string& about);

}  // namespace tensorferry::lmdb
