// SPDX-License-Identifier: Apache-2.0
/*
 * Reading what JavaScript passes, by the types of a function's parameters. JS thread only.
 *
 * Invariant: anything may be passed. A type says by its `Reader` what it takes; nothing else reaches a function.
 */
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "type_tags.h"

namespace tensorferry {

/** Largest whole number that JavaScript holds exactly. */
inline constexpr uint64_t largestExact = (uint64_t{1} << 53) - 1;

/**
 * Takes a value of JavaScript as a `T`; absent where it is something else. A reader that has a `kind` is of handles: the
 * answer to another value is InvalidHandle, and InvalidArgument elsewhere.
 */
template <typename T>
struct Reader;

/** A whole number in a JavaScript number, `least` to `limit`. */
template <uint64_t limit = largestExact, uint64_t least = 0>
struct Whole {
  uint64_t value = 0;
  operator uint64_t() const noexcept { return value; }
};

/** A number in a BigInt of JavaScript: an address, or what may exceed the exact numbers. */
struct Big {
  uint64_t value = 0;
  operator uint64_t() const noexcept { return value; }
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(value);
  }
};

/** Bytes, copied: JavaScript may change its own while a job runs. */
struct Bytes {
  std::string value;
};

/** Bytes of exactly the length of a `T`, copied. */
template <typename T>
struct BytesOf {
  T value{};
};

/** How a kind of object is held in JavaScript; null where the value holds none. */
template <typename Kind>
struct Holder {
  static std::shared_ptr<Kind> take(Napi::Value value) { return unwrap<Kind>(value); }
};

/** A handle of a kind that names itself by `kind`, whether the object is open or closed. */
template <typename Kind>
struct Held : std::shared_ptr<Kind> {};

/** A handle of a kind that names itself by `kind`. Objects that can be closed are open. */
template <typename Kind>
struct Open : std::shared_ptr<Kind> {};

inline std::optional<uint64_t> readNumber(Napi::Value value, uint64_t limit = largestExact) {
  if (!value.IsNumber()) return std::nullopt;
  const double number = value.As<Napi::Number>().DoubleValue();
  if (!(number >= 0 && number <= static_cast<double>(limit))) return std::nullopt;
  const auto whole = static_cast<uint64_t>(number);
  return static_cast<double>(whole) == number ? std::optional(whole) : std::nullopt;
}

template <uint64_t limit, uint64_t least>
struct Reader<Whole<limit, least>> {
  static std::optional<Whole<limit, least>> read(Napi::Value value) {
    const auto number = readNumber(value, limit);
    return number && *number >= least ? std::optional(Whole<limit, least>{*number}) : std::nullopt;
  }
};

template <>
struct Reader<Big> {
  static std::optional<Big> read(Napi::Value value) {
    if (!value.IsBigInt()) return std::nullopt;
    bool lossless = false;
    const uint64_t number = value.As<Napi::BigInt>().Uint64Value(&lossless);
    return lossless ? std::optional(Big{number}) : std::nullopt;
  }
};

template <>
struct Reader<double> {
  static std::optional<double> read(Napi::Value value) {
    return value.IsNumber() ? std::optional(value.As<Napi::Number>().DoubleValue()) : std::nullopt;
  }
};

template <>
struct Reader<bool> {
  static std::optional<bool> read(Napi::Value value) {
    return value.IsBoolean() ? std::optional(value.As<Napi::Boolean>().Value()) : std::nullopt;
  }
};

template <>
struct Reader<std::string> {
  static std::optional<std::string> read(Napi::Value value) {
    return value.IsString() ? std::optional(value.As<Napi::String>().Utf8Value()) : std::nullopt;
  }
};

template <>
struct Reader<Napi::Value> {
  static std::optional<Napi::Value> read(Napi::Value value) { return value; }
};

template <>
struct Reader<Napi::Function> {
  static std::optional<Napi::Function> read(Napi::Value value) {
    return value.IsFunction() ? std::optional(value.As<Napi::Function>()) : std::nullopt;
  }
};

