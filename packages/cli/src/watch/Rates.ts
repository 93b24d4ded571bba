// SPDX-License-Identifier: Apache-2.0
/** Bytes per second of every link, over the last seconds: members state what has arrived about once a second. */
import type { FlowView } from "@tensorferry/fleet/view/flow"

/** Seconds over which speed is counted. */
const span = 4

interface Sample {
  readonly at: number
  readonly serial: number
  readonly done: ReadonlyMap<string, number>
}

/** What a link is called. */
export const linkKey = ({ from, to }: { readonly from: string; readonly to: string }): string => `${from} ${to}`

/** Speeds, look by look. */
export class Rates {
  #samples: ReadonlyArray<Sample> = []

  /** Notes what has arrived. `now` is seconds of a clock that never goes back. */
  look(flow: FlowView | null, now: number): void {
    if (flow === null) {
      this.#samples = []
      return
    }
    const { serial, links } = flow
    const sample = { at: now, serial, done: new Map(links.map((link) => [linkKey(link), link.done])) }
    this.#samples = [...this.#samples.filter((old) => old.serial === serial && old.at > now - span), sample]
  }

  /** Bytes per second by link; a link without news has 0. */
  get now(): ReadonlyMap<string, number> {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)]
    if (first === undefined || last === undefined || last.at <= first.at) return new Map()
    const seconds = last.at - first.at
    return new Map(
      [...last.done].map(([key, done]) => [key, Math.max(0, done - (first.done.get(key) ?? 0)) / seconds] as const)
    )
  }
}
