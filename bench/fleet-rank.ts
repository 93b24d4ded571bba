// SPDX-License-Identifier: Apache-2.0
/**
 * One member of the bench of fleets on hosts. Takes its place as JSON. Prints what it serves, takes and has proven as it changes,
 * with the time of the machine's clock, which all members read. A source publishes a version for every line that it reads.
 */
import { createInterface } from "node:readline"
import { CopyDriver } from "@tensorferry/backend-tcp"
import { TensorEngine as HostEngine, HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { KeyValueStoreEtcd } from "@tensorferry/bus"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import { tensorBytes, tensorView } from "@tensorferry/core/tensor/Tensor"
import * as FleetLayer from "@tensorferry/fleet/service/FleetLayer"
import type { Topology } from "@tensorferry/fleet/topology/Topology"
import type { FleetTimes } from "@tensorferry/fleet/version/FleetTimes"
import { runPrinting } from "@tensorferry/testing/RankProcesses"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Stream from "effect/Stream"

/** A member's place. */
export interface FleetRankInput {
  readonly rank: number
  readonly address: string
  /** Of etcd. */
  readonly store: string
  readonly byteLength: number
  readonly topology: Topology
  readonly times: FleetTimes
}

/** What a member prints. */
export interface FleetRankLine {
  readonly at: number
  readonly serving: string | null
  readonly staging: string | null
  readonly staged: string | null
  readonly members: number
  /** Label of a version whose publication has ended, and why it was given up. */
  readonly published?: string
  readonly failure?: string
  /** The first byte of all that it serves; null where they differ. */
  readonly value?: number | null
}

const { rank, address, store, byteLength, topology, times } = JSON.parse(process.argv[2]!) as FleetRankInput
const token = "bench"
const transport = copyServiceLayer(CopyDriver.layer({ addresses: [address], token })).pipe(
  Layer.provideMerge(HostEngine.layer())
)

const program = Effect.gen(function* () {
  const memory = yield* HostMemory
  const allocate = Effect.map(memory.allocate(byteLength), (storage) => {
    const tensor = Result.getOrThrow(tensorView(storage, "uint8", [byteLength]))
    tensorBytes(tensor)!.fill(0xa5)
    return new Map([["weight", tensor]])
  })
  const [weights, incoming] = [yield* allocate, yield* allocate]
  const bytes = tensorBytes(weights.get("weight")!)!
  const fleet = yield* FleetLayer.make({
    name: "bench",
    rank,
    role: rank === 0 ? "source" : "replica",
    weights,
    incoming,
    topology,
    times,
    transport,
    host: address,
    token
  })
  let last: Omit<FleetRankLine, "at"> = { serving: null, staging: null, staged: null, members: 0 }
  const print = (more: Partial<FleetRankLine>) => {
    const line: FleetRankLine = { at: Number(process.hrtime.bigint()) / 1e9, ...last, ...more }
    process.stdout.write(`${JSON.stringify(line)}\n`)
  }
  yield* Effect.forkChild(
    Stream.runForEach(fleet.changes, ({ fleet: state, member, canServe }) =>
      Effect.sync(() => {
        const serving = canServe ? (member.live?.label ?? null) : null
        const next = {
          serving,
          staging: member.staging?.label ?? null,
          staged: member.staged?.label ?? null,
          members: state?.members.length ?? 0
        }
        if (JSON.stringify(next) === JSON.stringify(last)) return
        const isNew = serving !== null && serving !== last.serving
        last = next
        // All bytes are equal where each is that before it.
        const isOne =
          isNew && Buffer.from(bytes.buffer, bytes.byteOffset + 1, bytes.length - 1).equals(bytes.subarray(0, -1))
        print(isNew ? { value: isOne ? bytes[0]! : null } : {})
      })
    )
  )
  print({})
  const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]()
  while (true) {
    const line = yield* Effect.promise(() => lines.next())
    if (line.done === true) return
    bytes.fill(Number(line.value))
    const published = yield* Effect.result(fleet.publish({ label: line.value }))
    print({
      published: line.value,
      ...(Result.isFailure(published) ? { failure: published.failure.message } : {})
    })
  }
})

const services = Layer.mergeAll(
  KeyValueStoreEtcd.layerEtcd({ url: store, leaseSeconds: 10 }),
  HostMemoryLayers.layer,
  HostEngine.layer()
)
await runPrinting(Effect.scoped(Effect.provide(program, services)))
