// SPDX-License-Identifier: Apache-2.0
/**
 * What clients ask an agent for. The classes are the contract of the bus: their names and the names of their fields on the
 * wire are those that clients in other languages use (`pair_name` for `pairName`).
 *
 * - `InitPair` states this rank's half of a pair: a named layout on this side that is to exchange tensors with a named
 *   layout on the other. It ends when all ranks of both sides have stated theirs.
 * - `RegisterTensors` names the tensors of a batch, each with the pair that it goes by. It ends when all ranks of these
 *   pairs have registered the batch.
 * - `RegisterModel` names a rank's tensors of a model as its system does, instead of by places of a mesh: trainer and
 *   engine may name and join them differently. Clients in other languages need not know it.
 * - `LoadTensors` fills this rank's tensors from a checkpoint, without a pair and without other ranks. Clients in other
 *   languages need not know it.
 * - `Transfer` moves a registered batch, in the direction that the sides choose by "send" and "recv".
 * - `LeavePair` takes this rank out of a pair, so that all ranks can make it again. Clients in other languages need not
 *   know it.
 * - `QueryStatus` makes a state of a batch readable, `CleanupBatch` forgets the batch.
 *
 * An agent that is done with a command, well or not, posts the semaphore that the command names.
 */
import { Natural } from "@tensorferry/core/base/Numbers"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"

/** Exact up to 64 bits: a number where that is exact, else a bigint. */
export const WireInt = Schema.Union([Schema.Int, Schema.BigInt])

const orNull = <S extends Schema.Top & Schema.WithoutConstructorDefault>(schema: S) =>
  Schema.NullOr(schema).pipe(Schema.withConstructorDefault(Effect.succeed(null)))

/** What all commands carry. */
export class BaseCommand extends Schema.Class<BaseCommand>("@tensorferry/bus/command/BaseCommand")({
  /** Seconds since 1970, of the client. */
  timestamp: orNull(Schema.Number),
  /** Posted when the command is done. */
  semaphoreName: orNull(Schema.String)
}) {}

/** This rank's half of a pair. The payloads are those of `LayoutPayload`, or pickles of PyTorch's classes. */
export class InitPair extends BaseCommand.extend<InitPair>("@tensorferry/bus/command/InitPair")({
  _tag: Schema.tag("InitPair"),
  pairName: Schema.String,
  /** Name of this side, and how many ranks it has. */
  localName: Schema.String,
  expectedWorldSize: WireInt,
  remoteName: Schema.String,
  /** One dimension of all ranks where absent. */
  meshShapePayload: orNull(Schema.Uint8Array),
  /** Replicated where absent. */
  placementsPayload: orNull(Schema.Uint8Array),
  /** Seconds to wait for other ranks, in place of the agent's deadline. Clients in other languages need not know it. */
  timeout: orNull(Schema.Number)
}) {}

/** The tensors of a batch, each as a payload that `decodeTensorPayload` reads. */
export class RegisterTensors extends BaseCommand.extend<RegisterTensors>("@tensorferry/bus/command/RegisterTensors")({
  _tag: Schema.tag("RegisterTensors"),
  batchId: Schema.String,
  /** Name of the pair and the tensor's payload. */
  tensors: Schema.Array(Schema.Tuple([Schema.String, Schema.Uint8Array])),
  /** Most bytes of a bucket. */
  bucketSize: orNull(WireInt),
  /**
   * Where stated, transfers move only what changed since the one before; this many bytes are for the sender's copies, and what
   * finds no room there is moved whole. On all ranks or on none. Clients in other languages need not know it.
   */
  changesBytes: orNull(Natural),
  /**
   * The quantized form in which this side holds tensors whose scales are registered beside them, as `fp8-block:deepgemm_fp32`;
   * what the other side sends is quantized where it arrives. Clients in other languages need not know it.
   */
  form: orNull(Schema.String),
  /** Seconds to wait for other ranks, in place of the agent's deadline. Clients in other languages need not know it. */
  timeout: orNull(Schema.Number)
}) {}

