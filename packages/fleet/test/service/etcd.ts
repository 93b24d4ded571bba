// SPDX-License-Identifier: Apache-2.0
/** A real etcd for tests, killed with the scope; it can be killed and started again with what it kept. */
import { type ChildProcess, spawn, spawnSync } from "node:child_process"
import { once } from "node:events"
import * as Effect from "effect/Effect"
import * as Schedule from "effect/Schedule"
import type { StartCommand } from "./processes.ts"
import { scratchFolder } from "./scratch.ts"

/** Why there is no etcd; undefined where there is. */
export const noEtcd = (): string | undefined =>
  spawnSync("etcd", ["--version"]).status === 0 ? undefined : "etcd is not installed"

const script = (url: string): string =>
  `fetch("${url}/v3/kv/range", { method: "POST", body: '{"key":"AA=="}' }).then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))`

/** Where it runs. */
export interface EtcdInput {
  readonly address: string
  readonly clientPort: number
  readonly peerPort: number
  readonly start?: StartCommand
}

/** Starts it, and waits until it answers. */
export const startEtcd = ({ address, clientPort, peerPort, start = spawn }: EtcdInput) =>
  Effect.gen(function* () {
    const folder = yield* scratchFolder
    const url = `http://${address}:${clientPort}`
    const peers = `http://${address}:${peerPort}`
    let running: ChildProcess | undefined
    const begin = Effect.gen(function* () {
      running = start(
        "etcd",
        [
          ...["--data-dir", folder, "--listen-client-urls", url, "--advertise-client-urls", url],
          ...[
            "--listen-peer-urls",
            peers,
            "--initial-advertise-peer-urls",
            peers,
            "--initial-cluster",
            `default=${peers}`
          ]
        ],
        { stdio: "ignore" }
      )
      // Asked from where it runs: no other process may reach it there.
      const asks = Effect.promise(async () => {
        const [code] = await once(start(process.execPath, ["-e", script(url)], { stdio: "ignore" }), "close")
        return code === 0
      })
      const answers = Effect.filterOrFail(asks, (isThere) => isThere)
      yield* Effect.orDie(Effect.retry(answers, { schedule: Schedule.spaced("50 millis"), times: 400 }))
    })
    const kill = Effect.promise(async () => {
      const ended = once(running!, "close")
      running!.kill("SIGKILL")
      await ended
    })
    yield* begin
    yield* Effect.addFinalizer(() => kill)
    /** `awayFor` between its death and its start. */
    const restart = (awayFor: number) => Effect.andThen(kill, Effect.delay(begin, `${awayFor} millis`))
    return { url, restart }
  })
