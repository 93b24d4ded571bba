// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of batches that `CopyService` must refuse: the named error on every rank before any byte moves, an empty queue,
 * and a next run that works.
 */

import type { Rank } from "@tensorferry/core/base/Ids"
import { type CopyError, CopyService, copyError } from "@tensorferry/core/service/CopyService"
import { type Fence, TensorEngine, tensorError } from "@tensorferry/core/service/TensorEngine"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { type CopyCase, check, checkEqual } from "./Case.ts"
import { sharingStrides } from "./engineRefusalCases.ts"
import { type Placed, place } from "./memory.ts"
import { allocateHalves, refusedThenWorks, submitHalves, type Transfer, worksAfterwards } from "./transfers.ts"

/** Submits the rank's halves of the list; the receives are what must stay untouched. */
const submitList = (rank: Rank, transfers: ReadonlyArray<Transfer>) =>
  Effect.gen(function* () {
    const halves = yield* allocateHalves(rank, transfers)
    yield* submitHalves(halves)
    return halves.recvs.map(({ placed }) => placed)
  })

/** A transfer whose ends state different things. */
const unequal = (
  name: string,
  send: Pick<Transfer, "shape" | "dtype">,
  recv: Pick<Transfer, "shape" | "dtype">,
  named: ReadonlyArray<string>
): CopyCase => ({
  name,
  size: 2,
  program: (rank) =>
    Effect.scoped(
      Effect.asVoid(
        refusedThenWorks(
          rank,
          2,
          ["Mismatch"],
          Effect.gen(function* () {
            const service = yield* CopyService
            const good = yield* submitList(rank, [{ from: 1, to: 0, taskId: 1, shape: [4] }])
            const half = rank === 0 ? send : recv
            const placed = yield* place(half.dtype ?? "bfloat16", half.shape)
            if (rank === 0) yield* service.submitSend(placed.tensor, 1, 41, { paramName: "layer.weight" })
            else yield* service.submitRecv(placed.tensor, 0, 41)
            return [...good, placed]
          }),
          { named: [...named, "task 41", "layer.weight"], ranks: [0, 1] }
        )
      )
    )
})

const nothing: ReadonlyArray<Placed> = []

/** Operations whose other half is missing or has another shape. */
const unpaired: ReadonlyArray<CopyCase> = [
  {
    name: "names a missing partner on every rank",
    size: 3,
    program: (rank) =>
      Effect.scoped(
        Effect.asVoid(
          refusedThenWorks(
            rank,
            3,
            ["PartnerMissing"],
            Effect.gen(function* () {
              const service = yield* CopyService
              const tensor = yield* place("uint8", [5])
              if (rank === 0) yield* service.submitSend(tensor.tensor, 2, 77, { paramName: "layer.bias" })
              return [tensor]
            }),
            { named: ["task 77", "layer.bias"], ranks: [0, 2] }
          )
        )
      )
  },
  {
    name: "lists every unpaired operation",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const error = yield* refusedThenWorks(
            rank,
            2,
            ["PartnerMissing"],
            Effect.gen(function* () {
              const service = yield* CopyService
              const [a, b, x] = yield* Effect.all([place("uint8", [3]), place("uint8", [3]), place("uint8", [3])])
              if (rank === 0) {
                yield* service.submitSend(a.tensor, 1, 1, { paramName: "a" })
                yield* service.submitRecv(x.tensor, 1, 3, { paramName: "x" })
              } else {
                yield* service.submitRecv(a.tensor, 0, 1, { paramName: "a" })
                yield* service.submitRecv(b.tensor, 0, 2, { paramName: "b" })
              }
              return [a, b, x]
            })
          )
          const names = ["task 2", "task 3"].filter((name) => error.message.includes(name))
          yield* check(names.length > 0, () => `No unpaired task is named: ${error.message}`)
          yield* check(!error.message.includes("task 1 "), () => `A paired task is named: ${error.message}`)
        })
      )
  },
  unequal("refuses a receiver shorter than the sender", { shape: [2, 4] }, { shape: [2, 2] }, ["[2,4]", "[2,2]"]),
  unequal("refuses a receiver longer than the sender", { shape: [2, 4] }, { shape: [2, 8] }, ["[2,4]", "[2,8]"]),
  unequal("refuses equal bytes of another shape", { shape: [4, 2] }, { shape: [2, 4] }, ["[4,2]", "[2,4]"]),
  unequal(
    "refuses equal widths of another element type",
    { shape: [4], dtype: "bfloat16" },
    { shape: [4], dtype: "float16" },
    ["bfloat16", "float16"]
  ),
  unequal("refuses an empty receiver", { shape: [3] }, { shape: [0] }, ["[3]", "[0]"])
]

