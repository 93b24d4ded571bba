// SPDX-License-Identifier: Apache-2.0
/**
 * The tensor bus: agents that move tensors between the layouts of two jobs on behalf of their processes, and the clients
 * that ask them to.
 */
import * as PairGroups from "./agent/PairGroup.ts"
import * as TensorBusAgents from "./agent/TensorBusAgent.ts"
import * as BatchHandlers from "./client/BatchHandler.ts"
import * as TensorBusClients from "./client/TensorBusClient.ts"
import * as CommandQueueLmdb from "./queue/CommandQueueLmdb.ts"
import * as CommandQueueMemory from "./queue/CommandQueueMemory.ts"
import * as CommandQueueSocket from "./queue/CommandQueueSocket.ts"
import * as AgentStateLmdb from "./state/AgentStateLmdb.ts"
import * as AgentStateMemory from "./state/AgentStateMemory.ts"
import * as NamedSemaphore from "./state/NamedSemaphore.ts"
import * as KeyValueStoreEtcd from "./store/KeyValueStoreEtcd.ts"
import * as KeyValueStoreMemory from "./store/KeyValueStoreMemory.ts"
import * as KeyValueStoreTcp from "./store/KeyValueStoreTcp.ts"

export { TensorBusAgent } from "./agent/TensorBusAgent.ts"
export { type DeviceImport, importerOver, TensorImporter } from "./agent/TensorImporter.ts"
export { BusError, BusReason } from "./BusError.ts"
export { type BusPlace, bootstrap, placeOf } from "./bootstrap.ts"
export { TensorBusClient } from "./client/TensorBusClient.ts"
export {
  BaseCommand,
  CleanupBatch,
  InitPair,
  LeavePair,
  LoadTensors,
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
export { AgentState, AgentStateError } from "./state/AgentState.ts"
export { KeyValueError, KeyValueStore } from "./store/KeyValueStore.ts"

export {
  /** An agent's state in an LMDB file beside its command queue. */
  AgentStateLmdb,
  /** An agent's state within one process. */
  AgentStateMemory,
  /** A registered batch for the time of a scope: cleaned up when the scope ends, however it ends. */
  BatchHandlers,
  /** A command queue that processes of one host share. */
  CommandQueueLmdb,
  /** A command queue within one process: for tests, and for clients and agents that share a process. */
  CommandQueueMemory,
  /** A command queue behind a Unix socket: clients send commands over a connection, and get the reply to each over it. */
  CommandQueueSocket,
  /** A store in etcd, through the JSON gateway that every etcd serves, so that no client library is needed. */
  KeyValueStoreEtcd,
  /** A store within one process, for agents that share it. */
  KeyValueStoreMemory,
  /** The store that an agent serves, as other agents use it. */
  KeyValueStoreTcp,
  /** Counting semaphores that processes of one host share by name. */
  NamedSemaphore,
  /** How the agents of a pair form the group in which they move tensors. */
  PairGroups,
  /** The agent of one rank. */
  TensorBusAgents,
  /** A process's way to its agent: sends commands, waits for their completion, and turns replies into typed errors. */
  TensorBusClients
}
