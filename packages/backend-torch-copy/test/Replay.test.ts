// SPDX-License-Identifier: Apache-2.0
/**
 * The portable replay backend against the whole replay kit, in both modes, over memory of its own and memory that another
 * mapping of the same file shows; for host memory and for a device family with an engine of its own.
 */

import { assert, describe, it } from "@effect/vitest"
import { buildReplayTransferBackend } from "@tensorferry/core/backend/BackendLayer"
import { registryLayer } from "@tensorferry/core/backend/BackendRegistry"
import { replayTransferLayer } from "@tensorferry/core/replay/ReplayTransferLayer"
import type { HostMemoryHandle } from "@tensorferry/core/service/HostMemory"
import { ReplayTransferBackend, type ReplayTransferBackendShape } from "@tensorferry/core/service/ReplayTransferBackend"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { cpu, type Device } from "@tensorferry/core/tensor/Device"
import { tensorView } from "@tensorferry/core/tensor/Tensor"
import { makeHeldCopies, ReplaySubject, type ReplaySubjectShape } from "@tensorferry/testing"
import * as ReferenceEngine from "@tensorferry/testing/ReferenceEngine"
import { isSoak } from "@tensorferry/testing/testLevel"
import { describeReplayTransfer } from "@tensorferry/testing/vitest"
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Scope from "effect/Scope"
import { descriptor } from "../src/index.ts"
import * as ReplayDevice from "../src/ReplayDevice.ts"
import { makeEngine, startPeer } from "./support.ts"

interface Setting {
  readonly deferred: boolean
  /** Host slots lie in a second mapping of their memory, as a collector's memory does for a learner. */
  readonly isMapped: boolean
  readonly seed: number
  readonly device?: Device
}

const subjectLayer = ({ deferred, isMapped, seed, device = cpu }: Setting) =>
  Layer.effectContext(
    Effect.gen(function* () {
      const { engine: hostEngine, memory } = yield* makeEngine()
      const engine = device === cpu ? hostEngine : ReferenceEngine.make({ deviceFamily: device.family })
      const held = makeHeldCopies(seed)
      const subject: ReplaySubjectShape = {
        build: (options) =>
          Effect.gen(function* () {
            const opened = ReplayDevice.make(held.wrap(engine), device, { deferred })
            const layer = replayTransferLayer(Effect.succeed(opened), { ...options, backend: "torch-copy" })
            return Context.get(yield* Layer.buildWithScope(layer, yield* Scope.Scope), ReplayTransferBackend)
          }),
        allocateHost: (byteLength) =>
          Effect.gen(function* () {
            const storage = yield* memory.allocate(byteLength)
            return isMapped ? yield* memory.openShared(yield* memory.share(storage)) : storage
          }),
        hold: held.hold,
        failCopy: held.failCopy,
        registered: () => 0,
        ticks: isSoak ? 10_000 : 300
      }
      return Context.make(ReplaySubject, subject).pipe(Context.add(TensorEngine, engine))
    })
  )

const pretend = { family: "pretend", index: 0 }
describeReplayTransfer("torch-copy, mapped slots", subjectLayer({ deferred: false, isMapped: true, seed: 1 }))
describeReplayTransfer("torch-copy, deferred", subjectLayer({ deferred: true, isMapped: false, seed: 2 }))
for (const isMapped of [false, true]) {
  const foreign = subjectLayer({ deferred: false, isMapped, seed: 3, device: pretend })
  describeReplayTransfer(`torch-copy, another family${isMapped ? ", mapped slots" : ""}`, foreign)
}
if (isSoak) {
  for (const seed of [4, 5, 6]) {
    for (const deferred of [false, true]) {
      for (const isMapped of [false, true]) {
        for (const device of [cpu, pretend]) {
          const name = `torch-copy, ${device.family}, seed ${seed}${deferred ? ", deferred" : ""}${isMapped ? ", mapped" : ""}`
          describeReplayTransfer(name, subjectLayer({ deferred, isMapped, seed, device }))
        }
      }
    }
  }
}

const built = <A, E>(
  choice: Parameters<typeof buildReplayTransferBackend>[0],
  use: (backend: ReplayTransferBackendShape) => Effect.Effect<A, E, Scope.Scope>,
  descriptors = [descriptor]
) =>
  Effect.flatMap(ReplayTransferBackend, use).pipe(
    Effect.scoped,
    Effect.provide(buildReplayTransferBackend(choice).pipe(Layer.provide(registryLayer(descriptors))), { local: true })
  )

