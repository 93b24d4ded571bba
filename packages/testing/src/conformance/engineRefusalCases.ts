// SPDX-License-Identifier: Apache-2.0
/**
 * Cases of requests that a `TensorEngine` must refuse, each before any byte moves.
 */

import { TensorEngine, type TensorReason } from "@tensorferry/core/service/TensorEngine"
import { type Move, type Tensor, transposeTensor } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { check, expectFailure, type TensorEngineCase } from "./Case.ts"
import { expectElements, expectPoison, patternFor, place, setElements, viewOf } from "./memory.ts"

/** Refuses a batch in which a good move stands before the bad one; neither destination is touched. */
const refuses = Effect.fnUntraced(function* (what: string, bad: Move, reasons: ReadonlyArray<TensorReason["_tag"]>) {
  const engine = yield* TensorEngine
  const src = yield* place("uint8", [9])
  const dst = yield* place("uint8", [9])
  yield* setElements(src, patternFor(src.tensor, 1))
  const good: Move = { dst: dst.tensor, src: src.tensor }
  const error = yield* expectFailure(what, engine.copy([good, bad]), reasons)
  yield* check(
    error.reason.detail.length > 0 && error.reason.remedy.length > 0,
    () => `${what}: the error must say what happened and what to do.`
  )
  yield* expectPoison(`${what}: the other move of the batch`, dst)
})

/** Strides with which elements of a tensor of shape [4, 6] share memory: rows, columns, and rows that run into the next. */
export const sharingStrides: ReadonlyArray<ReadonlyArray<number>> = [
  [0, 1],
  [1, 0],
  [5, 1],
  [2, 3]
]

const freedTensor = Effect.gen(function* () {
  const engine = yield* TensorEngine
  const scope = yield* Scope.make()
  const tensor = yield* Scope.provide(engine.allocate("float32", [2, 3]), scope)
  yield* Scope.close(scope, Exit.void)
  return tensor
})

const scoped = (name: string, program: TensorEngineCase["program"]): TensorEngineCase => ({
  name,
  program: Effect.scoped(program)
})

