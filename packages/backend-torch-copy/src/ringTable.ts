// SPDX-License-Identifier: Apache-2.0
/**
 * The binary form in which steps of a replay ring cross into the addon, which carries them out one after the other: a word
 * for the kind, and 3 words of a copy (1), or the words of a launch (2). Events order nothing there.
 */
import { TableWriter } from "@tensorferry/native/MoveTable"
import { type LoweredStep, ringParameterWords } from "@tensorferry/native/RingProgram"

/** The table of one run. */
export const encodeRing = (steps: ReadonlyArray<LoweredStep>): BigUint64Array => {
  const writer = new TableWriter(steps.length * (1 + ringParameterWords))
  for (const step of steps) {
    if (step.kind === "copy") writer.putAll([1, step.destination, step.source, step.byteLength])
    else if (step.kind === "launch") writer.putAll([2, ...step.words])
  }
  return writer.table
}
