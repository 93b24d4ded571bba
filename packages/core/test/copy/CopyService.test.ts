// SPDX-License-Identifier: Apache-2.0
import { assert, describe, it } from "@effect/vitest"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "@tensorferry/testing/Loopback"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { runCluster, runRanks, type VirtualClusterOptions } from "@tensorferry/testing/VirtualCluster"
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Fiber from "effect/Fiber"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { CopyDriver, type CopyDriverShape, copyDriverError, type Program } from "../../src/service/CopyDriver.ts"
import { type CopyOp, CopyService } from "../../src/service/CopyService.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"
import { TensorEngine } from "../../src/service/TensorEngine.ts"
import { sliceTensor, tensorBytes, tensorView, transposeTensor } from "../../src/tensor/Tensor.ts"

const drivers: ReadonlyArray<readonly [string, () => Partial<VirtualClusterOptions<never>>]> = [
  ["gather", () => ({})],
  [
    "packed",
    () => {
      const network = makeLoopbackNetwork()
      return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 4096 }
    }
  ],
  [
    "strict",
    () => {
      const network = makeLoopbackNetwork()
      return { driver: () => strictLayer(network, { gather: false }) }
    }
  ]
]

const filled = (shape: ReadonlyArray<number>, start: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const tensor = yield* engine.allocate("uint8", shape)
    tensorBytes(tensor)!.forEach((_, at, bytes) => {
      bytes[at] = (start + at) & 255
    })
    return tensor
  })

describe.each(drivers)("CopyService over %s", (_name, options) => {
  it.effect("moves strided regions all to all, several rounds", () =>
    runCluster({ ...options(), size: 3 }, (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const engine = yield* TensorEngine
        const source = yield* filled([4, 6], rank * 50)
        const destination = yield* engine.allocate("uint8", [3, 6, 4])
        for (let round = 0; round < 3; round++) {
          yield* engine.fill(destination, 0xee)
          tensorBytes(source)!.forEach((_, at, bytes) => {
            bytes[at] = (rank * 50 + at + round * 7) & 255
          })
          for (let peer = 0; peer < 3; peer++) {
            yield* service.submitSend(transposeTensor(source, 0, 1), peer, rank * 3 + peer)
            const mine = Result.getOrThrow(
              sliceTensor(destination, [
                [peer, peer + 1],
                [0, 6],
                [0, 4]
              ])
            )
            yield* service.submitRecv({ ...mine, shape: [6, 4], strides: mine.strides.slice(1) }, peer, peer * 3 + rank)
          }
          const report = yield* service.run()
          assert.strictEqual(report.localBytes, 24)
          assert.strictEqual(report.remoteBytesReceived, 48)
          assert.strictEqual(report.reusedProgram, round > 0)
          const bytes = tensorBytes(destination)!
          for (let peer = 0; peer < 3; peer++) {
            for (let row = 0; row < 6; row++) {
              for (let column = 0; column < 4; column++) {
                const expected = (peer * 50 + column * 6 + row + round * 7) & 255
                assert.strictEqual(bytes[peer * 24 + row * 4 + column], expected)
              }
            }
          }
        }
      })
    )
  )

  it.effect("names a missing partner on every rank", () =>
    Effect.gen(function* () {
      const exits = yield* runRanks({ ...options(), size: 3 }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const tensor = yield* filled([5], 0)
          if (rank === 0) yield* service.submitSend(tensor, 2, 77, { paramName: "layer.weight" })
          return yield* Effect.flip(service.run())
        })
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit))
        if (!Exit.isSuccess(exit)) continue
        assert.strictEqual(exit.value.reason._tag, "PartnerMissing")
        assert.strictEqual(exit.value.reason.taskId, 77)
        assert.include(exit.value.message, "layer.weight")
        assert.deepStrictEqual(exit.value.ranks, [0, 2])
      }
    })
  )
})

/** One refused run of rank 0, as rank 1, which submits nothing, sees it. */
const refusedFor = (submit: Effect.Effect<unknown, unknown, CopyService | TensorEngine | Scope.Scope>) =>
  Effect.gen(function* () {
    const network = makeLoopbackNetwork()
    const driver = () => loopbackLayer(network, { gather: false })
    const exits = yield* runRanks({ size: 2, driver, stagingBytes: 1 }, (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        if (rank === 0) yield* submit
        return yield* Effect.flip(service.run())
      })
    )
    const errors = exits.map((exit) => (Exit.isSuccess(exit) ? exit.value : undefined))
    assert.strictEqual(errors[0]?.message, errors[1]?.message)
    return errors[1]
  })

