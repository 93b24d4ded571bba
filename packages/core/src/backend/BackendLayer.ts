// SPDX-License-Identifier: Apache-2.0
/**
 * Layers by name: an application says which backend it wants, the registry provides it.
 *
 * An unavailable choice is an error with its remedy. Only "auto" looks further, and reports why it passed others by.
 */
import type * as Config from "effect/Config"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import { type CopyServiceOptions, copyServiceLayer } from "../copy/CopyServiceLayer.ts"
import {
  isRingDepth,
  maxRingDepth,
  ReplayTransferBusyPoll,
  ReplayTransferDeadline,
  ReplayTransferTiming
} from "../replay/ReplayTransferLayer.ts"
import type { CopyService } from "../service/CopyService.ts"
import type { HostMemory } from "../service/HostMemory.ts"
import type { ProcessGroup } from "../service/ProcessGroup.ts"
import type { ReplayTransferBackend } from "../service/ReplayTransferBackend.ts"
import type { TensorEngine } from "../service/TensorEngine.ts"
import { parseDevice } from "../tensor/Device.ts"
import {
  type BackendDescriptor,
  type BackendError,
  type BackendOptions,
  backendError,
  type JoinableWire,
  type OrConfig
} from "./BackendDescriptor.ts"
import { BackendRegistry, type BackendRegistryShape } from "./BackendRegistry.ts"
import { engineOf } from "./FamilyEngine.ts"
import { boundedLayer } from "./LazyLayer.ts"
import { decodeBackendOptions } from "./OptionsLayer.ts"
import { probeBackend } from "./Probe.ts"

/** Choices are never effects, settings are. Asking `effect/Config` itself would load streams and files with it. */
const isConfig = <A>(value: OrConfig<A>): value is Config.Config<A> => Effect.isEffect(value)

const valueOf = <A>(value: OrConfig<A>): Effect.Effect<A, BackendError> =>
  isConfig(value)
    ? Effect.mapError(value, (error) =>
        backendError("InvalidOptions", { detail: String(error), remedy: "Set the configuration value." })
      )
    : Effect.succeed(value)

const decodeOptions = (descriptor: BackendDescriptor, options: unknown): Effect.Effect<BackendOptions, BackendError> =>
  decodeBackendOptions(
    descriptor.options,
    descriptor.name,
    options,
    "Correct the option at this path; options that the backend does not know are refused."
  )

/** Fails with what was tried and the remedy unless the backend can work here. */
export const requireAvailable = (descriptor: BackendDescriptor): Effect.Effect<BackendDescriptor, BackendError> =>
  Effect.flatMap(probeBackend(descriptor), (found) =>
    found._tag === "Available"
      ? Effect.succeed(descriptor)
      : Effect.fail(
          backendError("Unavailable", {
            backend: descriptor.name,
            scope: "service",
            detail: `${found.cause}${found.tried.length === 0 ? "" : ` Tried: ${found.tried.join("; ")}.`}`,
            remedy: found.remedy
          })
        )
  )

/** The backend that a request came to. */
export interface BackendChoice {
  readonly descriptor: BackendDescriptor
  /** Why this one, including why "auto" passed others by. */
  readonly reason: string
}

/**
 * The backend for copying memory of a device family: the named one, or with "auto" the first available among those that
 * claim the family, before those that claim every family.
 */
export const chooseCopyBackend = Effect.fn("chooseCopyBackend")(function* (
  name: string,
  family: string
): Effect.fn.Return<BackendChoice, BackendError, BackendRegistry> {
  const registry = yield* BackendRegistry
  if (name !== "auto") {
    // Probed first: what the machine lacks is the better answer than what the package does not offer.
    yield* requireAvailable(yield* registry.byName(name))
    return { descriptor: yield* registry.forFamily(family, "copyDriver", name), reason: "chosen by name" }
  }
  const offering = registry.descriptors.filter((descriptor) => descriptor.copyDriver !== undefined)
  const ordered = [
    ...offering.filter((descriptor) => descriptor.deviceFamilies.includes(family)),
    ...offering.filter(
      (descriptor) => !descriptor.deviceFamilies.includes(family) && descriptor.deviceFamilies.includes("*")
    )
  ]
  const passed: Array<string> = []
  for (const descriptor of ordered) {
    const found = yield* probeBackend(descriptor)
    if (found._tag === "Available") {
      const reason = passed.length === 0 ? `serves device family ${family}` : `${passed.join("; ")}; next in order`
      return { descriptor, reason }
    }
    passed.push(`${descriptor.name}: ${found.cause}`)
  }
  return yield* backendError("Unavailable", {
    detail: `No backend can move memory of device family ${family} here. ${passed.join("; ")}`,
    remedy: "Name a backend to see its own remedy."
  })
})

/** Which backend copies, and its options. */
export interface CopyServiceChoice extends CopyServiceOptions {
  /** A backend's name, or "auto". */
  readonly backend: OrConfig<string>
  /** Family of the memory to move; "cpu" by default. */
  readonly deviceFamily?: string
  /** The backend's own options; with "auto", those of joined backends (`joinOptions` of @tensorferry/native). */
  readonly options?: unknown
  /** Options of the backend whose engine owns the memory, where the chosen one moves memory of the host alone. */
  readonly engineOptions?: unknown
}

