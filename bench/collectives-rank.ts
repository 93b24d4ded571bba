// SPDX-License-Identifier: Apache-2.0
/**
 * One process of the collectives bench. Takes its part as JSON: a rank of a group, or one end of a bare connection, the floor
 * under everything that goes over TCP. Then one line per request, answered by one line with the microseconds of each round.
 */
import { connect, createServer, type Socket } from "node:net"
import { createInterface } from "node:readline"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"

interface Part {
  readonly kind: "group" | "echo" | "ask"
  readonly rank: number
  readonly size: number
  readonly port: number
}
interface Request {
  readonly rounds: number
  readonly bytes: number
}

const { kind, rank, size, port } = JSON.parse(process.argv[2]!) as Part
const print = (line: object): void => void process.stdout.write(`${JSON.stringify(line)}\n`)

const answerEach = async (measure: (request: Request) => Promise<ReadonlyArray<number>>): Promise<void> => {
  for await (const line of createInterface({ input: process.stdin })) {
    print({ micros: await measure(JSON.parse(line)) })
  }
}

const micros = (since: number): number => (performance.now() - since) * 1000

const gather = (group: ProcessGroupShape, { rounds, bytes }: Request): Effect.Effect<ReadonlyArray<number>> =>
  Effect.gen(function* () {
    const payload = new Uint8Array(bytes).fill(rank + 1)
    const taken: Array<number> = []
    for (let round = 0; round < rounds; round++) {
      const begun = performance.now()
      yield* group.allGather("bench", payload)
      taken.push(micros(begun))
    }
    return taken
  }).pipe(Effect.orDie)

/** Sends this many bytes and waits for as many, again and again. */
const ask = (socket: Socket, { rounds, bytes }: Request): Promise<ReadonlyArray<number>> =>
  new Promise((resolve) => {
    const payload = new Uint8Array(bytes)
    const taken: Array<number> = []
    let missing = bytes
    let begun = performance.now()
    const onData = (chunk: Buffer): void => {
      missing -= chunk.byteLength
      if (missing > 0) return
      taken.push(micros(begun))
      if (taken.length === rounds) {
        socket.off("data", onData)
        resolve(taken)
        return
      }
      missing = bytes
      begun = performance.now()
      socket.write(payload)
    }
    socket.on("data", onData)
    socket.write(payload)
  })

if (kind === "echo") {
  const server = createServer((socket) => {
    socket.setNoDelay(true)
    socket.on("data", (chunk) => socket.write(chunk))
    server.close()
  })
  server.listen({ host: "127.0.0.1", port: 0 }, () => {
    const address = server.address()
    print({ port: address !== null && typeof address === "object" ? address.port : 0 })
  })
} else if (kind === "ask") {
  const socket = connect({ host: "127.0.0.1", port }, () => {
    socket.setNoDelay(true)
    print({ joined: rank })
    void answerEach((request) => ask(socket, request)).then(() => socket.destroy())
  })
} else {
  const onListening = (taken: number) => Effect.sync(() => print({ port: taken }))
  await runPrinting(
    Effect.gen(function* () {
      const group = yield* ProcessGroupTcp.make({ rank, size, host: "127.0.0.1", port, onListening })
      print({ joined: rank })
      yield* Effect.promise(() => answerEach((request) => Effect.runPromise(gather(group, request))))
    }).pipe(Effect.scoped)
  )
}
