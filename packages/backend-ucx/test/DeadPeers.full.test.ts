// SPDX-License-Identifier: Apache-2.0
/**
 * One rank whose peers are killed one after the other while bytes go both ways: each death is named, what came is of the peer or
 * of before, and neither memory nor descriptors nor threads of the dead stay with the living.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { readdirSync, readFileSync } from "node:fs"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { makeRandom } from "@tensorferry/testing/mutate"
import { isSoak } from "@tensorferry/testing/testLevel"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import type { WireRankInput } from "./fixtures/wire-rank.ts"
import { noUcx } from "./support.ts"
import { openWire } from "./wirePair.ts"

const script = fileURLToPath(new URL("fixtures/wire-rank.ts", import.meta.url))
const peers = isSoak ? 100 : 30
const byteLength = 10_000_000

const held = () => ({
  descriptors: readdirSync("/proc/self/fd").length,
  threads: readdirSync("/proc/self/task").length,
  mebibytes: Number(/VmRSS:\s+(\d+)/.exec(readFileSync("/proc/self/status", "utf8"))![1]) / 1024
})

/** A peer as a process, and what it prints. */
const startPeer = (input: WireRankInput) => {
  const child = spawn(process.execPath, [script, JSON.stringify(input)], { stdio: ["pipe", "pipe", "inherit"] })
  const ended = once(child, "close")
  child.stdin.on("error", () => {})
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return {
    next: Effect.promise(async () => {
      const line = await lines.next()
      return line.done === true ? assert.fail("the peer ended early") : JSON.parse(line.value)
    }),
    tell: (line: object) => Effect.sync(() => void child.stdin.write(`${JSON.stringify(line)}\n`)),
    kill: Effect.promise(() => {
      child.kill("SIGKILL")
      return ended
    })
  }
}

describe.skipIf(noUcx !== undefined)(noUcx ?? "peers over ucx that are killed", () => {
  it.live(
    `${peers} of them leave nothing with the rank that stays`,
    () =>
      Effect.gen(function* () {
        const options = {}
        const wire = yield* openWire(0, byteLength, options)
        let settled = held()
        for (let seed = 1; seed <= peers; seed++) {
          const random = makeRandom(seed)
          const about = `seed ${seed}`
          const version = 1 + (seed % 250)
          const before = wire.received[0]!
          const peer = startPeer({ byteLength, options, version })
          const published = yield* peer.next
          yield* peer.tell(wire.published)
          const pair = yield* wire.meet(published)
          yield* peer.next
          const runs = yield* Effect.forkChild(Effect.flip(Effect.forever(pair.run)))
          yield* Effect.sleep(random.pick([0, 1, 3, 10, 30, 100]))
          yield* peer.kill
          const [passed, failure] = yield* Effect.timed(Fiber.join(runs))
          assert.strictEqual(failure.code, "PeerGone", about)
          assert.strictEqual(failure.item, 1, about)
          assert.match(failure.detail, /^Rank 1 has ended/, about)
          assert.isBelow(Duration.toMillis(passed), 6000, about)
          for (const byte of wire.received)
            if (byte !== version && byte !== before) assert.fail(`${about}: byte ${byte}`)
          pair.close()
          wire.received.fill(version)
          if (seed === Math.floor(peers / 3)) settled = held()
        }
        const after = held()
        assert.isAtMost(after.descriptors, settled.descriptors)
        assert.isAtMost(after.threads, settled.threads)
        assert.isBelow(after.mebibytes - settled.mebibytes, 48)
      }).pipe(Effect.provide(HostEngine.layer({ threads: 1 })), Effect.scoped),
    600_000
  )
})
