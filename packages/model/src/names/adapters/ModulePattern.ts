// SPDX-License-Identifier: Apache-2.0
/**
 * Whether the pattern of an adapter's config fits the path of a module. All ways through a pattern are followed at once, so
 * the work is at most the name's length times the pattern's; a `Work` bounds what all patterns of an adapter take together.
 */
import * as Result from "effect/Result"
import { isWord, type PatternProgram, type Place, patternProgram } from "./PatternProgram.ts"

/** Steps that are left. A negative number says that they did not suffice, and that answers since then mean nothing. */
export interface Work {
  steps: number
}

/** Steps for one adapter: some seconds at most. */
export const mostWork = 20_000_000

/** A pattern that is ready to be matched. */
export interface ModulePattern {
  readonly text: string
  /** The text that it fits, where it fits only one. */
  readonly literal: string | undefined
  readonly program: PatternProgram
}

/** Where a match begins: at the start only, there or behind any dot, or behind a dot only. It ends at the end of the path. */
export type MatchStart = "start" | "component" | "dot"

/** Reads a pattern, or says why it is not read. */
export const modulePattern = (text: string): Result.Result<ModulePattern, string> =>
  Result.map(patternProgram(text), (program) => {
    const isLiteral = /^(?:\w|\\[.-])*$/.test(text)
    return { text, literal: isLiteral ? text.replaceAll("\\", "") : undefined, program }
  })

/** Whether a pattern fits. */
export const matchesModule = (
  { literal, program }: ModulePattern,
  path: string,
  from: MatchStart,
  work: Work
): boolean => {
  if (literal !== undefined) {
    work.steps--
    return (from !== "dot" && path === literal) || (from !== "start" && path.endsWith(`.${literal}`))
  }
  return run(program, path, program.start, 0, from, true, work)
}

const isPlace = (is: Place, path: string, at: number): boolean => {
  if (is === "start") return at === 0
  if (is === "end") return at === path.length
  const [before, after] = [at > 0 && isWord(path.charCodeAt(at - 1)), at < path.length && isWord(path.charCodeAt(at))]
  return (before !== after) === (is === "edge")
}

/** Follows a program from a place on: to the end of the path, or to any place. */
const run = (
  { steps }: PatternProgram,
  path: string,
  start: number,
  place: number,
  from: MatchStart,
  isToEnd: boolean,
  work: Work
): boolean => {
  let now = new Set<number>()
  for (let at = place; at <= path.length; at++) {
    const isStart = (at === place && from !== "dot") || (from !== "start" && at > 0 && path.charCodeAt(at - 1) === 46)
    if (isStart) now.add(start)
    const next = new Set<number>()
    // A set goes through what is added to it on the way.
    for (const here of now) {
      if (work.steps-- <= 0) {
        work.steps = -1
        return false
      }
      const step = steps[here]!
      switch (step._tag) {
        case "Done":
          if (!isToEnd || at === path.length) return true
          break
        case "Either":
          now.add(step.first)
          now.add(step.second)
          break
        case "Place":
          if (isPlace(step.is, path, at)) now.add(step.next)
          break
        case "Ahead":
          if (run({ steps, start: step.start }, path, step.start, at, "start", false, work) === step.isWanted)
            now.add(step.next)
          break
        case "Character":
          if (at < path.length && step.test(path.charCodeAt(at))) next.add(step.next)
          break
      }
    }
    now = next
    if (now.size === 0 && from === "start") return false
  }
  return false
}
