// SPDX-License-Identifier: Apache-2.0
/*
 * Doorbells: pipes without a name by which processes of one user on one host wake each other. Whoever waits reads the pipe in
 * its event loop; whoever has something to say rings. JS thread only.
 *
 * Invariants: ringing never blocks, and says nothing but that there is something to look at, so a full pipe is as good as one
 * byte more. A doorbell of another process is opened only where it is a pipe of this user, and the very one that was named.
 */
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "descriptor.h"
#include "functions.h"

namespace tensorferry {

/** The end of a pipe that is rung by. */
struct Doorbell {
  static constexpr napi_type_tag typeTag{0x3d9a5f0e6b7c4182, 0xa6e20c5b94f1d873};
  static constexpr const char* kind = "doorbell";
  Descriptor descriptor;
  bool isOpen() const noexcept { return descriptor.isOpen(); }
  void close() noexcept { descriptor.reset(); }
};

/** A new doorbell: `readEnd` belongs to the caller, `descriptor` is what other processes open. */
inline Answer createDoorbell(const Call& call) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return systemFailure("pipe2", "No doorbell could be made");
  Descriptor readEnd(ends[0]);
  auto doorbell = std::make_shared<Doorbell>();
  doorbell->descriptor = Descriptor(ends[1]);
  struct stat facts;
  if (::fstat(ends[1], &facts) != 0) return systemFailure("fstat", "The doorbell could not be examined");
  Napi::Object object = Napi::Object::New(call.env);
  object.Set("doorbell", wrap(call.env, doorbell));
  object.Set("descriptor", ends[1]);
  object.Set("inode", bigint(call.env, facts.st_ino));
  object.Set("readEnd", readEnd.release());
  return Napi::Value(object);
}

/** Opens the doorbell of another process. The caller proves that the process number is still that process's. */
inline Answer openDoorbell(const Call& call, Whole<(uint64_t{1} << 31) - 1> pid,
                           Whole<(uint64_t{1} << 31) - 1> descriptor, Big inode) {
  const auto refused = [](const char* detail) { return failure(Code::InvalidHandle, "openDoorbell", detail); };
  const std::string path = "/proc/" + std::to_string(pid.value) + "/fd/" + std::to_string(descriptor.value);
  // The link is read before anything is opened: opening a device or a pipe can have effects of its own.
  char target[64] = {};
  if (::readlink(path.c_str(), target, sizeof target - 1) < 0)
    return systemFailure("readlink", "The doorbell of process " + std::to_string(pid.value) + " cannot be found");
  if (std::string_view(target) != "pipe:[" + std::to_string(inode.value) + "]")
    return refused("The descriptor is not the doorbell that was named.");
  auto doorbell = std::make_shared<Doorbell>();
  doorbell->descriptor = Descriptor(::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!doorbell->isOpen())
    return systemFailure("open", "The doorbell of process " + std::to_string(pid.value) + " cannot be opened");
  struct stat facts;
  if (::fstat(doorbell->descriptor.get(), &facts) != 0)
    return systemFailure("fstat", "The doorbell of process " + std::to_string(pid.value) + " cannot be examined");
  if (!S_ISFIFO(facts.st_mode) || facts.st_ino != inode.value)
    return refused("The descriptor is not the doorbell that was named.");
  if (facts.st_uid != ::geteuid())
    return failure(Code::PermissionDenied, "openDoorbell",
                   "The doorbell belongs to user " + std::to_string(facts.st_uid) + ".", EPERM);
  return wrap(call.env, std::move(doorbell));
}

/** Rings. Fails with PeerGone where nobody can hear it any more. */
inline Status ringDoorbell(const Call&, Open<Doorbell> doorbell) {
  const uint8_t byte = 1;
  ssize_t written = 0;
  do written = ::write(doorbell->descriptor.get(), &byte, 1);
  while (written < 0 && errno == EINTR);
  if (written == 1 || errno == EAGAIN) return {};
  if (errno == EPIPE) return failure(Code::PeerGone, "write", "The doorbell's owner is gone.", EPIPE);
  return systemFailure("write", "The doorbell could not be rung");
}

/** Exports the functions over doorbells. */
inline void bindDoorbells(Functions& functions) {
  functions.add<createDoorbell>("createDoorbell", "()")
      .add<openDoorbell>("openDoorbell", "(pid, descriptor, inode)")
      .add<ringDoorbell>("ringDoorbell", "(doorbell)")
      .add<close<std::shared_ptr<Doorbell>>>("closeDoorbell", "(doorbell)");
}

}  // namespace tensorferry
