#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0
/**
 * The `tensorferry` command. Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 signal.
 *
 * Invariant: nothing is imported, and nothing is written that an old Node cannot read, before the version of Node has been
 * looked at: an old one would end with a stack about the first thing that it lacks.
 */
const running = process.versions.node
const [major, minor] = running.split(".").map(Number) as [number, number]

const start = async (): Promise<void> => {
  const given = process.argv.slice(2)
  const isAboutItself = given.length === 0 || /^(--help|-h|--version|-v)$/.test(given.at(-1)!)
  if (isAboutItself && (await import("./help.ts")).answer(given)) return
  // Before anything else is imported: what is compiled once is not compiled at the next start.
  await (await import("./compileCache.ts")).keepCompiled()
  await import("./command.ts")
}

if (major > 22 || (major === 22 && minor >= 19)) start()
else {
  console.error(`tensorferry needs Node 22.19 or newer; this is Node ${running} (${process.execPath}).`)
  process.exitCode = 1
}

export {}
