// SPDX-License-Identifier: Apache-2.0
/** The driver against the whole conformance kit, over the simulated library, on the path by memory of peers. */
import { describeConformance } from "./conformanceOf.ts"

describeConformance("direct")
