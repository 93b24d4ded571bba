// SPDX-License-Identifier: Apache-2.0
/** Device memory through host buffers, moved by the driver of host memory, on simulated devices. */
import { descriptor as host } from "@tensorferry/backend-torch-copy"
import { copyService } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import { assertClean, resetSimulator } from "@tensorferry/simulators/gpu"
import { engineOptions } from "@tensorferry/simulators/gpuEngine"
import { runCopyDriverCase, runMembers } from "@tensorferry/testing"
import { bytePattern } from "@tensorferry/testing/bytePattern"
import { describeCopyDriver } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import { afterEach, beforeEach, expect, test } from "vitest"
import { descriptors } from "../src/descriptor.ts"
import { stagedCluster } from "./cluster.ts"

let seed = 1
beforeEach(() => resetSimulator(`seed=${seed++}`))
afterEach(() => assertClean())

describeCopyDriver("staged", runCopyDriverCase(stagedCluster))

const length = 100_000

test("a backend of host memory is asked for memory of a device", async () => {
  const registry = registryLayer([host, ...descriptors])
  const services = copyService({ backend: host.name, deviceFamily: "cuda", engineOptions, stagingBytes: 2 ** 16 })
  const program = (rank: number) =>
    Effect.gen(function* () {
      const service = yield* CopyService
      const engine = yield* TensorEngine
      const hostCopy = (bytes: Uint8Array) =>
        Effect.map(
          engine.wrapHost(bytes),
          (storage): Tensor => Result.getOrThrow(tensorView(storage, "uint8", [length]))
        )
      const held = yield* engine.allocate("uint8", [length])
      const seen = new Uint8Array(length)
      const reports = []
      for (const round of [1, 2, 3]) {
        if (rank === 0) {
          yield* engine.copy([{ dst: held, src: yield* hostCopy(bytePattern(length, round)) }])
          yield* service.submitSend(held, 1, 7)
        } else {
          yield* engine.fill(held, 0xdb)
          yield* service.submitRecv(held, 0, 7)
        }
        reports.push(yield* service.run())
        if (rank === 0) continue
        yield* engine.copy([{ dst: yield* hostCopy(seen), src: held }])
        expect(seen).toEqual(bytePattern(length, round))
      }
      return { family: held.device.family, paths: reports.at(-1)!.peers.map(({ path }) => path) }
    })
  const exits = await Effect.runPromise(runMembers({ size: 2 }, () => Layer.provide(services, registry), program))
  for (const exit of exits) {
    expect(Exit.isSuccess(exit) ? exit.value : exit).toEqual({
      family: "cuda",
      paths: [expect.stringMatching(/^staged-/)]
    })
  }
})
