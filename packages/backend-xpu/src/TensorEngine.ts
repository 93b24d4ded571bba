// SPDX-License-Identifier: Apache-2.0
/**
 * `TensorEngine` for memory of one device: strided copies and casts, fills, and digests of what comes to the host.
 *
 * Invariants: everything is checked before any byte moves; memory of the device stays while work on it runs, also when the
 * caller is interrupted or frees it meanwhile. Rows that no copy command takes, and casts, pass through host memory.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { TensorEngine, type TensorEngineShape, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { makeDigestCheck } from "@tensorferry/native/digest/DigestParts"
import { makeHostDigest } from "@tensorferry/native/digest/hostDigest"
import {
  checkedWork,
  type EngineErrors,
  makeAllocate,
  makeFillCheck,
  makeWorkAccount,
  makeWrapHost
} from "@tensorferry/native/EngineParts"
import { encodeFill } from "@tensorferry/native/MoveTable"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import type * as EffectScope from "effect/Scope"
import { backendName, loadAddon } from "./Addon.ts"
import { capabilities } from "./capabilities.ts"
import { makeChecks } from "./checks.ts"
import { refusal, tensorFailure } from "./failures.ts"
import type { XpuOptions } from "./options.ts"
import { openXpu, type Xpu } from "./Xpu.ts"

const errors: EngineErrors = { refusal, failureOf: tensorFailure }

/** An engine on an open device. */
export const make = (xpu: Xpu): TensorEngineShape => {
  const { addon } = xpu
  const checks = makeChecks(xpu)
  const { work, fence } = makeWorkAccount(errors)
  const checkFill = makeFillCheck(errors, checks.checkMove)

  const runTable = (op: string, table: BigUint64Array): Effect.Effect<void, TensorError> =>
    table.length === 0
      ? Effect.void
      : work(
          op,
          xpu.run<undefined>((done) => addon.startMoves(xpu.native, table, done))
        )

  const unsupported = (op: string, what: string) =>
    Effect.suspend(() => Effect.fail(refusal("Unsupported", op, `This engine has no ${what}.`)))

  const copy: TensorEngineShape["copy"] = (moves) =>
    checkedWork(
      () => checks.checkBatch("copy", moves),
      (table) => runTable("copy", table)
    )
  const wrapHost = makeWrapHost(errors, addon)

  return {
    name: `${backendName} on ${xpu.facts.name}`,
    deviceFamilies: [backendName],
    capabilities,
    allocate: makeAllocate(errors, xpu.device, (byteLength) =>
      Effect.mapError(xpu.allocate(byteLength), (failure) => tensorFailure("allocate", failure))
    ),
    wrapHost,
    copy,
    reduce: (_dst, _sources, op) => unsupported(`reduce ${op}`, "reductions"),
    fill: (tensor, byte) =>
      checkedWork(
        () => checkFill(tensor, byte),
        ({ dst }) => (dst.shape.includes(0) ? Effect.void : runTable("fill", encodeFill(dst, byte)))
      ),
    quantize: () => unsupported("quantize", "block-scaled types"),
    dequantize: () => unsupported("dequantize", "block-scaled types"),
    largest: () => unsupported("largest", "largest magnitudes"),
    diff: () => unsupported("diff", "search for changes"),
    apply: () => unsupported("apply", "changes"),
    addProduct: () => unsupported("addProduct", "products"),
    digest: makeHostDigest(makeDigestCheck(refusal, checks), { copy, wrapHost }),
    fence
  }
}

/** An engine on the device that the options choose. */
export const open = Effect.fnUntraced(function* (
  options: XpuOptions
): Effect.fn.Return<TensorEngineShape, BackendError, EffectScope.Scope> {
  return make(yield* openXpu(yield* loadAddon, options))
})

/** Fails with "Unavailable" where there is no device, or nothing to reach it with. */
export const layer = (options: XpuOptions = {}): Layer.Layer<TensorEngine, BackendError> =>
  Layer.effect(TensorEngine, open(options))
