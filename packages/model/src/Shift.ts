// SPDX-License-Identifier: Apache-2.0
/** Integers of a file that differ from those of the whole tensor by known numbers. */

/** How much is added to the elements of a file: to all of them, or to each its own. */
export type Shift = ReadonlyArray<number>

/** Calls `change` with each element of a tensor of 32 or 64 bits, and keeps what it gives. */
export const mapIntegers = (dtype: string, bytes: Uint8Array, change: (value: number, at: number) => number): void => {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  const width = dtype === "int64" ? 8 : 4
  for (let at = 0; at * width < bytes.length; at++) {
    if (width === 4) view.setInt32(4 * at, change(view.getInt32(4 * at, true), at), true)
    else view.setBigInt64(8 * at, BigInt(change(Number(view.getBigInt64(8 * at, true)), at)), true)
  }
}

/** Adds a shift to elements, of which the first is at `first`. */
export const addShift = (dtype: string, bytes: Uint8Array, shift: Shift, first: number): void =>
  mapIntegers(dtype, bytes, (value, at) => value + shift[shift.length === 1 ? 0 : at + first]!)
