// SPDX-License-Identifier: Apache-2.0
/*
 * What kernels need of the machine that runs them: memory by address, the place of a thread, atomic results, a clock. Owns
 * every difference between CUDA, HIP and plain C++.
 *
 * Invariant: `load` and `store` are given addresses that are multiples of the size. A GPU stops where that is not so; plain
 * C++ raises a bus error, so that the simulated driver and tests find it too.
 */
#pragma once

#include <tensorferry/integers.h>

#if defined(__CUDACC__) || defined(__HIP__) || defined(TENSORFERRY_RUNTIME_COMPILED)
#define TENSORFERRY_ON_DEVICE 1
#define TENSORFERRY_DEVICE __device__ __forceinline__
#define TENSORFERRY_UNROLL _Pragma("unroll")
#define TENSORFERRY_KEEP_LOOP _Pragma("unroll 1")
#else
#include <csignal>
#include <cstdlib>
#include <cstring>
#define TENSORFERRY_DEVICE inline
#define TENSORFERRY_UNROLL
#define TENSORFERRY_KEEP_LOOP
#endif

namespace tensorferry::gpu {
namespace {

/** Where a thread is in a launch of blocks of `blockThreads`. */
struct Place {
  uint32_t block, blocks, thread;
};

/** The widest access. */
struct alignas(16) Vector {
  uint32_t x, y, z, w;
};

/** Two neighbours, read at once. */
struct alignas(16) Pair {
  double first, second;
};
/** Pairs that a block of `tensorferry_products` shares. */
inline constexpr uint32_t sharedPairs = 1536;

#ifdef TENSORFERRY_ON_DEVICE

/** Whether the threads of a team are at work together. */
inline constexpr bool teamsAreTogether = true;

/** An address in global memory, as the compiler knows then: such accesses need no look at where it is. */
template <typename T>
TENSORFERRY_DEVICE T* global(uint64_t address) {
#ifdef __CUDA_ARCH__
  return static_cast<T*>(const_cast<void*>(static_cast<const void*>(__cvta_global_to_generic(address))));
#else
  return reinterpret_cast<T*>(address);
#endif
}
/** A record of a table. */
template <typename T>
TENSORFERRY_DEVICE const T& view(uint64_t address) {
  return *global<const T>(address);
}
template <typename T>
TENSORFERRY_DEVICE T load(uint64_t address) {
  return *global<const T>(address);
}
template <typename T>
TENSORFERRY_DEVICE void store(uint64_t address, T value) {
  *global<T>(address) = value;
}

/** As `load` and `store`, of a vector, or of 4 or 8 bytes, that nobody needs again soon: caches let go of it first. */
#ifdef __CUDA_ARCH__
template <typename T>
TENSORFERRY_DEVICE T loadPassing(uint64_t address) {
  T value;
  if constexpr (sizeof(T) == 16) {
    asm volatile("ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
                 : "l"(address));
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("ld.global.cs.b64 %0, [%1];" : "=l"(value) : "l"(address));
  } else {
    asm volatile("ld.global.cs.b32 %0, [%1];" : "=r"(value) : "l"(address));
  }
  return value;
}
template <typename T>
TENSORFERRY_DEVICE void storePassing(uint64_t address, T value) {
  if constexpr (sizeof(T) == 16) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(address), "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.cs.b64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
  } else {
    asm volatile("st.global.cs.b32 [%0], %1;" : : "l"(address), "r"(value) : "memory");
  }
}
#else
template <typename T>
TENSORFERRY_DEVICE T loadPassing(uint64_t address) {
  return load<T>(address);
}
template <typename T>
TENSORFERRY_DEVICE void storePassing(uint64_t address, T value) {
  store<T>(address, value);
}
#endif

TENSORFERRY_DEVICE void addTo(uint64_t address, uint64_t value) {
  atomicAdd(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
TENSORFERRY_DEVICE void lower(uint64_t address, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(address), static_cast<unsigned long long>(value));
}
TENSORFERRY_DEVICE void raise(uint64_t address, uint32_t value) { atomicMax(global<uint32_t>(address), value); }

/** The high bytes of four words, the first in the low byte. */
TENSORFERRY_DEVICE uint32_t highBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return __byte_perm(__byte_perm(a, b, 0x0073), __byte_perm(c, d, 0x0073), 0x5410);
}
/** The low halves of two words, the first in the low half. */
TENSORFERRY_DEVICE uint32_t lowHalves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }

