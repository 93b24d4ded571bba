import { assert, describe, it } from "@effect/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import { CopyService } from "../src/service/CopyService.ts"
import { TensorEngine } from "../src/service/TensorEngine.ts"
import { sliceTensor, tensorBytes, transposeTensor } from "../src/tensor/Tensor.ts"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "../src/testing/Loopback.ts"
import { runCluster, runRanks, type VirtualClusterOptions } from "../src/testing/VirtualCluster.ts"

const drivers: ReadonlyArray<readonly [string, () => Partial<VirtualClusterOptions<never>>]> = [
  ["gather", () => ({})],
  [
    "packed",
    () => {
      const network = makeLoopbackNetwork()
      return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 4096 }
    }
  ],
  [
    "strict",
    () => {
      const network = makeLoopbackNetwork()
      return { driver: () => strictLayer(network, { gather: false }) }
    }
  ]
]

const filled = (shape: ReadonlyArray<number>, start: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const tensor = yield* engine.allocate("uint8", shape)
    tensorBytes(tensor)!.forEach((_, at, bytes) => {
      bytes[at] = (start + at) & 255
    })
    return tensor
  })

describe.each(drivers)("CopyService over %s", (_name, options) => {
  it.effect("moves strided regions all to all, several rounds", () =>
    runCluster({ ...options(), size: 3 }, (rank) =>
      Effect.gen(function* () {
        const service = yield* CopyService
        const engine = yield* TensorEngine
        const source = yield* filled([4, 6], rank * 50)
        const destination = yield* engine.allocate("uint8", [3, 6, 4])
        for (let round = 0; round < 3; round++) {
          yield* engine.fill(destination, 0xee)
          tensorBytes(source)!.forEach((_, at, bytes) => {
            bytes[at] = (rank * 50 + at + round * 7) & 255
          })
          for (let peer = 0; peer < 3; peer++) {
            yield* service.submitSend(transposeTensor(source, 0, 1), peer, rank * 3 + peer)
            const mine = Result.getOrThrow(
              sliceTensor(destination, [
                [peer, peer + 1],
                [0, 6],
                [0, 4]
              ])
            )
            yield* service.submitRecv({ ...mine, shape: [6, 4], strides: mine.strides.slice(1) }, peer, peer * 3 + rank)
          }
          const report = yield* service.run()
          assert.strictEqual(report.localBytes, 24)
          assert.strictEqual(report.remoteBytesReceived, 48)
          assert.strictEqual(report.reusedProgram, round > 0)
          const bytes = tensorBytes(destination)!
          for (let peer = 0; peer < 3; peer++) {
            for (let row = 0; row < 6; row++) {
              for (let column = 0; column < 4; column++) {
                const expected = (peer * 50 + column * 6 + row + round * 7) & 255
                assert.strictEqual(bytes[peer * 24 + row * 4 + column], expected)
              }
            }
          }
        }
      })
    )
  )

  it.effect("names a missing partner on every rank", () =>
    Effect.gen(function* () {
      const exits = yield* runRanks({ ...options(), size: 3 }, (rank) =>
        Effect.gen(function* () {
          const service = yield* CopyService
          const tensor = yield* filled([5], 0)
          if (rank === 0) yield* service.submitSend(tensor, 2, 77, { paramName: "layer.weight" })
          return yield* Effect.flip(service.run())
        })
      )
      for (const exit of exits) {
        assert.isTrue(Exit.isSuccess(exit))
        if (!Exit.isSuccess(exit)) continue
        assert.strictEqual(exit.value.reason._tag, "PartnerMissing")
        assert.strictEqual(exit.value.reason.taskId, 77)
        assert.include(exit.value.message, "layer.weight")
        assert.deepStrictEqual(exit.value.ranks, [0, 2])
      }
    })
  )
})
