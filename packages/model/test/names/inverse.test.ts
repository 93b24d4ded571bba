// SPDX-License-Identifier: Apache-2.0
/** Ways back from strips written by hand: every kind of loop, overlaps of grids, and what is refused. */
import { assert, describe, it } from "@effect/vitest"
import { between } from "@tensorferry/testing/planning/arbitraries"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { heldPart, inverse } from "../../src/names/inverse.ts"
import { firstHole, spread, without } from "../../src/names/overlap.ts"
import type { Loop, Strip } from "../../src/names/Strips.ts"

const tensor = (name: string, ...shape: ReadonlyArray<number>) => ({ name, dtype: "float32" as const, shape })

/** Elements of a strip's own tensor, row-major, with the elements of its source. */
const pairsOf = (
  { at, offset, loops }: Strip,
  shape: ReadonlyArray<number>
): ReadonlyArray<readonly [number, number]> =>
  loops
    .reduce<ReadonlyArray<readonly [ReadonlyArray<number>, number]>>(
      (all, loop) =>
        all.flatMap(([place, from]) =>
          Array.from(
            { length: loop.count },
            (_, index) =>
              [
                place.map((one, dim) => (dim === loop.dim ? one + index * loop.step : one)),
                from + index * loop.source
              ] as const
          )
        ),
      [[at, offset]]
    )
    .map(([place, from]) => [place.reduce((sum, one, dim) => sum * shape[dim]! + one, 0), from])

describe("the way back of a strip", () => {
  it("goes along the source's dimensions, with the place in what is held as its source", () => {
    // Rows 1 and 3 of a [4,2], held transposed in a [2,2].
    const loops: ReadonlyArray<Loop> = [
      { dim: 0, count: 2, step: 1, source: 1 },
      { dim: 1, count: 2, step: 1, source: 4 }
    ]
    const held = { name: "h", shape: [2, 2], strips: [{ source: "a", offset: 2, at: [0, 0], loops }] }
    const [back] = Result.getOrThrow(heldPart([held], [tensor("a", 4, 2)]))
    assert.deepStrictEqual(back!.strips, [
      {
        source: "h",
        offset: 0,
        at: [1, 0],
        loops: [
          { dim: 1, count: 2, step: 1, source: 2 },
          { dim: 0, count: 2, step: 2, source: 1 }
        ]
      }
    ])
  })

  it("turns what is held backwards", () => {
    const loops = [{ dim: 0, count: 3, step: 1, source: -1 }]
    const held = { name: "h", shape: [3], strips: [{ source: "a", offset: 2, at: [0], loops }] }
    const [back] = Result.getOrThrow(inverse([held], [tensor("a", 3)]))
    assert.deepStrictEqual(pairsOf(back!.strips[0]!, [3]), [
      [0, 2],
      [1, 1],
      [2, 0]
    ])
  })

  it("is several strips where a loop runs from row to row", () => {
    // All six elements of a [2,3] in one loop.
    const loops = [{ dim: 0, count: 6, step: 1, source: 1 }]
    const held = { name: "h", shape: [6], strips: [{ source: "a", offset: 0, at: [0], loops }] }
    const [back] = Result.getOrThrow(inverse([held], [tensor("a", 2, 3)]))
    assert.deepStrictEqual(
      back!.strips.flatMap((strip) => pairsOf(strip, [2, 3])),
      [0, 1, 2, 3, 4, 5].map((at) => [at, at] as const)
    )
  })

  it("undoes the function of a value", () => {
    const strips = [
      { source: "a", offset: 0, at: [0], loops: [], scalar: { add: -1 } },
      { source: "b", offset: 0, at: [1], loops: [], scalar: "negExp" as const }
    ]
    const back = Result.getOrThrow(inverse([{ name: "h", shape: [2], strips }], [tensor("a", 1), tensor("b", 1)]))
    assert.deepStrictEqual(
      back.map(({ strips: [strip] }) => [strip!.offset, strip!.scalar]),
      [
        [0, { add: 1 }],
        [1, "logNeg"]
      ]
    )
  })
})

