// SPDX-License-Identifier: Apache-2.0
/**
 * The exchange of rosters: equal to interning what all ranks hold in one place, sent once per layout class, and every
 * message of a peer refused by name where it is not what it should be.
 */
import { assert, describe, it } from "@effect/vitest"
import { modelLayout, worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import { between, layoutsOf, modelPair, oneOf } from "@tensorferry/testing/planning/arbitraries"
import * as Arbitrary from "effect/Arbitrary"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import { digestOf } from "../../src/base/Digest.ts"
import type { Rank } from "../../src/base/Ids.ts"
import { makeInProcessGroups } from "../../src/group/ProcessGroupInProcess.ts"
import { type ParameterMetadata, parameterMetadata } from "../../src/layout/ParameterMetadata.ts"
import { expandRuns, runsLength, runsOf } from "../../src/layout/RankRuns.ts"
import { parametersOf, rosterFromParameters } from "../../src/layout/Roster.ts"
import { exchangeRosters } from "../../src/reshard/RosterExchange.ts"
import { encodeContentsOf, encodeStatement, readRosters, readStatements } from "../../src/reshard/RosterMessages.ts"

const range = (count: number): ReadonlyArray<number> => Array.from({ length: count }, (_, at) => at)

interface Held {
  readonly source: ReadonlyArray<ParameterMetadata>
  readonly destination: ReadonlyArray<ParameterMetadata>
}

const run = <A, E>(held: ReadonlyArray<Held>, use: (rank: Rank) => Effect.Effect<A, E>) =>
  Effect.forEach(range(held.length), use, { concurrency: "unbounded" })

const exchange = (held: ReadonlyArray<Held>) =>
  Effect.scoped(
    Effect.gen(function* () {
      const groups = yield* makeInProcessGroups(held.length)
      return yield* run(held, (rank) =>
        Effect.exit(exchangeRosters(groups[rank]!, held[rank]!.source, held[rank]!.destination))
      )
    })
  )

const inOnePlace = (held: ReadonlyArray<Held>, side: keyof Held) =>
  rosterFromParameters(
    held.map((each, rank) => [rank, each[side]] as const).filter(([, parameters]) => parameters.length > 0)
  )

const assertEqualToOnePlace = (held: ReadonlyArray<Held>) =>
  Effect.gen(function* () {
    const expected = { source: inOnePlace(held, "source"), destination: inOnePlace(held, "destination") }
    for (const exit of yield* exchange(held)) {
      assert.deepStrictEqual(
        Exit.getSuccess(exit).pipe((found) => found),
        Exit.getSuccess(Exit.succeed(expected))
      )
    }
    return expected
  })

/** Groups that a rank may state, regular and not. */
const groupOf = (kind: number, rank: Rank, size: number): ReadonlyArray<Rank> | null => {
  switch (kind) {
    case 0:
      return null
    case 1:
      return range(size)
    case 2:
      return range(size).toReversed()
    case 3:
      return range(size).filter((at) => at % 2 === rank % 2)
    case 4:
      return range(size).filter((at) => at !== 2 || at === rank)
    case 5:
      return []
    default:
      return [rank]
  }
}

const choice = Arbitrary.all({
  /** Few names and forms, so that ranks hold equal lists often. */
  name: oneOf(["w", "layers.0.w", "ünïcode \u2028\n\ud83d\ude80", "__proto__", ""]),
  form: oneOf(["replicated", "strided", "packed", "explicit", "expert list", "grouped experts", "alias"] as const),
  rows: oneOf([0, 1, 7, 2 ** 40]),
  tensor: between(0, 6),
  data: between(0, 6),
  expert: between(1, 3)
})
type Choice = typeof choice extends Arbitrary.Arbitrary<infer A> ? A : never

const parameterOf = (picked: Choice, rank: Rank, size: number): ParameterMetadata => {
  const { name, form, rows, tensor, data, expert } = picked
  const base = {
    name,
    shape: [rows, 3],
    dtype: "bfloat16",
    ownerRank: rank,
    tensorParallelGroupRanks: groupOf(tensor, rank, size),
    dataParallelGroupRanks: groupOf(data, rank, size)
  } as const
  const experts = { isEp: true, numExperts: 4 * size, expertParallelGroupRanks: groupOf(expert, rank, size) } as const
  switch (form) {
    case "replicated":
      return parameterMetadata(base)
    case "strided":
      return parameterMetadata({ ...base, isTp: true, partitionStride: 2 })
    case "packed":
      return parameterMetadata({ ...base, isTp: true, partitionSizes: [rows, 0] })
    case "explicit":
      return parameterMetadata({ ...base, isTp: true, partitionOffsets: [[rank, rank + rows]] })
    case "expert list":
      return parameterMetadata({
        ...base,
        ...experts,
        name: `local_experts.${data}.w`,
        resolvedName: "local_experts.0.w"
      })
    case "grouped experts":
      return parameterMetadata({ ...base, ...experts, resolvedName: `${name}.weight1` })
    case "alias":
      return parameterMetadata({ ...base, isPersistentBuffer: true, aliasOf: "w" })
  }
}

/** Up to eight ranks; each holds one of three lists on each side, or none. */
const job = Arbitrary.map(
  Arbitrary.all({
    lists: Arbitrary.array(Arbitrary.array(choice, { minLength: 0, maxLength: 5 }), { minLength: 3, maxLength: 3 }),
    holds: Arbitrary.array(Arbitrary.all({ source: between(0, 3), destination: between(0, 3) }), {
      minLength: 1,
      maxLength: 8
    })
  }),
  ({ lists, holds }): ReadonlyArray<Held> =>
    holds.map((held, rank) => {
      const side = (which: number) => (lists[which - 1] ?? []).map((picked) => parameterOf(picked, rank, holds.length))
      return { source: side(held.source), destination: side(held.destination) }
    })
)

describe("exchange", () => {
  it.effect.prop(
    "gives every rank the rosters of interning all lists in one place",
    { job },
    ({ job }) =>
      Effect.gen(function* () {
        const expected = yield* assertEqualToOnePlace(job)
        // And these say what the ranks said; only listed experts got their global numbers.
        for (const side of ["source", "destination"] as const) {
          for (const [rank, held] of job.entries()) {
            const stated = held[side].map((parameter) => {
              const { resolvedName, globalExpertIndex, expertParallelGroupRanks: group } = parameter
              const local = /weight1$|local_experts\.0/.test(resolvedName) ? (resolvedName.endsWith("1") ? 1 : 0) : -1
              if (local < 0 || group === null || !group.includes(rank) || !parameter.isEp) {
                return { resolvedName, globalExpertIndex }
              }
              const perRank = parameter.numExperts! / group.length
              if (!Number.isInteger(perRank)) return { resolvedName, globalExpertIndex }
              const expert = group.indexOf(rank) * perRank + local
              return {
                resolvedName: resolvedName.replace(/(weight|experts\.)\d+/, `$1${expert}`),
                globalExpertIndex: expert
              }
            })
            assert.deepStrictEqual(
              parametersOf(expected[side], rank),
              held[side].map((parameter, at) => ({ ...parameter, ...stated[at]! }))
            )
          }
        }
      }),
    { arbitrary: { runs: 150, seed: "roster exchange" } }
  )

  it.effect.prop(
    "models in any two layouts",
    { pair: modelPair({ limits: { tp: 4, pp: 2, dp: 2 } }) },
    ({ pair }) =>
      Effect.gen(function* () {
        const layouts = yield* Effect.fromResult(layoutsOf(pair))
        const size = 1 + Math.max(...layouts.source.ranks, ...layouts.destination.ranks)
        yield* assertEqualToOnePlace(
          range(size).map((rank) => ({
            source: parametersOf(layouts.source.roster, rank),
            destination: parametersOf(layouts.destination.roster, rank)
          }))
        )
      }),
    { arbitrary: { runs: 30, seed: "layouts" } }
  )

  it("each list of parameters travels once, from the lowest rank that holds it", () => {
    const config = { tp: 4, pp: 2, dp: 8 }
    const layout = Result.getOrThrow(
      modelLayout({
        tensors: range(100).map((at) => ({ name: `layers.${at}.weight`, dtype: "float32" as const, shape: [8, 8] })),
        rules: { rules: [{ match: "*", shard: 0 }] },
        config
      })
    )
    const size = worldSizeOf(config)
    const own = range(size).map((rank) =>
      encodeStatement(rank, parametersOf(layout.roster, rank), parametersOf(layout.roster, rank))
    )
    const statements = Result.getOrThrow(readStatements(own.map(({ payload }) => payload)))
    const second = own.map((each, rank) => encodeContentsOf(statements, rank, each))
    assert.deepStrictEqual(
      second.flatMap((payload, rank) => (payload.length > 0 ? [rank] : [])),
      [0, size / 2]
    )
    assert.isBelow(Math.max(...own.map(({ payload }) => payload.length)), 600)
    const rosters = Result.getOrThrow(readRosters(statements, second))
    assert.strictEqual(rosters.source.digest, rosters.destination.digest)
    for (const rank of [0, 5, size - 1]) {
      assert.deepStrictEqual(parametersOf(rosters.source, rank), parametersOf(layout.roster, rank))
    }
  })
})

const weight = (ownerRank: Rank, input: Partial<ParameterMetadata> = {}): ParameterMetadata =>
  parameterMetadata({ name: "w", shape: [2], dtype: "float32", ownerRank, ...input })

describe("faults", () => {
  const wrong: Readonly<Record<string, readonly [ReadonlyArray<Held>, Rank, RegExp]>> = {
    "a shape that is none": [
      range(3).map((rank) => ({ source: [weight(rank, rank === 1 ? { shape: [1.5] } : {})], destination: [] })),
      1,
      /Rank 1 cannot state w: .*integer/s
    ],
    "a rank in a group that is none": [
      range(3).map((rank) => ({
        source: [],
        destination: [weight(rank, rank === 2 ? { tensorParallelGroupRanks: [-1] } : {})]
      })),
      2,
      /Rank 2 cannot state w: .*tensorParallelGroupRanks/s
    ],
    "what another rank owns": [
      range(2).map(() => ({ source: [weight(0)], destination: [] })),
      1,
      /Rank 1 states w as owned by rank 0/
    ],
    "a group larger than the job": [
      range(2).map((rank) => ({ source: [weight(rank, { dataParallelGroupRanks: [0, 1, 0] })], destination: [] })),
      0,
      /group of 3 ranks in a job of 2/
    ]
  }
  for (const [title, [held, peer, detail]] of Object.entries(wrong)) {
    it.effect(`${title} fails every rank with the same error, by name`, () =>
      Effect.gen(function* () {
        for (const [rank, exit] of (yield* exchange(held)).entries()) {
          const error = Exit.isFailure(exit) ? yield* Effect.flip(exit) : undefined
          assert.strictEqual(error?.reason._tag, "ExchangeFailed")
          assert.strictEqual(error?.reason.rank, rank)
          assert.strictEqual(error?.reason.peer, peer)
          assert.match(error?.reason.detail ?? "", detail)
          assert.isNotEmpty(error?.reason.remedy)
        }
      })
    )
  }

  it.effect("a rank that left before either round is named", () =>
    Effect.scoped(
      Effect.gen(function* () {
        for (const round of [1, 2]) {
          const groups = yield* makeInProcessGroups(3)
          const held = range(3).map((rank) => weight(rank))
          const leaves = Effect.gen(function* () {
            if (round === 2) yield* groups[2]!.allGather("roster exchange", encodeStatement(2, [held[2]!], []).payload)
            yield* groups[2]!.leave
          })
          const [errors] = yield* Effect.all(
            [
              Effect.forEach([0, 1], (rank) => Effect.flip(exchangeRosters(groups[rank]!, [held[rank]!], [])), {
                concurrency: "unbounded"
              }),
              leaves
            ],
            { concurrency: "unbounded" }
          )
          for (const error of errors) {
            assert.strictEqual(error.reason.peer, 2)
            assert.strictEqual(error.reason._tag, "ExchangeFailed")
            assert.include(error.reason.detail, round === 1 ? "roster exchange" : "roster contents")
          }
        }
      })
    )
  )
})

const text = (value: unknown) => new TextEncoder().encode(typeof value === "string" ? value : JSON.stringify(value))

describe("messages", () => {
  const own = [0, 1].map((rank) => encodeStatement(rank, [weight(rank)], [weight(rank, { name: `d${rank}` })]))
  const first = own.map(({ payload }) => payload)
  const statements = Result.getOrThrow(readStatements(first))
  const second = own.map((each, rank) => encodeContentsOf(statements, rank, each))

  const side = { contents: "0".repeat(64), lists: [[[0, 1, 2]]], groups: [[0, null, null, null]] }
  const statement = (source: unknown) => ({ version: 2, source, destination: null })

  it("the one that stands for all others is read", () => {
    assert.isTrue(Result.isSuccess(readStatements([first[0]!, text(statement(side))])))
  })

  const bad: Readonly<Record<string, unknown>> = {
    nothing: "",
    "no JSON": "{",
    "the form of an earlier version": { version: 1, source: [], destination: [] },
    "a digest that is none": statement({ ...side, contents: "x" }),
    "a group that is not stated": statement({ ...side, groups: [[1, null, null, null]] }),
    "a huge group": statement({ ...side, lists: [[[0, 1, 2 ** 31]]] }),
    "many huge groups": statement({ ...side, lists: range(100).map((at) => [[at, 0, 2 ** 30]]) }),
    "a run of no ranks": statement({ ...side, lists: [[[0, 1, 0]]] }),
    "a run that leaves the ranks": statement({ ...side, lists: [[[0, -1, 2]]] }),
    "a run that overflows": statement({ ...side, lists: [[[2 ** 31 - 1, 2 ** 31 - 1, 2]]] }),
    "a rank that is none": statement({ ...side, lists: [[[0.5, 1, 1]]] })
  }
  for (const [title, message] of Object.entries(bad)) {
    it(`a statement with ${title} is refused by name`, () => {
      const result = readStatements([first[0]!, text(message)])
      assert.isTrue(Result.isFailure(result))
      if (Result.isFailure(result)) assert.strictEqual(result.failure.rank, 1)
    })
  }

  it("contents that are not what was stated are refused by name", () => {
    assert.isTrue(Result.isSuccess(readRosters(statements, second)))
    for (const payload of ["", "{}", `${new TextDecoder().decode(second[1])}\n`, new TextDecoder().decode(second[0])]) {
      const result = readRosters(statements, [second[0]!, text(payload)])
      assert.isTrue(Result.isFailure(result))
      if (Result.isFailure(result)) assert.strictEqual(result.failure.rank, 1)
    }
    const unasked = readRosters(Result.getOrThrow(readStatements([own[0]!.payload, own[0]!.payload])), [
      second[0]!,
      second[1]!
    ])
    assert.isTrue(Result.isFailure(unasked))
    if (Result.isFailure(unasked)) assert.strictEqual(unasked.failure.rank, 1)
  })

  for (const [title, contents] of [
    ["a structure that is missing", { structures: [], parameters: [["w", null, null, null, null, 0, 0]] }],
    ["more groups than stated", { structures: [], parameters: [] }],
    ["another form", []]
  ] as const) {
    it(`contents with ${title}, truthfully digested, are refused by name`, () => {
      const payload = JSON.stringify(contents)
      const liar = statement({ ...side, contents: digestOf(payload) })
      const result = readRosters(Result.getOrThrow(readStatements([first[0]!, text(liar)])), [
        second[0]!,
        text(payload)
      ])
      assert.isTrue(Result.isFailure(result))
      if (Result.isFailure(result)) assert.strictEqual(result.failure.rank, 1)
    })
  }
})

describe("runs of ranks", () => {
  it.prop(
    "give the list back",
    { ranks: Arbitrary.array(oneOf([0, 1, 2, 3, 5, 7, 2 ** 31 - 1]), { minLength: 0, maxLength: 12 }) },
    ({ ranks }) => {
      const runs = runsOf(ranks)
      assert.deepStrictEqual(expandRuns(runs), ranks)
      assert.strictEqual(runsLength(runs), ranks.length)
      assert.isAtMost(runs.length, Math.ceil(ranks.length / 2))
    }
  )

  it("one run for an arithmetic progression of any length", () => {
    for (const count of [1, 2, 3, 1000]) {
      for (const step of [1, 8, -1]) {
        const start = step < 0 ? count : 3
        assert.strictEqual(runsOf(range(count).map((at) => start + at * step)).length, 1)
      }
    }
  })
})
