// SPDX-License-Identifier: Apache-2.0
/**
 * An agent behind a Unix socket, and clients that speak to it in frames: memory by descriptor moves between two of them,
 * versions are agreed on, what is not spoken here is refused, other users are, and what a client leaves is cleaned up.
 */
import { spawn, spawnSync } from "node:child_process"
import {
  chmodSync,
  closeSync,
  fstatSync,
  ftruncateSync,
  openSync,
  readFileSync,
  rmSync,
  statSync,
  unlinkSync,
  writeFileSync
} from "node:fs"
import { connect, type Socket } from "node:net"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { encodeFrame, makeFrameReader } from "@tensorferry/core/group/Frames"
import { processStart } from "@tensorferry/core/group/processStart"
import { replicate, shard } from "@tensorferry/core/layout/Placement"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Queue from "effect/Queue"
import * as References from "effect/References"
import * as Result from "effect/Result"
import * as Agents from "../../src/agent/TensorBusAgent.ts"
import { agentFrame, agentProtocol, agentProtocolVersion } from "../../src/command/AgentTalk.ts"
import { CleanupBatch, InitPair, type Message, RegisterTensors, Transfer } from "../../src/command/Command.ts"
import { encodeCommand } from "../../src/command/CommandCodec.ts"
import { encodeMeshShape, encodePlacements } from "../../src/payload/LayoutPayload.ts"
import { encodeOwnPayload } from "../../src/payload/OwnPayload.ts"
import { CommandQueue } from "../../src/queue/CommandQueue.ts"
import * as CommandQueueSocket from "../../src/queue/CommandQueueSocket.ts"
import { AgentState } from "../../src/state/AgentState.ts"
import * as AgentStateMemory from "../../src/state/AgentStateMemory.ts"
import { KeyValueMap } from "../../src/store/KeyValueMap.ts"
import { KeyValueStore } from "../../src/store/KeyValueStore.ts"
import { viewOf } from "../../src/store/KeyValueStoreMemory.ts"
import { decodeValue, encodeValue, type Value } from "../../src/wire/Value.ts"
import { transport } from "../cluster.ts"
import { scratch } from "../support.ts"

type Map = { readonly [field: string]: Value }

/** A client that knows frames and nothing else. */
const dialAt = (path: string) =>
  Effect.gen(function* () {
    const said = yield* Queue.unbounded<{ readonly type: number; readonly body: Map } | "closed">()
    const socket = yield* Effect.acquireRelease(
      Effect.callback<Socket>((resume) => {
        const made = connect({ path })
        made.on("error", () => undefined)
        made.once("connect", () => resume(Effect.succeed(made)))
      }),
      (made) => Effect.sync(() => made.destroy())
    )
    const reader = makeFrameReader(2 ** 26)
    socket.on("data", (chunk) => {
      reader.push(chunk as Uint8Array)
      for (;;) {
        const frame = Result.getOrThrow(reader.take())
        if (frame === undefined) return
        Queue.offerUnsafe(said, { type: frame.type, body: Result.getOrThrow(decodeValue(frame.body)) as Map })
      }
    })
    socket.on("close", () => Queue.offerUnsafe(said, "closed"))
    const say = (type: number, body: Uint8Array) =>
      Effect.sync(() => socket.write(encodeFrame(type, body.length, [body])))
    return { socket, say, hear: Queue.take(said) }
  })

const hello = (version = agentProtocolVersion) => encodeValue({ protocol: agentProtocol, version })

