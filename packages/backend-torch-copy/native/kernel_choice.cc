// SPDX-License-Identifier: Apache-2.0
/*
 * Picks the kernel table for this processor, once: the widest that it runs. Any thread.
 *
 * TENSORFERRY_KERNELS=baseline or =avx2 takes a narrower table, so that tests see all of them give the same bits.
 */
#include <cstdlib>
#include <cstring>

#include "kernels.h"

namespace tensorferry {

namespace baseline {
extern const Kernels table;
}
#ifdef TENSORFERRY_X86_KERNELS
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

const Kernels& kernels() noexcept {
#ifdef TENSORFERRY_X86_KERNELS
  static const Kernels& chosen = []() -> const Kernels& {
    const char* stated = std::getenv("TENSORFERRY_KERNELS");
    const auto isStated = [stated](const char* name) { return stated != nullptr && std::strcmp(stated, name) == 0; };
    if (isStated("baseline") || !__builtin_cpu_supports("avx2")) return baseline::table;
    const bool isWide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return isStated("avx2") || !isWide ? avx2::table : avx512::table;
  }();
  return chosen;
#else
  return baseline::table;
#endif
}

}  // namespace tensorferry
