#!/usr/bin/env node
/** The `tensorferry` command. Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 signal. */
import { keepCompiled } from "./compileCache.ts"

const given = process.argv.slice(2)
const isAboutItself = given.length === 0 || /^(--help|-h|--version|-v)$/.test(given.at(-1)!)

if (!isAboutItself || !(await import("./help.ts")).answer(given)) {
  // Before anything else is imported: what is compiled once is not compiled at the next start.
  await keepCompiled()
  await import("./command.ts")
}
