/**
 * Keeps the JavaScript thread from falling asleep while a run is under way: it looks for events again and again, for at most
 * a limit per run.
 *
 * A thread that sleeps is woken by the operating system, on a core that slept as well; of a run of 40 ms between two
 * processes this cost half a millisecond. Timers, messages and other work of the thread go on between two looks.
 */

/** Two cores per rank leave one for the work that the ranks wait for. */
const coresPerRank = 2

/** Milliseconds of every run; none where the ranks could take cores from each other. */
export const defaultBusyPollMillis = (cores: number, ranks: number): number => (cores >= coresPerRank * ranks ? 100 : 0)

/** Begins to poll; the answer ends it. Nothing of it is left behind afterwards, or when the limit has passed. */
export const busyPoll = (limitMillis: number): (() => void) => {
  if (!(limitMillis > 0)) return () => {}
  const until = performance.now() + limitMillis
  let next: NodeJS.Immediate | undefined
  const look = (): void => {
    next = performance.now() < until ? setImmediate(look) : undefined
  }
  look()
  return () => {
    clearImmediate(next)
    next = undefined
  }
}
