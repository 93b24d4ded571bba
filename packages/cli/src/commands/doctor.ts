/** `tensorferry doctor`: what this machine has, what each backend would do here, and the remedy where it cannot. */
import { statfsSync } from "node:fs"
import { readFile } from "node:fs/promises"
import * as os from "node:os"
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import * as Console from "effect/Console"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { backendRegistry } from "../job/backends.ts"
import { withFailures } from "../output/CliFailure.ts"
import { formatBytes, table } from "../output/Table.ts"
import { probeAll } from "./backends.ts"
import { backendPackages, json } from "./shared.ts"

/** A text file of the system, where it exists. */
const readText = (file: string): Effect.Effect<Option.Option<string>> =>
  Effect.option(
    Effect.map(
      Effect.tryPromise(() => readFile(file, "utf8")),
      (text) => text.trim()
    )
  )

const inspect = Effect.gen(function* () {
  const limits = yield* readText("/proc/self/limits")
  const openFiles = Option.map(limits, (text) => /^Max open files\s+(\S+)/m.exec(text)?.[1] ?? "unknown")
  const memoryLimit = yield* readText("/sys/fs/cgroup/memory.max")
  const tracing = yield* readText("/proc/sys/kernel/yama/ptrace_scope")
  const shared = yield* Effect.option(Effect.try(() => statfsSync("/dev/shm")))
  const facts: ReadonlyArray<readonly [string, string]> = [
    ["node", `${process.version} (${process.execPath})`],
    ["platform", `${os.platform()} ${os.arch()}, kernel ${os.release()}`],
    ["processors", `${os.availableParallelism()} of ${os.cpus().length}, ${os.cpus()[0]?.model ?? "unknown model"}`],
    ["memory", `${formatBytes(os.freemem())} free of ${formatBytes(os.totalmem())}`],
    ["memory limit", Option.getOrElse(memoryLimit, () => "none found")],
    ["open files", Option.getOrElse(openFiles, () => "unknown")],
    [
      "shared memory",
      Option.match(shared, {
        onNone: () => "/dev/shm cannot be read",
        onSome: (found) =>
          `/dev/shm: ${formatBytes(found.bavail * found.bsize)} free (not used: memory files need no name)`
      })
    ],
    [
      "cross-process reads",
      Option.match(tracing, {
        onNone: () => "not restricted by ptrace_scope; processes of one user may map each other's memory files",
        onSome: (scope) =>
          scope === "0"
            ? "allowed between processes of one user"
            : `restricted (ptrace_scope ${scope}); remedy: sysctl kernel.yama.ptrace_scope=0, or run ranks under one parent`
      })
    ]
  ]
  return facts
})

export const doctor = Command.make("doctor", { backendPackages, json }, (flags) =>
  withFailures(
    flags.json,
    Effect.gen(function* () {
      const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
      const facts = yield* inspect
      const found = yield* Effect.provide(probeAll, backendRegistry(flags.backendPackages, from))
      if (flags.json) {
        yield* Console.log(JSON.stringify({ ok: true, machine: Object.fromEntries(facts), backends: found }, null, 2))
        return
      }
      yield* Console.log(table(["machine", ""], facts))
      for (const { name, probe } of found) {
        yield* Console.log(
          probe._tag === "Available"
            ? `\n✓ ${name}: ${probe.detail}`
            : `\n✗ ${name}: ${probe.cause}\n  remedy: ${probe.remedy}\n  looked at: ${probe.tried.join(", ") || "nothing"}`
        )
      }
    })
  )
).pipe(Command.withDescription("Inspect the machine and every backend, with remedies"))
