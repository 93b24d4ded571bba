// SPDX-License-Identifier: Apache-2.0
/*
 * What a native operation answers: a Status, or a value with a Status in its place. Nothing here throws.
 *
 * Plain values; any thread. The names in `codeName` are the spelling that TypeScript sees.
 */
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <variant>

namespace tensorferry {

enum class Code : int32_t {
  Ok,
  InvalidArgument,
  InvalidHandle,
  OutOfMemory,
  NotFound,
  AlreadyExists,
  PermissionDenied,
  PeerGone,
  Cancelled,
  DeadlineExceeded,
  Unsupported,
  SystemFailure,
};

inline constexpr const char* codeNames[] = {"Ok",        "InvalidArgument",  "InvalidHandle",    "OutOfMemory",
                                            "NotFound",  "AlreadyExists",    "PermissionDenied", "PeerGone",
                                            "Cancelled", "DeadlineExceeded", "Unsupported",      "SystemFailure"};

inline const char* codeName(Code code) noexcept { return codeNames[static_cast<int32_t>(code)]; }

struct Status {
  Code code = Code::Ok;
  /** The call that failed, as in a manual page. */
  std::string op;
  std::string detail;
  /** errno or the library's own number; 0 where there is none. */
  int32_t nativeCode = 0;
  /** Which element of the request failed; -1 where that does not apply. */
  int64_t item = -1;

  bool ok() const noexcept { return code == Code::Ok; }
};

inline Status failure(Code code, std::string op, std::string detail, int32_t nativeCode = 0) {
  return Status{code, std::move(op), std::move(detail), nativeCode, -1};
}

/** Classifies an errno. Callers override where a call gives a number another meaning. */
inline Code codeOfErrno(int error) noexcept {
  switch (error) {
    case 0:
      return Code::Ok;
    case ENOMEM:
    case ENOSPC:
    case EMFILE:
    case ENFILE:
      return Code::OutOfMemory;
    case EACCES:
    case EPERM:
      return Code::PermissionDenied;
    case ENOENT:
      return Code::NotFound;
    case EEXIST:
      return Code::AlreadyExists;
    case ESRCH:
      return Code::PeerGone;
    case EINVAL:
      return Code::InvalidArgument;
    case ETIMEDOUT:
      return Code::DeadlineExceeded;
    default:
      return Code::SystemFailure;
  }
}

/** The failure that `errno` describes. Call it before anything else can change errno. */
inline Status systemFailure(std::string op, const std::string& about) {
  const int error = errno;
  return failure(codeOfErrno(error), std::move(op), about + ": " + std::strerror(error), error);
}

/** Runs a body that answers a Status; exceptions of the standard library become failures. */
template <typename Body>
Status caught(const char* op, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Status{Code::OutOfMemory, op, "The process has no memory left.", ENOMEM, -1};
  } catch (const std::exception& error) {
    return Status{Code::SystemFailure, op, error.what(), 0, -1};
  }
}

/** A value or why there is none. */
template <typename T>
class Result {
 public:
  Result(T value) : state_(std::move(value)) {}
  Result(Status status) : state_(std::move(status)) {}

  bool ok() const noexcept { return std::holds_alternative<T>(state_); }
  T& value() noexcept { return *std::get_if<T>(&state_); }
  const Status& status() const noexcept { return *std::get_if<Status>(&state_); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace tensorferry
