// SPDX-License-Identifier: Apache-2.0
/**
 * The process group that a launcher's environment describes. Owns the meaning of every variable involved:
 *
 * | what            | first of                                                                                          |
 * | --------------- | ------------------------------------------------------------------------------------------------- |
 * | rank, size      | RANK, WORLD_SIZE; SLURM_PROCID, SLURM_NTASKS; OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; one rank |
 * | rank on machine | LOCAL_RANK; SLURM_LOCALID; OMPI_COMM_WORLD_LOCAL_RANK; 0                                           |
 * | host            | 127.0.0.1 if all ranks are on one machine; MASTER_ADDR; SLURM_STEP_NODELIST's first; SLURM_LAUNCH_NODE_IPADDR |
 * | port            | TENSORFERRY_PORT; MASTER_PORT + 1                                                                 |
 * | token, deadline | TENSORFERRY_TOKEN; TENSORFERRY_DEADLINE (seconds, or a text such as "2 minutes")                   |
 *
 * Invariant: an environment that is half set or contradicts itself is an error that names the variable, never a guess. An
 * empty variable counts as unset.
 */
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Redacted from "effect/Redacted"
import type * as EffectScope from "effect/Scope"
import type { Rank } from "../base/Ids.ts"
import {
  ProcessGroup,
  type ProcessGroupError,
  type ProcessGroupShape,
  processGroupError
} from "../service/ProcessGroup.ts"
import { makeSingle } from "./ProcessGroupInProcess.ts"
import { make as makeTcp } from "./ProcessGroupTcp.ts"

/** What a launcher's variables say of this process: rank, size, where rank 0 listens, token and deadline. */
export interface ProcessGroupEnvironment {
  /** Whose variables were used. */
  readonly launcher: "torchrun" | "slurm" | "openmpi" | "none"
  readonly rank: Rank
  readonly size: number
  /** Number of this process among those of its machine. */
  readonly localRank: number
  /** Where the ranks meet; undefined for a job of one rank. */
  readonly address: { readonly host: string; readonly port: number } | undefined
  readonly token: Redacted.Redacted | undefined
  /** Undefined: the default. */
  readonly deadline: Duration.Duration | undefined
}

const names = [
  "RANK",
  "WORLD_SIZE",
  "LOCAL_RANK",
  "LOCAL_WORLD_SIZE",
  "MASTER_ADDR",
  "MASTER_PORT",
  "SLURM_PROCID",
  "SLURM_NTASKS",
  "SLURM_LOCALID",
  "SLURM_STEP_NODELIST",
  "SLURM_LAUNCH_NODE_IPADDR",
  "OMPI_COMM_WORLD_RANK",
  "OMPI_COMM_WORLD_SIZE",
  "OMPI_COMM_WORLD_LOCAL_RANK",
  "OMPI_COMM_WORLD_LOCAL_SIZE",
  "TENSORFERRY_PORT",
  "TENSORFERRY_TOKEN",
  "TENSORFERRY_DEADLINE"
] as const
type Name = (typeof names)[number]
type Values = { readonly [K in Name]?: string }

const invalid = (name: Name, detail: string, remedy: string): ProcessGroupError =>
  processGroupError("InvalidEnvironment", [], { detail: `${name} ${detail}.`, remedy })

/** Never part of a message, unlike the other values. */
const secret: Name = "TENSORFERRY_TOKEN"

const readValues: Effect.Effect<Values, ProcessGroupError> = Effect.gen(function* () {
  // Imported where it is used: it brings streams and files along, which the import of core does without.
  const Config = yield* Effect.promise(() => import("effect/Config"))
  const entries = yield* Effect.forEach(names, (name) =>
    Effect.mapBoth(Config.option(Config.String(name)), {
      onFailure: (error) =>
        invalid(
          name,
          name === secret ? "cannot be read" : `cannot be read: ${error.message}`,
          "Set it to a plain text."
        ),
      onSuccess: (value) =>
        Option.match(value, { onNone: () => [], onSome: (text) => (text === "" ? [] : [[name, text]]) })
    })
  )
  return Object.fromEntries(entries.flat()) as Values
})

