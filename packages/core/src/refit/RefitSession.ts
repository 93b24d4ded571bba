// SPDX-License-Identifier: Apache-2.0
/**
 * Updates of weights that are in use: begin -> add (any number, any cutting) -> commit | abort. Until the commit nothing
 * that anybody uses changes; a commit is bound to its content, and one that brings nothing new changes nothing.
 *
 * What travels is collected in memory of its own, in the form of the wire; a commit writes the weights in use from it, once
 * per tensor, then rebuilds what was derived from them, once per cache, and only then is the new version in use. States and
 * refusals: `RefitState`; what an update has brought: `RefitUpdate`; what a commit comes to: `RefitCommit`; the weights in
 * their places: `RefitWeights`. Calls are serialized; `use` goes on meanwhile and reports every version that it saw
 * (`RefitReaders`).
 *
 * Memory: one copy in wire form beside the weights in use; with `exchange` a second place for the weights as well.
 */
import type * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type { Digest } from "../base/Digest.ts"
import type { Region } from "../base/Region.ts"
import type { AnyPlan } from "../planner/MeshOps.ts"
import { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "../reshard/executeReshardPlan.ts"
import type { ReshardError } from "../reshard/ReshardError.ts"
import type { CopyError, CopyService } from "../service/CopyService.ts"
import type { ProcessGroup } from "../service/ProcessGroup.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import type { Tensor } from "../tensor/Tensor.ts"
import { type TensorDict, tensorDict } from "../tensor/TensorDict.ts"
import { tensorDigest, tensorDigests } from "./ContentDigest.ts"
import type { DeltaFailure, DeltaReport, DeltaStep, DeltaUpdates } from "./DeltaUpdates.ts"
import { judgeCommit, paused } from "./RefitCommit.ts"
import { RefitDeltas } from "./RefitDeltas.ts"
import { causedBy, type RefitError, refitError } from "./RefitError.ts"
import { type Reading, RefitReaders, type Used } from "./RefitReaders.ts"
import { allocateWire, type RefitSpec, specFault } from "./RefitSpec.ts"
import {
  committed,
  failed,
  initialState,
  type RefitCommand,
  type RefitState,
  type RefitVersion,
  step
} from "./RefitState.ts"
import { RefitUpdate, type RefitWarning } from "./RefitUpdate.ts"
import { makeRefitWeights, type Place } from "./RefitWeights.ts"

/** What is to be known of an update before its first tensor. */
export interface BeginOptions {
  /** The name of the version, taken as it is now. */
  readonly label: string
  /** A full update covers every tensor; a patch says what changed against its base. `full` by default. */
  readonly kind?: "full" | "patch"
  /** Of a patch: the version, by its identity, that it was made against. */
  readonly base?: Digest
  /** The identity of the update; made up by default. */
  readonly id?: string
}

/** What a commit took into use. */
export interface CommitResult {
  readonly version: RefitVersion
  readonly previous: RefitVersion | undefined
  /** False where the content is what was in use already: then nothing was touched. */
  readonly changed: boolean
  /** How the weights in use were changed. */
  readonly published: "copy" | "exchange" | "nothing"
  /** True where the weights now lie elsewhere than before. */
  readonly addressesChanged: boolean
  /** Tensors that were written, and caches that were rebuilt. */
  readonly tensors: ReadonlyArray<string>
  readonly caches: ReadonlyArray<string>
  readonly warnings: ReadonlyArray<RefitWarning>
}

/** Where an added tensor belongs, and what its sender states about it. */
export interface AddOptions {
  /** Where in the tensor; all of it by default. */
  readonly region?: Region
  /** Identity of the update that this belongs to; any by default. */
  readonly id?: string
  /** The form that the sender states. Only the wire form is taken. */
  readonly form?: string
}

/** Repeated updates of one set of weights: each is staged, proved, and committed on all ranks or on none. */
export interface RefitSession {
  /** Which version is in use, and how far an update is. */
  readonly state: Effect.Effect<RefitState>
  /** Opens an update; the id names it in `commit` and `abort`. Fails while another is open. */
  readonly begin: (options: BeginOptions) => Effect.Effect<{ readonly id: string }, RefitError, TensorEngine>
  /** Takes a tensor's new values into the open update, from memory of this rank. */
  readonly add: (name: string, tensor: Tensor, options?: AddOptions) => Effect.Effect<void, RefitError, TensorEngine>
  /** Adds what this rank receives by a plan; collective like the plan. */
  readonly receive: (
    plan: AnyPlan,
    source?: TensorDict,
    options?: ExecuteOptions
  ) => Effect.Effect<ReshardReport, RefitError | ReshardError | CopyError, CopyService | TensorEngine>
  /**
   * The same by what changed since the last update of this kind that was committed; collective. Only in a patch, whose base
   * is what changes are written into; where that is not what came by these updates, this rank is sent everything.
   */
  readonly receiveChanges: (
    updates: DeltaUpdates,
    step: Pick<DeltaStep, "version">,
    source?: TensorDict
  ) => Effect.Effect<DeltaReport, RefitError | DeltaFailure, CopyService | ProcessGroup | TensorEngine>
  /** `expected` is the identity that the sender states. */
  readonly commit: (options?: {
    readonly id?: string
    readonly expected?: Digest
  }) => Effect.Effect<CommitResult, RefitError, TensorEngine>
  /** Drops the open update; the version in use stays. */
  readonly abort: (id?: string) => Effect.Effect<void, RefitError>
  /** Runs while the weights are in use. Commits may happen meanwhile. */
  readonly use: <A, E, R>(
    program: (reading: Reading) => Effect.Effect<A, E, R>
  ) => Effect.Effect<Used<A>, E | RefitError, R>
  /** Takes the weights out of use; with `drop` their memory may be given up. */
  readonly sleep: (options: { readonly drop: boolean }) => Effect.Effect<void, RefitError>
  /** Puts the weights into use again. */
  readonly wake: Effect.Effect<void, RefitError>
  /** Renames the version in use; nothing else happens. */
  readonly relabel: (label: string) => Effect.Effect<void, RefitError>
  /** What a tensor in use stands for, in wire form: what comparisons are made with, whatever form it has. */
  readonly readLogical: (name: string, into: Tensor) => Effect.Effect<void, RefitError, TensorEngine>
}

/** What holds for a session whatever its weights are. */
export interface SessionOptions {
  /** How long a commit waits for readers of the place that it is about to write. 60 seconds by default. */
  readonly readerDeadline?: Duration.Input
}

/** What every commit that changes something does to the places of weights and caches. */
const publication = ({ caches = [], publish = "copy" }: RefitSpec) => ({
  published: publish,
  addressesChanged: publish === "exchange",
  caches: caches.map(({ name }) => name)
})

/** The version that can be used, or why none can. */
const usable = (state: RefitState): Result.Result<RefitVersion, RefitError> => {
  const allowed = step(state, { _tag: "Use" })
  if (Result.isSuccess(allowed) && state.weights._tag === "Ready") return Result.succeed(state.weights.version)
  const { tag, detail, remedy } = Result.isFailure(allowed)
    ? allowed.failure
    : { tag: "NotReady" as const, detail: "There are no weights to use.", remedy: "Commit an update." }
  return Result.fail(refitError(tag, { detail, remedy }))
}

/** A session over weights whose contents are not known yet. Its memory lives in the scope. */
export const makeRefitSession = Effect.fnUntraced(function* (
  spec: RefitSpec,
  options: SessionOptions = {}
): Effect.fn.Return<RefitSession, RefitError, TensorEngine | Scope.Scope> {
  const fault = specFault(spec)
  if (fault !== undefined) return yield* fault
  const wire = yield* Effect.mapError(allocateWire(spec), causedBy("InvalidSpec"))
  const weights = makeRefitWeights(spec, wire)
  const readers = new RefitReaders()
  const lock = yield* Semaphore.make(1)
  const serialized = <A, E, R>(effect: Effect.Effect<A, E, R>) => Semaphore.withPermits(lock, 1)(effect)

  const deltas = new RefitDeltas()
  let state = initialState
  let update: RefitUpdate | undefined
  let digests = new Map<string, Digest>()
  /** Wire memory that an update wrote and did not commit. */
  const stale = new Set<string>()
  let place: Place = "live"
  let repeats = 0
  let updates = 0

  const apply = (command: RefitCommand): Effect.Effect<RefitState, RefitError> =>
    Effect.suspend(() => {
      const next = step(state, command)
      if (Result.isSuccess(next)) return Effect.succeed(next.success)
      const { tag, detail, remedy } = next.failure
      return Effect.fail(refitError(tag, { detail, remedy }))
    })
  const become = (next: RefitState): void => {
    const [before, after] = [state.weights, next.weights]
    state = next
    if (after._tag !== "Ready" || (before._tag === "Ready" && before.version === after.version)) return
    readers.show(after.version)
  }
  const change = (command: RefitCommand) => serialized(Effect.map(apply(command), become))

  /** Forgets what an update brought. Wire memory that it wrote no longer shows the version in use. */
  const forget = (): void => {
    for (const name of update?.names ?? []) stale.add(name)
    deltas.forget()
    update = undefined
  }
  /** The update is gone. `broken` says why the weights in use cannot be used, where that is so. */
  const fail = (broken?: string): void => {
    forget()
    become(failed(state, broken))
  }
  const onFailure = <A, E, R>(effect: Effect.Effect<A, E, R>, then: () => void): Effect.Effect<A, E, R> =>
    Effect.onExit(effect, (exit) => Effect.sync(() => (Exit.isSuccess(exit) ? undefined : then())))

  const begin: RefitSession["begin"] = ({ label, kind = "full", base, id }) =>
    serialized(
      Effect.gen(function* () {
        const opened = { id: id ?? `update-${updates + 1}`, label, kind, ...(base === undefined ? {} : { base }) }
        const next = yield* apply({ _tag: "Begin", update: opened })
        // Patches build upon wire memory, which must show the version in use again.
        for (const name of kind === "patch" ? stale : []) {
          yield* weights.restore(name, place)
          stale.delete(name)
        }
        updates += 1
        become(next)
        update = new RefitUpdate(spec, wire)
        return { id: opened.id }
      })
    )

  const add: RefitSession["add"] = (name, tensor, { region, id, form } = {}) =>
    serialized(
      Effect.gen(function* () {
        yield* apply({ _tag: "Add", id })
        const admission = yield* Effect.fromResult(update!.admit(name, tensor, region, form))
        if (admission._tag === "Ignore") return
        if (admission._tag === "Compare") {
          update!.noteAlias(name, yield* Effect.mapError(tensorDigest(tensor), causedBy("CommitFailed", name)))
          return
        }
        update!.cover(name, admission.region)
        const engine = yield* TensorEngine
        const copied = engine.copy([{ dst: admission.into, src: tensor }])
        yield* onFailure(Effect.mapError(copied, causedBy("CommitFailed", name)), fail)
      })
    )

  const admitPlan = Effect.fnUntraced(function* (plan: AnyPlan) {
    yield* apply({ _tag: "Add", id: undefined })
    const refusal = update!.admitPlan(plan)
    if (refusal !== undefined) return yield* refusal
  })

  const receive: RefitSession["receive"] = (plan, source, executeOptions) =>
    serialized(
      Effect.gen(function* () {
        yield* admitPlan(plan)
        return yield* onFailure(
          executeReshardPlan(plan, source, tensorDict(wire), { together: true, ...executeOptions }),
          fail
        )
      })
    )

  const receiveChanges: RefitSession["receiveChanges"] = (updates, { version }, source) =>
    serialized(
      Effect.gen(function* () {
        yield* admitPlan(updates.plan)
        const step = { version, ...(deltas.isBase(updates, state.open!) ? {} : { holds: null }) }
        const report = yield* onFailure(updates.update(step, source, tensorDict(wire)), fail)
        deltas.arrived(updates)
        return report
      })
    )

  /** The digests of everything as it would be after the commit. */
  const findDigests = Effect.fnUntraced(function* (names: Iterable<string>) {
    const found = new Map(digests)
    const touched = [...names]
    const made = tensorDigests(touched.map((name) => wire.get(name)!))
    for (const [at, digest] of (yield* Effect.mapError(made, causedBy("CommitFailed"))).entries()) {
      found.set(touched[at]!, digest)
    }
    return found
  })

  /** Everything between pausing and resuming. Ends with the new version in use, or as if nothing had been. */
  const publish = (names: ReadonlyArray<string>, version: RefitVersion, found: Map<string, Digest>) =>
    Effect.suspend(() => {
      const isExchange = spec.publish === "exchange"
      const where = isExchange && place === "live" ? "spare" : "live"
      let isWriting = false
      const body = Effect.gen(function* () {
        if (isExchange) yield* readers.untilUnread(where, options.readerDeadline)
        isWriting = true
        yield* weights.write(names, where)
        yield* weights.refreshCaches(where)
        digests = found
        for (const name of update!.names) stale.delete(name)
        update = undefined
        place = where
        become(committed(version))
      })
      return onFailure(body, () =>
        fail(isWriting && !isExchange ? "a commit failed while it wrote over the weights" : undefined)
      )
    })

  const commit: RefitSession["commit"] = ({ id, expected } = {}) =>
    serialized(
      Effect.gen(function* (): Effect.fn.Return<CommitResult, RefitError, TensorEngine> {
        yield* apply({ _tag: "Commit", id })
        const current = update!
        const { names: touched } = current
        const found = yield* findDigests(touched)
        const verdict = yield* Effect.fromResult(
          judgeCommit(spec, { state, update: current, digests: found, repeats, expected })
        )
        const { version, warnings } = verdict
        if (verdict._tag === "Same") {
          deltas.committed(version)
          repeats = verdict.repeats
          update = undefined
          become({ ...state, open: undefined })
          const nothing = { published: "nothing", addressesChanged: false, tensors: [], caches: [] } as const
          return { version, previous: version, changed: false, ...nothing, warnings }
        }
        const unpaused = Effect.sync(() => fail())
        yield* paused(spec, publish(verdict.written, version, found), unpaused)
        deltas.committed(version)
        repeats = verdict.repeats
        return { version, previous: verdict.previous, changed: true, ...publication(spec), tensors: touched, warnings }
      })
    )

  return {
    state: Effect.sync(() => state),
    begin,
    add,
    receive,
    receiveChanges,
    commit,
    abort: (id) =>
      serialized(
        Effect.map(apply({ _tag: "Abort", id }), (next) => {
          forget()
          become(next)
        })
      ),
    use: <A, E, R>(program: (reading: Reading) => Effect.Effect<A, E, R>) =>
      Effect.suspend((): Effect.Effect<Used<A>, E | RefitError, R> => {
        const version = usable(state)
        if (Result.isFailure(version)) return Effect.fail(version.failure)
        return readers.read(place, { version: version.success, weights: weights.at(place) }, program)
      }),
    sleep: ({ drop }) => change({ _tag: "Sleep", drop }),
    wake: change({ _tag: "Wake" }),
    relabel: (label) => change({ _tag: "Relabel", label }),
    readLogical: (name, into) => serialized(Effect.suspend(() => weights.readLogical(name, place, into)))
  }
})