/** One rounding. Where it is called the compiler must not choose. */
TENSORFERRY_DEVICE float multiplyAdd(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/** The product is exact, so that it does not matter whether the sum is fused. */
TENSORFERRY_DEVICE double addProductOf(double sum, double a, double b) { return __fma_rn(a, b, sum); }
/** Not for NaN. */
TENSORFERRY_DEVICE float greater(float a, float b) { return fmaxf(a, b); }

/** What the thread has whose number differs in these bits. All threads of a team ask together. */
template <typename T>
TENSORFERRY_DEVICE T ofThreadAcross(T own, uint32_t bits) {
#ifdef __HIP__
  return __shfl_xor(own, static_cast<int>(bits));
#else
  return __shfl_xor_sync(0xffffffffu, own, bits);
#endif
}

/**
 * The largest of the numbers that `many` neighbouring threads have, for each of them. All threads of a team ask together.
 * Plain C++ has no neighbours at work: there `numberOf` is asked what each has.
 */
template <uint32_t many, typename NumberOf>
TENSORFERRY_DEVICE uint32_t largestAmong(uint32_t own, const NumberOf&) {
  TENSORFERRY_UNROLL
  for (uint32_t distance = 1; distance < many; distance *= 2) {
    const uint32_t other = ofThreadAcross(own, distance);
    own = other > own ? other : own;
  }
  return own;
}

/** The same of the 32 threads of a team. */
TENSORFERRY_DEVICE uint32_t largestOfTeam(uint32_t own) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xffffffffu, own);
#else
  return largestAmong<32>(own, 0);
#endif
}

/**
 * What the thread before this one in its team has; of the first, what the last one says that it had `before`. All threads of
 * the team ask together.
 */
template <uint32_t team>
TENSORFERRY_DEVICE uint32_t ofThreadBefore(uint32_t own, uint32_t before, uint32_t thread) {
  const uint32_t given = thread == team - 1 ? before : own, from = (thread + team - 1) % team;
#ifdef __HIP__
  return __shfl(given, from, team);
#else
  return __shfl_sync(0xffffffffu, given, from, team);
#endif
}

/**
 * Of `many` neighbouring threads that each want `own` places in a row: the first of this one's. The number of all is stored at
 * `total`. All threads of a team ask together.
 */
template <uint32_t many>
TENSORFERRY_DEVICE uint32_t placesAmong(uint32_t own, uint32_t thread, uint64_t total) {
  uint32_t upTo = own;
  TENSORFERRY_UNROLL
  for (uint32_t distance = 1; distance < many; distance *= 2) {
#ifdef __HIP__
    const uint32_t before = __shfl_up(upTo, distance, many);
#else
    const uint32_t before = __shfl_up_sync(0xffffffffu, upTo, distance, many);
#endif
    upTo += thread >= distance ? before : 0;
  }
  if (thread + 1 == many) store(total, upTo);
  return upTo - own;
}
TENSORFERRY_DEVICE uint32_t bitsSet(uint32_t bits) { return static_cast<uint32_t>(__popc(bits)); }
/** Not for 0. */
TENSORFERRY_DEVICE uint32_t lowestBit(uint32_t bits) {
  return static_cast<uint32_t>(__ffs(static_cast<int>(bits)) - 1);
}

/**
 * The largest of the numbers that all threads of a block have, for each of them. All of them ask together; `turn` is 0 and 1
 * by turns, so that nobody writes what a slower thread still reads.
 */
template <uint32_t threads>
TENSORFERRY_DEVICE uint32_t largestOfThreads(uint32_t own, uint32_t thread, uint32_t turn) {
  constexpr uint32_t team = 32, teams = threads / team;
  __shared__ uint32_t found[2 * teams];
  own = largestOfTeam(own);
  if (thread % team == 0) found[turn * teams + thread / team] = own;
  __syncthreads();
  return largestAmong<teams>(found[turn * teams + thread % teams], 0);
}

/** One memory, whichever types of numbers are brought: a kernel has the sum of what its functions state. */
TENSORFERRY_DEVICE Pair* memoryOfPairs() {
  __shared__ Pair pairs[sharedPairs];
  return pairs;
}

/**
 * Pairs that the threads of a block share: each brings some, then all read all. All of them do both together. Plain C++, which
 * has one thread at a time, brings what all of them would.
 */
template <uint32_t threads, typename Bring>
TENSORFERRY_DEVICE const Pair* broughtTogether(uint32_t thread, const Bring& bring) {
  Pair* const pairs = memoryOfPairs();
  __syncthreads();  // others may still read what was there
  bring(pairs, thread);
  __syncthreads();
  return pairs;
}

/** The sum of what the 32 threads of a team have, for each of them. All of them ask together. See `largestAmong`. */
template <typename NumberOf>
TENSORFERRY_DEVICE uint64_t sumOfTeam(uint64_t own, const NumberOf&) {
  TENSORFERRY_UNROLL
  for (uint32_t distance = 16; distance > 0; distance /= 2)
    own += ofThreadAcross(static_cast<unsigned long long>(own), distance);
  return own;
}

