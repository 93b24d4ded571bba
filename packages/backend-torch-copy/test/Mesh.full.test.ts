// SPDX-License-Identifier: Apache-2.0
/**
 * Updates between meshes by real processes of one host: overlapping meshes, contributions, narrow wires, shared memory, and
 * a rank that plans otherwise.
 */

import { spawn } from "node:child_process"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { afterAll } from "vitest"
import type { PathName } from "../src/memoryPath.ts"
import type { MeshCase, MeshRankInput, MeshRankLine } from "./fixtures/mesh-rank.ts"

const float = (shape: ReadonlyArray<number>) => ({ shape, from: "float32", to: "float32" }) as const
const wider = (shape: ReadonlyArray<number>) => ({ shape, from: "bfloat16", to: "float32" }) as const
const narrower = (shape: ReadonlyArray<number>) => ({ shape, from: "float32", to: "bfloat16" }) as const

const cases: ReadonlyArray<MeshCase> = [
  {
    name: "disjoint ranks, uneven shards",
    from: "2:S0",
    to: "2@2:S1",
    tensors: [float([37, 29]), float([1, 1]), float([101, 2])],
    bucketBytes: 2048
  },
  {
    name: "overlapping ranks, bfloat16 on the wire and float32 at the end",
    from: "3:S0",
    to: "3@1:S1",
    tensors: [wider([61, 43]), wider([127, 3]), narrower([31, 64])],
    bucketBytes: 4096,
    wrongRank: 2
  },
  {
    name: "contributions to replicas",
    from: "2x2:P(sum),S0",
    to: "3@1:R",
    tensors: [float([53, 17]), narrower([8, 33]), { shape: [19, 5], from: "bfloat16", to: "bfloat16" }],
    bucketBytes: 1024
  },
  {
    name: "the same ranks, from rows to columns in the same memory",
    from: "4:S0",
    to: "4:S1",
    tensors: [float([48, 44]), wider([23, 29]), narrower([24, 20])],
    bucketBytes: 1024,
    isInPlace: true
  },
  {
    name: "strided shards and replicas",
    from: "2x2:R,SS(0,3)",
    to: "4@3-3,1-1,2-2,0-0:S0",
    tensors: [float([97, 5]), wider([13, 7])],
    bucketBytes: 512
  }
]

const script = fileURLToPath(new URL("fixtures/mesh-rank.ts", import.meta.url))
const running = new Set<ReturnType<typeof spawn>>()

afterAll(() => {
  for (const child of running) child.kill("SIGKILL")
})

const startRank = (rank: MeshRankInput) => {
  const child = spawn(process.execPath, [script, JSON.stringify(rank)], { stdio: ["ignore", "pipe", "inherit"] })
  running.add(child)
  const lines: Array<MeshRankLine> = []
  let tellPort: (port: number) => void = () => {}
  const port = new Promise<number>((resolve) => {
    tellPort = resolve
  })
  createInterface({ input: child.stdout! }).on("line", (text) => {
    const line = JSON.parse(text) as MeshRankLine
    if (line.event === "port") tellPort(line.port)
    lines.push(line)
  })
  const ended = new Promise<number | null>((resolve) =>
    child.once("close", (code) => {
      running.delete(child)
      tellPort(0)
      resolve(code)
    })
  )
  return { port, ended, lines }
}

const ladder: ReadonlyArray<readonly [string, ReadonlyArray<PathName>]> = [
  ["the best path", []],
  ["process_vm_readv", ["shared-map"]],
  ["tcp", ["shared-map", "process-vm-readv"]]
]

describe.skipIf(process.platform !== "linux")("four processes", () => {
  for (const [name, forbid] of ladder) {
    it(`hold what the oracle says after two rounds of every case, by ${name}`, async () => {
      const size = 4
      const first = startRank({ rank: 0, size, port: 0, forbid, cases })
      const port = await first.port
      const others = [1, 2, 3].map((rank) => startRank({ rank, size, port, forbid, cases }))
      const ranks = [first, ...others]
      assert.deepStrictEqual(await Promise.all(ranks.map(({ ended }) => ended)), [0, 0, 0, 0])
      for (const [rank, { lines }] of ranks.entries()) {
        const ran = lines.flatMap((line) => (line.event === "case" ? [line] : []))
        assert.deepStrictEqual(
          ran.map((line) => line.name),
          cases.map((meshCase) => meshCase.name)
        )
        for (const [at, line] of ran.entries()) {
          assert.deepStrictEqual(line.faults, [], `rank ${rank}: ${line.name}`)
          // Buffers of two waves for each of the others, in both directions.
          for (const report of line.reports) assert.isAtMost(report.bufferBytes, 4 * 4096 * 3)
          if (cases[at]!.isInPlace === true) assert.isAbove(line.reports[0]!.stagedBytes, 0)
          if (cases[at]!.wrongRank === undefined) assert.isNull(line.failure)
          else assert.match(line.failure ?? "", /Mismatch \(rank 2.*buckets of different sizes/)
        }
      }
      const moved = ranks.flatMap(({ lines }) =>
        lines.flatMap((line) => (line.event === "case" ? line.reports.map(({ copy }) => copy.remoteBytesSent) : []))
      )
      assert.isAbove(
        moved.reduce((sum, bytes) => sum + bytes, 0),
        0
      )
    })
  }

  for (const killedRank of [0, 2]) {
    it(`of which rank ${killedRank} is killed between two waves: the others name it`, async () => {
      const meshCase: MeshCase = {
        name: "killed",
        from: "4:S0",
        to: "4:S1",
        tensors: [float([64, 64]), float([256, 128])],
        bucketBytes: 1024,
        killedRank
      }
      const size = 4
      const first = startRank({ rank: 0, size, port: 0, forbid: [], cases: [meshCase] })
      const port = await first.port
      const others = [1, 2, 3].map((rank) => startRank({ rank, size, port, forbid: [], cases: [meshCase] }))
      const ranks = [first, ...others]
      await Promise.all(ranks.map(({ ended }) => ended))
      for (const [rank, { lines }] of ranks.entries()) {
        const failures = lines.flatMap((line) => (line.event === "case" ? [line.failure] : []))
        if (rank === killedRank) assert.deepStrictEqual(failures, [])
        else {
          assert.strictEqual(failures.length, 1, `rank ${rank}`)
          assert.match(failures[0] ?? "", new RegExp(`PeerGone.*\\b${killedRank}\\b`))
        }
      }
    })
  }
})