template <>
struct Reader<Napi::ArrayBuffer> {
  static std::optional<Napi::ArrayBuffer> read(Napi::Value value) {
    return value.IsArrayBuffer() ? std::optional(value.As<Napi::ArrayBuffer>()) : std::nullopt;
  }
};

/** Elements that JavaScript may change: use them before the function returns. */
template <typename T>
struct Reader<Napi::TypedArrayOf<T>> {
  static std::optional<Napi::TypedArrayOf<T>> read(Napi::Value value) {
    static_assert(std::is_same_v<T, uint8_t> || std::is_same_v<T, uint64_t>);
    constexpr auto type = std::is_same_v<T, uint8_t> ? napi_uint8_array : napi_biguint64_array;
    const bool matches = value.IsTypedArray() && value.As<Napi::TypedArray>().TypedArrayType() == type;
    return matches ? std::optional(value.As<Napi::TypedArrayOf<T>>()) : std::nullopt;
  }
};

template <>
struct Reader<Bytes> {
  static std::optional<Bytes> read(Napi::Value value) {
    const auto bytes = Reader<Napi::Uint8Array>::read(value);
    if (!bytes) return std::nullopt;
    return Bytes{std::string(reinterpret_cast<const char*>(bytes->Data()), bytes->ByteLength())};
  }
};

template <typename T>
struct Reader<BytesOf<T>> {
  static std::optional<BytesOf<T>> read(Napi::Value value) {
    const auto bytes = Reader<Napi::Uint8Array>::read(value);
    if (!bytes || bytes->ByteLength() != sizeof(T)) return std::nullopt;
    BytesOf<T> copy;
    std::memcpy(&copy.value, bytes->Data(), sizeof(T));
    return copy;
  }
};

template <typename T>
struct Reader<std::vector<T>> {
  static std::optional<std::vector<T>> read(Napi::Value value) {
    if (!value.IsArray()) return std::nullopt;
    const auto array = value.As<Napi::Array>();
    std::vector<T> elements;
    elements.reserve(array.Length());
    for (uint32_t i = 0; i < array.Length(); i++) {
      auto element = Reader<T>::read(array.Get(i));
      if (!element) return std::nullopt;
      elements.push_back(std::move(*element));
    }
    return elements;
  }
};

/** A handle that counts as an argument like others. */
template <typename Kind>
struct Reader<std::shared_ptr<Kind>> {
  static std::optional<std::shared_ptr<Kind>> read(Napi::Value value) {
    auto object = Holder<Kind>::take(value);
    return object == nullptr ? std::nullopt : std::optional(std::move(object));
  }
};

template <typename Kind>
struct Reader<Held<Kind>> {
  static constexpr const char* kind = Kind::kind;
  static std::optional<Held<Kind>> read(Napi::Value value) {
    auto object = Holder<Kind>::take(value);
    return object == nullptr ? std::nullopt : std::optional(Held<Kind>{std::move(object)});
  }
};

template <typename Kind>
struct Reader<Open<Kind>> {
  static constexpr const char* kind = Kind::kind;
  static std::optional<Open<Kind>> read(Napi::Value value) {
    auto object = Holder<Kind>::take(value);
    if (object == nullptr) return std::nullopt;
    if constexpr (requires { object->isOpen(); })
      if (!object->isOpen()) return std::nullopt;
    return Open<Kind>{std::move(object)};
  }
};

template <typename T>
constexpr const char* kindOf() {
  if constexpr (requires { Reader<T>::kind; }) return Reader<T>::kind;
  else return nullptr;
}

/** What may be left out, or undefined. */
template <typename T>
struct Reader<std::optional<T>> {
  static constexpr const char* kind = kindOf<T>();
  static std::optional<std::optional<T>> read(Napi::Value value) {
    if (value.IsUndefined()) return std::optional<T>();
    auto given = Reader<T>::read(value);
    if (!given) return std::nullopt;
    return std::optional<std::optional<T>>(std::in_place, std::move(given));
  }
};

}  // namespace tensorferry
