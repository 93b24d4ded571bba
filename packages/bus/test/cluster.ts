// SPDX-License-Identifier: Apache-2.0
/** Agents and their clients within one process: queues and states in memory, groups over TCP, real shared memory. */
import { CopyDriver, TensorEngine as Engine, HostMemory as HostMemoryLayers } from "@tensorferry/backend-torch-copy"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { HostMemory, type HostMemoryShape } from "@tensorferry/core/service/HostMemory"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as References from "effect/References"
import type * as Scope from "effect/Scope"
import * as Agents from "../src/agent/TensorBusAgent.ts"
import { TensorImporter, type TensorImporterShape } from "../src/agent/TensorImporter.ts"
import * as Clients from "../src/client/TensorBusClient.ts"
import { CommandQueue } from "../src/queue/CommandQueue.ts"
import * as CommandQueueMemory from "../src/queue/CommandQueueMemory.ts"
import { AgentState } from "../src/state/AgentState.ts"
import * as AgentStateMemory from "../src/state/AgentStateMemory.ts"
import { KeyValueMap } from "../src/store/KeyValueMap.ts"
import { KeyValueStore, type KeyValueStoreShape } from "../src/store/KeyValueStore.ts"
import { viewOf } from "../src/store/KeyValueStoreMemory.ts"

export const transport: Agents.AgentOptions["transport"] = copyServiceLayer(CopyDriver.layer()).pipe(
  Layer.provideMerge(Engine.layer())
)

export const makeCluster = Effect.fnUntraced(function* (
  options: Partial<Agents.AgentOptions> & {
    readonly importer?: TensorImporterShape
    /** What agents see of the store. */
    readonly seen?: (store: KeyValueStoreShape) => KeyValueStoreShape
    /** What agents and clients use of the memory. */
    readonly throughMemory?: (memory: HostMemoryShape) => HostMemoryShape
  } = {}
) {
  const map = new KeyValueMap()
  const memory = Context.get(yield* Layer.build(HostMemoryLayers.layer), HostMemory)
  const base = Context.make(HostMemory, (options.throughMemory ?? ((own) => own))(memory))
  /** An agent with its client; more than one at a time may have a rank, as after a restart. */
  const start = (
    rank: number,
    own: Partial<Agents.AgentOptions> = {}
  ): Effect.Effect<
    { readonly agent: Agents.TensorBusAgentShape; readonly client: Clients.TensorBusClientShape },
    never,
    Scope.Scope
  > =>
    Effect.gen(function* () {
      const store = (options.seen ?? ((view) => view))(yield* viewOf(map))
      const context = base.pipe(
        Context.add(KeyValueStore, store),
        Context.add(CommandQueue, yield* CommandQueueMemory.make()),
        Context.add(AgentState, AgentStateMemory.make())
      )
      const { importer, seen: _, throughMemory: __, ...agentOptions } = options
      const making = Agents.make({ rank, transport, deadline: Duration.seconds(5), ...agentOptions, ...own })
      const agent = yield* Effect.provideContext(
        importer === undefined ? making : Effect.provideService(making, TensorImporter, importer),
        context
      )
      // Tests make many commands fail; what they say is checked where it is read.
      const quiet = Effect.provideService(agent.serve, References.MinimumLogLevel, "Error")
      yield* Effect.forkScoped(quiet, { startImmediately: true })
      return { agent, client: yield* Effect.provideContext(Clients.make({ deadline: "20 seconds" }), context) }
    })
  return { map, memory, start }
})
