// SPDX-License-Identifier: Apache-2.0
/*
 * See lmdb_file.h.
 */
#include "lmdb_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include <tensorferry/descriptor.h>

#include "lmdb_check.h"

namespace tensorferry {
namespace {

constexpr mode_t ownerOnly = 0600;

std::string lockPathOf(const std::string& path) { return path + "-lock"; }

Status checkFacts(const struct stat& facts, const std::string& path) {
  if (!S_ISREG(facts.st_mode)) return failure(Code::PermissionDenied, "open", path + " is not a plain file.");
  if (facts.st_uid != geteuid()) return failure(Code::PermissionDenied, "open", path + " belongs to another user.");
  if ((facts.st_mode & 022) != 0)
    return failure(Code::PermissionDenied, "open", path + " can be written by other users.");
  return Status{};
}

/** The lock file is only looked at: closing a descriptor of it would drop the locks of this process. */
Status checkLock(const std::string& path) {
  struct stat facts;
  if (lstat(path.c_str(), &facts) != 0) return errno == ENOENT ? Status{} : systemFailure("lstat", path);
  return checkFacts(facts, path);
}

/** The path to which a file is renamed that cannot be trusted: nobody reads it, and people may look into it. */
Result<std::string> renameAside(const std::string& path) {
  for (int number = 1; number < 1000; number++) {
    std::string aside = path + "-broken-" + std::to_string(number);
    if (::access(aside.c_str(), F_OK) == 0) continue;
    if (::rename(path.c_str(), aside.c_str()) != 0) return systemFailure("rename", path);
    ::unlink(lockPathOf(path).c_str());
    return aside;
  }
  return failure(Code::SystemFailure, "rename", path + " was set aside too often: remove the files.");
}

lmdb::MDB_val toValue(std::string_view bytes) { return {bytes.size(), const_cast<char*>(bytes.data())}; }

}  // namespace

std::optional<LmdbFile::Identity> LmdbFile::identityOf(const std::string& path) noexcept {
  struct stat facts;
  if (lstat(path.c_str(), &facts) != 0) return std::nullopt;
  return Identity{facts.st_dev, facts.st_ino};
}

namespace {

/** Held while a file is opened or set aside. */
std::mutex& opening() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

Result<std::shared_ptr<LmdbFile>> LmdbFile::open(const std::string& path, const std::string& database,
                                                 uint64_t mapBytes, bool make) {
  std::lock_guard guard(opening());
  return openLocked(path, database, mapBytes, make);
}

Result<std::shared_ptr<LmdbFile>> LmdbFile::replace(const std::string& path, const std::string& database,
                                                    uint64_t mapBytes, const std::string& reason) {
  std::lock_guard guard(opening());
  return replaceLocked(path, database, mapBytes, reason);
}

Result<std::shared_ptr<LmdbFile>> LmdbFile::replaceLocked(const std::string& path, const std::string& database,
                                                          uint64_t mapBytes, const std::string& reason) {
  auto aside = renameAside(path);
  if (!aside.ok()) return aside.status();
  auto file = openLocked(path, database, mapBytes, true);
  if (file.ok()) file.value()->setAside = path + " was set aside as " + aside.value() + ": " + reason + ".";
  return file;
}

Result<std::shared_ptr<LmdbFile>> LmdbFile::openLocked(const std::string& path, const std::string& database,
                                                       uint64_t mapBytes, bool make) {
  auto library = lmdb::library();
  if (!library.ok()) return library.status();
  static std::map<Identity, std::weak_ptr<LmdbFile>> files;

  Descriptor probe(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!probe.isOpen() && errno == ENOENT && make) {
    probe = Descriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL, ownerOnly));
    // A lock file without its data file is of a queue that was removed; others may still use that one.
    if (probe.isOpen()) ::unlink(lockPathOf(path).c_str());
  }
  if (!probe.isOpen()) {
    if (errno == ELOOP) return failure(Code::PermissionDenied, "open", path + " is a symbolic link.", ELOOP);
    return systemFailure("open", path);
  }
  struct stat facts;
  if (fstat(probe.get(), &facts) != 0) return systemFailure("fstat", path);
  Status status = checkFacts(facts, path);
  if (status.ok()) status = checkLock(lockPathOf(path));
  if (!status.ok()) return status;

