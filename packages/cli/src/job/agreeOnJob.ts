// SPDX-License-Identifier: Apache-2.0
/**
 * Ranks that a launcher started were each given arguments of their own. Before anything is planned from them they are
 * compared: ranks that plan different jobs would only find transfers without a partner.
 *
 * Paths of the checkpoint and of packages may differ, as hosts do; what they hold is compared where it is used.
 */
import { canonicalJson, digestOf } from "@tensorferry/core/base/Digest"
import { exchange } from "@tensorferry/core/group/Exchange"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { formatDevices } from "../device/DeviceChoice.ts"
import { sideText } from "../text/sideText.ts"
import { type AnyJobSpec, isMeshJob } from "./JobSpec.ts"
import { formatMeshChoice } from "./meshPlans.ts"

const Arguments = Schema.Record(Schema.String, Schema.String)

/** Values that fill pages, by a digest. */
const short = (value: unknown): string => `digest ${digestOf(value).slice(0, 12)}`

/** By whose names the checkpoint is read. */
const namesOf = ({ stored }: AnyJobSpec): string =>
  stored === undefined ? "its own" : sideText(stored.config, stored.convention)

/** What all ranks must have been given alike, as one would write it. */
const argumentsOf = (spec: AnyJobSpec): { readonly [name: string]: string } => ({
  "--verify": spec.verify ? "on" : "off",
  "--device": spec.device === undefined ? "not given" : formatDevices(spec.device),
  ...(isMeshJob(spec)
    ? {
        "--tensor": spec.tensor,
        "--from-mesh and --to-mesh": formatMeshChoice(spec.mesh),
        "--source-choice": spec.mesh.sourceChoice,
        "--bucket-bytes": String(spec.mesh.bucketBytes ?? "not given")
      }
    : {
        "--from": sideText(spec.from, spec.names?.from.convention),
        "--to": sideText(spec.to, spec.names?.to.convention),
        "--map": spec.names?.to.mapping === undefined ? "not given" : short(spec.names.to.mapping),
        "names of CHECKPOINT": namesOf(spec),
        "--ranks": spec.ranks,
        "rules (--rules, --preset, --layout, --kv-heads, --default)": short([spec.rules, spec.sourceRules ?? null]),
        "--transform and --dtype": canonicalJson(spec.conversion ?? "not given"),
        "--out": spec.out?.folder ?? "not given"
      })
})

/** `ranks 0, 2 have tp=2; rank 1 has pp=2`: the values of one argument, each with its ranks. */
const describeValues = (values: ReadonlyArray<string>): string => {
  const holders = new Map<string, Array<number>>()
  for (const [rank, value] of values.entries()) holders.set(value, [...(holders.get(value) ?? []), rank])
  return [...holders]
    .map(([value, ranks]) => {
      const shown = ranks.length > 8 ? `${ranks.slice(0, 8).join(", ")} and ${ranks.length - 8} more` : ranks.join(", ")
      return `${ranks.length === 1 ? "rank" : "ranks"} ${shown} ${ranks.length === 1 ? "has" : "have"} ${value}`
    })
    .join(", ")
}

/** Collective; fails on all ranks with the arguments that differ, and who has which. */
export const agreeOnJob = Effect.fnUntraced(function* (group: ProcessGroupShape, spec: AnyJobSpec) {
  const all = yield* exchange(group, "job arguments", Arguments, argumentsOf(spec)).pipe(
    Effect.catchTag("UnreadableAnswer", ({ rank }) =>
      Effect.fail(
        modelError("InvalidUsage", {
          rank: group.rank,
          op: "compare arguments",
          detail: `Rank ${rank} sent arguments that this version cannot read.`,
          remedy: "Run the same version on all ranks."
        })
      )
    )
  )
  const names = new Set(all.flatMap((one) => Object.keys(one)))
  const differing = [...names].flatMap((name) => {
    const values = all.map((one) => one[name] ?? "not given")
    return new Set(values).size === 1 ? [] : [`${name}: ${describeValues(values)}`]
  })
  if (differing.length === 0) return
  return yield* modelError("InvalidUsage", {
    rank: group.rank,
    op: "compare arguments",
    detail: `The ranks were started with different arguments. ${differing.join("; ")}.`,
    remedy: "Start every rank with the same command line."
  })
})
