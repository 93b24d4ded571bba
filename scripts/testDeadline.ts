// SPDX-License-Identifier: Apache-2.0
/**
 * Tests that begin after a time are skipped, and say so: a machine that is slower than expected ends with what it had time for
 * instead of being stopped half way. TENSORFERRY_TESTS_UNTIL is that time in seconds since 1970; without it all tests run.
 */
import { beforeEach } from "vitest"

const until = Number(process.env.TENSORFERRY_TESTS_UNTIL ?? Number.NaN)

if (!Number.isNaN(until))
  beforeEach((context) => {
    if (Date.now() / 1000 > until) context.skip("the time for tests is over (TENSORFERRY_TESTS_UNTIL)")
  })
