// SPDX-License-Identifier: Apache-2.0
/**
 * Spans of phases: made where somebody traces, and next to nothing where nobody does.
 *
 * Invariant: one span per phase of an update, never one per operation. Attributes are worked out only for a tracer.
 */
import * as Effect from "effect/Effect"
import type * as Fiber from "effect/Fiber"
import * as References from "effect/References"
import * as Tracer from "effect/Tracer"

/** Attributes of a span by name, as `Effect.withSpan` takes them. */
export type Attributes = Readonly<Record<string, unknown>>

const none = (): Attributes => ({})

/** True where a tracer is installed: the spans of the default one are seen by nobody. */
const isTraced = (fiber: Fiber.Fiber<unknown, unknown>): boolean =>
  fiber.getRef(Tracer.Tracer) !== Tracer.nativeTracer && fiber.getRef(References.TracerEnabled)

/** Runs an effect as a phase of this name. */
export const inSpan = <A, E, R>(
  effect: Effect.Effect<A, E, R>,
  name: string,
  attributes: () => Attributes = none
): Effect.Effect<A, E, R> =>
  Effect.withFiber((fiber) =>
    isTraced(fiber) ? Effect.withSpan(effect, name, { attributes: attributes(), captureStackTrace: false }) : effect
  )

/** Adds what is known only later to the phase that is under way. */
export const annotatePhase = (attributes: () => Attributes): Effect.Effect<void> =>
  Effect.withFiber((fiber) => (isTraced(fiber) ? Effect.annotateCurrentSpan(attributes()) : Effect.void))

/** Notes things by name in the phase that is under way, each with attributes of its own. */
export const noteInPhase = (name: string, all: () => ReadonlyArray<Attributes>): Effect.Effect<void> =>
  Effect.withFiber((fiber) => {
    if (!isTraced(fiber)) return Effect.void
    const now = Effect.clockWith((clock) => clock.currentTimeNanos)
    const note = Effect.flatMap(now, (time) =>
      Effect.map(Effect.currentSpan, (span) => {
        for (const attributes of all()) span.event(name, time, attributes)
      })
    )
    return Effect.ignore(note)
  })
