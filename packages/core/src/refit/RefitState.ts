// SPDX-License-Identifier: Apache-2.0
/**
 * The states of a refit session, as data. Pure: what a session does follows from what `step` answers.
 *
 * Weights: `Empty` (nothing was ever committed, or it was dropped) -> `Ready` by a commit. `Ready` -> `Asleep` by sleep,
 * -> `Ready` by wake where the weights were kept, -> `Empty` by wake where they were dropped: only a commit makes them
 * usable again. `Broken` after a commit that failed while it wrote over the weights in place; only a full commit leads out.
 *
 * Updates: none -> open by `begin` -> none by a commit or `abort`. One is open at a time. Commands that do not fit answer a
 * refusal, and the state stays as it was. An update may be open while weights are used, asleep or missing.
 *
 * | command | refused where |
 * | --- | --- |
 * | begin | an update is open (`AlreadyOpen`, naming it); a patch whose base is not the version in use (`WrongBase`) |
 * | add, commit, abort | no update is open, or another than named (`NotOpen`) |
 * | use | weights are not `Ready` (`NotReady`) |
 * | sleep | weights are not `Ready` (`WrongState`) |
 * | wake | weights are not `Asleep` (`WrongState`) |
 * | relabel | weights are not `Ready` (`NotReady`) |
 *
 * A version is its content: its identity is a digest, its label a name that may change and moves nothing else.
 */
import * as Result from "effect/Result"
import type { Digest } from "../base/Digest.ts"
import type { RefitReason } from "./RefitError.ts"

/** One version of the weights, named by its content. */
export interface RefitVersion {
  /** Digest of all tensors. */
  readonly id: Digest
  readonly label: string
}

/** Whether weights can be used. `dropped` says that sleep gave up their contents. */
export type Weights =
  | { readonly _tag: "Empty" }
  | { readonly _tag: "Ready"; readonly version: RefitVersion }
  | { readonly _tag: "Asleep"; readonly version: RefitVersion; readonly dropped: boolean }
  | { readonly _tag: "Broken"; readonly detail: string }

/** The update under way, as `begin` stated it. */
export interface OpenUpdate {
  readonly id: string
  readonly label: string
  readonly kind: "full" | "patch"
  readonly base?: Digest
}

/** Where a session stands: the version in use, and the one that is under way. */
export interface RefitState {
  readonly weights: Weights
  readonly open: OpenUpdate | undefined
}

/** Nothing was committed, and no update is open. */
export const initialState: RefitState = { weights: { _tag: "Empty" }, open: undefined }

/** What a session is asked for. An undefined `id` is the update that is open. */
export type RefitCommand =
  | { readonly _tag: "Begin"; readonly update: OpenUpdate }
  | { readonly _tag: "Add" | "Commit" | "Abort"; readonly id: string | undefined }
  | { readonly _tag: "Use" }
  | { readonly _tag: "Sleep"; readonly drop: boolean }
  | { readonly _tag: "Wake" }
  | { readonly _tag: "Relabel"; readonly label: string }

/** Why `step` does not take a command: the fields of the session's error. */
export interface Refusal {
  readonly tag: RefitReason["_tag"]
  readonly detail: string
  readonly remedy: string
}

const refuse = (tag: Refusal["tag"], detail: string, remedy: string): Result.Result<never, Refusal> =>
  Result.fail({ tag, detail, remedy })

const describe = (weights: Weights): string => {
  switch (weights._tag) {
    case "Empty":
      return "nothing was loaded"
    case "Ready":
      return `version "${weights.version.label}" is in use`
    case "Asleep":
      return weights.dropped ? "the weights were dropped" : "the weights are asleep"
    case "Broken":
      return weights.detail
  }
}

const begin = (state: RefitState, update: OpenUpdate): Result.Result<RefitState, Refusal> => {
  if (state.open !== undefined) {
    return refuse("AlreadyOpen", `An update is already open (${state.open.id}).`, "Commit or abort it first.")
  }
  const { weights } = state
  const here = weights._tag === "Ready" || (weights._tag === "Asleep" && !weights.dropped) ? weights.version : undefined
  if (update.kind === "patch" && (here === undefined || here.id !== update.base)) {
    return refuse(
      "WrongBase",
      `The patch "${update.label}" has the base ${update.base ?? "none"}; here ${
        here === undefined ? describe(weights) : `"${here.label}" is ${here.id}`
      }.`,
      "Send a full update, or a patch for the version in use."
    )
  }
  return Result.succeed({ ...state, open: update })
}

/** The state after a command, or why it is refused. For a commit: where its update may be completed. */
export const step = (state: RefitState, command: RefitCommand): Result.Result<RefitState, Refusal> => {
  const { weights, open } = state
  switch (command._tag) {
    case "Begin":
      return begin(state, command.update)
    case "Add":
    case "Commit":
    case "Abort":
      if (open === undefined) return refuse("NotOpen", "No update is open.", "Begin one.")
      if (command.id !== undefined && command.id !== open.id) {
        return refuse("NotOpen", `The update ${command.id} is not open; ${open.id} is.`, "Name the open one.")
      }
      return Result.succeed(command._tag === "Abort" ? { ...state, open: undefined } : state)
    case "Use":
      return weights._tag === "Ready"
        ? Result.succeed(state)
        : refuse("NotReady", `There are no weights to use: ${describe(weights)}.`, "Commit an update, or wake them.")
    case "Sleep":
      return weights._tag === "Ready"
        ? Result.succeed({ ...state, weights: { _tag: "Asleep", version: weights.version, dropped: command.drop } })
        : refuse("WrongState", `Only weights in use can sleep; ${describe(weights)}.`, "Sleep once.")
    case "Wake":
      if (weights._tag !== "Asleep") {
        return refuse("WrongState", `Only sleeping weights can wake; ${describe(weights)}.`, "Sleep first.")
      }
      return Result.succeed({
        ...state,
        weights: weights.dropped ? { _tag: "Empty" } : { _tag: "Ready", version: weights.version }
      })
    case "Relabel":
      return weights._tag === "Ready"
        ? Result.succeed({ ...state, weights: { ...weights, version: { ...weights.version, label: command.label } } })
        : refuse("NotReady", `There is no version to label: ${describe(weights)}.`, "Commit an update first.")
  }
}

/** After a commit: its version is in use and its update closed. */
export const committed = (version: RefitVersion): RefitState => ({
  weights: { _tag: "Ready", version },
  open: undefined
})

/** After a commit that failed: the update is gone, and so are the weights where they were being written over. */
export const failed = (state: RefitState, brokenBecause?: string): RefitState => ({
  weights: brokenBecause === undefined ? state.weights : { _tag: "Broken", detail: brokenBecause },
  open: undefined
})
