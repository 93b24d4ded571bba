// SPDX-License-Identifier: Apache-2.0
/*
 * Compiled programs and loaded modules. An image is text that names the kernels of its source, the source's hash and the
 * architecture, sealed by a check sum; only this library's images load.
 */
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tensorferry_gpu/simulated_kernel.h>

#include "../common/handles.h"

namespace tensorferry::gpu::simulator {

struct Module {
  int device = 0;
  std::vector<std::string> kernels;
  std::vector<void*> functions;
};

struct Function {
  const SimulatedKernel* kernel = nullptr;
  int device = 0;
};

struct Program {
  std::string name;
  std::string source;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string log;
  std::string ptx;
  std::string cubin;
};

struct Modules {
  simulators::Handles<Module> handles{0x5fa3};
  simulators::Handles<Function> functions{0x5fa4};
  simulators::Handles<Program> programs{0x5fa5};
};

/** The image of a compilation: `real` for one machine (cubin), else portable text (PTX). Arch 90 is 9.0. */
std::string makeImage(bool real, int architecture, uint64_t sourceHash, const std::vector<std::string>& kernels);

struct ImageContents {
  bool real = false;
  int architecture = 0;
  std::vector<std::string> kernels;
};

/** Reads an image; false for a foreign or damaged one. Reads no further than the first byte that is wrong. */
bool readImage(const char* image, ImageContents& contents);

}  // namespace tensorferry::gpu::simulator
