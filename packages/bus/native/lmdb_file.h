// SPDX-License-Identifier: Apache-2.0
/*
 * One LMDB file with one database in it, shared with other processes. Any thread; a write waits for other writers and is
 * therefore done on a pool thread.
 *
 * Invariants: only files of this user that nobody else can write are opened, and never through a symbolic link. A process
 * has a file open once, however many asked for it: closing a second opening would drop the locks of the first. Nothing is
 * synced to disk: what is stored does not outlive the machine's run. Who makes files gets one whose pages were checked: a
 * damaged one, or one of an earlier run of the machine, is renamed and made again.
 */
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tensorferry/napi_setup.h>
#include <tensorferry/status.h>

#include "lmdb_library.h"

namespace tensorferry {

class LmdbFile {
 public:
  static constexpr napi_type_tag typeTag{0x6a1d0c5be7f24e11, 0xa3bd9e0c2f7714c8};

  LmdbFile(const LmdbFile&) = delete;
  LmdbFile& operator=(const LmdbFile&) = delete;
  ~LmdbFile();

  /** Opens a file, which is made where it is missing, or cannot be trusted, and `make` is true. */
  static Result<std::shared_ptr<LmdbFile>> open(const std::string& path, const std::string& database, uint64_t mapBytes,
                                                bool make);

  /** As `open` with `make`, after what stands there is set aside for this reason, the end of a sentence. */
  static Result<std::shared_ptr<LmdbFile>> replace(const std::string& path, const std::string& database,
                                                   uint64_t mapBytes, const std::string& reason);

  /** What was set aside when this file was made, where it is now and why, in a sentence; empty where nothing was. */
  std::string setAside;

  /** Whether the path still leads to the files that are open. */
  bool isCurrent() const noexcept;

  /** Removes the files from their folder, if they are still these. */
  void unlink() const noexcept;

  struct Entry {
    std::string key;
    /** Nothing: the key is removed. */
    std::optional<std::string> value;
  };

  /** All or none. */
  Status put(const std::vector<Entry>& entries);
  Result<std::vector<std::optional<std::string>>> get(const std::vector<std::string>& keys);
  Status clear();

  /** A transaction that is dropped unless it is committed. */
  class Transaction {
   public:
    Transaction(Transaction&& other) noexcept : file_(other.file_), txn_(std::exchange(other.txn_, nullptr)) {}
    Transaction& operator=(Transaction&&) = delete;
    ~Transaction();
    /** What stands there, valid until the transaction changes anything. NotFound is a failure. */
    Result<std::string_view> get(std::string_view key) const;
    Status put(std::string_view key, std::string_view value);
    /** A key that is not there is removed already. */
    Status remove(std::string_view key);
    Status clear();
    Status commit();

   private:
    friend class LmdbFile;
    Transaction(LmdbFile& file, lmdb::MDB_txn* txn) : file_(&file), txn_(txn) {}
    LmdbFile* file_;
    lmdb::MDB_txn* txn_;
  };

  Result<Transaction> begin(bool isWrite);

  const std::string path;

 private:
  LmdbFile(std::string path, const lmdb::Library& library) : path(std::move(path)), lmdb_(library) {}
  Status openEnvironment(const std::string& database, uint64_t mapBytes, bool isChecked);

  static Result<std::shared_ptr<LmdbFile>> openLocked(const std::string& path, const std::string& database,
                                                      uint64_t mapBytes, bool make);
  static Result<std::shared_ptr<LmdbFile>> replaceLocked(const std::string& path, const std::string& database,
                                                         uint64_t mapBytes, const std::string& reason);

  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Identity&) const = default;
    auto operator<=>(const Identity&) const = default;
  };
  static std::optional<Identity> identityOf(const std::string& path) noexcept;

  const lmdb::Library& lmdb_;
  lmdb::MDB_env* environment_ = nullptr;
  lmdb::MDB_dbi database_ = 0;
  std::string databaseName_;
  Identity data_, lock_;
};

}  // namespace tensorferry
