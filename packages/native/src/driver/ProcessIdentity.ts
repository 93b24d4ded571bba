// SPDX-License-Identifier: Apache-2.0
/**
 * Which process this is, in words that another process can compare with its own.
 *
 * Invariant: equal identities mean one process; equal hosts one running kernel. Where /proc cannot be read, the host is a
 * random word, so that nobody takes two machines for one.
 */
import { randomUUID } from "node:crypto"
import { readFileSync, readlinkSync } from "node:fs"
import { processStart } from "@tensorferry/core/group/processStart"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

const Word = Schema.String.check(Schema.isMaxLength(256))

/** Names a process among all that ranks may run in. */
export const ProcessIdentity = Schema.Struct({
  /** Names the boot of the machine. */
  host: Word,
  /** Names the space in which the process number counts. */
  space: Word,
  pid: Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 })),
  /** Clock ticks from boot to start; with the number it names a process for ever. */
  start: Word
})
export type ProcessIdentity = typeof ProcessIdentity.Type

const read = (file: string): string | undefined =>
  Result.getOrUndefined(Result.try(() => readFileSync(file, "latin1").trim()))

let own: ProcessIdentity | undefined

/** The identity of this process. */
export const processIdentity = (): ProcessIdentity => {
  own ??= {
    host: read("/proc/sys/kernel/random/boot_id") ?? randomUUID(),
    space: Result.getOrElse(
      Result.try(() => readlinkSync("/proc/self/ns/pid")),
      () => "unknown"
    ),
    pid: process.pid,
    start: processStart("self") ?? randomUUID()
  }
  return own
}

/** Names the loopback of this process: containers of one host may each have their own. */
export const networkSpace = (): string =>
  Result.getOrElse(
    Result.try(() => readlinkSync("/proc/self/ns/net")),
    () => "unknown"
  )

/** Whether two processes run under one kernel. */
export const isSameHost = (a: ProcessIdentity, b: ProcessIdentity): boolean => a.host === b.host

/** Whether two identities are of one process. */
export const isSameProcess = (a: ProcessIdentity, b: ProcessIdentity): boolean =>
  a.host === b.host && a.space === b.space && a.pid === b.pid && a.start === b.start

/** False only where the process is known to have ended. */
export const mayBeAlive = (self: ProcessIdentity, other: ProcessIdentity): boolean => {
  const canSee = self.host === other.host && self.space === other.space
  return !canSee || processStart(other.pid) === other.start
}

/** The first of some peers whose process is known to have ended. */
export const firstEnded = (self: ProcessIdentity, peers: ReadonlyMap<number, ProcessIdentity>): number | undefined =>
  [...peers].find(([, process]) => !mayBeAlive(self, process))?.[0]

/** Short and unique, for keys. */
export const processKey = ({ host, space, pid, start }: ProcessIdentity): string => `${host} ${space} ${pid} ${start}`
