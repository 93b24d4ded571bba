// SPDX-License-Identifier: Apache-2.0
/** Batches that move what changed: what did not change stays as it is, and what goes wrong is moved whole the next time. */
import { assert, describe, it } from "@effect/vitest"
import type { Tensor } from "@tensorferry/core/tensor/Tensor"
import { makeRandom } from "@tensorferry/testing/mutate"
import * as Effect from "effect/Effect"
import { all, register, twoAgents } from "./twoAgents.ts"

const changesBytes = 2 ** 30
const length = 100_000

const valuesOf = ({ storage, byteOffset }: Tensor) =>
  new Float32Array(storage.bytes!.buffer, storage.bytes!.byteOffset + byteOffset, length)

const setUp = Effect.gen(function* () {
  const agents = yield* twoAgents()
  const { a, b } = agents
  const tensors = [yield* agents.tensor(length), yield* agents.tensor(length)] as const
  const [source, destination] = tensors.map(valuesOf) as [Float32Array, Float32Array]
  source.forEach((_, at) => {
    source[at] = at
  })
  const state = (changes: readonly [number | undefined, number | undefined], batch = "w") =>
    all(
      [a, b].map(({ client }, at) =>
        Effect.result(
          client.registerTensors({
            batch,
            tensors: [["p", tensors[at]!, "w"]],
            ...(changes[at] === undefined ? {} : { changesBytes: changes[at] })
          })
        )
      )
    )
  const move = (version?: number, from: "a" | "b" = "a") =>
    all([
      Effect.result(a.client.transfer("w", from === "a" ? "send" : "recv", version)),
      Effect.result(b.client.transfer("w", from === "b" ? "send" : "recv"))
    ])
  const moved = Effect.fnUntraced(function* (version: number, from?: "a" | "b") {
    for (const end of yield* move(version, from)) assert.strictEqual(end._tag, "Success", JSON.stringify(end))
  })
  return { ...agents, source, destination, state, move, moved }
})

describe("a batch that moves changes", () => {
  it.live("moves them, and nothing else", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { source, destination, state, moved } = yield* setUp
        for (const end of yield* state([changesBytes, changesBytes])) assert.strictEqual(end._tag, "Success")
        yield* moved(1)
        assert.deepStrictEqual(destination, source)
        const random = makeRandom(7)
        for (let version = 2; version < 12; version++) {
          // Nobody may write there: here it shows what was moved.
          const kept = random.below(length)
          destination[kept] = -1
          const at = Array.from({ length: version * 50 }, () => random.below(length)).filter((each) => each !== kept)
          for (const each of at) source[each] = 1000 * version + each
          yield* moved(version)
          assert.strictEqual(destination[kept], -1, "it was not moved")
          destination[kept] = source[kept]!
          assert.deepStrictEqual(destination, source)
        }
      })
    )
  )

  it.live("moves whole tensors where copies have no room, and back with copies of the other side", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { source, destination, state, moved } = yield* setUp
        yield* state([16, changesBytes])
        for (let version = 1; version < 4; version++) {
          source[version] = -version
          destination[5] = -1
          yield* moved(version)
          assert.deepStrictEqual(destination, source)
        }
        yield* moved(4, "b")
        destination[9] = 77
        source[5] = -1
        yield* moved(5, "b")
        assert.strictEqual(source[9], 77)
        assert.strictEqual(source[5], -1, "it was not moved")
      })
    )
  )

  it.live("needs a version, and goes on after it lacked one", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { source, destination, state, move, moved } = yield* setUp
        yield* state([changesBytes, changesBytes])
        for (const end of yield* move()) {
          assert(end._tag === "Failure")
          assert.strictEqual(end.failure.reason._tag, "InvalidCommand", end.failure.message)
          assert.include(end.failure.message, "State a version")
        }
        yield* moved(1)
        assert.deepStrictEqual(destination, source)
      })
    )
  )

  it.live("is moved whole first when it is registered again", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, source, destination, state, moved } = yield* setUp
        for (let round = 0; round < 3; round++) {
          yield* state([changesBytes, changesBytes])
          destination.fill(-1)
          yield* moved(1)
          assert.deepStrictEqual(destination, source)
          source[round] = -5
          yield* moved(2)
          assert.deepStrictEqual(destination, source)
          yield* all([a.client.cleanupBatch("w"), b.client.cleanupBatch("w")])
        }
      })
    )
  )

  it.live("goes beside batches that move whole tensors", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { a, b, tensor, source, destination, state, moved } = yield* setUp
        yield* state([changesBytes, changesBytes])
        const [mine, theirs] = [yield* tensor(length), yield* tensor(length)]
        yield* all([register(a.client, "other", mine), register(b.client, "other", theirs)])
        for (let version = 1; version < 6; version++) {
          source[version] = -version
          valuesOf(mine).fill(version)
          yield* all([moved(version), all([a.client.transfer("other", "send"), b.client.transfer("other", "recv")])])
          assert.deepStrictEqual(destination, source)
          assert.isTrue(valuesOf(theirs).every((value) => value === version))
        }
      })
    )
  )

  it.live("is refused on all ranks where one of them moves whole tensors", () =>
    Effect.scoped(
      Effect.gen(function* () {
        const { state } = yield* setUp
        const ends = yield* state([changesBytes, undefined])
        for (const end of ends) {
          assert(end._tag === "Failure")
          assert.strictEqual(end.failure.reason._tag, "BatchMismatch")
          assert.include(end.failure.message, "agent 0 moves changes, agent 1 whole tensors")
        }
      })
    )
  )
})
