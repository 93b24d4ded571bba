// SPDX-License-Identifier: Apache-2.0
/** `tensorferry backends`: which backends there are, which work here, what the others need, and whether one keeps its contract. */
import * as path from "node:path"
import { pathToFileURL } from "node:url"
import type { BackendDescriptor, BackendError } from "@tensorferry/core/backend/BackendDescriptor"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { probeBackend } from "@tensorferry/core/backend/Probe"
import { JoinOptions } from "@tensorferry/native/joined/JoinOptions"
import * as Argument from "effect/cli/Argument"
import * as Command from "effect/cli/Command"
import * as Effect from "effect/Effect"
import * as Option from "effect/Option"
import { autoPaths, autoPathsText } from "../backends/autoPaths.ts"
import { describeOptions, optionsText } from "../backends/describeOptions.ts"
import { backendRegistry } from "../job/backends.ts"
import { withFailures } from "../output/CliFailure.ts"
import { table } from "../text/Table.ts"
import { printEither } from "../text/terminal.ts"
import { conformance } from "./conformance.ts"
import { backendPackages, json } from "./shared.ts"

const probeOne = (descriptor: BackendDescriptor) =>
  Effect.map(probeBackend(descriptor), (probe) => ({
    name: descriptor.name,
    deviceFamilies: descriptor.deviceFamilies,
    offers: (["tensorEngine", "copyDriver", "hostMemory", "replayTransfer"] as const).filter(
      (service) => descriptor[service] !== undefined
    ),
    probe
  }))

type Probed = Effect.Success<ReturnType<typeof probeOne>>

/** Probes every registered backend. */
export const probeAll = Effect.gen(function* () {
  const registry = yield* BackendRegistry
  return yield* Effect.forEach(registry.descriptors, probeOne)
})

interface Flags {
  readonly backendPackages: ReadonlyArray<string>
  readonly json: boolean
}

/** Runs `look` among the backends that the flags name; prints what it gives. */
const withBackends = <A, E>(
  flags: Flags,
  look: Effect.Effect<A, E, BackendRegistry>,
  print: (found: A) => Effect.Effect<void>
) =>
  withFailures(
    flags,
    Effect.gen(function* () {
      const from = pathToFileURL(path.join(process.cwd(), "package.json")).href
      yield* print(yield* Effect.provide(look, backendRegistry(flags.backendPackages, from)))
    })
  )

const list = (flags: Flags) =>
  withBackends(flags, probeAll, (found) => {
    const rows = found.map(({ name, deviceFamilies, offers, probe }) => [
      name,
      probe._tag === "Available" ? "available" : "unavailable",
      deviceFamilies.join(", "),
      offers.join(", ") || "nothing yet",
      probe._tag === "Available" ? probe.detail : probe.cause
    ])
    return printEither(
      flags.json,
      () => ({ ok: true, backends: found }),
      () => table(["backend", "state", "devices", "offers", "detail"], rows)
    )
  })

/** Everything that a probe says, with nothing shortened. */
const describeProbe = ({ name, deviceFamilies, offers, probe }: Probed): string => {
  const lines: ReadonlyArray<readonly [string, string]> = [
    ["state", probe._tag === "Available" ? "available" : "unavailable"],
    ["devices", deviceFamilies.join(", ")],
    ["offers", offers.join(", ") || "nothing yet"],
    ...(probe._tag === "Available"
      ? [
          ["detail", probe.detail] as const,
          ...Object.entries(probe.versions).map(([what, version]) => [`version of ${what}`, version] as const)
        ]
      : [
          ["cause", probe.cause] as const,
          ...probe.tried.map((tried) => ["tried", tried] as const),
          ["remedy", probe.remedy] as const
        ])
  ]
  return table([name, ""], lines)
}

const listCommand = Command.make("list", { backendPackages, json }, list).pipe(
  Command.withDescription("List backends, whether they work on this machine, and what is missing")
)

const probeCommand = Command.make(
  "probe",
  {
    name: Argument.String("NAME").pipe(
      Argument.withDescription("One backend, or auto for its paths; all backends by default"),
      Argument.optional
    ),
    backendPackages,
    json
  },
  (flags) => {
    if (Option.isSome(flags.name) && flags.name.value === "auto") {
      return withBackends(flags, autoPaths, (paths) =>
        printEither(
          flags.json,
          () => ({ ok: true, paths }),
          () => autoPathsText(paths)
        )
      )
    }
    const chosen = Option.match(flags.name, {
      onNone: () => probeAll,
      onSome: (name) =>
        Effect.gen(function* () {
          const registry = yield* BackendRegistry
          return [yield* probeOne(yield* registry.byName(name))]
        })
    })
    return withBackends(flags, chosen, (found) =>
      Effect.gen(function* () {
        const isLacking = Option.isSome(flags.name) && found.some(({ probe }) => probe._tag === "Unavailable")
        yield* printEither(
          flags.json,
          () => ({ ok: !isLacking, backends: found }),
          () => found.map(describeProbe).join("\n\n")
        )
        if (!isLacking) return
        yield* Effect.sync(() => {
          process.exitCode = 1
        })
      })
    )
  }
).pipe(
  Command.withDescription(
    "Show everything that backends find or miss on this machine; exit code 1 if the named backend cannot work"
  )
)

/** Whose options a name stands for: "auto" has some of its own. */
const optionsOwner = (
  name: string
): Effect.Effect<Pick<BackendDescriptor, "name" | "options">, BackendError, BackendRegistry> =>
  name === "auto"
    ? Effect.succeed({ name, options: JoinOptions })
    : Effect.flatMap(BackendRegistry, (registry) => registry.byName(name))

const optionsCommand = Command.make(
  "options",
  {
    name: Argument.String("NAME").pipe(Argument.withDescription("The backend, such as torch-copy, or auto")),
    backendPackages,
    json
  },
  (flags) =>
    withBackends(flags, optionsOwner(flags.name), (descriptor) => {
      const options = describeOptions(descriptor)
      return printEither(
        flags.json,
        () => ({ ok: true, backend: descriptor.name, options }),
        () => optionsText(descriptor.name, options)
      )
    })
).pipe(Command.withDescription("Show the options that a backend takes: name, values, default and what each does"))

export const backends = Command.make("backends", { backendPackages, json }, list).pipe(
  Command.withSubcommands([
    listCommand,
    probeCommand,
    optionsCommand,
    conformance.pipe(
      Command.withDescription("Run every case of the conformance kit on a backend; exit code 1 if one fails")
    )
  ]),
  Command.withExamples([
    { command: "tensorferry backends", description: "The same as backends list" },
    { command: "tensorferry backends probe cuda", description: "What the backend cuda looked for, and where" },
    {
      command: "tensorferry backends probe auto",
      description: "Which paths auto can take, within a host and between hosts"
    },
    { command: "tensorferry backends options torch-copy", description: "What --options accepts" },
    { command: "tensorferry backends conformance torch-copy", description: "Whether a backend keeps the contracts" }
  ])
)
