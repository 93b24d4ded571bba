// SPDX-License-Identifier: Apache-2.0
/**
 * The collector's process: maps the learner's ring and slots, becomes the ring's writer, fills it, then packs what it is
 * asked for and appends new rows after each batch, as environments would. Ends when the learner goes away.
 */
import { HostMemory as HostMemoryLayer } from "@tensorferry/backend-torch-copy"
import { packFromRing } from "@tensorferry/core/replay/ReplayPackRequests"
import {
  claimReplayWriter,
  openReplayRing,
  type ReplayRing,
  type ReplayWriter
} from "@tensorferry/core/replay/ReplayRing"
import { openHostSlots } from "@tensorferry/core/replay/ReplaySlots"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { type MessagePort, portChannel, servePackRequests } from "@tensorferry/replay/ReplayPackChannel"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { CollectorJob, type CollectorState } from "./ReplayJob.ts"
import { fillPattern } from "./rowPattern.ts"

/** Rows that are made between two looks at what else there is to do. */
const chunkBytes = 256 * 1024

const channel = portChannel(process as MessagePort)

const tell = (state: CollectorState): Effect.Effect<void> => Effect.sync(() => channel.send(state))

const appendPattern = (ring: ReplayRing, writer: ReplayWriter, from: bigint, rows: number) =>
  Effect.gen(function* () {
    const { rowBytes } = ring.layout
    const chunk = Math.max(1, Math.min(ring.capacity, Math.floor(chunkBytes / rowBytes)))
    let at = from
    for (let left = rows; left > 0; ) {
      const count = Math.min(left, chunk)
      for (const span of yield* writer.begin(count)) {
        fillPattern(span, rowBytes, at)
        at += BigInt(span.byteLength / rowBytes)
      }
      yield* writer.commit
      left -= count
      yield* Effect.yieldNow
    }
    return at
  })

const collect = (job: CollectorJob) =>
  Effect.gen(function* () {
    const memory = yield* HostMemory
    const ring = yield* Effect.fromResult(openReplayRing(yield* memory.openShared(job.ring)))
    const slots = yield* openHostSlots(ring.layout, job.rows, job.slots)
    const writer = yield* claimReplayWriter(ring)
    let end = yield* appendPattern(ring, writer, 0n, job.fill)
    const pack = packFromRing(ring, slots)
    const scope = yield* Effect.scope
    let appending: Fiber.Fiber<bigint, unknown> | undefined
    const { closed } = yield* servePackRequests(channel, (request) =>
      Effect.gen(function* () {
        // One append per batch; the next batch is packed when it has ended, so that batches differ from run to run in nothing.
        if (appending !== undefined) end = yield* Effect.orDie(Fiber.join(appending))
        appending = undefined
        const packed = yield* pack(request)
        appending = yield* Effect.forkIn(appendPattern(ring, writer, end, job.append), scope)
        return packed
      })
    )
    yield* tell({ _tag: "CollectorReady" })
    yield* closed
  }).pipe(
    Effect.scoped,
    Effect.provide(HostMemoryLayer.layer),
    Effect.catch((error) => tell({ _tag: "CollectorFailed", message: error.message }))
  )

process.once("message", (message) => {
  const job = Schema.decodeUnknownResult(CollectorJob)(message)
  const program = Result.isSuccess(job)
    ? collect(job.success)
    : tell({ _tag: "CollectorFailed", message: "The job cannot be read." })
  Effect.runFork(
    Effect.ensuring(
      program,
      Effect.sync(() => {
        if (process.connected) process.disconnect()
      })
    )
  )
})

// What still runs a while after the learner has gone is killed.
process.once("disconnect", () => setTimeout(() => process.kill(process.pid, "SIGKILL"), 2_000).unref())
Effect.runFork(tell({ _tag: "CollectorStarted" }))
