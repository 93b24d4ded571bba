// SPDX-License-Identifier: Apache-2.0
/**
 * The states of a copy service, as data. Pure: what a service does between two steps of a run follows from what `step`
 * answers, the next state and what is to be done about the one before.
 *
 * Phases: `Idle` -> `Waiting` (a run has begun, and no other rank knows of it yet) -> `Agreeing` (this rank's statement is
 * out, so the others count on it) -> `Moving` -> `Settling` (the work is done here; the ranks settle how it ended) ->
 * `Ending` (no further collective belongs to the run) -> `Idle`. Ranks that fail to agree go from `Agreeing` to `Idle`, with
 * driver and program as they were. A run that repeats what is known goes from `Waiting` to `Repeating`, which takes no
 * collective, and from there to `Ending`, or back to `Waiting` where the ranks must agree after all. A run that is
 * interrupted goes to `Ending` from any phase; once others may count on it, it has to report to them (`Leave`).
 *
 * The driver is there, or broken: closed, until a run builds it again. The program is what the last compilation made for
 * the memory and the batch that it names; it is there only together with the driver that compiled it.
 *
 * | event | where | what follows |
 * | --- | --- | --- |
 * | Rejoined | Waiting | the others know that this rank left an earlier run |
 * | Counted | Waiting | others may count on this run from now on, so it has a number |
 * | Repeating | Waiting | Repeating |
 * | Convened | Repeating | Waiting: all ranks agree on this run |
 * | Aligned | all | the number that this run has on all ranks |
 * | Stated | Waiting | Agreeing, with what the run would go on with |
 * | Agreed | Agreeing | Moving; a driver that is broken on any rank is closed on all |
 * | Built | Moving, Agreeing | the driver is there |
 * | Compiling, Compiled | Moving, Agreeing | the old program is closed, the new one is there |
 * | Listed | Moving, Repeating | the moves within this rank are remembered |
 * | DriverFailed | Moving | the driver is closed when the run settles |
 * | Parted | Moving, Settling | the ranks met out of step: no further collective belongs to the run |
 * | Moved | Moving | Settling |
 * | Settled | Settling, Repeating | Ending; a failure closes the program, and a broken driver with it |
 * | Interrupted | all but Idle | Ending; the program is closed, and the others are told where they count on this rank |
 * | Outdated | all but Moving, Settling | the driver is closed: the ranks agreed so after this one had left, or it broke in a repetition |
 * | Dropped | all | the program is closed |
 * | Lost | all | numbers of runs count no more: the ranks did not meet |
 * | Left | all | the next run waits until the others know |
 * | Ended | all | Idle |
 *
 * A rank that is ahead of what others agree on takes part in their run while it is `Agreeing` on its own, or in a run of nothing
 * that it begins for them.
 *
 * A run begins in `Idle` alone (`begin`). An event in another phase changes nothing, except that a driver or a program that
 * comes too late is closed.
 */
import type * as Fiber from "effect/Fiber"
import * as Result from "effect/Result"
import type * as Scope from "effect/Scope"
import type { Digest } from "../../base/Digest.ts"
import type { CopyDriverShape } from "../../service/CopyDriver.ts"
import type { CopyError } from "../../service/CopyService.ts"
import type { Move } from "../../tensor/Tensor.ts"
import type { CopyBatch } from "./batch.ts"
import type { Agreement, Place } from "./handshake.ts"
import type { Round } from "./rounds.ts"

/** A driver that was built, and what closes it. */
export interface LiveDriver {
  readonly driver: CopyDriverShape
  readonly scope: Scope.Closeable
}

/** What a batch was compiled to, and what closes it. */
export interface CompiledProgram {
  /** Where the batch's memory is. */
  readonly memory: string
  /** The batches of all ranks. */
  readonly agreed: Digest
  readonly rounds: ReadonlyArray<Round>
  readonly stagingBytes: number
  readonly messages: number
  readonly scope: Scope.Closeable
}

/** The moves of a batch within this rank. */
export interface LocalMoves {
  readonly batch: CopyBatch
  readonly moves: ReadonlyArray<Move>
}

/** An agreement that is on its way, which an interruption of the run does not take back. */
export interface PendingAgreement {
  /** Ends with nothing where the rank answered others only. */
  readonly agreeing: Fiber.Fiber<Agreement | undefined, CopyError>
  /** What the run would go on with. */
  readonly program: CompiledProgram | undefined
  readonly driver: CopyDriverShape | undefined
}

/** What was agreed on and carried out last, and may be repeated without another agreement. */
export interface Known {
  /** Of this rank. */
  readonly batch: Digest
  readonly plan: string | undefined
  /** Runs that the plan takes on the rank with most. */
  readonly runs: number
}

export type CopyRunPhase =
  | { readonly _tag: "Idle" | "Waiting" | "Repeating" | "Ending" }
  | { readonly _tag: "Agreeing"; readonly pending: PendingAgreement }
  | {
      readonly _tag: "Moving" | "Settling"
      /** The program of an earlier run, where it fits. */
      readonly reused: CompiledProgram | undefined
      /** The ranks met again after one of them had left the run. */
      readonly isOver: boolean
      /** This rank's driver cannot be used again. */
      readonly mustRebuild: boolean
    }

