// SPDX-License-Identifier: Apache-2.0
/**
 * Every subcommand with all of its flags, for tools that read them: pages are checked against these.
 */
import { agent } from "./agent.ts"
import { backends } from "./backends.ts"
import { bench } from "./bench.ts"
import { convert } from "./convert.ts"
import { delta } from "./delta.ts"
import { describe } from "./describe.ts"
import { doctor } from "./doctor.ts"
import { fleet } from "./fleet.ts"
import { plan } from "./plan.ts"
import { replay } from "./replay.ts"
import { report } from "./report.ts"
import { reshard } from "./reshard.ts"
import { verify } from "./verify.ts"
import { watch } from "./watch.ts"

/** The subcommands of `tensorferry`, in the order of its help. */
export const subcommands = [
  reshard,
  convert,
  plan,
  describe,
  report,
  verify,
  delta,
  replay,
  bench,
  backends,
  doctor,
  agent,
  fleet,
  watch
] as const

export { agent }
