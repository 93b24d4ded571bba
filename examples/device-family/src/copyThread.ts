// SPDX-License-Identifier: Apache-2.0
/**
 * The thread that is the device: copies what it is told, in order, and says when it has. While `holds` is not 0 it waits, as
 * a device with other work would.
 */
import { parentPort, workerData } from "node:worker_threads"
import type { CopyOrder, CopyOutcome } from "./ThreadDevice.ts"

const holds: Int32Array = workerData.holds

parentPort?.on("message", ({ id, from, fromOffset, to, toOffset, byteLength }: CopyOrder) => {
  for (let held = Atomics.load(holds, 0); held > 0; held = Atomics.load(holds, 0)) Atomics.wait(holds, 0, held)
  new Uint8Array(to, toOffset, byteLength).set(new Uint8Array(from, fromOffset, byteLength))
  parentPort?.postMessage({ id } satisfies CopyOutcome)
})
