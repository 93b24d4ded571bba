// SPDX-License-Identifier: Apache-2.0
/**
 * The driver within one process and between real ones, over both steps of its ladder, and against peers that lie.
 */
import { assert, describe, it } from "@effect/vitest"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import * as ProcessGroupTcp from "@tensorferry/core/group/ProcessGroupTcp"
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import * as CopyDriver from "../src/CopyDriver.ts"
import type { PathName } from "../src/memoryPath.ts"
import {
  encodePathOutcome,
  encodePeerList,
  encodePublication,
  type PeerList,
  type PublishedProcess
} from "../src/Publication.ts"
import { publishedLists, publishedProcess } from "../src/publish.ts"
import { exchange, makeMessages } from "./fixtures/exchange.ts"
import { filled, makeEngine, openMemoryFiles, openSockets, startPeer } from "./support.ts"

const tagOf = <A, E extends { readonly reason: { readonly _tag: string } }, R>(effect: Effect.Effect<A, E, R>) =>
  effect.pipe(
    Effect.as("succeeded"),
    Effect.catch((error) => Effect.succeed(error.reason._tag))
  )

const makeDrivers = (size: number, options: CopyDriver.CopyDriverOptions = {}) =>
  Effect.gen(function* () {
    const { addon, engine, memory } = yield* makeEngine()
    const groups = yield* makeInProcessGroups(size)
    const drivers = yield* Effect.forEach(groups, (group) => CopyDriver.make(addon, group, options))
    return { addon, engine, memory, groups, drivers }
  })

/** The same on every rank, at once. */
const together = <A, E, R>(size: number, work: (rank: number) => Effect.Effect<A, E, R>) =>
  Effect.forEach(
    Array.from({ length: size }, (_, rank) => rank),
    work,
    { concurrency: "unbounded" }
  )

/** Rank 0 sends `from`, rank 1 receives `to`. */
const oneWay = (from: Tensor, to: Tensor): ReadonlyArray<ReadonlyArray<Message>> => [
  [{ peer: 1, direction: "send", index: 0, parts: [{ taskId: 5, part: 0, tensor: from }], byteLength: 0 }],
  [{ peer: 0, direction: "recv", index: 0, parts: [{ taskId: 5, part: 0, tensor: to }], byteLength: 0 }]
]

const ladder: ReadonlyArray<readonly [ReadonlyArray<PathName>, number, string]> = [
  [[], Number.POSITIVE_INFINITY, "shared-map"],
  [["shared-map"], Number.POSITIVE_INFINITY, "process-vm-readv"],
  [[], 0, "process-vm-readv"],
  [[], 4, "shared-map+process-vm-readv"],
  [["shared-map", "process-vm-readv"], Number.POSITIVE_INFINITY, "tcp"],
  [["process-vm-readv"], 4, "tcp"]
]

const noPath: ReadonlyArray<PathName> = ["shared-map", "process-vm-readv", "tcp"]
const tcpOnly: ReadonlyArray<PathName> = ["shared-map", "process-vm-readv"]

