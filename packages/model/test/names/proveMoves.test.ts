// SPDX-License-Identifier: Apache-2.0
/** What the proof of strided copies finds is what marking every element finds; hostile plans end with a fault. */
import { assert, describe, it } from "@effect/vitest"
import fc from "fast-check"
import { type Move, type MoveFault, type MoveLoops, proveMoves } from "../../src/names/proveMoves.ts"

const places = (at: number, loops: MoveLoops, which: 1 | 2): ReadonlyArray<number> =>
  loops.reduce<ReadonlyArray<number>>(
    (own, loop) => own.flatMap((place) => Array.from({ length: loop[0] }, (_, index) => place + index * loop[which])),
    [at]
  )

/** Executes moves into one destination of a size, element by element. */
const marked = (size: number, moves: ReadonlyArray<Move>): ReadonlyArray<MoveFault> => {
  const counts = new Array<number>(size).fill(0)
  for (const [, at, , , loops] of moves) for (const place of places(at, loops, 1)) counts[place]!++
  const twice = counts.flatMap((count, place) => (count > 1 ? [place] : []))
  const holes = counts.flatMap((count, place) => (count === 0 ? [place] : []))
  return [
    ...(twice.length > 0
      ? [{ kind: "written_twice" as const, destination: "d", first: twice[0]!, count: twice.length }]
      : []),
    ...(holes.length > 0
      ? [{ kind: "unwritten" as const, destination: "d", first: holes[0]!, count: holes.length }]
      : [])
  ]
}

const prove = (size: number, moves: ReadonlyArray<Move>, source = size) =>
  proveMoves({ sources: [["s", [source]]], destinations: [["d", [size]]], moves, fills: [] })

/** One loop that stays inside of 48 elements, read from a source as long. */
const loops = fc.array(fc.tuple(fc.integer({ min: 1, max: 4 }), fc.integer({ min: -8, max: 8 })), { maxLength: 3 })

const moveInside = fc.tuple(fc.integer({ min: 0, max: 47 }), loops).map(([at, own]): Move => {
  const [lowest, highest] = own.reduce(
    ([low, high], [count, step]) => [low + Math.min(0, (count - 1) * step), high + Math.max(0, (count - 1) * step)],
    [0, 0]
  )
  const width = highest - lowest
  const corner = width > 47 ? -1 : Math.min(at, 47 - width) - lowest
  return [0, corner, 0, 0, own.map(([count, step]) => [count, step, 0] as const)]
})

const isInside = ([, at, , , own]: Move): boolean => places(at, own, 1).every((place) => place >= 0 && place < 48)

