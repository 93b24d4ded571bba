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

#include "device.h"

namespace tensorferry::xpu {

/** Largest whole number that JavaScript holds exactly. */
inline constexpr uint64_t largestExact = (uint64_t{1} << 53) - 1;

inline Napi::Value argument(const Napi::CallbackInfo& info, size_t index) {
  return index < info.Length() ? info[index] : info.Env().Undefined();
}

inline std::optional<uint64_t> readNumber(Napi::Value value, uint64_t limit = largestExact) {
  if (!value.IsNumber()) return std::nullopt;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= static_cast<double>(limit))) return std::nullopt;
  const auto whole = static_cast<uint64_t>(number);
  return static_cast<double>(whole) == number ? std::optional(whole) : std::nullopt;
}

inline bool isTypedArray(Napi::Value value, napi_typedarray_type type) {
  return value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == type;
}

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

/** The open device of a handle, or null. */
inline std::shared_ptr<Device> openDevice(Napi::Value value) {
  auto device = unwrap<Device>(value);
  return device != nullptr && device->isOpen() ? device : nullptr;
}

}  // namespace tensorferry::xpu
