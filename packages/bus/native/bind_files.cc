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

Answer startOpenFile(const Call& call, Pool pool, std::string path, std::string database, Whole<> mapBytes, bool make,
                     Napi::Function callback) {
  const auto open = [=](Job&) { return LmdbFile::open(path, database, mapBytes, make); };
  const auto give = [](Napi::Env env, auto& file) {
    return wrap(env, std::make_shared<FileHandle>(FileHandle{std::move(file)}));
  };
  return call.start(pool, makeJob("open file", open, give), callback);
}

/** A job of an open file, which it lets go of when it has run: JavaScript may hold a job for long. */
template <typename Work, typename Give = Nothing>
std::shared_ptr<Job> fileJob(const char* op, std::shared_ptr<LmdbFile> file, Work work, Give give = {}) {
  auto run = [file = std::move(file), work = std::move(work)](Job&) mutable {
    const auto held = std::move(file);
    return work(*held);
  };
  return makeJob(op, std::move(run), std::move(give));
}

/** Values that are undefined remove their keys. Then the semaphore is posted, and its name removed, where one is given. */
Answer startPut(const Call& call, Pool pool, std::shared_ptr<LmdbFile> file, ByteArrays keys,
                std::vector<std::optional<Bytes>> values, std::optional<std::string> completed,
                Napi::Function callback) {
  if (values.size() != keys.value.size()) return call.refusal();
  std::vector<LmdbFile::Entry> entries(values.size());
  for (size_t i = 0; i < values.size(); i++) {
    entries[i].key = std::move(keys.value[i]);
    if (values[i]) entries[i].value = std::move(values[i]->value);
  }
  const auto put = [entries = std::move(entries), completed](LmdbFile& open) {
    const Status stored = open.put(entries);
    return stored.ok() && completed ? Semaphore::complete(*completed) : stored;
  };
  return call.start(pool, fileJob("put", std::move(file), put), callback);
}

Answer startClear(const Call& call, Pool pool, std::shared_ptr<LmdbFile> file, Napi::Function callback) {
  const auto clear = [](LmdbFile& open) { return open.clear(); };
  return call.start(pool, fileJob("clear", std::move(file), clear), callback);
}

Answer startGet(const Call& call, Pool pool, std::shared_ptr<LmdbFile> file, ByteArrays keys, Napi::Function callback) {
  const auto get = [keys](LmdbFile& open) { return open.get(keys.value); };
  const auto give = [](Napi::Env env, const auto& values) -> Napi::Value {
    Napi::Array array = Napi::Array::New(env, values.size());
    for (size_t i = 0; i < values.size(); i++)
      array.Set(static_cast<uint32_t>(i), values[i] ? toBytes(env, *values[i]) : env.Undefined());
    return array;
  };
  return call.start(pool, fileJob("get", std::move(file), get, give), callback);
}

Answer isFileCurrent(const Call& call, std::shared_ptr<LmdbFile> file) {
  return Napi::Boolean::New(call.env, file->isCurrent());
}

Answer fileSetAside(const Call& call, std::shared_ptr<LmdbFile> file) {
  return Napi::String::New(call.env, file->setAside);
}

/** Work that still runs keeps the file open until it ends. */
Status closeFile(const Call&, std::shared_ptr<FileHandle> handle, bool destroy) {
  if (handle->file != nullptr && destroy) handle->file->unlink();
  handle->file = nullptr;
  return {};
}

}  // namespace

std::shared_ptr<LmdbFile> Holder<LmdbFile>::take(Napi::Value value) {
  auto handle = unwrap<FileHandle>(value);
  return handle == nullptr ? nullptr : handle->file;
}

void bindFiles(Functions& functions) {
  functions.add<startOpenFile>("startOpenFile", "(pool, path, database, mapBytes, make, callback)")
      .add<startPut>("startPut", "(pool, open file, keys, values, semaphore or undefined, callback)")
      .add<startClear>("startClear", "(pool, open file, callback)")
      .add<startGet>("startGet", "(pool, open file, keys, callback)")
      .add<isFileCurrent>("isFileCurrent", "(open file)")
      .add<fileSetAside>("fileSetAside", "(open file)")
      .add<closeFile>("closeFile", "(file, destroy)");
}

}  // namespace tensorferry
