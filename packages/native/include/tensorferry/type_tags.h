// SPDX-License-Identifier: Apache-2.0
/*
 * Native objects in JavaScript hands: shared pointers in externals that carry a tag of their type. JS thread only.
 *
 * Invariant: `unwrap` gives the object only where the tag is the one of its type, so that a wrong or forged argument is
 * refused instead of being read as another type. A type states its tag as `static constexpr napi_type_tag typeTag`.
 */
#pragma once

#include <memory>

#include "napi_setup.h"

namespace tensorferry {

template <typename T>
Napi::Value wrap(Napi::Env env, std::shared_ptr<T> object) {
  auto* held = new std::shared_ptr<T>(std::move(object));
  auto external =
      Napi::External<std::shared_ptr<T>>::New(env, held, [](Napi::Env, std::shared_ptr<T>* owner) { delete owner; });
  if (external.IsEmpty()) {
    // No JavaScript runs any more. The object is dropped, but not its holder, which a late finalizer would still delete.
    held->reset();
  } else {
    napi_type_tag_object(env, external, &T::typeTag);
  }
  return external;
}

template <typename T>
std::shared_ptr<T> unwrap(Napi::Value value) {
  bool matches = false;
  if (!value.IsExternal()) return nullptr;
  if (napi_check_object_type_tag(value.Env(), value, &T::typeTag, &matches) != napi_ok || !matches) return nullptr;
  return *value.As<Napi::External<std::shared_ptr<T>>>().Data();
}

}  // namespace tensorferry
