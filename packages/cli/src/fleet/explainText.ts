// SPDX-License-Identifier: Apache-2.0
/** One version's life in words. */
import type { Explained, ExplainedStep } from "@tensorferry/fleet/view/explainVersion"
import type { Taken } from "@tensorferry/fleet/view/updates"
import { counted } from "../text/Table.ts"
import { durationText, memberText, outcomeText, percent, policyText, versionText } from "./words.ts"

/** Of what many members did one after another, so many are named at either end. */
const shownOfMany = 3

const whatText = ({ what, member, reason }: ExplainedStep, seconds: ReadonlyMap<string, number>): string => {
  const who = member === null ? "" : memberText(member)
  const took = member === null ? undefined : seconds.get(member.id)
  switch (what) {
    case "proposed":
      return `proposed by ${who}`
    case "staged":
      return `${who} has received and proven it${took === undefined ? "" : `, in ${durationText(took)}`}`
    case "prepared":
      return "replicas are told to stop serving"
    case "removed":
      return `${who} is removed: ${reason}`
    case "committed":
      return "committed"
    case "aborted":
      return `given up: ${reason}`
    case "live":
      return `${who} serves it`
  }
}

/** Steps of one kind that follow each other. */
const runsOf = (steps: ReadonlyArray<ExplainedStep>): ReadonlyArray<ReadonlyArray<ExplainedStep>> => {
  const runs: Array<Array<ExplainedStep>> = []
  for (const step of steps) {
    const last = runs.at(-1)
    if (last !== undefined && last[0]!.what === step.what) last.push(step)
    else runs.push([step])
  }
  return runs
}

/** Seconds since the proposal; where members' clocks differ they may lie before it. */
const timeText = (at: number | null, since: number | null): string => {
  if (at === null || since === null) return "–"
  const seconds = (at - since) / 1000
  return seconds < 0 ? `-${durationText(-seconds)}` : durationText(seconds)
}

/** Those who are not done, with how far they are. */
const waitingText = (waiting: ReadonlyArray<Taken>): string => {
  const named = waiting.slice(0, 8).map((taken) => `${memberText(taken)} (${percent(taken.fraction)})`)
  return `Not done: ${named.join(", ")}${waiting.length > 8 ? ` and ${waiting.length - 8} more` : ""}.`
}

/** The version, what happened to it, who was slow and what to do. */
export const explainText = ({ update, steps, slow, medianSeconds, advice }: Explained): string => {
  const { proposedAt, seconds, outcome } = update
  const begun =
    proposedAt === null ? "" : ` Proposed ${new Date(proposedAt).toISOString().replace("T", " ").slice(0, 19)} UTC.`
  const after = seconds === null ? "" : ` after ${durationText(seconds)}`
  const took = new Map(
    update.taken.flatMap((taken) => (taken.seconds === null ? [] : [[taken.id, taken.seconds] as const]))
  )
  const line = (step: ExplainedStep): string =>
    `  ${timeText(step.at, proposedAt).padStart(8)}  ${whatText(step, took)}`
  const lines = runsOf(steps).flatMap((run) => {
    const left = run.length - 2 * shownOfMany
    if (left <= 1) return run.map(line)
    const more = `  ${"".padStart(8)}  … and ${counted(left, "more member")}`
    return [...run.slice(0, shownOfMany).map(line), more, ...run.slice(-shownOfMany).map(line)]
  })
  const waiting = outcome === "open" ? update.taken.filter((taken) => taken.seconds === null) : []
  return [
    `Version ${versionText(update)}, policy ${policyText(update.policy)}: ${outcomeText(update)}${after}.${begun}`,
    ["Steps, in seconds since the proposal:", ...lines].join("\n"),
    ...(waiting.length === 0 ? [] : [waitingText(waiting)]),
    ...(slow.length === 0
      ? []
      : [
          [
            `Slow, where the middle is ${durationText(medianSeconds)}:`,
            ...slow.slice(0, 8).map((taken) => `  ${memberText(taken)}: ${durationText(taken.seconds)}`)
          ].join("\n")
        ]),
    ...(advice.length === 0 ? [] : [["What to do:", ...advice.map((each) => `  · ${each}`)].join("\n")])
  ].join("\n\n")
}
