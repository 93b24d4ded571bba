// SPDX-License-Identifier: Apache-2.0
/** The command on two hosts of a test, whose ranks meet over TCP as those of a launcher do. */
import type { ChildProcess } from "node:child_process"
import { fileURLToPath } from "node:url"
import { type Host, type HostsInput, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import type { Ended } from "./command.ts"

const main = fileURLToPath(new URL("../../src/main.ts", import.meta.url))

/** A command on a host. Killed with its host where it takes too long. */
export interface OnHost {
  readonly ended: Promise<Ended>
  readonly kill: () => void
}

const collect = (child: ChildProcess, limitMillis: number): OnHost => {
  let [stdout, stderr] = ["", ""]
  child.stdout!.on("data", (chunk) => {
    stdout += String(chunk)
  })
  child.stderr!.on("data", (chunk) => {
    stderr += String(chunk)
  })
  const kill = () => void child.kill("SIGKILL")
  const timer = setTimeout(kill, limitMillis)
  const ended = new Promise<Ended>((resolve) => {
    child.once("close", (code, signal) => {
      clearTimeout(timer)
      resolve({ code, signal, stdout, stderr })
    })
  })
  return { ended, kill }
}

const piped = ["ignore", "pipe", "pipe"] as ["ignore", "pipe", "pipe"]

/** Variables by which a launcher or a user changes what the command does. */
const foreign = /^(RANK|WORLD_SIZE|LOCAL_|MASTER_|SLURM_|OMPI_|TENSORFERRY_|UCX_)/

const cleanEnvironment = (): NodeJS.ProcessEnv =>
  Object.fromEntries(Object.entries(process.env).filter(([name]) => !foreign.test(name)))

let nextPort = 29_600

/** Where ranks of one job meet; another one for each job. */
const meetingAt = (host: Host): NodeJS.ProcessEnv => ({
  MASTER_ADDR: host.addresses[0]!,
  TENSORFERRY_PORT: `${nextPort++}`
})

/** Any command on a host, with these variables. */
export const commandOn = (host: Host, command: string, values: ReadonlyArray<string>, env: NodeJS.ProcessEnv): OnHost =>
  collect(host.start(command, values, { stdio: piped, env: { ...cleanEnvironment(), ...env } }), 90_000)

/** tensorferry on a host, for tests that talk to it. */
export const startOn = (host: Host, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv): ChildProcess =>
  host.start(process.execPath, [main, ...args], { stdio: piped, env: { ...cleanEnvironment(), ...env } })

/** tensorferry on a host. */
const tensorferryOn = (host: Host, args: ReadonlyArray<string>, env: NodeJS.ProcessEnv): OnHost =>
  commandOn(host, process.execPath, [main, ...args], env)

/** One rank on each host, of one job. */
export const ranksOn = (
  hosts: ReadonlyArray<Host>,
  args: ReadonlyArray<string>,
  envOf: (rank: number) => NodeJS.ProcessEnv
): ReadonlyArray<OnHost> => {
  const meeting = meetingAt(hosts[0]!)
  return hosts.map((host, rank) =>
    tensorferryOn(host, args, {
      ...meeting,
      RANK: `${rank}`,
      WORLD_SIZE: `${hosts.length}`,
      LOCAL_RANK: "0",
      LOCAL_WORLD_SIZE: "1",
      ...envOf(rank)
    })
  )
}

/** Two hosts for all tests of a file, or why there are none. Await `close` at its end. */
export const twoHosts = async (input: Partial<HostsInput> = {}) => {
  const reason = noHosts()
  if (reason !== undefined) return { reason, hosts: [] as ReadonlyArray<Host>, close: async () => {} }
  const scope = Effect.runSync(Scope.make())
  const hosts = await Effect.runPromise(Scope.provide(makeHosts({ count: 2, ...input }), scope))
  return { reason: undefined, hosts, close: () => Effect.runPromise(Scope.close(scope, Exit.void)) }
}
