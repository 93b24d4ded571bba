// SPDX-License-Identifier: Apache-2.0
/**
 * Cuts what one rank sends to another into windows, the units in which messages are packed, sent and unpacked.
 *
 * Invariants: a pure function of sizes and limits that both ends know, so both cut alike and window k of all ranks can form
 * group k: a rank that waits in a group waits only for windows of the same number. A window holds at least one piece, and
 * the limits otherwise.
 */

/** A piece as both ends see it. */
export interface WindowPiece {
  readonly byteLength: number
  /** An operation of its own; the others of a window are packed into one. */
  readonly isOwn: boolean
  /** Takes room in a staging buffer at one end at least. */
  readonly isStaged: boolean
}

export interface WindowLimits {
  /** Bytes of staging for one window of one flow. */
  readonly stagedBytes: number
  /** Sends and receives of one window of one flow. */
  readonly operations: number
  /** Bytes on the wire, so that progress shows. */
  readonly wireBytes: number
}

/** Pieces `begin` to before `end`. */
export interface Window {
  readonly begin: number
  readonly end: number
}

/** Packed pieces start at multiples of this, so that they stay aligned for the widest loads. */
export const packAlignment = 16
/** Staged operations start at multiples of this. */
export const slotAlignment = 256

export const alignUp = (value: number, alignment: number): number => Math.ceil(value / alignment) * alignment

/** Operations of one group over all peers: longer groups have been seen to hang. */
const groupOperations = 512
const wireBytes = 2 ** 32
const leastStagedBytes = 4096

/**
 * Limits of one window of one flow. `peers` is the most peers that any rank has on this path: sends and receives, each in
 * two slots, share the staging.
 */
export const windowLimits = (stagingBytes: number, peers: number): WindowLimits => {
  const shares = Math.max(1, peers)
  const share = Math.floor(stagingBytes / (4 * shares) / slotAlignment) * slotAlignment
  return {
    stagedBytes: Math.max(leastStagedBytes, share),
    operations: Math.max(1, Math.floor(groupOperations / (2 * shares))),
    wireBytes
  }
}

/** Longest piece that fits a window by itself. */
export const longestPiece = ({ stagedBytes }: WindowLimits): number => stagedBytes - slotAlignment

const stagedBytesOf = ({ byteLength, isOwn, isStaged }: WindowPiece): number =>
  isStaged ? alignUp(byteLength, isOwn ? slotAlignment : packAlignment) : 0

export const cutWindows = (pieces: ReadonlyArray<WindowPiece>, limits: WindowLimits): ReadonlyArray<Window> => {
  const windows: Array<Window> = []
  let begin = 0
  let [staged, wire, operations, hasPacked] = [0, 0, 0, false]
  for (const [at, piece] of pieces.entries()) {
    const addsOperation = piece.isOwn || !hasPacked
    const isFull =
      // The packed operation itself starts aligned.
      staged + stagedBytesOf(piece) > limits.stagedBytes - slotAlignment ||
      wire + piece.byteLength > limits.wireBytes ||
      operations + (addsOperation ? 1 : 0) > limits.operations
    if (at > begin && isFull) {
      windows.push({ begin, end: at })
      begin = at
      ;[staged, wire, operations, hasPacked] = [0, 0, 0, false]
    }
    staged += stagedBytesOf(piece)
    wire += piece.byteLength
    if (piece.isOwn || !hasPacked) operations += 1
    hasPacked ||= !piece.isOwn
  }
  if (pieces.length > begin) windows.push({ begin, end: pieces.length })
  return windows
}

/**
 * Bytes to report as done after each window, so that they grow with all traffic and end at `total`: sends and receives
 * take time alike, but only received bytes are what the rank waits for.
 */
export const spreadProgress = (traffic: ReadonlyArray<number>, total: number): ReadonlyArray<number> => {
  const all = traffic.reduce((sum, bytes) => sum + bytes, 0)
  let [passed, reported] = [0, 0]
  return traffic.map((bytes) => {
    passed += bytes
    const due = all === 0 ? 0 : passed === all ? total : Math.floor((total * passed) / all)
    const step = due - reported
    reported = due
    return step
  })
}