export interface CopyRunState {
  readonly phase: CopyRunPhase
  /** The last run that others may count on; the same on every rank that is in it. */
  readonly place: Place
  /** There only together with the program. */
  readonly known: Known | undefined
  readonly driver: LiveDriver | undefined
  readonly program: CompiledProgram | undefined
  /** As the last run made them; they are left with the program. */
  readonly local: LocalMoves | undefined
  /** Reports to the others that this rank left a run; the next run states nothing before they know. */
  readonly leaving: Fiber.Fiber<unknown, unknown> | undefined
}

export type CopyRunEvent =
  | { readonly _tag: "Rejoined" | "Counted" | "Repeating" | "Convened" | "Compiling" | "DriverFailed" | "Parted" }
  | { readonly _tag: "Interrupted" | "Outdated" | "Dropped" | "Lost" | "Ended" }
  | { readonly _tag: "Aligned"; readonly place: Place }
  | { readonly _tag: "Stated"; readonly agreeing: PendingAgreement["agreeing"] }
  | { readonly _tag: "Agreed"; readonly agreement: Agreement }
  | { readonly _tag: "Built"; readonly driver: LiveDriver }
  | { readonly _tag: "Compiled"; readonly program: CompiledProgram }
  | { readonly _tag: "Listed"; readonly local: LocalMoves }
  /** `isBroken`: this rank's work failed with what the driver does not survive. */
  | { readonly _tag: "Moved"; readonly isBroken: boolean }
  | { readonly _tag: "Settled"; readonly isOk: boolean; readonly known: Known | undefined }
  | { readonly _tag: "Left"; readonly leaving: Fiber.Fiber<unknown, unknown> }

/** What the shell must do, in order, before it takes the next event. */
export type CopyRunAction =
  | { readonly _tag: "Close"; readonly scope: Scope.Closeable }
  /** Report to the others that this rank left; where they are still to agree, they will begin first. */
  | { readonly _tag: "Leave"; readonly pending: PendingAgreement | undefined }
  /** Report the same out of a repetition: all ranks meet, and learn it. */
  | { readonly _tag: "Withdraw" }

export interface CopyRunStep {
  readonly state: CopyRunState
  readonly actions: ReadonlyArray<CopyRunAction>
}

export const initialState = (driver: LiveDriver): CopyRunState => ({
  phase: { _tag: "Idle" },
  place: { run: 0, lineage: "" },
  known: undefined,
  driver,
  program: undefined,
  local: undefined,
  leaving: undefined
})

const nothing: ReadonlyArray<CopyRunAction> = []
const waiting: CopyRunPhase = { _tag: "Waiting" }
const ending: CopyRunPhase = { _tag: "Ending" }
const idle: CopyRunPhase = { _tag: "Idle" }

const goOn = (state: CopyRunState): CopyRunStep => ({ state, actions: nothing })

const closing = (owner: { readonly scope: Scope.Closeable } | undefined): ReadonlyArray<CopyRunAction> =>
  owner === undefined ? nothing : [{ _tag: "Close", scope: owner.scope }]

/** Without the program. */
const drop = (state: CopyRunState): CopyRunStep => ({
  state: { ...state, program: undefined, known: undefined, local: undefined },
  actions: closing(state.program)
})

/** Without the driver, and without the program, which is closed first. */
const breakDriver = (state: CopyRunState): CopyRunStep => ({
  state: { ...state, program: undefined, known: undefined, local: undefined, driver: undefined },
  actions: [...closing(state.program), ...closing(state.driver)]
})

/** Whether a program of an earlier run is what the ranks agreed to run now. */
export const isReusable = (program: CompiledProgram | undefined, agreement: Agreement): boolean =>
  !agreement.mustPrepare && program?.agreed === agreement.agreed

const agreed = (state: CopyRunState, agreement: Agreement): CopyRunStep => {
  const { state: kept, actions } = agreement.mustRebuild ? breakDriver(state) : goOn(state)
  const reused = isReusable(kept.program, agreement) ? kept.program : undefined
  return { state: { ...kept, phase: { _tag: "Moving", reused, isOver: false, mustRebuild: false } }, actions }
}

const interrupted = (state: CopyRunState): CopyRunStep => {
  const { phase } = state
  const dropped = drop({ ...state, phase: ending })
  switch (phase._tag) {
    case "Idle":
      return goOn(state)
    case "Waiting":
    case "Ending":
      return dropped
    case "Repeating":
      return { ...dropped, actions: [...dropped.actions, { _tag: "Withdraw" }] }
    case "Agreeing":
      return { ...dropped, actions: [...dropped.actions, { _tag: "Leave", pending: phase.pending }] }
    case "Moving":
    case "Settling":
      return { ...dropped, actions: [...dropped.actions, { _tag: "Leave", pending: undefined }] }
  }
}

