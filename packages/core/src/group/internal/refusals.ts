// SPDX-License-Identifier: Apache-2.0
/**
 * The connections that rank 0 has turned away, for the people who wait.
 *
 * Invariant: nobody has proved to be a rank of the job here, so nothing ends because of it, and however many come, little
 * is kept and little is reported.
 */

/** Kinds that are listed apart; a kind is an address and a reason. */
const mostKinds = 8

/** A stranger's own words may be in it: one line of plain characters, and not too long. */
export const plainText = (detail: string): string => detail.replace(/[^ -~]+/g, " ").slice(0, 300)

export interface Refusals {
  /** True the first time that this reason comes from this address, while there are few. The detail is plain. */
  readonly add: (address: string, detail: string) => boolean
  /** What was refused so far, in sentences behind a blank; empty where nothing was. */
  readonly text: () => string
}

const times = (count: number): string => (count === 1 ? "" : `, ${count} times`)

export const makeRefusals = (): Refusals => {
  const kinds = new Map<string, { readonly address: string; readonly detail: string; count: number }>()
  let total = 0
  let others = 0
  return {
    add: (address, detail) => {
      total += 1
      const key = `${address} ${detail}`
      const known = kinds.get(key)
      if (known !== undefined) known.count += 1
      else if (kinds.size === mostKinds) others += 1
      else kinds.set(key, { address, detail, count: 1 })
      return known === undefined && others === 0
    },
    text: () => {
      if (total === 0) return ""
      const listed = [...kinds.values()].map(
        ({ address, detail, count }) => ` From ${address}${times(count)}: ${detail}`
      )
      const rest = others === 0 ? "" : ` ${others} more are not listed.`
      return ` ${total} ${total === 1 ? "connection was" : "connections were"} refused.${listed.join("")}${rest}`
    }
  }
}
