#!/usr/bin/env node
/** The `tensorferry` command. Exit codes: 0 ok, 1 failure, 2 wrong usage, 130 signal. */
import { keepCompiled } from "./compileCache.ts"

// Before anything else is imported: what is compiled once is not compiled at the next start.
await keepCompiled()
await import("./command.ts")
