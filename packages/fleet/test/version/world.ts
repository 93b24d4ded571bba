// SPDX-License-Identifier: Apache-2.0
/**
 * A fleet in a world where everything goes wrong: a store that loses its memory, messages that are late or lost, processes
 * that die, stop and go on, clocks that drift and jump ahead. It runs the state machines as they are, and looks at what is
 * served after every event.
 */
import { EventQueue } from "../../src/simulate/EventQueue.ts"
import {
  type ControllerEffect,
  type ControllerEvent,
  type ControllerState,
  controllerStep,
  newController
} from "../../src/version/ControllerState.ts"
import { type CommitPolicy, type FleetState, type LogEntry, readLog } from "../../src/version/FleetLog.ts"
import type { FleetTimes } from "../../src/version/FleetTimes.ts"
import type { Manifest } from "../../src/version/Manifest.ts"
import {
  canServe,
  type MemberEffect,
  type MemberEvent,
  type MemberReport,
  type MemberState,
  memberStep,
  newMember
} from "../../src/version/MemberState.ts"

export const times: FleetTimes = { beat: 0.1, fence: 1.5, grace: 0.3, dead: 0.4, stage: 5, prepare: 1 }

/** Numbers from 0 to 1, the same for each seed. */
const randomOf = (seed: number) => () => {
  seed = (seed + 0x6d2b79f5) | 0
  let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
  return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
}

/** A process: its clock, and whether it runs and reaches the store. */
interface Process {
  readonly id: string
  isAlive: boolean
  stoppedUntil: number
  apartUntil: number
  readonly rate: number
  offset: number
}

interface Member extends Process {
  state: MemberState
  /** What its weights are; "torn" while they are written. */
  weights: string
  /** Grows when what is being staged is dropped. */
  stageTurn: number
  /** Greatest version that it ever served. */
  served: number
}

interface Controller extends Process {
  state: ControllerState
}

export class World {
  readonly members: Array<Member> = []
  readonly controllers: Array<Controller> = []
  readonly faults: Array<string> = []
  /** Contents that any source can give. */
  readonly #queue = new EventQueue<() => void>()
  readonly #random: () => number
  readonly #onlyAll: boolean
  #store: { incarnation: string; log: Map<number, LogEntry>; reports: Map<string, MemberReport>; downUntil: number }
  #now = 0
  /** After all faults, messages are in time. */
  #isCalm = false
  #started = 0
  #published = 0
  #emptied = 0

  constructor(seed: number, onlyAll: boolean) {
    this.#random = randomOf(seed)
    this.#onlyAll = onlyAll
    this.#store = { incarnation: "store 0", log: new Map(), reports: new Map(), downUntil: 0 }
  }

  get now(): number {
    return this.#now
  }

  /** The fleet as the store has it. */
  get fleet(): FleetState | undefined {
    return readLog(undefined, this.#store.log)
  }

  #process(name: string): Process {
    const id = `${name}-${this.#started++}`
    const rate = 0.97 + 0.06 * this.#random()
    return { id, isAlive: true, stoppedUntil: 0, apartUntil: 0, rate, offset: 100 * this.#random() }
  }

  clockOf({ rate, offset }: Process): number {
    return this.#now * rate + offset
  }

  /** Runs `what` in the process after a delay, or when it goes on; never once it is dead. */
  #later(process: Process, delay: number, what: () => void): void {
    const run = (): void => {
      if (!process.isAlive) return
      if (this.#now < process.stoppedUntil) this.#queue.add(process.stoppedUntil, run)
      else what()
    }
    this.#queue.add(this.#now + delay, run)
  }

  #reaches(process: Process): boolean {
    return this.#now >= process.apartUntil && this.#now >= this.#store.downUntil
  }