const natural = Effect.fnUntraced(function* (
  values: Values,
  name: Name,
  limit: number
): Effect.fn.Return<number, ProcessGroupError> {
  const text = values[name]
  if (text === undefined) return yield* invalid(name, "is not set", "Start the ranks with a launcher that sets it.")
  if (!/^\d+$/.test(text) || Number(text) > limit) {
    return yield* invalid(name, `is "${text}"`, `Set it to a whole number from 0 to ${limit}.`)
  }
  return Number(text)
})

const maxRanks = 2 ** 31 - 1
const maxPort = 65535

/** First host of a Slurm node list: `node[03-07,12],other` gives `node03`. Undefined for what is no such list. */
export const firstHost = (nodeList: string): string | undefined => {
  const match = /^([^[\],\s]+)(?:\[(\d+)[^[\]]*\]([^[\],\s]*))?(?:,|$)/.exec(nodeList.trim())
  return match === null ? undefined : `${match[1]}${match[2] ?? ""}${match[3] ?? ""}`
}

/** True for a list that is one plain name. */
const isOneHost = (nodeList: string): boolean => /^[^[\],\s]+(?:\[\d+\])?$/.test(nodeList.trim())

interface LauncherNames {
  readonly launcher: "torchrun" | "slurm" | "openmpi"
  readonly rank: Name
  readonly size: Name
  readonly localRank: Name
}
const torchrun: LauncherNames = { launcher: "torchrun", rank: "RANK", size: "WORLD_SIZE", localRank: "LOCAL_RANK" }
const slurm: LauncherNames = {
  launcher: "slurm",
  rank: "SLURM_PROCID",
  size: "SLURM_NTASKS",
  localRank: "SLURM_LOCALID"
}
const openmpi: LauncherNames = {
  launcher: "openmpi",
  rank: "OMPI_COMM_WORLD_RANK",
  size: "OMPI_COMM_WORLD_SIZE",
  localRank: "OMPI_COMM_WORLD_LOCAL_RANK"
}

const launcherOf = (values: Values): LauncherNames | undefined => {
  if (values.RANK !== undefined || values.WORLD_SIZE !== undefined) return torchrun
  // Slurm sets the number of tasks in plain shells of an allocation too; only a started task has a number.
  if (values.SLURM_PROCID !== undefined) return slurm
  if (values.OMPI_COMM_WORLD_RANK !== undefined || values.OMPI_COMM_WORLD_SIZE !== undefined) return openmpi
  return undefined
}

const hostOf = (
  values: Values,
  { launcher }: LauncherNames,
  size: number
): Effect.Effect<string, ProcessGroupError> => {
  const nodeList = values.SLURM_STEP_NODELIST
  const isOneMachine = {
    torchrun: values.LOCAL_WORLD_SIZE === String(size),
    slurm: nodeList !== undefined && isOneHost(nodeList),
    openmpi: values.OMPI_COMM_WORLD_LOCAL_SIZE === String(size)
  }[launcher]
  if (isOneMachine) return Effect.succeed("127.0.0.1")
  if (values.MASTER_ADDR !== undefined) return Effect.succeed(values.MASTER_ADDR)
  if (launcher === "slurm" && nodeList !== undefined) {
    const host = firstHost(nodeList)
    return host === undefined
      ? Effect.fail(invalid("SLURM_STEP_NODELIST", `is "${nodeList}"`, "Set MASTER_ADDR to the host of rank 0."))
      : Effect.succeed(host)
  }
  if (launcher === "slurm" && values.SLURM_LAUNCH_NODE_IPADDR !== undefined) {
    return Effect.succeed(values.SLURM_LAUNCH_NODE_IPADDR)
  }
  const local = { torchrun: "LOCAL_WORLD_SIZE", slurm: undefined, openmpi: "OMPI_COMM_WORLD_LOCAL_SIZE" }[launcher]
  const stated = local === undefined ? undefined : values[local as Name]
  return Effect.fail(
    local === undefined
      ? invalid("MASTER_ADDR", "is not set", "Set it to the host of rank 0 on every rank.")
      : invalid(
          "MASTER_ADDR",
          `is not set, and ${local} ${stated === undefined ? "is not set either" : `is ${stated} of ${size} ranks`}, so the ranks may be on several machines`,
          `Set MASTER_ADDR to the host of rank 0 on every rank; where all ranks are on this machine, set ${local} to ${size} instead.`
        )
  )
}

