// SPDX-License-Identifier: Apache-2.0
/*
 * See opencl_events.h. Waiting goes through a callback, because OpenCL's own wait knows no limit.
 */
#include "opencl_events.h"

namespace tensorferry::xpu {
namespace opencl {
namespace {

struct Named {
  int32_t answer;
  Code code;
  const char* name;
};

constexpr Named names[] = {
    {cl::code::deviceNotFound, Code::NotFound, "CL_DEVICE_NOT_FOUND"},
    {cl::code::allocationFailure, Code::OutOfMemory, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
    {cl::code::outOfResources, Code::OutOfMemory, "CL_OUT_OF_RESOURCES"},
    {cl::code::outOfHostMemory, Code::OutOfMemory, "CL_OUT_OF_HOST_MEMORY"},
    {cl::code::profilingUnavailable, Code::Unsupported, "CL_PROFILING_INFO_NOT_AVAILABLE"},
    {cl::code::waitListFailed, Code::SystemFailure, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {cl::code::invalidValue, Code::SystemFailure, "CL_INVALID_VALUE"},
    {cl::code::invalidOperation, Code::Unsupported, "CL_INVALID_OPERATION"},
    {cl::code::noPlatform, Code::NotFound, "CL_PLATFORM_NOT_FOUND_KHR"},
};

}  // namespace
}  // namespace opencl

Status openClFailure(const char* function, int32_t answer) {
  for (const opencl::Named& named : opencl::names)
    if (named.answer == answer)
      return failure(named.code, function, std::string(named.name) + " (" + std::to_string(answer) + ").", answer);
  return failure(Code::SystemFailure, function, "OpenCL answered " + std::to_string(answer) + ".", answer);
}

Result<bool> ClCompletion::isDone() {
  int32_t status = 0;
  if (Status answer = callOpenCl(api_.eventInfo, event_, cl::eventStatus, sizeof status, static_cast<void*>(&status),
                                 static_cast<size_t*>(nullptr));
      !answer.ok())
    return answer;
  if (status >= 0) return status == cl::statusComplete;
  return failure(Code::SystemFailure, "command", "The command ended with OpenCL's " + std::to_string(status) + ".",
                 status);
}

Result<bool> ClCompletion::wait(std::chrono::nanoseconds limit) {
  auto done = isDone();
  if (!done.ok() || done.value()) return done;
  std::shared_ptr<Waiting> waiting;
  {
    std::lock_guard lock(mutex_);
    if (waiting_ == nullptr) {
      waiting_ = std::make_shared<Waiting>();
      auto held = std::make_unique<std::shared_ptr<Waiting>>(waiting_);
      const auto notify = [](cl::EventHandle, int32_t, void* data) {
        std::unique_ptr<std::shared_ptr<Waiting>> owner(static_cast<std::shared_ptr<Waiting>*>(data));
        std::lock_guard guard((*owner)->mutex);
        (*owner)->ended = true;
        (*owner)->changed.notify_all();
      };
      Status status = callOpenCl(api_.eventCallback, event_, cl::statusComplete, static_cast<cl::Notify*>(notify),
                                 static_cast<void*>(held.get()));
      if (!status.ok()) {
        waiting_ = nullptr;
        return status;
      }
      held.release();
    }
    waiting = waiting_;
  }
  {
    std::unique_lock lock(waiting->mutex);
    // By the system's clock, whose waits thread checkers know.
    waiting->changed.wait_until(lock, std::chrono::system_clock::now() + limit, [&] { return waiting->ended; });
  }
  return isDone();
}

std::optional<double> ClCompletion::seconds() {
  uint64_t start = 0, end = 0;
  if (!timed_ || api_.eventProfile(event_, cl::profilingStart, sizeof start, &start, nullptr) != cl::code::success ||
      api_.eventProfile(event_, cl::profilingEnd, sizeof end, &end, nullptr) != cl::code::success || end < start)
    return std::nullopt;
  return static_cast<double>(end - start) * 1e-9;
}

}  // namespace tensorferry::xpu