  const Identity identity{facts.st_dev, facts.st_ino};
  std::optional<std::string> damage;
  std::erase_if(files, [](const auto& entry) { return entry.second.expired(); });
  if (const auto known = files.find(identity); known != files.end()) {
    auto file = known->second.lock();
    if (file != nullptr && file->databaseName_ == database) return file;
    if (file != nullptr) return failure(Code::InvalidArgument, "open", path + " is open here with another database.");
  }
  const bool isChecked = make && facts.st_size > 0;
  if (isChecked && lmdb::isOfEarlierBoot(probe.get())) damage = "it is of an earlier run of the machine";
  else if (facts.st_size > 0) damage = lmdb::damageOfHeader(probe.get());
  std::shared_ptr<LmdbFile> file(new LmdbFile(path, *library.value()));
  if (!damage) {
    status = file->openEnvironment(database, mapBytes, isChecked);
    if (status.code == Code::InvalidHandle) damage = status.detail;
    else if (!status.ok()) return status;
  }
  if (damage) {
    if (!make) return failure(Code::InvalidHandle, "open", path + " is damaged: " + *damage + ".");
    file.reset();
    return replaceLocked(path, database, mapBytes, *damage);
  }
  if (file->data_ != identity) return failure(Code::PeerGone, "open", path + " was replaced while it was opened.");
  files[identity] = file;
  return file;
}

Status LmdbFile::openEnvironment(const std::string& database, uint64_t mapBytes, bool isChecked) {
  int code = lmdb_.env_create(&environment_);
  if (code != 0) return lmdb::failed(lmdb_, "mdb_env_create", code, path);
  lmdb_.env_set_mapsize(environment_, mapBytes);
  lmdb_.env_set_maxdbs(environment_, 4);
  code = lmdb_.env_open(environment_, path.c_str(),
                        lmdb::noSubFolder | lmdb::noSync | lmdb::noThreadLocals | lmdb::noReadAhead, ownerOnly);
  if (code != 0) return lmdb::failed(lmdb_, "mdb_env_open", code, path);
  int descriptor = -1, dead = 0;
  struct stat facts;
  if (lmdb_.env_get_fd(environment_, &descriptor) != 0 || fstat(descriptor, &facts) != 0)
    return systemFailure("fstat", path);
  data_ = {facts.st_dev, facts.st_ino};
  lock_ = identityOf(lockPathOf(path)).value_or(Identity{});
  lmdb_.reader_check(environment_, &dead);
  databaseName_ = database;
  lmdb::MDB_txn* txn = nullptr;
  code = lmdb_.txn_begin(environment_, nullptr, 0, &txn);
  if (code != 0) return lmdb::failed(lmdb_, "mdb_txn_begin", code, path);
  // Other writers wait for the transaction meanwhile, and it has touched no page but the meta pages.
  if (const auto damage = isChecked ? lmdb::damageOfPages(descriptor) : std::nullopt) {
    lmdb_.txn_abort(txn);
    return failure(Code::InvalidHandle, "open", *damage);
  }
  code = lmdb_.dbi_open(txn, database.c_str(), lmdb::create, &database_);
  if (code != 0) {
    lmdb_.txn_abort(txn);
    return lmdb::failed(lmdb_, "mdb_dbi_open", code, path);
  }
  code = lmdb_.txn_commit(txn);
  return code == 0 ? Status{} : lmdb::failed(lmdb_, "mdb_txn_commit", code, path);
}

LmdbFile::~LmdbFile() {
  if (environment_ != nullptr) lmdb_.env_close(environment_);
}

