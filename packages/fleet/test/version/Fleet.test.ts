// SPDX-License-Identifier: Apache-2.0
/** Members and controllers in a world where everything goes wrong; the full tests try ten thousand lives. */
import { describe, it } from "@effect/vitest"
import { checkFleets } from "./model.ts"

describe("a fleet in random trouble", () => {
  it("never serves two versions under policy all, nor torn weights, and settles", { timeout: 120_000 }, () =>
    checkFleets([{ _tag: "All" }], 300, 7)
  )

  it("never serves torn weights nor goes back under other policies, and settles", { timeout: 120_000 }, () =>
    checkFleets([{ _tag: "All" }, { _tag: "Each" }, { _tag: "Quorum", count: 2 }], 200, 11)
  )
})
