// SPDX-License-Identifier: Apache-2.0
/** Transfers between device meshes as a user states them: planned, explained, saved, proved, and carried out. */
import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, afterEach, assert, beforeAll, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { parseMeshLayout } from "@tensorferry/core/layout/MeshText"
import type { PlanEstimate } from "@tensorferry/core/planner/Estimate"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Cause from "effect/Cause"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type { MeshJobSpec, RankReport } from "../../src/job/JobSpec.ts"
import { toFailure } from "../../src/job/JobSpec.ts"
import { rankJob } from "../../src/job/RankJob.ts"
import type { Explanation } from "../../src/output/Explanation.ts"
import { type Ended, endAll, failuresOf, runAll, scratch } from "../support/command.ts"
import { runAllHere, runHere } from "../support/here.ts"
import { mnist, mnistRules, writeModel } from "../support/models.ts"

afterEach(endAll)

let folder: ReturnType<typeof scratch>
const at = (name: string): string => join(folder.path, name)
/** Tensors whose lengths do not divide, among them none and one. */
let model: string
const tensors = [
  { name: "odd", dtype: "bfloat16", shape: [7, 5] },
  { name: "cube", dtype: "float32", shape: [4, 6, 3] },
  { name: "line", dtype: "int8", shape: [13] },
  { name: "one", dtype: "float64", shape: [1, 1] },
  { name: "none", dtype: "float16", shape: [0, 4] },
  { name: "scalar", dtype: "float32", shape: [] }
] as const

beforeAll(async () => {
  folder = scratch()
  model = at("model.safetensors")
  await writeModel(model, tensors)
})
afterAll(() => folder[Symbol.dispose]())

const json = <A>(ended: Ended): A => {
  assert.strictEqual(ended.code, 0, ended.stdout + ended.stderr)
  return JSON.parse(ended.stdout) as A
}

const planned = (from: string, to: string, shape: string, ...more: ReadonlyArray<string>) => [
  ...["plan", "--from-mesh", from, "--to-mesh", to, "--shape", shape],
  ...more
]
const moved = (tensor: string, from: string, to: string, ...more: ReadonlyArray<string>) => [
  ...["reshard", model, "--tensor", tensor, "--from-mesh", from, "--to-mesh", to],
  ...more
]

interface PlanJson {
  readonly ok: boolean
  readonly size: number
  readonly estimate: PlanEstimate
  readonly explanation?: Explanation
}

