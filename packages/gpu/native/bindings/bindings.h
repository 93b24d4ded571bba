// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and what they share in one JavaScript environment. JS thread only.
 */
#pragma once

#include <memory>
#include <vector>

#include <tensorferry_gpu/arguments.h>
#include "device.h"
#include "memory.h"

namespace tensorferry::gpu {

/** Pinned memory that JavaScript sees; shared by the handle and the bytes, so that neither outlives the memory. */
struct HostHandle : Handle<HostMemory> {
  using Handle::Handle;
  static constexpr const char* kind = HostMemory::kind;
  bool isOpen() const noexcept { return object->isOpen(); }

  /** The bytes in JavaScript, held weakly. */
  Napi::Reference<Napi::ArrayBuffer> buffer;
};

/** Of one environment; owned by it. */
struct Shared {
  Devices* devices;
  std::vector<std::weak_ptr<HostHandle>> hostHandles;
};

/** A device's number among those of its vendor, and what else the vendor's functions take as an `int`. */
using Ordinal = Whole<INT32_MAX>;

/** Takes the bytes of a device's host memory out of JavaScript's reach. */
void detachHostBuffers(Shared& shared, const Device& device);

void bindLibraries(Functions& functions);
void bindDevice(Functions& functions);
void bindMemory(Functions& functions);
void bindSharing(Functions& functions);
void bindImport(Functions& functions);
void bindCommunicator(Functions& functions);
void bindPrograms(Functions& functions);
void bindReplay(Functions& functions);

}  // namespace tensorferry::gpu
