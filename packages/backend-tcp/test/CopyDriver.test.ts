// SPDX-License-Identifier: Apache-2.0
/**
 * The driver between ranks of one process, over real connections of loopback: tensors of any form, ranks that disagree, tokens
 * that differ, peers that end, and what is left open afterwards.
 */
import { assert, describe, it } from "@effect/vitest"
import type { DType } from "@tensorferry/core/base/DType"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import type { Message } from "@tensorferry/core/ir/Message"
import type { CopyDriverShape } from "@tensorferry/core/service/CopyDriver"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorByteLength, tensorView } from "@tensorferry/core/tensor/Tensor"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { loadAddon } from "../src/Addon.ts"
import * as CopyDriver from "../src/CopyDriver.ts"
import type { TcpOptions } from "../src/options.ts"
import { hostEngine, openSockets } from "./support.ts"

/** Drivers of as many ranks as there are options; a token that all share unless one is given. */
const makeDrivers = (...options: ReadonlyArray<TcpOptions>) =>
  Effect.gen(function* () {
    const addon = yield* loadAddon
    const groups = yield* makeInProcessGroups(options.length, { deadline: Duration.seconds(20) })
    return yield* Effect.forEach(groups, (group, rank) =>
      CopyDriver.make(addon, group, options[rank]!.token, options[rank])
    )
  })

const message = (
  direction: Message["direction"],
  peer: number,
  tensors: ReadonlyArray<Tensor>,
  index = 0
): Message => ({
  direction,
  peer,
  index,
  byteLength: tensors.reduce((sum, tensor) => sum + tensorByteLength(tensor), 0),
  parts: tensors.map((tensor, part) => ({ taskId: 40 + part, part, tensor }))
})

const run = (driver: CopyDriverShape, messages: ReadonlyArray<Message>, starts = 1) =>
  Effect.gen(function* () {
    const program = yield* driver.prepare(messages)
    for (let start = 0; start < starts; start++) yield* (yield* driver.start(program)).await
    return program
  }).pipe(Effect.scoped)

const together = <A, E, R>(...works: ReadonlyArray<Effect.Effect<A, E, R>>) =>
  Effect.all(works.map(Effect.result), { concurrency: "unbounded" })

/** A tensor over memory that holds these bytes, and the memory. */
const view = (
  dtype: DType,
  shape: ReadonlyArray<number>,
  strides: ReadonlyArray<number>,
  byteOffset: number,
  memory: Uint8Array
) =>
  Effect.gen(function* () {
    const { storage } = yield* (yield* TensorEngine).allocate("uint8", [memory.length])
    storage.bytes!.set(memory)
    return Result.getOrThrow(tensorView(storage, dtype, shape, { strides, byteOffset }))
  })

/** Strides of a random padded, transposed array and where it begins. */
const randomView = (random: ReturnType<typeof makeRandom>, shape: ReadonlyArray<number>) => {
  const order = shape.map((_, dim) => dim).sort(() => random.below(2) - 0.5)
  const strides = new Array<number>(shape.length).fill(0)
  let step = 1
  for (const dim of order) {
    strides[dim] = step
    step *= shape[dim]! + random.below(3)
  }
  return { strides, byteOffset: random.below(9), elements: step }
}

/** Where the elements of a tensor begin in its storage, in row-major order, by their definition. */
const placesOf = ({ shape, strides, byteOffset }: Tensor, width: number): ReadonlyArray<number> => {
  const count = shape.reduce((product, length) => product * length, 1)
  return Array.from({ length: count }, (_, element) => {
    let [rest, at] = [element, 0]
    for (let dim = shape.length - 1; dim >= 0; dim--) {
      at += (rest % shape[dim]!) * strides[dim]!
      rest = Math.floor(rest / shape[dim]!)
    }
    return byteOffset + at * width
  })
}

/** The elements of a tensor, and its memory with all of them zero. */
const partsOf = (tensor: Tensor, width: number) => {
  const places = placesOf(tensor, width)
  const around = Uint8Array.from(tensor.storage.bytes!)
  const elements = new Uint8Array(places.length * width)
  for (const [element, place] of places.entries()) {
    elements.set(around.subarray(place, place + width), element * width)
  }
  for (const place of places) around.fill(0, place, place + width)
  return { elements, around }
}

const live = (title: string, test: Effect.Effect<unknown, unknown, Scope.Scope | TensorEngine>) =>
  it.live(title, () => test.pipe(Effect.scoped, Effect.provide(hostEngine), Effect.asVoid), 60_000)