/** What an engine refuses before it touches a byte. */
export const engineRefusalCases: ReadonlyArray<TensorEngineCase> = [
  scoped(
    "refuses unequal shapes, broadcasts included",
    Effect.gen(function* () {
      for (const [to, from] of [
        [
          [3, 4],
          [1, 4]
        ],
        [[3, 4], [4]],
        [[4], [3]],
        [[3], [4]],
        [
          [2, 3],
          [3, 2]
        ],
        [[1], []],
        [[6], [2, 3]]
      ] as const) {
        const dst = yield* place("float32", to)
        const src = yield* place("float32", from)
        yield* refuses(`[${from}] into [${to}]`, { dst: dst.tensor, src: src.tensor }, ["InvalidRequest"])
        yield* expectPoison("The destination", dst)
      }
    })
  ),
  scoped(
    "refuses freed storage",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const live = yield* place("float32", [2, 3])
      const freed = yield* freedTensor
      yield* refuses("A freed source", { dst: live.tensor, src: freed }, ["FreedStorage"])
      yield* refuses("A freed destination", { dst: freed, src: live.tensor }, ["FreedStorage"])
      yield* expectPoison("The destination", live)
      yield* expectFailure("Filling freed storage", engine.fill(freed, 0), ["FreedStorage"])
    })
  ),
  scoped(
    "refuses views that leave their storage",
    Effect.gen(function* () {
      const live = yield* place("uint8", [8])
      const outside = (changes: Partial<Tensor>): Tensor => ({ ...live.tensor, ...changes })
      for (const [what, tensor] of [
        ["A long view", outside({ shape: [100_000], strides: [1] })],
        ["Strides that leave the storage", outside({ strides: [100_000] })],
        ["An offset behind the end", outside({ byteOffset: live.whole.storage.byteLength - 3 })]
      ] as const) {
        const other = yield* place("uint8", tensor.shape)
        yield* refuses(`${what} as source`, { dst: other.tensor, src: tensor }, ["InvalidRequest"])
        yield* refuses(`${what} as destination`, { dst: tensor, src: other.tensor }, ["InvalidRequest"])
      }
      yield* expectPoison("The storage", live)
    })
  ),
  scoped(
    "refuses destinations whose elements share memory",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("float32", [4, 6])
      const dst = yield* place("float32", [4, 6])
      for (const strides of sharingStrides) {
        const shared = { ...dst.tensor, strides }
        yield* refuses(`Strides [${strides}]`, { dst: shared, src: src.tensor }, ["InvalidRequest"])
        if (engine.capabilities.reduce) {
          const reduced = engine.reduce(shared, [src.tensor, src.tensor], "sum")
          yield* expectFailure(`A sum with strides [${strides}]`, reduced, ["InvalidRequest"])
        }
      }
      yield* expectPoison("The destination", dst)
      // Rows of 3 and steps of 2 interleave without meeting; what is only read may share.
      yield* setElements(src, patternFor(src.tensor, 3))
      const woven = yield* viewOf(dst.whole.storage, "float32", [3, 2], {
        strides: [2, 3],
        byteOffset: dst.tensor.byteOffset
      })
      const expanded = { ...src.tensor, shape: [3, 2], strides: [0, 1] }
      yield* engine.copy([{ dst: woven, src: expanded }])
    })
  ),
  scoped(
    "refuses conversions of opaque types",
    Effect.gen(function* () {
      for (const [to, from] of [
        ["float32", "float4_e2m1fn"],
        ["float8_e4m3fnuz", "float32"],
        ["complex64", "float64"],
        ["float8_e5m2fnuz", "float8_e4m3fnuz"]
      ] as const) {
        const dst = yield* place(to, [8])
        const src = yield* place(from, [8])
        yield* refuses(`${from} to ${to}`, { dst: dst.tensor, src: src.tensor }, ["Unsupported", "InvalidRequest"])
        yield* expectPoison("The destination", dst)
      }
    })
  ),
  scoped(
    "refuses sub-byte regions that cut a byte",
    Effect.gen(function* () {
      const src = yield* place("float4_e2m1fn", [4, 6])
      const dst = yield* place("float4_e2m1fn", [4, 3])
      const odd = yield* viewOf(src.tensor.storage, "float4_e2m1fn", [4, 3], {
        strides: [6, 1],
        byteOffset: src.tensor.byteOffset
      })
      yield* refuses("Three of six elements", { dst: dst.tensor, src: odd }, ["InvalidRequest", "Unsupported"])
      const square = yield* place("float4_e2m1fn", [4, 4])
      const other = yield* place("float4_e2m1fn", [4, 4])
      const turned = transposeTensor(square.tensor, 0, 1)
      yield* refuses("Transposed", { dst: other.tensor, src: turned }, ["InvalidRequest", "Unsupported"])
      yield* expectPoison("The destination", dst)
    })
  ),
  scoped(
    "refuses operands of a reduction that do not fit",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      if (!engine.capabilities.reduce) return
      const dst = yield* place("float32", [2, 3])
      const good = yield* place("float32", [2, 3])
      const short = yield* place("float32", [2, 2])
      const other = yield* place("float64", [2, 3])
      const freed = yield* freedTensor
      for (const [what, tensor, reasons] of [
        ["An operand of another shape", short.tensor, ["InvalidRequest"]],
        ["An operand of another type", other.tensor, ["InvalidRequest", "Unsupported"]],
        ["A freed operand", freed, ["FreedStorage"]]
      ] as const) {
        yield* expectFailure(what, engine.reduce(dst.tensor, [good.tensor, tensor], "sum"), reasons)
      }
      yield* expectFailure("No operands", engine.reduce(dst.tensor, [], "sum"), ["InvalidRequest"])
      yield* expectPoison("The destination", dst)
    })
  ),
  scoped(
    "refuses shapes that are not natural numbers",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      for (const shape of [[-1], [1.5], [Number.NaN], [2 ** 40, 2 ** 40]]) {
        yield* expectFailure(`Allocating [${shape}]`, Effect.scoped(engine.allocate("uint8", shape)), [
          "InvalidRequest",
          "OutOfMemory"
        ])
      }
    })
  ),
  scoped(
    "works after a refusal",
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const src = yield* place("float32", [5])
      const dst = yield* place("float32", [5])
      const short = yield* place("float32", [4])
      yield* setElements(src, patternFor(src.tensor, 6))
      yield* expectFailure("Unequal shapes", engine.copy([{ dst: short.tensor, src: src.tensor }]), ["InvalidRequest"])
      yield* engine.copy([{ dst: dst.tensor, src: src.tensor }])
      yield* expectElements("A copy after a refused one", dst, patternFor(src.tensor, 6))
    })
  )
]
