// SPDX-License-Identifier: Apache-2.0
/** Parts of a fleet in a word or two, the same in tables, in the page and in explanations. */
import type { CommitPolicy } from "@tensorferry/fleet/version/FleetLog"
import type { MemberView } from "@tensorferry/fleet/view/FleetView"
import {
  type MemberName,
  type Removal,
  shortId,
  type UpdateView,
  type VersionName
} from "@tensorferry/fleet/view/updates"

/** `7 "step 700"`; without a label the number alone. */
export const versionText = (version: VersionName | null): string =>
  version === null ? "–" : `${version.serial}${version.label === "" ? "" : ` "${version.label}"`}`

/** `all`, `quorum of 3`, `each`. */
export const policyText = (policy: CommitPolicy): string =>
  policy._tag === "Quorum" ? `quorum of ${policy.count}` : policy._tag === "All" ? "all" : "each"

/** `rank 3 on node-3`; what is not known is left out. */
export const memberText = ({ id, rank, host }: MemberName): string =>
  `${rank === null ? shortId(id) : `rank ${rank}`}${host === null || host === "" ? "" : ` on ${host}`}`

/** `receiving 43%`; `proving` where all has arrived and not been proven as a whole. */
export const stateText = ({ state, taking }: MemberView): string => {
  if (state !== "receiving" || taking === null) return state
  return taking.fraction < 1 ? `receiving ${percent(taking.fraction)}` : "proving"
}

/** `43%`; what is not whole is never shown as whole. */
export const percent = (fraction: number): string =>
  `${fraction >= 1 ? 100 : Math.min(99, Math.floor(fraction * 100))}%`

/** `0.4 s`, `12 s`, `3 min`, `2 h`: ages and durations as people say them. */
export const durationText = (seconds: number | null): string => {
  if (seconds === null) return "–"
  if (seconds < 10) return `${seconds.toFixed(1)} s`
  if (seconds < 120) return `${Math.round(seconds)} s`
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`
}

/** `committed`, `given up`, `open: staging`. */
export const outcomeText = ({ outcome, isPrepared }: UpdateView): string =>
  outcome === "aborted"
    ? "given up"
    : outcome === "committed"
      ? outcome
      : isPrepared
        ? "open: stopping"
        : "open: staging"

/** The slowest of those that run, where one took longer than others. */
export const slowestText = ({ taken }: UpdateView): string => {
  const [first] = taken
  if (first === undefined) return "–"
  const how = first.seconds === null ? percent(first.fraction) : durationText(first.seconds)
  return `${memberText(first)}, ${how}`
}

/** Why an update was given up, with those who kept it from being committed. */
export const whyText = ({ culprits, reason }: UpdateView): string =>
  reason === "" ? "" : `${culprits.map(memberText).join(", ")}: ${reason}`

/** `rank 2 was removed at 10:22:31 UTC: No sign of life for 4 s.` */
export const removalText = ({ member, at, reason }: Removal): string =>
  `${memberText(member)} was removed${at === null ? "" : ` at ${new Date(at).toISOString().slice(11, 19)} UTC`}: ${reason}`
