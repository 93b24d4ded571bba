// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `CopyService` over several runs: new contents and memory, programs used again, fences, reports, interruption.
 */

import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import * as Deferred from "effect/Deferred"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { type CopyCase, check, checkEqual, expectFailure } from "./Case.ts"
import { setElements } from "./memory.ts"
import {
  allocateHalves,
  allToAll,
  fillHalves,
  judgeHalves,
  runTransfers,
  submitHalves,
  type Transfer,
  transferBytes,
  worksAfterwards
} from "./transfers.ts"

const exchange: ReadonlyArray<Transfer> = [
  { from: 0, to: 1, taskId: 0, shape: [101, 7], sendForm: "transposed" },
  { from: 0, to: 1, taskId: 1, shape: [17], dtype: "float32" },
  { from: 1, to: 0, taskId: 2, shape: [4001], recvForm: "spread" },
  { from: 1, to: 1, taskId: 3, shape: [5] }
]

const bytesOf = (transfers: ReadonlyArray<Transfer>): number =>
  transfers.reduce((sum, transfer) => sum + transferBytes(transfer), 0)

/** Runs behind one another, with other contents, memory and batches. */
const repeats: ReadonlyArray<CopyCase> = [
  {
    name: "three rounds with changed contents",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const halves = yield* allocateHalves(rank, exchange)
          for (let round = 0; round < 3; round++) {
            yield* fillHalves(halves, round)
            yield* submitHalves(halves)
            const report = yield* service.run()
            yield* judgeHalves(halves, round)
            yield* checkEqual(`Round ${round} reuses the program`, report.reusedProgram, round > 0)
          }
        })
      )
  },
  {
    name: "three rounds with new memory",
    size: 2,
    program: (rank) =>
      Effect.gen(function* () {
        for (let round = 0; round < 3; round++) {
          const report = yield* Effect.scoped(runTransfers(rank, exchange, { round }))
          yield* checkEqual(`Round ${round} reuses a program for other memory`, report.reusedProgram, false)
        }
      })
  },
  {
    name: "new memory on one rank alone",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const kept = yield* allocateHalves(rank, exchange)
          for (let round = 0; round < 3; round++) {
            yield* Effect.scoped(
              Effect.gen(function* () {
                const halves = rank === 0 ? kept : yield* allocateHalves(rank, exchange)
                yield* fillHalves(halves, round)
                yield* submitHalves(halves)
                yield* service.run()
                yield* judgeHalves(halves, round)
              })
            )
          }
        })
      )
  },
  {
    name: "different batches one after the other",
    size: 3,
    program: (rank) =>
      Effect.gen(function* () {
        yield* Effect.scoped(runTransfers(rank, allToAll(3)))
        yield* Effect.scoped(runTransfers(rank, [{ from: 2, to: 0, taskId: 0, shape: [9] }], { round: 1 }))
        yield* Effect.scoped(runTransfers(rank, [], { round: 2 }))
        yield* Effect.scoped(runTransfers(rank, allToAll(3), { round: 3 }))
      })
  }
]

