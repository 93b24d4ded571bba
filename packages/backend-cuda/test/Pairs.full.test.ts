// SPDX-License-Identifier: Apache-2.0
/**
 * Two processes and their memory: which way leads from one to the other and why, what is mapped and for how long, and what
 * a mapping that is closed twice looks like.
 */
import { assert, describe, it } from "@effect/vitest"
import type { Addon } from "@tensorferry/gpu/Addon"
import type { NativeAnswer } from "@tensorferry/native/NativeAddon"
import type { DriverKind } from "../src/planning/route.ts"
import { type PairInput, type RankResult, runPair } from "./fixtures/pair.ts"

const timeout = 60_000

const settings = ["seed=1", "seed=2"] as const

const pairOf = (input: Partial<PairInput> & Pick<PairInput, "scenario" | "kind">): PairInput => ({ settings, ...input })

/** The paths of a rank as text. */
const pathsOf = ({ outcome }: RankResult): string =>
  (outcome.paths as ReadonlyArray<{ path: string; reason: string }>)
    .map(({ path, reason }) => `${path}: ${reason}`)
    .join()

const assertRight = (results: ReadonlyArray<RankResult>): void => {
  assert.lengthOf(results, 2)
  for (const [rank, { outcome, faults }] of results.entries()) {
    assert.deepStrictEqual(outcome.wrong ?? [], [], `rank ${rank}`)
    assert.deepStrictEqual(faults, [], `rank ${rank}`)
  }
}

describe("the way", () => {
  for (const [what, kind, both, expected] of [
    ["is the peer's memory", "cuda", settings, /^ipc: the peer's memory is mapped/],
    ["is the peer's memory", "cuda-ipc", settings, /^ipc: the peer's memory is mapped/],
    ["is collectives", "nccl", settings, /^nccl: the only path of this backend/],
    [
      "is collectives where devices cannot access each other",
      "cuda",
      ["seed=1 peers=none", "seed=2 peers=none"],
      /^nccl: ipc: devices [01] and [01] cannot access each other/
    ]
  ] as const satisfies ReadonlyArray<readonly [string, DriverKind, readonly [string, string], RegExp]>) {
    it(`of ${kind} ${what}`, { timeout }, async () => {
      const results = await runPair(pairOf({ scenario: "once", kind, settings: both }))
      assertRight(results)
      for (const result of results) assert.match(pathsOf(result), expected)
    })
  }

  it("is collectives where handles do not open", { timeout }, async () => {
    const both = ["seed=1 node=here", "seed=2 node=there"] as const
    const results = await runPair(pairOf({ scenario: "once", kind: "cuda", settings: both }))
    assertRight(results)
    for (const result of results) assert.match(pathsOf(result), /^nccl: ipc: cudaIpcOpenMemHandle/)
  })

  it("is collectives for memory that cannot be exported, with the reason", { timeout }, async () => {
    const results = await runPair(pairOf({ scenario: "reserved", kind: "cuda" }))
    assertRight(results)
    assert.strictEqual(results[0]!.outcome.last, 77)
    for (const result of results) assert.match(pathsOf(result), /^nccl: ipc: .*virtual-memory/i)
  })

  it("does not exist without collectives for such memory, and both ranks say so", { timeout }, async () => {
    const results = await runPair(pairOf({ scenario: "reserved", kind: "cuda-ipc" }))
    assertRight(results)
    for (const { outcome } of results) {
      assert.strictEqual(outcome.reason, "UnreachableMemory")
      assert.match(outcome.failure as string, /virtual-memory/i)
    }
  })

  it("is the sender's push where only the receiver's memory can be opened", { timeout }, async () => {
    const results = await runPair(pairOf({ scenario: "reservedSender", kind: "cuda-ipc" }))
    assertRight(results)
    assert.strictEqual(results[0]!.outcome.last, 77)
    for (const result of results) assert.include(pathsOf(result), "pushed")
  })

  it("is the sender's push where the option says so", { timeout }, async () => {
    const results = await runPair(pairOf({ scenario: "once", kind: "cuda-ipc", options: { direction: "push" } }))
    assertRight(results)
    for (const result of results) assert.include(pathsOf(result), "pushed")
  })
})

describe("a peer that was killed", () => {
  it.each(["cuda", "cuda-ipc", "nccl"] as const)("is named by %s", { timeout }, async (kind) => {
    const [mine, ...others] = await runPair(pairOf({ scenario: "killed", kind }))
    assert.deepStrictEqual(others, [])
    const reason = mine!.outcome.reason as { readonly _tag: string }
    assert.strictEqual(reason._tag, "PeerGone", JSON.stringify(reason))
    assert.deepStrictEqual(mine!.faults, [])
  })
})

describe("times", () => {
  it("are reported by peer and phase", { timeout }, async () => {
    const options = { stagingBytes: 2 ** 16, directBytes: 2 ** 30 }
    const results = await runPair(pairOf({ scenario: "once", kind: "nccl", options }))
    assertRight(results)
    for (const [rank, { outcome }] of results.entries()) {
      const { peers } = outcome.times as { peers: ReadonlyArray<Record<string, number>> }
      assert.deepStrictEqual(
        peers.map(({ peer }) => peer),
        [1 - rank]
      )
      for (const phase of ["pack", "wire", "unpack"]) assert.isAbove(peers[0]![phase]!, 0, phase)
    }
  })
})

/** Answers that say that a handle was closed before. */
const watching = (change: (addon: Addon) => Addon) => {
  const refused: Array<string> = []
  const note = (name: string, answer: NativeAnswer<unknown>): void => {
    if (answer.code === "InvalidHandle") refused.push(name)
  }
  const watched = (addon: Addon): Addon => ({
    ...addon,
    closeImport: (mapping) => {
      const answer = addon.closeImport(mapping)
      note("closeImport", answer)
      return answer
    },
    closeProgram: (program) => {
      const answer = addon.closeProgram(program)
      note("closeProgram", answer)
      return answer
    },
    freeMemory: (memory) => {
      const answer = addon.freeMemory(memory)
      note("freeMemory", answer)
      return answer
    }
  })
  return { refused, change: (addon: Addon) => change(watched(addon)) }
}

describe("memory that comes and goes", () => {
  it("is mapped once per block and let go of, and nothing is closed twice", { timeout }, async () => {
    const { refused, change } = watching((addon) => addon)
    const results = await runPair(pairOf({ scenario: "reallocate", kind: "cuda-ipc" }), change)
    assertRight(results)
    assert.deepStrictEqual(refused, [])
    for (const { outcome } of results) {
      const { most, blocks, imported, opened, closed } = outcome as Record<string, number>
      assert.isAtMost(most!, 5)
      assert.isAtMost(blocks!, 1)
      assert.isAtMost(imported!, 1)
      assert.strictEqual(opened! - closed!, imported)
    }
  })

  it("that is closed twice is noticed", { timeout }, async () => {
    const { refused, change } = watching((addon) => ({
      ...addon,
      closeImport: (mapping) => {
        addon.closeImport(mapping)
        return addon.closeImport(mapping)
      }
    }))
    assertRight(await runPair(pairOf({ scenario: "reallocate", kind: "cuda-ipc" }), change))
    assert.include(refused, "closeImport")
  })

  it("is not started with after it was freed, here or there", { timeout }, async () => {
    for (const kind of ["cuda", "cuda-ipc", "nccl"] as const) {
      const results = await runPair(pairOf({ scenario: "revoke", kind }))
      assertRight(results)
      for (const { outcome } of results) assert.isFalse(outcome.started)
    }
  })
})
