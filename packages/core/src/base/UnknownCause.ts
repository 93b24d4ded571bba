// SPDX-License-Identifier: Apache-2.0
/**
 * What code of others threw, in one line: the message and the place in that code, which is the first of the stack that is
 * neither Node's own nor of a library that only carries it.
 */

/** ` at name (file:///a.js:1:2)`, ` at async file:///a.js:1:2`. */
const framePattern = /^\s+at (?:.* \()?(?:async )?([^()\s][^()]*:\d+:\d+)\)?$/

/** The line above the source that cannot be parsed: `/a.ts:2`. */
const sourcePattern = /^(?:file:\/\/)?(\/.*:\d+)$/

const isCarrier = (place: string): boolean => /\/node_modules\/(@tensorferry\/core|@?effect)\//.test(place)

const asPath = (place: string): string => place.replace(/^file:\/\//, "")

/** The first place of a stack in code of others; without one, in any code but Node's own. */
export const placeInStack = (stack: string): string | undefined => {
  const lines = stack.split("\n")
  const source = sourcePattern.exec(lines[0] ?? "")?.[1]
  if (source !== undefined) return source
  const places = lines.flatMap((line) => {
    const place = framePattern.exec(line)?.[1]
    return place === undefined || place.startsWith("node:") ? [] : [asPath(place)]
  })
  return places.find((place) => !isCarrier(place)) ?? places[0]
}

/** The message of anything that was thrown; errors of a kind of their own say which. */
export const messageOf = (thrown: unknown): string => {
  if (!(thrown instanceof Error)) return String(thrown)
  if (thrown.name === "Error") return thrown.message || "An Error without a message"
  return thrown.message === "" ? thrown.name : `${thrown.name}: ${thrown.message}`
}

/** Message and place. */
export const describeThrown = (thrown: unknown): string => {
  const place = thrown instanceof Error && thrown.stack !== undefined ? placeInStack(thrown.stack) : undefined
  return place === undefined ? messageOf(thrown) : `${messageOf(thrown)} (at ${place})`
}

/** Message and place of what Node printed of an error that nobody caught; undefined where it printed no stack. */
export const describeCrash = (output: string): string | undefined => {
  const lines = output.split("\n")
  const first = lines.findIndex((line) => framePattern.test(line))
  if (first < 1) return undefined
  // A message may have several lines; the one that begins it names the kind of error.
  const begins = lines.slice(0, first).findLastIndex((line) => /^[\w$]*(Error|Exception)\b.*$/.test(line))
  const message = lines[begins < 0 ? first - 1 : begins]!
  const place = placeInStack(lines.slice(first).join("\n"))
  return place === undefined ? message : `${message} (at ${place})`
}