describe("operations that cannot be carried out", () => {
  it.effect("task ids and parts that are not natural numbers are refused on every rank", () =>
    Effect.gen(function* () {
      const wrong = [
        [1.5, 0],
        [Number.NaN, 0],
        [-1, 0],
        [0, 0.5],
        [undefined, -1]
      ] as const
      for (const [taskId, part] of wrong) {
        const submit = Effect.gen(function* () {
          const service = yield* CopyService
          yield* service.submitSend(yield* filled([3], 0), 1, taskId, { part, paramName: "w" })
        })
        const error = yield* refusedFor(submit)
        assert.strictEqual(error?.reason._tag, "Unsupported")
        assert.strictEqual(error?.reason.paramName, "w")
      }
    })
  )

  it.effect("a view whose rows begin inside a byte is refused, however many messages it would take", () =>
    Effect.gen(function* () {
      for (const rows of [4, 70_000]) {
        const submit = Effect.gen(function* () {
          const service = yield* CopyService
          const { storage } = yield* filled([rows * 2], 0)
          const view = Result.getOrThrow(tensorView(storage, "float4_e2m1fn", [rows, 2], { strides: [3, 1] }))
          yield* service.submitSend(view, 1, 7)
        })
        const error = yield* refusedFor(submit)
        assert.strictEqual(error?.reason._tag, "InvalidTensor")
        assert.strictEqual(error?.reason.taskId, 7)
      }
    })
  )
})

/** A driver of one rank whose transfers are what `start` makes. */
const startingBy = (name: string, start: CopyDriverShape["start"]) =>
  Layer.succeed(
    CopyDriver,
    CopyDriver.of({
      name,
      rank: 0,
      worldSize: 1,
      capabilities: {
        gather: true,
        requiresProcessGroupBarrier: false,
        requiresTaskId: false,
        deviceFamilies: ["*"],
        maxMessageBytes: 1024
      },
      prepare: (messages) => Effect.succeed({ messages, paths: [] }),
      start
    })
  )

describe("interruption", () => {
  it.live("a transfer that has just started is cancelled", () =>
    Effect.gen(function* () {
      let cancelled = 0
      const run = yield* Deferred.make<Fiber.Fiber<unknown, unknown>>()
      // The run is interrupted in the very moment in which the transfer starts.
      const driver = startingBy("late", () =>
        Effect.gen(function* () {
          const fiber = yield* Deferred.await(run)
          fiber.interruptUnsafe()
          return {
            isComplete: Effect.succeed(false),
            await: Effect.never,
            cancel: Effect.sync(() => {
              cancelled += 1
            }),
            movedBytes: Effect.succeed(0)
          }
        }).pipe(Effect.uninterruptible)
      )
      yield* runCluster({ size: 1, driver: () => driver }, () =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const fiber = yield* Effect.forkChild(service.run())
          yield* Deferred.succeed(run, fiber)
          assert.isTrue(Exit.hasInterrupts(yield* Fiber.await(fiber)))
        })
      )
      assert.strictEqual(cancelled, 1)
    })
  )
})

/**
 * Loopback, except that a start waits for all ranks, as a transfer does to which each end contributes. A rank whose program is
 * closed, or that is cancelled before all have come, declines.
 */
const meetingLayer = (network: ReturnType<typeof makeLoopbackNetwork>, gather: boolean) =>
  Layer.effect(
    CopyDriver,
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      const meeting = yield* group.subgroup(Array.from({ length: group.size }, (_, at) => group.size - 1 - at))
      const inner = yield* Effect.provide(CopyDriver, yield* Layer.build(loopbackLayer(network, { gather })))
      const closed = new WeakSet<Program>()
      const declined = copyDriverError("TransportFailed", { detail: "A rank declined.", remedy: "Run again." })
      return CopyDriver.of({
        ...inner,
        prepare: (messages) =>
          Effect.tap(inner.prepare(messages), (program) =>
            Effect.addFinalizer(() => Effect.sync(() => void closed.add(program)))
          ),
        start: (program) =>
          Effect.gen(function* () {
            let isCancelled = closed.has(program)
            const meet = Effect.gen(function* () {
              yield* meeting.barrier("here")
              const told = yield* meeting.allGather("wanted", Uint8Array.of(isCancelled ? 1 : 0))
              if (told.some(([declines]) => declines === 1)) return yield* declined
              return yield* Effect.flatMap(inner.start(program), (inFlight) => inFlight.await)
            }).pipe(Effect.mapError(() => declined))
            const fiber = yield* Effect.forkDetach(meet, { startImmediately: true })
            return {
              isComplete: Effect.sync(() => fiber.pollUnsafe() !== undefined),
              await: Fiber.join(fiber),
              cancel: Effect.sync(() => {
                isCancelled = true
              }),
              movedBytes: Effect.succeed(0)
            }
          })
      })
    })
  )

