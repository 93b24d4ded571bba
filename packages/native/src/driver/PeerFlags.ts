// SPDX-License-Identifier: Apache-2.0
/**
 * `PeerFlags` between processes of one user on one host: each rank has a file of memory that it alone writes, and a doorbell
 * by which others wake it. Whoever knows where they are maps the file to read it, and opens the doorbell.
 *
 * Invariants
 * - A rank states something in its own memory alone, and reads what others say in theirs; numbers are all that it takes from
 *   them, and what is no exact whole number above zero counts as nothing.
 * - A statement counts as made only where the peer says, in its own memory, that it reads this rank's. It says so from the
 *   moment it has mapped it until it has read it for the last time.
 * - Before a rank sleeps it says so and looks again, and whoever states something looks afterwards who sleeps. So nobody
 *   sleeps over a statement.
 */
import { Socket } from "node:net"
import type { Rank } from "@tensorferry/core/base/Ids"
import { processStart } from "@tensorferry/core/group/processStart"
import { type PeerFlag, type PeerFlags, peerFlags } from "@tensorferry/core/service/CopyDriver"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"
import * as Schema from "effect/Schema"
import type * as Scope from "effect/Scope"
import type { NativeAnswer, NativeFailure, NativeHandle } from "../NativeAddon.ts"

const Digits = Schema.String.check(Schema.isPattern(/^\d{1,20}$/))
const Descriptor = Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))

/** Where the flags of a rank are, for processes that can name its process by number. */
export const PublishedFlags = Schema.Struct({
  descriptor: Descriptor,
  inode: Digits,
  bellDescriptor: Descriptor,
  bellInode: Digits
})
export type PublishedFlags = typeof PublishedFlags.Type

/** A doorbell of this process or another, in the addon. */
export type NativeDoorbell = NativeHandle<"doorbell">

/** What `tensorferry/doorbell.h` exports. */
export interface DoorbellControl {
  /** `readEnd` belongs to the caller, `descriptor` is what other processes open. */
  readonly createDoorbell: () => NativeAnswer<{
    readonly doorbell: NativeDoorbell
    readonly descriptor: number
    readonly inode: bigint
    readonly readEnd: number
  }>
  /** Opens another process's descriptor that wakes it, where it is still the file of that number. */
  readonly openDoorbell: (pid: number, descriptor: number, inode: bigint) => NativeAnswer<NativeDoorbell>
  /** Wakes the other process. */
  readonly ringDoorbell: (doorbell: NativeDoorbell) => NativeAnswer<undefined>
  /** Closes this process's descriptor. */
  readonly closeDoorbell: (doorbell: NativeDoorbell) => NativeAnswer<undefined>
}

/** Bytes that several processes map, until `close`. */
export interface FlagMemory {
  /** The flags, shared with the other processes. */
  readonly buffer: ArrayBuffer
  /** Unmaps them. */
  readonly close: () => void
}

/** A process of the same host, by the number that it has there for this one. */
export interface FlagOwner {
  readonly pid: number
  readonly processStart: string
}

/** What a driver lends for its flags. */
export interface FlagMeans {
  /** How other processes are woken. */
  readonly bells: DoorbellControl
  /** New zeroed memory in a file that only this user can open, and that cannot shrink. */
  readonly create: (
    byteLength: number
  ) => Effect.Effect<FlagMemory & { readonly descriptor: number; readonly inode: bigint }, NativeFailure>
  /** Maps such memory of another process, at least so many bytes of it. What is written there reaches nobody. */
  readonly open: (
    owner: FlagOwner,
    descriptor: number,
    inode: bigint,
    byteLength: number
  ) => Result.Result<FlagMemory, NativeFailure>
}

/** The flags of a rank, and what the driver does with them. */
export interface OwnFlags {
  /** The flags that peers set here. */
  readonly flags: PeerFlags
  /** For the other ranks. */
  readonly published: PublishedFlags
  /** From now on this rank reads that peer's flags; nothing happens where they cannot be opened. */
  readonly meet: (peer: Rank, owner: FlagOwner, published: PublishedFlags) => void
}

/** A line of memory for each peer, so that no two ranks write the same one, behind a line of the rank itself. */
const lineWords = 8
const wordBytes = 8
/** In the line of a peer behind the flags: this rank reads that peer's memory. */
const readsWord = peerFlags.length
/** In the rank's own line. */
const sleepsWord = 0

const flagNumbers: Readonly<Record<PeerFlag, number>> = { Ready: 0, Done: 1, Out: 2, Behind: 3, Alive: 4 }

const pageBytes = 4096
const byteLengthFor = (size: number): number => Math.ceil(((size + 1) * lineWords * wordBytes) / pageBytes) * pageBytes

const lineOf = (rank: Rank): number => (rank + 1) * lineWords

/** A number that another process stated. */
const numberAt = (words: BigInt64Array, at: number): number => {
  const value = Number(Atomics.load(words, at))
  return Number.isSafeInteger(value) && value > 0 ? value : 0
}