describe("the driver", () => {
  live(
    "moves tensors of any strides, types and lengths to any others",
    Effect.gen(function* () {
      const [first, second] = yield* makeDrivers({}, { lanes: 3, threads: 2 })
      const random = makeRandom(7)
      for (let round = 0; round < 12; round++) {
        const sent: Array<Tensor> = []
        const taken: Array<Tensor> = []
        const widths: Array<number> = []
        for (let part = 0; part < 1 + random.below(5); part++) {
          const [dtype, width] = random.pick([
            ["uint8", 1],
            ["bfloat16", 2],
            ["float32", 4],
            ["int64", 8]
          ] as const)
          const longest = random.pick([1, 3, 40, 700])
          const shape = Array.from({ length: 1 + random.below(3) }, () => random.below(longest + 1))
          const make = (byte: number | undefined) => {
            const { strides, byteOffset, elements } = randomView(random, shape)
            const memory = new Uint8Array(byteOffset + (elements + 1) * width)
            if (byte === undefined) for (let at = 0; at < memory.length; at++) memory[at] = random.below(256)
            else memory.fill(byte)
            return view(dtype, shape, strides, byteOffset, memory)
          }
          if (shape.reduce((product, length) => product * length, 1) > 3_000_000) continue
          sent.push(yield* make(undefined))
          taken.push(yield* make(0x5a))
          widths.push(width)
        }
        const before = taken.map((tensor, part) => partsOf(tensor, widths[part]!))
        const ends = yield* together(
          run(first!, [message("send", 1, sent)], 2),
          run(second!, [message("recv", 0, taken)], 2)
        )
        for (const end of ends) Result.getOrThrow(end)
        for (const [part, tensor] of taken.entries()) {
          const { elements, around } = partsOf(tensor, widths[part]!)
          assert.deepStrictEqual(elements, partsOf(sent[part]!, widths[part]!).elements)
          assert.deepStrictEqual(around, before[part]!.around)
        }
      }
    })
  )

  live(
    "moves both ways at once between three ranks, over IPv6",
    Effect.gen(function* () {
      const drivers = yield* makeDrivers(...[0, 1, 2].map(() => ({ addresses: ["::1", "127.0.0.1"] as const })))
      const length = 3 * 2 ** 20 + 11
      const engine = yield* TensorEngine
      const tensors = yield* Effect.forEach([0, 1, 2], (rank) =>
        Effect.forEach([0, 1, 2], (other) =>
          Effect.all([engine.allocate("uint8", [length]), engine.allocate("uint8", [length])]).pipe(
            Effect.tap(([out]) => engine.fill(out, 10 * rank + other + 1))
          )
        )
      )
      const ends = yield* together(
        ...drivers.map((driver, rank) => {
          const others = [0, 1, 2].filter((other) => other !== rank)
          return run(
            driver,
            others.flatMap((other) => [
              message("send", other, [tensors[rank]![other]![0]]),
              message("recv", other, [tensors[rank]![other]![1]])
            ]),
            3
          )
        })
      )
      for (const end of ends)
        assert.deepStrictEqual(
          Result.getOrThrow(end).paths.map(({ path }) => path),
          ["tcp", "tcp"]
        )
      for (const rank of [0, 1, 2]) {
        for (const other of [0, 1, 2]) {
          if (other === rank) continue
          const bytes = tensors[rank]![other]![1].storage.bytes!
          assert.isTrue(
            bytes.every((byte) => byte === 10 * other + rank + 1),
            `${other} to ${rank}`
          )
        }
      }
    })
  )

  live(
    "names the task that ranks describe differently, on all of them",
    Effect.gen(function* () {
      const [first, second, third] = yield* makeDrivers({}, {}, {})
      const engine = yield* TensorEngine
      const [a, b] = [yield* engine.allocate("uint8", [8]), yield* engine.allocate("uint8", [2, 4])]
      const ends = yield* together(
        run(first!, [message("send", 1, [a])]),
        run(second!, [message("recv", 0, [b])]),
        run(third!, [])
      )
      for (const end of ends) {
        const { reason } = Result.getOrThrow(Result.flip(end))
        assert.strictEqual(reason._tag, "InvalidProgram")
        assert.match(reason.detail, /Task 40 part 0 uint8\[8\] meets task 40 part 0 uint8\[2,4\]/)
      }
      const missing = yield* together(run(first!, [message("send", 1, [a])]), run(second!, []), run(third!, []))
      for (const end of missing) {
        assert.match(Result.getOrThrow(Result.flip(end)).reason.detail, /message 0/)
      }
      // What was refused leaves a driver that works.
      const good = yield* together(
        run(first!, [message("send", 1, [a])]),
        run(second!, [message("recv", 0, [yield* engine.allocate("uint8", [8])])]),
        run(third!, [])
      )
      for (const end of good) Result.getOrThrow(end)
    })
  )

  live(
    "names the rank whose token differs, on all ranks",
    Effect.gen(function* () {
      const [first, second] = yield* makeDrivers(
        { token: "one", interfaces: ["lo"] },
        { token: "two", interfaces: ["lo"] }
      )
      const engine = yield* TensorEngine
      const tensor = yield* engine.allocate("uint8", [8])
      const ends = yield* together(
        run(first!, [message("send", 1, [tensor])]),
        run(second!, [message("recv", 0, [tensor])])
      )
      for (const end of ends) {
        const { reason } = Result.getOrThrow(Result.flip(end))
        assert.strictEqual(reason._tag, "TransportFailed")
        assert.match(reason.detail, /Rank 1 has another token/)
        assert.match(reason.remedy, /TENSORFERRY_TOKEN/)
      }
    })
  )

  live(
    "does not listen beyond loopback without a token",
    Effect.gen(function* () {
      const { reason } = yield* Effect.flip(makeDrivers({ addresses: ["0.0.0.0"] }))
      assert.strictEqual(reason._tag, "Unavailable")
      assert.match(reason.detail, /0\.0\.0\.0 is not a loopback address, and there is no token/)
    })
  )

  live(
    "says where it cannot listen",
    Effect.gen(function* () {
      const { reason } = yield* Effect.flip(makeDrivers({ token: "a", addresses: ["192.0.2.77"] }))
      assert.match(reason.detail, /Rank 0 cannot listen at 192\.0\.2\.77:0/)
    })
  )

  live(
    "learns at once that the driver of a peer was closed, and meets its next one",
    Effect.gen(function* () {
      const addon = yield* loadAddon
      const engine = yield* TensorEngine
      const groups = yield* makeInProcessGroups(2, { deadline: Duration.seconds(30) })
      const first = yield* CopyDriver.make(addon, groups[0]!, undefined)
      const scope = yield* Scope.make()
      const second = yield* Scope.provide(CopyDriver.make(addon, groups[1]!, undefined), scope)
      const [out, into] = [yield* engine.allocate("uint8", [5000]), yield* engine.allocate("uint8", [5000])]
      yield* engine.fill(out, 6)
      const [mine] = yield* Effect.all(
        [first.prepare([message("recv", 1, [into])]), second.prepare([message("send", 0, [out])])],
        { concurrency: "unbounded" }
      )
      const waiting = yield* first.start(mine)
      const begun = performance.now()
      yield* Scope.close(scope, Exit.void)
      const { reason } = yield* Effect.flip(waiting.await)
      assert.strictEqual(reason._tag, "PeerGone")
      assert.strictEqual(reason.peer, 1)
      assert.isBelow(performance.now() - begun, 5000)
      const next = yield* CopyDriver.make(addon, groups[1]!, undefined)
      const ends = yield* together(run(first, [message("recv", 1, [into])]), run(next, [message("send", 0, [out])]))
      for (const end of ends) Result.getOrThrow(end)
      assert.isTrue(into.storage.bytes!.every((byte) => byte === 6))
    })
  )

  it.live("leaves no sockets and no threads behind", () =>
    Effect.gen(function* () {
      const before = openSockets()
      for (let round = 0; round < 3; round++) {
        yield* Effect.gen(function* () {
          const [first, second] = yield* makeDrivers({}, {})
          const engine = yield* TensorEngine
          const [out, into] = [
            yield* engine.allocate("uint8", [9_000_000]),
            yield* engine.allocate("uint8", [9_000_000])
          ]
          const ends = yield* together(
            run(first!, [message("send", 1, [out])], 5),
            run(second!, [message("recv", 0, [into])], 5)
          )
          for (const end of ends) Result.getOrThrow(end)
          assert.isAbove(openSockets(), before)
        }).pipe(Effect.scoped, Effect.provide(hostEngine))
      }
      assert.strictEqual(openSockets(), before)
    })
  )
})
