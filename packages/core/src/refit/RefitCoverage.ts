// SPDX-License-Identifier: Apache-2.0
/** Which elements of a tensor an update has brought: regions that do not meet, and how many elements they are. Pure. */
import { elementCount, formatRegion, type Region, regionShape, type Shape } from "../base/Region.ts"

const meet = (a: Region, b: Region): boolean =>
  a.length === b.length && a.every(([start, end], dim) => start < b[dim]![1] && b[dim]![0] < end)

export class RefitCoverage {
  readonly #regions: Array<Region> = []
  #elements = 0

  /** A region that was added before and meets this one. */
  meeting(region: Region): Region | undefined {
    return elementCount(regionShape(region)) === 0 ? undefined : this.#regions.find((known) => meet(known, region))
  }

  add(region: Region): void {
    this.#regions.push(region)
    this.#elements += elementCount(regionShape(region))
  }

  get elements(): number {
    return this.#elements
  }

  isWhole(shape: Shape): boolean {
    return this.#elements === elementCount(shape)
  }
}

/** Names of tensors that a full update leaves incomplete, with what they have. */
export const incomplete = (
  tensors: Iterable<readonly [name: string, shape: Shape]>,
  added: ReadonlyMap<string, RefitCoverage>
): ReadonlyArray<string> =>
  [...tensors].flatMap(([name, shape]) => {
    const total = elementCount(shape)
    const coverage = added.get(name)
    if (coverage !== undefined ? coverage.isWhole(shape) : false) return []
    return [`${name} (${coverage?.elements ?? 0} of ${total} elements)`]
  })

export const describeMeeting = (region: Region, before: Region): string =>
  `The region ${formatRegion(region)} meets ${formatRegion(before)}, which was added before.`
