// SPDX-License-Identifier: Apache-2.0
/*
 * The groups of functions that the addon exports, and what they share in one JavaScript environment. JS thread only.
 */
#pragma once

#include <memory>

#include <tensorferry/addon.h>

#include "device.h"

namespace tensorferry::xpu {

/** Of one environment; owned by it. */
struct Shared {
  Devices* devices = nullptr;
  /** For opening libraries. */
  std::shared_ptr<JobPool> calls;
};

void bindDevice(Functions& functions);
void bindMemory(Functions& functions);
void bindCopies(Functions& functions);

}  // namespace tensorferry::xpu
