// SPDX-License-Identifier: Apache-2.0
/*
 * Runs the tests named on the command line, or all.
 */
#include "support.h"

int main(int count, char** names) {
  using namespace tensorferry::gpu::test;
  const struct {
    const char* name;
    void (*run)();
  } tests[] = {{"batches", testBatches},      {"copies", testCopies},         {"large", testLargeRegions},
               {"casts", testCasts},          {"reductions", testReductions}, {"comparisons", testComparisons},
               {"scaling", testBlockScaling}, {"changes", testChanges},       {"products", testProducts},
               {"digests", testDigests}};
  for (const auto& test : tests) {
    bool wanted = count < 2;
    for (int i = 1; i < count; i++) wanted = wanted || std::strcmp(names[i], test.name) == 0;
    if (wanted) test.run();
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 && checks > 0 ? 0 : 1;
}
