// SPDX-License-Identifier: Apache-2.0
/*
 * Reading what JavaScript passes. JS thread only.
 *
 * Invariant: anything may be passed. A handle that is wrong or closed answers InvalidHandle, anything else that is wrong
 * InvalidArgument.
 */
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tensorferry/addon.h>

#include <tensorferry_gpu/resource.h>

namespace tensorferry::gpu {

/** Largest whole number that JavaScript holds exactly. */
inline constexpr uint64_t largestExact = (uint64_t{1} << 53) - 1;

inline std::optional<uint64_t> readNumber(Napi::Value value, uint64_t limit) {
  if (!value.IsNumber()) return std::nullopt;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= static_cast<double>(limit))) return std::nullopt;
  const auto whole = static_cast<uint64_t>(number);
  return static_cast<double>(whole) == number ? std::optional(whole) : std::nullopt;
}

inline std::optional<uint64_t> readBigint(Napi::Value value) {
  if (!value.IsBigInt()) return std::nullopt;
  bool lossless = false;
  const uint64_t number = value.As<Napi::BigInt>().Uint64Value(&lossless);
  return lossless ? std::optional(number) : std::nullopt;
}

inline bool isTypedArray(Napi::Value value, napi_typedarray_type type) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == type;
}
inline bool isBytes(Napi::Value value) { return isTypedArray(value, napi_uint8_array); }
inline bool isWords(Napi::Value value) { return isTypedArray(value, napi_biguint64_array); }

/** A list of texts; absent where it is something else. */
inline std::optional<std::vector<std::string>> readTexts(Napi::Value value) {
  if (!value.IsArray()) return std::nullopt;
  auto array = value.As<Napi::Array>();
  std::vector<std::string> texts;
  for (uint32_t i = 0; i < array.Length(); i++) {
    Napi::Value text = array.Get(i);
    if (!text.IsString()) return std::nullopt;
    texts.push_back(text.As<Napi::String>().Utf8Value());
  }
  return texts;
}

/** What the argument at a place is; undefined beyond the end. */
inline Napi::Value argument(const Napi::CallbackInfo& info, size_t index) {
  return index < info.Length() ? info[index] : info.Env().Undefined();
}

/** The open resource of a handle, or null. */
template <typename Kind>
std::shared_ptr<Kind> openResource(Napi::Value value) {
  auto handle = unwrap<Handle<Kind>>(value);
  return handle != nullptr && handle->object->isOpen() ? handle->object : nullptr;
}

template <typename Kind>
Napi::Value wrapResource(Napi::Env env, std::shared_ptr<Kind> resource) {
  return wrap(env, std::make_shared<Handle<Kind>>(std::move(resource)));
}

inline Napi::Value bigint(Napi::Env env, uint64_t value) { return Napi::BigInt::New(env, value); }

}  // namespace tensorferry::gpu
