// SPDX-License-Identifier: Apache-2.0
/** `tensorferry agent`: runs one agent of the tensor bus until a signal stops it. */

import * as path from "node:path"
import { pathToFileURL } from "node:url"
import {
  AgentStateLmdb,
  AgentStateMemory,
  type BusPlace,
  bootstrap,
  CommandQueueLmdb,
  CommandQueueSocket,
  KeyValueStoreEtcd,
  KeyValueStoreTcp,
  PairGroups,
  TensorBusAgents,
  TensorImporter
} from "@tensorferry/bus"
import { serveStore } from "@tensorferry/bus/store/KeyValueServer"
import { chooseCopyBackend, copyService, hostMemory, wiresOf } from "@tensorferry/core/backend/BackendLayer"
import { BackendRegistry } from "@tensorferry/core/backend/BackendRegistry"
import { processStart } from "@tensorferry/core/group/processStart"
import { modelError } from "@tensorferry/model/ModelError"
import * as Command from "effect/cli/Command"
import * as Flag from "effect/cli/Flag"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Layer from "effect/Layer"
import * as Option from "effect/Option"
import * as Schedule from "effect/Schedule"
import * as Schema from "effect/Schema"
import { backendOptions, readBackendOptions } from "../backends/optionsFlag.ts"
import { backendRegistry } from "../job/backends.ts"
import { chooseDeadline, leastSeconds, mostSeconds } from "../job/deadline.ts"
import { withFailures } from "../output/CliFailure.ts"
import { quiet } from "../output/quiet.ts"
import { print, printText } from "../text/terminal.ts"
import { agentDevices, isForGpus } from "./agentDevices.ts"
import { pathFlag } from "./paths.ts"
import { backend, backendPackages, json } from "./shared.ts"
import { defaultStore, secret, storePlace } from "./storeFlags.ts"

const flags = {
  rank: Flag.Int("rank").pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 2 ** 31 - 1 }))),
    Flag.withDescription("Rank of this agent among all agents; by default AGENT_RANK, or RANK + AGENT_RANK_OFFSET"),
    Flag.optional
  ),
  folder: pathFlag("folder", "folder").pipe(
    Flag.withDescription("Folder of the queue and the state; by default TENSOR_BUS_DIRECTORY, or /tmp"),
    Flag.optional
  ),
  store: Flag.String("store").pipe(
    Flag.withDescription(
      `Where agents find each other: HOST:PORT of the agent that serves the store, or the URL of an etcd (default ${defaultStore})`
    ),
    Flag.withDefault(defaultStore)
  ),
  serve: Flag.Boolean("serve").pipe(
    Flag.withDescription(
      "Serve the store at that address; exactly one agent must. Beyond loopback this needs TENSORFERRY_TOKEN"
    ),
    Flag.withDefault(false)
  ),
  host: Flag.String("host").pipe(
    Flag.withDescription("Address of this machine at which other agents reach it"),
    Flag.withDefault("127.0.0.1")
  ),
  deadline: Flag.Finite("deadline").pipe(
    Flag.withSchema(Schema.Finite.check(Schema.isBetween({ minimum: leastSeconds, maximum: mostSeconds }))),
    Flag.withDescription("Seconds that a command waits for other ranks; by default TENSORFERRY_DEADLINE, else 60"),
    Flag.optional
  ),
  backend: backend.pipe(
    Flag.withDescription(
      "Backend that moves the bytes; auto takes one for host tensors and, once GPU tensors are registered, one for those"
    )
  ),
  options: backendOptions,
  device: Flag.Int("device").pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 0, maximum: 65_535 }))),
    Flag.withDescription("Number of the GPU that this agent's processes use; by default LOCAL_RANK and the like, or 0"),
    Flag.optional
  ),
  socket: pathFlag("socket", "file").pipe(
    Flag.withDescription(
      "Take commands from a Unix socket at this path, in place of the LMDB queue: the Python package does"
    ),
    Flag.optional
  ),
  client: Flag.Int("client").pipe(
    Flag.withSchema(Schema.Int.check(Schema.isBetween({ minimum: 1, maximum: 2 ** 31 - 1 }))),
    Flag.withDescription("Number of the process that this agent serves: the agent ends when it does"),
    Flag.optional
  ),
  backendPackages,
  quiet,
  json
}

/** Whether a backend for host tensors reaches other hosts, given a token. */
const leavesHost = Effect.fnUntraced(function* (name: string) {
  const { descriptor } = yield* chooseCopyBackend(name, "cpu")
  if (name !== "auto") return descriptor.wireOrder !== undefined
  return descriptor.join !== undefined && wiresOf(yield* BackendRegistry).length > 0
})

const usage = (detail: string, remedy: string) => modelError("InvalidUsage", { detail, remedy })

