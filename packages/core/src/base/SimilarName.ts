// SPDX-License-Identifier: Apache-2.0
/** Which known name someone may have meant. */

/** Letters to insert, remove or replace between two texts, whatever their case. */
const distance = (a: string, b: string): number => {
  const to = [...b.toLowerCase()]
  let above = Array.from({ length: to.length + 1 }, (_, at) => at)
  for (const [row, letter] of [...a.toLowerCase()].entries()) {
    const current = [row + 1]
    for (const [at, other] of to.entries()) {
      current.push(Math.min(above[at]! + (letter === other ? 0 : 1), above[at + 1]! + 1, current[at]! + 1))
    }
    above = current
  }
  return above[to.length]!
}

/** The known name that differs least; undefined where all differ in more than a third of it. */
export const nearestName = (name: string, known: Iterable<string>): string | undefined => {
  let best: { readonly name: string; readonly far: number } | undefined
  for (const one of known) {
    const far = distance(name, one)
    if (far <= Math.max(2, one.length / 3) && (best === undefined || far < best.far)) best = { name: one, far }
  }
  return best?.name
}
