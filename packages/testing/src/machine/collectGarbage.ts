// SPDX-License-Identifier: Apache-2.0
/** Garbage that a test wants gone: before it counts memory, or so that finalizers run. */
import { setFlagsFromString } from "node:v8"
import { runInNewContext } from "node:vm"

let collect: (() => void) | undefined

/** Collects all garbage of the heap now. Its function is made once: each one would bring a context that is garbage itself. */
export const collectGarbage = (): void => {
  if (collect === undefined) {
    setFlagsFromString("--expose-gc")
    collect = runInNewContext("gc") as () => void
  }
  collect()
}
