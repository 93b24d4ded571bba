// SPDX-License-Identifier: Apache-2.0
/**
 * What an agent needs for tensors on GPUs: an engine on its device, the transport over it, and the importer of clients'
 * memory. With "auto" nothing is opened before the first such tensor comes.
 */

import { type DeviceImport, importerOver, type TensorImporter } from "@tensorferry/bus"
import type { DeviceTransports } from "@tensorferry/bus/agent/Pair"
import { type BusError, busError } from "@tensorferry/bus/BusError"
import type { BackendDescriptor, BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { chooseCopyBackend } from "@tensorferry/core/backend/BackendLayer"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { copyServiceLayer } from "@tensorferry/core/copy/CopyServiceLayer"
import { TensorEngine, type TensorEngineShape } from "@tensorferry/core/service/TensorEngine"
import { makeMemoryImport } from "@tensorferry/gpu/Import"
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import type * as Scope from "effect/Scope"

/** As PyTorch calls them all; a backend for them serves both vendors. */
const families = ["cuda", "rocm"]

export interface DeviceChoice {
  /** A backend's name, or "auto". */
  readonly backend: string
  /** Number of the agent's device; by default as launchers say. */
  readonly device: number | undefined
  readonly deadline: Duration.Duration
}

const servesGpus = ({ deviceFamilies }: BackendDescriptor): boolean =>
  families.some((family) => deviceFamilies.includes(family))

/** Whether a named backend is one for GPUs, so that host memory is left to another. */
export const isForGpus = (name: string): Effect.Effect<boolean, BackendError, BackendRegistry> =>
  name === "auto"
    ? Effect.succeed(false)
    : Effect.flatMap(BackendRegistry, (registry) => Effect.map(registry.byName(name), servesGpus))

interface Opened {
  readonly descriptor: BackendDescriptor
  readonly options: { readonly device?: number }
  readonly engine: TensorEngineShape
}

const openEngine = Effect.fnUntraced(function* ({ backend, device }: DeviceChoice) {
  const { descriptor, reason } = yield* chooseCopyBackend(backend, families[0]!)
  if (!servesGpus(descriptor) || descriptor.tensorEngine === undefined) {
    return yield* backendError("Unavailable", {
      backend: descriptor.name,
      scope: "service",
      detail: `No backend can move memory of GPUs here. ${reason}`,
      remedy: "See what is missing with `tensorferry doctor`."
    })
  }
  const options = device === undefined ? {} : { device }
  const context = yield* Layer.build(descriptor.tensorEngine(options))
  return { descriptor, options, engine: yield* Effect.provideContext(TensorEngine, context) } satisfies Opened as Opened
})

const unsupported = (detail: string, remedy: string): BusError =>
  busError("UnsupportedTensor", { op: "RegisterTensors", detail, remedy })

const importsOf = ({ descriptor, engine }: Opened): Effect.Effect<DeviceImport, BusError> =>
  Option.match(makeMemoryImport(engine), {
    onNone: () =>
      Effect.fail(
        unsupported(
          `The backend ${descriptor.name} cannot use memory of other processes.`,
          "Start the agent with --backend cuda."
        )
      ),
    onSome: ({ open }) =>
      Effect.succeed({ open, empty: Effect.map(engine.allocate("uint8", [0]), ({ storage }) => storage) })
  })

/** Transports and importer; the engine goes with the scope. A backend that was named is opened at once. */
export const agentDevices = Effect.fnUntraced(function* (choice: DeviceChoice) {
  const opened = yield* Effect.cached(
    Effect.uninterruptible(
      Effect.provideContext(openEngine(choice), yield* Effect.context<BackendRegistry | Scope.Scope>())
    )
  )
  if (choice.backend !== "auto") yield* opened
  const imports = yield* Effect.cached(
    Effect.flatMap(
      Effect.mapError(opened, (error) =>
        unsupported(`The tensor lies on a GPU: ${error.message}`, error.reason.remedy)
      ),
      importsOf
    )
  )
  const transport = Layer.unwrap(
    Effect.map(opened, ({ descriptor, options, engine }) =>
      Layer.provideMerge(
        copyServiceLayer(descriptor.copyDriver!(options), { deadline: choice.deadline }),
        Layer.succeed(TensorEngine, engine)
      )
    )
  )
  return {
    deviceTransports: Object.fromEntries(families.map((family) => [family, transport])) as DeviceTransports,
    importer: {
      open: (tensor) => Effect.flatMap(imports, (devices) => importerOver(devices, choice.deadline).open(tensor))
    } satisfies TensorImporter["Service"]
  }
})
