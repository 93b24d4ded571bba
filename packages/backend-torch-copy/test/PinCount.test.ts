// SPDX-License-Identifier: Apache-2.0
/**
 * Releases wait for the pins before them and for no others.
 */
import { assert, it } from "@effect/vitest"
import { makePinCount } from "../src/PinCount.ts"
import { makeRandom } from "./support.ts"

it("releases at once where nothing is pinned", () => {
  const seen: Array<number> = []
  makePinCount().whenUnpinned(() => seen.push(1))
  assert.deepStrictEqual(seen, [1])
})

it("waits for exactly the pins that were there, in any order of pins, requests and returns", () => {
  const random = makeRandom(11)
  for (let round = 0; round < 300; round++) {
    const count = makePinCount()
    const pins = new Map<number, () => void>()
    const requests: Array<{ readonly waitsFor: Set<number>; released: number }> = []
    const check = () => {
      for (const { waitsFor, released } of requests) assert.strictEqual(released, waitsFor.size === 0 ? 1 : 0)
    }
    const unpin = (id: number) => {
      const give = pins.get(id)!
      pins.delete(id)
      for (const request of requests) request.waitsFor.delete(id)
      give()
    }
    for (let step = 0; step < 40; step++) {
      const what = random.below(3)
      if (what === 0) pins.set(step, count.pin())
      if (what === 1 && pins.size > 0) unpin([...pins.keys()][random.below(pins.size)]!)
      if (what === 2) {
        const request = { waitsFor: new Set(pins.keys()), released: 0 }
        requests.push(request)
        count.whenUnpinned(() => {
          request.released += 1
        })
      }
      check()
    }
    for (const id of [...pins.keys()]) unpin(id)
    check()
  }
})
