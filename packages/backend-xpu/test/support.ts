// SPDX-License-Identifier: Apache-2.0
/**
 * A device, its engine and its replay slots of one driver for a test, over a fresh simulated driver; and memory as the tests
 * look at it.
 */
import { assert } from "@effect/vitest"
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import { ReplayTransferBackend, type ReplayTransferBackendShape } from "@tensorferry/core/service/ReplayTransferBackend"
import type { TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import type { NativeAnswer } from "@tensorferry/native/NativeAddon"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import type * as EffectScope from "effect/Scope"
import { type Addon, copyQueue, loadAddon } from "../src/Addon.ts"
import type { XpuOptions } from "../src/options.ts"
import * as ReplayDevice from "../src/ReplayDevice.ts"
import * as TensorEngine from "../src/TensorEngine.ts"
import { openXpu, type Xpu } from "../src/Xpu.ts"
import { assertClean, optionsOf, readMemory, resetSimulator, type Subject, writeMemory } from "./simulator.ts"

export const value = <A>(answer: NativeAnswer<A>): A =>
  answer.code === "Ok" ? answer.value : assert.fail(`${answer.code} of ${answer.op}: ${answer.detail}`)

/** The reason's tag and the native code of what must fail. */
export const failureOf = <A, E extends { readonly reason: unknown }, R>(
  effect: Effect.Effect<A, E, R>
): Effect.Effect<E["reason"], A, R> => Effect.map(Effect.flip(effect), ({ reason }) => reason)

/** Replay slots on a device; a wait fails after so long. */
export const openReplay = (
  options: XpuOptions,
  ringDepth = 2,
  deadline = Duration.seconds(10)
): Effect.Effect<ReplayTransferBackendShape, BackendError, EffectScope.Scope> =>
  Effect.map(
    Layer.build(
      replayTransferLayer(ReplayDevice.open({ family: "xpu", index: 0 }, options), {
        ringDepth,
        deadline,
        backend: "xpu"
      })
    ),
    (context) => Context.get(context, ReplayTransferBackend)
  )

export interface Rig {
  readonly addon: Addon
  readonly xpu: Xpu
  readonly engine: TensorEngineShape
  readonly replay: ReplayTransferBackendShape
  readonly options: XpuOptions
}

export interface RigOptions extends XpuOptions {
  readonly settings?: string
  readonly ringDepth?: number
  /** False where something may be left afterwards. */
  readonly isJudged?: boolean
}

/** Runs a test over a device that nobody used before; afterwards the simulated driver has nothing left or to object to. */
export const withRig = <A, E>(
  subject: Subject,
  body: (rig: Rig) => Effect.Effect<A, E, EffectScope.Scope>,
  { settings = "", ringDepth, isJudged = true, ...rest }: RigOptions = {}
) =>
  Effect.gen(function* () {
    if (subject === "level-zero") resetSimulator(settings)
    const result = yield* Effect.scoped(
      Effect.gen(function* () {
        const options = optionsOf(subject, rest)
        const addon = yield* loadAddon
        const xpu = yield* openXpu(addon, options, 0)
        const replay = yield* openReplay(options, ringDepth)
        return yield* body({ addon, xpu, engine: TensorEngine.make(xpu), replay, options })
      })
    )
    if (subject === "level-zero" && isJudged) assertClean()
    return result
  })

/** What is submitted to a queue from now on does not begin before the scope closes, or `release` runs. */
export const holdQueue = ({ addon, xpu }: Rig, queue: number = copyQueue) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.sync(() => ({ hold: value(addon.holdQueue(xpu.native, queue)), ended: false })),
      (held) =>
        Effect.sync(() => {
          if (!held.ended) addon.endHold(held.hold, false)
        })
    ),
    (held) => ({
      release: Effect.sync(() => {
        held.ended = true
        value(addon.endHold(held.hold, false))
      }),
      fail: Effect.sync(() => {
        held.ended = true
        value(addon.endHold(held.hold, true))
      })
    })
  )

/** A host tensor of the caller's own bytes. */
export const hostTensor = (engine: TensorEngineShape, bytes: Uint8Array) =>
  Effect.map(engine.wrapHost(bytes), (storage) => Result.getOrThrow(tensorView(storage, "uint8", [bytes.length])))

export const pattern = (length: number, seed: number): Uint8Array =>
  Uint8Array.from({ length }, (_, at) => (at * 31 + seed * 101 + (at >> 8) * 7) & 0xff)

export const poison = 0xd7

/** Device memory of both drivers is host memory in truth. */
export const bytesOf = (tensor: Tensor): Uint8Array =>
  Uint8Array.from(readMemory(tensor.storage.address + BigInt(tensor.byteOffset), tensorByteLength(tensor)))

/** Says whether, not where: a listing of what differs would take minutes. */
export const assertBytes = (tensor: Tensor, expected: Uint8Array): void =>
  assert.isTrue(Buffer.compare(bytesOf(tensor), expected) === 0, "the tensor has other bytes")

export const setPoison = (tensor: Tensor): void =>
  writeMemory(tensor.storage.address + BigInt(tensor.byteOffset), new Uint8Array(tensorByteLength(tensor)).fill(poison))

export const isPoison = (tensor: Tensor): boolean => bytesOf(tensor).every((byte) => byte === poison)

/** Everything that can go on has gone on a little. */
export const turns = (count = 10): Effect.Effect<void> =>
  Effect.asVoid(
    Effect.repeat(
      Effect.callback<void>((resume) => {
        setImmediate(() => resume(Effect.void))
      }),
      { times: count }
    )
  )
