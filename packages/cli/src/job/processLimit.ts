// SPDX-License-Identifier: Apache-2.0
/**
 * How many processes the command starts on this machine by itself.
 *
 * Invariant: a file decides nothing that the machine cannot bear. Layouts may come from a manifest or a layout file; more
 * processes than cores and memory make sane need a flag.
 */
import { availableParallelism } from "node:os"
import { type ModelError, modelError } from "@tensorferry/model/ModelError"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { formatBytes } from "../text/Table.ts"

/** What bounds the number of processes. */
export interface Machine {
  readonly cores: number
  /** Bytes that this process may still use. */
  readonly memory: number
}

const perCore = 32
/** What a rank's program takes before it holds a tensor. */
const bytesEach = 96 * 2 ** 20

/** Processes that the machine bears; a few always. */
export const processLimit = ({ cores, memory }: Machine): number =>
  Math.max(8, Math.min(cores * perCore, Math.floor(memory / bytesEach)))

const thisMachine = (): Machine => ({ cores: availableParallelism(), memory: process.availableMemory() })

/** Fails with InvalidUsage where a job needs more processes than the flag allows or, without it, the machine bears. */
export const checkProcesses = (
  size: number,
  flag: Option.Option<number>,
  machine: Machine = thisMachine()
): Effect.Effect<void, ModelError> => {
  const most = Option.getOrElse(flag, () => processLimit(machine))
  if (size <= most) return Effect.void
  const why = Option.isSome(flag)
    ? `--processes allows ${most}`
    : `this machine, with ${machine.cores} cores and ${formatBytes(machine.memory)} of free memory, bears ${most}`
  return Effect.fail(
    modelError("InvalidUsage", {
      detail: `The job needs ${size} processes; ${why}.`,
      remedy: `Use smaller layouts, start the ranks on several machines by a launcher, or pass --processes ${size}.`
    })
  )
}
