// SPDX-License-Identifier: Apache-2.0
/**
 * The backends that an application has at hand, and which of them serves a name or a device family.
 *
 * Invariant: names are unique, and so are claims on a device family. A backend that claims `*` serves every family that
 * nobody else claims.
 */
import * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import { type BackendDescriptor, type BackendError, backendError, validateDescriptor } from "./BackendDescriptor.ts"

/** A service that a descriptor may offer. */
export type BackendServiceName = "tensorEngine" | "copyDriver" | "replayTransfer" | "hostMemory"

/** Finds registered backends. Fails with UnknownBackend, AmbiguousBackend or NotOffered. */
export interface BackendRegistryShape {
  /** In order of preference. */
  readonly descriptors: ReadonlyArray<BackendDescriptor>
  /** The backend of this name. */
  readonly byName: (name: string) => Effect.Effect<BackendDescriptor, BackendError>
  /** The backend that offers a service for a device family; one must be named where several claim it. */
  readonly forFamily: (
    family: string,
    service: BackendServiceName,
    name?: string
  ) => Effect.Effect<BackendDescriptor, BackendError>
}

/** The service that knows the backends of an application, by name and by device family. */
export class BackendRegistry extends Context.Service<BackendRegistry, BackendRegistryShape>()(
  "@tensorferry/core/backend/BackendRegistry"
) {}

const names = (descriptors: ReadonlyArray<BackendDescriptor>): string =>
  descriptors.map((descriptor) => descriptor.name).join(", ") || "none"

/** Families that are claimed by name. */
const familiesOf = (descriptors: ReadonlyArray<BackendDescriptor>): string =>
  [...new Set(descriptors.flatMap(({ deviceFamilies }) => deviceFamilies))]
    .filter((family) => family !== "*")
    .sort()
    .join(", ") || "no family"

/** Checks each descriptor and indexes all by name. Fails with AmbiguousBackend where two share a name. */
export const makeRegistry = Effect.fnUntraced(function* (
  descriptors: ReadonlyArray<BackendDescriptor>
): Effect.fn.Return<BackendRegistryShape, BackendError> {
  const byName = new Map<string, BackendDescriptor>()
  for (const descriptor of descriptors) {
    yield* validateDescriptor(descriptor)
    if (byName.has(descriptor.name)) {
      return yield* backendError("AmbiguousBackend", {
        backend: descriptor.name,
        detail: "Two registered backends have this name.",
        remedy: "Register one of them, or rename the other."
      })
    }
    byName.set(descriptor.name, descriptor)
  }
  const find = (name: string): Effect.Effect<BackendDescriptor, BackendError> => {
    const known = byName.get(name)
    return known === undefined
      ? Effect.fail(
          backendError("UnknownBackend", {
            backend: name,
            detail: `Registered backends: ${names(descriptors)}.`,
            remedy: "Register the package that provides it, or choose one of these."
          })
        )
      : Effect.succeed(known)
  }
  return {
    descriptors,
    byName: find,
    forFamily: (family, service, name) =>
      Effect.gen(function* () {
        if (name !== undefined) {
          const named = yield* find(name)
          if (named[service] !== undefined) return named
          return yield* backendError("NotOffered", {
            backend: name,
            detail: `It does not offer ${service}.`,
            remedy: `Choose one of: ${names(descriptors.filter((descriptor) => descriptor[service] !== undefined))}.`
          })
        }
        const offering = descriptors.filter((descriptor) => descriptor[service] !== undefined)
        const claiming = offering.filter((descriptor) => descriptor.deviceFamilies.includes(family))
        const candidates =
          claiming.length > 0 ? claiming : offering.filter((descriptor) => descriptor.deviceFamilies.includes("*"))
        const [first, second] = candidates
        if (first === undefined) {
          return yield* backendError("UnknownBackend", {
            detail: `No registered backend offers ${service} for device family ${family}; registered: ${names(descriptors)}.`,
            remedy: `Choose one of ${familiesOf(offering)}, or register a package that serves the family.`
          })
        }
        if (second !== undefined) {
          return yield* backendError("AmbiguousBackend", {
            backend: first.name,
            detail: `Device family ${family} is claimed by ${names(candidates)}.`,
            remedy: "Name the backend to use."
          })
        }
        return first
      })
  }
})

/** A registry of these backends. */
export const registryLayer = (
  descriptors: ReadonlyArray<BackendDescriptor>
): Layer.Layer<BackendRegistry, BackendError> => Layer.effect(BackendRegistry, makeRegistry(descriptors))
