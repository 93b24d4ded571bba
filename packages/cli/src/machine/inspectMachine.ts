// SPDX-License-Identifier: Apache-2.0
/** Everything that `doctor` finds out about this machine, backends aside. */
import * as os from "node:os"
import * as Effect from "effect/Effect"
import { companionFacts } from "./companions.ts"
import { deviceFacts, findDevices } from "./devices.ts"
import type { Fact } from "./Fact.ts"
import { memoryFacts } from "./memoryLimits.ts"
import { networkFacts } from "./network.ts"
import { limitFacts } from "./processLimits.ts"
import { inspectProcessAccess } from "./processProbe.ts"
import type { SystemFiles } from "./SystemFiles.ts"
import { sharingFacts } from "./sharing.ts"
import { topologyFacts } from "./topology.ts"

export interface MachineFindings {
  readonly machine: ReadonlyArray<Fact>
  readonly sharing: ReadonlyArray<Fact>
  readonly network: ReadonlyArray<Fact>
  readonly companions: ReadonlyArray<Fact>
  readonly devices: ReadonlyArray<Fact>
}

const program = () => ({
  version: process.version,
  file: process.execPath,
  platform: os.platform(),
  architecture: os.arch(),
  kernel: os.release()
})

export const inspectMachine = (files: SystemFiles): Effect.Effect<MachineFindings> =>
  Effect.gen(function* () {
    const found = findDevices(files)
    return {
      machine: [
        ...topologyFacts(files, program()),
        ...memoryFacts(files),
        ...limitFacts(
          files,
          found.some(({ family }) => family !== undefined)
        )
      ],
      sharing: [...(yield* inspectProcessAccess), ...sharingFacts(files)],
      network: networkFacts(files),
      companions: companionFacts(files),
      devices: deviceFacts(found)
    }
  })
