// SPDX-License-Identifier: Apache-2.0
/**
 * Fills tensors of a client from a checkpoint, by one agent alone: the host's where they lie, those of devices through a few
 * buffers. The memory is open while the command runs.
 *
 * Contract
 * - What does not fit is refused before a byte is written. After any later failure the contents are unspecified.
 * - A client that ends, or a deadline that passes, ends the work within a second, or when the read under way returns.
 */

import { layerSingle } from "@tensorferry/core/group/ProcessGroupInProcess"
import { deviceMesh } from "@tensorferry/core/layout/DeviceMesh"
import { TensorEngine, type TensorError } from "@tensorferry/core/service/TensorEngine"
import { formatDevice } from "@tensorferry/core/tensor/Device"
import { sharesElements } from "@tensorferry/core/tensor/Tensor"
import type { CheckpointError } from "@tensorferry/model/checkpoint/CheckpointError"
import { worldSizeOf } from "@tensorferry/model/layout/ModelLayout"
import type { Model } from "@tensorferry/model/Model"
import type { ModelError } from "@tensorferry/model/ModelError"
import { openNamed } from "@tensorferry/model/names/files/openNamed"
import { openModel } from "@tensorferry/model/openModel"
import { loadRegions } from "@tensorferry/model/stream/CheckpointStream"
import * as Context from "effect/Context"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { type BusError, type BusReason, busError } from "../BusError.ts"
import type { LoadTensors } from "../command/Command.ts"
import { isAlive, type Owner } from "../liveness.ts"
import { decodeMeshShape } from "../payload/LayoutPayload.ts"
import type { Value } from "../wire/Value.ts"
import { batchDevice } from "./BatchServices.ts"
import { type Allowances, type LoadedTensor, loadOp, planByConvention, planByName, type SidePlace } from "./LoadPlan.ts"
import { type OpenTensor, openTensor } from "./openTensor.ts"
import { type PairSettings, transportFailed, waitOf } from "./Pair.ts"
import { type Stating, statedFamily, statedJson, statedPlacement, statedSide } from "./StatedNames.ts"

/** How long the end of a client may go unnoticed. */
const ownerCheck = Duration.millis(250)

const refused = (tag: BusReason["_tag"], detail: string, remedy: string): BusError =>
  busError(tag, { op: loadOp, detail, remedy })

/** As what a client gets to know the errors of reading models. */
const tags: Readonly<Record<CheckpointError["reason"]["_tag"] | ModelError["reason"]["_tag"], BusReason["_tag"]>> = {
  NotFound: "CheckpointUnreadable",
  Unreadable: "CheckpointUnreadable",
  FileFailed: "CheckpointUnreadable",
  Unsupported: "CheckpointUnreadable",
  MissingPackage: "CheckpointUnreadable",
  Truncated: "CheckpointDamaged",
  Changed: "CheckpointDamaged",
  InvalidHeader: "CheckpointDamaged",
  TensorInvalid: "CheckpointDamaged",
  InvalidIndex: "CheckpointDamaged",
  UnsafePath: "CheckpointDamaged",
  InvalidManifest: "CheckpointDamaged",
  InvalidShapes: "CheckpointDamaged",
  Different: "CheckpointDamaged",
  TensorMissing: "CheckpointMismatch",
  InvalidRequest: "CheckpointMismatch",
  InvalidLayout: "CheckpointMismatch",
  InvalidRules: "CheckpointMismatch",
  InvalidUsage: "InvalidCommand",
  AlreadyExists: "ServiceFailed",
  DiskFull: "ServiceFailed",
  WriteFailed: "ServiceFailed",
  OutputExists: "ServiceFailed",
  RankEnded: "ServiceFailed",
  InvalidJob: "ServiceFailed",
  InvalidPlan: "ServiceFailed",
  InvalidDelta: "ServiceFailed",
  WrongBase: "ServiceFailed",
  NotEnoughMemory: "ServiceFailed"
}

const storedRemedy =
  "State how the files are named and cut, and a checkpoint of the same model under its own names (stored and like in Python)."

type Fault = Parameters<typeof failedBy>[1]