describe("refusals", () => {
  it("what is stated wrongly is wrong usage", async () => {
    const usages: ReadonlyArray<readonly [args: ReadonlyArray<string>, says: RegExp]> = [
      [["plan"], /InvalidUsage.*--from-mesh/],
      [planned("4@0,1:R", "2:R", "3"), /--from-mesh.*4 places for 2 ranks/],
      [planned("2@0,0:R", "2:R", "3"), /--from-mesh.*twice.*rank 0/],
      [planned("2:R", "0:R", "3"), /--to-mesh/],
      [planned("2:R", "2x2:R", "3"), /--to-mesh.*2 placements/],
      [planned("2", "2:R", "3"), /--from-mesh.*colon/],
      [planned("2:R", "2:R", "3x"), /--shape/],
      [planned("2:R", "2:R", "3", "--dtype", "bf17"), /--dtype.*bfloat16/],
      [planned("2:R", "2:R", "3", "--bucket-bytes", "0"), /--bucket-bytes/],
      [planned("2:R", "2:R", "3", "--source-choice", "any"), /--source-choice/],
      [planned("2:R", "2:R", "3", "--explain", "2"), /InvalidUsage.*Rank 2/],
      [["plan", "--from-mesh", "2:R", "--to-mesh", "2:R"], /InvalidUsage.*--shape/],
      [["plan", "--from-mesh", "2:R", "--shape", "3"], /InvalidUsage.*--to-mesh/],
      [planned("2:R", "2:R", "3", "--to", "tp=2"), /InvalidUsage.*--to /],
      [["plan", model, "--to", "tp=2", "--dtype", "int8"], /InvalidUsage.*--dtype/],
      [["plan", model, "--from-mesh", "2:R", "--to-mesh", "2:R"], /InvalidUsage.*--from-mesh, --to-mesh/],
      [["reshard", model, "--tensor", "odd"], /InvalidUsage.*--from-mesh/],
      [["reshard", model, "--from-mesh", "2:R", "--to-mesh", "2:R"], /InvalidUsage.*--tensor/],
      [moved("odd", "2:R", "2:R", "--to", "tp=2", "--out", at("out")), /InvalidUsage.*--to, --out/],
      [moved("odd", "2:R", "2@100000:R"), /InvalidUsage.*rank 100001/]
    ]
    const ended = await runAllHere(usages.map(([args]) => args))
    for (const [number, [args, says]] of usages.entries()) {
      assert.strictEqual(ended[number]!.code, 2, args.join(" "))
      assert.match(ended[number]!.stderr, says, args.join(" "))
    }
  })

  it("what cannot be is a failure with its reason", async () => {
    const failures: ReadonlyArray<readonly [args: ReadonlyArray<string>, reason: string, says: RegExp]> = [
      [planned("2:S2", "2:R", "3x4"), "DimOutOfRange", /dimension 2/],
      [planned("2:S-3", "2:R", "3x4"), "DimOutOfRange", /dimension -3/],
      [planned("2:S0", "2:R", "scalar"), "DimOutOfRange", /scalar/i],
      [planned("2:R", "2:P(sum)", "3x4"), "PartialTarget", /2:P\(sum\)/],
      [planned("2x2:P(sum),P(max)", "2:R", "3x4"), "MixedReductions", /mixes/],
      [planned("8192:S0", "8192:S1", "8192x8192"), "InvalidLayout", /cells/],
      [planned("2:S0", "2:R", "3x3", "--dtype", "float4_e2m1fn"), "CutInsideByte", /inside a byte/],
      [moved("absent", "2:R", "2:R"), "InvalidLayout", /6 tensors, such as/],
      [moved("odd", "2:P(sum)", "2:R"), "InvalidLayout", /contributions/],
      [moved("odd", "2:S0", "2:S2"), "DimOutOfRange", /dimension 2/]
    ]
    const ended = await runAllHere(failures.map(([args]) => [...args, "--json"]))
    for (const [number, [args, reason, says]] of failures.entries()) {
      assert.strictEqual(ended[number]!.code, 1, args.join(" "))
      const [failure] = failuresOf(ended[number]!)
      assert.strictEqual(failure!.reason, reason, args.join(" "))
      assert.match(failure!.message, says, args.join(" "))
    }
  })
})

