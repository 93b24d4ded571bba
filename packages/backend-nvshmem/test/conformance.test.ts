// SPDX-License-Identifier: Apache-2.0
/**
 * The driver against the whole conformance kit, over the simulated library, on the path by put; the other path has its own
 * file among the full tests. The engine is that of @tensorferry/gpu, which backend-cuda proves.
 */
import { describeConformance } from "./conformanceOf.ts"

describeConformance("put")
