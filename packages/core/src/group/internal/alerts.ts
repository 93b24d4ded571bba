// SPDX-License-Identifier: Apache-2.0
/**
 * The alerts that reached one rank, by the members that they went to.
 *
 * Invariant: a transport passes an alert on before anything that its sender does afterwards.
 */
import type { Rank } from "../../base/Ids.ts"

export const makeAlerts = () => {
  const senders = new Map<string, Array<Rank>>()
  const of = (members: ReadonlyArray<Rank>): Array<Rank> => {
    const key = members.join(",")
    const known = senders.get(key) ?? []
    senders.set(key, known)
    return known
  }
  return {
    add: (members: ReadonlyArray<Rank>, sender: Rank): void => {
      of(members).push(sender)
    },
    of
  }
}
