// SPDX-License-Identifier: Apache-2.0
/*
 * Resources of a device as arguments and answers of exported functions. JS thread only.
 *
 * Invariant: a resource is in JavaScript hands by a `Handle`, so that forgetting it closes it.
 */
#pragma once

#include <concepts>

#include <tensorferry/addon.h>

#include <tensorferry_gpu/resource.h>

namespace tensorferry {

template <std::derived_from<gpu::Resource> Kind>
struct Holder<Kind> {
  static std::shared_ptr<Kind> take(Napi::Value value) {
    auto handle = unwrap<gpu::Handle<Kind>>(value);
    return handle == nullptr ? nullptr : handle->object;
  }
};

namespace gpu {

template <typename Kind>
Napi::Value wrapResource(Napi::Env env, std::shared_ptr<Kind> resource) {
  return wrap(env, std::make_shared<Handle<Kind>>(std::move(resource)));
}

/** Takes a resource into a handle at once, on the thread that made it: it is closed where JavaScript never gets it. */
template <typename Kind>
Result<std::shared_ptr<Handle<Kind>>> handleOf(Result<std::shared_ptr<Kind>> made) {
  if (!made.ok()) return made.status();
  return std::make_shared<Handle<Kind>>(std::move(made.value()));
}

/** What a job answers that was cancelled before it began. */
inline Status cancelledEarly(const char* op, const char* what) {
  return failure(Code::Cancelled, op, std::string(what) + " was cancelled.");
}

}  // namespace gpu
}  // namespace tensorferry