describe("plan", () => {
  it("shows who sends what", async () => {
    const args = planned("2x2:S0,R", "4@2:S1", "8x4", "--dtype", "int32")
    const [text, asJson] = (await runAllHere([args, [...args, "--json"]])) as [Ended, Ended]
    assert.strictEqual(text.code, 0, text.stderr)
    assert.match(text.stdout, /2x2:S0,R → 4@2:S1, 6 ranks, int32\[8,4\], sources balanced/)
    assert.match(text.stdout, /from \\ to/)
    assert.notMatch(text.stdout, /reduces/)
    const { ok, size, estimate } = json<PlanJson>(asJson)
    assert.isTrue(ok)
    assert.strictEqual(size, 6)
    // Each destination has a column: half of it from either half of the rows.
    assert.strictEqual(estimate.totalBytes, 8 * 4 * 4)
    for (const { rank, sourceBytes, destinationBytes, receivedBytes, localBytes } of estimate.ranks) {
      assert.strictEqual(sourceBytes, rank < 4 ? 64 : 0)
      assert.strictEqual(destinationBytes, rank >= 2 ? 32 : 0)
      assert.strictEqual(localBytes, rank === 2 || rank === 3 ? 16 : 0)
      assert.strictEqual(receivedBytes + localBytes, destinationBytes)
    }
    const pair = (from: number, to: number) => estimate.traffic.find((one) => one.from === from && one.to === to)?.bytes
    assert.strictEqual(pair(2, 2), 16)
    assert.strictEqual((pair(0, 2) ?? 0) + (pair(1, 2) ?? 0), 16)
    const sum = (of: (rank: PlanEstimate["ranks"][number]) => number) =>
      estimate.ranks.reduce((total, rank) => total + of(rank), 0)
    assert.strictEqual(
      sum((rank) => rank.sentBytes),
      estimate.remoteBytes
    )
    assert.strictEqual(estimate.remoteBytes, 4 * 32 - 2 * 16)
    assert.isAbove(estimate.seconds, 0)
  })

  it("counts reductions, casts, transfers and the choice of sources", async () => {
    const [partial, etha, small, empty] = await runAllHere([
      planned("2x2:P(sum),S0", "2:S0", "6x5", "--to-dtype", "float32", "--json"),
      planned("2x2:S0,R", "4:R", "4x4", "--source-choice", "etha", "--json"),
      planned("4:S0", "1:R", "12x4", "--bucket-bytes", "1", "--json"),
      planned("2:S0", "3:S0", "0x4", "--json")
    ])
    const reduced = json<PlanJson>(partial!).estimate
    // 30 elements, each of two parts of two bytes; they travel in the narrower type.
    assert.strictEqual(
      reduced.ranks.reduce((total, rank) => total + rank.reducedBytes, 0),
      30 * 2 * 2
    )
    assert.deepStrictEqual(
      reduced.ranks.map((rank) => rank.destinationBytes),
      [60, 60, 0, 0]
    )
    for (const { sourceBytes, destinationBytes, reducedBytes, bufferBytes, peakBytes } of reduced.ranks) {
      // A result at the least.
      assert.isAtLeast(bufferBytes, reducedBytes / 2)
      assert.strictEqual(peakBytes, sourceBytes + destinationBytes + bufferBytes)
    }
    assert.strictEqual(json<PlanJson>(etha!).estimate.totalBytes, 4 * 32)
    const cut = json<PlanJson>(small!).estimate
    assert.strictEqual(cut.ops, 4)
    assert.strictEqual(json<PlanJson>(empty!).estimate.totalBytes, 0)
  })

  it("is saved, proved, and refused when it was damaged", async () => {
    const file = at("mesh.json")
    json(await runHere(planned("2x2:P(sum),S0", "2x2:S1,R", "6x4", "--save", file, "--json")))
    interface Plans {
      plans: Array<{
        rank: number
        sharedDigest: string
        localChunks: Array<unknown>
        buckets: Array<{ entries: Array<{ offset: number; chunk: Record<string, unknown> }>; totalBytes: number }>
      }>
    }
    const damages: ReadonlyArray<readonly [what: string, damage: (set: Plans) => void]> = [
      ["a bucket is missing", (set) => void set.plans[2]!.buckets.pop()],
      ["a bucket is empty", (set) => Object.assign(set.plans[2]!.buckets[0]!, { entries: [] })],
      ["a bucket is doubled", (set) => void set.plans[2]!.buckets.push(set.plans[2]!.buckets[0]!)],
      ["a local copy is missing", (set) => void set.plans.find((one) => one.localChunks.length > 0)!.localChunks.pop()],
      ["a rank is missing", (set) => void set.plans.pop()],
      ["a rank is doubled", (set) => void set.plans.push(set.plans[0]!)],
      ["another digest", (set) => Object.assign(set.plans[1]!, { sharedDigest: "0" })],
      ["another place", (set) => Object.assign(set.plans[0]!.buckets[0]!.entries[0]!, { offset: 16 })],
      ["fewer dimensions", (set) => Object.assign(lastChunk(set), { sliceTuples: [[0, 3]] })],
      ["a chunk for nobody", (set) => Object.assign(lastChunk(set), { dstIdx: [] })],
      ["a key is unknown", (set) => Object.assign(set, { more: 1 })],
      ["another format", (set) => Object.assign(set, { format: "tensorferry.reshard-plan-set" })]
    ]
    const lastChunk = (set: Plans) => set.plans[2]!.buckets.at(-1)!.entries[0]!.chunk
    for (const [number, [, damage]] of damages.entries()) {
      const set = JSON.parse(readFileSync(file, "utf8")) as Plans
      damage(set)
      writeFileSync(at(`mesh-${number}.json`), JSON.stringify(set))
    }
    const [text, proved, ...checked] = await runAllHere([
      ["plan", "check", file],
      ["plan", "check", file, "--json"],
      ...damages.map((_, number) => ["plan", "check", at(`mesh-${number}.json`), "--json"])
    ])
    assert.match(text!.stdout, /4 ranks, \d+ operations: every element is written exactly once/)
    assert.strictEqual(json<{ ranks: number }>(proved!).ranks, 4)
    for (const [number, refused] of checked.entries()) {
      const [what] = damages[number]!
      assert.strictEqual(refused.code, 1, what)
      for (const failure of failuresOf(refused)) assert.strictEqual(failure.reason, "InvalidPlan", what)
    }
  })
})

