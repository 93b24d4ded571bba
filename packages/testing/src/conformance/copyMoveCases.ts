// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of `CopyService` in which bytes move: who talks to whom, and in which forms tensors lie.
 */

import { byteLengthOf, dtypes, isSubByte } from "@tensorferry/core/base/DType"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import { type CopyCase, checkEqual } from "./Case.ts"
import { expectElements, patternBytes, place, setElements, viewOf } from "./memory.ts"
import {
  allocateHalves,
  allToAll,
  fillHalves,
  judgeHalves,
  runTransfers,
  submitHalves,
  type Transfer
} from "./transfers.ts"

const moves = (name: string, size: number, transfers: ReadonlyArray<Transfer>): CopyCase => ({
  name,
  size,
  program: (rank) => Effect.asVoid(Effect.scoped(runTransfers(rank, transfers)))
})

const acceptsUnnumbered: NonNullable<CopyCase["requires"]> = (capabilities) =>
  capabilities.requiresTaskId ? "the backend needs a task id for every operation" : undefined

const oddSizes = [1, 2, 3, 7, 63, 64, 65, 255, 256, 257, 4095, 4096, 4097, 65_535, 65_536, 65_537]

/** Who sends to whom. */
const patterns: ReadonlyArray<CopyCase> = [
  moves("moves one tensor", 2, [{ from: 0, to: 1, taskId: 1, shape: [7, 5] }]),
  moves("moves one byte", 2, [
    { from: 0, to: 1, taskId: 1, shape: [1] },
    { from: 1, to: 0, taskId: 2, shape: [] }
  ]),
  moves("both ranks send first", 2, [
    { from: 0, to: 1, taskId: 0, shape: [100_003] },
    { from: 1, to: 0, taskId: 1, shape: [100_019] }
  ]),
  moves("all to all", 3, allToAll(3)),
  moves("all to all of four ranks", 4, allToAll(4)),
  moves("all to all in rings", 4, [
    ...Array.from({ length: 4 }, (_, rank) => ({ from: rank, to: (rank + 1) % 4, taskId: rank, shape: [1009] })),
    ...Array.from({ length: 4 }, (_, rank) => ({ from: rank, to: (rank + 3) % 4, taskId: 10 + rank, shape: [13, 3] }))
  ]),
  moves("more senders than receivers", 4, [
    { from: 1, to: 0, taskId: 0, shape: [17] },
    { from: 2, to: 0, taskId: 1, shape: [4099] },
    { from: 3, to: 0, taskId: 2, shape: [3, 3] },
    { from: 3, to: 1, taskId: 3, shape: [5] }
  ]),
  moves("one rank sends to all", 4, [
    { from: 0, to: 0, taskId: 0, shape: [31] },
    { from: 0, to: 1, taskId: 1, shape: [31] },
    { from: 0, to: 2, taskId: 2, shape: [4, 8] },
    { from: 0, to: 3, taskId: 3, shape: [2, 3, 5], recvForm: "transposed" }
  ]),
  {
    name: "idle ranks take part",
    size: 3,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const report = yield* runTransfers(rank, [{ from: 0, to: 2, taskId: 9, shape: [1021] }])
          if (rank !== 1) return
          yield* checkEqual("Operations of the idle rank", report.localOps + report.remoteOps + report.messages, 0)
          yield* checkEqual("Bytes of the idle rank", report.remoteBytesReceived + report.remoteBytesSent, 0)
          yield* checkEqual("Peers of the idle rank", report.peers.length, 0)
        })
      )
  },
  {
    name: "runs with nothing to do",
    size: 2,
    program: () =>
      Effect.gen(function* () {
        const service = yield* CopyService
        for (let round = 0; round < 3; round++) {
          const report = yield* service.run()
          yield* checkEqual("Messages", report.messages, 0)
        }
      })
  }
]