/** A client after its greeting, which sends one command at a time. */
const clientAt = Effect.fnUntraced(function* (path: string) {
  const { say, hear, socket } = yield* dialAt(path)
  yield* say(agentFrame.hello, hello())
  const welcome = yield* hear
  assert.deepStrictEqual(welcome !== "closed" && welcome.type, agentFrame.welcome)
  let id = 0
  const call = Effect.fnUntraced(function* (message: Message) {
    yield* say(agentFrame.command, encodeValue({ id: ++id, command: encodeCommand(message) }))
    const told = yield* hear
    assert.isTrue(told !== "closed" && told.type === agentFrame.reply && told.body.id === id)
    return (told as { readonly body: Map }).body.reply as Map
  })
  const read = Effect.fnUntraced(function* (name: string) {
    yield* say(agentFrame.read, encodeValue({ id: ++id, name }))
    const told = yield* hear
    return told === "closed" ? undefined : (told.body.value as Uint8Array | null)
  })
  return { call, read, say, hear, socket, welcome }
})

/** Agents of one store behind sockets in a folder, by rank. */
const agentsIn = Effect.fnUntraced(function* (folder: string, count: number) {
  const map = new KeyValueMap()
  const memory = Context.get(yield* Layer.build(HostMemoryLayers.layer), HostMemory)
  const paths = Array.from({ length: count }, (_, rank) => join(folder, `${rank}.sock`))
  for (const [rank, path] of paths.entries()) {
    const served = yield* Effect.provideService(
      CommandQueueSocket.make({ path, rank }),
      AgentState,
      AgentStateMemory.make()
    )
    const context = Context.make(HostMemory, memory).pipe(
      Context.add(KeyValueStore, yield* viewOf(map)),
      Context.add(CommandQueue, served.queue),
      Context.add(AgentState, served.state)
    )
    const agent = yield* Effect.provideContext(Agents.make({ rank, transport, deadline: "3 seconds" }), context)
    const quiet = Effect.provideService(agent.serve, References.MinimumLogLevel, "Error")
    yield* Effect.forkScoped(quiet, { startImmediately: true })
  }
  return paths
})

const all = <A, E, R>(effects: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(effects, { concurrency: "unbounded" })

/** A file in memory that this process has open, as PyTorch's shared tensors are: without a name. */
const openMemory = (bytes: Uint8Array) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const file = `/dev/shm/bus-test-${process.pid}-${Math.random()}`
      writeFileSync(file, bytes, { mode: 0o600 })
      const descriptor = openSync(file, "r+")
      rmSync(file)
      return {
        descriptor,
        inode: String(fstatSync(descriptor).ino),
        content: () => readFileSync(`/proc/self/fd/${descriptor}`)
      }
    }),
    ({ descriptor }) => Effect.sync(() => closeSync(descriptor))
  )

type OpenMemory = Effect.Success<ReturnType<typeof openMemory>>

const floats = (length: number, first = 0) =>
  new Uint8Array(Float32Array.from({ length }, (_, at) => first + at).buffer)

const peerTensor = (
  { descriptor, inode }: { readonly descriptor: number; readonly inode: string },
  shape: ReadonlyArray<number>,
  changed: Map = {}
) =>
  encodeOwnPayload({
    _tag: "PeerTensor",
    dtype: "float32",
    shape: [...shape],
    strides: shape.map((_, at) => shape.slice(at + 1).reduce((product, length) => product * length, 1)),
    byteOffset: 0,
    pid: process.pid,
    processStart: processStart("self")!,
    descriptor,
    inode,
    byteLength: 4 * shape.reduce((product, length) => product * length, 1),
    ...changed
  })

const named = (name: string, payload: Uint8Array, placements?: ReadonlyArray<Map>) =>
  encodeOwnPayload({ _tag: "NamedTensor", name, payload, ...(placements === undefined ? {} : { placements }) })

const pairOf = (local: string, remote: string, size = 1) =>
  new InitPair({
    pairName: "p",
    localName: local,
    expectedWorldSize: size,
    remoteName: remote,
    meshShapePayload: encodeMeshShape([size]),
    placementsPayload: encodePlacements([replicate])
  })

const register = (payloads: ReadonlyArray<Uint8Array>) =>
  new RegisterTensors({ batchId: "b", tensors: payloads.map((payload) => ["p", payload] as const) })

