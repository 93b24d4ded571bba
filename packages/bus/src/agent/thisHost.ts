// SPDX-License-Identifier: Apache-2.0
/** Which machine an agent runs on: processes of one boot of one kernel share memory, and others do not. */
import { readFileSync } from "node:fs"
import { hostname } from "node:os"
import * as Result from "effect/Result"

/** A machine: equal ids mean the same one; the name is for people. */
export interface HostIdentity {
  readonly id: string
  readonly name: string
}

export const thisHost = (): HostIdentity => {
  const read = Result.try(() => readFileSync("/proc/sys/kernel/random/boot_id", "latin1").trim())
  const name = hostname()
  return { id: Result.getOrElse(read, () => name), name }
}
