// SPDX-License-Identifier: Apache-2.0
/**
 * Which stage holds which layer. Every stack is placed by itself: the language model over all stages, towers on the first,
 * layers that predict further tokens on the last.
 */
import * as Result from "effect/Result"
import type { StageChoice } from "./Placement.ts"

const evenly = (layers: number, parts: number, longer: (part: number, remainder: number) => boolean) => {
  const remainder = layers % parts
  return Array.from({ length: parts }, (_, part) => Math.floor(layers / parts) + (longer(part, remainder) ? 1 : 0))
}

/** Layers per part, in order. */
const countsOf = (choice: "first" | "last" | "middle", layers: number, parts: number): ReadonlyArray<number> =>
  evenly(layers, parts, (part, remainder) =>
    choice === "first"
      ? part < remainder
      : choice === "last"
        ? part >= parts - remainder
        : // The last part also has the head.
          part < parts - 1 && part >= parts - 1 - remainder
  )

const listed = (
  lists: ReadonlyArray<ReadonlyArray<number>>,
  layers: ReadonlyArray<number>,
  stages: number
): Result.Result<ReadonlyMap<number, number>, string> => {
  if (lists.length !== stages) return Result.fail(`stages lists layers of ${lists.length} stages, pp is ${stages}`)
  const held = new Map<number, number>()
  for (const [stage, own] of lists.entries()) {
    for (const layer of own) {
      if (held.has(layer)) return Result.fail(`stages lists layer ${layer} twice`)
      if (!layers.includes(layer)) return Result.fail(`stages lists layer ${layer}, which the model does not have`)
      held.set(layer, stage)
    }
  }
  const missing = layers.find((layer) => !held.has(layer))
  return missing === undefined ? Result.succeed(held) : Result.fail(`stages lists no stage for layer ${missing}`)
}

const isLists = (
  choice: ReadonlyArray<number> | ReadonlyArray<ReadonlyArray<number>>
): choice is ReadonlyArray<ReadonlyArray<number>> => Array.isArray(choice[0])

/** The stage of each layer of a stack that goes over all stages. */
export const stagesOf = (
  layers: ReadonlyArray<number>,
  stages: number,
  choice: StageChoice = "first",
  virtual = 1
): Result.Result<ReadonlyMap<number, number>, string> => {
  // What is said of stages says nothing of a side that has one.
  if (stages === 1) return Result.succeed(new Map(layers.map((layer) => [layer, 0])))
  if (typeof choice !== "string" && isLists(choice)) {
    return virtual === 1 ? listed(choice, layers, stages) : Result.fail("stages lists layers, so virtual says nothing")
  }
  const parts = stages * virtual
  const counts = typeof choice === "string" ? countsOf(choice, layers.length, parts) : choice
  if (counts.length !== parts) {
    return Result.fail(`stages states ${counts.length} counts, pp is ${stages}${virtual === 1 ? "" : ` x ${virtual}`}`)
  }
  const sum = counts.reduce((total, count) => total + count, 0)
  if (sum !== layers.length) {
    return Result.fail(`stages states ${sum} layers, the model has ${layers.length}`)
  }
  const held = new Map<number, number>()
  let at = 0
  for (const [part, count] of counts.entries()) {
    for (const layer of layers.slice(at, at + count)) held.set(layer, part % stages)
    at += count
  }
  return Result.succeed(held)
}

/**
 * What is wrong with as many stages where nobody says which layers each has: one of them would have none. Systems that spread
 * few layers over more stages say so.
 */
export const emptyStages = (layers: number, stages: number, virtual = 1): string | undefined => {
  if (layers === 0 || stages * virtual <= layers) return undefined
  const asked = virtual === 1 ? `pp=${stages}` : `pp=${stages} with ${virtual} virtual stages each`
  return `${asked} leaves stages without a layer, as the model has ${layers}`
}
