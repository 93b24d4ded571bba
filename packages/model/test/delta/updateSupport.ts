// SPDX-License-Identifier: Apache-2.0
/**
 * Shared by tests of updates of changes: every rank's memory for changes and, beside it, for whole updates; random changes; and
 * a copy service that damages what arrived.
 */

import { bitsOf } from "@tensorferry/core/base/DType"
import type { AnyPlan } from "@tensorferry/core/planner/MeshOps"
import type { DeltaReport } from "@tensorferry/core/refit/DeltaUpdates"
import { executeReshardPlan } from "@tensorferry/core/reshard/executeReshardPlan"
import { type CopyOp, CopyService } from "@tensorferry/core/service/CopyService"
import type { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { isQuantized } from "@tensorferry/core/tensor/QuantizedTensor"
import { type Tensor, tensorByteLength } from "@tensorferry/core/tensor/Tensor"
import type { TensorDict } from "@tensorferry/core/tensor/TensorDict"
import { makeRandom, type Random } from "@tensorferry/testing/mutate"
import { type RankServices, runCluster } from "@tensorferry/testing/VirtualCluster"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { type DeltaOptions, makeDeltaUpdates } from "../../src/delta/makeDeltaUpdates.ts"

/** What one rank has: `changes` is updated by changes, `whole` by whole updates of the same source. */
export interface Memory {
  readonly source: TensorDict | undefined
  readonly changes: TensorDict | undefined
  readonly whole: TensorDict | undefined
}

export interface UpdateCase {
  readonly text: string
  readonly size: number
  readonly planOf: (rank: number) => AnyPlan
  readonly memoryOf: (rank: number) => Effect.Effect<Memory, unknown, TensorEngine | Scope.Scope>
  readonly options?: Partial<DeltaOptions>
}

/** All memory of a dictionary, each piece once. */
const partsOf = (dict: TensorDict | undefined): ReadonlyArray<Tensor> => {
  const seen = new Map<number, Tensor>()
  for (const tensor of dict?.tensors.values() ?? []) {
    const parts = isQuantized(tensor) ? [tensor.data, tensor.scale, tensor.global] : [tensor]
    for (const part of parts) if (part !== undefined) seen.set(part.storage.generation, part)
  }
  return [...seen.values()]
}

export const bytesOf = (dict: TensorDict | undefined): ReadonlyArray<Uint8Array> =>
  partsOf(dict).map(({ storage }) => storage.bytes!.slice())

export const poison = (dict: TensorDict | undefined, byte: number): void => {
  for (const { storage } of partsOf(dict)) storage.bytes!.fill(byte)
}

/** Gives this share of the elements other bits: finite numbers of any type. */
export const change = (dict: TensorDict | undefined, share: number, random: Random): void => {
  for (const { dtype, storage } of partsOf(dict)) {
    const [bytes, size] = [storage.bytes!, bitsOf(dtype) / 8]
    for (let at = 0; at < bytes.length / size; at++) {
      if (random.below(10_000) >= share * 10_000) continue
      for (let byte = 0; byte < size; byte++) bytes[at * size + byte] = random.below(0x38)
    }
  }
}

/** What may happen to a list on its way. */
export const damages = ["bit", "order", "repeated", "missed"] as const
export type Damage = (typeof damages)[number]

/** Lists that arrived: positions have an even part, values the odd one after it. */
const listsOf = (ops: ReadonlyArray<CopyOp>): ReadonlyArray<readonly [Tensor, Tensor]> => {
  const key = (op: CopyOp, part: number) => `${op._tag === "RecvOp" ? op.srcRank : -1} ${op.taskId} ${part}`
  const values = new Map(ops.flatMap((op) => (op._tag === "RecvOp" ? [[key(op, op.part), op.tensor] as const] : [])))
  return ops.flatMap((op) => {
    const found = op._tag === "RecvOp" && op.part % 2 === 0 ? values.get(key(op, op.part + 1)) : undefined
    return found === undefined ? [] : [[op.tensor, found] as const]
  })
}

const viewOf = (tensor: Tensor): Uint8Array =>
  tensor.storage.bytes!.subarray(tensor.byteOffset, tensor.byteOffset + tensorByteLength(tensor))

/** Damages a list; false where there is nothing that could change. */
const spoil = (damage: Damage, [positions, values]: readonly [Tensor, Tensor], earlier: Uint8Array, random: Random) => {
  const [where, what] = [viewOf(positions), viewOf(values)]
  const before = Buffer.concat([where, what])
  const [ofPosition, ofValue] = [positions, values].map(({ dtype }) => bitsOf(dtype) / 8) as [number, number]
  const count = where.length / ofPosition
  switch (damage) {
    case "bit": {
      const bytes = random.isOneIn(2) ? where : what
      bytes[random.below(bytes.length)]! ^= 1 << random.below(8)
      break
    }
    case "order": {
      const [a, b] = [random.below(count), random.below(count)]
      const swap = (bytes: Uint8Array, each: number) => {
        const first = bytes.slice(a * each, (a + 1) * each)
        bytes.copyWithin(a * each, b * each, (b + 1) * each)
        bytes.set(first, b * each)
      }
      swap(where, ofPosition)
      swap(what, ofValue)
      break
    }
    case "repeated":
      // What an earlier update brought, as far as it reaches.
      where.set(earlier.subarray(0, where.length).subarray(0, earlier.length))
      break
    case "missed":
      where.fill(0)
      what.fill(0)
  }
  return Buffer.compare(before, Buffer.concat([where, what])) !== 0
}

/** A copy service that damages one list of what arrives whenever it is told to, before anybody reads it. */
export const damaging = Effect.map(CopyService, (service) => {
  let asked: { readonly damage: Damage; readonly random: Random } | undefined
  let queued: ReadonlyArray<CopyOp> = []
  let earlier: Uint8Array = new Uint8Array()
  let count = 0
  const harm = () => {
    const lists = listsOf(queued)
    const order = asked
    asked = undefined
    if (lists.length === 0) return
    const chosen = lists[order?.random.below(lists.length) ?? 0]!
    const now = viewOf(chosen[0]).slice()
    if (order !== undefined && spoil(order.damage, chosen, earlier, order.random)) count += 1
    earlier = now
  }
  return {
    next: (damage: Damage, random: Random) => {
      asked = { damage, random }
    },
    /** How many lists were damaged so far. */
    count: () => count,
    service: CopyService.of({
      ...service,
      submitAll: (ops) => {
        queued = ops
        return service.submitAll(ops)
      },
      run: (options) => Effect.tap(service.run(options), () => Effect.sync(harm))
    })
  }
})

/** One update. */
export interface Round {
  readonly share: number
  /** What happens to a list on every rank that gets one. */
  readonly damage?: Damage
  readonly lost?: { readonly rank: number; readonly all: boolean }
}

export interface RankOutcome {
  readonly reports: ReadonlyArray<DeltaReport>
  /** Lists that were damaged on this rank, by round. */
  readonly damaged: ReadonlyArray<number>
  /** What a whole update of each round sent. */
  readonly wholeBytes: ReadonlyArray<number>
  readonly faults: ReadonlyArray<string>
}

/** One rank's part in all rounds: after each, both destinations must be the same. */
const runRank = (one: UpdateCase, rank: number, rounds: ReadonlyArray<Round>, seed: number) =>
  Effect.gen(function* (): Effect.fn.Return<RankOutcome, unknown, RankServices> {
    const plan = one.planOf(rank)
    const { changes, source, whole } = yield* one.memoryOf(rank)
    const { transform } = one.options ?? {}
    const { count, next, service } = yield* damaging
    const updates = yield* makeDeltaUpdates(plan, { baselineBytes: 2 ** 30, ...one.options })
    // Bytes that no plan writes, as of padding, stay alike.
    poison(changes, 0x3c)
    const outcome = { reports: [], damaged: [], wholeBytes: [], faults: [] } as {
      [key in keyof RankOutcome]: Array<RankOutcome[key][number]>
    }
    for (const [at, { damage, lost, share }] of rounds.entries()) {
      change(source, share, makeRandom(seed * 1000 + rank * 100 + at))
      const isLost = lost?.rank === rank
      const names = isLost && !lost.all ? [...(changes?.tensors.keys() ?? [])].slice(0, 1) : []
      if (isLost && lost.all) poison(changes, 0x3c)
      for (const name of names) {
        const tensor = changes!.tensors.get(name)!
        if (!isQuantized(tensor)) viewOf(tensor).fill(0x77)
      }
      if (damage !== undefined) next(damage, makeRandom(seed + at + 31 * rank))
      const before = count()
      const step = { version: `step ${at}`, lost: names, ...(isLost && lost.all ? { holds: null } : {}) }
      const report = yield* Effect.provideService(updates.update(step, source, changes), CopyService, service)
      outcome.reports.push(report)
      outcome.damaged.push(count() - before)
      poison(whole, 0x3c)
      const { copy } = yield* executeReshardPlan(plan, source, whole, transform === undefined ? {} : { transform })
      outcome.wholeBytes.push(copy.remoteBytesSent + copy.localBytes)
      const [got, wanted] = [bytesOf(changes), bytesOf(whole)]
      for (const [index, bytes] of wanted.entries()) {
        const wrong = bytes.findIndex((byte, place) => got[index]![place] !== byte)
        if (wrong >= 0) outcome.faults.push(`${one.text}: rank ${rank}, round ${at}, tensor ${index}, byte ${wrong}`)
      }
    }
    return outcome
  })

export const runUpdates = (one: UpdateCase, rounds: ReadonlyArray<Round>, seed = 1) =>
  runCluster({ size: one.size }, (rank) => runRank(one, rank, rounds, seed))
