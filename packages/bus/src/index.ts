// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor bus: agents that move tensors between the layouts of two jobs on behalf of their processes, and the clients
 * that ask them to.
 */

/** How the agents of a pair form the group in which they move tensors. */
export * as PairGroups from "./agent/PairGroup.ts"
/** The agent of one rank. */
export * as TensorBusAgents from "./agent/TensorBusAgent.ts"
export { TensorBusAgent } from "./agent/TensorBusAgent.ts"
export { type DeviceImport, importerOver, TensorImporter } from "./agent/TensorImporter.ts"
export { BusError, BusReason } from "./BusError.ts"
export { type BusPlace, bootstrap, placeOf } from "./bootstrap.ts"
/** A registered batch for the time of a scope: cleaned up when the scope ends, however it ends. */
export * as BatchHandlers from "./client/BatchHandler.ts"
/** A process's way to its agent: sends commands, waits for their completion, and turns replies into typed errors. */
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
/** A command queue that processes of one host share. */
export * as CommandQueueLmdb from "./queue/CommandQueueLmdb.ts"
/** A command queue within one process: for tests, and for clients and agents that share a process. */
export * as CommandQueueMemory from "./queue/CommandQueueMemory.ts"
/** A command queue behind a Unix socket: clients send commands over a connection, and get the reply to each over it. */
export * as CommandQueueSocket from "./queue/CommandQueueSocket.ts"
export { AgentState, AgentStateError } from "./state/AgentState.ts"
/** An agent's state in an LMDB file beside its command queue. */
export * as AgentStateLmdb from "./state/AgentStateLmdb.ts"
/** An agent's state within one process. */
export * as AgentStateMemory from "./state/AgentStateMemory.ts"
/** Counting semaphores that processes of one host share by name. */
export * as NamedSemaphore from "./state/NamedSemaphore.ts"
export { KeyValueError, KeyValueStore } from "./store/KeyValueStore.ts"
/** A store in etcd, through the JSON gateway that every etcd serves, so that no client library is needed. */
export * as KeyValueStoreEtcd from "./store/KeyValueStoreEtcd.ts"
/** A store within one process, for agents that share it. */
export * as KeyValueStoreMemory from "./store/KeyValueStoreMemory.ts"
/** The store that an agent serves, as other agents use it. */
export * as KeyValueStoreTcp from "./store/KeyValueStoreTcp.ts"
