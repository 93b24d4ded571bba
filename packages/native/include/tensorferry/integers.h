// SPDX-License-Identifier: Apache-2.0
/*
 * Integers of fixed width for code that C++, NVRTC and hipRTC compile, and the mark of functions that all of them share.
 *
 * Run-time compilers have no standard headers. Their integers are declared inside our namespace, where they cannot meet
 * those that such a compiler may bring along.
 */
#pragma once

#if defined(__CUDACC_RTC__) || defined(__HIPCC_RTC__)
#define TENSORFERRY_RUNTIME_COMPILED 1
#endif

#ifdef TENSORFERRY_RUNTIME_COMPILED
namespace tensorferry {
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef decltype(sizeof 0) size_t;
}  // namespace tensorferry
#else
#include <cstddef>
#include <cstdint>
#endif

/** Before a function that devices call too; nothing where only a host is compiled for. */
#if defined(__CUDACC__) || defined(__HIP__) || defined(TENSORFERRY_RUNTIME_COMPILED)
#define TENSORFERRY_SHARED __host__ __device__
#else
#define TENSORFERRY_SHARED
#endif
