// SPDX-License-Identifier: Apache-2.0
/*
 * Answers of the vendor's functions as Status: the function's name, the error's name and text, and its number.
 *
 * Any thread.
 */
#pragma once

#include <string>

#include <tensorferry/status.h>

#include "gpu_api.h"

namespace tensorferry::gpu {

/** Classifies an answer of runtime or driver. */
inline Code codeOfAnswer(int answer) noexcept {
  switch (answer) {
    case code::success:
      return Code::Ok;
    case code::outOfMemory:
      return Code::OutOfMemory;
    case code::invalidValue:
    case code::invalidDevice:
    case code::invalidHandle:
      return Code::InvalidArgument;
    case code::noDevice:
    case code::notFound:
    case code::hostNotRegistered:
      return Code::NotFound;
    case code::hostAlreadyRegistered:
      return Code::AlreadyExists;
    case code::notPermitted:
      return Code::PermissionDenied;
    case code::insufficientDriver:
    case code::callRequiresNewerDriver:
    case code::noKernelImage:
    case code::peerUnsupported:
    case code::unsupportedPtx:
    case code::notSupported:
      return Code::Unsupported;
    default:
      return Code::SystemFailure;
  }
}

inline std::string nameAndText(const char* name, const char* text) {
  if (name == nullptr || *name == '\0') name = "unknown error";
  return text == nullptr || *text == '\0' ? std::string(name) + "." : std::string(name) + ": " + text + ".";
}

/** The failure of a runtime function. */
inline Status runtimeFailure(const GpuApi& api, const char* function, int answer) {
  return failure(codeOfAnswer(answer), function, nameAndText(api.errorName(answer), api.errorText(answer)), answer);
}

/** The failure of a driver function. */
inline Status driverFailure(const GpuApi& api, const char* function, int answer) {
  const char *name = nullptr, *text = nullptr;
  if (api.driverErrorName) api.driverErrorName(answer, &name);
  if (api.driverErrorText) api.driverErrorText(answer, &text);
  if (name == nullptr) name = api.errorName(answer);
  if (text == nullptr) text = api.errorText(answer);
  return failure(codeOfAnswer(answer), function, nameAndText(name, text), answer);
}

/** The failure of a collective function; the communicator may be null. */
inline Status collectivesFailure(const GpuApi& api, const char* function, int answer, CommunicatorHandle communicator) {
  Code kind = Code::SystemFailure;
  if (answer == collectives::invalidArgument || answer == collectives::invalidUsage) kind = Code::InvalidArgument;
  if (answer == collectives::remoteError) kind = Code::PeerGone;
  if (answer == collectives::timeout) kind = Code::DeadlineExceeded;
  const char* last = api.collectivesLastError ? api.collectivesLastError(communicator) : nullptr;
  return failure(kind, function, nameAndText(api.collectivesErrorText(answer), last), answer);
}

/** The failure of a compiler function. */
inline Status compilerFailure(const GpuApi& api, const char* function, int answer) {
  Code kind = Code::SystemFailure;
  if (answer == compiler::outOfMemory) kind = Code::OutOfMemory;
  if (answer == compiler::invalidOption) kind = Code::Unsupported;
  return failure(kind, function, nameAndText(api.compilerErrorText(answer), nullptr), answer);
}

template <typename Function, typename... Values>
Status callRuntime(const GpuApi& api, const Function& function, Values... values) {
  const int answer = function(values...);
  return answer == code::success ? Status{} : runtimeFailure(api, function.name, answer);
}

template <typename Function, typename... Values>
Status callDriver(const GpuApi& api, const Function& function, Values... values) {
  const int answer = function(values...);
  return answer == code::success ? Status{} : driverFailure(api, function.name, answer);
}

template <typename Function, typename... Values>
Status callCompiler(const GpuApi& api, const Function& function, Values... values) {
  const int answer = function(values...);
  return answer == 0 ? Status{} : compilerFailure(api, function.name, answer);
}

}  // namespace tensorferry::gpu