const move = (transferType: "send" | "recv", version: number | null = null) =>
  new Transfer({ batchId: "b", transferType, version })

const live = <A, E>(title: string, body: (folder: string) => Effect.Effect<A, E, import("effect/Scope").Scope>) =>
  it.live(title, () => Effect.scoped(Effect.flatMap(scratch, body)))

describe("commands and memory", () => {
  live("two ranks with shards meet one with whole tensors, each tensor by its own placements", (folder) =>
    Effect.gen(function* () {
      const paths = yield* agentsIn(folder, 3)
      const clients = yield* all(paths.map(clientAt))
      const met = yield* all([
        clients[0]!.call(pairOf("train", "infer", 2)),
        clients[1]!.call(pairOf("train", "infer", 2)),
        clients[2]!.call(pairOf("infer", "train"))
      ])
      assert.deepStrictEqual(
        met.map(({ type }) => type),
        ["Ok", "Ok", "Ok"]
      )
      const [rows, columns] = [[{ ...shard(0) }], [{ ...shard(1) }]]
      // `rows` has 3 rows, so the second rank holds one; `columns` is cut along the other dimension; `whole` is on both.
      const first = yield* all([openMemory(floats(4)), openMemory(floats(2, 100)), openMemory(floats(2, 7))])
      const second = yield* all([openMemory(floats(2, 4)), openMemory(floats(2, 200)), openMemory(floats(2, 7))])
      const target = yield* all([openMemory(floats(6, 900)), openMemory(floats(4, 900)), openMemory(floats(2, 900))])
      const sent = (held: typeof first, height: number) =>
        register([
          named("rows", peerTensor(held[0]!, [height, 2]), rows),
          named("columns", peerTensor(held[1]!, [2, 1]), columns),
          named("whole", peerTensor(held[2]!, [2]))
        ])
      const registered = yield* all([
        clients[0]!.call(sent(first, 2)),
        clients[1]!.call(sent(second, 1)),
        clients[2]!.call(
          register([
            named("whole", peerTensor(target[2]!, [2])),
            named("rows", peerTensor(target[0]!, [3, 2])),
            named("columns", peerTensor(target[1]!, [2, 2]))
          ])
        )
      ])
      assert.deepStrictEqual(
        registered.map(({ type }) => type),
        ["Ok", "Ok", "Ok"],
        JSON.stringify(registered)
      )
      const moved = yield* all([
        clients[0]!.call(move("send", 7)),
        clients[1]!.call(move("send", 7)),
        clients[2]!.call(move("recv"))
      ])
      assert.deepStrictEqual(
        moved.map(({ type }) => type),
        ["Ok", "Ok", "Ok"],
        JSON.stringify(moved)
      )
      assert.deepStrictEqual(target[0]!.content(), Buffer.from(floats(6)))
      assert.deepStrictEqual([...new Float32Array(new Uint8Array(target[1]!.content()).buffer)], [100, 200, 101, 201])
      assert.deepStrictEqual(target[2]!.content(), Buffer.from(floats(2, 7)))
      // Whoever received without a version learns which it was.
      const version = yield* clients[2]!.read("batch:b/state:version")
      assert.deepStrictEqual(Result.getOrThrow(decodeValue(version!)), 7)
    })
  )

  live("versions that differ are refused on both sides, and the next transfer goes on", (folder) =>
    Effect.gen(function* () {
      const [a, b] = yield* all((yield* agentsIn(folder, 2)).map(clientAt))
      yield* all([a!.call(pairOf("train", "infer")), b!.call(pairOf("infer", "train"))])
      const [source, target] = [yield* openMemory(floats(4)), yield* openMemory(floats(4, 50))]
      yield* all([
        a!.call(register([named("w", peerTensor(source, [4]))])),
        b!.call(register([named("w", peerTensor(target, [4]))]))
      ])
      const refused = yield* all([a!.call(move("send", 3)), b!.call(move("recv", 4))])
      for (const reply of refused) {
        assert.strictEqual(reply.tag, "VersionMismatch")
        assert.match(reply.message as string, /agent 1 transfers version 4, agent 0 version 3/)
      }
      assert.deepStrictEqual(target.content(), Buffer.from(floats(4, 50)))
      const moved = yield* all([a!.call(move("send", 4)), b!.call(move("recv", 4))])
      assert.deepStrictEqual(
        moved.map(({ type }) => type),
        ["Ok", "Ok"]
      )
      assert.deepStrictEqual(target.content(), Buffer.from(floats(4)))
    })
  )

  live("memory that is not what the payload says is refused", (folder) =>
    Effect.gen(function* () {
      const [a] = yield* all((yield* agentsIn(folder, 2)).map(clientAt))
      const b = yield* clientAt(join(folder, "1.sock"))
      yield* all([a!.call(pairOf("train", "infer")), b.call(pairOf("infer", "train"))])
      const memory = yield* openMemory(floats(4))
      const file = join(folder, "plain")
      writeFileSync(file, floats(4))
      const onDisk = yield* Effect.acquireRelease(
        Effect.sync(() => openSync(file, "r+")),
        (descriptor) => Effect.sync(() => closeSync(descriptor))
      )
      const zero = yield* Effect.acquireRelease(
        Effect.sync(() => openSync("/dev/zero", "r+")),
        (descriptor) => Effect.sync(() => closeSync(descriptor))
      )
      const cases: ReadonlyArray<readonly [Map, RegExp]> = [
        [{ inode: String(BigInt(memory.inode) + 1n) }, /is other memory by now/],
        [{ processStart: "1" }, /is gone or is another/],
        [{ descriptor: 1_000_000 }, /is not open/],
        [{ descriptor: onDisk, inode: String(fstatSync(onDisk).ino) }, /is no memory/],
        [{ descriptor: zero, inode: String(fstatSync(zero).ino) }, /is no memory/],
        [{ byteLength: 4096 }, /has 16 bytes, too few for 4096/],
        [{ byteOffset: 8 }, /InvalidPayload|beyond|outside|bytes/]
      ]
      for (const [changed, wanted] of cases) {
        const reply = yield* a!.call(register([named("w", peerTensor(memory, [4], changed))]))
        assert.strictEqual(reply.type, "Error")
        assert.match(reply.message as string, wanted)
      }
    })
  )
})

