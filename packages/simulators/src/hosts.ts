// SPDX-License-Identifier: Apache-2.0
/**
 * Hosts of a test as network namespaces of this machine, joined by virtual cables: commands run on them, links are shaped,
 * cut and healed, a host is gone. Only root may make them.
 *
 * Invariant: everything is gone when the scope ends, processes first. Names hold this process's number, so that runs do not
 * meet.
 */
import assert from "node:assert/strict"
import { type ChildProcess, type SpawnOptions, spawn, spawnSync } from "node:child_process"
import { randomUUID } from "node:crypto"
import { once } from "node:events"
import { readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import * as Effect from "effect/Effect"
import type * as Scope from "effect/Scope"
import { slowWire } from "./libraries.ts"

/** What the hosts are to be. */
export interface HostsInput {
  readonly count: number
  /** Cables from each host, each to a switch of its own; 1 by default. */
  readonly links?: number
  /** Two hosts are joined directly, without a switch between them. */
  readonly isDirect?: boolean
  readonly mtu?: number
  /** Each host seems to have a kernel of its own: its processes see none of another, and the name of its boot is another. */
  readonly hasOwnProcesses?: boolean
}

/** One host. */
export interface Host {
  readonly name: string
  /** Of IPv4, by link. */
  readonly addresses: ReadonlyArray<string>
  /** Of IPv6, by link. */
  readonly addresses6: ReadonlyArray<string>
  /** Starts a command there; it is killed when the scope ends. */
  readonly start: (command: string, values: ReadonlyArray<string>, options?: SpawnOptions) => ChildProcess
  /** Runs a command there to its end; what it printed. */
  readonly run: (command: string, values: ReadonlyArray<string>) => string
  /** Pulls the cable: nothing arrives any more, and neither end is told. */
  readonly cut: (link?: number) => void
  readonly heal: (link?: number) => void
  /** Bits per second that leave the host by a link. */
  readonly limit: (bitsPerSecond: number, link?: number) => void
  /** The host is gone, with all that runs on it, as by a power cut: it takes leave of nobody. */
  readonly remove: () => void
}

/** A cable that takes its time. */
export interface LongCable {
  readonly bitsPerSecond: number
  /** Each way. */
  readonly delayMicros: number
  /** Of a million packets. */
  readonly lossPerMillion: number
}

/**
 * Joins two hosts by such a cable until the scope ends; the address of each at it. Packets have 1500 bytes, and 4 MiB of them
 * wait where it begins.
 */
export const joinByLongCable = (
  first: Host,
  second: Host,
  { bitsPerSecond, delayMicros, lossPerMillion }: LongCable
): Effect.Effect<readonly [string, string], never, Scope.Scope> =>
  Effect.map(
    Effect.acquireRelease(
      Effect.promise(async () => {
        const shape = [1500, bitsPerSecond, delayMicros, lossPerMillion, 2 ** 22].map(String)
        const child = spawn(slowWire, [first.name, second.name, "long0", ...shape], {
          stdio: ["pipe", "pipe", "inherit"]
        })
        const ended = once(child, "close")
        await once(child.stdout!, "data")
        for (const [at, { name }] of [first, second].entries()) {
          ip(`-n ${name} link set long0 mtu 1500 txqueuelen 10000 up`)
          ip(`-n ${name} addr add 10.78.0.${at + 1}/24 dev long0`)
        }
        return { child, ended }
      }),
      ({ child, ended }) =>
        Effect.promise(() => {
          child.stdin!.end()
          return ended
        })
    ),
    () => ["10.78.0.1", "10.78.0.2"] as const
  )

/** Why no hosts can be made here; undefined where they can. */
export const noHosts = (): string | undefined => {
  if (process.platform !== "linux" || process.getuid?.() !== 0) return "network namespaces need Linux and root"
  for (const tool of ["ip", "tc"]) {
    if (spawnSync(tool, ["-V"]).status !== 0) return `the command ${tool} is missing (Debian package iproute2)`
  }
  const probe = `tf-probe-${process.pid}`
  const isMade = spawnSync("ip", ["netns", "add", probe]).status === 0
  spawnSync("ip", ["netns", "del", probe])
  return isMade ? undefined : "this system makes no network namespaces"
}

const ip = (text: string): void => {
  const ended = spawnSync("ip", text.split(" "), { encoding: "utf8" })
  assert.equal(ended.status, 0, `ip ${text}: ${ended.stderr}`)
}

let made = 0

/** Hosts until the scope ends. Fails, as a defect, where `noHosts` says why. */
export const makeHosts = (input: HostsInput): Effect.Effect<ReadonlyArray<Host>, never, Scope.Scope> =>
  Effect.acquireRelease(
    Effect.sync(() => build(input)),
    ({ close }) => Effect.promise(close)
  ).pipe(
    Effect.tap(({ separate }) => (input.hasOwnProcesses === true ? Effect.promise(separate) : Effect.void)),
    Effect.map(({ hosts }) => hosts)
  )

/** The first process of a host that has its own: others begin beside it, and end with it. */
interface Keeper {
  readonly child: ChildProcess
  readonly pid: string
}

const startKeeper = async (name: string): Promise<Keeper> => {
  const separate = "unshare --pid --fork --kill-child --mount-proc".split(" ")
  const boot = join(tmpdir(), `${name}-boot`)
  writeFileSync(boot, `${randomUUID()}\n`)
  // Says that it is there, and stays until its input ends.
  const stay = ["sh", "-c", `mount --bind ${boot} /proc/sys/kernel/random/boot_id && echo && exec cat`]
  const child = spawn("ip", ["netns", "exec", name, ...separate, ...stay], { stdio: ["pipe", "pipe", "inherit"] })
  const ended = once(child, "close").then(() => assert.fail(`host ${name} has no processes of its own`))
  await Promise.race([once(child.stdout!, "data"), ended])
  // The mount keeps it.
  rmSync(boot)
  return { child, pid: onlyChildOf(child.pid!)! }
}

const onlyChildOf = (pid: number): string | undefined => {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, "utf8").trim() || undefined
  } catch {
    return undefined
  }
}

