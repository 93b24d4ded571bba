// SPDX-License-Identifier: Apache-2.0
/**
 * What "auto" makes of several backends, against the whole conformance kit: on one host by memory, by wires alone, and on two
 * hosts that have processes and networks of their own, by memory within each and by wires between them.
 */
import { descriptor } from "@tensorferry/backend-torch-copy"
import { makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import { isSoak } from "@tensorferry/testing/testLevel"
import { describeProcesses } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { afterAll, describe } from "vitest"

const script = new URL("../fixtures/joined-rank.ts", import.meta.url)
const cases = { stated: descriptor.capabilities, timeout: 120_000 }
const { reason, hosts, close } = await (async () => {
  const why = noHosts()
  if (why !== undefined) return { reason: why, hosts: [], close: async () => {} }
  const scope = Effect.runSync(Scope.make())
  const made = await Effect.runPromise(Scope.provide(makeHosts({ count: 2, hasOwnProcesses: true }), scope))
  return { reason: undefined, hosts: made, close: () => Effect.runPromise(Scope.close(scope, Exit.void)) }
})()
afterAll(close)

describeProcesses("auto on one host", script, { options: {} }, cases)
if (isSoak) describeProcesses("auto by wires alone", script, { options: { forbid: ["torch-copy"] } }, cases)

describe.skipIf(reason !== undefined)(`between hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`, () => {
  if (reason !== undefined) return
  const shared = { host: hosts[0]!.addresses[0]!, token: "secret" }
  for (const [name, options] of [
    ["auto by ucx or tcp", {}],
    ...(isSoak ? ([["auto by tcp", { forbid: ["ucx"] }]] as const) : [])
  ] as const) {
    describeProcesses(
      name,
      script,
      { ...shared, options },
      {
        ...cases,
        launch: (rank, command, values, settings) => hosts[rank % 2]!.start(command, values, settings)
      }
    )
  }
})
