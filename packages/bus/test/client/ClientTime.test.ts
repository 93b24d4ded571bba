// SPDX-License-Identifier: Apache-2.0
/** By which time a client waits, and what it learns of an agent that ends while it does. */
import { spawn } from "node:child_process"
import { assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { processStart } from "@tensorferry/core/group/processStart"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { monotonicMillis } from "@tensorferry/core/service/RunningTime"
import * as Clock from "effect/Clock"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import * as Clients from "../../src/client/TensorBusClient.ts"
import { encodeReply, replyKey, replyOk } from "../../src/command/Reply.ts"
import { processSpace } from "../../src/liveness.ts"

import { CommandQueue } from "../../src/queue/CommandQueue.ts"
import * as CommandQueueMemory from "../../src/queue/CommandQueueMemory.ts"
import { AgentState, agentBeatCodec, beatName } from "../../src/state/AgentState.ts"
import * as AgentStateMemory from "../../src/state/AgentStateMemory.ts"
import { all, register, twoAgents } from "../agent/twoAgents.ts"
import { kill } from "../processes.ts"
import { faultOf, fill } from "../tensors.ts"

describe("deadlines of clients", () => {
  it.live("do not follow a step of the wall clock, forwards or backwards", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor } = yield* twoAgents({ deadline: "60 seconds" })
        const [x, y] = [yield* tensor(), yield* tensor()]
        yield* all([register(a.client, "w", x), register(b.client, "w", y)])
        const live = yield* Clock.Clock
        for (const hours of [2, -2]) {
          let step = 0
          const stepped: Clock.Clock = Object.create(live, {
            currentTimeMillis: { value: Effect.sync(() => live.currentTimeMillisUnsafe() + step) },
            currentTimeMillisUnsafe: { value: () => live.currentTimeMillisUnsafe() + step }
          })
          const sending = yield* Effect.forkChild(
            Effect.provideService(a.client.transfer("w", "send"), Clock.Clock, stepped),
            { startImmediately: true }
          )
          while (!(yield* b.client.transferSignal("w"))) yield* Effect.yieldNow
          step = hours * 3_600_000
          // Long enough for the client to look at the time.
          yield* Effect.sleep("1200 millis")
          fill(x, [hours, 2, 3, 4])
          yield* b.client.transfer("w", "recv")
          yield* Fiber.join(sending)
          assert.isUndefined(faultOf(y, [hours, 2, 3, 4]))
        }
      })
    )
  )
})

/** A client of a queue that nobody takes from, beside an agent's state. */
const alone = Effect.gen(function* () {
  const memory = Context.get(yield* Layer.build(HostMemoryLayers.layer), HostMemory)
  const state = AgentStateMemory.make()
  const queue = yield* CommandQueueMemory.make()
  const beat = (process: { readonly pid: number; readonly processStart: string }, space = processSpace()) =>
    Effect.flatMap(monotonicMillis, (millis) =>
      state.put([
        [
          beatName,
          new TextEncoder().encode(
            Schema.encodeSync(agentBeatCodec)({
              rank: 7,
              millis,
              ...process,
              ...(space === undefined ? {} : { space })
            })
          )
        ]
      ])
    )
  const context = Context.make(HostMemory, memory).pipe(
    Context.add(CommandQueue, queue),
    Context.add(AgentState, state)
  )
  const client = yield* Effect.provideContext(Clients.make({ deadline: "30 seconds" }), context)
  return { client, beat, queue, state }
})

/** A process that has ended. */
const ended = Effect.gen(function* () {
  const child = spawn(process.execPath, ["-e", "process.stdin.resume()"], { stdio: ["pipe", "ignore", "ignore"] })
  const owner = { pid: child.pid!, processStart: processStart(child.pid!)! }
  yield* kill(child, "SIGKILL")
  return owner
})

const self = { pid: process.pid, processStart: processStart("self")! }

describe("an agent that has ended", () => {
  it.live("is known to be gone at once, although the client never saw it alive", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { client, beat } = yield* alone
        const gone = yield* ended
        yield* beat(gone)
        const [time, error] = yield* Effect.timed(Effect.flip(client.cleanupBatch("w")))
        assert.strictEqual(error.reason._tag, "AgentGone", error.message)
        assert.include(error.message, `Agent 7, process ${gone.pid}, has exited`)
        assert.isBelow(Duration.toMillis(time), 1_500)
      })
    )
  )

  it.live("is not taken for ended where its processes cannot be seen", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { client, beat } = yield* alone
        yield* beat(yield* ended, "another boot, or another space of processes")
        const waiting = yield* Effect.forkChild(Effect.exit(client.cleanupBatch("w")), { startImmediately: true })
        yield* Effect.sleep("1200 millis")
        assert.isUndefined(waiting.pollUnsafe())
      })
    )
  )

  it.live("leaves what is sent afterwards to the next, which need not have said that it is there", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { client, beat, queue, state } = yield* alone
        yield* beat(yield* ended)
        const sending = yield* Effect.forkChild(client.cleanupBatch("w"), { startImmediately: true })
        const [message] = yield* queue.dequeue()
        yield* beat(self)
        // Longer than the client goes without a look at the agent.
        yield* Effect.sleep("800 millis")
        assert.isUndefined(sending.pollUnsafe())
        yield* state.complete(message!.semaphoreName!, [[replyKey(message!.semaphoreName!), encodeReply(replyOk)]])
        yield* Fiber.join(sending)
      })
    )
  )
})