describe("built from the registry", () => {
  it.live("serves the host in both modes", () =>
    Effect.gen(function* () {
      for (const [options, submitter] of [
        [{}, "torch_copy"],
        [{ threads: 1, deferred: false }, "torch_copy"],
        [{ deferred: true }, "torch_copy_deferred"]
      ] as const) {
        const attributes = yield* built({ device: "cpu", ringDepth: 2, options }, (backend) => backend.attributes)
        assert.deepStrictEqual(attributes, {
          device: cpu,
          deviceFamily: "cpu",
          h2dSubmitter: submitter,
          hostMemoryKind: "pageable_shared",
          hostPinned: false,
          directPinnedShared: false,
          supportsAsyncSubmit: false,
          supportsTimingEvents: false
        })
      }
    })
  )

  it.live("refuses options, devices and families that it does not know", () =>
    Effect.gen(function* () {
      const refused = (device: string, options?: unknown) =>
        Effect.map(
          Effect.flip(built({ device, ringDepth: 2, options }, () => Effect.void)),
          ({ reason }) => [reason._tag, reason.detail] as const
        )
      for (const options of [{ deferred: 1 }, { defer: true }, { threads: 0 }]) {
        assert.strictEqual((yield* refused("cpu", options))[0], "InvalidOptions")
      }
      const [tag, detail] = yield* refused("cpu:3")
      assert.strictEqual(tag, "Unavailable")
      assert.include(detail, "cpu:3")
      const [family, missing] = yield* refused("pretend:0")
      assert.strictEqual(family, "Unavailable")
      assert.include(missing, "pretend")
    })
  )

  it.live("copies by the engine of another family", () => {
    const { copyDriver: _, hostMemory: __, replayTransfer: ___, ...rest } = descriptor
    const other = {
      ...rest,
      name: "pretend",
      deviceFamilies: ["pretend"],
      capabilities: { tensorEngine: rest.capabilities.tensorEngine! },
      tensorEngine: () => ReferenceEngine.layer({ deviceFamily: "pretend" })
    }
    return built(
      { device: "pretend:0", ringDepth: 1 },
      Effect.fnUntraced(function* (backend) {
        const { engine } = yield* makeEngine()
        const source = yield* engine.allocate("int16", [3, 5])
        source.storage.bytes!.forEach((_byte, at) => {
          source.storage.bytes![at] = at + 1
        })
        const [slot] = yield* backend.allocateDeviceSlots({ count: 1, shape: [3, 5], dtype: "int16" })
        assert.deepStrictEqual(slot!.device, { family: "pretend", index: 0 })
        slot!.storage.bytes!.fill(0xee)
        yield* backend.submitH2d({ slot: 0, destination: slot!, source })
        assert.isTrue(yield* backend.isReady(0))
        assert.deepStrictEqual([...slot!.storage.bytes!], [...source.storage.bytes!])
      }),
      [descriptor, other]
    )
  })

  it.live("keeps the caller's thread free while it copies", () =>
    built(
      { device: "cpu", ringDepth: 1 },
      Effect.fnUntraced(function* (backend) {
        const byteLength = 2 ** 27
        const { memory } = yield* makeEngine()
        const source = Result.getOrThrow(tensorView(yield* memory.allocate(byteLength), "uint8", [byteLength]))
        source.storage.bytes!.fill(5)
        const [slot] = yield* backend.allocateDeviceSlots({ count: 1, shape: [byteLength], dtype: "uint8" })
        const bytes = slot!.storage.bytes!
        // The last byte may be copied any time; that it is not there shows that the copy was not made in the call. Where the
        // copy's threads have all cores, this one gets its turns late: then another copy shows it.
        let [turns, early] = [0, 0]
        for (let copies = 0; copies < 20 && (turns <= 3 || early === 0); copies++) {
          bytes.fill(0xee)
          ;[turns, early] = [0, 0]
          const copying = yield* Effect.forkChild(backend.submitH2d({ slot: 0, destination: slot!, source }), {
            startImmediately: true
          })
          while (copying.pollUnsafe() === undefined) {
            if (bytes[byteLength - 1] === 0xee) early += 1
            turns += 1
            yield* Effect.promise(() => new Promise(setImmediate))
          }
        }
        assert.isAbove(turns, 3)
        assert.isAbove(early, 0)
        assert.isTrue(bytes.subarray(0, byteLength).every((byte) => byte === 5))
      })
    )
  )

  it.live("copies what another process wrote into its memory", () =>
    built(
      { device: "cpu", ringDepth: 1 },
      Effect.fnUntraced(function* (backend) {
        const { memory } = yield* makeEngine()
        const peer = yield* startPeer("memory-peer")
        const [slot] = yield* backend.allocateDeviceSlots({ count: 1, shape: [4096], dtype: "uint8" })
        const allocated = yield* Effect.promise(() => peer.ask({ _tag: "allocate", byteLength: 4096, byte: 7 }))
        const { handle } = allocated as { readonly handle: HostMemoryHandle }
        const source = Result.getOrThrow(tensorView(yield* memory.open(handle), "uint8", [4096]))
        yield* backend.registerHostSlots([source])
        for (const byte of [7, 8, 9]) {
          yield* Effect.promise(() => peer.ask({ _tag: "write", index: 0, byte }))
          slot!.storage.bytes!.fill(0xee)
          yield* backend.submitH2d({ slot: 0, destination: slot!, source })
          assert.deepStrictEqual([...slot!.storage.bytes!.subarray(0, 4096)], new Array(4096).fill(byte))
        }
      })
    )
  )
})