/** What tensors look like, and how operations meet. */
const forms: ReadonlyArray<CopyCase> = [
  moves("copies to itself", 1, [
    { from: 0, to: 0, taskId: 3, shape: [7, 5], sendForm: "transposed", recvForm: "padded" },
    { from: 0, to: 0, taskId: 3, part: 1, shape: [7, 5] },
    { from: 0, to: 0, taskId: 4, shape: [0] }
  ]),
  moves("self copies beside transfers", 2, [
    { from: 0, to: 0, taskId: 0, shape: [19] },
    { from: 0, to: 1, taskId: 1, shape: [19] },
    { from: 1, to: 1, taskId: 2, shape: [19] },
    { from: 1, to: 0, taskId: 3, shape: [19] }
  ]),
  moves(
    "strided and transposed regions",
    2,
    (["dense", "padded", "transposed", "spread"] as const).flatMap((sendForm, a) =>
      (["dense", "padded", "transposed", "spread"] as const).flatMap((recvForm, b) =>
        (["uint8", "float32"] as const).map((dtype, c) => ({
          from: (a + b) % 2,
          to: (a + b + 1) % 2,
          taskId: a * 8 + b * 2 + c,
          dtype,
          shape: [5, 7],
          sendForm,
          recvForm
        }))
      )
    )
  ),
  {
    name: "transposed views and column slices arrive in logical order",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const numbers = Uint8Array.from({ length: 16 }, (_, at) => at)
          if (rank === 0) {
            const x = yield* place("uint8", [4, 4])
            yield* setElements(x, numbers)
            const columns = yield* viewOf(x.tensor.storage, "uint8", [4, 2], {
              strides: [4, 1],
              byteOffset: x.tensor.byteOffset + 1
            })
            yield* service.submitSend(transposeTensor(x.tensor, 0, 1), 1, 0)
            yield* service.submitSend(columns, 1, 1)
            yield* service.submitSend(x.tensor, 1, 2)
            yield* service.run()
            return
          }
          const turned = yield* place("uint8", [4, 4])
          const columns = yield* place("uint8", [4, 2])
          const into = yield* place("uint8", [4, 4])
          yield* service.submitRecv(turned.tensor, 0, 0)
          yield* service.submitRecv(columns.tensor, 0, 1)
          yield* service.submitRecv(transposeTensor(into.tensor, 0, 1), 0, 2)
          yield* service.run()
          const transposed = numbers.map((_, at) => (at % 4) * 4 + Math.floor(at / 4))
          yield* expectElements("x.T", turned, transposed)
          yield* expectElements("x[:, 1:3]", columns, Uint8Array.from([1, 2, 5, 6, 9, 10, 13, 14]))
          yield* expectElements("x received into a transposed view", into, transposed)
        })
      )
  },
  moves("zero-size tensors", 2, [
    { from: 0, to: 1, taskId: 0, shape: [0] },
    { from: 0, to: 1, taskId: 1, shape: [1, 0, 2] },
    { from: 0, to: 1, taskId: 2, shape: [3] },
    { from: 1, to: 0, taskId: 3, shape: [0, 5], dtype: "float32", sendForm: "transposed" },
    { from: 0, to: 0, taskId: 4, shape: [2, 0] }
  ]),
  moves("only zero-size tensors", 2, [{ from: 0, to: 1, taskId: 0, shape: [0], dtype: "bfloat16" }]),
  moves(
    "three rows over four ranks, one of them empty",
    4,
    [1, 1, 1, 0].map((rows, to) => ({ from: 0, to, taskId: to, shape: [rows, 7] }))
  ),
  moves("parts of one task", 2, [
    { from: 0, to: 1, taskId: 7, part: 0, shape: [33] },
    { from: 0, to: 1, taskId: 7, part: 1, shape: [33] },
    { from: 0, to: 1, taskId: 7, part: 2, shape: [3], dtype: "float32" },
    { from: 0, to: 1, taskId: 8, part: 1, shape: [33] },
    { from: 1, to: 1, taskId: 7, part: 0, shape: [33] },
    { from: 1, to: 1, taskId: 7, part: 1, shape: [33] }
  ]),
  {
    name: "task ids decide, not the order of submission",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.asVoid(
          runTransfers(
            rank,
            Array.from({ length: 9 }, (_, at) => ({
              from: at % 2,
              to: (at + 1) % 2,
              taskId: 100 - at,
              shape: [12]
            })),
            { order: { reverse: rank === 1 } }
          )
        )
      )
  },
  {
    name: "operations without task id meet in order",
    size: 2,
    requires: acceptsUnnumbered,
    program: (rank) =>
      Effect.scoped(
        Effect.asVoid(
          runTransfers(rank, [
            { from: 0, to: 1, shape: [11] },
            { from: 0, to: 1, shape: [11] },
            { from: 1, to: 0, shape: [11] },
            { from: 0, to: 1, taskId: 0, shape: [11] },
            { from: 0, to: 1, shape: [4] },
            { from: 1, to: 1, shape: [6] },
            { from: 1, to: 1, shape: [6] }
          ])
        )
      )
  }
]

