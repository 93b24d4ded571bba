// SPDX-License-Identifier: Apache-2.0
/**
 * The backend ucx against ucx_perftest, which moves one buffer of a chunk's length again and again, by messages with tags and
 * by writes with remote keys: over the same transports, with peer error mode at both, between two network namespaces and on one
 * host, taking turns. Ours moves 1 GiB that no cache holds, in one piece and in regions of 4 KiB; so messages are also compared
 * with a buffer of 1 GiB, and with a bare socket over as much memory: what one connection can do here. Writes are not: the
 * emulation of UCX gets slower with their length, to 28 MB/s at 16 MiB.
 */
import { spawn, spawnSync } from "node:child_process"
import { once } from "node:events"
import { median } from "@tensorferry/core/base/Numbers"
import { type Host, makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import * as Effect from "effect/Effect"
import type { BenchResult } from "./measure.ts"
import { move, startRanksOf } from "./tcp.ts"

const rounds = 3
const gibibyte = 2 ** 30
const chunkBytes = 2 ** 18
const mostMillis = 15_000

/** Two places for processes: hosts, or this machine. */
interface Places {
  readonly name: string
  readonly hosts: readonly [Host | undefined, Host | undefined]
  readonly address: string
  readonly device: string
}

/** Moves the same GiB of its own twice over one connection; the receiver prints how fast the second time was. */
const bareSocket = `
import socket, sys, time
receives, address, size, step = sys.argv[1] == "receiver", sys.argv[2], 1 << 30, 1 << 18
memory = memoryview(bytearray(b"1") * size)
if receives:
    listener = socket.create_server((address, 4712)); print("ready", flush=True); s, _ = listener.accept()
else: s = socket.create_connection((address, 4712))
for _ in range(2):
    at, begun = 0, time.monotonic()
    while at < size:
        if receives: at += s.recv_into(memory[at:at + step])
        else: s.sendall(memory[at:at + step]); at += step
    passed = time.monotonic() - begun
if receives: print(size / passed)
`

/** Bytes per second; 0 where it does not come to its end. */
const perftest = async ({ hosts, address, device }: Places, test: string, byteLength: number): Promise<number> => {
  const env = { ...process.env, UCX_TLS: "tcp", UCX_NET_DEVICES: device }
  const start = (host: Host | undefined, values: ReadonlyArray<string>) => {
    const settings = { env, stdio: ["ignore", "pipe", "ignore"] as ["ignore", "pipe", "ignore"], timeout: mostMillis }
    // It says that it waits at the end of a line, and would keep that back from a pipe.
    const byLine = ["--output=L", "ucx_perftest", ...values]
    return host?.start("stdbuf", byLine, settings) ?? spawn("stdbuf", byLine, settings)
  }
  const server = start(hosts[0], ["-t", test, "-e"])
  const ended = once(server, "close")
  await once(server.stdout!, "data")
  server.stdout!.resume()
  const warmUp = byteLength === gibibyte ? "1" : "16"
  const counts = ["-s", String(byteLength), "-n", String(gibibyte / byteLength), "-w", warmUp]
  const client = start(hosts[1], [address, "-t", test, "-e", "-f", "-v", ...counts])
  let text = ""
  client.stdout!.on("data", (chunk) => {
    text += String(chunk)
  })
  await once(client, "close")
  server.kill()
  await ended
  const fields = text.trim().split("\n").at(-1)!.split(",")
  return fields.length < 6 ? 0 : Number(fields[5]) * 2 ** 20
}

const bare = async ({ hosts, address }: Places): Promise<number> => {
  const start = (host: Host | undefined, role: string) => {
    const settings = { stdio: ["ignore", "pipe", "inherit"] as ["ignore", "pipe", "inherit"], timeout: mostMillis }
    const values = ["-c", bareSocket, role, address]
    return host?.start("python3", values, settings) ?? spawn("python3", values, settings)
  }
  const receiver = start(hosts[0], "receiver")
  let text = ""
  receiver.stdout!.on("data", (chunk) => {
    text += String(chunk)
  })
  await once(receiver.stdout!, "data")
  start(hosts[1], "sender").stdout!.resume()
  await once(receiver, "close")
  return Number(text.trim().split("\n").at(-1))
}

const references = {
  messages: [
    { name: "tag_bw of 256 KiB", run: (places: Places) => perftest(places, "tag_bw", chunkBytes) },
    { name: "tag_bw of 1 GiB", run: (places: Places) => perftest(places, "tag_bw", gibibyte) },
    { name: "a bare socket over 1 GiB", run: bare }
  ],
  "emulated-put": [
    { name: "ucp_put_bw of 256 KiB", run: (places: Places) => perftest(places, "ucp_put_bw", chunkBytes) }
  ]
}

const shapes = [
  { name: "1 GiB in one piece", rows: 1, rowBytes: gibibyte, pitch: gibibyte },
  { name: "262,144 regions of 4 KiB", rows: 262_144, rowBytes: 4096, pitch: 4224 }
]

const between = async (places: Places): Promise<ReadonlyArray<BenchResult>> => {
  const results: Array<BenchResult> = []
  for (const [transfer, against] of Object.entries(references)) {
    const options = { transports: "tcp", devices: places.device, token: "bench", transfer }
    const ranks = await startRanksOf(places.hosts, { driver: "ucx", host: places.address }, () => options)
    for (const { name, ...shape } of shapes) {
      await ranks.ask({ prepare: shape })
      await move(ranks.ask, gibibyte)
      const ours: Array<{ rate: number; processor: number }> = []
      const theirs = against.map((): Array<number> => [])
      for (let round = 0; round < rounds; round++) {
        ours.push(await move(ranks.ask, gibibyte))
        for (const [at, each] of against.entries()) theirs[at]!.push(await each.run(places))
      }
      const processor = median(ours.map((each) => each.processor)).toFixed(2)
      for (const [at, each] of against.entries()) {
        const reference = median(theirs[at]!) / 1e9
        results.push({
          case: `${places.name}, ${name} by ${transfer}, against ${each.name}; processor seconds per GiB ${processor}`,
          unit: "GB/s",
          ours: median(ours.map(({ rate }) => rate)) / 1e9,
          reference,
          target: 0.9 * reference,
          lowerIsBetter: false
        })
      }
    }
    await ranks.close()
  }
  return results
}

export const ucx = async (): Promise<ReadonlyArray<BenchResult>> => {
  if (spawnSync("ucx_perftest", ["-h"]).error !== undefined) {
    throw new Error("The bench of ucx cannot run: ucx_perftest is missing (Debian package ucx-utils).")
  }
  const here = await between({
    name: "one host",
    hosts: [undefined, undefined],
    address: "127.0.0.1",
    device: "lo"
  })
  const reason = noHosts()
  if (reason !== undefined) throw new Error(`The bench of ucx cannot run: ${reason}.`)
  const apart = await Effect.runPromise(
    Effect.scoped(
      Effect.flatMap(makeHosts({ count: 2, isDirect: true }), ([a, b]) =>
        Effect.promise(() =>
          between({ name: "virtual cable", hosts: [a!, b!], address: a!.addresses[0]!, device: "eth0" })
        )
      )
    )
  )
  return [...here, ...apart]
}
