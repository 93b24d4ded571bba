// SPDX-License-Identifier: Apache-2.0
/**
 * What the rows and columns of weights are for, and along which axis of a structure they are cut.
 *
 * Invariant: tensors whose dimensions lie on one axis are cut alike; a query never leaves its key.
 */
import type { ModelNumbers } from "./ModelNumbers.ts"

/** What all tensors of a structure are cut along. */
export type Axis =
  | "heads"
  | "kvHeads"
  | "width"
  | "vocabulary"
  | "ssmHeads"
  | "ssmGroups"
  | "keyHeads"
  | "valueHeads"
  | "channels"

/**
 * How an axis is cut over ranks. `divide`: the count must divide. `replicate`: it must divide, or the ranks must divide by
 * it, and each rank has a whole one. `even`: rows in equal shares. `pad`: rows in shares as even as possible, or padded.
 */
export type AxisRule = "divide" | "replicate" | "even" | "pad"

interface AxisFacts {
  readonly rule: AxisRule
  /** As messages name them: many of them. */
  readonly label: string
}

/** How each axis is cut, and what its units are called. */
export const axes: { readonly [Name in Axis]: AxisFacts } = {
  heads: { rule: "divide", label: "heads" },
  kvHeads: { rule: "replicate", label: "key-value heads" },
  width: { rule: "even", label: "units of width" },
  vocabulary: { rule: "pad", label: "rows of the vocabulary" },
  ssmHeads: { rule: "divide", label: "mixer heads" },
  ssmGroups: { rule: "replicate", label: "mixer groups" },
  keyHeads: { rule: "divide", label: "key heads" },
  valueHeads: { rule: "divide", label: "value heads" },
  channels: { rule: "even", label: "channels" }
}

interface RoleFacts {
  readonly axis: Axis
  /** Rows of one unit; where it is not known it follows from the shape. */
  readonly size?: keyof ModelNumbers | 1
}

/** The axis of each role, and the size of one unit of it. */
export const roles = {
  q: { axis: "heads", size: "headDim" },
  k: { axis: "kvHeads", size: "headDim" },
  v: { axis: "kvHeads", size: "headDim" },
  o: { axis: "heads" },
  /** One number per query head. */
  sink: { axis: "heads", size: 1 },
  /** Queries, or keys and values, of latent attention: rows of a head follow each other. */
  latentHead: { axis: "heads" },
  gate: { axis: "width" },
  up: { axis: "width" },
  down: { axis: "width" },
  vocabulary: { axis: "vocabulary" },
  /** Mamba-2: gate, input, input and output matrices of the groups, step. */
  z: { axis: "ssmHeads", size: "ssmHeadDim" },
  x: { axis: "ssmHeads", size: "ssmHeadDim" },
  B: { axis: "ssmGroups", size: "ssmState" },
  C: { axis: "ssmGroups", size: "ssmState" },
  dt: { axis: "ssmHeads", size: 1 },
  /** Gated delta nets: queries have the heads of keys. */
  linearQ: { axis: "keyHeads", size: "keyHeadDim" },
  linearK: { axis: "keyHeads", size: "keyHeadDim" },
  linearV: { axis: "valueHeads", size: "valueHeadDim" },
  linearHead: { axis: "valueHeads", size: 1 },
  /** All that belongs to a key head, head by head. */
  linearGroup: { axis: "keyHeads" },
  /** Mamba-1: every channel by itself. */
  channel: { axis: "channels" }
} as const satisfies { readonly [name: string]: RoleFacts }

/** What a row or a column is for. */
export type Role = keyof typeof roles

/** The axis and the unit of a role. */
export const factsOf = (role: Role): RoleFacts => roles[role]

/** How many units an axis has; undefined where the shape alone says it. */
export const countOf = (axis: Axis, numbers: ModelNumbers): number | undefined => {
  switch (axis) {
    case "heads":
    case "kvHeads":
    case "ssmHeads":
    case "ssmGroups":
    case "keyHeads":
    case "valueHeads":
      return numbers[axis]
    default:
      return undefined
  }
}
