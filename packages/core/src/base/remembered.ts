// SPDX-License-Identifier: Apache-2.0
/** What was made of values. */

/** A function that makes something of a value once, and keeps it for as long as the value is there. */
export const remembered = <K extends object, A>(make: (key: K) => A): ((key: K) => A) => {
  const made = new WeakMap<K, { readonly value: A }>()
  return (key) => {
    const known = made.get(key)
    if (known !== undefined) return known.value
    const value = make(key)
    made.set(key, { value })
    return value
  }
}