describe("within one process", () => {
  for (const [forbid, wrapFrom, path] of ladder) {
    it.live(`moves every byte between 3 ranks by ${path}, memory wrapped from part ${wrapFrom}`, () =>
      Effect.gen(function* () {
        const before = [openMemoryFiles(), openSockets()]
        yield* Effect.gen(function* () {
          const { engine, groups, drivers } = yield* makeDrivers(3, { forbid })
          const results = yield* together(3, (rank) =>
            exchange(drivers[rank]!, engine, groups[rank]!, { rounds: 2, wrapped: (part) => part >= wrapFrom })
          )
          for (const [rank, { paths, wrong, movedBytes }] of results.entries()) {
            assert.strictEqual(wrong, 0)
            assert.isAbove(movedBytes, 2 * 2 * 20_011)
            assert.deepStrictEqual(
              paths.map(({ peer }) => peer),
              [0, 1, 2].filter((peer) => peer !== rank)
            )
            for (const each of paths) assert.strictEqual(each.path, path)
          }
        }).pipe(Effect.scoped)
        yield* Effect.promise(() => new Promise((resolve) => setImmediate(resolve)))
        assert.deepStrictEqual([openMemoryFiles(), openSockets()], before)
      })
    )
  }

  it.live("fails with the same error on every rank where no path is left", () =>
    Effect.gen(function* () {
      const { engine, drivers } = yield* makeDrivers(3, { forbid: noPath })
      const tags = yield* together(3, (rank) =>
        Effect.flatMap(
          makeMessages(engine, rank, 3, () => false),
          (messages) => tagOf(drivers[rank]!.prepare(messages))
        )
      )
      assert.deepStrictEqual(tags, ["UnreachableMemory", "UnreachableMemory", "UnreachableMemory"])
    })
  )

  it.live("fails on every rank where one publishes freed storage, and works afterwards", () =>
    Effect.gen(function* () {
      const { engine, drivers } = yield* makeDrivers(2)
      const to = yield* filled(engine, "uint8", [9], 0xa5)
      const gone = yield* Effect.scoped(engine.allocate("uint8", [9]))
      const bad = oneWay(gone, to)
      const tags = yield* together(2, (rank) => tagOf(drivers[rank]!.prepare(bad[rank]!)))
      assert.deepStrictEqual(tags, ["InvalidProgram", "InvalidProgram"])
      const good = oneWay(yield* filled(engine, "uint8", [9], 6), to)
      const programs = yield* together(2, (rank) => drivers[rank]!.prepare(good[rank]!))
      yield* together(2, (rank) => Effect.flatMap(drivers[rank]!.start(programs[rank]!), (running) => running.await))
      assert.isTrue(to.storage.bytes!.every((byte) => byte === 6))
    })
  )

  it.live("refuses messages on which both ends do not agree", () =>
    Effect.gen(function* () {
      const { engine, drivers } = yield* makeDrivers(2)
      const from = yield* engine.allocate("int16", [4])
      const wrongs: ReadonlyArray<readonly [string, Tensor, Partial<Message>]> = [
        ["type", yield* engine.allocate("bfloat16", [4]), {}],
        ["shape", yield* engine.allocate("int16", [2, 2]), {}],
        ["index", yield* engine.allocate("int16", [4]), { index: 1 }],
        ["parts", yield* engine.allocate("int16", [4]), { parts: [] }],
        ["task", from, { parts: [{ taskId: 6, part: 0, tensor: from }] }],
        ["part", from, { parts: [{ taskId: 5, part: 1, tensor: from }] }]
      ]
      for (const [name, to, change] of wrongs) {
        const [send, recv] = oneWay(from, to)
        const messages = [send!, [{ ...recv![0]!, ...change }]]
        const tags = yield* together(2, (rank) => tagOf(drivers[rank]!.prepare(messages[rank]!)))
        assert.deepStrictEqual(tags, ["InvalidProgram", "InvalidProgram"], name)
      }
    })
  )

  it.live("starts only its own open programs over memory that is alive", () =>
    Effect.gen(function* () {
      const { engine, drivers } = yield* makeDrivers(2)
      const scope = yield* Scope.make()
      const from = yield* filled(engine, "uint8", [9], 6)
      const to = yield* filled(engine, "uint8", [9], 0xa5)
      const messages = oneWay(from, to)
      const programs = yield* together(2, (rank) => drivers[rank]!.prepare(messages[rank]!).pipe(Scope.provide(scope)))
      assert.strictEqual(yield* tagOf(drivers[0]!.start(programs[1]!)), "InvalidProgram")
      assert.strictEqual(yield* tagOf(drivers[1]!.start({ ...programs[1]! })), "InvalidProgram")
      assert.strictEqual(yield* tagOf(drivers[1]!.start(programs[1]!)), "succeeded")
      from.storage.free()
      assert.strictEqual(yield* tagOf(drivers[0]!.start(programs[0]!)), "InvalidProgram")
      yield* Scope.close(scope, Exit.void)
      assert.strictEqual(yield* tagOf(drivers[1]!.start(programs[1]!)), "InvalidProgram")
    })
  )

  for (const forbid of [[], ["shared-map"] as const, tcpOnly]) {
    it.live(`stops touching memory when cancelled, then works again (forbids ${forbid.join() || "nothing"})`, () =>
      Effect.gen(function* () {
        const { engine, drivers } = yield* makeDrivers(2, { threads: 1, forbid })
        const from = yield* filled(engine, "uint8", [2 ** 26], 6)
        const to = yield* filled(engine, "uint8", [2 ** 26], 0xa5)
        const messages = oneWay(from, to)
        const programs = yield* together(2, (rank) => drivers[rank]!.prepare(messages[rank]!))
        // Made once: the first touch of fresh pages costs more than everything else here.
        const [bytes, untouched, sent] = [
          Buffer.from(to.storage.bytes!.buffer, to.storage.bytes!.byteOffset, 2 ** 26),
          Buffer.alloc(2 ** 26, 0xa5),
          Buffer.alloc(2 ** 26, 6)
        ]
        for (let round = 0; round < 5; round++) {
          const running = yield* drivers[1]!.start(programs[1]!)
          yield* running.cancel
          assert.isTrue(yield* running.isComplete)
          bytes.fill(0xa5)
          yield* Effect.yieldNow
          assert.isTrue(bytes.equals(untouched))
        }
        const running = yield* drivers[1]!.start(programs[1]!)
        yield* running.await
        assert.strictEqual(yield* running.movedBytes, 2 ** 26)
        assert.isTrue(bytes.equals(sent))
      })
    )
  }

  it.live("closes mappings that no program has used since the preparation before", () =>
    Effect.gen(function* () {
      const { engine, drivers } = yield* makeDrivers(2)
      const round = Effect.gen(function* () {
        const messages = oneWay(
          yield* engine.allocate("uint8", [8 * 2 ** 20]),
          yield* engine.allocate("uint8", [8 * 2 ** 20])
        )
        yield* together(2, (rank) => drivers[rank]!.prepare(messages[rank]!))
      }).pipe(Effect.scoped)
      yield* Effect.repeat(round, { times: 2 })
      const after3 = openMemoryFiles().maps
      yield* Effect.repeat(round, { times: 5 })
      assert.strictEqual(openMemoryFiles().maps, after3)
    })
  )
})

