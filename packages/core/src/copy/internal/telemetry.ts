// SPDX-License-Identifier: Apache-2.0
/**
 * What a copy service reports of its runs: seconds per phase, spans where a tracer is installed, and metrics.
 *
 * Invariant: what a run costs here does not grow with its operations.
 */
import type * as Context from "effect/Context"
import * as Effect from "effect/Effect"
import * as Metric from "effect/Metric"
import type { Rank } from "../../base/Ids.ts"
import type { PeerTimes, Program } from "../../service/CopyDriver.ts"
import type { CopyReport } from "../../service/CopyService.ts"
import { type Attributes, inSpan } from "../../service/Spans.ts"
import { tensorByteLength } from "../../tensor/Tensor.ts"

export type CopyPhase = keyof CopyReport["phases"]

/** Spans are named after what happens, as `copy.wire`; the report's older names stay. */
const spanNames: { readonly [phase in CopyPhase]: string } = {
  handshake: "copy.handshake",
  prepare: "copy.prepare",
  pack: "copy.pack",
  local: "copy.local",
  transfer: "copy.wire",
  unpack: "copy.unpack",
  writeback: "copy.writeback",
  outcome: "copy.commit"
}
const phases = Object.keys(spanNames) as ReadonlyArray<CopyPhase>

/** Seconds per phase of one run, and device times per peer where the driver knows them. */
export interface RunTimes {
  readonly seconds: { [phase in CopyPhase]: number }
  readonly peers: Map<Rank, PeerTimes>
}

export const makeRunTimes = (): RunTimes => ({
  seconds: { handshake: 0, prepare: 0, pack: 0, local: 0, transfer: 0, unpack: 0, writeback: 0, outcome: 0 },
  peers: new Map()
})

/** Adds one round's device times. */
export const addPeerTimes = ({ peers }: RunTimes, times: ReadonlyArray<PeerTimes>): void => {
  for (const one of times) {
    const known = peers.get(one.peer)
    peers.set(
      one.peer,
      known === undefined
        ? one
        : {
            peer: one.peer,
            pack: known.pack + one.pack,
            wire: known.wire + one.wire,
            unpack: known.unpack + one.unpack
          }
    )
  }
}

/** What goes to and comes from each peer in one round, for traces; messages that core packs count with their padding. */
export const peerNotes = ({ messages, paths }: Program, times: ReadonlyArray<PeerTimes>): ReadonlyArray<Attributes> =>
  paths.map(({ peer, path, reason }) => {
    const bytes = (direction: "send" | "recv") =>
      messages
        .filter((message) => message.peer === peer && message.direction === direction)
        .flatMap(({ parts }) => parts)
        .reduce((sum, { tensor }) => sum + tensorByteLength(tensor), 0)
    const taken = times.find((one) => one.peer === peer)
    return {
      peer,
      path,
      reason,
      bytesSent: bytes("send"),
      bytesReceived: bytes("recv"),
      ...(taken === undefined ? {} : { packSeconds: taken.pack, wireSeconds: taken.wire, unpackSeconds: taken.unpack })
    }
  })

/** From 10 us to about 80 s. */
const secondsBoundaries = Metric.exponentialBoundaries({ start: 1e-5, factor: 2, count: 24 })

type Update = (context: Context.Context<never>) => void

export interface CopyTelemetry {
  /** Runs a phase: its seconds are added to the run's, and it is a span where somebody traces. */
  readonly phase: <A, E, R>(
    times: RunTimes,
    phase: CopyPhase,
    effect: Effect.Effect<A, E, R>,
    attributes?: () => Attributes
  ) => Effect.Effect<A, E, R>
  /** Runs a whole run, and counts it. */
  readonly run: <E, R>(
    effect: Effect.Effect<CopyReport, E, R>,
    attributes: () => Attributes
  ) => Effect.Effect<CopyReport, E, R>
}

/** Metrics are made once per service and peer: looking one up by its attributes costs more than counting. */
const makeCounters = (common: { readonly backend: string; readonly rank: string }) => {
  const counter = (name: string, description: string, attributes: Record<string, string>) =>
    Metric.counter(name, { description, incremental: true, attributes: { ...common, ...attributes } })
  const runs = (outcome: string) => counter("tensorferry_copy_runs_total", "Runs of the copy service", { outcome })
  const bytes = (direction: string, peer: Rank) =>
    counter("tensorferry_copy_bytes_total", "Payload bytes, by direction and peer", { direction, peer: String(peer) })
  const local = bytes("local", Number(common.rank))
  const byPeer = new Map<Rank, { readonly sent: Metric.Counter<number>; readonly received: Metric.Counter<number> }>()
  const operations = counter("tensorferry_copy_operations_total", "Sends and receives, local ones once", {})
  const staging = Metric.gauge("tensorferry_copy_staging_bytes", {
    description: "Staging buffers of the latest run",
    attributes: common
  })
  const seconds = phases.map((phase) => {
    const histogram = Metric.histogram("tensorferry_copy_phase_seconds", {
      description: "Seconds of a phase in one run",
      boundaries: secondsBoundaries,
      attributes: { ...common, phase: spanNames[phase].slice("copy.".length) }
    })
    return [phase, histogram] as const
  })
  const [ok, failed] = [runs("ok"), runs("failed")]

  const countPeer = (
    context: Context.Context<never>,
    { peer, bytesSent, bytesReceived }: CopyReport["peers"][number]
  ) => {
    let counters = byPeer.get(peer)
    if (counters === undefined) {
      counters = { sent: bytes("sent", peer), received: bytes("received", peer) }
      byPeer.set(peer, counters)
    }
    counters.sent.updateUnsafe(bytesSent, context)
    counters.received.updateUnsafe(bytesReceived, context)
  }
  return {
    succeeded:
      (report: CopyReport): Update =>
      (context) => {
        ok.updateUnsafe(1, context)
        if (report.localBytes > 0) local.updateUnsafe(report.localBytes, context)
        for (const peer of report.peers) countPeer(context, peer)
        operations.updateUnsafe(report.localOps + report.remoteOps, context)
        staging.updateUnsafe(report.stagingBytes, context)
        for (const [phase, histogram] of seconds) {
          const taken = report.phases[phase]
          // A phase that did not happen is no observation of one that was fast.
          if (taken > 0) histogram.updateUnsafe(taken, context)
        }
      },
    failed: (context: Context.Context<never>): void => failed.updateUnsafe(1, context)
  }
}

export const makeCopyTelemetry = (backend: string, rank: Rank): CopyTelemetry => {
  const counters = makeCounters({ backend, rank: String(rank) })
  const common = { backend, rank }
  return {
    phase: (times, phase, effect, attributes) =>
      Effect.clockWith((clock) => {
        const start = clock.currentTimeNanosUnsafe()
        const timed = Effect.map(effect, (value) => {
          times.seconds[phase] += Number(clock.currentTimeNanosUnsafe() - start) / 1e9
          return value
        })
        return inSpan(timed, spanNames[phase], () => ({ ...common, ...attributes?.() }))
      }),
    run: (effect, attributes) =>
      inSpan(
        Effect.withFiber((fiber) =>
          Effect.mapBoth(effect, {
            onSuccess: (report) => {
              counters.succeeded(report)(fiber.context)
              return report
            },
            onFailure: (error) => {
              counters.failed(fiber.context)
              return error
            }
          })
        ),
        "CopyService.run",
        () => ({ ...common, ...attributes() })
      )
  }
}