  /** Messages take up to half a beat, a few of them much longer. */
  #delay(): number {
    return this.#random() < 0.03 && !this.#isCalm ? this.#random() * 2 : this.#random() * times.beat * 0.5
  }

  /** Asks the store, and hears the answer unless one of both messages is lost. */
  #ask<A>(process: Process, request: () => A, heard: (answer: A) => void): void {
    if (!this.#reaches(process)) return
    this.#queue.add(this.#now + this.#delay(), () => {
      if (!this.#reaches(process)) return
      const answer = request()
      this.#later(process, this.#delay(), () => this.#reaches(process) && heard(answer))
    })
  }

  #append(
    process: Process,
    {
      incarnation,
      position,
      entry
    }: { readonly incarnation: string; readonly position: number; readonly entry: LogEntry }
  ): void {
    this.#ask(
      process,
      () => {
        const { log } = this.#store
        if (this.#store.incarnation !== incarnation || log.has(position)) return
        // Entries before the last that states the fleet whole may be gone.
        if (position > 1 && !log.has(position - 1)) return
        log.set(position, entry)
      },
      () => undefined
    )
  }

  addMember(role: "source" | "replica"): void {
    const process = this.#process(role)
    const self = { id: process.id, rank: this.members.length, role } as const
    const member: Member = { ...process, state: newMember(self, times), weights: "nothing", stageTurn: 0, served: 0 }
    this.members.push(member)
    this.#beat(member)
  }

  #beat(member: Member): void {
    this.#tell(member, { _tag: "Beat", now: this.clockOf(member) })
    this.#later(member, times.beat / member.rate, () => this.#beat(member))
  }

  #tell(member: Member, event: MemberEvent): void {
    const [state, effects] = memberStep(member.state, event)
    member.state = state
    for (const effect of effects) this.#do(member, effect)
    this.#look()
  }

  #do(member: Member, effect: MemberEffect): void {
    switch (effect._tag) {
      case "Report": {
        const askedAt = this.clockOf(member)
        this.#ask(
          member,
          () => {
            this.#store.reports.set(member.id, effect.report)
            return { incarnation: this.#store.incarnation, entries: new Map(this.#store.log) }
          },
          (found) => this.#tell(member, { _tag: "Read", now: this.clockOf(member), askedAt, ...found })
        )
        return
      }
      case "Append":
        this.#append(member, effect)
        return
      case "Stage": {
        const turn = ++member.stageTurn
        const { manifest } = effect
        this.#later(member, this.#random() < 0.1 ? this.#random() * 6 : this.#random() * 0.5, () => {
          if (turn !== member.stageTurn) return
          const isThere = this.members.some(
            (other) =>
              other.isAlive &&
              other.id !== member.id &&
              (other.state.self.role === "source" ||
                other.weights === manifest.content ||
                other.state.staged?.content === manifest.content)
          )
          const now = this.clockOf(member)
          if (isThere && this.#random() > 0.05) this.#tell(member, { _tag: "Staged", now, manifest })
          else this.#tell(member, { _tag: "StageFailed", now, manifest, reason: "Nobody gave it." })
        })
        return
      }
      case "Drop":
        member.stageTurn += 1
        return
      case "Pause":
        this.#later(member, this.#random() < 0.03 ? 2 : this.#random() * 0.1, () =>
          this.#tell(member, { _tag: "Paused", now: this.clockOf(member) })
        )
        return
      case "Flip": {
        member.weights = "torn"
        this.#later(member, this.#random() * 0.2, () => {
          const isWell = this.#random() > 0.02
          if (isWell) member.weights = effect.manifest.content
          const now = this.clockOf(member)
          this.#tell(
            member,
            isWell
              ? { _tag: "Flipped", now, manifest: effect.manifest }
              : { _tag: "FlipFailed", now, reason: "The device failed." }
          )
        })
        return
      }
      case "Resume":
    }
  }

  addController(): void {
    const process = this.#process("controller")
    const controller: Controller = { ...process, state: newController(process.id, times) }
    this.controllers.push(controller)
    this.#controllerBeat(controller)
  }

  #controllerBeat(controller: Controller): void {
    this.#control(controller, { _tag: "Beat", now: this.clockOf(controller) })
    this.#later(controller, times.beat / controller.rate, () => this.#controllerBeat(controller))
  }

  #control(controller: Controller, event: ControllerEvent): void {
    const [state, effects] = controllerStep(controller.state, event)
    controller.state = state
    for (const effect of effects) this.#carryOut(controller, effect)
  }

  #carryOut(controller: Controller, effect: ControllerEffect): void {
    if (effect._tag === "Append") {
      this.#append(controller, effect)
      return
    }
    if (effect._tag === "Forget") {
      const { incarnation } = this.#store
      this.#ask(
        controller,
        () => {
          if (this.#store.incarnation !== incarnation) return
          for (const at of [...this.#store.log.keys()]) if (at < effect.before) this.#store.log.delete(at)
        },
        () => undefined
      )
      return
    }
    this.#ask(
      controller,
      () => ({
        incarnation: this.#store.incarnation,
        entries: new Map(this.#store.log),
        reports: [...this.#store.reports.values()]
      }),
      (found) => this.#control(controller, { _tag: "Read", ...found })
    )
  }

  publish(policy: CommitPolicy): void {
    const content = `weights ${++this.#published}`
    for (const controller of this.controllers.filter(({ isAlive }) => isAlive).slice(0, 1))
      this.#control(controller, { _tag: "Publish", wish: { label: content, content, tensors: {}, policy } })
  }

  kill(process: Process): void {
    process.isAlive = false
    this.#look()
    // Some have a connection to it, and notice.
    for (const { id } of this.members)
      for (const member of this.members)
        if (id === process.id && this.#random() < 0.3) this.#later(member, this.#delay(), () => this.miss(member, id))
  }

  /** A connection of a member to another one ends, for whatever reason. */
  miss(member: Member, id: string): void {
    if (member.isAlive) this.#tell(member, { _tag: "Missed", now: this.clockOf(member), id })
  }

  stop(process: Process, seconds: number): void {
    process.stoppedUntil = Math.max(process.stoppedUntil, this.#now + seconds)
  }

  part(process: Process, seconds: number): void {
    process.apartUntil = Math.max(process.apartUntil, this.#now + seconds)
  }

  jump(process: Process, seconds: number): void {
    process.offset += seconds
    this.#look()
  }

  restartStore(isEmptied: boolean, seconds: number): void {
    this.#store.downUntil = this.#now + seconds
    if (!isEmptied) return
    this.#store = { ...this.#store, incarnation: `store ${++this.#emptied}`, log: new Map(), reports: new Map() }
  }

  heal(): void {
    this.#isCalm = true
    this.#store.downUntil = 0
    for (const process of [...this.members, ...this.controllers]) {
      process.apartUntil = 0
      process.stoppedUntil = Math.min(process.stoppedUntil, this.#now)
    }
  }

  advance(seconds: number): void {
    const end = this.#now + seconds
    while (this.#queue.nextTime <= end) {
      this.#now = Math.max(this.#now, this.#queue.nextTime)
      this.#queue.take()!()
    }
    this.#now = end
  }

  serving(): ReadonlyArray<Member> {
    return this.members.filter(
      (member) => member.isAlive && this.#now >= member.stoppedUntil && canServe(member.state, this.clockOf(member))
    )
  }

  /** What must hold at every moment. */
  #look(): void {
    const serving = this.serving()
    const versions = new Set<string>()
    for (const member of serving) {
      const live = member.state.live!
      versions.add(`${live.serial} ${live.content}`)
      if (member.weights !== live.content) this.#fault(`${member.id} serves ${live.content} from ${member.weights}`)
      if (live.serial < member.served) this.#fault(`${member.id} goes back from ${member.served} to ${live.serial}`)
      member.served = Math.max(member.served, live.serial)
    }
    if (this.#onlyAll && versions.size > 1)
      this.#fault(
        `two versions are served: ${serving.map(({ id, state }) => `${id}: ${(state.live as Manifest).serial}`).join(", ")}`
      )
  }

  #fault(text: string): void {
    if (this.faults.length < 5) this.faults.push(`${this.#now.toFixed(3)} s: ${text}`)
  }
}
