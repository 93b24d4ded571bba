// SPDX-License-Identifier: Apache-2.0
/**
 * Measures on this host what an update of changes takes beside moving bytes: finding them, checking them and writing them, for
 * several shares of a tensor of bfloat16; beside what the tensor and its list take, and the digest that a delta file needs.
 *
 * From that follows the speed of a link up to which changes arrive sooner than the tensor.
 */

import { createHash } from "node:crypto"
import { median } from "@tensorferry/core/base/Numbers"
import { elementCount } from "@tensorferry/core/base/Region"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { firstChanges } from "@tensorferry/core/tensor/Changes"
import { type Tensor, tensorByteLength, tensorBytes } from "@tensorferry/core/tensor/Tensor"
import { payloadHeadBytes } from "@tensorferry/model/delta/DeltaPayload"
import { expectedChangeBytes } from "@tensorferry/model/delta/DeltaSize"
import { writeGaps } from "@tensorferry/model/delta/Gaps"
import { checksumOf } from "@tensorferry/model/delta/hostBytes"
import * as Effect from "effect/Effect"

/** What one share of changed elements takes. Seconds are medians. */
export interface ChangeCase {
  readonly share: number
  readonly changed: number
  readonly wholeBytes: number
  /** Between ranks. */
  readonly listBytes: number
  /** As a file, by the model. */
  readonly fileBytes: number
  readonly findSeconds: number
  /** Positions to gaps, or back. */
  readonly packSeconds: number
  readonly checksumSeconds: number
  readonly writeSeconds: number
  readonly copySeconds: number
  /** The SHA-256 of all of the tensor. */
  readonly digestSeconds: number
  /** Bytes per second of a link below which changes arrive sooner; 0 where they never do. */
  readonly worthBelow: number
}

/** Shares that are measured. */
export const changeShares: ReadonlyArray<number> = [0.0005, 0.01, 0.03, 0.1]

const elementBytes = 2
const rounds = 5

/** Numbers of 32 bits, the same in every run. */
const makeNumbers = () => {
  let state = 12_345
  return () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return state
  }
}

const fill = (tensor: Tensor): void => {
  const bytes = tensorBytes(tensor)!
  const words = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / elementBytes)
  for (let at = 0; at < words.length; at++) words[at] = Math.imul(at, 40_503) >>> 8
}

/** Every element with the same chance; its lowest bit, as by a small step. */
const change = (tensor: Tensor, share: number): void => {
  const bytes = tensorBytes(tensor)!
  const words = new Uint16Array(bytes.buffer, bytes.byteOffset, bytes.length / elementBytes)
  const next = makeNumbers()
  const below = share * 2 ** 32
  for (let at = 0; at < words.length; at++) if (next() < below) words[at]! ^= 1
}

const secondsOf = <A, E, R>(work: Effect.Effect<A, E, R>) =>
  Effect.suspend(() => {
    const begun = performance.now()
    return Effect.map(work, (value) => ({ value, seconds: (performance.now() - begun) / 1000 }))
  })

const measure = Effect.fnUntraced(function* (
  engine: TensorEngineShape,
  [base, current, target]: readonly [Tensor, Tensor, Tensor],
  share: number
) {
  yield* engine.copy([{ dst: current, src: base }])
  change(current, share)
  const elements = elementCount(base.shape)
  const room = Math.ceil(elements * share * 1.25) + 64
  const list = {
    positions: yield* engine.allocate("uint32", [room]),
    values: yield* engine.allocate("bfloat16", [room])
  }
  const times: { readonly [name: string]: Array<number> } = {
    find: [],
    pack: [],
    checksum: [],
    write: [],
    copy: [],
    digest: []
  }
  const gaps = new Uint16Array(room)
  let [changed, positionBytes] = [0, 4]
  // The first round warms up.
  for (let round = 0; round <= rounds; round++) {
    const copied = yield* secondsOf(engine.copy([{ dst: target, src: base }]))
    const found = yield* secondsOf(engine.diff(base, current, list))
    changed = found.value
    const own = firstChanges(list, changed)
    const bytes = tensorBytes(own.positions)!
    const positions = new Uint32Array(bytes.buffer, bytes.byteOffset, changed)
    const packed = yield* secondsOf(Effect.sync(() => writeGaps(positions, gaps)))
    positionBytes = packed.value ? 2 : 4
    const checked = yield* secondsOf(checksumOf(engine, [own.positions, own.values]))
    const written = yield* secondsOf(engine.apply(target, own))
    const digested = yield* secondsOf(
      Effect.sync(() => createHash("sha256").update(tensorBytes(target)!).digest("hex"))
    )
    if (round === 0) continue
    const all = { find: found, pack: packed, checksum: checked, write: written, copy: copied, digest: digested }
    for (const [name, { seconds }] of Object.entries(all)) times[name]!.push(seconds)
  }
  const of = (name: string) => median(times[name]!)
  const wholeBytes = tensorByteLength(base)
  const listBytes = changed * (positionBytes + elementBytes)
  // Packed and checked at either end; the sender writes into its copy while the list travels.
  const more = of("find") + 2 * (of("pack") + of("checksum")) + of("write")
  return {
    share,
    changed,
    wholeBytes,
    listBytes,
    fileBytes: Math.round(payloadHeadBytes + expectedChangeBytes(elements, elementBytes, share)),
    findSeconds: of("find"),
    packSeconds: of("pack"),
    checksumSeconds: of("checksum"),
    writeSeconds: of("write"),
    copySeconds: of("copy"),
    digestSeconds: of("digest"),
    worthBelow: Math.max(0, (wholeBytes - listBytes) / more)
  } satisfies ChangeCase
}, Effect.scoped)

/** All shares, on a tensor of so many bytes. */
export const benchChanges = Effect.fn("benchChanges")(function* (byteLength: number) {
  const engine = yield* TensorEngine
  const shape = [Math.max(1, Math.floor(byteLength / elementBytes))]
  const made = () => engine.allocate("bfloat16", shape)
  const [base, current, target] = [yield* made(), yield* made(), yield* made()]
  fill(base)
  return yield* Effect.forEach(changeShares, (share) => measure(engine, [base, current, target], share))
}, Effect.scoped)