describe("ways back", () => {
  const whole = (name: string, length: number, offset: number, of: number) => ({
    name,
    shape: [of],
    strips: [
      { source: "a", offset, at: [0], loops: length === 1 ? [] : [{ dim: 0, count: length, step: 1, source: 1 }] }
    ]
  })

  it("take what two hold from the first, and the rest from the second", () => {
    const back = Result.getOrThrow(inverse([whole("0:x", 3, 0, 3), whole("1:x", 4, 2, 4)], [tensor("a", 6)]))
    assert.deepStrictEqual(
      back[0]!.strips.map(({ source, at, offset, loops }) => [source, at[0], offset, loops[0]?.count ?? 1]),
      [
        ["0:x", 0, 0, 3],
        ["1:x", 3, 1, 3]
      ]
    )
  })

  it("leave padding where it is", () => {
    const held = whole("h", 3, 0, 5)
    const padding = { source: undefined, offset: 0, at: [3], loops: [{ dim: 0, count: 2, step: 1, source: 0 }] }
    const back = Result.getOrThrow(inverse([{ ...held, strips: [...held.strips, padding] }], [tensor("a", 3)]))
    assert.deepStrictEqual(back[0]!.strips.length, 1)
  })

  it("are refused where nobody holds an element, with the first and how many", () => {
    const made = inverse([whole("0:x", 2, 0, 2), whole("1:x", 2, 5, 2)], [tensor("a", 8)])
    const { kind, subject, message } = Result.getOrThrow(Result.flip(made))
    assert.deepStrictEqual([kind, subject], ["unwritten", "a"])
    assert.include(message, "Nobody holds 4 of its elements, the first at 2.")
  })

  it("are refused where what is held is made of elements that the tensor does not have", () => {
    const { kind, message } = Result.getOrThrow(Result.flip(inverse([whole("0:x", 3, 0, 3)], [tensor("a", 2)])))
    assert.strictEqual(kind, "out_of_bounds")
    assert.include(message, "0:x is made of elements behind its end.")
  })

  it("give tensors without elements, and single numbers", () => {
    const held = { name: "h", shape: [], strips: [{ source: "a", offset: 0, at: [], loops: [] }] }
    const back = Result.getOrThrow(inverse([held], [tensor("a"), tensor("none", 0, 4)]))
    assert.deepStrictEqual(
      back.map(({ name, strips }) => [name, strips.length]),
      [
        ["a", 1],
        ["none", 0]
      ]
    )
  })
})

describe("grids in a tensor", () => {
  const shape = [24, 12] as const

  /** Nested loops from drawn numbers: outer steps are multiples of what inner ones reach. */
  const grid = (numbers: ReadonlyArray<number>): Strip => {
    const at: Array<number> = []
    const loops: Array<Loop> = []
    for (const [dim, length] of shape.entries()) {
      const [first, inner, innerStep, outer, gap] = numbers.slice(5 * dim, 5 * dim + 5) as [
        number,
        number,
        number,
        number,
        number
      ]
      const step = 1 + (innerStep % 3)
      const count = 1 + (inner % 4)
      const outerStep = (count - 1) * step + 1 + (gap % 4)
      const reach = (count - 1) * step + 1
      const outerCount = Math.max(1, Math.min(1 + (outer % 4), Math.floor((length - reach) / outerStep) + 1))
      at.push(first % (length - (reach + (outerCount - 1) * outerStep) + 1))
      if (outerCount > 1) loops.push({ dim, count: outerCount, step: outerStep, source: 0 })
      if (count > 1) loops.push({ dim, count, step, source: 0 })
    }
    return { source: "a", offset: 0, at, loops }
  }

  const elements = (strip: Strip): ReadonlyArray<number> => pairsOf(strip, shape).map(([own]) => own)

  it.effect("have nothing of another left after it is taken away, and all of the rest, once", () =>
    Effect.gen(function* () {
      const drawn = Arbitrary.array(between(0, 999), { minLength: 20, maxLength: 20 })
      for (const numbers of yield* Arbitrary.sampleEffect(drawn, { count: 1500, seed: "grids" })) {
        const [one, two] = [grid(numbers), grid(numbers.slice(10))]
        const taken = new Set(elements(two))
        const left = without(spread(one), spread(two)).flatMap(({ strip }) => elements(strip))
        assert.deepStrictEqual(
          [...left].sort((a, b) => a - b),
          elements(one)
            .filter((own) => !taken.has(own))
            .sort((a, b) => a - b),
          JSON.stringify([one, two])
        )
        const held = new Set([...left, ...taken])
        const missing = Array.from({ length: shape[0] * shape[1] }, (_, own) => own).filter((own) => !held.has(own))
        assert.deepStrictEqual(
          firstHole(shape, [...without(spread(one), spread(two)).map(({ strip }) => strip), two]),
          missing.length === 0 ? undefined : { first: missing[0], count: missing.length }
        )
      }
    })
  )
})