describe("proveMoves", () => {
  it("finds what marking every element finds, whatever the loops", () => {
    fc.assert(
      fc.property(fc.array(moveInside, { maxLength: 6 }), (all) => {
        const moves = all.filter(isInside)
        assert.deepStrictEqual(prove(48, moves), marked(48, moves))
      }),
      { numRuns: 3000 }
    )
  })

  it("finds what marking finds in grids that share periods, with one of them changed", () => {
    const regular = fc.record({
      periods: fc.integer({ min: 1, max: 6 }),
      lengths: fc.array(fc.tuple(fc.integer({ min: 1, max: 4 }), fc.integer({ min: 1, max: 3 })), {
        minLength: 1,
        maxLength: 4
      }),
      from: fc.integer({ min: 0, max: 7 }),
      by: fc.integer({ min: -2, max: 2 }),
      without: fc.boolean(),
      split: fc.integer({ min: 0, max: 6 })
    })
    fc.assert(
      fc.property(regular, ({ periods, lengths, from, by, without, split }) => {
        const period = lengths.reduce((sum, [rows, row]) => sum + rows * row, 0)
        let at = 0
        const moves = lengths.flatMap(([rows, row]): ReadonlyArray<Move> => {
          const start = at
          at += rows * row
          // The rows of a part are written as two grids, each period by period.
          const part = (first: number, count: number): ReadonlyArray<Move> =>
            count === 0
              ? []
              : [
                  [
                    0,
                    start + first,
                    0,
                    0,
                    [
                      [periods, period, 0],
                      [rows, row, 0],
                      [count, 1, 0]
                    ]
                  ]
                ]
          const own = Math.min(split, row)
          return [...part(0, own), ...part(own, row - own)]
        })
        const chosen = from % moves.length
        const changed = moves.flatMap((move, which): ReadonlyArray<Move> => {
          if (which !== chosen) return [move]
          return without ? [] : [[0, move[1] + by, 0, 0, move[4]]]
        })
        const size = period * periods
        const fits = changed.every(([, own, , , all]) =>
          places(own, all, 1).every((place) => place >= 0 && place < size)
        )
        fc.pre(fits)
        assert.deepStrictEqual(prove(size, changed), marked(size, changed))
      }),
      { numRuns: 2000 }
    )
  })

  it("proves tensors of billions of elements without looking at them, and finds the one element that is wrong", () => {
    const [rows, columns] = [131_072, 16_384]
    const turned: Move = [
      0,
      0,
      0,
      0,
      [
        [columns, 1, rows],
        [rows, columns, 1]
      ]
    ]
    assert.deepStrictEqual(prove(rows * columns, [turned]), [])
    // Every second element from one source, the others from another: no two neighbours are of one.
    const even: Move = [0, 0, 0, 0, [[rows * columns * 0.5, 2, 1]]]
    const odd: Move = [0, 1, 0, 0, [[rows * columns * 0.5, 2, 1]]]
    assert.deepStrictEqual(prove(rows * columns, [even, odd]), [])
    const late: Move = [0, 3, 0, 0, [[rows * columns * 0.5 - 1, 2, 1]]]
    assert.deepStrictEqual(prove(rows * columns, [even, late]), [
      { kind: "unwritten", destination: "d", first: 1, count: 1 }
    ])
    const again: Move = [0, 4096, 0, 0, []]
    assert.deepStrictEqual(prove(rows * columns, [even, odd, again]), [
      { kind: "written_twice", destination: "d", first: 4096, count: 1 }
    ])
  })

  it("finds sources that are not there, and elements that they do not have", () => {
    const moves: ReadonlyArray<Move> = [
      [0, 0, 0, 1, [[4, 1, 1]]],
      [1, 0, 1, 0, [[4, 1, 1]]],
      [1, 4, 1, 0, [[4, 1, 1]]]
    ]
    assert.deepStrictEqual(
      proveMoves({
        sources: [
          ["s", [4]],
          ["absent", undefined]
        ],
        destinations: [
          ["d", [4]],
          ["e", [8]]
        ],
        moves,
        fills: []
      }),
      [
        { kind: "missing_source", source: "absent", destinations: ["e"] },
        { kind: "out_of_bounds", source: "s", last: 4, size: 4 }
      ]
    )
    assert.deepStrictEqual(prove(4, [[0, 0, 0, 2, [[4, 1, -1]]]]), [
      { kind: "out_of_bounds", source: "s", last: -1, size: 4 }
    ])
  })

  it("refuses counts and places that are none, and ends", () => {
    const kinds = (at: number, own: MoveLoops) => prove(8, [[0, at, 0, 0, own]]).map(({ kind }) => kind)
    assert.deepStrictEqual(kinds(0, [[0, 1, 1]]), ["invalid_move"])
    assert.deepStrictEqual(kinds(0, [[-3, 1, 1]]), ["invalid_move"])
    assert.deepStrictEqual(kinds(0, [[1.5, 1, 1]]), ["invalid_move"])
    assert.deepStrictEqual(kinds(Number.NaN, []), ["invalid_move"])
    assert.deepStrictEqual(kinds(0, [[2 ** 40, 2 ** 40, 1]]), ["invalid_move"])
    assert.deepStrictEqual(
      kinds(0, [
        [2 ** 30, 0, 0],
        [2 ** 30, 0, 0]
      ]),
      ["invalid_move"]
    )
    assert.deepStrictEqual(kinds(8, []), ["beyond_destination"])
    assert.deepStrictEqual(kinds(0, [[2, -1, 1]]), ["beyond_destination"])
    assert.deepStrictEqual(
      kinds(
        0,
        Array.from({ length: 65 }, () => [1, 1, 1] as const)
      ),
      ["invalid_move"]
    )
    const still = prove(2 ** 40, [
      [
        0,
        0,
        0,
        0,
        [
          [2 ** 40, 1, 0],
          [1000, 0, 0]
        ]
      ]
    ])
    assert.deepStrictEqual(still, [{ kind: "written_twice", destination: "d", first: 0, count: 2 ** 40 }])
  })

  it("says so where too many runs would have to be looked at", () => {
    const size = 2 ** 40
    const moves: ReadonlyArray<Move> = [
      [0, 0, 0, 0, [[2 ** 38, 3, 0]]],
      [0, 1, 0, 0, [[2 ** 37, 5, 0]]]
    ]
    assert.deepStrictEqual(prove(size, moves), [{ kind: "undecided", destination: "d" }])
  })
})
