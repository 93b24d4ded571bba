// SPDX-License-Identifier: Apache-2.0
/** What the kit does not ask: tokens, versions, tickets, memory that is registered, and what is said of it all. */
import { assert, describe, it } from "@effect/vitest"
import { TensorEngine as HostEngine } from "@tensorferry/backend-torch-copy"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { Message } from "@tensorferry/core/ir/Message"
import type { ProcessGroupShape } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import { loadAddon } from "../src/Addon.ts"
import { make } from "../src/CopyDriver.ts"
import { configurationOf, makeFabric, netDevices, segmentsOf, transportsOf } from "../src/Fabric.ts"
import { openLibrary } from "../src/library.ts"
import type { UcxOptions } from "../src/options.ts"
import { ticketOf } from "../src/Publication.ts"
import { noUcx } from "./support.ts"

const message = (direction: Message["direction"], peer: number, tensor: Tensor): Message => ({
  direction,
  peer,
  index: 0,
  byteLength: tensorByteLength(tensor),
  parts: [{ taskId: 7, part: 0, tensor }]
})

const driverOf = (group: ProcessGroupShape, token: string | undefined, options: UcxOptions = {}) =>
  Effect.flatMap(loadAddon, (addon) => make(addon, group, token, options))

/** Why each of two ranks cannot move what goes from rank 0 to rank 1. */
const refusals = Effect.fnUntraced(function* (
  open: (group: ProcessGroupShape, rank: number) => ReturnType<typeof driverOf>
) {
  const engine = yield* TensorEngine
  const groups = yield* makeInProcessGroups(2)
  return yield* Effect.forEach(
    groups,
    (group, rank) =>
      Effect.gen(function* () {
        const tensor = yield* engine.allocate("uint8", [100])
        const driver = yield* open(group, rank)
        return yield* Effect.flip(driver.prepare([message(rank === 0 ? "send" : "recv", 1 - rank, tensor)]))
      }),
    { concurrency: "unbounded" }
  )
})

/** Bytes of a pattern go from rank 0 to rank 1 by strided rows; what arrived, and by which path. */
const exchange = Effect.fnUntraced(function* (
  optionsOf: (group: ProcessGroupShape) => UcxOptions,
  rows: number,
  rowBytes: number,
  pitch: number
) {
  const engine = yield* TensorEngine
  const groups = yield* makeInProcessGroups(2)
  return yield* Effect.forEach(
    groups,
    (group, rank) =>
      Effect.gen(function* () {
        const { storage } = yield* engine.allocate("uint8", [rows, pitch])
        const bytes = storage.bytes!
        for (let at = 0; at < bytes.length; at++) bytes[at] = rank === 0 ? (at * 7 + (at >> 9)) & 0xff : 0xee
        const tensor = Result.getOrThrow(tensorView(storage, "uint8", [rows, rowBytes], { strides: [pitch, 1] }))
        const driver = yield* driverOf(group, undefined, optionsOf(group))
        const program = yield* driver.prepare([message(rank === 0 ? "send" : "recv", 1 - rank, tensor)])
        for (let round = 0; round < 3; round++) yield* Effect.flatMap(driver.start(program), (moving) => moving.await)
        return { bytes, paths: program.paths }
      }),
    { concurrency: "unbounded" }
  )
})

describe("configuration of UCX", () => {
  it("keeps to loopback without a token, and leaves what the environment says", () => {
    const devices = (...values: Parameters<typeof netDevices>) => Result.getOrThrow(netDevices(...values))
    assert.strictEqual(devices({}, false, {}), "lo")
    assert.strictEqual(devices({}, false, { TENSORFERRY_INTERFACES: "eth0" }), "lo")
    assert.isUndefined(devices({}, true, {}))
    assert.isUndefined(devices({}, false, { UCX_NET_DEVICES: "eth0" }))
    assert.strictEqual(devices({ devices: "mlx5_0:1" }, false, {}), "mlx5_0:1")
    const of = (...values: Parameters<typeof configurationOf>) => Object.fromEntries(configurationOf(...values))
    assert.strictEqual(of({}, "lo", {}).NET_DEVICES, "lo")
    assert.isUndefined(of({}, undefined, { UCX_RNDV_THRESH: "auto" }).RNDV_THRESH)
  })

  it("has buffers for whole chunks, unless the environment has its own", () => {
    const of = (environment: NodeJS.ProcessEnv) => Object.fromEntries(configurationOf({}, "lo", environment))
    const ours = of({})
    assert.strictEqual(ours["?RX_SEG_SIZE"], "278528")
    assert.strictEqual(ours["?TCP_RX_SEG_SIZE"], "278528")
    assert.strictEqual(ours["?TCP_TX_SEG_SIZE"], "65536")
    assert.strictEqual(segmentsOf({}), "65536/278528")
    const named = { UCX_TCP_RX_SEG_SIZE: "64k" }
    assert.deepStrictEqual(Object.keys(of(named)), ["RNDV_THRESH", "NET_DEVICES"])
    assert.strictEqual(segmentsOf(named), "default/64k")
  })

  it("takes interfaces by name, from options before the environment, and refuses those that are not there", () => {
    const named = { TENSORFERRY_INTERFACES: " lo , lo," }
    assert.strictEqual(Result.getOrThrow(netDevices({}, true, named)), "lo")
    assert.isUndefined(Result.getOrThrow(netDevices({}, true, { ...named, UCX_NET_DEVICES: "all" })))
    const refused = netDevices({ interfaces: ["none0"] }, true, named)
    assert.match(Result.getOrThrow(Result.flip(refused)), /^There is no interface none0; this host has .*\blo\b/)
  })

  it("transports are read from what UCX prints of a link", () => {
    const printed = "#  lane[0]:  1:tcp/lo.0 md[1] -> md[1]/tcp rma_bw#0 am\n#  lane[1]:  3:rc_mlx5/mlx5_0:1.0 md[4]\n"
    assert.deepStrictEqual(transportsOf(printed), ["tcp/lo.0", "rc_mlx5/mlx5_0:1.0"])
  })
})

