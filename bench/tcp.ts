// SPDX-License-Identifier: Apache-2.0
/**
 * The backend tcp between two network namespaces. Over a cable of virtual Ethernet: 1 GiB in one piece and in 262,144 regions
 * of 4 KiB, against iperf3 with 8 streams, and messages of 4 KiB back and forth against sockets that do nothing else, all
 * taking turns. Over a cable of 1 Gbit/s with a round trip of 20 ms, without and with loss, against the cable.
 */
import { once } from "node:events"
import { median } from "@tensorferry/core/base/Numbers"
import { type Host, joinByLongCable, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import { type Places, type Ranks, startRanks } from "./child.ts"
import type { BenchResult } from "./measure.ts"
import type { TcpRankInput, TcpRankRequest } from "./tcp-rank.ts"

const rounds = 5
const gibibyte = 2 ** 30

/** Blocking sockets in a language that adds little: the smallest time that processes can reach here. */
const bareSockets = `
import socket, sys, time
server, address, size, rounds = sys.argv[1] == "server", sys.argv[2], 4096, int(sys.argv[3])
def receive(s):
    left = size
    while left: left -= len(s.recv(left))
if server:
    listener = socket.create_server((address, 4711)); print("ready", flush=True); s, _ = listener.accept()
else: s = socket.create_connection((address, 4711))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
data, begun = bytes(size), time.monotonic()
for _ in range(rounds):
    if server: receive(s); s.sendall(data)
    else: s.sendall(data); receive(s)
if not server: print((time.monotonic() - begun) / rounds * 1e6)
`

/** A question to both ranks. */
export type Ask = Ranks<TcpRankRequest>["ask"]

/** Both ranks, joined, on hosts or beside each other. */
export const startRanksOf = (
  places: Places,
  shape: Pick<TcpRankInput, "driver" | "host">,
  optionsOf: (rank: number) => object
): Promise<Ranks<TcpRankRequest>> =>
  startRanks(places, "tcp-rank.ts", (rank, port): TcpRankInput => ({ ...shape, rank, port, options: optionsOf(rank) }))

const ranksOf = async (hosts: readonly [Host, Host], addresses: readonly [string, string]): Promise<Ask> => {
  const optionsOf = (rank: number) => ({ addresses: [addresses[rank]!], token: "bench" })
  return (await startRanksOf(hosts, { driver: "tcp", host: addresses[0] }, optionsOf)).ask
}

/** Bytes per second of one run, and processor seconds of both ranks per GiB. */
export const move = async (ask: Ask, byteLength: number) => {
  const answers = await ask({ run: true })
  const of = (name: string) => answers.map((answer) => Number(answer[name]))
  const seconds = Math.max(...of("ended")) - Math.min(...of("begun"))
  const processor = of("processor").reduce((sum, each) => sum + each) / (byteLength / gibibyte)
  return { rate: byteLength / seconds, processor }
}

const iperf = async ([client, server]: readonly [Host, Host], address: string, seconds: number) => {
  const listening = server.start("iperf3", ["--server", "--one-off", "--forceflush"], {
    stdio: ["ignore", "pipe", "inherit"]
  })
  const ended = once(listening, "close")
  await once(listening.stdout!, "data")
  listening.stdout!.resume()
  const values = ["--client", address, "--parallel", "8", "--time", String(seconds), "--json"]
  const { end } = JSON.parse(client.run("iperf3", values))
  await ended
  const busy = (end.cpu_utilization_percent.host_total + end.cpu_utilization_percent.remote_total) / 100
  const rate = end.sum_received.bits_per_second / 8
  return { rate, processor: (busy * gibibyte) / rate }
}

const pingPong = async (ask: Ask, count: number): Promise<number> => {
  const answers = await ask({ pingPong: count })
  return (1e6 * (Number(answers[0]!.ended) - Number(answers[0]!.begun))) / count
}

const barePingPong = async ([client, server]: readonly [Host, Host], address: string, count: number) => {
  const values = (role: string) => ["-c", bareSockets, role, address, String(count)]
  const listening = server.start("python3", values("server"), { stdio: ["ignore", "pipe", "inherit"] })
  const ended = once(listening, "close")
  await once(listening.stdout!, "data")
  const micros = Number(client.run("python3", values("client")))
  await ended
  return micros
}

const shapes = [
  { name: "1 GiB in one piece", rows: 1, rowBytes: gibibyte, pitch: gibibyte, target: 0.9 },
  { name: "262,144 regions of 4 KiB", rows: 262_144, rowBytes: 4096, pitch: 4224, target: 0.7 }
]

const overVirtualCable = async (hosts: readonly [Host, Host]): Promise<ReadonlyArray<BenchResult>> => {
  const addresses = [hosts[0].addresses[0]!, hosts[1].addresses[0]!] as const
  const ask = await ranksOf(hosts, addresses)
  const results: Array<BenchResult> = []
  for (const { name, target, ...shape } of shapes) {
    await ask({ prepare: shape })
    const [ours, theirs] = [[], []] as [
      Array<{ rate: number; processor: number }>,
      Array<{ rate: number; processor: number }>
    ]
    await move(ask, gibibyte)
    for (let round = 0; round < rounds; round++) {
      ours.push(await move(ask, gibibyte))
      theirs.push(await iperf(hosts, addresses[1], 1))
    }
    const rates = (all: typeof ours) => median(all.map(({ rate }) => rate)) / 1e9
    const processor = (all: typeof ours) => median(all.map((each) => each.processor)).toFixed(2)
    results.push({
      case: `virtual cable, ${name}; processor seconds per GiB ${processor(ours)}, of iperf3 ${processor(theirs)}`,
      unit: "GB/s",
      ours: rates(ours),
      reference: rates(theirs),
      target: target * rates(theirs),
      lowerIsBetter: false
    })
  }
  await ask({ prepare: { rows: 1, rowBytes: 4096, pitch: 4096, isPingPong: true } })
  const [ours, bare] = [[], []] as [Array<number>, Array<number>]
  for (let round = 0; round < rounds; round++) {
    ours.push(await pingPong(ask, 2000))
    bare.push(await barePingPong(hosts, addresses[1], 2000))
  }
  results.push({
    case: "virtual cable, 4 KiB there and back, against blocking sockets",
    unit: "us",
    ours: median(ours),
    reference: median(bare),
    target: 1.5 * median(bare),
    lowerIsBetter: true
  })
  return results
}

const overLongCable = async (
  hosts: readonly [Host, Host],
  addresses: readonly [string, string],
  lossPerMillion: number,
  target: number
): Promise<BenchResult> => {
  const ask = await ranksOf(hosts, addresses)
  const byteLength = 2 ** 29
  await ask({ prepare: { rows: 1, rowBytes: byteLength, pitch: byteLength } })
  const rates: Array<number> = []
  for (let round = 0; round < 3; round++) rates.push((await move(ask, byteLength)).rate)
  const theirs = await iperf(hosts, addresses[1], 4)
  // What of the cable's bits are bytes of the user's: packets of 1500 bytes with headers of 52.
  const line = (1e9 / 8) * (1448 / 1500)
  return {
    case: `1 Gbit/s, 20 ms, ${lossPerMillion / 1e4} % loss, 512 MiB; iperf3 reaches ${(theirs.rate / 1e9).toPrecision(3)}`,
    unit: "GB/s",
    ours: median(rates) / 1e9,
    reference: line / 1e9,
    target: (target * line) / 1e9,
    lowerIsBetter: false
  }
}

export const tcp = (): Promise<ReadonlyArray<BenchResult>> => {
  const reason = noHosts()
  if (reason !== undefined) throw new Error(`The bench of tcp cannot run: ${reason}.`)
  const pair = Effect.map(makeHosts({ count: 2, isDirect: true }), ([a, b]) => [a!, b!] as const)
  const long = (lossPerMillion: number, target: number) =>
    Effect.scoped(
      Effect.gen(function* () {
        const hosts = yield* pair
        const cable = { bitsPerSecond: 1e9, delayMicros: 10_000, lossPerMillion }
        const addresses = yield* joinByLongCable(...hosts, cable)
        return yield* Effect.promise(() => overLongCable(hosts, addresses, lossPerMillion, target))
      })
    )
  return Effect.runPromise(
    Effect.gen(function* () {
      const near = yield* Effect.scoped(Effect.flatMap(pair, (hosts) => Effect.promise(() => overVirtualCable(hosts))))
      return [...near, yield* long(0, 0.9), yield* long(1000, 0.7)]
    })
  )
}
