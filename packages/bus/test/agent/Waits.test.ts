// SPDX-License-Identifier: Apache-2.0
/** How long commands wait for other ranks: as they say themselves, where they do, else as their agent does. */
import { assert, it } from "@effect/vitest"
import { replicate } from "@tensorferry/core/layout/Placement"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { InitPair } from "../../src/command/Command.ts"
import { decodeCommand, encodeCommand } from "../../src/command/CommandCodec.ts"
import { encodeMeshShape, encodePlacements } from "../../src/payload/LayoutPayload.ts"
import { twoAgents } from "./twoAgents.ts"

const pairOf = (local: string, remote: string, timeout: number | null) =>
  new InitPair({
    pairName: "p",
    localName: local,
    expectedWorldSize: 1,
    remoteName: remote,
    meshShapePayload: encodeMeshShape([1]),
    placementsPayload: encodePlacements([replicate]),
    timeout
  })

it.live("a command that states its time waits longer or shorter than its agent would", () =>
  Effect.scoped(
    Effect.gen(function* () {
      const { a, b } = yield* twoAgents({ deadline: "1 second", pairs: [] })
      const [soon, missing] = yield* Effect.timed(Effect.flip(a.client.send(pairOf("a", "b", 0.2))))
      assert.strictEqual(missing.reason._tag, "RemoteMissing")
      assert.isBelow(Duration.toMillis(soon), 900)
      const early = yield* Effect.forkChild(Effect.exit(a.client.send(pairOf("a", "b", 15))), {
        startImmediately: true
      })
      // Longer than the agents' deadline: that is what the test is about.
      yield* Effect.sleep("1500 millis")
      yield* b.client.send(pairOf("b", "a", 15))
      assert.strictEqual((yield* Fiber.join(early))._tag, "Success")
      for (const timeout of [0, -1, Number.NaN, 1e9]) {
        const other = new InitPair({ ...pairOf("a", "b", timeout), pairName: "q" })
        const refused = yield* Effect.flip(a.client.send(other))
        assert.match(refused.message, /InvalidCommand.*A command cannot wait for/)
      }
    })
  )
)

it("a command without a time is written as other clients write it", () => {
  const plain = encodeCommand(pairOf("a", "b", null))
  assert.notInclude(Buffer.from(plain).toString("latin1"), "timeout")
  const stated = encodeCommand(pairOf("a", "b", 2.5))
  const read = decodeCommand(stated)
  assert.strictEqual(read._tag === "Success" && read.success._tag === "InitPair" && read.success.timeout, 2.5)
})
