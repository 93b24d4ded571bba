// SPDX-License-Identifier: Apache-2.0
/** The rules as C++ give the bits of the rules in TypeScript, over all pairs. */
import { testNativeRules } from "./support/nativeRules.ts"

testNativeRules(1)