/** Any failure on the way, as its client gets it. */
const failedBy = (
  path: string,
  error:
    | BusError
    | CheckpointError
    | ModelError
    | TensorError
    | { readonly _tag: "MappingError"; readonly message: string; readonly subject: string }
    | { readonly _tag: "LayoutError"; readonly message: string }
): BusError => {
  switch (error._tag) {
    case "BusError":
      return error.reason.op === loadOp ? error : busError(error.reason._tag, { ...error.reason, op: loadOp })
    case "CheckpointError":
    case "ModelError": {
      const { _tag, ...fields } = error.reason
      // What the command would be told by flags.
      const usage = _tag === "InvalidUsage" ? { remedy: storedRemedy } : {}
      return busError(tags[_tag], { file: path, ...fields, ...usage, op: loadOp })
    }
    case "TensorError": {
      const { _tag, ...fields } = error.reason
      const detail = `${fields.detail} What the tensors hold now is unspecified.`
      return busError(_tag === "Unsupported" ? "UnsupportedTensor" : "TransferFailed", {
        ...fields,
        op: loadOp,
        detail
      })
    }
    case "MappingError":
    case "LayoutError":
      return busError("CheckpointMismatch", {
        op: loadOp,
        file: path,
        ...("subject" in error ? { paramName: error.subject } : {}),
        detail: `${error.message} Nothing was written.`,
        remedy: "Check convention and degrees, and that the checkpoint is of this model."
      })
  }
}

const Aliases = Schema.Record(Schema.String, Schema.String)

/** The tensors of a command, opened even where one fails: each payload may carry a count that must be given back. */
const openLoaded = Effect.fnUntraced(function* (command: LoadTensors, stating: Stating) {
  const results = yield* Effect.forEach(command.tensors, ([, payload]) => Effect.result(openTensor(payload)))
  const opened: Array<OpenTensor> = []
  for (const [at, result] of results.entries()) {
    const [name] = command.tensors[at]!
    if (Result.isFailure(result))
      return yield* busError(result.failure.reason._tag, { ...result.failure.reason, op: loadOp, paramName: name })
    if (sharesElements(result.success.tensor))
      return yield* busError("UnsupportedTensor", {
        op: loadOp,
        paramName: name,
        detail: `Elements of ${name} share memory.`,
        remedy: "Load into tensors that are not expanded."
      })
    opened.push(result.success)
  }
  if (opened.length === 0) return yield* refused("InvalidCommand", "There are no tensors.", "State at least one.")
  const aliases =
    command.aliases === null
      ? {}
      : yield* Effect.fromResult(
          statedJson(
            stating,
            "its aliases are none",
            Aliases,
            command.aliases,
            'State them as JSON: {"head": "embed"}.'
          )
        )
  const furtherOf = new Map<string, Array<string>>()
  for (const [alias, of] of Object.entries(aliases)) furtherOf.set(of, [...(furtherOf.get(of) ?? []), alias])
  const loaded = command.tensors.map(
    ([name], at): LoadedTensor => ({
      names: [name, ...(furtherOf.get(name) ?? [])],
      tensor: opened[at]!.tensor,
      placements: opened[at]!.placements
    })
  )
  const names = loaded.flatMap((one) => one.names)
  if (new Set(names).size !== names.length)
    return yield* refused("InvalidCommand", "A tensor has the name of another.", "Name each tensor once.")
  return { opened, loaded }
})

/** The rank among those of its side. */
const sidePlace = ({ meshShapePayload, sideRank }: LoadTensors): Result.Result<SidePlace, BusError> =>
  Result.gen(function* () {
    const invalid = (detail: string) => refused("InvalidCommand", detail, "State the mesh of the side and its rank.")
    const shape =
      meshShapePayload === null
        ? [1]
        : yield* Result.mapError(decodeMeshShape(meshShapePayload), ({ reason }) => invalid(reason.detail))
    const mesh = yield* Result.mapError(deviceMesh({ shape }), ({ message }) => invalid(message))
    const rank = sideRank ?? 0
    if (rank >= mesh.ranks.length)
      return yield* Result.fail(invalid(`Rank ${rank} is not one of ${mesh.ranks.length} ranks.`))
    return { mesh, rank }
  })

/** The checkpoint under its model's own names. */
const openStored = Effect.fnUntraced(function* (command: LoadTensors, stating: Stating) {
  const { path, storedNames, model, preset } = command
  if (storedNames === null) return yield* openModel(path)
  const { convention, config } = yield* Effect.fromResult(statedSide(stating, storedNames, null))
  const like = model === null ? undefined : yield* openModel(model)
  const family = yield* statedFamily(stating, like ?? { path, config: undefined }, preset)
  // A folder with nothing but config.json says the family, and no names.
  const named = like === undefined || like.tensors.length === 0 ? {} : { like: like.path }
  return yield* openNamed(path, { convention, config, family, ...named })
})

