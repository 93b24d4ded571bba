// SPDX-License-Identifier: Apache-2.0
/** One of two ranks at its wire, without a driver above: peers may come and go as processes do. */
import { makeInProcessGroups } from "@tensorferry/core/group/ProcessGroupInProcess"
import { TensorEngine } from "@tensorferry/core/service/TensorEngine"
import { streamTable } from "@tensorferry/native/driver/streamTable"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import { loadAddon } from "../src/Addon.ts"
import { makeFabric } from "../src/Fabric.ts"
import type { UcxOptions } from "../src/options.ts"
import type { PublishedEndpoint } from "../src/Publication.ts"

/** Until the scope ends: sends one dense tensor to each peer that it meets, and gets one of the same length. */
export const openWire = Effect.fnUntraced(function* (rank: number, byteLength: number, options: UcxOptions) {
  const addon = yield* loadAddon
  const engine = yield* TensorEngine
  // Of the group only the place of the rank is used, and the deadline.
  const groups = yield* makeInProcessGroups(2, { deadline: Duration.seconds(3) })
  const wire = yield* makeFabric(addon, groups[rank]!, undefined, options)
  const [sent, received] = [
    yield* engine.allocate("uint8", [byteLength]),
    yield* engine.allocate("uint8", [byteLength])
  ]
  const flowOf = (isSending: boolean) => {
    const tensor = isSending ? sent : received
    const table = Result.getOrThrow(streamTable([tensor]))
    const program = isSending ? rank : 1 - rank
    return { program, isSending, digest: "ab".repeat(32), table, tensors: [tensor] }
  }
  const peerRank = 1 - rank

  /** Both directions with a peer, run together; `close` when no run is under way. */
  const meet = Effect.fnUntraced(function* (published: PublishedEndpoint) {
    const peer = Result.getOrThrow(wire.meet(peerRank, published))
    yield* wire.connect(peer)
    const flows = [true, false].map((isSending) => Result.getOrThrow(wire.addFlow(peer, flowOf(isSending))))
    const run = runJob<undefined>(
      addon,
      (done) => wire.start(flows, done),
      () => {}
    )
    const close = () => {
      for (const flow of flows) wire.closeFlow(flow)
    }
    return { run, close }
  })

  return { published: wire.published, sent: sent.storage.bytes!, received: received.storage.bytes!, meet }
})
