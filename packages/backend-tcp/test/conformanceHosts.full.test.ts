// SPDX-License-Identifier: Apache-2.0
/**
 * This backend against the whole conformance kit, each rank on a host of its own: as many network namespaces as a case has
 * ranks.
 */

import { makeHosts, noHosts } from "@tensorferry/simulators/hosts"
import { describeProcesses } from "@tensorferry/testing/vitest"
import * as Effect from "effect/Effect"
import * as Exit from "effect/Exit"
import * as Scope from "effect/Scope"
import { afterAll, describe } from "vitest"
import { descriptor } from "../src/descriptor.ts"

const script = new URL("./fixtures/conformance-rank.ts", import.meta.url)
const reason = noHosts()

describe.skipIf(reason !== undefined)(`tcp between hosts${reason === undefined ? "" : ` (skipped: ${reason})`}`, () => {
  if (reason !== undefined) return
  const scope = Effect.runSync(Scope.make())
  const hosts = Effect.runSync(Scope.provide(makeHosts({ count: 4 }), scope))
  afterAll(() => Effect.runPromise(Scope.close(scope, Exit.void)))
  const shared = { host: hosts[0]!.addresses[0], token: "secret" }
  describeProcesses("tcp", script, shared, {
    stated: descriptor.capabilities,
    timeout: 120_000,
    launch: (rank, command, values, options) => hosts[rank]!.start(command, values, options)
  })
})
