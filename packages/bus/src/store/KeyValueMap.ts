// SPDX-License-Identifier: Apache-2.0
/**
 * Entries in memory with their watchers: what a store serves, and what a store within one process is.
 *
 * Invariant: a watcher is notified once for any number of changes since it last looked.
 */
import type { Entries } from "./KeyValueStore.ts"

/** What an entry costs besides its text. */
const entryOverhead = 64

/** Bytes that an entry counts for. */
export const entryBytes = (key: string, value: string): number =>
  entryOverhead + Buffer.byteLength(key) + Buffer.byteLength(value)

export class KeyValueMap {
  readonly #entries = new Map<string, { readonly value: string; readonly owner: object | undefined }>()
  readonly #watchers = new Map<object, { readonly prefix: string; readonly changed: () => void }>()
  #bytes = 0

  /** What all entries count for. */
  get byteLength(): number {
    return this.#bytes
  }

  get(key: string): string | undefined {
    return this.#entries.get(key)?.value
  }

  list(prefix: string): Entries {
    const found = new Map<string, string>()
    for (const [key, { value }] of this.#entries) if (key.startsWith(prefix)) found.set(key, value)
    return found
  }

  put(key: string, value: string, owner: object | undefined): void {
    this.#forget(key)
    this.#entries.set(key, { value, owner })
    this.#bytes += entryBytes(key, value)
    this.#tell(key)
  }

  /** Puts it unless the key stands, and answers what stands. */
  create(key: string, value: string): string {
    const known = this.get(key)
    if (known !== undefined) return known
    this.put(key, value, undefined)
    return value
  }

  remove(key: string): void {
    if (this.#forget(key)) this.#tell(key)
  }

  /** Removes what this owner put. */
  disown(owner: object): void {
    for (const [key, entry] of [...this.#entries]) if (entry.owner === owner) this.remove(key)
  }

  /** Calls `changed` whenever something under the prefix changes, until the answer is called. */
  watch(prefix: string, changed: () => void): () => void {
    const watcher = {}
    this.#watchers.set(watcher, { prefix, changed })
    return () => this.#watchers.delete(watcher)
  }

  #forget(key: string): boolean {
    const known = this.#entries.get(key)
    if (known === undefined) return false
    this.#bytes -= entryBytes(key, known.value)
    return this.#entries.delete(key)
  }

  #tell(key: string): void {
    for (const { prefix, changed } of [...this.#watchers.values()]) if (key.startsWith(prefix)) changed()
  }
}
