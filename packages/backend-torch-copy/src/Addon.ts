/**
 * The native addon as TypeScript sees it, and how it is found. Nothing is loaded before the first use.
 *
 * Invariant: native functions never throw; they answer `Ok` with a value, or a code with what failed. A missing, foreign
 * or outdated addon is a `BackendError` "Unavailable".
 */
import { createRequire } from "node:module"
import { fileURLToPath } from "node:url"
import { type BackendError, backendError } from "@tensorferry/core/backend/BackendDescriptor"
import { dtypes } from "@tensorferry/core/base/DType"
import * as Effect from "effect/Effect"
import * as Result from "effect/Result"

/** Name of this backend in errors and reports. */
export const backendName = "torch-copy"

/** Functions and their meaning in the addon; raised there and here together. */
const abiVersion = 2

export type NativeCode =
  | "InvalidArgument"
  | "InvalidHandle"
  | "OutOfMemory"
  | "NotFound"
  | "AlreadyExists"
  | "PermissionDenied"
  | "PeerGone"
  | "Cancelled"
  | "DeadlineExceeded"
  | "Unsupported"
  | "SystemFailure"

export interface NativeFailure {
  readonly code: NativeCode
  /** The call that failed, as in a manual page. */
  readonly op: string
  readonly detail: string
  /** errno, or 0. */
  readonly nativeCode: number
  /** Which entry of a table failed, or -1. */
  readonly item: number
}

export type NativeAnswer<A> = { readonly code: "Ok"; readonly value: A } | NativeFailure

/** An object that lives in the addon; `Kind` keeps them apart in types, tags do so at run time. */
export interface NativeHandle<Kind extends string> {
  readonly nativeKind: Kind
}
export type NativePool = NativeHandle<"pool">
export type NativeJobHandle = NativeHandle<"job">
export type NativeMemoryHandle = NativeHandle<"memory">
export type NativeSemaphore = NativeHandle<"semaphore">

export interface NativeMemory {
  readonly memory: NativeMemoryHandle
  readonly address: bigint
  readonly byteLength: number
  /** -1 for memory of another process. */
  readonly descriptor: number
  readonly inode: bigint
  /** Present where JavaScript may touch the bytes. */
  readonly buffer?: ArrayBuffer
}

export interface NativeIdentity {
  readonly pid: number
  readonly processStart: bigint
  /** Equal for processes that can name each other by number. */
  readonly space: string
  readonly cookieAddress: bigint
  readonly cookie: Uint8Array
}

type Done<A> = (answer: NativeAnswer<A>) => void

export interface Addon {
  readonly abiVersion: number
  readonly dtypes: ReadonlyArray<string>
  readonly codes: ReadonlyArray<string>
  readonly instructionSet: string
  readonly createPool: (threads: number) => NativeAnswer<NativePool>
  /** Cancels and joins. */
  readonly closePool: (pool: NativePool) => NativeAnswer<undefined>
  readonly cancelJob: (job: NativeJobHandle) => NativeAnswer<undefined>
  readonly movedBytes: (job: NativeJobHandle) => NativeAnswer<number>
  /** `refuseOverlap` answers InvalidArgument where dense regions of this process would race. */
  readonly startMoves: (
    pool: NativePool,
    table: BigUint64Array,
    refuseOverlap: boolean,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly startReduce: (
    pool: NativePool,
    table: BigUint64Array,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
  readonly startCreateMemory: (
    pool: NativePool,
    byteLength: number,
    done: Done<NativeMemory>
  ) => NativeAnswer<NativeJobHandle>
  readonly closeMemory: (memory: NativeMemoryHandle, buffer: ArrayBuffer | undefined) => NativeAnswer<undefined>
  readonly openMemory: (
    pid: number,
    processStart: bigint,
    descriptor: number,
    inode: bigint,
    byteEnd: number,
    expose: boolean
  ) => NativeAnswer<NativeMemory>
  readonly identity: () => NativeAnswer<NativeIdentity>
  readonly processStart: (pid: number) => NativeAnswer<bigint>
  readonly addressOf: (bytes: Uint8Array) => NativeAnswer<bigint>
  readonly readProcess: (pid: number, address: bigint, into: Uint8Array) => NativeAnswer<undefined>
  readonly semaphoreOpen: (name: string, create: boolean, initial: number) => NativeAnswer<NativeSemaphore>
  readonly semaphorePost: (semaphore: NativeSemaphore) => NativeAnswer<undefined>
  readonly semaphoreValue: (semaphore: NativeSemaphore) => NativeAnswer<number>
  readonly semaphoreUnlink: (name: string) => NativeAnswer<undefined>
  /** A negative time waits for ever. */
  readonly startSemaphoreWait: (
    semaphore: NativeSemaphore,
    milliseconds: number,
    done: Done<undefined>
  ) => NativeAnswer<NativeJobHandle>
}

/** The folder that holds `build` or `prebuilds`: one above both `src` and `dist`. */
export const packageFolder = fileURLToPath(new URL("..", import.meta.url))

const unavailable = (detail: string): BackendError =>
  backendError("Unavailable", {
    backend: backendName,
    op: "load addon",
    detail,
    remedy: "Run `pnpm run build:native` in the package (it needs CMake and a C++20 compiler), then try again.",
    scope: "service"
  })

const require = createRequire(import.meta.url)

/** Type numbers are positions in a list that both sides keep: unequal lists would mix up types. */
const checkAddon = (candidate: unknown): Result.Result<Addon, BackendError> => {
  const addon = candidate as Partial<Addon> | null
  if (addon?.abiVersion !== abiVersion) {
    return Result.fail(
      unavailable(`The addon has version ${addon?.abiVersion ?? "none"}, this package needs ${abiVersion}.`)
    )
  }
  return addon.dtypes?.join() === dtypes.join()
    ? Result.succeed(addon as Addon)
    : Result.fail(unavailable("The addon knows other element types than @tensorferry/core."))
}

const loadFrom = (folder: string): Result.Result<Addon, BackendError> =>
  Result.flatMap(
    Result.try({
      try: (): unknown => require("node-gyp-build")(folder),
      catch: (cause) => unavailable(`No addon could be loaded from ${folder}: ${String(cause).split("\n")[0]}.`)
    }),
    checkAddon
  )

let loaded: Addon | undefined

/** Loads the addon, once per process. Fails with "Unavailable"; a later call tries again. */
export const loadAddon: Effect.Effect<Addon, BackendError> = Effect.suspend(() => {
  if (loaded !== undefined) return Effect.succeed(loaded)
  return Effect.tap(Effect.fromResult(loadFrom(packageFolder)), (addon) =>
    Effect.sync(() => {
      loaded = addon
    })
  )
})

/** Loads the addon of another folder. */
export const loadAddonFrom = (folder: string): Effect.Effect<Addon, BackendError> =>
  Effect.suspend(() => Effect.fromResult(loadFrom(folder)))

/** An answer as a `Result`. */
export const resultOf = <A>(answer: NativeAnswer<A>): Result.Result<A, NativeFailure> =>
  answer.code === "Ok" ? Result.succeed(answer.value) : Result.fail(answer)