interface Peer {
  readonly inode: string
  readonly words: BigInt64Array
  readonly memory: FlagMemory
  readonly bell: NativeDoorbell
}

/** Calls `rung` for every time that somebody rings, or for several times at once. It does not keep the process alive. */
const listen = (readEnd: number, rung: () => void): Socket => {
  const socket = new Socket({
    fd: readEnd,
    readable: true,
    writable: false,
    onread: {
      buffer: new Uint8Array(256),
      callback: () => {
        rung()
        return true
      }
    }
  })
  socket.on("error", () => socket.destroy())
  return socket.unref()
}

/** The flags of one rank of `size`, until the scope ends. */
export const makePeerFlags = Effect.fnUntraced(function* (
  { bells, create, open }: FlagMeans,
  { rank, size }: { readonly rank: Rank; readonly size: number }
): Effect.fn.Return<OwnFlags, NativeFailure, Scope.Scope> {
  const byteLength = byteLengthFor(size)
  const own = yield* Effect.acquireRelease(create(byteLength), ({ close }) => Effect.sync(close))
  const words = new BigInt64Array(own.buffer)
  const bell = yield* Effect.acquireRelease(
    Effect.suspend(() => {
      const made = bells.createDoorbell()
      return made.code === "Ok" ? Effect.succeed(made.value) : Effect.fail(made)
    }),
    ({ doorbell }) => Effect.sync(() => bells.closeDoorbell(doorbell))
  )
  const watchers = new Set<() => void>()
  yield* Effect.acquireRelease(
    Effect.sync(() =>
      listen(bell.readEnd, () => {
        for (const watcher of [...watchers]) watcher()
      })
    ),
    (socket) => Effect.sync(() => socket.destroy())
  )

  const peers = new Map<Rank, Peer>()
  /** What peers stated in memory that is not mapped any more. */
  const before = new Map<Rank, ReadonlyArray<number>>()
  let isClosed = false

  const readPeer = ({ words: theirs }: Peer, flag: PeerFlag): number =>
    numberAt(theirs, lineOf(rank) + flagNumbers[flag])

  const part = (rankOf: Rank, peer: Peer): void => {
    Atomics.store(words, lineOf(rankOf) + readsWord, 0n)
    const earlier = before.get(rankOf)
    before.set(
      rankOf,
      peerFlags.map((flag, at) => Math.max(readPeer(peer, flag), earlier?.[at] ?? 0))
    )
    peers.delete(rankOf)
    bells.closeDoorbell(peer.bell)
    peer.memory.close()
  }
  yield* Effect.addFinalizer(() =>
    Effect.sync(() => {
      for (const [of, peer] of peers) part(of, peer)
      isClosed = true
    })
  )

  const isThere = (owner: FlagOwner): boolean => processStart(owner.pid) === owner.processStart

  const meet: OwnFlags["meet"] = (of, owner, published) => {
    const known = peers.get(of)
    if (isClosed || of === rank || of >= size || known?.inode === published.inode) return
    if (known !== undefined) part(of, known)
    if (!isThere(owner)) return
    const opened = bells.openDoorbell(owner.pid, published.bellDescriptor, BigInt(published.bellInode))
    if (opened.code !== "Ok") return
    const memory = open(owner, published.descriptor, BigInt(published.inode), byteLength)
    // A number that another process has got meanwhile would name that one's doorbell.
    if (Result.isFailure(memory) || !isThere(owner)) {
      bells.closeDoorbell(opened.value)
      if (Result.isSuccess(memory)) memory.success.close()
      return
    }
    const theirs = new BigInt64Array(memory.success.buffer, 0, byteLength / wordBytes)
    peers.set(of, { inode: published.inode, words: theirs, memory: memory.success, bell: opened.value })
    Atomics.store(words, lineOf(of) + readsWord, 1n)
  }

  const flags: PeerFlags = {
    tell: (to, flag, value) => {
      const peer = peers.get(to)
      if (peer === undefined || isClosed) return false
      const at = lineOf(to) + flagNumbers[flag]
      if (Atomics.load(words, at) < BigInt(value)) Atomics.store(words, at, BigInt(value))
      if (Atomics.load(peer.words, lineOf(rank) + readsWord) !== 1n) return false
      if (Atomics.load(peer.words, sleepsWord) !== 0n) bells.ringDoorbell(peer.bell)
      return true
    },
    read: (from, flag) => {
      const peer = peers.get(from)
      const now = peer === undefined ? 0 : readPeer(peer, flag)
      return before.size === 0 ? now : Math.max(now, before.get(from)?.[flagNumbers[flag]] ?? 0)
    },
    sleep: (isAsleep) => {
      if (!isClosed) Atomics.store(words, sleepsWord, isAsleep ? 1n : 0n)
    },
    watch: (woken) => {
      watchers.add(woken)
      return () => void watchers.delete(woken)
    }
  }
  return {
    flags,
    published: {
      descriptor: own.descriptor,
      inode: String(own.inode),
      bellDescriptor: bell.descriptor,
      bellInode: String(bell.inode)
    },
    meet
  }
})