describe("connections", () => {
  live("another version, no hello, frames that are none and long ones end the connection, and no other", (folder) =>
    Effect.gen(function* () {
      const [path] = yield* agentsIn(folder, 1)
      const good = yield* clientAt(path!)
      assert.deepStrictEqual(good.welcome !== "closed" && good.welcome.body.pid, process.pid)
      const openings: ReadonlyArray<readonly [number, Uint8Array, RegExp | undefined]> = [
        [agentFrame.hello, hello(99), /version 99, the agent tensorferry-agent version 1/],
        [agentFrame.read, encodeValue({ id: 1, name: "x" }), /no hello/],
        [77, new Uint8Array(3), /no frame of type 77/],
        [agentFrame.hello, Uint8Array.of(0xc1), /0xc1/],
        [agentFrame.hello, new Uint8Array(5000), undefined]
      ]
      for (const [type, body, wanted] of openings) {
        const { say, hear } = yield* dialAt(path!)
        yield* say(type, body)
        const told = yield* hear
        if (wanted !== undefined) {
          assert.isTrue(told !== "closed" && told.type === agentFrame.refused)
          assert.match((told as { readonly body: Map }).body.detail as string, wanted)
          assert.strictEqual(yield* hear, "closed")
        } else assert.strictEqual(told, "closed")
      }
      yield* good.say(agentFrame.command, encodeValue({ id: 5, command: Uint8Array.of(0xc1) }))
      const answer = yield* good.hear
      assert.isTrue(answer !== "closed" && (answer.body.reply as Map).tag === "InvalidCommand")
      const unknown = yield* good.call(new CleanupBatch({ batchId: "none" }))
      assert.strictEqual(unknown.tag, "UnknownBatch")
    })
  )

  live("more commands than may be under way wait in the socket, and all are answered", (folder) =>
    Effect.gen(function* () {
      const [path] = yield* agentsIn(folder, 1)
      const { say, hear } = yield* clientAt(path!)
      const count = 500
      for (let id = 1; id <= count; id++) {
        const command = encodeCommand(new CleanupBatch({ batchId: `none-${id}` }))
        yield* say(agentFrame.command, encodeValue({ id: 1_000 + id, command }))
      }
      const heard = new Set<unknown>()
      while (heard.size < count) {
        const told = yield* hear
        assert.isTrue(told !== "closed" && told.type === agentFrame.reply)
        const { id, reply } = (told as { readonly body: Map }).body
        assert.include((reply as Map).message as string, `none-${(id as number) - 1_000}`)
        heard.add(id)
      }
    })
  )

  live("a connection that ends takes its batches with it", (folder) =>
    Effect.gen(function* () {
      const paths = yield* agentsIn(folder, 2)
      const [a, b] = yield* all(paths.map(clientAt))
      yield* all([a!.call(pairOf("train", "infer")), b!.call(pairOf("infer", "train"))])
      const [source, target] = [yield* openMemory(floats(4)), yield* openMemory(floats(4, 50))]
      const both = (first: typeof a) =>
        all([
          first!.call(register([named("w", peerTensor(source, [4]))])),
          b!.call(register([named("w", peerTensor(target, [4]))]))
        ])
      yield* both(a)
      a!.socket.destroy()
      const lost = yield* b!.call(move("recv"))
      assert.strictEqual(lost.tag, "BatchGone", JSON.stringify(lost))
      assert.match(lost.message as string, /agent 0 dropped it/)
      const again = yield* clientAt(paths[0]!)
      yield* both(again)
      const moved = yield* all([again.call(move("send")), b!.call(move("recv"))])
      assert.deepStrictEqual(
        moved.map(({ type }) => type),
        ["Ok", "Ok"]
      )
      assert.deepStrictEqual(target.content(), Buffer.from(floats(4)))
    })
  )
})

