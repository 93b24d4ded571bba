// SPDX-License-Identifier: Apache-2.0
/**
 * How far long work is, on standard error: one line that is drawn again and leaves nothing behind, where standard error is a
 * terminal; lines of JSON for programs that asked for them; else nothing.
 *
 * The phases of a job count together, so the line never begins again. Rates and times left are those of the phase.
 */
import type { Phase } from "@tensorferry/model/Phase"
import * as Flag from "effect/cli/Flag"
import * as Effect from "effect/Effect"
import type { RankProgress } from "../job/Coordinator.ts"
import { formatBytes, formatRate } from "../text/Table.ts"
import { inLocale } from "../text/terminal.ts"

/** Where progress goes. */
export type ProgressMode = "auto" | "none" | "json"

export const progressFlag = Flag.Literals("progress", ["auto", "none", "json"]).pipe(
  Flag.withDescription(
    "How far the work is, on standard error: auto draws one line on a terminal, json writes a line of JSON at most five times a second"
  ),
  Flag.withDefault("auto")
)

/** Where it goes of a command with these flags: people are shown a line unless they asked for silence or a document. */
export const progressMode = (flags: {
  readonly json: boolean
  readonly quiet: boolean
  readonly progress?: ProgressMode
}): ProgressMode => {
  const { json, quiet, progress = "auto" } = flags
  return progress === "auto" && (json || quiet) ? "none" : progress
}

const labels: Readonly<Record<Phase, string>> = {
  start: "starting ranks",
  allocate: "taking memory",
  load: "loading",
  copy: "copying",
  verify: "verifying",
  write: "writing",
  finish: "finishing"
}

const order = Object.keys(labels) as ReadonlyArray<Phase>
const barWidth = 24
/** Between two lines, unless a phase begins. */
const lineMillis = { line: 50, json: 200 } as const

export interface ProgressBar {
  readonly update: (progress: RankProgress) => Effect.Effect<void>
  readonly clear: Effect.Effect<void>
}

/** What a line is about. */
export interface ProgressOptions {
  /** Ranks that do the work. */
  readonly size: number
  /** Those that the job has, in order. */
  readonly phases: ReadonlyArray<Phase>
  readonly mode: ProgressMode
  /** What is counted; "items" shows neither amounts nor rates. "bytes" by default. */
  readonly counts?: "bytes" | "items"
}

/** Standard error, or what stands for it. */
export interface ProgressOutput {
  readonly write: (text: string) => void
  readonly isTerminal: boolean
  readonly columns: number | undefined
  /** Milliseconds. */
  readonly now: () => number
}

const standardError: ProgressOutput = {
  write: (text) => void process.stderr.write(text),
  get isTerminal() {
    return process.stderr.isTTY === true
  },
  get columns() {
    return process.stderr.columns
  },
  now: () => performance.now()
}

/** `A bar  45%  phase 2 of 4: copying  3.1 of 7.0 GiB  1.20 GB/s  3 s left`, less what does not fit. */
const lineOf = (fraction: number, words: ReadonlyArray<string>, columns: number | undefined): string => {
  const filled = Math.round(fraction * barWidth)
  const bar = `${"█".repeat(filled)}${"░".repeat(barWidth - filled)} ${String(Math.floor(fraction * 100)).padStart(3)}%`
  let line = ""
  // The bar goes before the words where there is little room.
  for (const word of [...words.slice(0, 1), bar, ...words.slice(1)]) {
    const longer = line === "" ? word : `${line}  ${word}`
    if (columns !== undefined && longer.length >= columns) break
    line = longer
  }
  return inLocale(line)
}

/** Shows how far all ranks are together. */
export const makeProgressBar = (
  { size, phases, mode, counts = "bytes" }: ProgressOptions,
  output: ProgressOutput = standardError
): ProgressBar => {
  const form = mode === "json" ? "json" : mode === "auto" && output.isTerminal ? "line" : undefined
  /** By rank, the phase that it is in; by phase and rank, how far it was. */
  const current = new Map<number, Phase>()
  const known = new Map<Phase, Map<number, RankProgress>>()
  let [drawn, shown, phaseBegan]: [number, Phase | undefined, number] = [Number.NEGATIVE_INFINITY, undefined, 0]

  const draw = (): void => {
    const isBegun = [...current.values()].some((phase) => phase !== "start")
    // Ranks that have said nothing are as far as the others that began.
    const least = isBegun ? order.indexOf(phases[0] ?? "finish") : 0
    const places = Array.from({ length: size }, (_, rank) =>
      Math.max(least, order.indexOf(current.get(rank) ?? "start"))
    )
    const phase = order[Math.min(...places)]!
    const now = output.now()
    if (phase !== shown) [shown, phaseBegan, drawn] = [phase, now, Number.NEGATIVE_INFINITY]
    if (form === undefined || now - drawn < lineMillis[form]) return
    drawn = now
    let [done, total, parts] = [0, 0, 0]
    for (const [rank, place] of places.entries()) {
      const said = known.get(phase)?.get(rank)
      const isOver = place > order.indexOf(phase)
      const amount = said === undefined ? 0 : isOver ? said.total : said.done
      done += amount
      total += said?.total ?? 0
      parts += isOver ? 1 : said === undefined || said.total === 0 ? 0 : amount / said.total
    }
    const at = phases.indexOf(phase)
    const within = parts / size
    const fraction = phase === "finish" ? 1 : at < 0 ? 0 : (at + within) / phases.length
    const seconds = (now - phaseBegan) / 1000
    if (form === "json") {
      output.write(`${JSON.stringify({ phase, index: at + 1, of: phases.length, fraction, done, total, seconds })}\n`)
      return
    }
    const rate = seconds > 0.2 && counts === "bytes" && phase !== "finish" ? formatRate(done, seconds) : ""
    const left = seconds > 1 && within > 0.02 ? Math.ceil((seconds / within) * (1 - within)) : undefined
    const hasAmounts = counts === "bytes" && phase !== "finish" && total > 1
    const words = [
      at < 0 || phases.length < 2 ? labels[phase] : `${at + 1} of ${phases.length}: ${labels[phase]}`,
      ...(hasAmounts ? [`${formatBytes(done)} of ${formatBytes(total)}`] : []),
      ...(rate === "" ? [] : [rate]),
      ...(left === undefined ? [] : [`${left} s left`])
    ]
    output.write(`\r\u001b[2K${lineOf(fraction, words, output.columns)}`)
  }
  return {
    update: (progress) =>
      Effect.sync(() => {
        const { phase, rank } = progress
        current.set(rank, phase)
        const ranks = known.get(phase) ?? new Map<number, RankProgress>()
        known.set(phase, ranks.set(rank, progress))
        draw()
      }),
    clear: Effect.sync(() => {
      if (form === "line") output.write("\r\u001b[2K")
    })
  }
}
