// SPDX-License-Identifier: Apache-2.0
/*
 * LMDB files for JavaScript: keys and values as bytes. JS thread only; reads and writes are jobs.
 */
#include "bindings.h"
#include "lmdb_file.h"
#include "semaphores.h"

namespace tensorferry {
namespace {

/** A file in JavaScript hands; empty once closed. */
struct FileHandle {
  static constexpr napi_type_tag typeTag{0xc8e2f95b1a0d4763, 0xa17b6c40d9e8325f};
  std::shared_ptr<LmdbFile> file;
};

class OpenJob final : public Job {
 public:
  OpenJob(std::string path, std::string database, uint64_t mapBytes, bool make)
      : path_(std::move(path)), database_(std::move(database)), mapBytes_(mapBytes), make_(make) {}
  void run(size_t) noexcept override {
    Status status = caught("open file", [&] {
      auto opened = LmdbFile::open(path_, database_, mapBytes_, make_);
      if (!opened.ok()) return opened.status();
      file_ = opened.value();
      return Status{};
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override { return wrap(env, std::make_shared<FileHandle>(std::move(file_))); }

 private:
  std::string path_, database_;
  uint64_t mapBytes_;
  bool make_;
  std::shared_ptr<LmdbFile> file_;
};

class PutJob final : public Job {
 public:
  PutJob(std::shared_ptr<LmdbFile> file, std::vector<LmdbFile::Entry> entries, std::optional<std::string> completed)
      : file_(std::move(file)), entries_(std::move(entries)), completed_(std::move(completed)) {}
  void run(size_t) noexcept override {
    const auto file = std::move(file_);  // JavaScript may hold the job for long
    Status status = caught("put", [&] {
      const Status stored = file->put(entries_);
      return stored.ok() && completed_ ? Semaphore::complete(*completed_) : stored;
    });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<LmdbFile> file_;
  std::vector<LmdbFile::Entry> entries_;
  std::optional<std::string> completed_;
};

class ClearJob final : public Job {
 public:
  explicit ClearJob(std::shared_ptr<LmdbFile> file) : file_(std::move(file)) {}
  void run(size_t) noexcept override {
    const auto file = std::move(file_);
    Status status = caught("clear", [&] { return file->clear(); });
    if (!status.ok()) fail(std::move(status));
  }

 private:
  std::shared_ptr<LmdbFile> file_;
};

class GetJob final : public Job {
 public:
  GetJob(std::shared_ptr<LmdbFile> file, std::vector<std::string> keys)
      : file_(std::move(file)), keys_(std::move(keys)) {}
  void run(size_t) noexcept override {
    const auto file = std::move(file_);
    Status status = caught("get", [&] {
      auto values = file->get(keys_);
      if (!values.ok()) return values.status();
      values_ = std::move(values.value());
      return Status{};
    });
    if (!status.ok()) fail(std::move(status));
  }
  Napi::Value value(Napi::Env env) override {
    Napi::Array array = Napi::Array::New(env, values_.size());
    for (size_t i = 0; i < values_.size(); i++)
      array.Set(static_cast<uint32_t>(i), values_[i] ? toBytes(env, *values_[i]) : env.Undefined());
    return array;
  }

 private:
  std::shared_ptr<LmdbFile> file_;
  std::vector<std::string> keys_;
  std::vector<std::optional<std::string>> values_;
};

constexpr uint64_t exact = (1ull << 53) - 1;

Napi::Value startOpenFile(const Napi::CallbackInfo& info) {
  return guarded(info, "startOpenFile", [&]() -> Napi::Value {
    uint64_t mapBytes = 0;
    auto pool = info.Length() == 6 ? unwrap<JobPool>(info[0]) : nullptr;
    if (pool == nullptr || !info[1].IsString() || !info[2].IsString() || !readNumber(info[3], exact, mapBytes) ||
        !info[4].IsBoolean() || !info[5].IsFunction())
      return toJs(info.Env(), badArgument("startOpenFile", "(pool, path, database, mapBytes, make, callback)"));
    auto job = std::make_shared<OpenJob>(info[1].As<Napi::String>().Utf8Value(), info[2].As<Napi::String>().Utf8Value(),
                                         mapBytes, info[4].As<Napi::Boolean>().Value());
    return Jobs::of(info.Env())->start(pool, std::move(job), info[5].As<Napi::Function>());
  });
}

/** Values that are undefined remove their keys. Then the semaphore is posted, and its name removed, where one is given. */
Napi::Value startPut(const Napi::CallbackInfo& info) {
  return guarded(info, "startPut", [&]() -> Napi::Value {
    std::vector<std::string> keys;
    auto pool = info.Length() == 6 ? unwrap<JobPool>(info[0]) : nullptr;
    auto file = info.Length() == 6 ? fileOf(info[1]) : nullptr;
    const auto refuse = [&] {
      return toJs(info.Env(),
                  badArgument("startPut", "(pool, open file, keys, values, semaphore or undefined, callback)"));
    };
    if (pool == nullptr || file == nullptr || !readByteArrays(info[2], keys) || !info[3].IsArray() ||
        !(info[4].IsString() || info[4].IsUndefined()) || !info[5].IsFunction())
      return refuse();
    const auto values = info[3].As<Napi::Array>();
    if (values.Length() != keys.size()) return refuse();
    std::vector<LmdbFile::Entry> entries(keys.size());
    for (uint32_t i = 0; i < keys.size(); i++) {
      entries[i].key = std::move(keys[i]);
      const Napi::Value value = values.Get(i);
      if (value.IsUndefined()) continue;
      if (!readBytes(value, entries[i].value.emplace())) return refuse();
    }
    std::optional<std::string> completed;
    if (info[4].IsString()) completed = info[4].As<Napi::String>().Utf8Value();
    auto job = std::make_shared<PutJob>(std::move(file), std::move(entries), std::move(completed));
    return Jobs::of(info.Env())->start(pool, std::move(job), info[5].As<Napi::Function>());
  });
}

Napi::Value startClear(const Napi::CallbackInfo& info) {
  return guarded(info, "startClear", [&]() -> Napi::Value {
    auto pool = info.Length() == 3 ? unwrap<JobPool>(info[0]) : nullptr;
    auto file = info.Length() == 3 ? fileOf(info[1]) : nullptr;
    if (pool == nullptr || file == nullptr || !info[2].IsFunction())
      return toJs(info.Env(), badArgument("startClear", "(pool, open file, callback)"));
    return Jobs::of(info.Env())->start(pool, std::make_shared<ClearJob>(std::move(file)), info[2].As<Napi::Function>());
  });
}

Napi::Value startGet(const Napi::CallbackInfo& info) {
  return guarded(info, "startGet", [&]() -> Napi::Value {
    std::vector<std::string> keys;
    auto pool = info.Length() == 4 ? unwrap<JobPool>(info[0]) : nullptr;
    auto file = info.Length() == 4 ? fileOf(info[1]) : nullptr;
    if (pool == nullptr || file == nullptr || !readByteArrays(info[2], keys) || !info[3].IsFunction())
      return toJs(info.Env(), badArgument("startGet", "(pool, open file, keys, callback)"));
    return Jobs::of(info.Env())
        ->start(pool, std::make_shared<GetJob>(std::move(file), std::move(keys)), info[3].As<Napi::Function>());
  });
}

Napi::Value isFileCurrent(const Napi::CallbackInfo& info) {
  return guarded(info, "isFileCurrent", [&]() -> Napi::Value {
    auto file = info.Length() == 1 ? fileOf(info[0]) : nullptr;
    if (file == nullptr) return toJs(info.Env(), badArgument("isFileCurrent", "(open file)"));
    return succeed(info.Env(), Napi::Boolean::New(info.Env(), file->isCurrent()));
  });
}

/** Work that still runs keeps the file open until it ends. */
Napi::Value closeFile(const Napi::CallbackInfo& info) {
  return guarded(info, "closeFile", [&]() -> Napi::Value {
    auto handle = info.Length() == 2 ? unwrap<FileHandle>(info[0]) : nullptr;
    if (handle == nullptr || !info[1].IsBoolean()) return toJs(info.Env(), badArgument("closeFile", "(file, destroy)"));
    if (handle->file != nullptr && info[1].As<Napi::Boolean>().Value()) handle->file->unlink();
    handle->file = nullptr;
    return succeed(info.Env());
  });
}

}  // namespace

std::shared_ptr<LmdbFile> fileOf(Napi::Value value) {
  auto handle = unwrap<FileHandle>(value);
  return handle == nullptr ? nullptr : handle->file;
}

void bindFiles(Napi::Env env, Napi::Object exports) {
  exports.Set("startOpenFile", Napi::Function::New(env, startOpenFile));
  exports.Set("startPut", Napi::Function::New(env, startPut));
  exports.Set("startClear", Napi::Function::New(env, startClear));
  exports.Set("startGet", Napi::Function::New(env, startGet));
  exports.Set("isFileCurrent", Napi::Function::New(env, isFileCurrent));
  exports.Set("closeFile", Napi::Function::New(env, closeFile));
}

}  // namespace tensorferry
