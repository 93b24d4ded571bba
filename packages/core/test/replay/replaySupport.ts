// SPDX-License-Identifier: Apache-2.0
/** Shared by the tests of replay: rows that tell which they are, and host memory of this process. */
import * as Result from "effect/Result"
import { makeRowLayout } from "../../src/replay/ReplayRowLayout.ts"
import { cpu } from "../../src/tensor/Device.ts"
import { makeStorage, type Storage } from "../../src/tensor/Storage.ts"

/** A row's number and bytes that follow from it. */
export const replayLayout = Result.getOrThrow(
  makeRowLayout([
    { name: "row", dtype: "int64", shape: [] },
    { name: "rest", dtype: "uint8", shape: [19] }
  ])
)

let nextAddress = 2n ** 40n

export const storageOf = (byteLength: number): Storage => {
  const address = nextAddress
  nextAddress += BigInt(Math.ceil((byteLength + 1) / 4096) * 4096)
  return makeStorage({ device: cpu, address, byteLength, bytes: new Uint8Array(byteLength), release: () => undefined })
}

/** Packed rows, numbered from `first`. */
export const rowsFrom = (first: number, count: number): Uint8Array => {
  const { rowBytes } = replayLayout
  const bytes = new Uint8Array(count * rowBytes)
  const view = new DataView(bytes.buffer)
  for (let row = 0; row < count; row++) {
    view.setBigInt64(row * rowBytes, BigInt(first + row), true)
    bytes.fill((first + row) % 199, row * rowBytes + 8, row * rowBytes + 27)
  }
  return bytes
}