const portOf = Effect.fnUntraced(function* (values: Values): Effect.fn.Return<number, ProcessGroupError> {
  if (values.TENSORFERRY_PORT !== undefined) return yield* natural(values, "TENSORFERRY_PORT", maxPort)
  if (values.MASTER_PORT !== undefined) return (yield* natural(values, "MASTER_PORT", maxPort - 1)) + 1
  return yield* invalid("TENSORFERRY_PORT", "is not set, nor is MASTER_PORT", "Set it to a free port of rank 0's host.")
})

const deadlineOf = (text: string | undefined): Effect.Effect<Duration.Duration | undefined, ProcessGroupError> => {
  if (text === undefined) return Effect.succeed(undefined)
  const parsed = /^\d+(\.\d+)?$/.test(text)
    ? Option.some(Duration.seconds(Number(text)))
    : Duration.fromInput(text as Duration.Input)
  return Option.isSome(parsed) && Duration.toMillis(parsed.value) > 0
    ? Effect.succeed(parsed.value)
    : Effect.fail(
        invalid(
          "TENSORFERRY_DEADLINE",
          `is "${text}"`,
          'Set it to seconds, such as 90, or to a text such as "2 minutes".'
        )
      )
}

/** Reads and checks the environment, without joining anything. */
export const readEnvironment: Effect.Effect<ProcessGroupEnvironment, ProcessGroupError> = Effect.gen(function* () {
  const values = yield* readValues
  const deadline = yield* deadlineOf(values.TENSORFERRY_DEADLINE)
  const token = values.TENSORFERRY_TOKEN === undefined ? undefined : Redacted.make(values.TENSORFERRY_TOKEN)
  const launcher = launcherOf(values)
  if (launcher === undefined) {
    return { launcher: "none", rank: 0, size: 1, localRank: 0, address: undefined, token, deadline }
  }
  const rank = yield* natural(values, launcher.rank, maxRanks)
  const size = yield* natural(values, launcher.size, maxRanks)
  if (rank >= size) {
    return yield* invalid(
      launcher.rank,
      `is ${rank}, but ${launcher.size} is ${size}`,
      "Give ranks from 0 to size - 1."
    )
  }
  const localRank = values[launcher.localRank] === undefined ? 0 : yield* natural(values, launcher.localRank, maxRanks)
  if (localRank >= size) {
    return yield* invalid(
      launcher.localRank,
      `is ${localRank}, but ${launcher.size} is ${size}`,
      "A machine cannot hold more ranks than the job."
    )
  }
  const address = size === 1 ? undefined : { host: yield* hostOf(values, launcher, size), port: yield* portOf(values) }
  return { launcher: launcher.launcher, rank, size, localRank, address, token, deadline }
})

/** Joins the group that the environment describes; a job of one rank needs no socket. */
export const fromEnvironment: Effect.Effect<ProcessGroupShape, ProcessGroupError, EffectScope.Scope> = Effect.gen(
  function* () {
    const { rank, size, address, token, deadline } = yield* readEnvironment
    const options = deadline === undefined ? {} : { deadline }
    return address === undefined
      ? yield* makeSingle(options)
      : yield* makeTcp({
          rank,
          size,
          ...address,
          ...options,
          ...(token === undefined ? {} : { token: Redacted.value(token) })
        })
  }
)

/** The group that the launcher's variables describe; one rank where there are none. */
export const layer: Layer.Layer<ProcessGroup, ProcessGroupError> = Layer.effect(ProcessGroup, fromEnvironment)