describe("the socket", () => {
  const listen = (path: string) =>
    Effect.provideService(CommandQueueSocket.make({ path, rank: 0 }), AgentState, AgentStateMemory.make())

  live("is this user's alone, is refused to a second agent, and goes with the agent", (folder) =>
    Effect.gen(function* () {
      const path = join(folder, "a.sock")
      yield* Effect.scoped(
        Effect.gen(function* () {
          yield* listen(path)
          assert.strictEqual(statSync(path).mode & 0o777, 0o600)
          const second = yield* Effect.flip(listen(path))
          assert.match(second.message, /Another agent serves/)
        })
      )
      assert.strictEqual(spawnSync("ls", ["-A", folder]).stdout.toString(), "")
    })
  )

  live("of a dead agent is taken over; anything else at its path is left", (folder) =>
    Effect.gen(function* () {
      const path = join(folder, "a.sock")
      // A process that was killed leaves its socket.
      spawnSync(process.execPath, [
        "-e",
        `require("net").createServer().listen(${JSON.stringify(path)}, () => process.kill(process.pid, "SIGKILL"))`
      ])
      assert.isTrue(statSync(path).isSocket())
      yield* Effect.scoped(listen(path))
      writeFileSync(path, "precious")
      const refused = yield* Effect.flip(listen(path))
      assert.match(refused.message, /is no socket of this user/)
      assert.strictEqual(readFileSync(path, "utf8"), "precious")
      unlinkSync(path)
      chmodSync(folder, 0o777)
      assert.match((yield* Effect.flip(listen(path))).message, /Other users can write/)
      chmodSync(folder, 0o700)
      assert.match((yield* Effect.flip(listen(join(folder, "x".repeat(120))))).message, /more than 107 bytes/)
    })
  )

  const isRoot = process.geteuid?.() === 0 && spawnSync("setpriv", ["--version"]).status === 0
  const title = `takes no command from another user${isRoot ? "" : " (skipped: only root can act as another)"}`
  it.live.skipIf(!isRoot)(title, () =>
    Effect.scoped(
      Effect.gen(function* () {
        const folder = yield* scratch
        const path = join(folder, "a.sock")
        yield* listen(path)
        // Somebody opened what the agent closed: the credentials still say who it is.
        chmodSync(folder, 0o755)
        chmodSync(path, 0o666)
        const greeting = [...encodeFrame(agentFrame.hello, hello().length, [hello()])]
        const program = `const s = require("net").connect(${JSON.stringify(path)})
          s.on("connect", () => s.write(Buffer.from(${JSON.stringify(greeting)})))
          s.on("data", () => process.stdout.write("answered"))
          s.on("error", (error) => process.stdout.write(error.code))`
        const stranger = (uid: number) =>
          Effect.callback<string>((resume) => {
            const child = spawn("setpriv", [`--reuid=${uid}`, "--clear-groups", process.execPath, "-e", program])
            let text = ""
            child.stdout.on("data", (chunk) => {
              text += String(chunk)
              if (text === "answered") child.kill()
            })
            child.once("close", () => resume(Effect.succeed(text)))
            return Effect.sync(() => child.kill("SIGKILL"))
          })
        assert.strictEqual(yield* stranger(0), "answered")
        assert.notInclude(yield* stranger(65_534), "answered")
      })
    )
  )
})