describe("a rank that is interrupted before its transfer has started", () => {
  /** Rank 1 is interrupted in its second run, at a point that it tells of; the third run works again. */
  const interruptedAt = (gather: boolean, atPack: boolean) =>
    Effect.gen(function* () {
      const network = makeLoopbackNetwork()
      const reached = yield* Deferred.make<void>()
      const gone = yield* Deferred.make<void>()
      let packs = 0
      const engine = Layer.sync(TensorEngine, () => {
        const reference = ReferenceEngine.make()
        return TensorEngine.of({
          ...reference,
          copy: (moves) =>
            Effect.suspend(() => {
              const isSecond = atPack && moves[0]?.src.shape[0] === 4 && ++packs === 2
              return isSecond
                ? Effect.andThen(Deferred.succeed(reached, undefined), Effect.never)
                : reference.copy(moves)
            })
        })
      })
      const driver = () => meetingLayer(network, gather)
      // Whoever waited for the deadline would run into the test's own limit.
      const options = { size: 2, driver, engine, groupDeadline: Duration.minutes(5) }
      const outcomes = yield* runCluster(options, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          // Rank 1 sends columns, which are packed where the driver does not gather.
          const whole = yield* filled([4, 6], 10)
          const received = yield* filled([4, 2], 0)
          const columns = Result.getOrThrow(
            sliceTensor(whole, [
              [0, 4],
              [1, 3]
            ])
          )
          const attempt = Effect.gen(function* () {
            yield* rank === 1 ? service.submitSend(columns, 0, 5) : service.submitRecv(received, 1, 5)
            return yield* service.run()
          })
          yield* attempt
          if (rank === 1) {
            const fiber = yield* Effect.forkChild(attempt, { startImmediately: true })
            if (atPack) yield* Deferred.await(reached)
            yield* Fiber.interrupt(fiber)
            yield* Deferred.succeed(gone, undefined)
            yield* attempt
            return undefined
          }
          if (!atPack) yield* Deferred.await(gone)
          const error = yield* Effect.flip(attempt)
          tensorBytes(received)!.fill(0xee)
          yield* attempt
          assert.deepStrictEqual([...tensorBytes(received)!], [11, 12, 17, 18, 23, 24, 29, 30])
          return error
        })
      )
      const error = outcomes[0]!
      assert.include(error.message, "Rank 1 was interrupted")
      assert.deepStrictEqual(error.ranks, [1])
    })

  it.live("while it waits for the others to agree", () => interruptedAt(true, false), 30_000)
  it.live("while it packs", () => interruptedAt(false, true), 30_000)
})

describe("lists of operations", () => {
  it.live("a batch that was run before is recognised, until its memory is freed", () =>
    Effect.gen(function* () {
      yield* runCluster({ size: 2 }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const engine = yield* TensorEngine
          const scope = yield* Scope.make()
          const tensor = yield* Scope.provide(filled([7], rank * 100), scope)
          const ops: ReadonlyArray<CopyOp> = [
            rank === 0
              ? { _tag: "SendOp", tensor, destRank: 1, taskId: 3, part: 0, paramName: "a" }
              : { _tag: "RecvOp", tensor, srcRank: 0, taskId: 3, part: 0, paramName: "a" }
          ]
          const other = yield* engine.allocate("uint8", [2])
          yield* service.submitAll(ops)
          assert.isFalse((yield* service.run()).reusedProgram)
          for (const round of [1, 2]) {
            if (rank === 0) yield* engine.fill(tensor, round)
            yield* service.submitAll(ops)
            assert.isTrue((yield* service.run()).reusedProgram)
            assert.deepStrictEqual([...tensorBytes(tensor)!], new Array(7).fill(round))
          }
          // A list and single operations together are another batch; the list itself stays as it is.
          yield* service.submitAll(ops)
          yield* rank === 0 ? service.submitSend(other, 1, 4) : service.submitRecv(other, 0, 4)
          assert.strictEqual((yield* service.run()).remoteOps, 2)
          assert.strictEqual(ops.length, 1)
          yield* service.submitAll(ops)
          assert.strictEqual((yield* service.run()).remoteOps, 1)
          if (rank === 0) yield* Scope.close(scope, Exit.void)
          yield* service.submitAll(ops)
          const error = yield* Effect.flip(service.run())
          assert.deepStrictEqual([error.reason._tag, error.reason.rank], ["InvalidTensor", 0])
          yield* Scope.close(scope, Exit.void)
        })
      )
    })
  )

  it.live("what stays within a rank is copied while the rest travels", () =>
    Effect.gen(function* () {
      const started = yield* Deferred.make<void>()
      const copied = yield* Deferred.make<void>()
      // Each side waits for the other, so that neither may wait for the other's end.
      const driver = startingBy("patient", () =>
        Effect.as(Deferred.succeed(started, undefined), {
          isComplete: Deferred.isDone(copied),
          await: Deferred.await(copied),
          cancel: Effect.void,
          movedBytes: Effect.succeed(0)
        })
      )
      const engine = Layer.effect(
        TensorEngine,
        Effect.sync(() => {
          const reference = ReferenceEngine.make()
          return TensorEngine.of({
            ...reference,
            copy: (moves) =>
              Deferred.await(started).pipe(
                Effect.andThen(reference.copy(moves)),
                Effect.andThen(Deferred.succeed(copied, undefined)),
                Effect.asVoid
              )
          })
        })
      )
      yield* runCluster({ size: 1, driver: () => driver, engine }, () =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const source = yield* filled([5], 9)
          const destination = yield* filled([5], 0)
          yield* service.submitSend(source, 0, 1)
          yield* service.submitRecv(destination, 0, 1)
          yield* service.run()
          assert.deepStrictEqual([...tensorBytes(destination)!], [9, 10, 11, 12, 13])
        })
      )
    })
  )
})