describe("a peer that lies", () => {
  type Fields = Record<string, unknown>
  interface Truth {
    readonly process: PublishedProcess
    readonly list: PeerList
  }

  const encode = ({ process, list }: Truth): Uint8Array =>
    encodePublication({ _tag: "Published", process, lists: new Map([[1, encodePeerList(list)]]) })

  /** Changes what the peer says about itself, its only memory or its only part. */
  const change =
    (edits: { readonly process?: Fields; readonly memory?: Fields; readonly file?: Fields; readonly part?: Fields }) =>
    (truth: Truth): Uint8Array => {
      const { memories, messages } = truth.list
      Object.assign(truth.process, edits.process)
      Object.assign(memories[0]!, edits.memory)
      Object.assign(memories[0]!.file!, edits.file)
      Object.assign(messages[0]!.parts[0]!, edits.part)
      return encode(truth)
    }

  /** Rank 0 plays its part by hand and publishes `payload`; answers what rank 1 makes of it. */
  const against = (
    payload: Uint8Array,
    groups: ReadonlyArray<ProcessGroupShape>,
    driver: CopyDriverShape,
    to: Tensor
  ) =>
    Effect.gen(function* () {
      const play = Effect.gen(function* () {
        yield* groups[0]!.allGather("torch-copy/publish", payload)
        yield* groups[0]!.allGather("torch-copy/outcome", encodePathOutcome({ _tag: "Done", value: [] }))
      })
      const receive = driver.prepare(oneWay(to, to)[1]!).pipe(Effect.as("succeeded"), Effect.scoped)
      const [, tag] = yield* Effect.all([play, tagOf(receive)], { concurrency: 2 })
      return tag
    })

  const raw = (list: Uint8Array) => (truth: Truth) =>
    encodePublication({ _tag: "Published", process: truth.process, lists: new Map([[1, list]]) })
  const notMyCookie = { cookie: "0".repeat(32) }
  const beyond53Bits = [255, 255, 255, 255, 255, 255, 255, 255, 1]

  const lies: ReadonlyArray<readonly [string, (truth: Truth) => Uint8Array, string]> = [
    ["nothing", encode, "succeeded"],
    ["a file of a process that has none", change({ file: { owner: { pid: 1, processStart: "1" } } }), "succeeded"],
    ["a file of no process", change({ file: { owner: { pid: 2 ** 31, processStart: "1" } } }), "succeeded"],
    ["three bytes", () => Uint8Array.of(1, 2, 3), "InvalidProgram"],
    ["no bytes", () => new Uint8Array(0), "InvalidProgram"],
    ["cut off", (truth) => encode(truth).slice(0, -1), "InvalidProgram"],
    ["a byte too many", (truth) => Uint8Array.of(...encode(truth), 0), "InvalidProgram"],
    ["more memories than bytes", raw(Uint8Array.of(255, 255, 255, 255, 15)), "InvalidProgram"],
    ["a number beyond 2^53", raw(Uint8Array.of(1, ...beyond53Bits)), "InvalidProgram"],
    ["a list cut off", (truth) => raw(encodePeerList(truth.list).slice(0, -1))(truth), "InvalidProgram"],
    ["a list too long", (truth) => raw(Uint8Array.of(...encodePeerList(truth.list), 0))(truth), "InvalidProgram"],
    ["an unknown type", raw(Uint8Array.of(0, 1, 0, 1, 5, 0, 99, 0, 0, 0, 1)), "InvalidProgram"],
    ["offset", change({ part: { byteOffset: 2 ** 40 } }), "InvalidProgram"],
    ["offset by one", change({ part: { byteOffset: 1 } }), "InvalidProgram"],
    ["strides", change({ part: { strides: [2 ** 40] } }), "InvalidProgram"],
    ["memory", change({ part: { memory: 1 } }), "InvalidProgram"],
    // The file is too short for the memory; reading by process_vm_readv would fail there and harm nobody.
    ["length", change({ memory: { byteLength: 2 ** 40 }, process: notMyCookie }), "UnreachableMemory"],
    ["another file", change({ file: { inode: 1 }, process: notMyCookie }), "UnreachableMemory"],
    ["another process", change({ process: { pid: 1 } }), "UnreachableMemory"],
    ["another host", change({ process: { space: "elsewhere" } }), "UnreachableMemory"]
  ]

  it.live("makes the preparation fail, and reads nothing outside", () =>
    Effect.gen(function* () {
      const { addon, engine, groups, drivers } = yield* makeDrivers(2, { forbid: ["tcp"] })
      const from = yield* filled(engine, "uint8", [1000], 6)
      const to = yield* filled(engine, "uint8", [1000], 0xa5)
      const answer = addon.identity()
      assert.strictEqual(answer.code, "Ok")
      if (answer.code !== "Ok") return
      const truth = {
        process: publishedProcess(answer.value),
        list: publishedLists(oneWay(from, to)[0]!).get(1)!
      }
      for (const [name, lie, tag] of lies) {
        const copy = { process: { ...truth.process }, list: structuredClone({ ...truth.list, indexOf: undefined }) }
        assert.strictEqual(yield* against(lie(copy), groups, drivers[1]!, to), tag, name)
      }
    })
  )

  it.live("about its host is not asked to send either", () =>
    Effect.gen(function* () {
      const { addon, engine, groups, drivers } = yield* makeDrivers(2)
      const answer = addon.identity()
      if (answer.code !== "Ok") return assert.fail(answer.detail)
      const from = yield* filled(engine, "uint8", [1000], 6)
      const process = { ...publishedProcess(answer.value), space: "elsewhere pid:[1]" }
      const published = encode({ process, list: publishedLists(oneWay(from, from)[0]!).get(1)! })
      const to = yield* filled(engine, "uint8", [1000], 0xa5)
      assert.strictEqual(yield* against(published, groups, drivers[1]!, to), "UnreachableMemory")
    })
  )

  it.live("about an address makes the transfer fail", () =>
    Effect.gen(function* () {
      const { addon, engine, groups, drivers } = yield* makeDrivers(2, { forbid: ["shared-map"] })
      const from = yield* filled(engine, "uint8", [1000], 6)
      const to = yield* filled(engine, "uint8", [1000], 0xa5)
      const answer = addon.identity()
      assert.strictEqual(answer.code, "Ok")
      if (answer.code !== "Ok") return
      const list = publishedLists(oneWay(from, to)[0]!).get(1)!
      Object.assign(list.memories[0]!, { address: 4096 })
      const play = Effect.gen(function* () {
        const published = encode({ process: publishedProcess(answer.value), list })
        yield* groups[0]!.allGather("torch-copy/publish", published)
        yield* groups[0]!.allGather("torch-copy/outcome", encodePathOutcome({ _tag: "Done", value: [] }))
      })
      const [, program] = yield* Effect.all([play, drivers[1]!.prepare(oneWay(from, to)[1]!)], { concurrency: 2 })
      const running = yield* drivers[1]!.start(program)
      const failure = yield* Effect.flip(running.await)
      assert.deepStrictEqual([failure.reason._tag, failure.reason.peer], ["InvalidProgram", 0])
      assert.isTrue(to.storage.bytes!.every((byte) => byte === 0xa5))
      const view = Result.getOrThrow(tensorView(from.storage, "uint8", [1]))
      yield* engine.copy([{ dst: Result.getOrThrow(tensorView(to.storage, "uint8", [1])), src: view }])
    })
  )
})

