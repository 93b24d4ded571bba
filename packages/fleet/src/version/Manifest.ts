// SPDX-License-Identifier: Apache-2.0
/**
 * What a version is: the digest of each logical tensor, whatever its layout and form on a rank, under a number that only
 * grows. A rollback is a new number for contents that members have kept.
 */
import { type Digest, digestOf } from "@tensorferry/core/base/Digest"
import { Positive } from "@tensorferry/core/base/Numbers"
import * as Schema from "effect/Schema"

/** One version, as all members see it. */
export const Manifest = Schema.Struct({
  /** Greater than that of every version before it; also versions that were given up use up theirs. */
  serial: Positive,
  /** For people, such as the step of the training. */
  label: Schema.String,
  /** Digest of everything: equal for equal weights, whoever holds them. */
  content: Schema.String,
  /** Content that the update builds upon, where it brings changes only. */
  base: Schema.optionalKey(Schema.String),
  /** By global name, the digest of a tensor in its logical form: type, shape and elements in order. */
  tensors: Schema.Record(Schema.String, Schema.String)
})
export type Manifest = typeof Manifest.Type

/** Makes a manifest; the content follows from the tensors. */
export const manifestOf = (
  serial: number,
  label: string,
  tensors: Readonly<Record<string, Digest>>,
  base?: Digest
): Manifest => ({ serial, label, content: digestOf(tensors), tensors, ...(base === undefined ? {} : { base }) })

/** The names under which two manifests differ, sorted. */
export const differingTensors = (a: Manifest, b: Manifest): ReadonlyArray<string> =>
  [...new Set([...Object.keys(a.tensors), ...Object.keys(b.tensors)])]
    .filter((name) => a.tensors[name] !== b.tensors[name])
    .sort()

/** Whether both are the same version: one number and one content. */
export const isSameVersion = (a: Manifest | null, b: Manifest | null): boolean =>
  a === b || (a !== null && b !== null && a.serial === b.serial && a.content === b.content)