const planOf = Effect.fnUntraced(function* (
  command: LoadTensors,
  stating: Stating,
  model: Model,
  loaded: ReadonlyArray<LoadedTensor>
) {
  const place = yield* Effect.fromResult(sidePlace(command))
  const allowed: Allowances = {
    cast: command.allowsCast === true,
    missing: command.allowsMissing === true,
    unexpected: command.allowsUnexpected === true
  }
  if (command.names === null) return yield* planByName(model, loaded, place, allowed)
  const side = yield* Effect.fromResult(statedSide(stating, command.names, command.rules))
  const size = worldSizeOf(side.config)
  if (size !== place.mesh.ranks.length)
    return yield* refused(
      "InvalidCommand",
      `${command.names} has the degrees of ${size} ranks, and the side has ${place.mesh.ranks.length}.`,
      "State degrees whose product is the number of ranks."
    )
  const placement = yield* Effect.fromResult(statedPlacement(stating, command.placement))
  const family = yield* statedFamily(stating, model, command.preset)
  return yield* planByConvention(model, { ...family, placement }, side, loaded, place, allowed)
})

/** The engine for a device, as transports bring it. */
const engineFor = Effect.fnUntraced(function* (opened: ReadonlyArray<OpenTensor>, settings: PairSettings) {
  const tensors = opened.map(({ tensor }) => tensor)
  const device = yield* Effect.fromResult(batchDevice("of a load", tensors, settings))
  const transport = settings.deviceTransports[device.family] ?? settings.transport
  const services = yield* Layer.build(Layer.provide(Layer.fresh(transport), layerSingle())).pipe(
    Effect.mapError((error) => transportFailed(loadOp, `The engine for ${formatDevice(device)}`, error))
  )
  return Context.get(services, TensorEngine)
})

/** Fails once a client has ended. */
const untilGone = (owners: ReadonlyArray<Owner>): Effect.Effect<never, BusError> =>
  Effect.repeat(Effect.void, {
    schedule: Schedule.spaced(ownerCheck),
    while: () => owners.every(isAlive)
  }).pipe(
    Effect.andThen(
      Effect.fail(refused("MemoryUnavailable", "The client has ended, and its memory with it.", "Load again."))
    )
  )

const load = Effect.fnUntraced(function* (command: LoadTensors, settings: PairSettings) {
  const stating: Stating = { op: loadOp, subject: `Checkpoint ${command.path}` }
  const { opened, loaded } = yield* openLoaded(command, stating)
  const owners = opened.flatMap(({ owner }) => owner ?? [])
  const work = Effect.gen(function* () {
    const model = yield* openStored(command, stating)
    const plan = yield* planOf(command, stating, model, loaded)
    const engine = yield* engineFor(opened, settings)
    for (const zero of plan.zeros) yield* engine.fill(zero, 0)
    const counts = { bytes: 0, fileBytes: 0 }
    for (const { source, reads } of plan.sources) {
      const report = yield* Effect.provideService(loadRegions(source, reads), TensorEngine, engine)
      counts.bytes += report.bytes
      counts.fileBytes += report.fileBytes
    }
    const cut = loaded.find(({ tensor }) => tensor.storage.fault?.() !== undefined)
    if (cut !== undefined)
      return yield* refused(
        "MemoryUnavailable",
        `The client made the memory of ${cut.names[0]} shorter while it was filled.`,
        "Keep the tensors as they are until the load has ended."
      )
    const { cast, missing, unexpected } = plan
    return { tensors: loaded.length - missing.length, ...counts, cast, missing, unexpected } satisfies Value
  })
  const unique = [...new Map(owners.map((owner) => [owner.pid, owner])).values()]
  return yield* unique.length === 0 ? work : Effect.raceFirst(work, untilGone(unique))
})

/** Carries a `LoadTensors` out. Answers what was loaded. */
export const loadTensors = (command: LoadTensors, settings: PairSettings) =>
  Effect.gen(function* () {
    const loading = Effect.mapError(Effect.scoped(load(command, settings)), (error: Fault) =>
      failedBy(command.path, error)
    )
    if (command.timeout === null) return yield* loading
    const duration = yield* Effect.fromResult(waitOf(loadOp, command, settings.deadline))
    return yield* Effect.timeoutOrElse(loading, {
      duration,
      orElse: () =>
        Effect.fail(
          refused(
            "DeadlineExceeded",
            `The checkpoint ${command.path} was not loaded within ${Duration.format(duration)}. What the tensors hold now is unspecified.`,
            "Give it more time, or look whether the file system answers."
          )
        )
    })
  })
