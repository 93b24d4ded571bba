// SPDX-License-Identifier: Apache-2.0
/**
 * Asks a backend what it finds on this machine. The probe is code of its author: one that throws, fails or answers with
 * anything but a result makes that backend unavailable and nothing else.
 */
import * as Cause from "effect/Cause"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import { describeThrown } from "../base/UnknownCause.ts"
import { endsWithin } from "../service/endsWithin.ts"
import { type BackendDescriptor, ProbeResult } from "./BackendDescriptor.ts"

/** Packages of descriptors that were loaded by name; descriptors that an application has at hand have none. */
const packages = new WeakMap<BackendDescriptor, string>()

/** Notes where a descriptor came from, for whoever must complain about it. */
export const notePackage = (descriptor: BackendDescriptor, name: string): void => {
  packages.set(descriptor, name)
}

const isResult = Schema.is(ProbeResult)

const atFault = (descriptor: BackendDescriptor, cause: string): ProbeResult => {
  const name = packages.get(descriptor)
  return {
    _tag: "Unavailable",
    tried: [],
    cause,
    remedy: `A probe returns a result and never fails: report this to the authors of ${name === undefined ? `backend ${descriptor.name}` : `package ${name}`}, or use another version of it.`
  }
}

/** Seconds after which a probe counts as one that never ends. */
const probeSeconds = 30

/** What the backend's probe says; never fails. */
export const probeBackend = (descriptor: BackendDescriptor): Effect.Effect<ProbeResult> =>
  endsWithin(
    Effect.suspend(() => descriptor.probe),
    Duration.seconds(probeSeconds),
    Effect.succeed(atFault(descriptor, `Its probe did not end within ${probeSeconds} seconds.`))
  ).pipe(
    Effect.map((found) => (isResult(found) ? found : atFault(descriptor, "Its probe returned no probe result."))),
    Effect.catchCause((cause) =>
      Cause.hasInterruptsOnly(cause)
        ? Effect.interrupt
        : Effect.succeed(atFault(descriptor, `Its probe failed: ${describeThrown(Cause.squash(cause))}`))
    )
  )