/** The store, and the address that other agents state: the port that it got where none was stated. */
const openStore = Effect.fnUntraced(function* (address: string, isServed: boolean, token: string | undefined) {
  const withToken = token === undefined ? {} : { token }
  const place = yield* storePlace(address)
  if (place._tag === "Etcd") {
    return isServed
      ? yield* usage("An etcd serves its own store.", "Leave --serve out.")
      : { layer: KeyValueStoreEtcd.layerEtcd({ url: address }), address }
  }
  const { host, port } = place
  const open = isServed ? yield* serveStore({ host, port, ...withToken }) : port
  const stated = address.slice(0, address.lastIndexOf(":"))
  return { layer: KeyValueStoreTcp.layerTcp({ host, port: open, ...withToken }), address: `${stated}:${open}` }
})

/** How clients reach the agent. */
const clientSide = (place: BusPlace, socket: string | undefined) =>
  socket === undefined
    ? Layer.mergeAll(
        CommandQueueLmdb.layerLmdb({ path: place.commandPath, role: "agent" }),
        AgentStateLmdb.layerLmdb({ path: place.statePath, role: "agent" })
      )
    : Layer.provide(CommandQueueSocket.layerSocket({ path: socket, rank: place.rank }), AgentStateMemory.layerMemory)

/** How long the end of the client may go unnoticed. */
const clientCheck = "250 millis"

/** Ends with the client. */
const untilGone = (pid: number) =>
  Effect.gen(function* () {
    const start = processStart(pid)
    yield* Effect.repeat(Effect.void, {
      schedule: Schedule.spaced(clientCheck),
      while: () => start !== undefined && processStart(pid) === start
    })
    yield* Effect.logInfo(`Process ${pid}, which this agent serves, has ended.`)
  })

/** `tensorferry agent`, with its flags. */
export const agent = Command.make("agent", flags, (given) =>
  withFailures(
    given,
    Effect.gen(function* () {
      const rank = Option.getOrUndefined(given.rank)
      const folder = Option.getOrUndefined(given.folder)
      const place = yield* bootstrap({
        ...(rank === undefined ? {} : { rank }),
        ...(folder === undefined ? {} : { folder: path.resolve(folder) })
      })
      const deadline = Duration.millis(yield* chooseDeadline(given.deadline))
      const token = yield* secret("TENSORFERRY_TOKEN")
      const registry = backendRegistry(
        given.backendPackages,
        pathToFileURL(path.join(process.cwd(), "package.json")).href
      )
      const registered = yield* Layer.build(registry)
      const options = yield* readBackendOptions(given.options)
      const hostBackend = (yield* Effect.provideContext(isForGpus(given.backend), registered)) ? "auto" : given.backend
      const transport = Layer.provide(
        copyService({ backend: hostBackend, deadline, options: hostBackend === given.backend ? options : {} }),
        Layer.succeedContext(registered)
      )
      const { deviceTransports, importer } = yield* Effect.provideContext(
        agentDevices({
          backend: hostBackend === given.backend ? "auto" : given.backend,
          device: Option.getOrUndefined(given.device),
          deadline
        }),
        registered
      )
      const socket = Option.getOrUndefined(Option.map(given.socket, (to) => path.resolve(to)))
      const client = Option.getOrUndefined(given.client)
      const store = yield* openStore(given.store, given.serve, token)
      const services = Layer.mergeAll(
        clientSide(place, socket),
        store.layer,
        Layer.provide(hostMemory(), Layer.succeedContext(registered))
      )
      const serve = Effect.gen(function* () {
        const made = yield* TensorBusAgents.make({
          rank: place.rank,
          transport,
          leavesHost: token !== undefined && (yield* Effect.provideContext(leavesHost(hostBackend), registered)),
          deviceTransports,
          deadline,
          makeGroup: PairGroups.overTcp({ host: given.host, ...(token === undefined ? {} : { token }) })
        }).pipe(Effect.provideService(TensorImporter, importer))
        const reached = socket === undefined ? { queue: place.commandPath, state: place.statePath } : { socket }
        // One line, so that whoever starts an agent reads until its end.
        yield* given.json
          ? print(JSON.stringify({ ok: true, rank: place.rank, ...reached, store: store.address }))
          : printText(`Agent ${place.rank} serves ${socket ?? place.commandPath}. Stop it with Ctrl-C or SIGTERM.`)
        return yield* client === undefined ? made.serve : Effect.raceFirst(made.serve, untilGone(client))
      })
      return yield* Effect.provide(Effect.scoped(serve), services)
    }).pipe(Effect.scoped)
  )
).pipe(
  Command.withExamples([
    { command: "tensorferry agent --rank 0 --serve", description: "The first agent, which also serves the store" },
    {
      command: "tensorferry agent --rank 1 --folder /run/job7",
      description: "Another agent, with its files in another folder"
    }
  ])
)
