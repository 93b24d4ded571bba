// SPDX-License-Identifier: Apache-2.0
/**
 * Fleets on hosts of this machine: network namespaces whose links have 1 Gbit/s, an etcd, and processes that move bytes over TCP.
 * A version of 256 MiB for eight replicas on hosts of their own beside one for a single replica, and beside a chain of plain
 * sockets; what leaves the source's host;
 * how long the others take when one of eight replicas dies in an update, and until another in its place serves.
 */
import { type ChildProcess, spawnSync } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, readFileSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import { uniformTopology } from "@tensorferry/fleet/topology/Topology"
import type { FleetTimes } from "@tensorferry/fleet/version/FleetTimes"
import { type Host, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import type { FleetRankInput, FleetRankLine } from "./fleet-rank.ts"
import type { BenchResult } from "./measure.ts"

const rankScript = fileURLToPath(new URL("fleet-rank.ts", import.meta.url))
const bitsPerSecond = 1e9
const payload = 2 ** 28
const rounds = 3
/** More than an update takes, by far. */
const mostMillis = 240_000

/** As short as a machine with two cores for ten processes lets them be. */
const quickTimes: FleetTimes = { beat: 0.1, fence: 0.8, grace: 0.1, dead: 0.7, stage: 60, prepare: 10 }
const calmTimes: FleetTimes = { beat: 0.5, fence: 20, grace: 1, dead: 20, stage: 180, prepare: 10 }

/** Bytes that have left a host by its first cable. */
const sentBytes = (host: Host): number => {
  const [link] = JSON.parse(host.run("ip", ["-s", "-j", "link", "show", "dev", "eth0"]))
  return link.stats64.tx.bytes
}

/** Starts etcd on a host, and waits until it answers there. */
const startEtcd = async (host: Host, folder: string): Promise<string> => {
  const [url, peers] = [2379, 2380].map((port) => `http://${host.addresses[0]}:${port}`) as [string, string]
  host.start(
    "etcd",
    [
      ...["--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url],
      ...["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers, "--initial-cluster", `default=${peers}`]
    ],
    { stdio: "ignore" }
  )
  const ask = `fetch("${url}/health").then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))`
  for (;;) {
    const [code] = await once(host.start(process.execPath, ["-e", ask], { stdio: "ignore" }), "close")
    if (code === 0) return url
  }
}

/** A member, and the lines that it printed. */
class Member {
  readonly rank: number
  readonly lines: Array<FleetRankLine> = []
  readonly #child: ChildProcess
  readonly #waiting = new Set<() => void>()

  constructor(host: Host, input: FleetRankInput) {
    this.rank = input.rank
    this.#child = host.start(process.execPath, [rankScript, JSON.stringify(input)], {
      stdio: ["pipe", "pipe", "inherit"]
    })
    createInterface({ input: this.#child.stdout! }).on("line", (text) => {
      this.lines.push(JSON.parse(text) as FleetRankLine)
      for (const look of [...this.#waiting]) look()
    })
  }

  /** The first line that is wanted; fails where it does not come, with the last line that did. */
  until(wanted: (line: FleetRankLine) => boolean, what: string): Promise<FleetRankLine> {
    return new Promise((resolve, reject) => {
      const done = (): void => {
        this.#waiting.delete(look)
        clearTimeout(timer)
      }
      const look = (): void => {
        const found = this.lines.find(wanted)
        if (found === undefined) return
        done()
        resolve(found)
      }
      const timer = setTimeout(() => {
        done()
        reject(new Error(`rank ${this.rank} did not ${what}: ${JSON.stringify(this.lines.at(-1))}`))
      }, mostMillis)
      this.#waiting.add(look)
      look()
    })
  }

  async publish(version: number): Promise<FleetRankLine> {
    this.#child.stdin!.write(`${version}\n`)
    const line = await this.until(({ published }) => published === `${version}`, `publish ${version}`)
    if (line.failure !== undefined) throw new Error(line.failure)
    return line
  }

  /** The line with which it began to serve a version; all of its bytes are the version's. */
  async serves(version: number): Promise<FleetRankLine> {
    const line = await this.until(({ serving }) => serving === `${version}`, `serve ${version}`)
    if (line.value !== version) throw new Error(`version ${version} has bytes ${line.value}`)
    return line
  }

  kill(): void {
    this.#child.kill("SIGKILL")
  }
}

/** A source on the first host, and so many replicas on the next. The store is on a host of its own. */
const makeFleet = async (hosts: ReadonlyArray<Host>, folder: string, byteLength: number, times: FleetTimes) => {
  const ranks = hosts.length - 1
  for (const host of hosts) host.limit(bitsPerSecond)
  const store = await startEtcd(hosts.at(-1)!, folder)
  const topology = uniformTopology({
    hosts: ranks,
    ranksPerHost: 1,
    bytesPerSecond: bitsPerSecond / 8,
    latencySeconds: 1e-4
  })
  const start = (rank: number): Member =>
    new Member(hosts[rank]!, { rank, address: hosts[rank]!.addresses[0]!, store, byteLength, topology, times })
  const [source, ...members] = Array.from({ length: ranks }, (_, rank) => start(rank))
  await source!.until((line) => line.members === ranks, "see all members")
  return { start, source: source!, members }
}

const onHosts = <A>(count: number, use: (hosts: ReadonlyArray<Host>, folder: string) => Promise<A>): Promise<A> =>
  Effect.runPromise(
    Effect.scoped(
      Effect.gen(function* () {
        const folder = yield* Effect.acquireRelease(
          Effect.sync(() => mkdtempSync(path.join(tmpdir(), "tensorferry-bench-"))),
          (made) => Effect.sync(() => rmSync(made, { recursive: true, force: true }))
        )
        const hosts = yield* makeHosts({ count })
        return yield* Effect.promise(() => use(hosts, folder))
      })
    )
  )

/** Seconds that all processors of this machine have worked since it started, for whomever. */
const busySeconds = (): number => {
  const [user, nice, system, , , irq, softirq] = readFileSync("/proc/stat", "utf8").split(/\s+/).slice(1, 8).map(Number)
  // The system counts hundredths.
  return (user! + nice! + system! + irq! + softirq!) / 100
}

/**
 * A chain of plain sockets: each host passes on what it receives, and proves nothing. What the system alone takes for the same
 * bytes, in the language that adds least.
 */
const plainRelay = `
import socket, sys, time
address, onward, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
memory = memoryview(bytearray(size)); got = size
if address:
    listener = socket.create_server((address, 4712)); print("ready", flush=True)
out = socket.create_connection((onward, 4712)) if onward else None
begun = time.monotonic()
if address:
    s, _ = listener.accept(); got = 0
sent = 0
while sent < size:
    if got < size:
        end = min(size, got + 2**20)
        while got < end: got += s.recv_into(memory[got:end])
    if out: out.sendall(memory[sent:min(got, sent + 2**20)])
    sent = min(got, sent + 2**20)
if out:
    out.shutdown(socket.SHUT_WR); out.recv(1)
print(begun, time.monotonic(), flush=True)
if address: s.close()
`

/** The payload over a chain of plain sockets from the first host to all of the next ones. */
const plainChain = (replicas: number) =>
  onHosts(replicas + 1, async (hosts) => {
    for (const host of hosts) host.limit(bitsPerSecond)
    const [seconds, busy]: [Array<number>, Array<number>] = [[], []]
    for (let round = 0; round < rounds; round++) {
      const relays: Array<Promise<ReadonlyArray<number>>> = []
      let before = 0
      for (const [at, host] of [...hosts.entries()].reverse()) {
        const [own, onward] = [at === 0 ? "" : host.addresses[0]!, hosts[at + 1]?.addresses[0] ?? ""]
        if (at === 0) before = busySeconds()
        const child = host.start("python3", ["-c", plainRelay, own, onward, `${payload}`], {
          stdio: ["ignore", "pipe", "inherit"]
        })
        const lines = createInterface({ input: child.stdout! })[Symbol.asyncIterator]()
        if (at > 0) await lines.next()
        relays.push(lines.next().then(({ value }) => String(value).split(" ").map(Number)))
      }
      const ends = await Promise.all(relays)
      busy.push(busySeconds() - before)
      seconds.push(Math.max(...ends.map(([, end]) => end!)) - ends.at(-1)![0]!)
    }
    return { seconds: median(seconds), busy: median(busy) }
  })

/** From the first who takes the version to the last who has proven it. */
const stagingSeconds = (members: ReadonlyArray<Member>, version: number): number => {
  const at = ({ lines }: Member, key: "staging" | "staged"): number =>
    lines.find((line) => line[key] === `${version}`)!.at
  return (
    Math.max(...members.map((each) => at(each, "staged"))) - Math.min(...members.map((each) => at(each, "staging")))
  )
}

const fanOut = (replicas: number) =>
  onHosts(replicas + 2, async (hosts, folder) => {
    const { source, members } = await makeFleet(hosts, folder, payload, calmTimes)
    const [seconds, bytes, busy]: [Array<number>, Array<number>, Array<number>] = [[], [], []]
    // The first opens the edges.
    for (let version = 1; version <= rounds + 1; version++) {
      const [before, busyBefore] = [sentBytes(hosts[0]!), busySeconds()]
      await source.publish(version)
      await Promise.all(members.map((member) => member.serves(version)))
      seconds.push(stagingSeconds(members, version))
      bytes.push(sentBytes(hosts[0]!) - before)
      busy.push(busySeconds() - busyBefore)
    }
    return {
      busy: median(busy.slice(1)),
      first: seconds[0]!,
      seconds: median(seconds.slice(1)),
      bytes: median(bytes.slice(1))
    }
  })

const now = (): number => Number(process.hrtime.bigint()) / 1e9

/** One of eight dies while it takes a version; another takes its place. */
const death = (byteLength: number) =>
  onHosts(10, async (hosts, folder) => {
    const { start, source, members } = await makeFleet(hosts, folder, byteLength, quickTimes)
    const [ends, joins]: [Array<number>, Array<number>] = [[], []]
    for (let round = 0; round < rounds; round++) {
      const version = 2 * round + 2
      await source.publish(version - 1)
      await Promise.all(members.map((member) => member.serves(version - 1)))
      const place = 1 + round
      const victim = members[place]!
      const publishing = source.publish(version)
      await victim.until(({ staging }) => staging === `${version}`, `take ${version}`)
      victim.kill()
      const died = now()
      await publishing
      const others = members.filter((member) => member !== victim)
      const served = await Promise.all(others.map((member) => member.serves(version)))
      ends.push(Math.max(...served.map(({ at }) => at)) - died)
      const joiner = start(place + 1)
      const { at } = await joiner.until(() => true, "start")
      joins.push((await joiner.serves(version)).at - at)
      members[place] = joiner
      const isBack = ({ members: count, at: seen }: FleetRankLine): boolean => count === hosts.length - 1 && seen > at
      await source.until(isBack, "see all members again")
    }
    return { end: median(ends), join: median(joins) }
  })

/** Nothing, with a message, where this machine makes no hosts or has no etcd. */
export const fleetHosts = async (): Promise<ReadonlyArray<BenchResult>> => {
  const hasEtcd = spawnSync("etcd", ["--version"]).status === 0
  const reason = noHosts() ?? (hasEtcd ? undefined : "etcd is not installed")
  if (reason !== undefined) {
    console.error(`The bench of fleets on hosts is skipped: ${reason}.`)
    return []
  }
  const one = await fanOut(1)
  const eight = await fanOut(8)
  const plain = await plainChain(8)
  const lost = 2 ** 25
  const { end, join } = await death(lost)
  const line = (8 * payload) / bitsPerSecond
  return [
    {
      case: `256 MiB to 8 replicas on hosts of 1 Gbit/s, known update (the first: ${eight.first.toPrecision(3)} s); reference is 1 replica, the line takes ${line.toPrecision(3)} s`,
      unit: "s",
      ours: eight.seconds,
      reference: one.seconds,
      target: 1.3 * one.seconds,
      lowerIsBetter: true
    },
    {
      case: "the same beside a chain of plain sockets over the same hosts, which proves nothing",
      unit: "s",
      ours: eight.seconds,
      reference: plain.seconds,
      lowerIsBetter: true
    },
    {
      case: "processor seconds of the whole machine until 8 replicas serve it; reference is that chain",
      unit: "s",
      ours: eight.busy,
      reference: plain.busy,
      lowerIsBetter: true
    },
    {
      case: "bytes that left the source's host meanwhile, headers of packets included, by payload",
      unit: "x",
      ours: eight.bytes / payload,
      target: 1.1,
      lowerIsBetter: true
    },
    {
      case: "1 of 8 dies while 32 MiB are taken: from its death until the others serve them",
      unit: "s",
      ours: end,
      target: 2,
      lowerIsBetter: true
    },
    {
      case: "another takes its place: from its start until it serves, pulled from a replica",
      unit: "s",
      ours: join,
      target: 2 + (8 * lost) / bitsPerSecond,
      lowerIsBetter: true
    }
  ]
}
