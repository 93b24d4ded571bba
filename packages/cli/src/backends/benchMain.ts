#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
/**
 * One rank of a bench as a process of its own: sends to the next rank and receives from the one before, the same batch again
 * and again; in turns with a copy of as many bytes within its own memory. A round begins when all ranks have met.
 */
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { engineOf } from "@tensorferry/core/backend/FamilyEngine"
import { decodeBackendOptions } from "@tensorferry/core/backend/OptionsLayer"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { CopyService } from "@tensorferry/core/service/CopyService"
import { ProcessGroup } from "@tensorferry/core/service/ProcessGroup"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { type Tensor, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { optionsOnDevice } from "../device/DeviceChoice.ts"
import { backendRegistry } from "../job/backends.ts"
import { BenchNews, BenchWork } from "./benchWork.ts"
import { runRankProgram } from "./rankProgram.ts"

const warmUps = 3
const leastRounds = 10
const mostRounds = 200
/** Bytes after which a case has had rounds enough. */
const enoughBytes = 2 ** 31

const poison = 0xd7

const seconds = (): number => performance.now() / 1000

/** A copy within memory as plain as it gets: of the host where it may touch the bytes, of the device's engine elsewhere. */
const plainCopy = (dst: Tensor, src: Tensor) =>
  Effect.gen(function* () {
    const [into, from] = [dst.storage.bytes, src.storage.bytes]
    if (into === undefined || from === undefined) return yield* (yield* TensorEngine).copy([{ dst, src }])
    into.set(from)
  })

/** The first byte that is not `wanted`, in words. */
const faultOf = (tensor: Tensor, wanted: number) =>
  Effect.gen(function* () {
    const engine = yield* TensorEngine
    const bytes = new Uint8Array(tensor.storage.byteLength)
    const host = yield* Effect.fromResult(tensorView(yield* engine.wrapHost(bytes), "uint8", tensor.shape))
    yield* engine.copy([{ dst: host, src: tensor }])
    const at = bytes.findIndex((byte) => byte !== wanted)
    return at < 0 ? "" : `byte ${at} is ${bytes[at]} instead of ${wanted}`
  }).pipe(Effect.scoped)

const measure = Effect.fnUntraced(function* (byteLength: number) {
  const service = yield* CopyService
  const engine = yield* TensorEngine
  const group = yield* ProcessGroup
  const { rank, size } = group
  const [next, previous] = [(rank + 1) % size, (rank + size - 1) % size]
  const [out, into, beside] = [
    yield* engine.allocate("uint8", [byteLength]),
    yield* engine.allocate("uint8", [byteLength]),
    yield* engine.allocate("uint8", [byteLength])
  ]
  yield* engine.fill(out, rank + 1)
  yield* engine.fill(into, poison)
  const rounds = Math.min(mostRounds, Math.max(leastRounds, Math.floor(enoughBytes / byteLength)))
  const moveSeconds: Array<number> = []
  const copySeconds: Array<number> = []
  let way = { path: "", reason: "" }
  for (let round = -warmUps; round < rounds; round++) {
    yield* group.barrier("bench move")
    const begun = seconds()
    yield* service.submitSend(out, next, rank)
    yield* service.submitRecv(into, previous, previous)
    const report = yield* service.run()
    const moved = seconds() - begun
    yield* group.barrier("bench copy")
    const copyBegun = seconds()
    yield* plainCopy(beside, out)
    const copied = seconds() - copyBegun
    if (round < 0) continue
    moveSeconds.push(moved)
    copySeconds.push(copied)
    way = report.peers.find(({ peer }) => peer === previous) ?? way
  }
  // The bytes of one more round, into memory that was spoiled.
  yield* engine.fill(into, poison)
  yield* service.submitSend(out, next, rank)
  yield* service.submitRecv(into, previous, previous)
  yield* service.run()
  const fault = yield* faultOf(into, previous + 1)
  return { byteLength, moveSeconds, copySeconds, path: way.path, reason: way.reason, fault }
})

runRankProgram({ work: BenchWork, news: BenchNews }, (work, group, tell) =>
  Effect.gen(function* () {
    const registry = yield* BackendRegistry
    const descriptor = yield* registry.byName(work.backend)
    const placed = work.device === undefined ? work.options : optionsOnDevice(work.device, group.rank, work.options)
    const options = yield* decodeBackendOptions(descriptor.options, descriptor.name, placed, "See its options.")
    const services = copyServiceLayer(descriptor.copyDriver!(options)).pipe(
      Layer.provideMerge(engineOf(registry, descriptor, options)),
      Layer.provideMerge(Layer.succeed(ProcessGroup, group))
    )
    const cases = Effect.forEach(
      work.lengths,
      (byteLength) => Effect.flatMap(Effect.scoped(measure(byteLength)), tell),
      { discard: true }
    )
    yield* Effect.provide(cases, services)
  }).pipe(Effect.provide(backendRegistry(work.backendPackages, work.packagesFrom)))
)
