// SPDX-License-Identifier: Apache-2.0
/**
 * What native addons have in common: how they answer, and how they are found and checked. Loads nothing by itself.
 *
 * Invariant: native functions never throw; they answer `Ok` with a value, or a code with what failed. A missing, foreign
 * or outdated addon is a `BackendError` "Unavailable".
 */

import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { dtypes } from "@tensorferry/core/base/DType"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** What kind of failure it is, in words that all addons share; `nativeCode` has the system's own number. */
export type NativeCode =
  | "InvalidArgument"
  | "InvalidHandle"
  | "OutOfMemory"
  | "NotFound"
  | "AlreadyExists"
  | "PermissionDenied"
  | "PeerGone"
  | "Cancelled"
  | "DeadlineExceeded"
  | "Unsupported"
  | "SystemFailure"

/** What a native function answers where it fails. */
export interface NativeFailure {
  readonly code: NativeCode
  /** The call that failed, as in a manual page. */
  readonly op: string
  readonly detail: string
  /** errno, or 0. */
  readonly nativeCode: number
  /** Which entry of a table failed, or -1. */
  readonly item: number
}

/** What a native function answers. */
export type NativeAnswer<A> = { readonly code: "Ok"; readonly value: A } | NativeFailure

/** An object that lives in the addon; `Kind` keeps them apart in types, tags do so at run time. */
export interface NativeHandle<Kind extends string> {
  readonly nativeKind: Kind
}

/** Called once, when a job has ended. */
export type Done<A> = (answer: NativeAnswer<A>) => void

/** An answer as a `Result`. */
export const resultOf = <A>(answer: NativeAnswer<A>): Result.Result<A, NativeFailure> =>
  answer.code === "Ok" ? Result.succeed(answer.value) : Result.fail(answer)

/** What every addon states about itself. */
export interface AddonIdentity {
  /** Functions and their meaning; raised in the addon and in its package together. */
  readonly abiVersion: number
  /** Type numbers are positions in a list that both sides keep: unequal lists would mix up types. */
  readonly dtypes: ReadonlyArray<string>
}

/** How one package loads its addon. */
export interface AddonLoader<A> {
  /** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
  readonly folder: string
  /** Loads the addon, once per process. Fails with "Unavailable"; a later call tries again. */
  readonly load: Effect.Effect<A, BackendError>
  /** Loads the addon of another folder, for tests of other builds. */
  readonly loadFrom: (folder: string) => Effect.Effect<A, BackendError>
}

/** One that nobody built is the usual case, and is said without the words of the loader. */
const whyNot = (folder: string, cause: unknown): string => {
  const [said] = String(cause).split("\n")
  return said!.includes("No native build was found")
    ? `The addon of ${folder} is not built for ${process.platform}-${process.arch}.`
    : `No addon could be loaded from ${folder}: ${said}.`
}

/**
 * How the package of a backend loads its addon of this version. `module` is the URL of one of its modules, in `src` or
 * `dist`; the package depends on node-gyp-build, and opening may throw.
 */
export const addonLoader = <A extends AddonIdentity>(
  backend: string,
  module: string,
  abiVersion: number
): AddonLoader<A> => {
  const ownFolder = fileURLToPath(new URL("..", module))
  const open = (folder: string): unknown => createRequire(module)("node-gyp-build")(folder)

  const unavailable = (detail: string): BackendError =>
    backendError("Unavailable", {
      backend,
      op: "load addon",
      detail,
      remedy: `Run \`npm run build:native\` in ${ownFolder} (it needs CMake and a C++20 compiler), then try again.`,
      scope: "service"
    })

  const check = (candidate: unknown): Result.Result<A, BackendError> => {
    const addon = candidate as Partial<AddonIdentity> | null
    if (addon?.abiVersion !== abiVersion) {
      return Result.fail(
        unavailable(`The addon has version ${addon?.abiVersion ?? "none"}, this package needs ${abiVersion}.`)
      )
    }
    return addon.dtypes?.join() === dtypes.join()
      ? Result.succeed(candidate as A)
      : Result.fail(unavailable("The addon knows other element types than @tensorferry/core."))
  }

  const loadFrom = (folder: string): Result.Result<A, BackendError> =>
    Result.flatMap(
      Result.try({
        try: () => open(folder),
        catch: (cause) => unavailable(whyNot(folder, cause))
      }),
      check
    )

  let loaded: A | undefined
  return {
    folder: ownFolder,
    load: Effect.suspend(() => {
      if (loaded !== undefined) return Effect.succeed(loaded)
      return Effect.tap(Effect.fromResult(loadFrom(ownFolder)), (addon) =>
        Effect.sync(() => {
          loaded = addon
        })
      )
    }),
    loadFrom: (folder) => Effect.suspend(() => Effect.fromResult(loadFrom(folder)))
  }
}

/** Ends the probe of a backend whose addon cannot be loaded from its package's folder. */
export const orUnavailable = (folder: string) =>
  Effect.catch(({ reason }: BackendError) =>
    Effect.succeed({
      _tag: "Unavailable" as const,
      tried: [`${folder}build`, `${folder}prebuilds`],
      cause: reason.detail,
      remedy: reason.remedy
    })
  )