/** The engine of a device family, made only when a backend asks for it. */
const familyEngine = (registry: BackendRegistryShape, family: string): Layer.Layer<TensorEngine, BackendError> =>
  Layer.unwrap(Effect.map(registry.forFamily(family, "tensorEngine"), (descriptor) => descriptor.tensorEngine!({})))

/** Whether a backend's driver moves memory of a family by itself. */
const reaches = ({ capabilities }: BackendDescriptor, family: string): boolean =>
  capabilities.copyDriver?.deviceFamilies.some((one) => one === family || one === "*") === true

/** The registered wires between hosts, in the order in which "auto" takes them. */
export const wiresOf = (registry: BackendRegistryShape): ReadonlyArray<BackendDescriptor & { wireOrder: number }> =>
  registry.descriptors
    .filter((one): one is BackendDescriptor & { wireOrder: number } => one.wireOrder !== undefined)
    .sort((a, b) => a.wireOrder - b.wireOrder || (a.name < b.name ? -1 : 1))

/** The registered wires for memory of this family, by themselves or by way of host buffers. */
const joinableWires = (
  registry: BackendRegistryShape,
  family: string,
  stagingBytes: number | undefined
): ReadonlyArray<JoinableWire> =>
  wiresOf(registry).flatMap((descriptor): ReadonlyArray<JoinableWire> => {
    const { name, wireOrder: order, copyDriver, stagedDriver } = descriptor
    const layerOf = (build: (options: BackendOptions) => ReturnType<NonNullable<typeof copyDriver>>) => ({
      driver: (options: unknown) =>
        Layer.unwrap(
          Effect.map(decodeOptions(descriptor, options), (decoded) => boundedLayer(name, "copyDriver", build(decoded)))
        )
    })
    if (copyDriver !== undefined && reaches(descriptor, family)) return [{ name, order, ...layerOf(copyDriver) }]
    if (stagedDriver === undefined) return []
    const staging = stagingBytes === undefined ? {} : { stagingBytes }
    const staged = layerOf((options) => stagedDriver(options, engineOf(registry, descriptor, options), staging))
    return [{ name, order, isStaged: true, ...staged }]
  })

/** The engine of a device whose memory a driver of the host is to move: that of the first backend which claims the family. */
const deviceEngine = Effect.fnUntraced(function* (
  registry: BackendRegistryShape,
  host: BackendDescriptor,
  family: string,
  given: unknown
): Effect.fn.Return<Layer.Layer<TensorEngine, BackendError>, BackendError> {
  const owner = registry.descriptors.find(
    ({ deviceFamilies, tensorEngine }) => tensorEngine !== undefined && deviceFamilies.includes(family)
  )
  if (owner === undefined) {
    return yield* backendError("UnknownBackend", {
      backend: host.name,
      detail: `It moves memory of the host, and no registered backend has an engine for device family ${family}.`,
      remedy: "Register the package that serves the family."
    })
  }
  const options = yield* decodeOptions(owner, given ?? {})
  return boundedLayer(owner.name, "tensorEngine", owner.tensorEngine!(options))
})

/**
 * `CopyService` of the chosen backend, together with the engine for its memory. With "auto" a backend that joins others takes
 * for each peer the first path that both ends have. Where the backend moves memory of the host
 * alone, that of another family passes through a ring of host buffers (`stagedDriver` of its descriptor).
 */
export const copyService = (
  choice: CopyServiceChoice
): Layer.Layer<CopyService | TensorEngine, BackendError, BackendRegistry | ProcessGroup> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const name = yield* valueOf(choice.backend)
      const family = choice.deviceFamily ?? "cpu"
      const { stagingBytes } = choice
      if (stagingBytes !== undefined && !(Number.isSafeInteger(stagingBytes) && stagingBytes > 0)) {
        return yield* backendError("InvalidOptions", {
          detail: `${stagingBytes} staging bytes are not a positive whole number.`,
          remedy: "Give a number of bytes, or leave stagingBytes out."
        })
      }
      const { descriptor } = yield* chooseCopyBackend(name, family)
      const registry = yield* BackendRegistry
      const joined =
        name === "auto" && descriptor.join !== undefined && reaches(descriptor, family)
          ? yield* descriptor.join(choice.options ?? {}, joinableWires(registry, family, stagingBytes))
          : undefined
      const options = joined?.options ?? (yield* decodeOptions(descriptor, choice.options ?? {}))
      if (reaches(descriptor, family)) {
        const engine = descriptor.tensorEngine?.(options) ?? familyEngine(registry, family)
        const driver = boundedLayer(descriptor.name, "copyDriver", joined?.driver ?? descriptor.copyDriver!(options))
        return copyServiceLayer(driver, choice).pipe(
          Layer.provideMerge(boundedLayer(descriptor.name, "tensorEngine", engine))
        )
      }
      if (descriptor.stagedDriver === undefined) {
        return yield* backendError("NotOffered", {
          backend: descriptor.name,
          detail: `Its driver does not move memory of device family ${family}, nor stages it.`,
          remedy: `Choose a backend for ${family}, or one of the host that stages.`
        })
      }
      const device = yield* deviceEngine(registry, descriptor, family, choice.engineOptions)
      const host = boundedLayer(descriptor.name, "tensorEngine", engineOf(registry, descriptor, options))
      const staged = descriptor.stagedDriver(options, host, stagingBytes === undefined ? {} : { stagingBytes })
      return copyServiceLayer(boundedLayer(descriptor.name, "copyDriver", staged), choice).pipe(
        Layer.provideMerge(device)
      )
    })
  )