describe("plan --explain", () => {
  it("explains a rank's chunks between meshes, by peer", async () => {
    const args = planned("2x2:P(sum),S0", "4@2:S1", "6x8", "--dtype", "float32", "--explain", "2")
    const [text, asJson] = (await runAllHere([args, [...args, "--json"]])) as [Ended, Ended]
    assert.strictEqual(text.code, 0, text.stderr)
    assert.match(text.stdout, /rank 0 contributes tensor\[.*\] \(float32\[3,2\]\) to the reduction on rank 2, 24 B/)
    assert.match(text.stdout, /rank 2 (sends|copies) tensor\[.*sum over ranks 0, 2/)
    assert.match(text.stdout, /with rank 0: .*sent, .*received/)
    assert.notMatch(text.stdout, /from \\ to/)
    const { explanation, estimate } = json<PlanJson>(asJson)
    const own = estimate.ranks.find(({ rank }) => rank === 2)!
    const total = (action: string) =>
      explanation!.groups
        .flatMap(({ steps }) => steps)
        .reduce((sum, step) => (step.action === action ? sum + step.bytes : sum), 0)
    assert.strictEqual(explanation!.rank, 2)
    assert.strictEqual(total("send"), own.sentBytes)
    assert.strictEqual(total("receive"), own.receivedBytes)
    assert.strictEqual(total("copy"), own.localBytes)
    for (const step of explanation!.groups.flatMap(({ steps }) => steps)) assert.strictEqual(step.region.length, 2)
  })

  it("explains a rank's operations between parallel layouts", async () => {
    const args = ["plan", mnist, "--to", "tp=3", "--rules", mnistRules, "--explain", "0"]
    const [text, asJson] = (await runAllHere([args, [...args, "--json"]])) as [Ended, Ended]
    assert.strictEqual(text.code, 0, text.stderr)
    assert.match(text.stdout, /within rank 0: /)
    assert.match(text.stdout, /rank 0 copies l1\.weight\[/)
    assert.match(text.stdout, /with rank 2: [\d.]+ KiB sent\n {2}rank 0 sends l\d\.weight\[.*\] .* to rank 2 into \[/)
    const { groups } = json<PlanJson>(asJson).explanation!
    assert.deepStrictEqual(
      groups.map(({ peers }) => peers),
      [[], [1], [2]]
    )
    const other = await runHere([...args.slice(0, -1), "1", "--json"])
    const [received] = json<PlanJson>(other).explanation!.groups
    assert.deepStrictEqual(received!.peers, [0])
    assert.isTrue(received!.steps.every(({ action }) => action === "receive"))
  })

  it("is short for people and whole for machines", async () => {
    const args = planned("1:R", "40:S0", "400x3", "--explain", "0")
    const many = planned("4:SS(0,64)", "2:S0", "1024", "--explain", "0")
    const [text, asJson, long] = (await runAllHere([args, [...args, "--json"], many])) as [Ended, Ended, Ended]
    assert.match(text.stdout, /and 16 more peers/)
    assert.strictEqual(json<PlanJson>(asJson).explanation!.groups.length, 40)
    assert.match(long.stdout, /and \d+ more steps/)
    assert.isBelow(long.stdout.split("\n").length, 60)
  })
})

describe("reshard", () => {
  it("moves a tensor between meshes with a process per rank", async () => {
    const [text, asJson] = (await runAll([
      moved("odd", "2x2:S0,R", "3@2:S1"),
      moved("cube", "2x2@3,1,0,2:S1,SS(1,2)", "3:S0", "--bucket-bytes", "16", "--json")
    ])) as [Ended, Ended]
    assert.strictEqual(text.code, 0, text.stdout + text.stderr)
    assert.match(text.stdout, /2x2:S0,R → 3@2:S1, 5 ranks, tensor odd, backend auto \(serves device family cpu\)/)
    assert.match(text.stdout, /verified: 3 shards, 70 B, bit-identical/)
    interface Moved {
      readonly ok: boolean
      readonly tensor: string
      readonly ranks: number
      readonly verified: boolean
      readonly bytes: Record<string, number>
      readonly reports: ReadonlyArray<RankReport>
    }
    const result = json<Moved>(asJson)
    assert.isTrue(result.ok && result.verified)
    assert.strictEqual(result.tensor, "cube")
    assert.strictEqual(result.ranks, 4)
    assert.strictEqual(result.bytes.destination, 4 * 6 * 3 * 4)
    assert.strictEqual(result.bytes.local! + result.bytes.remote!, result.bytes.destination)
    assert.strictEqual(new Set(result.reports.map((report) => report.rosterDigest)).size, 1)
    for (const { waves } of result.reports) assert.isAbove(waves, 0)
  })
})

const meshOf = (text: string) => Result.getOrThrow(parseMeshLayout(text))

/** Each rank's exit; `specOf` is what one rank is told instead. */
const runJob = (
  tensor: string,
  from: string,
  to: string,
  size: number,
  specOf = (_rank: number, spec: MeshJobSpec): MeshJobSpec => spec
) =>
  Effect.scoped(
    Effect.gen(function* () {
      const spec: MeshJobSpec = {
        checkpoint: model,
        tensor,
        mesh: { from: meshOf(from), to: meshOf(to), sourceChoice: "balanced" },
        backend: "torch-copy",
        backendPackages: [],
        packagesFrom: import.meta.url,
        out: null,
        verify: true,
        deadlineMillis: 20_000
      }
      const groups = yield* makeInProcessGroups(size)
      return yield* Effect.forEach(
        groups,
        (group) =>
          Effect.exit(
            Effect.provideService(
              // A rank whose process ends is gone for the others.
              Effect.onError(
                rankJob(specOf(group.rank, spec), () => Effect.void),
                () => group.leave
              ),
              ProcessGroup,
              group
            )
          ),
        { concurrency: "unbounded" }
      )
    })
  )

describe("ranks of a job", () => {
  const pairs: ReadonlyArray<readonly [from: string, to: string, size: number]> = [
    ["1:R", "1:R", 1],
    ["3:S0", "2:S0", 3],
    ["2:R", "2@3:S0", 5],
    ["2x2:S0,S0", "3@1,3,0:S0", 4],
    ["2x3:SS(0,3),S0", "2x2@2:R,S0", 6]
  ]
  for (const [from, to, size] of pairs) {
    it.live(`${from} → ${to}: every tensor that it fits, proved`, () =>
      Effect.gen(function* () {
        for (const { name, shape } of tensors) {
          if (shape.length === 0 && /S/.test(from + to)) continue
          const exits = yield* runJob(name, from, to, size)
          const reports = exits.map((exit) => (Exit.isSuccess(exit) ? exit.value : assert.fail(String(exit.cause))))
          const verified = reports.reduce((sum, report) => sum + report.tensorsVerified, 0)
          assert.strictEqual(verified, meshOf(to).mesh.ranks.length, name)
        }
      })
    )
  }

  const failureOf = (exit: Exit.Exit<unknown, unknown>) =>
    Exit.isFailure(exit) ? toFailure(Cause.squash(exit.cause)) : assert.fail("a rank succeeded")

  it.live("a rank with other bytes: the rank that gets them finds out", () =>
    Effect.gen(function* () {
      const other = at("other.safetensors")
      // The same header, so that nothing is noticed before the bytes are compared.
      const bytes = readFileSync(model)
      const start = 8 + Number(bytes.readBigUInt64LE())
      writeFileSync(
        other,
        bytes.map((byte, place) => (place < start ? byte : byte ^ 0xff))
      )
      const exits = yield* runJob("line", "2:S0", "2@2:S0", 4, (rank, spec) =>
        rank === 1 ? { ...spec, checkpoint: other } : spec
      )
      const failure = failureOf(exits[3]!)
      assert.strictEqual(failure.reason, "Different")
      assert.strictEqual(failure.fields?.paramName, "line")
      for (const exit of exits) assert.isTrue(Exit.isFailure(exit))
    })
  )

  it.live("a rank with other meshes: an error on every rank, before any byte moves", () =>
    Effect.gen(function* () {
      const exits = yield* runJob("odd", "2:S0", "2:S1", 2, (rank, spec) =>
        rank === 1 ? { ...spec, mesh: { ...spec.mesh, to: meshOf("2:R") } } : spec
      )
      for (const failure of exits.map(failureOf)) assert.match(failure.message, /odd/, JSON.stringify(failure))
    })
  )

  it.live("of another number than the meshes need: refused on every rank", () =>
    Effect.gen(function* () {
      const exits = yield* runJob("odd", "2:S0", "2:S1", 3)
      for (const failure of exits.map(failureOf)) assert.strictEqual(failure.reason, "InvalidLayout")
    })
  )
})
