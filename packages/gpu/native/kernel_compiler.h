// SPDX-License-Identifier: Apache-2.0
/*
 * Compiles the kernels for one device with the vendor's compiler library. Any thread; takes some seconds.
 */
#pragma once

#include <string>
#include <vector>

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

/** All that the compilation of a part depends on. */
std::string compilationKey(const Libraries& libraries, const Target& target, unsigned part);

/**
 * Images of parts that the driver can load, compiled at the same time as far as there are processors. Fails with Unsupported
 * where there is no compiler or none that knows the device.
 */
Result<std::vector<std::string>> compileKernels(const Libraries& libraries, const Target& target,
                                                const std::vector<unsigned>& parts);

}  // namespace tensorferry::gpu
