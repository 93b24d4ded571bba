/**
 * A descriptor for a backend whose package exists but has no transfer code in this version: it offers no service, and its
 * probe says so together with what it found of the vendor's libraries. Names and options stay reserved.
 */
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { type BackendDescriptor, type BackendOptions, backendApiVersion } from "./BackendDescriptor.ts"
import { findLibrary } from "./LibrarySearch.ts"

export interface PlannedBackendInput {
  readonly name: string
  readonly deviceFamilies: ReadonlyArray<string>
  /** What the libraries are for, and their file names. */
  readonly libraries: ReadonlyArray<{ readonly purpose: string; readonly fileNames: ReadonlyArray<string> }>
  readonly folders?: ReadonlyArray<string>
}

const NoOptions: Schema.Codec<BackendOptions, unknown> = Schema.Struct({}) as unknown as Schema.Codec<
  BackendOptions,
  unknown
>

export const plannedBackend = (input: PlannedBackendInput): BackendDescriptor => ({
  name: input.name,
  apiVersion: backendApiVersion,
  deviceFamilies: input.deviceFamilies,
  capabilities: {},
  options: NoOptions,
  probe: Effect.sync(() => {
    const searches = input.libraries.map((library) => ({
      purpose: library.purpose,
      search: findLibrary(library.fileNames, input.folders)
    }))
    const missing = searches.filter(({ search }) => search.found === undefined).map(({ purpose }) => purpose)
    const present = searches.flatMap(({ purpose, search }) =>
      search.found === undefined ? [] : [`${purpose} at ${search.found}`]
    )
    const libraries = [
      ...(missing.length === 0 ? [] : [`not found: ${missing.join(", ")}`]),
      ...(present.length === 0 ? [] : [`found: ${present.join(", ")}`])
    ].join("; ")
    return {
      _tag: "Unavailable" as const,
      tried: searches.flatMap(({ search }) => search.tried),
      cause: `This version of the package contains no transfer code (${libraries}).`,
      remedy: "Use a backend that `tensorferry backends` lists as available."
    }
  })
})
