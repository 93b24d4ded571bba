// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and how their arguments are read. JS thread only.
 */
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tensorferry/napi_jobs.h>

namespace tensorferry {

class LmdbFile;

void bindCompletions(Napi::Env env, Napi::Object exports);
void bindFiles(Napi::Env env, Napi::Object exports);
void bindQueue(Napi::Env env, Napi::Object exports);
void bindSemaphore(Napi::Env env, Napi::Object exports);
void bindTorch(Napi::Env env, Napi::Object exports);

/** The open file in JavaScript hands; nothing once it is closed. */
std::shared_ptr<LmdbFile> fileOf(Napi::Value value);

/** A whole number in a JavaScript number; `limit` is the largest allowed. */
inline bool readNumber(Napi::Value value, uint64_t limit, uint64_t& out) {
  if (!value.IsNumber()) return false;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= static_cast<double>(limit)) ||
      number != static_cast<double>(static_cast<uint64_t>(number)))
    return false;
  out = static_cast<uint64_t>(number);
  return true;
}

inline bool readBytes(Napi::Value value, std::string& out) {
  if (!value.IsTypedArray() || value.As<Napi::TypedArray>().TypedArrayType() != napi_uint8_array) return false;
  const auto bytes = value.As<Napi::Uint8Array>();
  out.assign(reinterpret_cast<const char*>(bytes.Data()), bytes.ByteLength());
  return true;
}

/** An array of byte arrays, copied: JavaScript may change its own while a job runs. */
inline bool readByteArrays(Napi::Value value, std::vector<std::string>& out) {
  if (!value.IsArray()) return false;
  const auto array = value.As<Napi::Array>();
  out.resize(array.Length());
  for (uint32_t i = 0; i < array.Length(); i++)
    if (!readBytes(array.Get(i), out[i])) return false;
  return true;
}

inline Napi::Value toBytes(Napi::Env env, const std::string& bytes) {
  auto array = Napi::Uint8Array::New(env, bytes.size());
  if (!array.IsEmpty() && !bytes.empty()) std::memcpy(array.Data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace tensorferry
