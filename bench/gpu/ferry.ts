// SPDX-License-Identifier: Apache-2.0
/** Updates of a whole model between two PyTorch processes on one device through the Python package, beside the usual ways. */
import { mkdtempSync, rmSync } from "node:fs"
import { tmpdir } from "node:os"
import * as path from "node:path"
import { type BusResult, limitSeconds, startProcess } from "./bus.ts"
import { python } from "./python.ts"

export interface FerryCheck {
  /** The Python files. */
  readonly data: string
  /** The Python package's sources. */
  readonly packageFolder: string
  /** The command that agents are started by. */
  readonly command: ReadonlyArray<string>
  readonly onGpu: boolean
  readonly rounds: number
  readonly shrink: number
}

/** What both sides told. */
export const measureFerry = async (check: FerryCheck): Promise<BusResult> => {
  const folder = mkdtempSync(path.join(tmpdir(), "tensorferry-ferry-"))
  const env = {
    PYTHONPATH: [check.packageFolder, check.data].join(":"),
    TENSORFERRY_COMMAND: check.command.join(" "),
    TENSORFERRY_FOLDER: folder
  }
  const clients = ["train", "engine"].map((side) => {
    const where = check.onGpu ? "cuda:0" : "cpu"
    const args = [path.join(check.data, "ferry_weights.py"), side, where, check.rounds, check.shrink, folder]
    return startProcess(python, args.map(String), env)
  })
  const limit = setTimeout(() => {
    for (const { child } of clients) child.kill("SIGKILL")
  }, limitSeconds * 1000)
  try {
    // What ends badly ends the other, which would wait for it.
    const ends = await Promise.all(
      clients.map(async ({ ended }, at) => {
        const end = await ended
        if (end !== 0) clients[1 - at]!.child.kill("SIGTERM")
        return end
      })
    )
    const lines = clients.flatMap((client, at) => [
      ...client.lines,
      ...(ends[at] === 0 ? [] : [`side ${at} ended with ${ends[at]}: ${client.errors().slice(-1500)}`])
    ])
    return {
      passed: ends.every((end) => end === 0),
      lines,
      facts: clients.flatMap(({ lines: said }) =>
        said.filter((line) => line.startsWith("{")).map((line) => JSON.parse(line))
      )
    }
  } finally {
    clearTimeout(limit)
    rmSync(folder, { recursive: true, force: true })
  }
}
