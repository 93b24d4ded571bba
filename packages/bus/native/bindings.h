// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and how their arguments are read. JS thread only.
 */
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <tensorferry/addon.h>

namespace tensorferry {

class LmdbFile;

void bindCompletions(Functions& functions);
void bindFiles(Functions& functions);
void bindPeer(Functions& functions);
void bindQueue(Functions& functions);
void bindSemaphore(Functions& functions);
void bindTorch(Functions& functions);

/** The open file in JavaScript hands; nothing once it is closed. */
template <>
struct Holder<LmdbFile> {
  static std::shared_ptr<LmdbFile> take(Napi::Value value);
};

using Pool = std::shared_ptr<JobPool>;

/** An array of byte arrays, copied. */
struct ByteArrays {
  std::vector<std::string> value;
};

template <>
struct Reader<ByteArrays> {
  static std::optional<ByteArrays> read(Napi::Value value) {
    auto arrays = Reader<std::vector<Bytes>>::read(value);
    if (!arrays) return std::nullopt;
    ByteArrays copied;
    for (Bytes& bytes : *arrays) copied.value.push_back(std::move(bytes.value));
    return copied;
  }
};

inline Napi::Value toBytes(Napi::Env env, const std::string& bytes) {
  auto array = Napi::Uint8Array::New(env, bytes.size());
  if (!array.IsEmpty() && !bytes.empty()) std::memcpy(array.Data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace tensorferry
