// SPDX-License-Identifier: Apache-2.0
/**
 * What the tests of examples share: the folder of somebody who installed the packed packages, and how commands run there.
 */
import { spawn } from "node:child_process"
import * as path from "node:path"
import { inject } from "vitest"
import type { Packed } from "../../scripts/pack.ts"

export interface Stranger {
  /** Outside the workspace: a copy of the examples, with `node_modules` from tarballs beside them. */
  readonly folder: string
  readonly packed: ReadonlyArray<Packed>
}

declare module "vitest" {
  interface ProvidedContext {
    readonly stranger: Stranger
  }
}

export const stranger = inject("stranger")

export { isSoak } from "@tensorferry/testing/testLevel"

/** The folder of an example. */
export const exampleFolder = (...names: ReadonlyArray<string>): string => path.join(stranger.folder, ...names)

export interface Ended {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

interface RunOptions {
  readonly cwd?: string
  readonly env?: { readonly [name: string]: string }
  /** Milliseconds until the command is killed; its code is then null. */
  readonly deadline?: number
}

/** Runs a command with this Node first on the PATH, and no launcher's variables from outside. */
export const run = (command: string, args: ReadonlyArray<string>, options: RunOptions = {}): Promise<Ended> =>
  new Promise((resolve, reject) => {
    const { RANK, WORLD_SIZE, SPOOL_FOLDER, NODE_OPTIONS, VITEST, VITEST_MODE, VITEST_POOL_ID, ...inherited } =
      process.env
    const bins = [path.join(stranger.folder, "node_modules/.bin"), path.dirname(process.execPath)]
    const child = spawn(command, args, {
      cwd: options.cwd ?? stranger.folder,
      env: { ...inherited, ...options.env, PATH: [...bins, inherited.PATH].join(path.delimiter) },
      timeout: options.deadline ?? 200_000,
      killSignal: "SIGKILL",
      stdio: ["ignore", "pipe", "pipe"]
    })
    let [stdout, stderr] = ["", ""]
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      stdout += text
    })
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      stderr += text
    })
    child.once("error", reject)
    child.once("close", (code) => resolve({ code, stdout, stderr }))
  })

/** For messages of assertions. */
export const shown = ({ code, stdout, stderr }: Ended): string => `code ${code}\n${stdout}\n${stderr}`
