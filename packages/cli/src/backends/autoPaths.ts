// SPDX-License-Identifier: Apache-2.0
/**
 * Which paths `--backend auto` can take from this machine, in the order in which it tries them. Between two ranks it takes the
 * first that both have, so what another machine lacks is not seen here.
 */
import type { BackendDescriptor, ProbeResult } from "@tensorferry/core/backend/BackendDescriptor"
import { chooseCopyBackend, wiresOf } from "@tensorferry/core/backend/BackendLayer"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { probeBackend } from "@tensorferry/core/backend/Probe"
import { readEnvironment } from "@tensorferry/core/group/ProcessGroupEnvironment"
import * as Effect from "effect/Effect"
import { table } from "../text/Table.ts"

/** One path, between ranks of one host or of two. */
export interface AutoPath {
  readonly between: "ranks of one host" | "hosts"
  readonly backend: string
  readonly ok: boolean
  /** What was found, or what is missing. */
  readonly detail: string
  readonly remedy?: string
}

const tokenRemedy = "Set TENSORFERRY_TOKEN to the same secret on every rank: without it no wire leaves its host."

const pathOf = (
  between: AutoPath["between"],
  { name }: BackendDescriptor,
  probe: ProbeResult,
  hasToken: boolean
): AutoPath => {
  if (probe._tag === "Unavailable") {
    return { between, backend: name, ok: false, detail: probe.cause, remedy: probe.remedy }
  }
  return between === "hosts" && !hasToken
    ? { between, backend: name, ok: false, detail: `${probe.detail} No token is set.`, remedy: tokenRemedy }
    : { between, backend: name, ok: true, detail: probe.detail }
}

/** The paths of "auto" for host memory, first those within a host. Fails where nothing moves host memory. */
export const autoPaths = Effect.gen(function* () {
  const registry = yield* BackendRegistry
  const { descriptor } = yield* chooseCopyBackend("auto", "cpu")
  const token = yield* Effect.orElseSucceed(
    Effect.map(readEnvironment, (environment) => environment.token),
    () => undefined
  )
  const wires = descriptor.join === undefined ? [] : wiresOf(registry)
  return yield* Effect.forEach(
    [
      ["ranks of one host", descriptor] as const,
      ...wires.map((wire): readonly [AutoPath["between"], BackendDescriptor] => ["hosts", wire])
    ],
    ([between, each]) => Effect.map(probeBackend(each), (probe) => pathOf(between, each, probe, token !== undefined))
  )
})

/** The paths as a table. */
export const autoPathsText = (paths: ReadonlyArray<AutoPath>): string =>
  table(
    ["auto between", "backend", "state", "detail", "remedy"],
    paths.map(({ between, backend, ok, detail, remedy }) => [
      between,
      backend,
      ok ? "available" : "unavailable",
      detail,
      remedy ?? ""
    ])
  )
