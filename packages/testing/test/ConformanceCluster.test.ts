// SPDX-License-Identifier: Apache-2.0
/** The honest subjects pass the whole kit: the reference engine, and the copy service over every in-process transport. */
import * as Duration from "effect/Duration"
import { loopbackLayer, makeLoopbackNetwork, strictLayer } from "../src/Loopback.ts"
import * as ReferenceEngine from "../src/ReferenceEngine.ts"
import { makeSharedFlags } from "../src/SharedFlags.ts"
import { makeSharedMemory, sharedMemoryLayer } from "../src/SharedMemory.ts"
import { type ClusterOf, runCopyCase, runCopyDriverCase } from "../src/VirtualCluster.ts"
import { describeCopyDriver, describeCopyService, describeTensorEngine } from "../src/vitest.ts"

describeTensorEngine("reference", ReferenceEngine.layer())

const clusters: Record<string, ClusterOf<never>> = {
  gather: () => ({}),
  packed: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => loopbackLayer(network, { gather: false }), stagingBytes: 4096 }
  },
  strict: () => {
    const network = makeLoopbackNetwork()
    return { driver: () => strictLayer(network, { gather: false, maxMessageBytes: 10_007 }) }
  },
  "strict with task ids": () => {
    const network = makeLoopbackNetwork()
    return { driver: () => strictLayer(network, { requiresTaskId: true, maxMessageBytes: 65_536 }) }
  },
  pairwise: () => {
    const memory = makeSharedMemory()
    return { driver: () => sharedMemoryLayer(memory) }
  },
  "pairwise with flags": () => {
    const memory = makeSharedMemory(makeSharedFlags())
    return { driver: () => sharedMemoryLayer(memory) }
  }
}

for (const [name, clusterOf] of Object.entries(clusters)) {
  const live: ClusterOf<never> = () => ({ ...clusterOf(), groupDeadline: Duration.seconds(10) })
  describeCopyService(name, runCopyCase(live))
  describeCopyDriver(name, runCopyDriverCase(live))
}
