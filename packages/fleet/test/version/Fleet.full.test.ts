// SPDX-License-Identifier: Apache-2.0
/** Ten thousand random lives of a fleet; a soak begins elsewhere every time. */
import { describe, it } from "@effect/vitest"
import { isSoak } from "@tensorferry/testing/testLevel"
import { checkFleets } from "./model.ts"

const seed = isSoak ? Date.now() % 2 ** 30 : 1

describe("a fleet in ten thousand random lives", () => {
  it("never serves two versions under policy all, nor torn weights, and settles", { timeout: 1_800_000 }, () =>
    checkFleets([{ _tag: "All" }], 10_000, seed)
  )

  it("never serves torn weights nor goes back under other policies, and settles", { timeout: 900_000 }, () =>
    checkFleets([{ _tag: "All" }, { _tag: "Each" }, { _tag: "Quorum", count: 2 }], 2000, seed)
  )
})
