/**
 * Finds backend packages as the application would import them and reads their descriptors. No addon is opened.
 *
 * A package names its descriptors in package.json: `"tensorferry": { "descriptors": "./dist/index.js" }`, a file inside
 * the package that exports `descriptors`, an array. Importing runs that file: load only packages that you would import.
 */
import { readFile } from "node:fs/promises"
import { createRequire, findPackageJSON } from "node:module"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { type BackendDescriptor, type BackendError, backendError, validateDescriptor } from "./BackendDescriptor.ts"
import { BackendRegistry, makeRegistry } from "./BackendRegistry.ts"

const PackageJson = Schema.Struct({
  tensorferry: Schema.Struct({ descriptors: Schema.NonEmptyString }),
  publishConfig: Schema.optionalKey(Schema.Unknown)
})

const loadFailed = (name: string, detail: string, remedy: string) =>
  backendError("LoadFailed", { backend: name, detail, remedy })

/** A message of an unknown failure, for people. */
const reasonText = (cause: unknown): string => (cause instanceof Error ? cause.message : String(cause))

const looksLikeDescriptor = (value: unknown): value is BackendDescriptor =>
  typeof value === "object" &&
  value !== null &&
  typeof (value as { name?: unknown }).name === "string" &&
  typeof (value as { apiVersion?: unknown }).apiVersion === "number" &&
  Array.isArray((value as { deviceFamilies?: unknown }).deviceFamilies) &&
  typeof (value as { capabilities?: unknown }).capabilities === "object" &&
  (value as { capabilities?: unknown }).capabilities !== null &&
  Schema.isSchema((value as { options?: unknown }).options) &&
  Effect.isEffect((value as { probe?: unknown }).probe)

/** The descriptors of one package, found from `from` (a file URL of the application, as `import.meta.url`). */
export const loadBackendPackage = Effect.fn("BackendLoader.load")(function* (
  name: string,
  from: string
): Effect.fn.Return<ReadonlyArray<BackendDescriptor>, BackendError> {
  const manifestPath = yield* Effect.try({
    try: () => findPackageJSON(name, from) ?? createRequire(from).resolve(`${name}/package.json`),
    catch: (cause) =>
      loadFailed(
        name,
        `The package was not found from ${from}: ${reasonText(cause)}`,
        "Install it next to the application."
      )
  })
  const text = yield* Effect.tryPromise({
    try: () => readFile(manifestPath, "utf8"),
    catch: (cause) =>
      loadFailed(name, `Its package.json cannot be read: ${reasonText(cause)}`, "Install the package again.")
  })
  const manifest = Schema.decodeResult(Schema.fromJsonString(PackageJson))(text)
  if (Result.isFailure(manifest)) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: 'Its package.json has no "tensorferry": { "descriptors": FILE }.',
      remedy: "Use a package that provides a backend."
    })
  }
  const folder = path.dirname(manifestPath)
  const file = path.resolve(folder, manifest.success.tensorferry.descriptors)
  if (!file.startsWith(folder + path.sep)) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: `Its descriptors file ${manifest.success.tensorferry.descriptors} is outside of the package.`,
      remedy: "Name a file of the package."
    })
  }
  const module: unknown = yield* Effect.tryPromise({
    try: () => import(pathToFileURL(file).href),
    catch: (cause) =>
      loadFailed(name, `Importing its descriptors failed: ${reasonText(cause)}`, "See the package's own requirements.")
  })
  const exported: unknown = (module as { readonly descriptors?: unknown }).descriptors
  if (!Array.isArray(exported) || exported.length === 0 || !exported.every(looksLikeDescriptor)) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: "It does not export `descriptors`, an array of backend descriptors.",
      remedy: "Use a version of the package made for this contract."
    })
  }
  return yield* Effect.forEach(exported, validateDescriptor)
})

/** A registry of the given descriptors and those of the named packages. */
export const loaderLayer = (options: {
  readonly packages: ReadonlyArray<string>
  readonly from: string
  readonly descriptors?: ReadonlyArray<BackendDescriptor>
}): Layer.Layer<BackendRegistry, BackendError> =>
  Layer.effect(
    BackendRegistry,
    Effect.gen(function* () {
      const loaded = yield* Effect.forEach(options.packages, (name) => loadBackendPackage(name, options.from))
      return yield* makeRegistry([...(options.descriptors ?? []), ...loaded.flat()])
    })
  )
