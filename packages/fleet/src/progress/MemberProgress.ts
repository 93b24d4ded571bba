// SPDX-License-Identifier: Apache-2.0
/**
 * What a member states for people who look at the fleet: where it runs, and how versions come to it, from whom and how far.
 * It has a bounded size. Nothing is decided by it; what decides is in reports and in the history.
 */
import { Natural, Positive } from "@tensorferry/core/base/Numbers"
import * as Schema from "effect/Schema"

/** Versions that a statement has. */
export const mostVersions = 8
/** Versions of which it says from whom they came. */
const mostDetailed = 2
/** Parts of one version. */
export const mostParts = 16

/** Bytes that come from one member, in one tree of the update. */
export const ProgressPart = Schema.Struct({
  /** Id of the member that passes them on. */
  from: Schema.String,
  /** First byte of what the tree carries, among all of the weights: equal on all who are in it. */
  stripe: Natural,
  /** What is due from this member, whole. */
  bytes: Natural,
  /** How much of it is here and proven. */
  done: Natural
})
export type ProgressPart = typeof ProgressPart.Type

/** One version on its way into a member. Times are milliseconds since 1970 by the member's wall clock. */
export const VersionProgress = Schema.Struct({
  serial: Positive,
  /** Bytes of the whole version. */
  bytes: Natural,
  /** When the member began to take it. */
  begunAt: Natural,
  /** When all of it was here and proven; null before that. */
  stagedAt: Schema.NullOr(Natural),
  /** When it was taken into use; null before that. */
  liveAt: Schema.NullOr(Natural),
  /** How often it was begun. */
  tries: Positive,
  /** From whom it comes; only of the newest versions, and at most `mostParts`. */
  parts: Schema.Array(ProgressPart).check(Schema.isMaxLength(mostParts))
})
export type VersionProgress = typeof VersionProgress.Type

/** The statement. */
export const MemberProgress = Schema.Struct({
  id: Schema.NonEmptyString,
  /** Name of the machine. */
  host: Schema.String,
  /** Number of the process there. */
  process: Natural,
  /** Seconds from one sign of life to the next. */
  beat: Schema.Finite,
  /** Seconds of silence after which it is removed. */
  dead: Schema.Finite,
  /** Bytes that it has received since it started. */
  received: Natural,
  /** The last versions that it took, oldest first; at most `mostVersions`. */
  versions: Schema.Array(VersionProgress).check(Schema.isMaxLength(mostVersions))
})
export type MemberProgress = typeof MemberProgress.Type

/** Parts of one giver as one, where there are too many; what is still too much is of nobody in particular. */
const bounded = (parts: ReadonlyArray<ProgressPart>): ReadonlyArray<ProgressPart> => {
  if (parts.length <= mostParts) return parts
  const sums = new Map<string, ProgressPart>()
  for (const part of parts) {
    const from = sums.has(part.from) || sums.size < mostParts - 1 ? part.from : ""
    const sum = sums.get(from) ?? { from, stripe: part.stripe, bytes: 0, done: 0 }
    sums.set(from, { ...sum, bytes: sum.bytes + part.bytes, done: sum.done + part.done })
  }
  return [...sums.values()]
}

/** How much of a version is here and proven, from 0 to 1. */
export const fractionOf = ({ bytes, parts, stagedAt }: VersionProgress): number => {
  if (stagedAt !== null) return 1
  const done = parts.reduce((sum, part) => sum + part.done, 0)
  return bytes === 0 ? 0 : Math.min(1, done / bytes)
}

type Open<A> = { -readonly [K in keyof A]: A[K] }

/** A version with what it is made of, which changes. */
interface OpenVersion extends Omit<Open<VersionProgress>, "parts"> {
  parts: Array<Open<ProgressPart>>
}

/** A statement that grows with what happens. Events of versions that it has forgotten change nothing. */
export class ProgressRecord {
  readonly #about: Omit<MemberProgress, "received" | "versions">
  #received = 0
  #versions: Array<OpenVersion> = []

  constructor(about: Omit<MemberProgress, "received" | "versions">) {
    this.#about = about
  }

  #version(serial: number): OpenVersion | undefined {
    return this.#versions.find((version) => version.serial === serial)
  }

  /** It begins to take a version of so many bytes, or begins again. */
  begin(serial: number, bytes: number, at: number): void {
    const before = this.#version(serial)
    if (before === undefined) {
      this.#versions.push({ serial, bytes, begunAt: at, stagedAt: null, liveAt: null, tries: 1, parts: [] })
      this.#versions = this.#versions.slice(-mostVersions)
      for (const old of this.#versions.slice(0, -mostDetailed)) old.parts = []
    } else {
      before.tries += 1
      before.stagedAt = null
    }
  }

  /** It asks a member for the rest of a stripe; whom it asked before gives no more of it. */
  take(serial: number, from: string, stripe: number, bytes: number): void {
    const version = this.#version(serial)
    if (version === undefined) return
    for (const part of version.parts) if (part.stripe === stripe) part.bytes = part.done
    version.parts = version.parts.filter((part) => part.bytes > 0)
    version.parts.push({ from, stripe, bytes, done: 0 })
  }

  /** Bytes of a stripe are here and proven. */
  arrived(serial: number, stripe: number, bytes: number): void {
    this.#received += bytes
    const part = this.#version(serial)?.parts.findLast((each) => each.stripe === stripe)
    if (part !== undefined) part.done = Math.min(part.bytes, part.done + bytes)
  }

  /** All of a version is here and proven. */
  staged(serial: number, at: number): void {
    const version = this.#version(serial)
    if (version !== undefined) version.stagedAt = at
  }

  /** A version is in use. */
  live(serial: number, at: number): void {
    const version = this.#version(serial)
    if (version !== undefined) version.liveAt = at
  }

  /** As it is now. */
  get stated(): MemberProgress {
    const versions = this.#versions.map((version) => ({
      ...version,
      parts: bounded(version.parts.map((part) => ({ ...part })))
    }))
    return { ...this.#about, received: this.#received, versions }
  }
}