/** The same of bits: those that an odd number of the threads have. */
template <typename NumberOf>
TENSORFERRY_DEVICE uint32_t differenceOfTeam(uint32_t own, const NumberOf&) {
  TENSORFERRY_UNROLL
  for (uint32_t distance = 16; distance > 0; distance /= 2) own ^= ofThreadAcross(own, distance);
  return own;
}

/** Adds what all threads of a team have to one number. All of them ask together. */
TENSORFERRY_DEVICE void addOfTeam(uint64_t address, uint64_t own, uint32_t thread) {
  own = sumOfTeam(own, 0);
  if (thread == 0) addTo(address, own);
}

#else

inline constexpr bool teamsAreTogether = false;

inline void expectMultiple(uint64_t address, uint64_t size) {
  if (address % size == 0) return;
  std::raise(SIGBUS);
  std::abort();
}
template <typename T>
const T& view(uint64_t address) {
  expectMultiple(address, alignof(T));
  return *reinterpret_cast<const T*>(address);
}
template <typename T>
T load(uint64_t address) {
  expectMultiple(address, sizeof(T));
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof value);
  return value;
}
template <typename T>
void store(uint64_t address, T value) {
  expectMultiple(address, sizeof(T));
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof value);
}
template <typename T>
T loadPassing(uint64_t address) {
  return load<T>(address);
}
template <typename T>
void storePassing(uint64_t address, T value) {
  store<T>(address, value);
}
inline void addTo(uint64_t address, uint64_t value) { store<uint64_t>(address, load<uint64_t>(address) + value); }
inline void addOfTeam(uint64_t address, uint64_t own, uint32_t) { addTo(address, own); }
template <typename NumberOf>
uint64_t sumOfTeam(uint64_t, const NumberOf& numberOf) {
  uint64_t sum = 0;
  for (uint32_t neighbour = 0; neighbour < 32; neighbour++) sum += numberOf(neighbour);
  return sum;
}

template <typename NumberOf>
uint32_t differenceOfTeam(uint32_t, const NumberOf& numberOf) {
  uint32_t bits = 0;
  for (uint32_t neighbour = 0; neighbour < 32; neighbour++) bits ^= numberOf(neighbour);
  return bits;
}

template <uint32_t threads, typename Bring>
const Pair* broughtTogether(uint32_t, const Bring& bring) {
  static thread_local Pair pairs[sharedPairs];
  for (uint32_t thread = 0; thread < threads; thread++) bring(pairs, thread);
  return pairs;
}

inline void raise(uint64_t address, uint32_t value) {
  if (value > load<uint32_t>(address)) store<uint32_t>(address, value);
}
inline uint32_t highBytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return a >> 24 | (b >> 24) << 8 | (c >> 24) << 16 | (d >> 24) << 24;
}
inline uint32_t lowHalves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
inline float multiplyAdd(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/** Of numbers of float32. */
inline double addProductOf(double sum, double a, double b) { return sum + a * b; }
inline float greater(float a, float b) { return a > b ? a : b; }
inline void lower(uint64_t address, uint64_t value) {
  if (value < load<uint64_t>(address)) store<uint64_t>(address, value);
}
template <uint32_t many, typename NumberOf>
uint32_t largestAmong(uint32_t own, const NumberOf& numberOf) {
  for (uint32_t neighbour = 0; neighbour < many; neighbour++) {
    const uint32_t other = numberOf(neighbour);
    own = other > own ? other : own;
  }
  return own;
}

/** Threads come one after the other here, the first of a team first: what they counted so far lies at `total`. */
template <uint32_t many>
uint32_t placesAmong(uint32_t own, uint32_t thread, uint64_t total) {
  const uint32_t before = thread == 0 ? 0 : load<uint32_t>(total);
  store(total, before + own);
  return before;
}
inline uint32_t bitsSet(uint32_t bits) { return static_cast<uint32_t>(__builtin_popcount(bits)); }
inline uint32_t lowestBit(uint32_t bits) { return static_cast<uint32_t>(__builtin_ctz(bits)); }

#endif

/** Returns after so much time. On a host nothing is waited for. */
TENSORFERRY_DEVICE void spinFor(uint64_t nanoseconds, uint64_t clockRate) {
#if defined(__HIP_DEVICE_COMPILE__)
  const uint64_t begin = wall_clock64(), ticks = nanoseconds / 1000 * clockRate / 1000;
  while (wall_clock64() - begin < ticks) {
  }
#elif defined(__CUDA_ARCH__)
  const auto now = [] {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  };
  const uint64_t begin = now();
  while (now() - begin < nanoseconds) {
  }
#else
  static_cast<void>(nanoseconds);
#endif
  static_cast<void>(clockRate);
}

}  // namespace
}  // namespace tensorferry::gpu
