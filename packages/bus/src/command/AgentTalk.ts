// SPDX-License-Identifier: Apache-2.0
/**
 * What an agent and a client say to each other over a Unix socket: frames whose bodies are MessagePack maps.
 *
 * | type | from | body |
 * | --- | --- | --- |
 * | 1 hello | client | `protocol`, `version`: the first frame |
 * | 2 welcome | agent | `version`, `rank`, `pid` of the agent |
 * | 3 refused | agent | `detail`, `remedy`: the last frame |
 * | 16 command | client | `id`, `command`: the bytes of a command |
 * | 17 reply | agent | `id`, `reply`: how the command ended |
 * | 18 read | client | `id`, `name` of an entry of the agent's state |
 * | 19 value | agent | `id`, `value`: the entry, or nil |
 *
 * Invariant: reading is total. What is no such frame is a detail in words and never anything else, and nothing that is read
 * is larger than its frame.
 */
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { decodeValue, encodeValue, type Value } from "../wire/Value.ts"

/** Name of what is spoken. */
export const agentProtocol = "tensorferry-agent"
/** Raised whenever a frame changes its meaning. */
export const agentProtocolVersion = 1

/** Types of frames. */
export const agentFrame = { hello: 1, welcome: 2, refused: 3, command: 16, reply: 17, read: 18, value: 19 } as const

/** Chosen by the client; answers come in any order. */
const Id = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 32 - 1 }))

const Hello = Schema.Struct({ protocol: Schema.String, version: Schema.Int })
const Command = Schema.Struct({ id: Id, command: Schema.Uint8Array })
const Read = Schema.Struct({ id: Id, name: Schema.String.check(Schema.isMaxLength(500)) })

/** What a client says. */
export type FromClient =
  | ({ readonly type: "hello" } & typeof Hello.Type)
  | ({ readonly type: "command" } & typeof Command.Type)
  | ({ readonly type: "read" } & typeof Read.Type)

/** Surplus fields are those of newer clients and are passed by. */
const reader = <T extends FromClient["type"], A extends object>(type: T, schema: Schema.Codec<A, unknown>) => {
  const decode = Schema.decodeUnknownResult(schema)
  return (body: Uint8Array): Result.Result<{ readonly type: T } & A, string> =>
    Result.flatMap(
      Result.mapError(decodeValue(body), ({ detail }) => detail),
      (value) =>
        Result.mapBoth(decode(value), {
          onFailure: ({ message }) => message.replaceAll("\n", " ").slice(0, 400),
          onSuccess: (read) => ({ type, ...read })
        })
    )
}

const readers: ReadonlyMap<number, (body: Uint8Array) => Result.Result<FromClient, string>> = new Map([
  [agentFrame.hello, reader("hello", Hello)],
  [agentFrame.command, reader("command", Command)],
  [agentFrame.read, reader("read", Read)]
] as ReadonlyArray<readonly [number, (body: Uint8Array) => Result.Result<FromClient, string>]>)

/** A frame of a client, or what is wrong with it. */
export const readFromClient = (type: number, body: Uint8Array): Result.Result<FromClient, string> =>
  readers.get(type)?.(body) ?? Result.fail(`There is no frame of type ${type}.`)

/** What an agent says, as the body of a frame. */
export const agentBody = (value: { readonly [field: string]: Value }): Uint8Array => encodeValue(value)
