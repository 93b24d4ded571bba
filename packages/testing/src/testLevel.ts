// SPDX-License-Identifier: Apache-2.0
/**
 * How long tests may take. Usual runs and those of `*.full.test.ts` try little of everything; a soak tries the same for
 * hours, from seeds of its own.
 */

/** Whether this is a soak: `TENSORFERRY_TESTS=soak`. */
export const isSoak = process.env.TENSORFERRY_TESTS === "soak"
