// SPDX-License-Identifier: Apache-2.0
/**
 * What all ranks settle before the bytes of a mesh plan move: that they have the same plan and settings, and how many waves
 * the longest schedule has. One run of the copy service without operations, so that a rank which cannot take part, was
 * interrupted or is gone is known to all, as in any other run.
 */

import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type Digest, digestOf } from "../base/Digest.ts"
import type { Rank } from "../base/Ids.ts"
import { Natural, Positive } from "../base/Numbers.ts"
import { fromGroupError } from "../copy/CopyFailures.ts"
import { exchange } from "../group/Exchange.ts"
import { m2mDigest } from "../ir/M2MMap.ts"
import type { MeshPlan } from "../ir/MeshPlan.ts"
import { type CopyError, CopyService, copyError } from "../service/CopyService.ts"
import { ProcessGroup, type ProcessGroupShape } from "../service/ProcessGroup.ts"
import { defaultInFlight, defaultPieceBytes, parcelsOf, scheduleOf } from "./MeshParcels.ts"

/** Equal on all ranks. */
export interface MeshSettings {
  /** Most buckets of one ordered pair of ranks under way at once. 2 by default. */
  readonly maxInFlight?: number
  /**
   * Bytes; a chunk that is longer travels in pieces, so that no buffer need hold all of it. The plan's bucket size by
   * default, but at least 64 KiB.
   */
  readonly pieceBytes?: number
}

/** What the ranks settled; good for every update by the same plan. */
export interface MeshAgreement {
  readonly sharedDigest: Digest
  readonly maxInFlight: number
  readonly pieceBytes: number
  /** Waves that every rank walks through: contributions to reductions, then everything else. */
  readonly reductionWaves: number
  readonly transferWaves: number
}

const Statement = Schema.Struct({
  sharedDigest: Schema.String,
  maxInFlight: Positive,
  pieceBytes: Positive,
  reductionWaves: Natural,
  transferWaves: Natural
})

/** Name and digest of each tensor of a plan. */
const Contents = Schema.Array(Schema.Tuple([Schema.String, Schema.String]))

const operation = "executeMeshPlan"

/** Every rank's value, or the error that all of them get. */
const exchangeAll = <A, I>(
  group: ProcessGroupShape,
  label: string,
  schema: Schema.Codec<A, I>,
  value: A
): Effect.Effect<ReadonlyArray<A>, CopyError> =>
  Effect.mapError(exchange(group, label, schema, value), (error) =>
    error._tag === "ProcessGroupError"
      ? fromGroupError(group.rank, label, error)
      : copyError("Incompatible", [error.rank], {
          rank: error.rank,
          op: operation,
          detail: `Rank ${error.rank} sent a message that this version cannot read.`,
          remedy: "Run the same version on all ranks."
        })
  )

const contentsOf = (plan: MeshPlan): typeof Contents.Type => {
  const maps = plan.maps.map(m2mDigest)
  return plan.tensors.map(({ name, shape, sourceDtype, targetDtype, map }) => [
    name,
    digestOf([shape, sourceDtype, targetDtype, maps[map]])
  ])
}

/** The rank that stands alone: the first whose value is not the commonest one. */
const oddOne = (values: ReadonlyArray<string>): { readonly rank: Rank; readonly other: Rank } | undefined => {
  const counts = new Map<string, number>()
  for (const value of values) counts.set(value, (counts.get(value) ?? 0) + 1)
  const [commonest] = [...counts].reduce((a, b) => (b[1] > a[1] ? b : a), ["", 0] as const)
  const rank = values.findIndex((value) => value !== commonest)
  return rank < 0 ? undefined : { rank, other: values.indexOf(commonest) }
}

/** Names the first tensor that a rank plans in another way than another rank. */
const planDiffers = (all: ReadonlyArray<typeof Contents.Type>, rank: Rank, other: Rank): CopyError => {
  const [theirs, common] = [all[rank]!, all[other]!]
  const length = Math.max(theirs.length, common.length)
  const at = Array.from({ length }, (_, index) => index).find(
    (index) => String(theirs[index]) !== String(common[index])
  )
  const name = at === undefined ? undefined : (theirs[at] ?? common[at])![0]
  return copyError("Mismatch", [rank, other], {
    rank,
    peer: other,
    op: operation,
    ...(name === undefined ? {} : { paramName: name }),
    detail:
      name === undefined
        ? `Ranks ${rank} and ${other} have plans with buckets of different sizes.`
        : `Ranks ${rank} and ${other} have different plans: tensor ${at}, ${name}, is missing from one of them, or has another layout.`,
    remedy: "Make the plans of all ranks from the same layouts, tensors and bucket size."
  })
}

const settle = (
  group: ProcessGroupShape,
  plan: MeshPlan,
  own: MeshAgreement
): Effect.Effect<MeshAgreement, CopyError> =>
  Effect.gen(function* () {
    const all = yield* exchangeAll(group, "mesh plan", Statement, own)
    const plans = oddOne(all.map(({ sharedDigest }) => sharedDigest))
    if (plans !== undefined) {
      const contents = yield* exchangeAll(group, "mesh plan contents", Contents, contentsOf(plan))
      return yield* planDiffers(contents, plans.rank, plans.other)
    }
    const settingsOf = ({ maxInFlight, pieceBytes }: MeshAgreement) =>
      `${maxInFlight} buckets in flight, pieces of ${pieceBytes} bytes`
    const settings = oddOne(all.map(settingsOf))
    if (settings !== undefined) {
      const { rank, other } = settings
      return yield* copyError("Incompatible", [rank, other], {
        rank,
        peer: other,
        op: operation,
        detail: `Rank ${rank} has ${settingsOf(all[rank]!)}; rank ${other} has ${settingsOf(all[other]!)}.`,
        remedy: "Choose the same settings on all ranks."
      })
    }
    return {
      ...own,
      reductionWaves: Math.max(...all.map(({ reductionWaves }) => reductionWaves)),
      transferWaves: Math.max(...all.map(({ transferWaves }) => transferWaves))
    }
  })

/**
 * Settles a plan among all ranks of the copy service's group, each with its own. Collective; fails on every rank with the
 * same error, which names the rank that differs and the tensor.
 */
export const agreeOnMeshPlan = Effect.fn("agreeOnMeshPlan")(function* (
  plan: MeshPlan,
  settings: MeshSettings = {}
): Effect.fn.Return<MeshAgreement, CopyError, CopyService | ProcessGroup> {
  const service = yield* CopyService
  const group = yield* ProcessGroup
  const maxInFlight = settings.maxInFlight ?? defaultInFlight
  const pieceBytes = settings.pieceBytes ?? defaultPieceBytes(plan)
  if (![maxInFlight, pieceBytes].every((value) => Number.isSafeInteger(value) && value > 0)) {
    const wrong = copyError("Unsupported", [service.rank], {
      rank: service.rank,
      op: operation,
      detail: `${maxInFlight} buckets in flight with parts of ${pieceBytes} bytes are not possible.`,
      remedy: "State positive whole numbers."
    })
    yield* service.run({ refuse: wrong })
    return yield* wrong
  }
  const schedule = scheduleOf(plan.rank, parcelsOf(plan, pieceBytes), maxInFlight)
  let settled: MeshAgreement = {
    sharedDigest: plan.sharedDigest,
    maxInFlight,
    pieceBytes,
    reductionWaves: schedule.reductions.length,
    transferWaves: schedule.transfers.length
  }
  const finish = Effect.map(settle(group, plan, settled), (agreement) => {
    settled = agreement
  })
  yield* service.run({ finish })
  return settled
})