/** Batches and messages at the limits of staging, and memory around destinations. */
const limits: ReadonlyArray<CopyCase> = [
  moves("messages longer than staging", 2, [
    { from: 0, to: 1, taskId: 0, shape: [1031, 257] },
    { from: 1, to: 0, taskId: 1, shape: [70_001], dtype: "float32", sendForm: "spread" },
    { from: 0, to: 1, taskId: 2, shape: [5, 70_003], recvForm: "padded" },
    { from: 0, to: 1, taskId: 3, shape: [300_007, 1], sendForm: "transposed" },
    { from: 1, to: 0, taskId: 4, shape: [2] }
  ]),
  moves(
    "odd sizes",
    2,
    oddSizes.map((length, at) => ({ from: at % 2, to: (at + 1) % 2, taskId: at, shape: [length] }))
  ),
  moves(
    "many small transfers",
    2,
    Array.from({ length: 400 }, (_, at) => ({ from: at % 2, to: (at >> 1) % 2, taskId: at, shape: [1 + (at % 11)] }))
  ),
  moves(
    "every element type",
    2,
    dtypes.map((dtype, at) => ({
      from: at % 2,
      to: (at + 1) % 2,
      taskId: at,
      dtype,
      shape: [5, 8],
      ...(isSubByte(dtype) ? {} : { recvForm: "padded" as const })
    }))
  ),
  {
    name: "writes nothing outside of destinations",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          if (rank === 0) {
            const source = yield* place("int16", [6])
            yield* setElements(source, patternBytes(12, 1))
            yield* service.submitSend(source.tensor, 1, 5)
            yield* service.run()
            return
          }
          const matrix = yield* place("int16", [6, 9])
          const column = yield* viewOf(matrix.tensor.storage, "int16", [6], {
            strides: [9],
            byteOffset: matrix.tensor.byteOffset + 4 * byteLengthOf("int16", 1)
          })
          yield* service.submitRecv(column, 0, 5)
          yield* service.run()
          yield* expectElements("One column", { ...matrix, tensor: column }, patternBytes(12, 1))
        })
      )
  },
  {
    name: "sources may change as soon as run has ended",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const engine = yield* TensorEngine
          const halves = yield* allocateHalves(rank, [
            { from: 0, to: 1, taskId: 0, shape: [40_009] },
            { from: 1, to: 0, taskId: 1, shape: [40_013], sendForm: "spread" }
          ])
          yield* fillHalves(halves, 1)
          yield* submitHalves(halves)
          yield* service.run()
          yield* Effect.forEach(halves.sends, ({ placed }) => engine.fill(placed.whole, 0), { discard: true })
          yield* judgeHalves({ sends: [], recvs: halves.recvs }, 1)
        })
      )
  }
]

/** Bytes of every pattern, shape and stride arrive in their place. */
export const copyMoveCases: ReadonlyArray<CopyCase> = [...patterns, ...forms, ...limits]
