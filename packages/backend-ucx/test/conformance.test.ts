// SPDX-License-Identifier: Apache-2.0
/**
 * This backend against the whole conformance kit, between real processes: by messages that are copied once, by messages that
 * wait for memory of both ends, and by writes with remote keys.
 */
import { describeProcesses } from "@tensorferry/testing/vitest"
import { describe } from "vitest"
import { descriptor } from "../src/descriptor.ts"
import type { UcxOptions } from "../src/options.ts"
import { noUcx } from "./support.ts"

/** What a rank sets before its driver is built. */
export interface ConformanceSettings {
  readonly options: UcxOptions
  /** Bytes from which UCX waits for memory at both ends; without it, never. */
  readonly rendezvous?: string
}

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)
const settings: Readonly<Record<string, ConformanceSettings>> = {
  ucx: { options: {} },
  "ucx by rendezvous": { options: { transfer: "messages" }, rendezvous: "1k" },
  "ucx by writes": { options: { transfer: "emulated-put" } }
}

describe.skipIf(noUcx !== undefined)(noUcx ?? "the kit", () => {
  for (const [name, setting] of Object.entries(settings))
    describeProcesses(name, script, setting, { stated: descriptor.capabilities, timeout: 120_000 })
})