describe("between processes", () => {
  interface PeerResult {
    readonly paths?: ReadonlyArray<{ readonly peer: number; readonly path: string }>
    readonly wrong?: number
    readonly failed?: string
    readonly prepared?: boolean
  }

  /** This process is rank 0; the others are processes of their own. */
  const job = (size: number, details: object) =>
    Effect.gen(function* () {
      const { addon, engine } = yield* makeEngine()
      const peers = yield* Effect.forEach(Array.from({ length: size - 1 }), () => startPeer("driver-peer"))
      const answers: Array<Promise<PeerResult>> = []
      const group = yield* ProcessGroupTcp.make({
        rank: 0,
        size,
        host: "127.0.0.1",
        port: 0,
        onListening: (port) =>
          Effect.sync(() => {
            for (const [i, peer] of peers.entries()) {
              const question = { rank: i + 1, size, port, rounds: 2, forbid: [], wrapFrom: 1000, ...details }
              answers.push(peer.ask(question) as Promise<PeerResult>)
            }
          })
      })
      return { addon, engine, group, peers, answers: Effect.promise(() => Promise.all(answers)) }
    })

  for (const [size, forbid, wrapFrom, path] of [
    [2, [], 1000, "shared-map"],
    [2, ["shared-map"], 1000, "process-vm-readv"],
    [3, [], 4, "shared-map+process-vm-readv"],
    [3, tcpOnly, 4, "tcp"]
  ] as const) {
    it.live(`moves every byte between ${size} processes by ${path}`, () =>
      Effect.gen(function* () {
        const { addon, engine, group, answers } = yield* job(size, { forbid, wrapFrom })
        const driver = yield* CopyDriver.make(addon, group, { forbid })
        const wrapped = (part: number) => part >= wrapFrom
        const mine = yield* exchange(driver, engine, group, { rounds: 2, wrapped })
        for (const { wrong, paths } of [mine, ...(yield* answers)]) {
          assert.strictEqual(wrong, 0)
          assert.strictEqual(paths?.length, size - 1)
          for (const each of paths ?? []) assert.strictEqual(each.path, path)
        }
      })
    )
  }

  it.live("maps what the sender only opened, as an agent does the memory of its client", () =>
    Effect.gen(function* () {
      const { addon, engine, group, answers } = yield* job(2, { isOpened: true })
      const driver = yield* CopyDriver.make(addon, group)
      const mine = yield* exchange(driver, engine, group, { rounds: 2 })
      const [theirs] = yield* answers
      assert.deepStrictEqual([mine.wrong, theirs?.wrong], [0, 0])
      assert.deepStrictEqual(
        mine.paths.map(({ path }) => path),
        ["shared-map"]
      )
    })
  )

  it.live("fails with the same error in all processes where no path is left", () =>
    Effect.gen(function* () {
      const { addon, engine, group, answers } = yield* job(2, { forbid: noPath })
      const driver = yield* CopyDriver.make(addon, group)
      assert.strictEqual(yield* tagOf(exchange(driver, engine, group, { rounds: 1 })), "UnreachableMemory")
      assert.deepStrictEqual(yield* answers, [{ failed: "UnreachableMemory" }])
    })
  )

  it.live("names the peer whose process was killed while it sends", () =>
    Effect.gen(function* () {
      const { addon, engine, group, peers, answers } = yield* job(2, { forbid: tcpOnly, stopAfterPrepare: true })
      const driver = yield* CopyDriver.make(addon, group, { forbid: tcpOnly })
      const program = yield* driver.prepare(yield* makeMessages(engine, 0, 2, () => false))
      assert.deepStrictEqual(yield* answers, [{ prepared: true }])
      const first = yield* driver.start(program)
      yield* first.await
      process.kill(peers[0]!.pid, "SIGSTOP")
      const second = yield* driver.start(program)
      yield* Effect.promise(peers[0]!.kill)
      const failure = yield* Effect.flip(second.await)
      assert.deepStrictEqual([failure.reason._tag, failure.reason.peer], ["PeerGone", 1])
      const again = yield* Effect.flip(Effect.flatMap(driver.start(program), (running) => running.await))
      assert.deepStrictEqual([again.reason._tag, again.reason.peer], ["PeerGone", 1])
    })
  )

  it.live("names the peer whose process was killed", () =>
    Effect.gen(function* () {
      const forbid = ["shared-map"] as const
      const { addon, engine, group, peers, answers } = yield* job(2, { forbid, stopAfterPrepare: true })
      const driver = yield* CopyDriver.make(addon, group, { forbid })
      const program = yield* driver.prepare(yield* makeMessages(engine, 0, 2, () => false))
      assert.deepStrictEqual(yield* answers, [{ prepared: true }])
      yield* Effect.promise(peers[0]!.kill)
      const failure = yield* Effect.flip(driver.start(program))
      assert.deepStrictEqual([failure.reason._tag, failure.reason.peer], ["PeerGone", 1])
      const read = addon.readProcess(peers[0]!.pid, 4096n, new Uint8Array(1))
      assert.strictEqual(read.code, "PeerGone")
    })
  )
})
