// SPDX-License-Identifier: Apache-2.0
/**
 * What a backend package says about itself. Reading a descriptor opens no addon and no library; its layers do, when used.
 */
import type * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { ReasonError, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { CopyDriver, CopyDriverCapabilities } from "../service/CopyDriver.ts"
import type { HostMemory } from "../service/HostMemory.ts"
import type { ProcessGroup } from "../service/ProcessGroup.ts"
import type { ReplayTesting } from "../service/ReplayTesting.ts"
import type { ReplayTransferBackend } from "../service/ReplayTransferBackend.ts"
import type { TensorEngine, TensorEngineCapabilities } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"
import { schemaFaults } from "./SchemaFaults.ts"

/**
 * Version of the contracts between core and backends. A descriptor states the one it was written for, as a number of its
 * own: copied from here it would agree with any core.
 */
export const backendApiVersion = 1

/** What kept a backend from being found, configured, loaded or used. */
export const BackendReason = Schema.Union([
  /** No registered backend has this name, or serves this device family. */
  reason("UnknownBackend"),
  /** Two backends claim one name or device family. */
  reason("AmbiguousBackend"),
  /** The descriptor was written for another version of the contracts. */
  reason("IncompatibleApiVersion"),
  /** An option is unknown, missing or has the wrong type; the detail gives its path. */
  reason("InvalidOptions"),
  /** The backend does not offer the service asked for. */
  reason("NotOffered"),
  /** What the backend needs is not on this machine. */
  reason("Unavailable"),
  /** A package could not be found, read or imported. */
  reason("LoadFailed"),
  /** The package's export is not a descriptor. */
  reason("InvalidDescriptor")
])
export type BackendReason = typeof BackendReason.Type

/** The error of registries, descriptors and the layers of backends. */
export class BackendError extends ReasonError<BackendError>()("BackendError", BackendReason) {}

/** Makes the error of this reason; `input` has at least `detail` and `remedy`. */
export const backendError = (tag: BackendReason["_tag"], input: ReasonInput): BackendError =>
  new BackendError({ reason: reasonOf(tag, input) })

/** What a probe found. `tried` lists what was looked for and where, in order. */
export const ProbeResult = Schema.Union([
  Schema.TaggedStruct("Available", { detail: Schema.String, versions: Schema.Record(Schema.String, Schema.String) }),
  Schema.TaggedStruct("Unavailable", {
    tried: Schema.Array(Schema.String),
    cause: Schema.String,
    remedy: Schema.String
  })
])
export type ProbeResult = typeof ProbeResult.Type

/** A decoded options value; each backend knows its own shape. */
export type BackendOptions = { readonly [name: string]: unknown }

/** How much host memory staging takes, and in which pieces. Equal on all ranks. */
export interface StagingOptions {
  /** Regions travel in messages of at most this many bytes; 2 MiB by default. */
  readonly messageBytes?: number
  /** Host memory of one rank. 192 MiB by default; more where a message for each peer needs it. */
  readonly stagingBytes?: number
}

/** A wire as "auto" offers it to the backend that joins it to its own driver. */
export interface JoinableWire {
  /** The backend's name. */
  readonly name: string
  /** Of those that both ends have, the lowest is taken. */
  readonly order: number
  /** The driver takes memory of the family by way of host buffers, as `stagedDriverLayer` of @tensorferry/native makes it. */
  readonly isStaged?: boolean
  /**
   * The driver for the family's memory, from options that a user wrote. It meets nobody before its first preparation, and is
   * made by `makeWireDriver` of @tensorferry/native.
   */
  readonly driver: (options: unknown) => Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>
}

/** A driver that takes wires for peers which it does not reach by itself. */
export interface JoinedBackend {
  /** Of the backend itself, among the options of all. */
  readonly options: BackendOptions
  readonly driver: Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>
}

/** What a backend package exports: name, capabilities, options, a probe, and a layer for each service that it offers. */
export interface BackendDescriptor {
  /** How applications and command lines name the backend. */
  readonly name: string
  /** Version of this contract that the backend was written for. */
  readonly apiVersion: number
  /** Families whose memory the backend owns; "*" claims every family that nobody else claims. */
  readonly deviceFamilies: ReadonlyArray<string>
  /** What its services can do. A flag that is set is tested, and one that is not is refused. */
  readonly capabilities: {
    readonly tensorEngine?: TensorEngineCapabilities
    readonly copyDriver?: CopyDriverCapabilities
    readonly replayTransfer?: boolean
  }
  /** Decodes what a user wrote. Must refuse unknown names: options that do nothing are errors. */
  readonly options: Schema.Codec<BackendOptions, unknown>
  /** Looks for what the backend needs. Runs no other program; answers with a value, never by failing. */
  readonly probe: Effect.Effect<ProbeResult>
  /** Conformance cases that the backend is known to differ in, each with the reason. */
  readonly quirks?: { readonly [caseName: string]: string }
  /** Its engine, where it offers one. */
  readonly tensorEngine?: (options: BackendOptions) => Layer.Layer<TensorEngine, BackendError>
  /** Its memory that processes of a host share, where it offers any. */
  readonly hostMemory?: (options: BackendOptions) => Layer.Layer<HostMemory, BackendError>
  /** Its driver for memory of the context's engine, where it offers one. */
  readonly copyDriver?: (options: BackendOptions) => Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>
  /**
   * The driver for memory of the context's engine that it does not reach by itself: by way of memory of `hostEngine`, as
   * `stagedDriverLayer` of @tensorferry/native makes it.
   */
  readonly stagedDriver?: (
    options: BackendOptions,
    hostEngine: Layer.Layer<TensorEngine, BackendError>,
    staging: StagingOptions
  ) => Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>
  /** Of a wire between hosts: "auto" may take it for some peers of a rank. Among several, the lowest goes first. */
  readonly wireOrder?: number
  /**
   * What "auto" builds where it chooses this backend: one driver out of its own and wires, a path for each peer, as
   * `joinWires` of @tensorferry/native makes it. Options that a user wrote are decoded there.
   */
  readonly join?: (options: unknown, wires: ReadonlyArray<JoinableWire>) => Effect.Effect<JoinedBackend, BackendError>
  /** `familyEngine` is the engine of the device's family, for backends that serve families of others. */
  readonly replayTransfer?: (
    device: Device,
    ringDepth: number,
    options: BackendOptions,
    familyEngine?: Layer.Layer<TensorEngine, BackendError>
  ) => Layer.Layer<ReplayTransferBackend, BackendError>
  /** For the conformance kit alone: the same backend with means to hold its device back. */
  readonly replayTesting?: (
    device: Device,
    options: BackendOptions,
    familyEngine?: Layer.Layer<TensorEngine, BackendError>
  ) => Layer.Layer<ReplayTesting, BackendError>
}

const Capabilities = Schema.Struct({
  tensorEngine: Schema.optionalKey(
    Schema.Struct({
      cast: Schema.Boolean,
      reduce: Schema.Boolean,
      quantize: Schema.Array(Schema.String),
      changes: Schema.Boolean,
      products: Schema.Boolean,
      hostVisible: Schema.Boolean
    })
  ),
  copyDriver: Schema.optionalKey(
    Schema.Struct({
      gather: Schema.Boolean,
      requiresProcessGroupBarrier: Schema.Boolean,
      requiresTaskId: Schema.Boolean,
      deviceFamilies: Schema.Array(Schema.NonEmptyString),
      maxMessageBytes: Schema.Finite.check(Schema.isGreaterThan(0)),
      pairwise: Schema.optionalKey(Schema.Boolean)
    })
  ),
  replayTransfer: Schema.optionalKey(Schema.Boolean)
})

const isFunction = (value: unknown): value is () => unknown => typeof value === "function"
const Service = Schema.optionalKey(Schema.declare(isFunction, { expected: "a function" }))

const kebab = /^[a-z][a-z0-9-]*$/

/** The shape of a descriptor, for values that no type checker has seen. */
const DescriptorShape = Schema.Struct({
  name: Schema.String.check(Schema.isPattern(kebab, { expected: "a lower-case name such as my-backend" })),
  apiVersion: Schema.Int,
  deviceFamilies: Schema.Array(Schema.NonEmptyString),
  capabilities: Capabilities,
  options: Schema.declare(Schema.isSchema, { expected: "a schema of effect/Schema" }),
  probe: Schema.declare((value: unknown): value is Effect.Effect<unknown> => Effect.isEffect(value), {
    expected: "an Effect"
  }),
  quirks: Schema.optionalKey(Schema.Record(Schema.String, Schema.NonEmptyString)),
  tensorEngine: Service,
  hostMemory: Service,
  copyDriver: Service,
  stagedDriver: Service,
  wireOrder: Schema.optionalKey(Schema.Finite),
  join: Service,
  replayTransfer: Service,
  replayTesting: Service
})
const decodeShape = Schema.decodeUnknownResult(DescriptorShape, { onExcessProperty: "error", errors: "all" })

/** Which side is too old, and what to do. */
const versionError = (backend: string, writtenFor: number, core: number): BackendError =>
  backendError("IncompatibleApiVersion", {
    backend,
    detail: `It was written for contract version ${writtenFor}; this core has version ${core}.`,
    remedy:
      writtenFor > core
        ? `Upgrade @tensorferry/core to a version of contract ${writtenFor}.`
        : `Upgrade the backend package to a version for contract ${core}.`
  })

/**
 * The backend's side of the handshake: fails unless the core that it got is the one it was written for. `core` is this
 * core's version; tests pass others.
 */
export const requireApiVersion = (
  backend: string,
  writtenFor: number,
  core: number = backendApiVersion
): Effect.Effect<void, BackendError> =>
  writtenFor === core ? Effect.void : Effect.fail(versionError(backend, writtenFor, core))

/**
 * Checks what a package exports: its version of the contracts first, as another version may look different; then every
 * field; then that services and capabilities agree. `where` is how the value is named in messages.
 */
export const checkDescriptor = (
  value: unknown,
  where: string,
  core: number = backendApiVersion
): Effect.Effect<BackendDescriptor, BackendError> => {
  const { name, apiVersion } = Object(value) as { readonly name?: unknown; readonly apiVersion?: unknown }
  const backend = typeof name === "string" ? name : where
  const wrong = (detail: string) =>
    Effect.fail(
      backendError("InvalidDescriptor", {
        backend,
        detail: `In ${where}: ${detail}.`,
        remedy: "Correct the descriptor that the package exports, or use a version of the package that does."
      })
    )
  if (typeof apiVersion === "number" && apiVersion !== core) {
    return Effect.fail(versionError(backend, apiVersion, core))
  }
  const decoded = decodeShape(value)
  if (Result.isFailure(decoded)) return wrong(schemaFaults(decoded.failure, value, "the descriptor").join("; "))
  const descriptor = value as BackendDescriptor
  for (const service of ["tensorEngine", "copyDriver", "replayTransfer"] as const) {
    const stated = descriptor.capabilities[service]
    const isStated = stated !== undefined && stated !== false
    if ((descriptor[service] !== undefined) !== isStated) {
      return wrong(
        isStated
          ? `capabilities.${service} is stated, but ${service} is missing`
          : `${service} is a function, but capabilities.${service} is not stated`
      )
    }
  }
  return Effect.succeed(descriptor)
}

/** `checkDescriptor` of one that an application has at hand. */
export const validateDescriptor = (descriptor: BackendDescriptor): Effect.Effect<BackendDescriptor, BackendError> =>
  checkDescriptor(descriptor, "its descriptor")

/** A value, or where to read it from. */
export type OrConfig<A> = A | Config.Config<A>