const stepWhileWaiting = (state: CopyRunState, event: CopyRunEvent): CopyRunStep => {
  if (event._tag === "Rejoined") return goOn({ ...state, leaving: undefined })
  if (event._tag === "Counted") return goOn({ ...state, place: { ...state.place, run: state.place.run + 1 } })
  if (event._tag === "Repeating") return goOn({ ...state, phase: { _tag: "Repeating" } })
  if (event._tag !== "Stated") return goOn(state)
  const pending = { agreeing: event.agreeing, program: state.program, driver: state.driver?.driver }
  return goOn({ ...state, phase: { _tag: "Agreeing", pending } })
}

const stepWhileRepeating = (state: CopyRunState, event: CopyRunEvent): CopyRunStep => {
  if (event._tag === "Listed") return goOn({ ...state, local: event.local })
  if (event._tag === "Convened") return goOn({ ...state, phase: waiting })
  return event._tag === "Settled" ? goOn({ ...state, phase: ending }) : goOn(state)
}

/** Besides its own agreement, this rank may have to take part in a run of others. */
const stepWhileAgreeing = (state: CopyRunState, pending: PendingAgreement, event: CopyRunEvent): CopyRunStep => {
  const goOnWith = (changed: Partial<PendingAgreement>, rest: CopyRunState): CopyRunState => ({
    ...rest,
    phase: { _tag: "Agreeing", pending: { ...pending, ...changed } }
  })
  switch (event._tag) {
    case "Agreed":
      return agreed(state, event.agreement)
    case "Built":
      return goOn(goOnWith({ driver: event.driver.driver }, { ...state, driver: event.driver }))
    case "Compiling": {
      const dropped = drop(state)
      return { ...dropped, state: goOnWith({ program: undefined }, dropped.state) }
    }
    case "Compiled":
      return goOn(goOnWith({ program: event.program }, { ...state, program: event.program }))
    default:
      return goOn(state)
  }
}

type Busy = Extract<CopyRunPhase, { readonly isOver: boolean }>

const stepWhileMoving = (state: CopyRunState, phase: Busy, event: CopyRunEvent): CopyRunStep => {
  switch (event._tag) {
    case "Built":
      return goOn({ ...state, driver: event.driver })
    case "Compiling":
      return drop(state)
    case "Compiled":
      return goOn({ ...state, program: event.program })
    case "Listed":
      return goOn({ ...state, local: event.local })
    case "DriverFailed":
      return goOn({ ...state, phase: { ...phase, mustRebuild: true } })
    case "Parted":
      return goOn({ ...state, phase: { ...phase, isOver: true } })
    case "Moved":
      return goOn({
        ...state,
        phase: { ...phase, _tag: "Settling", mustRebuild: phase.mustRebuild || event.isBroken }
      })
    default:
      return goOn(state)
  }
}

const stepWhileSettling = (state: CopyRunState, phase: Busy, event: CopyRunEvent): CopyRunStep => {
  if (event._tag === "Parted") return goOn({ ...state, phase: { ...phase, isOver: true } })
  if (event._tag !== "Settled") return goOn(state)
  const ended = { ...state, phase: ending, known: event.known }
  return phase.mustRebuild ? breakDriver(ended) : event.isOk ? goOn(ended) : drop(ended)
}

const stepInPhase = (state: CopyRunState, event: CopyRunEvent): CopyRunStep => {
  const { phase } = state
  switch (phase._tag) {
    case "Waiting":
      return stepWhileWaiting(state, event)
    case "Repeating":
      return stepWhileRepeating(state, event)
    case "Agreeing":
      return stepWhileAgreeing(state, phase.pending, event)
    case "Moving":
      return stepWhileMoving(state, phase, event)
    case "Settling":
      return stepWhileSettling(state, phase, event)
    case "Idle":
    case "Ending":
      return goOn(state)
  }
}

/** The state in which a run has begun; `Busy` where another one is in progress. */
export const begin = (state: CopyRunState): Result.Result<CopyRunState, "Busy"> =>
  state.phase._tag === "Idle" ? Result.succeed({ ...state, phase: waiting }) : Result.fail("Busy")

/** Whether no further collective belongs to the run, because the ranks met out of step. */
export const isOver = ({ phase }: CopyRunState): boolean =>
  (phase._tag === "Moving" || phase._tag === "Settling") && phase.isOver

/** The state after an event, and what is to be done. */
export const step = (state: CopyRunState, event: CopyRunEvent): CopyRunStep => {
  switch (event._tag) {
    case "Interrupted":
      return interrupted(state)
    case "Outdated":
      return state.phase._tag === "Moving" || state.phase._tag === "Settling" ? goOn(state) : breakDriver(state)
    case "Aligned":
      return goOn({ ...state, place: event.place })
    case "Dropped":
      return drop(state)
    case "Lost":
      return goOn({ ...state, place: { ...state.place, lineage: "" }, known: undefined })
    case "Left":
      return goOn({ ...state, leaving: event.leaving })
    case "Ended":
      return goOn({ ...state, phase: idle })
    case "Built":
    case "Compiled":
      if (state.phase._tag === "Moving" || state.phase._tag === "Agreeing") return stepInPhase(state, event)
      return { state, actions: closing(event._tag === "Built" ? event.driver : event.program) }
    default:
      return stepInPhase(state, event)
  }
}