describe("memory that its client makes shorter", () => {
  const length = 2 ** 18

  for (const [side, tags, says] of [
    ["send", ["TransferFailed", "BatchGone"], /shorter/],
    ["recv", ["BatchGone"], /made the memory of w shorter/]
  ] as const)
    live(`on the side that is to ${side} fails the transfer, and work goes on with other memory`, (folder) =>
      Effect.gen(function* () {
        const paths = yield* agentsIn(folder, 2)
        const clients = yield* all(paths.map(clientAt))
        yield* all([clients[0]!.call(pairOf("a", "b")), clients[1]!.call(pairOf("b", "a"))])
        const [from, into] = [yield* openMemory(floats(length)), yield* openMemory(floats(length, 7))]
        const meet = (left: OpenMemory, right: OpenMemory) =>
          all([
            clients[0]!.call(register([named("w", peerTensor(left, [length]))])),
            clients[1]!.call(register([named("w", peerTensor(right, [length]))]))
          ])
        const update = all([clients[0]!.call(move("send")), clients[1]!.call(move("recv"))])
        yield* meet(from, into)
        for (const reply of yield* update) assert.strictEqual(reply.type, "Ok")
        assert.deepStrictEqual(new Uint8Array(into.content()), floats(length))
        ftruncateSync((side === "send" ? from : into).descriptor, 8192)
        for (const reply of yield* update) {
          if (reply.type !== "Error") return assert.fail("The transfer went well.")
          assert.include([...tags, "TransferFailed"], String(reply.tag), String(reply.message))
          if (reply.tag === tags[0]) assert.match(String(reply.message), says)
        }
        yield* all(clients.map((client) => Effect.exit(client.call(new CleanupBatch({ batchId: "b" })))))
        const [fresh, target] = [yield* openMemory(floats(length, 3)), yield* openMemory(floats(length, 7))]
        for (const reply of yield* meet(fresh, target)) assert.strictEqual(reply.type, "Ok", JSON.stringify(reply))
        for (const reply of yield* update) assert.strictEqual(reply.type, "Ok", JSON.stringify(reply))
        assert.deepStrictEqual(new Uint8Array(target.content()), floats(length, 3))
      })
    )
})
