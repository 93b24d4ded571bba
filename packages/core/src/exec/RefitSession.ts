/**
 * Updates of weights that are in use: begin -> add (any number, any cutting) -> commit | abort. Until the commit nothing
 * that anybody uses changes; a commit is bound to its content, and one that brings nothing new changes nothing.
 *
 * What travels is collected in memory of its own, in the form of the wire; a commit writes the weights in use from it, once
 * per tensor, then rebuilds what was derived from them, once per cache, and only then is the new version in use. States and
 * refusals: `RefitState`. Calls are serialized; `use` goes on meanwhile and tells every version that it saw.
 *
 * Memory: one copy in wire form beside the weights in use; with `exchange` a second place for the weights as well.
 */
import * as Deferred from "effect/Deferred"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import * as Semaphore from "effect/Semaphore"
import type { Digest } from "../base/Digest.ts"
import { equalShapes, formatShape, type Region, regionShape } from "../base/Region.ts"
import type { ReshardPlan } from "../ir/ReshardPlan.ts"
import type { CopyError, CopyService } from "../service/CopyService.ts"
import { TensorEngine } from "../service/TensorEngine.ts"
import { sliceTensor, type Tensor } from "../tensor/Tensor.ts"
import { type TensorDict, tensorDict } from "../tensor/TensorDict.ts"
import { contentDigest, tensorDigest } from "./ContentDigest.ts"
import { type ExecuteOptions, executeReshardPlan, type ReshardReport } from "./executeReshardPlan.ts"
import { describeMeeting, incomplete, RefitCoverage } from "./RefitCoverage.ts"
import { type RefitError, type RefitReason, refitError } from "./RefitError.ts"
import { allocateWire, formOf, groupOf, type HeldTensor, type RefitSpec, restores, specFault } from "./RefitSpec.ts"
import {
  committed,
  failed,
  initialState,
  type RefitCommand,
  type RefitState,
  type RefitVersion,
  step
} from "./RefitState.ts"
import type { ReshardError } from "./ReshardError.ts"

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

export interface RefitWarning {
  readonly kind: "UnknownTensor" | "Repeated"
  readonly detail: string
}

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

/** The weights as one reader has them. */
export interface Reading {
  /** As it was at the start. */
  readonly version: RefitVersion
  readonly weights: TensorDict
}

/** What a reader made, with every version that was in use meanwhile, the first being that of the reading. */
export interface Used<A> {
  readonly value: A
  readonly versions: ReadonlyArray<RefitVersion>
}

export interface AddOptions {
  /** Where in the tensor; all of it by default. */
  readonly region?: Region
  /** Identity of the update that this belongs to; any by default. */
  readonly id?: string
  /** The form that the sender states. Only the wire form is taken. */
  readonly form?: string
}

export interface RefitSession {
  readonly state: Effect.Effect<RefitState>
  readonly begin: (options: BeginOptions) => Effect.Effect<{ readonly id: string }, RefitError, TensorEngine>
  readonly add: (name: string, tensor: Tensor, options?: AddOptions) => Effect.Effect<void, RefitError, TensorEngine>
  /** Adds what this rank receives by a plan; collective like the plan. */
  readonly receive: (
    plan: ReshardPlan,
    source?: TensorDict,
    options?: ExecuteOptions
  ) => Effect.Effect<ReshardReport, RefitError | ReshardError | CopyError, CopyService | TensorEngine>
  /** `expected` is the identity that the sender states. */
  readonly commit: (options?: {
    readonly id?: string
    readonly expected?: Digest
  }) => Effect.Effect<CommitResult, RefitError, TensorEngine>
  readonly abort: (id?: string) => Effect.Effect<void, RefitError>
  /** Runs while the weights are in use. Commits may happen meanwhile. */
  readonly use: <A, E, R>(
    program: (reading: Reading) => Effect.Effect<A, E, R>
  ) => Effect.Effect<Used<A>, E | RefitError, R>
  readonly sleep: (options: { readonly drop: boolean }) => Effect.Effect<void, RefitError>
  readonly wake: Effect.Effect<void, RefitError>
  /** Renames the version in use; nothing else happens. */
  readonly relabel: (label: string) => Effect.Effect<void, RefitError>
  /** What a tensor in use stands for, in wire form: what comparisons are made with, whatever form it has. */
  readonly readLogical: (name: string, into: Tensor) => Effect.Effect<void, RefitError, TensorEngine>
}

