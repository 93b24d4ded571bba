// SPDX-License-Identifier: Apache-2.0
/**
 * The archive that torch.save writes, as a stretch of a file: a zip whose members are stored as they are.
 *
 * Invariant: a member that is listed lies inside the stretch, uncompressed, under the name that it gives itself there.
 * Nothing is allocated by what the archive claims, only within stated limits.
 */
import * as Effect from "effect/Effect"
import { type CheckpointError, checkpointError } from "../checkpoint/CheckpointError.ts"
import { type OpenFile, readFully } from "../checkpoint/FileAccess.ts"

/** A part of an open file. */
export interface Stretch {
  readonly file: OpenFile
  readonly offset: number
  readonly length: number
}

/** One file of the archive. */
interface Member {
  readonly size: number
  /** Of its local header, from the start of the stretch. */
  readonly header: number
}

/** An archive of torch.save. */
export interface TorchArchive {
  /** Bytes of `data.pkl`. */
  readonly pickle: Effect.Effect<Uint8Array, CheckpointError>
  /** Where the bytes of a storage lie in the file. */
  readonly storage: (
    key: string
  ) => Effect.Effect<{ readonly offset: number; readonly length: number }, CheckpointError>
}

const endBytes = 22
const locatorBytes = 20
const wideEndBytes = 56
const localBytes = 30
/** Bytes at each end that are read at once. */
const windowBytes = 4096
/** Longest list of members, and longest pickle inside. */
const mostListBytes = 256 * 1024 * 1024

const signatures = { end: 0x06054b50, locator: 0x07064b50, wideEnd: 0x06064b50, entry: 0x02014b50, local: 0x04034b50 }

const invalidArchive = (file: string, detail: string): CheckpointError =>
  checkpointError("InvalidHeader", {
    detail: `This is no archive of torch.save: ${detail}`,
    remedy: "The file is damaged or of another kind; fetch or write it again.",
    file
  })

const viewOf = (bytes: Uint8Array): DataView => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)

const wide = (view: DataView, at: number): number => {
  const value = view.getBigUint64(at, true)
  return value > BigInt(Number.MAX_SAFE_INTEGER) ? Number.NaN : Number(value)
}

/** Sizes of 4 GiB and more stand in a field of their own, in the order of those that are marked as there. */
const widened = (extra: Uint8Array, size: number, header: number): readonly [size: number, header: number] => {
  const view = viewOf(extra)
  for (let at = 0; at + 4 <= extra.length; ) {
    const [id, length] = [view.getUint16(at, true), view.getUint16(at + 2, true)]
    if (id === 1) {
      let next = at + 4
      const end = Math.min(next + length, extra.length)
      const take = (): number => {
        if (next + 8 > end) return Number.NaN
        next += 8
        return wide(view, next - 8)
      }
      const size64 = size === 0xffffffff ? take() : size
      // The compressed size stands between them, and is the same.
      if (header === 0xffffffff && size === 0xffffffff) take()
      return [size64, header === 0xffffffff ? take() : header]
    }
    at += 4 + length
  }
  return [size, header]
}

