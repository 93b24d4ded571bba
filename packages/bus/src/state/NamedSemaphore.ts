// SPDX-License-Identifier: Apache-2.0
/**
 * Counting semaphores that processes of one host share by name.
 *
 * Invariants: a semaphore made here belongs to this user only and its name goes away with the scope; waiting never blocks
 * the JavaScript thread, keeps its deadline by the monotonic clock, and stops within 20 ms of an interruption.
 */
import type { BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { ReasonError, type ReasonInput, reason, reasonOf } from "@tensorferry/core/base/Reason"
import type { NativeCode, NativeFailure } from "@tensorferry/native/NativeAddon"
import { runJob } from "@tensorferry/native/NativeJob"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Schema from "effect/Schema"
import type * as EffectScope from "effect/Scope"
import { type Addon, loadAddon, type NativeSemaphore, packageName } from "../Addon.ts"

/** Why a semaphore failed, by tag. */
export const NamedSemaphoreReason = Schema.Union([
  /** Not a slash and 1 to 200 characters without another slash. */
  reason("InvalidName"),
  reason("AlreadyExists"),
  reason("NotFound"),
  reason("PermissionDenied"),
  reason("DeadlineExceeded"),
  reason("SystemFailure")
])
export type NamedSemaphoreReason = typeof NamedSemaphoreReason.Type

/** Why a semaphore could not be opened, waited for or posted; `reason` names it and the remedy. */
export class NamedSemaphoreError extends ReasonError<NamedSemaphoreError>()(
  "NamedSemaphoreError",
  NamedSemaphoreReason
) {}

/** The error of a tag, from what is known where it was seen. */
export const namedSemaphoreError = (tag: NamedSemaphoreReason["_tag"], input: ReasonInput): NamedSemaphoreError =>
  new NamedSemaphoreError({ reason: reasonOf(tag, input) })

/** A semaphore that processes of one machine share by name. */
export interface NamedSemaphore {
  readonly name: string
  /** Lets one waiter go on, now or later. */
  readonly post: Effect.Effect<void, NamedSemaphoreError>
  /** Takes one. Fails with DeadlineExceeded; without a deadline it waits for ever. */
  readonly wait: (deadline?: Duration.Input) => Effect.Effect<void, NamedSemaphoreError>
  readonly value: Effect.Effect<number, NamedSemaphoreError>
}

const tags: Partial<Record<NativeCode, NamedSemaphoreReason["_tag"]>> = {
  AlreadyExists: "AlreadyExists",
  NotFound: "NotFound",
  PermissionDenied: "PermissionDenied",
  DeadlineExceeded: "DeadlineExceeded"
}

const remedies: Record<NamedSemaphoreReason["_tag"], string> = {
  InvalidName: 'Use a name such as "/job-17": a slash, then up to 200 letters, digits, dots, dashes and underscores.',
  AlreadyExists: "Choose another name, or unlink the one left by a process that died.",
  NotFound: "Make the semaphore before it is opened.",
  PermissionDenied: "Open it as the user who made it.",
  DeadlineExceeded: "See whether the process that should post is alive, or wait longer.",
  SystemFailure:
    "Look up the system's error number that is named here, and compare limits and permissions by tensorferry doctor."
}

const failureOf = (name: string, failure: NativeFailure): NamedSemaphoreError => {
  const tag = tags[failure.code] ?? "SystemFailure"
  return namedSemaphoreError(tag, {
    backend: packageName,
    op: failure.op,
    detail: `${name}: ${failure.detail}`,
    remedy: remedies[tag],
    isRetryable: tag === "DeadlineExceeded",
    nativeCode: failure.nativeCode
  })
}

const validName = /^\/(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}$/

const checkName = (name: string): Effect.Effect<void, NamedSemaphoreError> =>
  validName.test(name)
    ? Effect.void
    : Effect.fail(
        namedSemaphoreError("InvalidName", {
          backend: packageName,
          op: "sem_open",
          detail: `${JSON.stringify(name.slice(0, 250))} is not a name of a semaphore.`,
          remedy: remedies.InvalidName
        })
      )

const makeHandle = (addon: Addon, name: string, semaphore: NativeSemaphore): NamedSemaphore => ({
  name,
  post: Effect.suspend(() => {
    const posted = addon.semaphorePost(semaphore)
    return posted.code === "Ok" ? Effect.void : Effect.fail(failureOf(name, posted))
  }),
  value: Effect.suspend(() => {
    const value = addon.semaphoreValue(semaphore)
    return value.code === "Ok" ? Effect.succeed(value.value) : Effect.fail(failureOf(name, value))
  }),
  wait: (deadline) => {
    const milliseconds =
      deadline === undefined ? -1 : Math.max(0, Duration.toMillis(Duration.fromInputUnsafe(deadline)))
    return runJob<undefined>(
      addon,
      (done) => addon.startSemaphoreWait(semaphore, milliseconds, done),
      () => {}
    ).pipe(Effect.mapError((failure) => failureOf(name, failure)))
  }
})

const openNative = (addon: Addon, name: string, create: boolean, initial: number) =>
  Effect.suspend((): Effect.Effect<NamedSemaphore, NamedSemaphoreError> => {
    const opened = addon.semaphoreOpen(name, create, initial)
    return opened.code === "Ok"
      ? Effect.succeed(makeHandle(addon, name, opened.value))
      : Effect.fail(failureOf(name, opened))
  })

/** Makes a new one, for this user only; unlinked when the scope ends. Fails with AlreadyExists. */
export const create = (
  name: string,
  initial = 0
): Effect.Effect<NamedSemaphore, NamedSemaphoreError | BackendError, EffectScope.Scope> =>
  Effect.gen(function* () {
    yield* checkName(name)
    const addon = yield* loadAddon
    return yield* Effect.acquireRelease(openNative(addon, name, true, initial), () =>
      Effect.sync(() => addon.semaphoreUnlink(name))
    )
  })

/** Opens one that another process of this user made. Fails with NotFound, and with PermissionDenied for one that others can change. */
export const open = (name: string): Effect.Effect<NamedSemaphore, NamedSemaphoreError | BackendError> =>
  Effect.gen(function* () {
    yield* checkName(name)
    return yield* openNative(yield* loadAddon, name, false, 0)
  })

/** Removes a name, whoever made it; processes that have it open go on. Fails with NotFound. */
export const unlink = (name: string): Effect.Effect<void, NamedSemaphoreError | BackendError> =>
  Effect.gen(function* () {
    yield* checkName(name)
    const addon = yield* loadAddon
    const unlinked = addon.semaphoreUnlink(name)
    if (unlinked.code !== "Ok") return yield* failureOf(name, unlinked)
  })