export interface SessionOptions {
  /** How long a commit waits for readers of the place that it is about to write. 60 seconds by default. */
  readonly readerDeadline?: Duration.Input
}

/** What an open update has brought. */
interface Collected {
  readonly added: Map<string, RefitCoverage>
  readonly aliasDigests: Map<string, Digest>
  readonly warnings: Array<RefitWarning>
}

const defaultRepeatLimit = 3

/** A session over weights whose contents are not known yet. Its memory lives in the scope. */
export const makeRefitSession = Effect.fnUntraced(function* (
  spec: RefitSpec,
  options: SessionOptions = {}
): Effect.fn.Return<RefitSession, RefitError, TensorEngine | Scope.Scope> {
  const fault = specFault(spec)
  if (fault !== undefined) return yield* fault
  const fails =
    (tag: RefitReason["_tag"], paramName?: string) =>
    (error: { readonly message: string }): RefitError =>
      refitError(tag, {
        ...(paramName === undefined ? {} : { paramName }),
        detail: error.message,
        remedy: "Look at the failure behind it."
      })
  const wire = yield* Effect.mapError(allocateWire(spec), fails("InvalidSpec"))
  const aliases = spec.aliases ?? new Map<string, string>()
  const lock = yield* Semaphore.make(1)
  const serialized = <A, E, R>(effect: Effect.Effect<A, E, R>) => Semaphore.withPermits(lock, 1)(effect)

  let state = initialState
  let collected: Collected | undefined
  let digests = new Map<string, Digest>()
  /** Wire memory that an update wrote and did not commit. */
  const stale = new Set<string>()
  let place: "live" | "spare" = "live"
  let repeats = 0
  let updates = 0
  const readers = { live: 0, spare: 0 }
  const waiting: { live: Deferred.Deferred<void> | undefined; spare: Deferred.Deferred<void> | undefined } = {
    live: undefined,
    spare: undefined
  }
  const readings = new Set<Array<RefitVersion>>()

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
    for (const seen of readings) seen.push(after.version)
  }
  const change = (command: RefitCommand) => serialized(Effect.map(apply(command), become))

  const heldAt = (name: string, where: "live" | "spare"): HeldTensor => {
    const tensor = spec.tensors.get(name)!
    return where === "live" ? tensor.live : tensor.spare!
  }
  const dictAt = (where: "live" | "spare"): TensorDict =>
    tensorDict(
      [...spec.tensors.keys()].map((name) => [name, heldAt(name, where)] as const),
      { aliases: new Map([...aliases].filter(([alias]) => !spec.tensors.has(alias))) }
    )

  const targetOf = (name: string): string => aliases.get(name) ?? name

  /** Forgets what an update brought. Wire memory that it wrote no longer shows the version in use. */
  const forget = (): void => {
    for (const name of collected?.added.keys() ?? []) stale.add(name)
    collected = undefined
  }

  /** Patches build upon wire memory, which must show the version in use again. */
  const restore = Effect.gen(function* () {
    for (const name of stale) {
      const tensor = spec.tensors.get(name)!
      const unpack = formOf(name, tensor).unpack
      if (!restores(tensor) || unpack === undefined) {
        return yield* refitError("WrongBase", {
          paramName: name,
          detail: "An update that was not committed has overwritten what a patch would build upon.",
          remedy: "Send a full update, or give the tensor a form that can be undone."
        })
      }
      yield* Effect.mapError(unpack(heldAt(name, place), wire.get(name)!), fails("CommitFailed", name))
      stale.delete(name)
    }
  })

  const begin: RefitSession["begin"] = ({ label, kind = "full", base, id }) =>
    serialized(
      Effect.gen(function* () {
        const update = { id: id ?? `update-${updates + 1}`, label, kind, ...(base === undefined ? {} : { base }) }
        const next = yield* apply({ _tag: "Begin", update })
        if (kind === "patch") yield* restore
        updates += 1
        become(next)
        collected = { added: new Map(), aliasDigests: new Map(), warnings: [] }
        return { id: update.id }
      })
    )

  const mismatch = (paramName: string, detail: string): RefitError =>
    refitError("TensorMismatch", {
      paramName,
      detail,
      remedy: "Send what the session states: type, shape and wire form."
    })

  /** Refuses what was added before; nothing is noted then. */
  const checkNew = (name: string, region: Region): Effect.Effect<void, RefitError> => {
    const before = collected!.added.get(name)?.meeting(region)
    if (before === undefined) return Effect.void
    return Effect.fail(
      refitError("DuplicateRegion", {
        paramName: name,
        detail: describeMeeting(region, before),
        remedy: "Send every element once."
      })
    )
  }
  const cover = (name: string, region: Region): void => {
    const known = collected!.added.get(name) ?? new RefitCoverage()
    known.add(region)
    collected!.added.set(name, known)
  }

  /** Data may have come in part: the update is gone, the version in use stays. */
  const failingCloses = <A, E, R>(effect: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
    Effect.onExit(effect, (exit) =>
      Effect.sync(() => {
        if (Exit.isSuccess(exit)) return
        forget()
        become(failed(state))
      })
    )

  const add: RefitSession["add"] = (name, tensor, { region, id, form } = {}) =>
    serialized(
      Effect.gen(function* () {
        yield* apply({ _tag: "Add", id })
        const target = wire.get(targetOf(name))
        if (target === undefined) {
          const detail = `The session has no tensor ${name}.`
          if (spec.unknown !== "warn") {
            return yield* refitError("UnknownTensor", {
              paramName: name,
              detail,
              remedy: "Declare it, or as an alias of the tensor that it is tied to."
            })
          }
          collected!.warnings.push({ kind: "UnknownTensor", detail })
          return
        }
        if (form !== undefined && form !== "wire") {
          return yield* mismatch(name, `It comes in the form ${form}; updates are written in wire form only.`)
        }
        const part = region ?? target.shape.map((length): readonly [number, number] => [0, length])
        const view = sliceTensor(target, part)
        if (Result.isFailure(view)) return yield* mismatch(name, view.failure.detail)
        if (tensor.dtype !== target.dtype || !equalShapes(tensor.shape, regionShape(part))) {
          const [came, wanted] = [tensor, { dtype: target.dtype, shape: regionShape(part) }].map(
            (each) => `${each.dtype}${formatShape(each.shape)}`
          )
          return yield* mismatch(name, `${came} came where ${wanted} travels.`)
        }
        if (aliases.has(name)) {
          if (region !== undefined) return yield* mismatch(name, `It is an alias of ${targetOf(name)}; parts go there.`)
          collected!.aliasDigests.set(name, yield* Effect.mapError(tensorDigest(tensor), fails("CommitFailed", name)))
          return
        }
        yield* checkNew(name, part)
        cover(name, part)
        const engine = yield* TensorEngine
        const copied = engine.copy([{ dst: view.success, src: tensor }])
        yield* failingCloses(Effect.mapError(copied, fails("CommitFailed", name)))
      })
    )

  const receive: RefitSession["receive"] = (plan, source, executeOptions) =>
    serialized(
      Effect.gen(function* () {
        yield* apply({ _tag: "Add", id: undefined })
        for (const { name } of plan.destinationTensors) {
          if (!wire.has(name)) {
            return yield* refitError("UnknownTensor", {
              paramName: name,
              detail: "The plan fills a tensor that the session does not have.",
              remedy: "Declare it."
            })
          }
        }
        // Before anything moves: what meets what was added before would come twice.
        for (const { paramName, mySlice } of plan.recvOps) yield* checkNew(paramName, mySlice)
        for (const { paramName, mySlice } of plan.recvOps) cover(paramName, mySlice)
        return yield* failingCloses(executeReshardPlan(plan, source, tensorDict(wire), executeOptions))
      })
    )

  /** Refusals of a commit that more data may still answer. */
  const checkComplete = (
    kind: "full" | "patch",
    { added, aliasDigests }: Collected,
    found: ReadonlyMap<string, Digest>
  ) =>
    Effect.gen(function* () {
      if (added.size === 0) {
        return yield* refitError("EmptyUpdate", {
          detail: "The update has brought nothing.",
          remedy: "Add tensors, or abort it."
        })
      }
      const brought = new Set([...added.keys()].map((name) => groupOf(spec.tensors.get(name)!)))
      const absent = spec.groups?.find((group) => !brought.has(group))
      if (absent !== undefined) {
        return yield* refitError("GroupMissing", {
          detail: `The update has brought nothing of the group ${absent}.`,
          remedy: "Send every expected group."
        })
      }
      const shapes = [...wire].map(([name, { shape }]) => [name, shape] as const)
      const lacking = kind === "full" ? incomplete(shapes, added) : []
      if (lacking.length > 0) {
        const shown = lacking.slice(0, 5).join(", ")
        return yield* refitError("IncompleteUpdate", {
          detail: `A full update covers everything; missing: ${shown}${lacking.length > 5 ? ` and ${lacking.length - 5} more` : ""}.`,
          remedy: "Add the rest, or send it as a patch with its base."
        })
      }
      for (const [alias, digest] of aliasDigests) {
        if (found.get(targetOf(alias)) === digest) continue
        return yield* refitError("AliasMismatch", {
          paramName: alias,
          detail: `It is an alias of ${targetOf(alias)}, but came with other values.`,
          remedy: "Send both alike, or declare it as a tensor of its own."
        })
      }
    })

  const findDigests = Effect.fnUntraced(function* (names: Iterable<string>) {
    const found = new Map(digests)
    for (const name of names)
      found.set(name, yield* Effect.mapError(tensorDigest(wire.get(name)!), fails("CommitFailed", name)))
    return found
  })

  /** Nobody reads the place that is about to be written. */
  const untilUnread = (where: "live" | "spare") =>
    Effect.suspend(() => {
      if (readers[where] === 0) return Effect.void
      const free = Deferred.makeUnsafe<void>()
      waiting[where] = free
      return Deferred.await(free).pipe(
        Effect.timeoutOrElse({
          duration: options.readerDeadline ?? Duration.seconds(60),
          orElse: () =>
            Effect.fail(
              refitError("DeadlineExceeded", {
                detail: `${readers[where]} readers still use the version before the one in use.`,
                remedy: "Let them end, then commit again.",
                isRetryable: true
              })
            )
        })
      )
    })

  const pack = Effect.fnUntraced(function* (names: ReadonlyArray<string>, where: "live" | "spare") {
    for (const name of names) {
      const packed = formOf(name, spec.tensors.get(name)!).pack(wire.get(targetOf(name))!, heldAt(name, where))
      yield* Effect.mapError(packed, fails("CommitFailed", name))
    }
  })

  const refreshCaches = Effect.fnUntraced(function* (where: "live" | "spare") {
    for (const { name, refresh } of spec.caches ?? []) {
      yield* Effect.mapError(refresh!(dictAt(where)), ({ message }) =>
        refitError("CommitFailed", {
          detail: `The cache ${name} could not be rebuilt: ${message}`,
          remedy: "Look at the failure behind it."
        })
      )
    }
  })

  /** Everything between pausing and resuming. Ends with the new version in use, or as if nothing had been. */
  const publish = (names: ReadonlyArray<string>, version: RefitVersion, found: Map<string, Digest>) =>
    Effect.suspend(() => {
      const isExchange = spec.publish === "exchange"
      const where = isExchange ? (place === "live" ? "spare" : "live") : "live"
      let isWriting = false
      const body = Effect.gen(function* () {
        if (isExchange) yield* untilUnread(where)
        isWriting = true
        yield* pack(names, where)
        yield* refreshCaches(where)
        digests = found
        for (const name of collected!.added.keys()) stale.delete(name)
        collected = undefined
        place = where
        become(committed(version))
      })
      return Effect.onExit(body, (exit) =>
        Effect.sync(() => {
          if (Exit.isSuccess(exit)) return
          forget()
          const isBroken = isWriting && !isExchange
          become(failed(state, isBroken ? "a commit failed while it wrote over the weights" : undefined))
        })
      )
    })

  const paused = <A>(
    effect: Effect.Effect<A, RefitError, TensorEngine>
  ): Effect.Effect<A, RefitError, TensorEngine> => {
    const named = (what: string) => (error: { readonly message: string }) =>
      refitError("CommitFailed", {
        detail: `${what} failed: ${error.message}`,
        remedy: "The update is gone; begin again when this works."
      })
    const pause = Effect.tapError(Effect.mapError(spec.pause ?? Effect.void, named("Pausing")), () =>
      Effect.sync(() => {
        forget()
        become(failed(state))
      })
    )
    return Effect.uninterruptibleMask((unmasked) =>
      Effect.gen(function* () {
        yield* unmasked(pause)
        const exit = yield* Effect.exit(unmasked(effect))
        yield* Effect.mapError(spec.resume ?? Effect.void, named("Resuming"))
        return yield* exit
      })
    )
  }

  const commit: RefitSession["commit"] = ({ id, expected } = {}) =>
    serialized(
      Effect.gen(function* (): Effect.fn.Return<CommitResult, RefitError, TensorEngine> {
        yield* apply({ _tag: "Commit", id })
        const { label, kind } = state.open!
        const current = collected!
        const found = yield* findDigests(current.added.keys())
        yield* checkComplete(kind, current, found)
        const digest = contentDigest(found)
        if (expected !== undefined && expected !== digest) {
          return yield* refitError("DigestMismatch", {
            detail: `The content is ${digest}; the sender states ${expected}.`,
            remedy: "Send the update again."
          })
        }
        const previous =
          state.weights._tag === "Ready" || state.weights._tag === "Asleep" ? state.weights.version : undefined
        const isSame = previous?.id === digest && state.weights._tag === "Ready"
        const touched = [...current.added.keys()]
        const warnings = [...current.warnings]
        const sameInARow = isSame ? repeats + 1 : 1
        if (sameInARow >= (spec.repeatLimit ?? defaultRepeatLimit)) {
          const detail = `The same content was committed ${sameInARow} times in a row: does the sender send what it trains?`
          warnings.push({ kind: "Repeated", detail })
        }
        if (isSame) {
          repeats = sameInARow
          collected = undefined
          become({ ...state, open: undefined })
          const nothing = { published: "nothing", addressesChanged: false, tensors: [], caches: [] } as const
          return { version: previous, previous, changed: false, ...nothing, warnings }
        }
        const version: RefitVersion = { id: digest, label }
        const written = [...spec.tensors.keys()].filter(
          (name) => spec.publish === "exchange" || current.added.has(targetOf(name))
        )
        yield* paused(publish(written, version, found))
        repeats = 1
        return {
          version,
          previous,
          changed: true,
          published: spec.publish ?? "copy",
          addressesChanged: spec.publish === "exchange",
          tensors: touched,
          caches: (spec.caches ?? []).map(({ name }) => name),
          warnings
        }
      })
    )

  return {
    state: Effect.sync(() => state),
    begin,
    add,
    receive,
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
        const allowed = step(state, { _tag: "Use" })
        const { weights } = state
        if (Result.isFailure(allowed) || weights._tag !== "Ready") {
          const { tag, detail, remedy } = Result.isFailure(allowed)
            ? allowed.failure
            : { tag: "NotReady" as const, detail: "There are no weights to use.", remedy: "Commit an update." }
          return Effect.fail(refitError(tag, { detail, remedy }))
        }
        const where = place
        const versions = [weights.version]
        readings.add(versions)
        readers[where] += 1
        return Effect.map(program({ version: weights.version, weights: dictAt(where) }), (value) => ({
          value,
          versions
        })).pipe(
          Effect.ensuring(
            Effect.suspend(() => {
              readings.delete(versions)
              readers[where] -= 1
              const free = waiting[where]
              if (readers[where] > 0 || free === undefined) return Effect.void
              waiting[where] = undefined
              return Deferred.succeed(free, undefined)
            })
          )
        )
      }),
    sleep: ({ drop }) => change({ _tag: "Sleep", drop }),
    wake: change({ _tag: "Wake" }),
    relabel: (label) => change({ _tag: "Relabel", label }),
    readLogical: (name, into) =>
      serialized(
        Effect.gen(function* () {
          const tensor = spec.tensors.get(name)
          const unpack = tensor === undefined ? undefined : formOf(name, tensor).unpack
          if (unpack === undefined) {
            return yield* refitError("UnknownTensor", {
              paramName: name,
              detail: tensor === undefined ? "The session has no such tensor." : "Its form cannot be undone.",
              remedy: "Give the tensor a form with unpack."
            })
          }
          yield* Effect.mapError(unpack(heldAt(name, place), into), fails("CommitFailed", name))
        })
      )
  }
})
