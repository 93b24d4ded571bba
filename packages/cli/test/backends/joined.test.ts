// SPDX-License-Identifier: Apache-2.0
/** A path for each peer, as ranks of one process choose it: what options exclude, what is opened, and what is said. */

import { assert, describe, it } from "@effect/vitest"
import { descriptor as tcp } from "@tensorferry/backend-tcp"
import { descriptor as torchCopy } from "@tensorferry/backend-torch-copy"
import { descriptor as ucx } from "@tensorferry/backend-ucx"
import { type BackendOptions, backendError, type JoinableWire } from "@tensorferry/core/backend/BackendDescriptor"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { joinWires } from "@tensorferry/native/joined/JoinedDriver"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"

/** A wire that counts how often it was opened. */
const counted = (): { readonly wire: JoinableWire; readonly opened: () => number } => {
  let count = 0
  return {
    wire: {
      name: "tcp",
      order: 20,
      driver: (options) =>
        Layer.suspend(() => {
          count += 1
          return tcp.copyDriver!(options as BackendOptions)
        })
    },
    opened: () => count
  }
}

const broken: JoinableWire = {
  name: "broken",
  order: 1,
  driver: () =>
    Layer.unwrap(
      Effect.fail(
        backendError("Unavailable", { backend: "broken", detail: "There is no cable.", remedy: "Plug one in." })
      )
    )
}

/** All ranks send 1000 bytes of their own number to all others; what each was told of its peers. */
const allToAll = Effect.fnUntraced(function* (
  size: number,
  wiresOf: ReadonlyArray<JoinableWire> | ((rank: number) => ReadonlyArray<JoinableWire>),
  optionsOf: (rank: number) => object
) {
  const groups = yield* makeInProcessGroups(size)
  const rankOf = Effect.fnUntraced(function* (rank: number) {
    const service = yield* CopyService
    const engine = yield* TensorEngine
    const peers = groups.map((_, peer) => peer).filter((peer) => peer !== rank)
    const own = yield* engine.allocate("uint8", [1000])
    yield* engine.fill(own, rank)
    const received = yield* Effect.forEach(peers, (peer) =>
      Effect.map(engine.allocate("uint8", [1000]), (tensor) => [peer, tensor] as const)
    )
    const reports = []
    for (let run = 0; run < 3; run++) {
      for (const [, tensor] of received) yield* engine.fill(tensor, 255)
      for (const [peer, tensor] of received) {
        yield* service.submitSend(own, peer, rank * size + peer)
        yield* service.submitRecv(tensor, peer, peer * size + rank)
      }
      reports.push(yield* service.run())
      for (const [peer, tensor] of received) assert.deepStrictEqual([...new Set(tensor.storage.bytes!)], [peer])
    }
    return reports
  })
  return yield* Effect.forEach(
    groups,
    Effect.fnUntraced(function* (group, rank) {
      const { driver, options } = yield* joinWires(
        torchCopy,
        optionsOf(rank),
        typeof wiresOf === "function" ? wiresOf(rank) : wiresOf
      )
      const services = copyServiceLayer(driver).pipe(
        Layer.provideMerge(torchCopy.tensorEngine!(options)),
        Layer.provideMerge(Layer.succeed(ProcessGroup, group))
      )
      return yield* Effect.result(Effect.scoped(Effect.provide(rankOf(rank), services, { local: true })))
    }),
    { concurrency: "unbounded" }
  )
}, Effect.scoped)

describe("auto", () => {
  it.live("on one host opens no wire", () =>
    Effect.gen(function* () {
      const { wire, opened } = counted()
      for (const [rank, ended] of (yield* allToAll(3, [wire, broken], () => ({}))).entries()) {
        const [first] = Result.getOrThrow(ended)
        assert.deepStrictEqual(
          first!.peers.map(({ path }) => path),
          ["shared-map", "shared-map"],
          `rank ${rank}`
        )
      }
      assert.strictEqual(opened(), 0)
    })
  )

  it.live("takes memory to some peers and wires to others, at once, and says why", () =>
    Effect.gen(function* () {
      const { wire, opened } = counted()
      const ended = yield* allToAll(4, [wire, broken], (rank) => (rank === 0 ? { forbid: ["torch-copy"] } : {}))
      for (const [rank, result] of ended.entries()) {
        for (const { peers, backend } of Result.getOrThrow(result)) {
          assert.strictEqual(backend, "auto")
          assert.lengthOf(peers, 3)
          for (const { peer, path, reason } of peers) {
            const isWire = rank === 0 || peer === 0
            assert.strictEqual(path, isWire ? "tcp" : "shared-map", `rank ${rank} to ${peer}`)
            if (!isWire) continue
            assert.include(reason, "options of rank 0 exclude torch-copy")
            assert.include(reason, "no broken (both ranks: There is no cable)")
          }
        }
        // The third run repeats what all know, by both kinds of path.
        assert.isTrue(Result.getOrThrow(result)[2]!.reusedProgram)
      }
      assert.strictEqual(opened(), 4)
    })
  )

  it.live("takes the first wire that two ranks have, where others have another", (test) =>
    Effect.gen(function* () {
      const probe = yield* ucx.probe
      if (probe._tag === "Unavailable") return test.skip(probe.cause)
      const fast: JoinableWire = {
        name: "ucx",
        order: 10,
        driver: (options) => ucx.copyDriver!(options as BackendOptions)
      }
      const { wire, opened } = counted()
      const ended = yield* allToAll(
        4,
        (rank) => (rank === 3 ? [wire] : [fast, wire]),
        () => ({ forbid: ["torch-copy"] })
      )
      for (const [rank, result] of ended.entries()) {
        for (const { peer, path, reason } of Result.getOrThrow(result)[2]!.peers) {
          const isSlow = rank === 3 || peer === 3
          assert.match(path, isSlow ? /^tcp$/ : /^ucx-/, `rank ${rank} to ${peer}`)
          if (isSlow) assert.include(reason, "no ucx (rank 3: not registered)")
        }
      }
      assert.strictEqual(opened(), 4)
    })
  )

  it.live("where no path is left all ranks fail, each naming the peer and what is missing", () =>
    Effect.gen(function* () {
      for (const result of yield* allToAll(3, [broken], (rank) => (rank === 0 ? { forbid: ["torch-copy"] } : {}))) {
        if (Result.isSuccess(result)) return assert.fail("it found a path")
        assert.include(result.failure.message, "UnreachableMemory")
        assert.include(result.failure.message, "There is no cable")
      }
    })
  )

  it.live("refuses paths that are not there, and options of a backend that it does not know", () =>
    Effect.gen(function* () {
      const { wire } = counted()
      const message = (options: unknown) => Effect.map(Effect.flip(joinWires(torchCopy, options, [wire])), String)
      assert.include(yield* message({ forbid: ["smoke"] }), "There is no path smoke; the paths are torch-copy, tcp.")
      assert.include(yield* message({ backends: { smoke: {} } }), "There is no path smoke")
      assert.include(yield* message({ backends: { "torch-copy": { speed: 1 } } }), "speed")
      assert.include(yield* message({ interfaces: [] }), "interfaces")
      for (const result of yield* allToAll(2, [wire], () => ({
        forbid: ["torch-copy"],
        backends: { tcp: { speed: 1 } }
      }))) {
        if (Result.isSuccess(result)) return assert.fail("it ran")
        assert.include(result.failure.message, "speed")
      }
    })
  )
})