/** Operations that name what is not there, or the same thing twice. */
const misnamed: ReadonlyArray<CopyCase> = [
  {
    name: "refuses two operations of one identity",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.asVoid(
          refusedThenWorks(
            rank,
            2,
            ["DuplicateTask"],
            submitList(
              rank,
              [5, 5].map((taskId) => ({ from: 0, to: 1, taskId, shape: [3] }))
            ),
            { named: ["task 5"] }
          )
        )
      )
  },
  {
    name: "refuses unknown ranks",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (const wrong of [2, -1, 0.5]) {
            yield* refusedThenWorks(
              rank,
              2,
              ["UnknownRank"],
              Effect.gen(function* () {
                const service = yield* CopyService
                const tensor = yield* place("uint8", [5])
                if (rank === 0) yield* service.submitRecv(tensor.tensor, wrong, 6)
                return [tensor]
              })
            )
          }
        })
      )
  },
  {
    name: "refuses freed storage",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (const freedSide of ["send", "recv"] as const) {
            yield* refusedThenWorks(
              rank,
              2,
              ["InvalidTensor"],
              Effect.gen(function* () {
                const service = yield* CopyService
                const scope = yield* Scope.make()
                const mine = rank === 0 ? "send" : "recv"
                const placed = yield* Scope.provide(place("uint8", [9]), scope)
                if (mine === "send") yield* service.submitSend(placed.tensor, 1, 12)
                else yield* service.submitRecv(placed.tensor, 0, 12)
                if (mine === freedSide) yield* Scope.close(scope, Exit.void)
                return nothing
              }),
              { named: ["task 12"] }
            )
          }
        })
      )
  },
  {
    name: "refuses destinations whose elements share memory",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (const strides of sharingStrides) {
            for (const from of [0, 1]) {
              yield* refusedThenWorks(
                rank,
                2,
                ["InvalidTensor"],
                Effect.gen(function* () {
                  const service = yield* CopyService
                  const placed = yield* place("float32", [4, 6])
                  // What is only sent may share memory.
                  const shared = { ...placed.tensor, strides }
                  if (rank === from) yield* service.submitSend(shared, 1, 13)
                  if (rank === 1) yield* service.submitRecv(shared, from, 13)
                  return [placed]
                }),
                { named: ["task 13"], ranks: [1] }
              )
            }
          }
        })
      )
  },
  {
    name: "refuses half of a self copy",
    size: 1,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (const half of ["send", "recv"] as const) {
            yield* refusedThenWorks(
              rank,
              1,
              ["PartnerMissing"],
              Effect.gen(function* () {
                const service = yield* CopyService
                const tensor = yield* place("uint8", [5])
                if (half === "send") yield* service.submitSend(tensor.tensor, 0, 3)
                else yield* service.submitRecv(tensor.tensor, 0, 3)
                return [tensor]
              }),
              { named: ["task 3"] }
            )
          }
        })
      )
  },
  {
    name: "refuses unequal halves of a self copy",
    size: 1,
    program: (rank) =>
      Effect.scoped(
        Effect.asVoid(
          refusedThenWorks(
            rank,
            1,
            ["Mismatch"],
            Effect.gen(function* () {
              const service = yield* CopyService
              const [a, b] = yield* Effect.all([place("uint8", [5]), place("uint8", [4])])
              yield* service.submitSend(a.tensor, 0, 3)
              yield* service.submitRecv(b.tensor, 0, 3)
              return [a, b]
            }),
            { named: ["[5]", "[4]"] }
          )
        )
      )
  }
]

/** Runs that one rank refuses or fails. */
const failing: ReadonlyArray<CopyCase> = [
  {
    name: "needs task ids where the capabilities say so",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const service = yield* CopyService
          const unnumbered = submitList(rank, [{ from: 0, to: 1, shape: [5] }])
          if (service.capabilities.requiresTaskId) {
            yield* refusedThenWorks(rank, 2, ["Unsupported"], unnumbered, { named: ["task id"] })
            return
          }
          yield* unnumbered
          const report = yield* service.run()
          yield* checkEqual("Operations without task id", report.remoteOps, 1)
        })
      )
  },
  {
    name: "fails everywhere with the failure that one rank refuses with",
    size: 3,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const refusal: CopyError = copyError("TransferFailed", [1], {
            rank: 1,
            op: "caller",
            detail: "The caller's own check failed.",
            remedy: "None."
          })
          const error = yield* refusedThenWorks(
            rank,
            3,
            ["TransferFailed"],
            submitList(rank, [{ from: 0, to: 2, taskId: 1, shape: [8] }]),
            {
              named: ["The caller's own check failed."],
              ranks: [1],
              ...(rank === 1 ? { run: { refuse: refusal } } : {})
            }
          )
          yield* checkEqual("The rank of the refusal", error.reason.rank, 1)
        })
      )
  },
  {
    name: "fails everywhere where work before it failed",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          const fence: Fence = {
            await: Effect.fail(
              tensorError("DeviceFailure", { op: "fill", detail: "The filling kernel failed.", remedy: "None." })
            )
          }
          yield* refusedThenWorks(
            rank,
            2,
            ["TransferFailed"],
            submitList(rank, [{ from: 0, to: 1, taskId: 1, shape: [8] }]),
            { named: ["The filling kernel failed."], ranks: [0], ...(rank === 0 ? { run: { after: [fence] } } : {}) }
          )
        })
      )
  },
  {
    name: "forgets the queue of a refused batch",
    size: 2,
    program: (rank) =>
      Effect.scoped(
        Effect.gen(function* () {
          for (let round = 0; round < 3; round++) {
            yield* refusedThenWorks(
              rank,
              2,
              ["PartnerMissing"],
              Effect.gen(function* () {
                const service = yield* CopyService
                const engine = yield* TensorEngine
                const tensor = yield* engine.allocate("uint8", [4])
                if (rank === round % 2) yield* service.submitSend(tensor, 1 - rank, 1000 + round)
                return nothing
              })
            )
          }
          yield* worksAfterwards(rank, 2)
        })
      )
  }
]

/** What a copy service refuses, on every rank, before a byte moves. */
export const copyRefusalCases: ReadonlyArray<CopyCase> = [...unpaired, ...misnamed, ...failing]