/** Opens the archive that fills a stretch: reads its list of members. */
export const openArchive = (stretch: Stretch): Effect.Effect<TorchArchive, CheckpointError> =>
  Effect.gen(function* () {
    const { file, offset, length } = stretch
    const invalid = (detail: string) => invalidArchive(file.path, detail)
    const fetch = (at: number, bytes: number): Effect.Effect<Uint8Array, CheckpointError> =>
      Effect.suspend(() => {
        const into = new Uint8Array(bytes)
        return Effect.as(readFully(file, into, offset + at), into)
      })
    // Small members stand at both ends: two reads serve them all, and large archives are not read for their lists.
    const tailStart = Math.max(0, length - windowBytes)
    const tail = yield* fetch(tailStart, length - tailStart)
    const head = tailStart === 0 ? tail : yield* fetch(0, Math.min(windowBytes, length))
    const read = (at: number, bytes: number): Effect.Effect<Uint8Array, CheckpointError> => {
      if (!(at >= 0 && bytes >= 0 && at + bytes <= length)) return Effect.fail(invalid("a member lies outside of it."))
      if (at + bytes <= head.length) return Effect.succeed(head.subarray(at, at + bytes))
      return at >= tailStart ? Effect.succeed(tail.subarray(at - tailStart, at - tailStart + bytes)) : fetch(at, bytes)
    }
    if (length < endBytes) return yield* invalid(`it has ${length} bytes.`)
    const tailView = viewOf(tail)
    const end = tail.length - endBytes
    if (tailView.getUint32(end, true) !== signatures.end) return yield* invalid("its end is missing.")
    let [count, listBytes, listStart] = [
      tailView.getUint16(end + 10, true),
      tailView.getUint32(end + 12, true),
      tailView.getUint32(end + 16, true)
    ]
    const locator = end - locatorBytes
    if (locator >= 0 && tailView.getUint32(locator, true) === signatures.locator) {
      const wideEnd = viewOf(yield* read(wide(tailView, locator + 8), wideEndBytes))
      if (wideEnd.getUint32(0, true) !== signatures.wideEnd) return yield* invalid("its wide end is missing.")
      ;[count, listBytes, listStart] = [wide(wideEnd, 32), wide(wideEnd, 40), wide(wideEnd, 48)]
    }
    if (!(listBytes <= mostListBytes)) return yield* invalid(`its list of members has ${listBytes} bytes.`)
    if (!(listStart >= 0 && listStart + listBytes <= length)) return yield* invalid("its list lies outside of it.")
    const list = yield* read(listStart, listBytes)

    const members = new Map<string, Member>()
    const view = viewOf(list)
    let folder: string | undefined
    let at = 0
    for (let entry = 0; entry < count; entry++) {
      if (at + 46 > list.length || view.getUint32(at, true) !== signatures.entry)
        return yield* invalid("its list ends early.")
      const [flags, method] = [view.getUint16(at + 8, true), view.getUint16(at + 10, true)]
      const [compressed, plain] = [view.getUint32(at + 20, true), view.getUint32(at + 24, true)]
      const [nameBytes, extraBytes, comment] = [
        view.getUint16(at + 28, true),
        view.getUint16(at + 30, true),
        view.getUint16(at + 32, true)
      ]
      const extraAt = at + 46 + nameBytes
      const name = new TextDecoder().decode(list.subarray(at + 46, extraAt))
      const extra = list.subarray(extraAt, extraAt + extraBytes)
      const [size, header] = widened(extra, plain, view.getUint32(at + 42, true))
      if (method !== 0 || (flags & 1) !== 0 || compressed !== plain) {
        return yield* checkpointError("Unsupported", {
          detail: `The member ${JSON.stringify(name.slice(0, 80))} is compressed or encrypted.`,
          remedy: "Write the file with torch.save.",
          file: file.path
        })
      }
      if (!(size <= length && header <= length)) return yield* invalid("a member lies outside of it.")
      // All members lie in one folder, which has the name of the file that was written.
      const cut = name.indexOf("/")
      folder ??= name.slice(0, cut + 1)
      if (cut < 0 || !name.startsWith(folder)) return yield* invalid("its members lie in several folders.")
      const inner = name.slice(folder.length)
      if (members.has(inner)) return yield* invalid("two members have one name.")
      members.set(inner, { size, header })
      at = extraAt + extraBytes + comment
    }

    /** Offset in the stretch of a member's bytes. */
    const locate = (name: string) =>
      Effect.gen(function* () {
        const member = members.get(name)
        if (member === undefined) return yield* invalid(`it has no member ${JSON.stringify(name.slice(0, 80))}.`)
        const local = viewOf(yield* read(member.header, localBytes))
        if (local.getUint32(0, true) !== signatures.local) return yield* invalid("a member has no header.")
        const nameBytes = local.getUint16(26, true)
        const own = new TextDecoder().decode(yield* read(member.header + localBytes, nameBytes))
        if (own !== `${folder}${name}`) return yield* invalid("a member has another name in its list.")
        const start = member.header + localBytes + nameBytes + local.getUint16(28, true)
        if (start + member.size > length) return yield* invalid("a member lies outside of it.")
        return { offset: start, length: member.size }
      })

    const order = members.get("byteorder")
    if (order !== undefined) {
      const place = yield* locate("byteorder")
      const text = place.length > 16 ? "" : new TextDecoder().decode(yield* read(place.offset, place.length))
      if (text !== "little") {
        return yield* checkpointError("Unsupported", {
          detail: `Its bytes are of order ${JSON.stringify(text)}.`,
          remedy: "Write the file on a machine of little-endian order.",
          file: file.path
        })
      }
    }
    return {
      pickle: Effect.gen(function* () {
        const place = yield* locate("data.pkl")
        if (place.length > mostListBytes) return yield* invalid(`its pickle has ${place.length} bytes.`)
        return yield* read(place.offset, place.length)
      }),
      storage: (key) => Effect.map(locate(`data/${key}`), (place) => ({ ...place, offset: offset + place.offset }))
    }
  })