describe.skipIf(noUcx !== undefined)(noUcx ?? "the driver ucx", () => {
  for (const transfer of ["messages", "emulated-put"] as const) {
    for (const [name, ...shape] of [
      ["one dense piece and a rest", 1, 3_000_001, 3_000_001],
      ["rows that are gathered and scattered", 20_000, 100, 128],
      ["long rows, some of whose chunks are dense", 5, 700_000, 800_000],
      ["more than the caches hold, at odd addresses", 9, 2_000_003, 2_000_011],
      ["more than the caches hold, in short rows", 70_000, 301, 320]
    ] as const) {
      it.live(`moves ${name} by ${transfer}, and touches nothing between`, () =>
        Effect.gen(function* () {
          const [rows, rowBytes, pitch] = shape
          const [sent, received] = yield* exchange(() => ({ transfer }), rows, rowBytes, pitch)
          for (let at = 0; at < received!.bytes.length; at++) {
            const expected = at % pitch < rowBytes ? sent!.bytes[at]! : 0xee
            if (received!.bytes[at] !== expected) assert.fail(`byte ${at} is ${received!.bytes[at]}, not ${expected}`)
          }
          const [path] = received!.paths
          assert.strictEqual(path!.path, transfer === "emulated-put" ? "ucx-put" : "ucx-message")
          assert.match(path!.reason, /^over tcp\/lo/)
        }).pipe(Effect.provide(HostEngine.layer()), Effect.scoped)
      )
    }
  }

  it.live("writes that UCX would emulate are refused, with what to do", () =>
    Effect.gen(function* () {
      const failures = yield* refusals((group) => driverOf(group, undefined, { transfer: "put" }))
      for (const { reason } of failures)
        assert.match(reason.detail, /Rank [01] is reached by transports whose remote writes UCX only emulates.*auto/)
    }).pipe(Effect.provide(HostEngine.layer()), Effect.scoped)
  )

  it.live("a rank lays nothing open to a peer that would let UCX emulate writes, and gets its bytes sent", () =>
    Effect.gen(function* () {
      const [sent, received] = yield* exchange(
        ({ rank }) => (rank === 0 ? { transfer: "emulated-put" } : {}),
        2,
        700_000,
        700_000
      )
      assert.deepStrictEqual(received!.bytes, sent!.bytes)
      assert.strictEqual(received!.paths[0]!.path, "ucx-message")
    }).pipe(Effect.provide(HostEngine.layer()), Effect.scoped)
  )

  it.live("a rank with another token is named by its peers, with what to do", () =>
    Effect.gen(function* () {
      const failures = yield* refusals((group, rank) =>
        driverOf(group, rank === 0 ? "one" : "another", { devices: "lo" })
      )
      for (const { reason } of failures) {
        assert.match(reason.detail, /Rank [01] has another token/)
        assert.include(reason.remedy, "TENSORFERRY_TOKEN")
      }
    }).pipe(Effect.provide(HostEngine.layer()), Effect.scoped)
  )

  for (const [what, changes, detail] of [
    ["another version of UCX", { version: "1.99" }, /has UCX 1\.99, which does not read addresses of UCX 1\.\d+ here/],
    // UCX would end the process that gets more at once than it has room for.
    ["other buffers for TCP", { segments: "8k/64k" }, /has other buffers .*8k\/64k.*: set UCX_TCP_TX_SEG_SIZE/]
  ] as const) {
    it.live(`a rank with ${what} is refused with both`, () =>
      Effect.gen(function* () {
        const addon = yield* loadAddon
        const [group] = yield* makeInProcessGroups(2)
        const wire = yield* makeFabric(addon, group!, undefined, {})
        const met = wire.meet(1, { ...wire.published, ...changes })
        assert.isTrue(Result.isFailure(met))
        const failure = Result.getOrThrow(Result.flip(met))
        assert.deepStrictEqual([failure.code, failure.item], ["Unsupported", 1])
        assert.match(failure.detail, detail)
      }).pipe(Effect.scoped)
    )
  }

  it.live("takes its buffers by the names that this UCX knows", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const { library } = yield* openLibrary(addon, {})
      // UCX refuses buffers that are longer when they are sent than when they are received.
      const longer = configurationOf({}, "lo", {}).map(
        ([name, value]) => [name, name.endsWith("TX_SEG_SIZE") ? "262144" : value] as const
      )
      const opened = (values: typeof longer) => {
        const [names, all] = [values.map(([name]) => name), values.map(([, value]) => value)]
        const made = addon.createEndpoint(library, 0, 400, 4, 2, 0, names, all)
        if (made.code === "Ok") addon.closeEndpoint(made.value.endpoint)
        return made.code
      }
      assert.strictEqual(opened(longer), "Ok")
      assert.strictEqual(opened(longer.filter(([name]) => !name.endsWith("RX_SEG_SIZE"))), "SystemFailure")
    })
  )

  it.live("a rank whose peer does not come yet sleeps", () =>
    Effect.gen(function* () {
      const engine = yield* TensorEngine
      const groups = yield* makeInProcessGroups(2)
      const programs = yield* Effect.forEach(
        groups,
        Effect.fnUntraced(function* (group, rank) {
          const tensor = yield* engine.allocate("uint8", [1000])
          const driver = yield* driverOf(group, undefined)
          const program = yield* driver.prepare([message(rank === 0 ? "send" : "recv", 1 - rank, tensor)])
          return Effect.flatMap(driver.start(program), (moving) => moving.await)
        }),
        { concurrency: "unbounded" }
      )
      const waiting = yield* Effect.forkChild(programs[1]!)
      yield* Effect.sleep("50 millis")
      const before = process.cpuUsage()
      yield* Effect.sleep("1 second")
      const { user, system } = process.cpuUsage(before)
      assert.isBelow((user + system) / 1e6, 0.5)
      yield* programs[0]!
      yield* Fiber.join(waiting)
    }).pipe(Effect.provide(HostEngine.layer()), Effect.scoped)
  )

  it.live("messages without the ticket are dropped, and the peer that is waited for is named at the deadline", () =>
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const { library } = yield* openLibrary(addon, {})
      const endpoints = yield* Effect.forEach([0, 1], (rank) =>
        Effect.acquireRelease(
          Effect.sync(() => {
            const made = addon.createEndpoint(library, rank, 400, 4, 2, 0, ["NET_DEVICES"], ["lo"])
            assert.strictEqual(made.code, "Ok")
            return (made as Extract<typeof made, { readonly code: "Ok" }>).value
          }),
          ({ endpoint }) => Effect.sync(() => void addon.closeEndpoint(endpoint))
        )
      )
      const [first, second] = endpoints
      const [ours, theirs, guessed] = [1, 2, 3].map((byte) => new Uint8Array(16).fill(byte)) as [
        Uint8Array,
        Uint8Array,
        Uint8Array
      ]
      // Rank 1 expects another ticket than the one that rank 0 has.
      addon.addPeer(second!.endpoint, 0, first!.address, theirs, guessed)
      const added = addon.addPeer(first!.endpoint, 1, second!.address, ours, theirs)
      assert.strictEqual(added.code, "Ok")
      const peer = (added as Extract<typeof added, { readonly code: "Ok" }>).value
      const connect = runJob<undefined>(
        addon,
        (done) => addon.connectPeer(first!.endpoint, peer, done),
        () => {}
      )
      const [passed, failure] = yield* Effect.timed(Effect.flip(connect))
      assert.deepStrictEqual([failure.code, failure.item], ["DeadlineExceeded", 1])
      assert.include(failure.detail, "Rank 1 has not answered for 0.4 s")
      assert.isAbove(Duration.toMillis(passed), 350)
    }).pipe(Effect.scoped)
  )

  it("tickets differ by sender, receiver and token", () => {
    const [a, b] = [{ id: "01".repeat(16) }, { id: "02".repeat(16) }]
    const [to, other] = [{ secret: "0a".repeat(32) }, { secret: "0b".repeat(32) }]
    const all = [
      ticketOf("t", a, to),
      ticketOf("t", b, to),
      ticketOf("t", a, other),
      ticketOf("u", a, to),
      ticketOf(undefined, a, to)
    ]
    assert.strictEqual(new Set(all.map((each) => Buffer.from(each).toString("hex"))).size, all.length)
  })
})
