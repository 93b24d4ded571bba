// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor bus: agents that move tensors between the layouts of two jobs on behalf of their processes, and the clients
 * that ask them to.
 */

export * as PairGroups from "./agent/PairGroup.ts"
export * as TensorBusAgents from "./agent/TensorBusAgent.ts"
export { TensorBusAgent } from "./agent/TensorBusAgent.ts"
export { type DeviceImport, importerOver, TensorImporter } from "./agent/TensorImporter.ts"
export { BusError, BusReason } from "./BusError.ts"
export { type BusPlace, bootstrap, placeOf } from "./bootstrap.ts"
export * as BatchHandlers from "./client/BatchHandler.ts"
export * as TensorBusClients from "./client/TensorBusClient.ts"
export { TensorBusClient } from "./client/TensorBusClient.ts"
export {
  BaseCommand,
  CleanupBatch,
  InitPair,
  LeavePair,
  Message,
  QueryStatus,
  RegisterModel,
  RegisterTensors,
  Transfer,
  TransferType
} from "./command/Command.ts"
export { decodeCommand, encodeCommand } from "./command/CommandCodec.ts"
export { CommandError } from "./command/CommandError.ts"
export { Reply } from "./command/Reply.ts"
export { CommandQueue, CommandQueueError } from "./queue/CommandQueue.ts"
export * as CommandQueueLmdb from "./queue/CommandQueueLmdb.ts"
export * as CommandQueueMemory from "./queue/CommandQueueMemory.ts"
export * as CommandQueueSocket from "./queue/CommandQueueSocket.ts"
export { AgentState, AgentStateError } from "./state/AgentState.ts"
export * as AgentStateLmdb from "./state/AgentStateLmdb.ts"
export * as AgentStateMemory from "./state/AgentStateMemory.ts"
export * as NamedSemaphore from "./state/NamedSemaphore.ts"
export { KeyValueError, KeyValueStore } from "./store/KeyValueStore.ts"
export * as KeyValueStoreEtcd from "./store/KeyValueStoreEtcd.ts"
export * as KeyValueStoreMemory from "./store/KeyValueStoreMemory.ts"
export * as KeyValueStoreTcp from "./store/KeyValueStoreTcp.ts"
