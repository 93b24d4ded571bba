// SPDX-License-Identifier: Apache-2.0
/**
 * A path for each peer between devices, on simulated ones: by the device's own driver, or by a wire through host buffers where
 * options exclude it, against the conformance kit, and both at once.
 */
import { descriptors } from "@tensorferry/backend-cuda/descriptor"
import { descriptor as tcp } from "@tensorferry/backend-tcp"
import { descriptor as host } from "@tensorferry/backend-torch-copy"
import { descriptor as ucx } from "@tensorferry/backend-ucx"
import type { BackendOptions, JoinableWire } from "@tensorferry/core/backend/BackendDescriptor"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { type CopyReport, CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import * as CudaEngine from "@tensorferry/gpu/TensorEngine"
import { joinWires } from "@tensorferry/native/joined/JoinedDriver"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import { runCopyCase, runMembers } from "@tensorferry/testing"
import { describeCopyService } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import { afterEach, assert, beforeEach, describe, it } from "vitest"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

const [cuda] = descriptors
const own = { ...engineOptions, stagingBytes: 2 ** 18, directBytes: 2 ** 14 }

/** Little staging, so that one transfer goes around the ring several times. */
const wire: JoinableWire = {
  name: "tcp",
  order: 20,
  isStaged: true,
  driver: (options) =>
    tcp.stagedDriver!(options as BackendOptions, host.tensorEngine!({}), { messageBytes: 4096, stagingBytes: 2 ** 16 })
}

const driverOf = (options: object, wires: ReadonlyArray<JoinableWire> = [wire]) =>
  Layer.unwrap(Effect.map(joinWires(cuda!, { ...options, backends: { cuda: own } }, wires), ({ driver }) => driver))

const cluster = (options: object) => () => {
  let next = 0
  return {
    engine: Layer.unwrap(Effect.sync(() => CudaEngine.layer({ ...own, device: next++ }))),
    driver: () => driverOf(options)
  }
}

describeCopyService("devices by wires alone", runCopyCase(cluster({ forbid: ["cuda"] })))

describe("devices", () => {
  const length = 50_000

  /** Every rank sends a tensor of its own number to the others, three times. */
  const allToAll = (
    size: number,
    optionsOf: (rank: number) => object,
    wiresOf: (rank: number) => ReadonlyArray<JoinableWire>
  ) => {
    const program = (rank: number) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const engine = yield* TensorEngine
        const peers = Array.from({ length: size }, (_, peer) => peer).filter((peer) => peer !== rank)
        const sent = yield* engine.allocate("uint8", [length])
        yield* engine.fill(sent, rank + 1)
        const received = yield* Effect.forEach(peers, () => engine.allocate("uint8", [length]))
        const seen = new Uint8Array(length)
        const look = { storage: yield* engine.wrapHost(seen) }
        const reports: Array<CopyReport> = []
        for (let run = 0; run < 3; run++) {
          for (const [at, peer] of peers.entries()) {
            yield* engine.fill(received[at]!, 0xee)
            yield* service.submitSend(sent, peer, rank * size + peer)
            yield* service.submitRecv(received[at]!, peer, peer * size + rank)
          }
          reports.push(yield* service.run())
          for (const [at, peer] of peers.entries()) {
            const { dtype, shape, strides } = received[at]!
            yield* engine.copy([
              {
                dst: { ...look, dtype, shape, strides, byteOffset: 0, device: look.storage.device },
                src: received[at]!
              }
            ])
            assert.deepStrictEqual([...new Set(seen)], [peer + 1])
          }
        }
        return reports.at(-1)!.peers
      })
    return Effect.runPromise(
      runMembers(
        { size },
        ({ rank }) =>
          copyServiceLayer(driverOf(optionsOf(rank), wiresOf(rank))).pipe(
            Layer.provideMerge(CudaEngine.layer({ ...own, device: rank }))
          ),
        program
      )
    )
  }

  it("take their own driver to some peers and wires to others, at once", async () => {
    const exits = await allToAll(
      3,
      (rank) => (rank === 0 ? { forbid: ["cuda"] } : {}),
      () => [wire]
    )
    for (const [rank, exit] of exits.entries()) {
      if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
      for (const { peer, path, reason } of exit.value) {
        const isWire = rank === 0 || peer === 0
        if (isWire) assert.strictEqual(path, "staged-tcp", reason)
        else assert.notMatch(path, /staged/)
      }
    }
  })

  it("go by the first wire that two ranks have, and a rank without it stands by", async (test) => {
    const probe = await Effect.runPromise(ucx.probe)
    if (probe._tag === "Unavailable") return test.skip(probe.cause)
    const fast: JoinableWire = {
      ...wire,
      name: "ucx",
      order: 10,
      driver: (options) =>
        ucx.stagedDriver!(options as BackendOptions, host.tensorEngine!({}), {
          messageBytes: 4096,
          stagingBytes: 2 ** 16
        })
    }
    const exits = await allToAll(
      3,
      (rank) => (rank === 0 ? { forbid: ["cuda"] } : {}),
      (rank) => (rank === 2 ? [wire] : [fast, wire])
    )
    for (const [rank, exit] of exits.entries()) {
      if (Exit.isFailure(exit)) return assert.fail(String(exit.cause))
      for (const { peer, path, reason } of exit.value) {
        const pair = [rank, peer].sort().join(" ")
        if (pair === "1 2") assert.notMatch(path, /staged/)
        else if (pair === "0 1") assert.match(path, /^staged-ucx-/)
        else {
          assert.strictEqual(path, "staged-tcp")
          assert.include(reason, "no ucx (rank 2: not registered)")
        }
      }
    }
  })
})
