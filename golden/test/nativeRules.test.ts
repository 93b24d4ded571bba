// SPDX-License-Identifier: Apache-2.0
/** The rules as C++ give the bits of the rules in TypeScript, over a part of the pairs. */
import { testNativeRules } from "./support/nativeRules.ts"

testNativeRules(13)
