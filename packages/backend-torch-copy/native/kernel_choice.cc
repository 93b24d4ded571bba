/*
 * Picks the kernel table for this processor, once. Any thread.
 *
 * TENSORFERRY_BASELINE_KERNELS set to anything but nothing takes the table that every processor runs, so that tests see
 * both give the same bits.
 */
#include <cstdlib>

#include "kernels.h"

namespace tensorferry {

namespace baseline {
extern const Kernels table;
}
#ifdef TENSORFERRY_HAS_AVX2
namespace avx2 {
extern const Kernels table;
}
#endif

const Kernels& kernels() noexcept {
#ifdef TENSORFERRY_HAS_AVX2
  static const Kernels& chosen = [] () -> const Kernels& {
    const char* baselineOnly = std::getenv("TENSORFERRY_BASELINE_KERNELS");
    const bool isFree = baselineOnly == nullptr || *baselineOnly == '\0';
    return isFree && __builtin_cpu_supports("avx2") ? avx2::table : baseline::table;
  }();
  return chosen;
#else
  return baseline::table;
#endif
}

}  // namespace tensorferry
