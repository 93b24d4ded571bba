// SPDX-License-Identifier: Apache-2.0
/**
 * What the tests of this package share: peers made of plain sockets, which speak the protocol as it is written down and break
 * it where a test wants that. Codes are Node's own, so the addon's are held to them.
 */
import { createHmac, randomBytes } from "node:crypto"
import { readdirSync, readlinkSync } from "node:fs"
import { connect, createServer, type Socket } from "node:net"
import { TensorEngine } from "@tensorferry/backend-torch-copy"
import { TensorEngine as Engine } from "@tensorferry/core/service/TensorEngine"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { streamTable } from "@tensorferry/native/driver/streamTable"
import type { NativeEndpoint, NativeFlow, NativePeer } from "@tensorferry/native/driver/WireAddon"
import { type NativeAnswer, resultOf } from "@tensorferry/native/NativeAddon"
import { type NativeJob, startJob } from "@tensorferry/native/NativeJob"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { type Addon, loadAddon } from "../src/Addon.ts"

export const chunkBytes = 2 ** 20

const magic = Buffer.from("TFWIRE\0\x01", "latin1")

export const kinds = { ready: 1, chunk: 2, have: 3, withdrawn: 4 } as const

export interface Frame {
  readonly kind: number
  readonly program: number
  readonly run: number
  readonly chunk: number
  readonly length: number
}

export const encodeFrame = ({ kind, program, run, chunk, length }: Frame): Buffer => {
  const bytes = Buffer.alloc(32)
  bytes.writeUInt32LE(kind, 0)
  bytes.writeUInt32LE(program, 4)
  for (const [at, value] of [run, chunk, length].entries()) bytes.writeBigUInt64LE(BigInt(value), 8 + 8 * at)
  return bytes
}

const decodeFrame = (bytes: Buffer): Frame => ({
  kind: bytes.readUInt32LE(0),
  program: bytes.readUInt32LE(4),
  run: Number(bytes.readBigUInt64LE(8)),
  chunk: Number(bytes.readBigUInt64LE(16)),
  length: Number(bytes.readBigUInt64LE(24))
})

/** One end of a connection. Reads end with the bytes, or with undefined where the connection did. */
export interface Wire {
  readonly socket: Socket
  readonly read: (length: number) => Promise<Buffer | undefined>
  readonly frame: () => Promise<Frame | undefined>
  readonly write: (...bytes: ReadonlyArray<Buffer>) => void
  /** When the other end has closed it. */
  readonly ended: Promise<void>
}

export const wireOf = (socket: Socket): Wire => {
  let stored = Buffer.alloc(0)
  let isOver = false
  let look = () => {}
  socket.setNoDelay(true)
  socket.on("data", (data) => {
    stored = Buffer.concat([stored, data])
    look()
  })
  socket.on("error", () => {})
  const ended = new Promise<void>((resolve) => {
    const end = () => {
      isOver = true
      look()
      resolve()
    }
    socket.once("end", end)
    socket.once("close", end)
  })
  const read = (length: number) =>
    new Promise<Buffer | undefined>((resolve) => {
      look = () => {
        if (stored.length < length && !isOver) return
        look = () => {}
        const taken = stored.length < length ? undefined : stored.subarray(0, length)
        if (taken !== undefined) stored = stored.subarray(length)
        resolve(taken)
      }
      look()
    })
  return {
    socket,
    read,
    frame: async () => {
      const bytes = await read(32)
      return bytes === undefined ? undefined : decodeFrame(bytes)
    },
    write: (...bytes) => void socket.write(Buffer.concat(bytes)),
    ended
  }
}

/** A rank that a test plays. */
export interface Identity {
  readonly rank: number
  readonly id: Buffer
  readonly key: Buffer
}

export const makeIdentity = (rank: number): Identity => ({ rank, id: randomBytes(16), key: randomBytes(32) })

const codeOf = (key: Buffer, role: 1 | 2, challenge: Buffer, hello: Buffer): Buffer =>
  createHmac("sha256", key).update(Buffer.of(role)).update(challenge).update(hello).digest()

/** A hello without its proof. */
export const helloOf = (own: Identity, listener: Buffer, nonce = randomBytes(32)): Buffer => {
  const rank = Buffer.alloc(8)
  rank.writeUInt32LE(own.rank)
  return Buffer.concat([magic, rank, listener, own.id, nonce])
}

export const dialWire = (port: number, host = "127.0.0.1"): Promise<Wire> =>
  new Promise((resolve, reject) => {
    const socket = connect({ host, port })
    socket.once("error", reject)
    socket.once("connect", () => resolve(wireOf(socket)))
  })

/** Greets a listener; the verdict, and whether its own proof is right. */
export const greet = async (
  wire: Wire,
  own: Identity,
  listener: Identity,
  change: (hello: Buffer) => void = () => {}
) => {
  const challenge = await wire.read(40)
  if (challenge === undefined) return { verdict: 0, isProven: false }
  const hello = helloOf(own, listener.id)
  const proof = codeOf(listener.key, 1, challenge, hello)
  const message = Buffer.concat([hello, proof])
  change(message)
  wire.write(message)
  const judgement = await wire.read(40)
  return {
    verdict: judgement?.[0] ?? 0,
    isProven: judgement?.subarray(8).equals(codeOf(listener.key, 2, challenge, hello)) ?? false
  }
}

