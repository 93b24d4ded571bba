// SPDX-License-Identifier: Apache-2.0
/*
 * What the vendors' functions answer, as numbers that CUDA and HIP share: of runtime and driver, collectives and compiler.
 *
 * Who calls the functions and the simulators that imitate them take the numbers from here; real libraries confirm them.
 */
#pragma once

namespace tensorferry::gpu {

/** Answers of runtime and driver, which share their numbers; where the names differ, the runtime's is used. */
namespace code {
inline constexpr int success = 0, invalidValue = 1, outOfMemory = 2, notInitialized = 3, invalidPitch = 12,
                     insufficientDriver = 35, callRequiresNewerDriver = 36, noDevice = 100, invalidDevice = 101,
                     invalidImage = 200, invalidContext = 201, noKernelImage = 209, peerUnsupported = 217,
                     unsupportedPtx = 222, operatingSystem = 304, invalidHandle = 400, notFound = 500, notReady = 600,
                     illegalAddress = 700, timeout = 702, peerAlreadyEnabled = 704, contextDestroyed = 709,
                     hostAlreadyRegistered = 712, hostNotRegistered = 713, notPermitted = 800, notSupported = 801,
                     unknown = 999;
}  // namespace code

/** Answers of the collectives. */
namespace collectives {
inline constexpr int success = 0, unhandledDeviceError = 1, systemError = 2, internalError = 3, invalidArgument = 4,
                     invalidUsage = 5, remoteError = 6, inProgress = 7, timeout = 8;
/** Elements of one byte. */
inline constexpr int int8 = 0;
}  // namespace collectives

/** Answers of the compiler. */
namespace compiler {
inline constexpr int success = 0, outOfMemory = 1, creationFailure = 2, invalidInput = 3, invalidProgram = 4,
                     invalidOption = 5, compilation = 6, internalError = 11;
}  // namespace compiler

}  // namespace tensorferry::gpu
