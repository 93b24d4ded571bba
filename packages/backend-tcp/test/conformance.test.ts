// SPDX-License-Identifier: Apache-2.0
/**
 * This backend against the whole conformance kit, between real processes.
 */
import { describeProcesses } from "@tensorferry/testing/vitest"
import { descriptor } from "../src/descriptor.ts"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)

describeProcesses("tcp", script, {}, { stated: descriptor.capabilities, timeout: 120_000 })