/** A lane to a listener, admitted. */
export const openLane = async (port: number, own: Identity, listener: Identity): Promise<Wire> => {
  const wire = await dialWire(port)
  const { verdict } = await greet(wire, own, listener)
  if (verdict !== 1) throw new Error(`not admitted: ${verdict}`)
  return wire
}

/** A listener that a test plays: every lane that was admitted goes to `lanes`. */
export const listenWire = (own: Identity) =>
  Effect.acquireRelease(
    Effect.promise(async () => {
      const waiting: Array<(wire: Wire) => void> = []
      const arrived: Array<Wire> = []
      const sockets = new Set<Socket>()
      const server = createServer((socket) => {
        sockets.add(socket)
        void (async () => {
          const wire = wireOf(socket)
          const challenge = Buffer.concat([magic, randomBytes(32)])
          wire.write(challenge)
          const message = await wire.read(112)
          if (message === undefined) return
          const hello = message.subarray(0, 80)
          const isProven = message.subarray(80).equals(codeOf(own.key, 1, challenge, hello))
          const verdict = Buffer.alloc(8)
          verdict[0] = isProven ? 1 : 2
          wire.write(verdict, isProven ? codeOf(own.key, 2, challenge, hello) : Buffer.alloc(32))
          if (!isProven) return
          const next = waiting.shift()
          if (next === undefined) arrived.push(wire)
          else next(wire)
        })()
      })
      await new Promise<void>((resolve) => server.listen({ host: "127.0.0.1", port: 0 }, resolve))
      const address = server.address()
      return {
        port: typeof address === "object" && address !== null ? address.port : 0,
        /** The next lane that was admitted. */
        lane: () =>
          new Promise<Wire>((resolve) => {
            const known = arrived.shift()
            if (known === undefined) waiting.push(resolve)
            else resolve(known)
          }),
        close: () => {
          for (const socket of sockets) socket.destroy()
          server.close()
        }
      }
    }),
    ({ close }) => Effect.sync(close)
  )

/** The value of an answer; a failure is a defect. */
export const valueOf = <A>(answer: NativeAnswer<A>): A =>
  Result.getOrThrow(Result.mapError(resultOf(answer), ({ detail }) => detail))

/** An endpoint of the addon on loopback, with memory, until the scope ends. */
export const openEndpoint = (own: Identity, settings: { deadline?: number; threads?: number; lanes?: number } = {}) =>
  Effect.gen(function* () {
    const addon = yield* loadAddon
    const engine = yield* Engine
    const { threads = 2, lanes = 4, deadline = 5000 } = settings
    const { endpoint, ports } = yield* Effect.acquireRelease(
      Effect.sync(() =>
        valueOf(addon.createEndpoint(own.rank, own.id, own.key, threads, lanes, deadline, ["127.0.0.1"], 0))
      ),
      (opened) => Effect.sync(() => void addon.closeEndpoint(opened.endpoint))
    )
    return { addon, engine, endpoint, port: ports[0]! }
  })

export const hostEngine = TensorEngine.layer({ threads: 1 })

/** The peer that listens at a port of loopback. */
export const addPeer = (addon: Addon, endpoint: NativeEndpoint, peer: Identity, port: number): NativePeer =>
  valueOf(addon.addPeer(endpoint, peer.rank, peer.id, peer.key, [""], ["127.0.0.1"], [port]))

export const addFlow = (
  { addon, endpoint }: { readonly addon: Addon; readonly endpoint: NativeEndpoint },
  peer: NativePeer,
  program: number,
  direction: "send" | "recv",
  tensors: ReadonlyArray<Tensor>
): NativeFlow =>
  valueOf(addon.addFlow(endpoint, peer, program, direction === "send", Result.getOrThrow(streamTable(tensors))))

/** Starts runs of flows; the promise is of how they end: "Ok" or the code and what happened. */
export const startFlows = (
  { addon, endpoint }: { readonly addon: Addon; readonly endpoint: NativeEndpoint },
  flows: ReadonlyArray<NativeFlow>
) => {
  const job = Result.getOrThrow(
    startJob<undefined>(
      addon,
      (done) => addon.startTransfer(endpoint, flows, done),
      () => {}
    )
  )
  const ended = Effect.runPromise(
    Effect.match(job.await, { onSuccess: () => "Ok", onFailure: ({ code, detail }) => `${code}: ${detail}` })
  )
  return { job, ended }
}

/** Ends when the native side has moved so many bytes. */
export const untilMoved = (job: NativeJob<unknown>, byteLength: number): Effect.Effect<void> =>
  Effect.promise(async (signal) => {
    while (!signal.aborted && job.movedBytes() < byteLength) await new Promise((resolve) => setImmediate(resolve))
  })

/** Sockets that this process has open. */
export const openSockets = (): number =>
  readdirSync("/proc/self/fd").filter((descriptor) => {
    const link = Result.try(() => readlinkSync(`/proc/self/fd/${descriptor}`))
    return Result.isSuccess(link) && link.success.startsWith("socket:")
  }).length