bool LmdbFile::isCurrent() const noexcept { return identityOf(path) == data_ && identityOf(lockPathOf(path)) == lock_; }

void LmdbFile::unlink() const noexcept {
  if (identityOf(path) == data_) ::unlink(path.c_str());
  if (identityOf(lockPathOf(path)) == lock_) ::unlink(lockPathOf(path).c_str());
}

Result<LmdbFile::Transaction> LmdbFile::begin(bool isWrite) {
  lmdb::MDB_txn* txn = nullptr;
  int code = lmdb_.txn_begin(environment_, nullptr, isWrite ? 0 : lmdb::readOnly, &txn);
  if (code == lmdb::mapResized) {
    // Another process has a larger map: take its size.
    lmdb_.env_set_mapsize(environment_, 0);
    code = lmdb_.txn_begin(environment_, nullptr, isWrite ? 0 : lmdb::readOnly, &txn);
  }
  if (code != 0) return lmdb::failed(lmdb_, "mdb_txn_begin", code, path);
  return Transaction(*this, txn);
}

LmdbFile::Transaction::~Transaction() {
  if (txn_ != nullptr) file_->lmdb_.txn_abort(txn_);
}

Result<std::string_view> LmdbFile::Transaction::get(std::string_view key) const {
  lmdb::MDB_val name = toValue(key), value{};
  const int code = file_->lmdb_.get(txn_, file_->database_, &name, &value);
  if (code != 0) return lmdb::failed(file_->lmdb_, "mdb_get", code, file_->path);
  return std::string_view(static_cast<const char*>(value.mv_data), value.mv_size);
}

Status LmdbFile::Transaction::put(std::string_view key, std::string_view value) {
  lmdb::MDB_val name = toValue(key), data = toValue(value);
  const int code = file_->lmdb_.put(txn_, file_->database_, &name, &data, 0);
  return code == 0 ? Status{} : lmdb::failed(file_->lmdb_, "mdb_put", code, file_->path);
}

Status LmdbFile::Transaction::remove(std::string_view key) {
  lmdb::MDB_val name = toValue(key);
  const int code = file_->lmdb_.del(txn_, file_->database_, &name, nullptr);
  return code == 0 || code == lmdb::notFound ? Status{} : lmdb::failed(file_->lmdb_, "mdb_del", code, file_->path);
}

Status LmdbFile::Transaction::clear() {
  const int code = file_->lmdb_.drop(txn_, file_->database_, 0);
  return code == 0 ? Status{} : lmdb::failed(file_->lmdb_, "mdb_drop", code, file_->path);
}

Status LmdbFile::Transaction::commit() {
  const int code = file_->lmdb_.txn_commit(std::exchange(txn_, nullptr));
  return code == 0 ? Status{} : lmdb::failed(file_->lmdb_, "mdb_txn_commit", code, file_->path);
}

Status LmdbFile::put(const std::vector<Entry>& entries) {
  auto transaction = begin(true);
  if (!transaction.ok()) return transaction.status();
  for (const auto& [key, value] : entries) {
    const Status status = value ? transaction.value().put(key, *value) : transaction.value().remove(key);
    if (!status.ok()) return status;
  }
  return transaction.value().commit();
}

Result<std::vector<std::optional<std::string>>> LmdbFile::get(const std::vector<std::string>& keys) {
  auto transaction = begin(false);
  if (!transaction.ok()) return transaction.status();
  std::vector<std::optional<std::string>> values;
  for (const auto& key : keys) {
    auto value = transaction.value().get(key);
    if (value.ok()) {
      values.emplace_back(value.value());
    } else if (value.status().code == Code::NotFound) {
      values.emplace_back(std::nullopt);
    } else {
      return value.status();
    }
  }
  return values;
}

Status LmdbFile::clear() {
  auto transaction = begin(true);
  if (!transaction.ok()) return transaction.status();
  const Status status = transaction.value().clear();
  return status.ok() ? transaction.value().commit() : status;
}

}  // namespace tensorferry
