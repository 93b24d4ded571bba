/*
 * Picks the kernel table for this processor, once. Any thread.
 */
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
  static const Kernels& chosen = __builtin_cpu_supports("avx2") ? avx2::table : baseline::table;
  return chosen;
#else
  return baseline::table;
#endif
}

}  // namespace tensorferry