/** The engine for memory of a device family. */
export const tensorEngine = (choice: {
  readonly deviceFamily: string
  readonly backend?: string
  readonly options?: unknown
}): Layer.Layer<TensorEngine, BackendError, BackendRegistry> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const registry = yield* BackendRegistry
      const descriptor = yield* registry.forFamily(choice.deviceFamily, "tensorEngine", choice.backend)
      const options = yield* decodeOptions(descriptor, choice.options ?? {})
      return boundedLayer(descriptor.name, "tensorEngine", descriptor.tensorEngine!(options))
    })
  )

/** Host memory that other processes can map. */
export const hostMemory = (
  choice: { readonly backend?: string; readonly options?: unknown } = {}
): Layer.Layer<HostMemory, BackendError, BackendRegistry> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const registry = yield* BackendRegistry
      const descriptor = yield* registry.forFamily("cpu", "hostMemory", choice.backend)
      const options = yield* decodeOptions(descriptor, choice.options ?? {})
      return boundedLayer(descriptor.name, "hostMemory", descriptor.hostMemory!(options))
    })
  )

/** Where replay batches go, and by which backend. */
export interface ReplayTransferChoice {
  /** Where batches go, as `cuda:0`. */
  readonly device: OrConfig<string>
  /** Slots that a batch rotates through; at least 1. */
  readonly ringDepth: OrConfig<number>
  /** How long a wait may last in which nothing happens; 60 seconds by default. */
  readonly deadline?: Duration.Input
  /** Keeps the device's own time of each copy where the backend can; false by default, as it costs a little of the link. */
  readonly timing?: boolean
  /** For so long a wait asks the device without sleeping, which uses a core; see `ReplayTransferBusyPoll`. */
  readonly busyPoll?: Duration.Input
  readonly backend?: string
  readonly options?: unknown
}

const invalidChoice = (detail: string): BackendError =>
  backendError("InvalidOptions", {
    op: "replayTransfer",
    detail,
    remedy: `Write a device as family or family:index, a ring depth of 1 to ${maxRingDepth}, a deadline above 0.`
  })

/** The replay backend of the device's family. Settings and refusals are the same for all families. */
export const replayTransfer = (
  choice: ReplayTransferChoice
): Layer.Layer<ReplayTransferBackend, BackendError, BackendRegistry> =>
  Layer.unwrap(
    Effect.gen(function* () {
      const registry = yield* BackendRegistry
      const text = yield* valueOf(choice.device)
      const ringDepth = yield* valueOf(choice.ringDepth)
      const device = parseDevice(text)
      if (device === undefined) return yield* invalidChoice(`"${text}" is not a device.`)
      if (!isRingDepth(ringDepth)) return yield* invalidChoice(`A ring depth of ${ringDepth} is not possible.`)
      const deadline =
        choice.deadline === undefined
          ? yield* ReplayTransferDeadline
          : Option.getOrUndefined(Duration.fromInput(choice.deadline))
      if (deadline === undefined || Duration.toMillis(deadline) <= 0) {
        return yield* invalidChoice(`${String(choice.deadline)} is not a valid deadline.`)
      }
      const busyPoll = choice.busyPoll === undefined ? undefined : Option.getOrNull(Duration.fromInput(choice.busyPoll))
      if (busyPoll === null) return yield* invalidChoice(`${String(choice.busyPoll)} is not a valid time to poll.`)
      const descriptor = yield* registry.forFamily(device.family, "replayTransfer", choice.backend)
      yield* requireAvailable(descriptor)
      const options = yield* decodeOptions(descriptor, choice.options ?? {})
      const engine = familyEngine(registry, device.family)
      const backend = descriptor.replayTransfer!(device, ringDepth, options, engine)
      return boundedLayer(descriptor.name, "replayTransfer", backend).pipe(
        Layer.provide(Layer.succeed(ReplayTransferDeadline, deadline)),
        Layer.provide(choice.timing === undefined ? Layer.empty : Layer.succeed(ReplayTransferTiming, choice.timing)),
        Layer.provide(busyPoll === undefined ? Layer.empty : Layer.succeed(ReplayTransferBusyPoll, busyPoll))
      )
    })
  )

/** The same under the name that replay pipelines know. */
export const buildReplayTransferBackend = replayTransfer
