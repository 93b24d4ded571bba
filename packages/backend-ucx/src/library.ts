// SPDX-License-Identifier: Apache-2.0
/**
 * Where UCX is looked for, and what is said where it is not found.
 *
 * Invariant: a process has one UCX at most, and keeps it.
 */
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { resultOf } from "@tensorferry/native/NativeAddon"
import * as Effect from "effect/Effect"
import { type Addon, backendName, type LibraryAnswer, type NativeLibrary } from "./Addon.ts"
import type { UcxOptions } from "./options.ts"

/** UCX as it was opened. */
export type OpenedLibrary = Required<Omit<LibraryAnswer, "tried" | "problem">>

/** What the reader can do where there is none. */
export const installUcx =
  "Install UCX 1.13 or later (Debian package libucx0), or name libucp by the option library or TENSORFERRY_UCX_LIBRARY."

/** File names, in the order in which they are tried. */
export const libraryNames = ({ library }: UcxOptions): ReadonlyArray<string> => {
  const chosen = library ?? process.env.TENSORFERRY_UCX_LIBRARY
  return chosen === undefined || chosen === "" ? ["libucp.so.0"] : [chosen]
}

/** An error before there is a driver. */
export const unavailable = (op: string, detail: string, remedy: string, nativeCode = 0): BackendError =>
  backendError("Unavailable", {
    backend: backendName,
    op,
    detail,
    remedy,
    scope: "service",
    ...(nativeCode === 0 ? {} : { nativeCode })
  })

/** Opens UCX. Fails with Unavailable, which says what is wrong with each file that was tried. */
export const openLibrary = (
  addon: Addon,
  options: UcxOptions
): Effect.Effect<OpenedLibrary & { readonly library: NativeLibrary }, BackendError> =>
  Effect.suspend(() =>
    Effect.matchEffect(Effect.fromResult(resultOf(addon.openLibrary(libraryNames(options)))), {
      onFailure: ({ detail }) => Effect.fail(unavailable("open UCX", detail, installUcx)),
      onSuccess: ({ library, path, version, interface: spoken, problem }) =>
        library === undefined || path === undefined || version === undefined || spoken === undefined
          ? Effect.fail(unavailable("open UCX", `${problem}.`, installUcx))
          : Effect.succeed({ library, path, version, interface: spoken })
    })
  )
