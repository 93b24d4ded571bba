/**
 * What a store and its clients say to each other: JSON texts with their length in 4 bytes before them, and the proof that
 * both ends know the token, which itself never travels.
 *
 * Invariant: nothing is kept of a frame longer than the limit, and nothing is read before its sender has proven itself but
 * its proof, which is short.
 */
import { createHmac, timingSafeEqual } from "node:crypto"
import type { Socket } from "node:net"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"

export const FromClient = Schema.Union([
  Schema.Struct({ type: Schema.Literal("prove"), nonce: Schema.String, proof: Schema.String }),
  Schema.Struct({
    type: Schema.Literal("put"),
    id: Schema.Int,
    key: Schema.String,
    value: Schema.String,
    isEphemeral: Schema.Boolean
  }),
  Schema.Struct({ type: Schema.Literal("get"), id: Schema.Int, key: Schema.String }),
  Schema.Struct({ type: Schema.Literal("remove"), id: Schema.Int, key: Schema.String }),
  Schema.Struct({ type: Schema.Literal("list"), id: Schema.Int, prefix: Schema.String }),
  /** Answers with the entries, at once and after changes, until `unwatch`. */
  Schema.Struct({ type: Schema.Literal("watch"), id: Schema.Int, prefix: Schema.String }),
  Schema.Struct({ type: Schema.Literal("unwatch"), id: Schema.Int })
])
export type FromClient = typeof FromClient.Type

const Pairs = Schema.Array(Schema.Tuple([Schema.String, Schema.String]))

export const FromServer = Schema.Union([
  Schema.Struct({ type: Schema.Literal("hello"), version: Schema.Literal(1), nonce: Schema.String }),
  Schema.Struct({ type: Schema.Literal("proven"), proof: Schema.String }),
  Schema.Struct({ type: Schema.Literal("done"), id: Schema.Int, value: Schema.NullOr(Schema.String) }),
  Schema.Struct({ type: Schema.Literal("entries"), id: Schema.Int, entries: Pairs }),
  Schema.Struct({ type: Schema.Literal("refused"), id: Schema.Int, detail: Schema.String })
])
export type FromServer = typeof FromServer.Type

export const clientCodec = Schema.fromJsonString(FromClient)
export const serverCodec = Schema.fromJsonString(FromServer)

/** Longest frame of one who has not proven itself. */
const proofBytes = 1024

/** Proof of one end that it knows the token, bound to both ends' numbers. */
export const proofOf = (token: string, end: "client" | "server", nonces: readonly [string, string]): string =>
  createHmac("sha256", token).update(`${end}\n${nonces[0]}\n${nonces[1]}`).digest("hex")

export const isProof = (given: string, wanted: string): boolean => {
  const [a, b] = [Buffer.from(given), Buffer.from(wanted)]
  return a.length === b.length && timingSafeEqual(a, b)
}

/** A text as a frame. */
export const frameOf = (text: string): Buffer => {
  const frame = Buffer.allocUnsafe(4 + Buffer.byteLength(text))
  frame.writeUInt32BE(frame.length - 4)
  frame.write(text, 4)
  return frame
}

/**
 * Calls `receive` for every message that decodes; `fail` once, with what is wrong, for anything else. Answers how to lift
 * the limit once the other end has proven itself.
 */
export const readFrames = <A>(
  socket: Socket,
  codec: Schema.Codec<A, string>,
  mostBytes: number,
  receive: (message: A) => void,
  fail: (detail: string) => void
): (() => void) => {
  const decode = Schema.decodeResult(codec)
  let limit = Math.min(mostBytes, proofBytes)
  let chunks: Array<Buffer> = []
  let have = 0
  let isOver = false
  const stop = (detail: string) => {
    isOver = true
    chunks = []
    fail(detail)
  }
  socket.on("data", (chunk) => {
    if (isOver) return
    chunks.push(chunk as Buffer)
    have += chunk.length
    while (!isOver && have >= 4) {
      if (chunks[0]!.length < 4) chunks = [Buffer.concat(chunks)]
      const length = chunks[0]!.readUInt32BE()
      if (length > limit) return stop(`A message of ${length} bytes exceeds the limit of ${limit}.`)
      if (have < 4 + length) return
      const whole = Buffer.concat(chunks)
      chunks = whole.length > 4 + length ? [whole.subarray(4 + length)] : []
      have -= 4 + length
      const message = decode(whole.toString("utf8", 4, 4 + length))
      if (Result.isFailure(message)) return stop("A message is not of this protocol.")
      receive(message.success)
    }
  })
  return () => {
    limit = mostBytes
  }
}