/** All tensors of a model that this rank holds, by the names of a system. */
export class RegisterModel extends BaseCommand.extend<RegisterModel>("@tensorferry/bus/command/RegisterModel")({
  _tag: Schema.tag("RegisterModel"),
  batchId: Schema.String,
  pairName: Schema.String,
  /** A checkpoint of the model under its own names; only its names, shapes and config.json are read, by the agent. */
  model: Schema.String,
  /** How this side names and cuts the model, with the degrees of the whole side: `megatron:tp=2`. */
  names: Schema.String,
  /** Rules in place of those of the names, as JSON. */
  rules: orNull(Schema.String),
  /** Where this side puts layers, experts and vocabulary, where that is not what the names say, as JSON. */
  placement: orNull(Schema.String),
  /** The family of a model without a config.json. */
  preset: orNull(Schema.String),
  /** Name and payload of each. */
  tensors: Schema.Array(Schema.Tuple([Schema.String, Schema.Uint8Array])),
  /** Most bytes that wait on their way. */
  bucketSize: orNull(WireInt),
  /** As of `RegisterTensors`. */
  changesBytes: orNull(Natural),
  /** As of `RegisterTensors`. */
  form: orNull(Schema.String),
  /** Seconds to wait for other ranks, in place of the agent's deadline. Clients in other languages need not know it. */
  timeout: orNull(Schema.Number)
}) {}

/** This rank's tensors, and the checkpoint that fills them. The memory is used until the command ends, and no longer. */
export class LoadTensors extends BaseCommand.extend<LoadTensors>("@tensorferry/bus/command/LoadTensors")({
  _tag: Schema.tag("LoadTensors"),
  /** A file or folder, where the agent finds it. */
  path: Schema.String,
  /** Name and payload of each; a payload may say how its tensor lies on the mesh. */
  tensors: Schema.Array(Schema.Tuple([Schema.String, Schema.Uint8Array])),
  /** Further names of tensors, as of a tied head: JSON of an object from further name to name in `tensors`. */
  aliases: orNull(Schema.String),
  /** This process among the ranks of its side; 0 where absent. */
  sideRank: orNull(Natural),
  /** As of `InitPair`, of the side's ranks in order; one rank where absent. */
  meshShapePayload: orNull(Schema.Uint8Array),
  /** How this side names and cuts the model, with the degrees of all its ranks; names of the checkpoint where absent. */
  names: orNull(Schema.String),
  /** How the checkpoint names its tensors, with the degrees by which its files are cut; its model's own names where absent. */
  storedNames: orNull(Schema.String),
  /** Where `storedNames` is stated: a checkpoint of the same model under its own names, or one with its config.json. */
  model: orNull(Schema.String),
  /** As of `RegisterModel`, of this side. */
  rules: orNull(Schema.String),
  placement: orNull(Schema.String),
  preset: orNull(Schema.String),
  /** Values are converted where types differ. */
  allowsCast: orNull(Schema.Boolean),
  /** Tensors that the checkpoint lacks keep their contents. */
  allowsMissing: orNull(Schema.Boolean),
  /** Tensors of the checkpoint that this side lacks are passed by. */
  allowsUnexpected: orNull(Schema.Boolean),
  /** Seconds for the whole; without it each read of a part has a deadline, and their number none. */
  timeout: orNull(Schema.Number)
}) {}

/** What this side does in a transfer; the other side of the pair states the other word. */
export const TransferType = Schema.Literals(["send", "recv"])
export type TransferType = typeof TransferType.Type

/** Moves a registered batch. One side states "send", the other "recv". */
export class Transfer extends BaseCommand.extend<Transfer>("@tensorferry/bus/command/Transfer")({
  _tag: Schema.tag("Transfer"),
  batchId: Schema.String,
  transferType: TransferType,
  /**
   * Which contents these are; all ranks that state one state the same. Whoever receives without one takes what comes.
   * Clients in other languages need not know it.
   */
  version: orNull(Natural)
}) {}

/** Makes the agent write a state of a batch to its `AgentState`, where the client reads it. */
export class QueryStatus extends BaseCommand.extend<QueryStatus>("@tensorferry/bus/command/QueryStatus")({
  _tag: Schema.tag("QueryStatus"),
  batchId: Schema.String,
  /** "transfer_signal": true while a sent batch waits to be received. */
  stateName: Schema.String
}) {}

/** Makes the agent forget a batch and close what it opened for it. */
export class CleanupBatch extends BaseCommand.extend<CleanupBatch>("@tensorferry/bus/command/CleanupBatch")({
  _tag: Schema.tag("CleanupBatch"),
  batchId: Schema.String
}) {}

/** Takes this rank out of a pair: its batches are dropped, and the other ranks learn that the pair is broken. */
export class LeavePair extends BaseCommand.extend<LeavePair>("@tensorferry/bus/command/LeavePair")({
  _tag: Schema.tag("LeavePair"),
  pairName: Schema.String
}) {}

/** Any command. */
export const Message = Schema.Union([
  InitPair,
  RegisterTensors,
  RegisterModel,
  LoadTensors,
  Transfer,
  QueryStatus,
  CleanupBatch,
  LeavePair
])
export type Message = typeof Message.Type
