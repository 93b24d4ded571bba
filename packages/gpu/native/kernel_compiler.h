// SPDX-License-Identifier: Apache-2.0
/*
 * Compiles the kernels for one device with the vendor's compiler library. Any thread; takes a second or more.
 */
#pragma once

#include <string>

#include <tensorferry_gpu/gpu_libraries.h>

#include <tensorferry/status.h>

namespace tensorferry::gpu {

/** What kernels are compiled for. */
struct Target {
  /** 90 for compute capability 9.0; the digits of a gfx name, read as hexadecimal. */
  int architecture = 0;
  /** As the compiler spells it: `sm_90`, `gfx90a`; empty where the compiler knows best. */
  std::string name;
};

/** The target of a device. Fails where the driver does not tell. */
Result<Target> targetOf(const GpuApi& api, int ordinal);

/** All that the result of a compilation depends on. */
std::string compilationKey(const Libraries& libraries, const Target& target);

/** An image that the driver can load. Fails with Unsupported where there is no compiler or none that knows the device. */
Result<std::string> compileKernels(const Libraries& libraries, const Target& target);

}  // namespace tensorferry::gpu
