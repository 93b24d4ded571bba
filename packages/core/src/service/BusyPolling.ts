// SPDX-License-Identifier: Apache-2.0
/**
 * Keeps the JavaScript thread from falling asleep during a wait: it looks for events again and again, for at most a limit.
 *
 * A thread that sleeps is woken by the operating system, on a core that slept as well; of a run of 40 ms between two
 * processes this cost half a millisecond. Timers, messages and other work of the thread go on between two looks.
 */
import * as Effect from "effect/Effect"

/** Enough for what the processes wait for, which may be threads of theirs. */
const coresPerProcess = 4

/** Milliseconds of every wait; none where so many processes could take cores from their own work. */
export const defaultBusyPollMillis = (cores: number, processes: number): number =>
  cores >= coresPerProcess * processes ? 100 : 0

/** Looks in every turn of the event loop until it is over or the limit has passed, and then reports; the answer ends it. */
const lookAgain = (limitMillis: number, isOver: () => boolean, ended: () => void): (() => void) => {
  const until = performance.now() + limitMillis
  let next: NodeJS.Immediate | undefined
  let isStopped = false
  const look = (): void => {
    const isDone = isOver() || !(performance.now() < until)
    // What looks may have ended the polling itself.
    if (isStopped) return
    if (isDone) ended()
    else next = setImmediate(look)
  }
  look()
  return () => {
    isStopped = true
    clearImmediate(next)
  }
}

/**
 * Begins to poll; the answer ends it. Nothing of it is left behind afterwards, or when the limit has passed, which is reported.
 * `look` is called in every turn, for what no event of the thread announces.
 */
export const busyPoll = (
  limitMillis: number,
  look: () => void = () => {},
  passed: () => void = () => {}
): (() => void) =>
  lookAgain(
    limitMillis,
    () => {
      look()
      return false
    },
    passed
  )

/** Asks again and again; ends when the answer is true or the limit has passed. */
export const pollUntil = (isOver: () => boolean, limitMillis: number): Effect.Effect<void> =>
  Effect.callback((resume) => Effect.sync(lookAgain(limitMillis, isOver, () => resume(Effect.void))))
