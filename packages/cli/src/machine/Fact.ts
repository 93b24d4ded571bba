// SPDX-License-Identifier: Apache-2.0
/**
 * One thing that is known about this machine, for people as a line and for programs as data.
 *
 * Invariant: a remedy is stated exactly where something is missing or in the way.
 */
export interface Fact {
  readonly name: string
  /** One short line. */
  readonly summary: string
  /** The same in numbers and words that a program can use; sizes are bytes. */
  readonly data: { readonly [field: string]: unknown }
  readonly remedy?: string
}

export const fact = (name: string, summary: string, data: Fact["data"], remedy?: string): Fact => ({
  name,
  summary,
  data,
  ...(remedy === undefined ? {} : { remedy })
})