/** What a run says of itself. */
const reporting: ReadonlyArray<CopyCase> = [
  {
    name: "the report tells what moved",
    size: 3,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const group = yield* ProcessGroup
          const transfers: ReadonlyArray<Transfer> = [
            ...exchange,
            { from: 0, to: 2, taskId: 9, shape: [0] },
            { from: 2, to: 1, taskId: 10, shape: [33, 3], dtype: "int16" }
          ]
          const report = yield* runTransfers(rank, transfers)
          const local = transfers.filter(({ from, to }) => from === rank && to === rank)
          const sent = transfers.filter(({ from, to }) => from === rank && to !== rank)
          const received = transfers.filter(({ from, to }) => from !== rank && to === rank)
          yield* checkEqual("rank of the report", report.rank, rank)
          yield* checkEqual("rank of the service", service.rank, rank)
          yield* checkEqual("worldSize", service.worldSize, group.size)
          yield* checkEqual("backend", report.backend, service.backend)
          yield* checkEqual("localOps", report.localOps, local.length)
          yield* checkEqual("localBytes", report.localBytes, bytesOf(local))
          yield* checkEqual("remoteOps", report.remoteOps, sent.length + received.length)
          yield* checkEqual("remoteBytesSent", report.remoteBytesSent, bytesOf(sent))
          yield* checkEqual("remoteBytesReceived", report.remoteBytesReceived, bytesOf(received))
          const peers = [...new Set([...sent.map(({ to }) => to), ...received.map(({ from }) => from)])].sort()
          yield* checkEqual("peers", report.peers.map(({ peer }) => peer).join(), peers.join())
          for (const { peer, bytesSent, bytesReceived, path, reason } of report.peers) {
            yield* checkEqual(`bytes sent to ${peer}`, bytesSent, bytesOf(sent.filter(({ to }) => to === peer)))
            yield* checkEqual(
              `bytes received from ${peer}`,
              bytesReceived,
              bytesOf(received.filter(({ from }) => from === peer))
            )
            yield* check(
              path.length > 0 && reason.length > 0,
              () => `The path to rank ${peer} and its reason are empty.`
            )
          }
          for (const [phase, time] of Object.entries(report.phases)) {
            yield* check(Number.isFinite(time) && time >= 0, () => `Phase ${phase} took ${time} seconds.`)
          }
        })
      )
  },
  {
    name: "progress grows to the total",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const seen: Array<readonly [number, number]> = []
          yield* runTransfers(rank, exchange, {
            run: { onProgress: (moved, total) => Effect.sync(() => void seen.push([moved, total])) }
          })
          const total = bytesOf(exchange.filter(({ to }) => to === rank))
          yield* check(seen.length > 0, () => "No progress was reported.")
          for (const [at, [moved, of]] of seen.entries()) {
            const before = seen[at - 1]?.[0] ?? 0
            yield* check(
              moved >= before && moved <= of && of === total,
              () => `Progress went from ${before} to ${moved} of ${of}; the rank receives ${total} bytes.`
            )
          }
          yield* checkEqual("The last progress", seen.at(-1)![0], total)
        })
      )
  }
]

/** What a run waits for, and how it ends early. */
const interruptions: ReadonlyArray<CopyCase> = [
  {
    name: "waits for what fills the sources",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const halves = yield* allocateHalves(rank, exchange)
          yield* fillHalves(halves, 1)
          // The sources get their contents only while the fence is awaited.
          yield* Effect.forEach(
            halves.sends,
            ({ placed, transfer }) => setElements(placed, new Uint8Array(transferBytes(transfer))),
            { discard: true }
          )
          yield* submitHalves(halves)
          const context = yield* Effect.context<Effect.Services<ReturnType<typeof fillHalves>>>()
          const filled = Effect.gen(function* () {
            for (let turn = 0; turn < 5; turn++) yield* Effect.yieldNow
            yield* Effect.orDie(fillHalves({ sends: halves.sends, recvs: [] }, 1))
          }).pipe(Effect.provideContext(context))
          yield* service.run({ after: [{ await: filled }] })
          yield* judgeHalves(halves, 1)
        })
      )
  },
  {
    name: "refuses a second run while one is in progress",
    size: 1,
    program: () =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const filled = yield* Deferred.make<void>()
          const first = yield* Effect.forkChild(service.run({ after: [{ await: Deferred.await(filled) }] }), {
            startImmediately: true
          })
          yield* expectFailure("A second run", service.run(), ["Busy"])
          yield* Deferred.succeed(filled, undefined)
          yield* Fiber.join(first)
          yield* worksAfterwards(0, 1)
        })
      )
  },
  {
    name: "an interrupted run leaves a service that works",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const halves = yield* allocateHalves(rank, exchange)
          yield* fillHalves(halves, 1)
          yield* submitHalves(halves)
          const never = { await: Effect.never }
          const run = yield* Effect.forkChild(service.run({ after: [never] }), { startImmediately: true })
          yield* Fiber.interrupt(run)
          yield* worksAfterwards(rank, 2)
        })
      )
  },
  {
    name: "a rank that is interrupted fails the others' run, and the next one works",
    size: 3,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const transfers = allToAll(3, 50)
          yield* runTransfers(rank, transfers)
          const halves = yield* allocateHalves(rank, transfers)
          yield* fillHalves(halves, 1)
          yield* submitHalves(halves)
          const run = yield* Effect.forkChild(service.run(), { startImmediately: true })
          if (rank === 1) {
            yield* Fiber.interrupt(run)
          } else {
            const error = yield* expectFailure("The run with an interrupted rank", Fiber.join(run), [
              "TransferFailed",
              "PeerGone",
              "DeadlineExceeded"
            ])
            yield* check(
              error.ranks.includes(1),
              () => `The error is about ranks [${error.ranks.join(",")}], not the interrupted one: ${error.message}`
            )
          }
          yield* worksAfterwards(rank, 3)
        })
      )
  }
]

/** Copies over and over, after failures, and at the end of a service. */
export const copyLifecycleCases: ReadonlyArray<CopyCase> = [...repeats, ...reporting, ...interruptions]
