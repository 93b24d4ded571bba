// SPDX-License-Identifier: Apache-2.0
/**
 * What a push from Python costs beyond the executor that moves its bytes: 1 GB between two processes of PyTorch through
 * their agents, next to as many bytes between two ranks of a copy service, in turns.
 */
import { fileURLToPath } from "node:url"
import { median } from "@tensorferry/core/base/Numbers"
import type { BenchResult } from "./measure.ts"
import { startTorch } from "./reference.ts"
import { startRanks } from "./two-process.ts"

const bytes = 2 ** 30
const rounds = 15
const warmUps = 3

const slowest = (answers: ReadonlyArray<{ readonly seconds?: unknown }>): number =>
  Math.max(...answers.map(({ seconds }) => Number(seconds)))

export const push = async (): Promise<ReadonlyArray<BenchResult>> => {
  const here = (path: string) => fileURLToPath(new URL(path, import.meta.url))
  process.env.PYTHONPATH = here("../python/src")
  process.env.TENSORFERRY_COMMAND = `${process.execPath} ${here("../packages/cli/src/main.ts")}`
  const job = `bench-${process.pid}`
  const sides = await Promise.all(["train", "engine"].map((side) => startTorch("push.py", [side, job, `${bytes}`])))
  const [trainer, engine] = sides
  if (trainer === undefined || engine === undefined) return []
  await Promise.all([trainer.next(), engine.next()])
  const ranks = await startRanks()
  await Promise.all(ranks.map((rank) => rank.ask({ case: bytes })))
  const [ours, bare]: [Array<number>, Array<number>] = [[], []]
  for (let round = -warmUps; round < rounds; round++) {
    const version = round + warmUps
    const pushed = await Promise.all([trainer, engine].map((side) => side.ask({ version })))
    for (const { wrong } of pushed)
      if ((wrong as ReadonlyArray<string>).length > 0) throw new Error(`Version ${version}: ${wrong} arrived wrong.`)
    const moved = await Promise.all(ranks.map((rank) => rank.ask({ run: true })))
    if (round < 0) continue
    // The engine waits while the trainer fills its tensors: the push is the trainer's.
    ours.push(Number(pushed[0]!.seconds) * 1e3)
    bare.push(slowest(moved) * 1e3)
  }
  for (const child of [trainer, engine, ...ranks]) child.close()
  const fastest = `fastest ${Math.min(...ours).toFixed(1)} against ${Math.min(...bare).toFixed(1)}`
  return [
    {
      case: `push of 1 GiB between two processes of PyTorch ${trainer.version}, next to the bare copy service (median of ${rounds}; ${fastest})`,
      unit: "ms",
      ours: median(ours),
      reference: median(bare),
      target: 1.3 * median(bare),
      lowerIsBetter: true
    }
  ]
}
