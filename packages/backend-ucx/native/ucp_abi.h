// SPDX-License-Identifier: Apache-2.0
/*
 * What this backend uses of the C interface of UCP, as the library has kept it since 1.13: opaque handles, functions, and
 * structures whose first field says which others are set. A library of a later version reads no field that is not named.
 *
 * Plain declarations. Invariant: sizes and offsets are those of `ucp/api/ucp.h` on 64-bit Linux; a test compares them.
 */
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace tensorferry::ucx::abi {

/** The interface that these declarations follow, and the oldest library that has it. */
inline constexpr unsigned major = 1, minor = 13;

/** 0 is success, 1 that something is under way, below are failures. */
using Status = int8_t;
inline constexpr Status ok = 0, inProgress = 1, outOfMemory = -4, unreachable = -6, busy = -15, canceled = -16,
                        timedOut = -20, rejected = -23, notConnected = -24, connectionReset = -25,
                        endpointTimeout = -80, last = -100;

struct Config;
struct Context;
struct Worker;
struct Ep;
struct Address;
struct Memory;
struct RemoteKey;

/** What a function without a status of its own answers: null, a failure, or a request that is under way. */
using Pointer = void*;
inline bool isRequest(Pointer answer) noexcept {
  return reinterpret_cast<uintptr_t>(answer) - 1 < static_cast<uintptr_t>(static_cast<intptr_t>(last)) - 1;
}
/** Of an answer that is no request. */
inline Status statusOf(Pointer answer) noexcept { return static_cast<Status>(reinterpret_cast<intptr_t>(answer)); }

struct Params {
  uint64_t mask;
  uint64_t features;
  size_t requestSize;
  void (*requestInit)(void*);
  void (*requestCleanup)(void*);
  uint64_t tagSenderMask;
  int sharedWorkers;
  size_t estimatedEps;
  size_t estimatedPpn;
  const char* name;
};
inline constexpr uint64_t paramFeatures = 1 << 0, paramEstimatedEps = 1 << 6;
inline constexpr uint64_t featureRma = 1 << 1, featureWakeup = 1 << 4, featureMessages = 1 << 6;

struct WorkerParams {
  uint64_t mask;
  int threadMode;
  unsigned long cpus[1024 / (8 * sizeof(unsigned long))];
  unsigned events;
  void* userData;
  int eventFd;
  uint64_t flags;
  const char* name;
  size_t messageAlignment;
  uint64_t clientId;
};
inline constexpr uint64_t workerThreadMode = 1 << 0;
/** Only the thread that made the worker uses it. */
inline constexpr int threadSingle = 0;

struct WorkerAttr {
  uint64_t mask;
  int threadMode;
  uint32_t addressFlags;
  Address* address;
  size_t addressLength;
  size_t maxHeader;
  char name[32];
  size_t maxDebugString;
};
inline constexpr uint64_t workerAttrAddress = 1 << 1, workerAttrMaxHeader = 1 << 3;

using ErrorHandler = void (*)(void* argument, Ep* ep, Status status);

struct EpParams {
  struct SocketAddress {
    const sockaddr* address;
    socklen_t length;
  };
  uint64_t mask;
  const Address* address;
  int errorMode;
  ErrorHandler onError;
  void* errorArgument;
  void* userData;
  unsigned flags;
  SocketAddress remote;
  void* connectionRequest;
  const char* name;
  SocketAddress local;
};
inline constexpr uint64_t epRemoteAddress = 1 << 0, epErrorMode = 1 << 1, epErrorHandler = 1 << 2;
inline constexpr int errorModePeer = 1;
inline constexpr uint32_t closeForce = 1 << 0;

struct MapParams {
  uint64_t mask;
  void* address;
  size_t length;
  unsigned flags;
  unsigned protection;
  int memoryType;
};
inline constexpr uint64_t mapAddress = 1 << 0, mapLength = 1 << 1;

using Sent = void (*)(void* request, Status status, void* userData);
using Received = void (*)(void* request, Status status, size_t length, void* userData);

struct RequestParam {
  uint32_t mask;
  uint32_t flags;
  void* request;
  union {
    Sent sent;
    Received received;
  };
  uint64_t datatype;
  void* userData;
  void* replyBuffer;
  int memoryType;
  void* receiveInfo;
  Memory* memory;
};
inline constexpr uint32_t requestCallback = 1 << 1, requestUserData = 1 << 2, requestFlags = 1 << 4,
                          requestMemory = 1 << 8;

struct MessageParam {
  uint64_t attributes;
  Ep* reply;
};
/** The data have not come: the pointer describes them. */
inline constexpr uint64_t messageRendezvous = 1 << 17;

using MessageHandler = Status (*)(void* argument, const void* header, size_t headerLength, void* data, size_t length,
                                  const MessageParam* param);

struct HandlerParam {
  uint64_t mask;
  unsigned id;
  uint32_t flags;
  MessageHandler handler;
  void* argument;
};
inline constexpr uint64_t handlerId = 1 << 0, handlerCallback = 1 << 2, handlerArgument = 1 << 3;

/** Functions of the library: member, name, signature. */
#define TENSORFERRY_UCP(call)                                                                                          \
  call(getVersion, "ucp_get_version", void(unsigned*, unsigned*, unsigned*)) call(                                     \
      versionString, "ucp_get_version_string", const char*()) call(statusText, "ucs_status_string",                    \
                                                                   const char*(Status))                                \
      call(readConfig, "ucp_config_read", Status(const char*, const char*, Config**)) call(                            \
          modifyConfig, "ucp_config_modify",                                                                           \
          Status(Config*, const char*, const char*)) call(releaseConfig, "ucp_config_release", void(Config*))          \
          call(init, "ucp_init_version", Status(unsigned, unsigned, const Params*, const Config*, Context**)) call(    \
              cleanup, "ucp_cleanup", void(Context*)) call(printContext, "ucp_context_print_info",                     \
                                                           void(Context*, FILE*))                                      \
              call(createWorker, "ucp_worker_create", Status(Context*, const WorkerParams*, Worker**)) call(           \
                  destroyWorker, "ucp_worker_destroy",                                                                 \
                  void(Worker*)) call(queryWorker, "ucp_worker_query", Status(Worker*, WorkerAttr*))                   \
                  call(releaseAddress, "ucp_worker_release_address", void(Worker*, Address*)) call(                    \
                      progress, "ucp_worker_progress",                                                                 \
                      unsigned(                                                                                        \
                          Worker*)) call(eventDescriptor, "ucp_worker_get_efd",                                        \
                                         Status(Worker*, int*)) call(arm, "ucp_worker_arm", Status(Worker*))           \
                      call(setHandler, "ucp_worker_set_am_recv_handler", Status(Worker*, const HandlerParam*)) call(   \
                          createEp, "ucp_ep_create", Status(Worker*, const EpParams*, Ep**))                           \
                          call(closeEp, "ucp_ep_close_nbx", Pointer(Ep*, const RequestParam*)) call(                   \
                              flushEp,                                                                                 \
                              "ucp_ep_flush_nbx",                                                                      \
                              Pointer(Ep*, const RequestParam*)) call(printEp, "ucp_ep_print_info", void(Ep*, FILE*))  \
                              call(sendMessage, "ucp_am_send_nbx",                                                     \
                                   Pointer(Ep*, unsigned, const void*, size_t, const void*, size_t,                    \
                                           const RequestParam*))                                                       \
                                  call(receiveMessage, "ucp_am_recv_data_nbx",                                         \
                                       Pointer(Worker*, void*, void*, size_t, const RequestParam*))                    \
                                      call(releaseMessage, "ucp_am_data_release", void(Worker*, void*)) call(          \
                                          put, "ucp_put_nbx",                                                          \
                                          Pointer(Ep*, const void*, size_t, uint64_t, RemoteKey*,                      \
                                                  const RequestParam*))                                                \
                                          call(mapMemory, "ucp_mem_map", Status(Context*, const MapParams*, Memory**)) \
                                              call(unmapMemory, "ucp_mem_unmap", Status(Context*, Memory*))            \
                                                  call(packKey, "ucp_rkey_pack",                                       \
                                                       Status(Context*, Memory*, void**, size_t*))                     \
                                                      call(releaseKeyBuffer, "ucp_rkey_buffer_release", void(void*))   \
                                                          call(unpackKey, "ucp_ep_rkey_unpack",                        \
                                                               Status(Ep*, const void*, RemoteKey**))                  \
                                                              call(destroyKey, "ucp_rkey_destroy", void(RemoteKey*))   \
                                                                  call(freeRequest, "ucp_request_free", void(void*))

/** A function of the library by its name. */
template <typename Signature>
struct Entry {
  const char* name = "";
  Signature* function = nullptr;
  template <typename... Arguments>
  auto operator()(Arguments... arguments) const {
    return function(arguments...);
  }
};

struct Api {
#define TENSORFERRY_UCP_MEMBER(member, name, ...) Entry<__VA_ARGS__> member;
  TENSORFERRY_UCP(TENSORFERRY_UCP_MEMBER)
#undef TENSORFERRY_UCP_MEMBER
};

}  // namespace tensorferry::ucx::abi