/** Starts a command beside the first process of a host. It is a child of the process that Node knows, and gets its signals. */
const startBeside = (
  keeper: Keeper,
  command: string,
  values: ReadonlyArray<string>,
  options: SpawnOptions
): ChildProcess => {
  const child = spawn("nsenter", ["-t", keeper.pid, "-m", "-n", "-p", command, ...values], options)
  const kill = child.kill.bind(child)
  child.kill = (signal) => {
    const inner = child.pid === undefined ? undefined : onlyChildOf(child.pid)
    return inner === undefined ? kill(signal) : process.kill(Number(inner), signal ?? "SIGTERM")
  }
  return child
}

const build = ({ count, links = 1, isDirect = false, mtu = 1500 }: HostsInput) => {
  const prefix = `tf${process.pid}-${made++}`
  const nameOf = (host: number) => `${prefix}-${host}`
  const names = Array.from({ length: count }, (_, host) => nameOf(host))
  const hub = `${prefix}-hub`
  const children = new Set<ChildProcess>()
  const keepers: Array<Keeper> = []
  const all = isDirect ? names : [...names, hub]
  for (const name of all) {
    ip(`netns add ${name}`)
    ip(`-n ${name} link set lo up`)
  }
  const addressOf = (host: number, link: number) => `10.77.${link}.${host + 1}`
  const address6Of = (host: number, link: number) => `fd77:${link}::${host + 1}`
  const setUp = (host: number, link: number) => {
    const [name, device] = [nameOf(host), `eth${link}`]
    ip(`-n ${name} link set ${device} mtu ${mtu} up`)
    ip(`-n ${name} addr add ${addressOf(host, link)}/24 dev ${device}`)
    ip(`-n ${name} addr add ${address6Of(host, link)}/64 dev ${device} nodad`)
  }
  for (let link = 0; link < links; link++) {
    if (isDirect) {
      ip(`link add eth${link} netns ${nameOf(0)} type veth peer name eth${link} netns ${nameOf(1)}`)
    } else {
      ip(`-n ${hub} link add switch${link} type bridge`)
      ip(`-n ${hub} link set switch${link} up`)
      for (let host = 0; host < count; host++) {
        ip(`link add eth${link} netns ${nameOf(host)} type veth peer name port${host}-${link} netns ${hub}`)
        ip(`-n ${hub} link set port${host}-${link} mtu ${mtu} master switch${link} up`)
      }
    }
    for (let host = 0; host < count; host++) setUp(host, link)
  }

  const hostOf = (host: number): Host => {
    const name = nameOf(host)
    const own = new Set<ChildProcess>()
    return {
      name,
      addresses: Array.from({ length: links }, (_, link) => addressOf(host, link)),
      addresses6: Array.from({ length: links }, (_, link) => address6Of(host, link)),
      start: (command, values, options = {}) => {
        const keeper = keepers[host]
        const child =
          keeper === undefined
            ? spawn("ip", ["netns", "exec", name, command, ...values], options)
            : startBeside(keeper, command, values, options)
        for (const set of [own, children]) set.add(child)
        child.once("close", () => children.delete(child))
        return child
      },
      run: (command, values) => {
        const ended = spawnSync("ip", ["netns", "exec", name, command, ...values], { encoding: "utf8" })
        assert.equal(ended.status, 0, `${command} on ${name}: ${ended.stderr}`)
        return ended.stdout
      },
      cut: (link = 0) => ip(`-n ${hub} link set port${host}-${link} nomaster`),
      heal: (link = 0) => ip(`-n ${hub} link set port${host}-${link} master switch${link}`),
      limit: (bitsPerSecond, link = 0) => {
        const shape = `rate ${bitsPerSecond}bit burst 256k latency 50ms`.split(" ")
        const values = ["netns", "exec", name, "tc", "qdisc", "replace", "dev", `eth${link}`, "root", "tbf", ...shape]
        const ended = spawnSync("ip", values, { encoding: "utf8" })
        assert.equal(ended.status, 0, `tc on ${name}: ${ended.stderr}`)
      },
      remove: () => {
        for (let link = 0; link < links; link++) ip(`-n ${hub} link del port${host}-${link}`)
        for (const child of own) child.kill("SIGKILL")
        keepers[host]?.child.kill("SIGKILL")
      }
    }
  }

  const close = async (): Promise<void> => {
    const ends = [...children].map((child) => new Promise((resolve) => child.once("close", resolve)))
    for (const child of children) child.kill("SIGKILL")
    await Promise.all(ends)
    for (const name of all) spawnSync("ip", ["netns", "del", name])
  }
  const separate = async (): Promise<void> => {
    for (const name of names) {
      const keeper = await startKeeper(name)
      children.add(keeper.child)
      keeper.child.once("close", () => children.delete(keeper.child))
      keepers.push(keeper)
    }
  }
  return { hosts: names.map((_, host) => hostOf(host)), separate, close }
}
