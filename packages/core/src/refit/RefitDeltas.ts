// SPDX-License-Identifier: Apache-2.0
/**
 * Which version of a session's weights came by which updates of changes: only that one is what their next changes fit.
 *
 * Invariant: what was not committed fits nothing.
 */
import type { Digest } from "../base/Digest.ts"
import type { DeltaUpdates } from "./DeltaUpdates.ts"
import type { OpenUpdate, RefitVersion } from "./RefitState.ts"

export class RefitDeltas {
  /** The identity of the version that updates led to, by a commit. */
  readonly #led = new WeakMap<DeltaUpdates, Digest>()
  /** What the open update got changes by. */
  readonly #open = new Set<DeltaUpdates>()

  /** Whether the open update is a patch to the version that these updates led to. Asked once: what comes changes it. */
  isBase(updates: DeltaUpdates, { base, kind }: OpenUpdate): boolean {
    const led = this.#led.get(updates)
    this.#led.delete(updates)
    return kind === "patch" && base !== undefined && base === led
  }

  arrived(updates: DeltaUpdates): void {
    this.#open.add(updates)
  }

  committed({ id }: RefitVersion): void {
    for (const updates of this.#open) this.#led.set(updates, id)
    this.#open.clear()
  }

  /** The open update is gone. */
  forget(): void {
    this.#open.clear()
  }
}
