/**
 * What a backend package says about itself. Reading a descriptor opens no addon and no library; its layers do, when used.
 */
import type * as Config from "effect/Config"
import * as Effect from "effect/Effect"
import type * as Layer from "effect/Layer"
import * as Schema from "effect/Schema"
import { describeReason, type ReasonInput, reason, reasonOf } from "../base/Reason.ts"
import type { CopyDriver, CopyDriverCapabilities } from "../service/CopyDriver.ts"
import type { HostMemory } from "../service/HostMemory.ts"
import type { ProcessGroup } from "../service/ProcessGroup.ts"
import type { ReplayTransferBackend } from "../service/ReplayTransferBackend.ts"
import type { TensorEngine, TensorEngineCapabilities } from "../service/TensorEngine.ts"
import type { Device } from "../tensor/Device.ts"

/** Version of the contracts between core and backends. A descriptor states the one it was written for. */
export const backendApiVersion = 1

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

export class BackendError extends Schema.TaggedError<BackendError>()("BackendError", { reason: BackendReason }) {
  override get message(): string {
    return describeReason(this.reason)
  }
}

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

export interface BackendDescriptor {
  readonly name: string
  readonly apiVersion: number
  /** Families whose memory the backend owns; "*" claims every family that nobody else claims. */
  readonly deviceFamilies: ReadonlyArray<string>
  readonly capabilities: {
    readonly tensorEngine?: TensorEngineCapabilities
    readonly copyDriver?: CopyDriverCapabilities
    readonly replayTransfer?: boolean
  }
  /** Decodes what a user wrote. Must refuse unknown names: options that do nothing are errors. */
  readonly options: Schema.Codec<BackendOptions, unknown>
  /** Looks for what the backend needs. Runs no other program; answers with a value, never by failing. */
  readonly probe: Effect.Effect<ProbeResult>
  readonly tensorEngine?: (options: BackendOptions) => Layer.Layer<TensorEngine, BackendError>
  readonly hostMemory?: (options: BackendOptions) => Layer.Layer<HostMemory, BackendError>
  readonly copyDriver?: (options: BackendOptions) => Layer.Layer<CopyDriver, BackendError, ProcessGroup | TensorEngine>
  /** `familyEngine` is the engine of the device's family, for backends that serve families of others. */
  readonly replayTransfer?: (
    device: Device,
    ringDepth: number,
    options: BackendOptions,
    familyEngine?: Layer.Layer<TensorEngine, BackendError>
  ) => Layer.Layer<ReplayTransferBackend, BackendError>
}

/** Checks that a descriptor's services and capabilities agree and that it speaks this version of the contracts. */
export const validateDescriptor = (descriptor: BackendDescriptor): Effect.Effect<BackendDescriptor, BackendError> => {
  const wrong = (detail: string) =>
    Effect.fail(
      backendError("InvalidDescriptor", {
        backend: descriptor.name,
        detail,
        remedy: "Correct the descriptor that the package exports."
      })
    )
  if (!/^[a-z][a-z0-9-]*$/.test(descriptor.name)) return wrong(`The name "${descriptor.name}" is not lower-case kebab.`)
  if (descriptor.apiVersion !== backendApiVersion) {
    return Effect.fail(
      backendError("IncompatibleApiVersion", {
        backend: descriptor.name,
        detail: `It was written for contract version ${descriptor.apiVersion}; this core has version ${backendApiVersion}.`,
        remedy:
          descriptor.apiVersion > backendApiVersion ? "Upgrade @tensorferry/core." : "Upgrade the backend package."
      })
    )
  }
  const pairs = [
    ["tensorEngine", descriptor.tensorEngine, descriptor.capabilities.tensorEngine],
    ["copyDriver", descriptor.copyDriver, descriptor.capabilities.copyDriver],
    ["replayTransfer", descriptor.replayTransfer, descriptor.capabilities.replayTransfer]
  ] as const
  for (const [service, layer, capability] of pairs) {
    if ((layer === undefined) !== (capability === undefined || capability === false)) {
      return wrong(`Service ${service} and its capabilities must be stated together.`)
    }
  }
  return Effect.succeed(descriptor)
}

/** A value, or where to read it from. */
export type OrConfig<A> = A | Config.Config<A>
