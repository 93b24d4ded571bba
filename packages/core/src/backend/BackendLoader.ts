// SPDX-License-Identifier: Apache-2.0
/**
 * Finds backend packages as the application would import them and reads their descriptors. No addon is opened.
 *
 * A package names its descriptors in package.json: `"tensorferry": { "descriptors": "./dist/index.js" }`, a file inside
 * the package that exports `descriptors`, an array. It may state `"apiVersion": 1` beside it, so that a core of another
 * version refuses the package by that number and not by what its code misses. Importing runs that file: load only packages that you would import.
 */
import { readFile, stat } from "node:fs/promises"
import { createRequire, findPackageJSON } from "node:module"
import * as path from "node:path"
import { fileURLToPath, pathToFileURL } from "node:url"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import { messageOf, placeInStack } from "../base/UnknownCause.ts"
import { endsWithin } from "../service/endsWithin.ts"
import {
  type BackendDescriptor,
  type BackendError,
  backendApiVersion,
  backendError,
  checkDescriptor,
  requireApiVersion
} from "./BackendDescriptor.ts"
import { BackendRegistry, makeRegistry } from "./BackendRegistry.ts"
import { notePackage } from "./Probe.ts"

const PackageJson = Schema.Struct({
  tensorferry: Schema.Struct({
    descriptors: Schema.NonEmptyString,
    /** Version of the contracts, readable without running code. */
    apiVersion: Schema.optionalKey(Schema.Int)
  }),
  publishConfig: Schema.optionalKey(Schema.Unknown)
})

const decodeManifest = Schema.decodeUnknownResult(PackageJson)

const loadFailed = (name: string, detail: string, remedy: string, file?: string) =>
  backendError("LoadFailed", { backend: name, detail, remedy, ...(file === undefined ? {} : { file }) })

/** Where in its code an import failed, as far as Node says. The last to stand in a stack is this file itself. */
const placeOf = (cause: unknown): string | undefined => {
  const place = cause instanceof Error ? placeInStack(cause.stack ?? "") : undefined
  return place?.startsWith(fileURLToPath(import.meta.url)) ? undefined : place
}

/** What an import that failed says: the fault and its place. Node gives no place for a syntax error. */
const importFailed = (name: string, file: string, cause: unknown): BackendError => {
  const text = messageOf(cause)
  const place = placeOf(cause)
  // A name that an imported module does not export is a SyntaxError too.
  const isUnparsed = cause instanceof SyntaxError && !cause.message.startsWith("The requested module")
  const where = place !== undefined ? ` (at ${place})` : isUnparsed ? ` (in ${file} or a file that it imports)` : ""
  return loadFailed(
    name,
    `Importing its descriptors failed: ${text}${where}.`.replace(/\.\.$/, "."),
    isUnparsed
      ? `Correct the package's code${place === undefined ? `; node --check ${file} shows the line` : ""}.`
      : importRemedy(text),
    file
  )
}

/** `./spool` or `/opt/spool`: a package by where it lies, which need not be installed. */
const isFolder = (name: string): boolean => /^\.{0,2}\//.test(name)

/** What an import that failed says about the core that the package was written for. */
const importRemedy = (text: string): string => {
  if (!text.includes("@tensorferry/core")) return "See the package's own requirements."
  return /Cannot find package/.test(text)
    ? "Install @tensorferry/core where the package finds it."
    : `The package needs modules that this @tensorferry/core (contract version ${backendApiVersion}) lacks: upgrade @tensorferry/core, or take an older version of the package.`
}

/** The package.json of a package as `from` (a file URL) would import it, or of a folder relative to it. */
export const findManifest = (name: string, from: string): Effect.Effect<string, BackendError> =>
  Effect.try({
    try: () =>
      (isFolder(name) ? undefined : findPackageJSON(name, from)) ??
      createRequire(from).resolve(`${name.replace(/\/$/, "")}/package.json`),
    catch: (cause) =>
      loadFailed(
        name,
        `The package was not found from ${from}: ${messageOf(cause)}`,
        "Install it next to the application, or begin a path with ./ or /."
      )
  })

/** Seconds after which an import counts as one that never ends. */
const importSeconds = 60

/** The descriptors of one package, found from `from` (a file URL of the application, as `import.meta.url`). */
export const loadBackendPackage = Effect.fn("BackendLoader.load")(function* (
  name: string,
  from: string
): Effect.fn.Return<ReadonlyArray<BackendDescriptor>, BackendError> {
  const manifestPath = yield* findManifest(name, from)
  const text = yield* Effect.tryPromise({
    try: () => readFile(manifestPath, "utf8"),
    catch: (cause) =>
      loadFailed(name, `Its package.json cannot be read: ${messageOf(cause)}`, "Install the package again.")
  })
  const json = yield* Effect.try({
    try: (): unknown => JSON.parse(text),
    catch: (cause) =>
      loadFailed(
        name,
        `Its package.json is not JSON: ${messageOf(cause)}.`,
        "Correct it at this place, or install the package again.",
        manifestPath
      )
  })
  const manifest = decodeManifest(json)
  if (Result.isFailure(manifest)) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: 'Its package.json has no "tensorferry": { "descriptors": FILE }.',
      remedy: "Use a package that provides a backend."
    })
  }
  const { apiVersion } = manifest.success.tensorferry
  if (apiVersion !== undefined) yield* requireApiVersion(name, apiVersion)
  const folder = path.dirname(manifestPath)
  const file = path.resolve(folder, manifest.success.tensorferry.descriptors)
  if (!file.startsWith(folder + path.sep)) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: `Its descriptors file ${manifest.success.tensorferry.descriptors} is outside of the package.`,
      remedy: "Name a file of the package."
    })
  }
  const isThere = yield* Effect.promise(() =>
    stat(file).then(
      (found) => found.isFile(),
      () => false
    )
  )
  if (!isThere) {
    return yield* loadFailed(
      name,
      `Its package.json names ${manifest.success.tensorferry.descriptors} as its descriptors, and the package has no such file.`,
      "Build the package if that makes the file, or correct tensorferry.descriptors.",
      file
    )
  }
  const module: unknown = yield* endsWithin(
    Effect.tryPromise({
      try: () => import(pathToFileURL(file).href),
      catch: (cause) => importFailed(name, file, cause)
    }),
    Duration.seconds(importSeconds),
    Effect.fail(
      loadFailed(
        name,
        `The import of its descriptors did not end within ${importSeconds} seconds.`,
        "Open libraries and connections in layers and probes, never on import.",
        file
      )
    )
  )
  const exported: unknown = (module as { readonly descriptors?: unknown }).descriptors
  if (!Array.isArray(exported) || exported.length === 0) {
    return yield* backendError("InvalidDescriptor", {
      backend: name,
      detail: "It does not export `descriptors`, an array of backend descriptors.",
      remedy: "Use a version of the package made for this contract."
    })
  }
  return yield* Effect.forEach(exported as ReadonlyArray<unknown>, (value, at) =>
    Effect.tap(checkDescriptor(value, `descriptors[${at}] of ${name}`), (descriptor) =>
      Effect.sync(() => notePackage(descriptor, name))
    )
  )
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
