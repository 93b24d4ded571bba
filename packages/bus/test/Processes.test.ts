// SPDX-License-Identifier: Apache-2.0
/**
 * Agents as processes of their own, over LMDB files, TCP and shared memory: several steps both ways, an agent that is
 * killed and started again, a client that is killed while its tensors travel, and a client in Python.
 */
import { type ChildProcess, spawn } from "node:child_process"
import { readdirSync, readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { HostMemory } from "@tensorferry/core/service/HostMemory"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Fiber from "effect/Fiber"
import { placeOf } from "../src/bootstrap.ts"
import { all, clientOf, firstRank, inScope, kill, oneEach, run, script, startAgent, startAgents } from "./processes.ts"
import { hasLmdb, lmdbMissing, pythonLmdb, pythonLmdbMissing } from "./support.ts"
import { faultOf, fill, makeTensor } from "./tensors.ts"

/** Mapped memory of other processes. */
const foreignMaps = (child: ChildProcess): number =>
  readFileSync(`/proc/${child.pid}/maps`, "utf8")
    .split("\n")
    .filter((line) => line.includes("memfd:tensorferry")).length

describe.skipIf(!hasLmdb)(`processes${hasLmdb ? "" : ` (skipped: ${lmdbMissing})`}`, () => {
  it.live("steps both ways, an agent killed and started again, an orderly end", () =>
    inScope((folder) =>
      Effect.gen(function* () {
        const memory = yield* HostMemory
        const { port, children } = yield* startAgents(2, folder, 10_000)
        const [a, b] = [yield* clientOf(0, folder), yield* clientOf(1, folder)]
        const [x, y] = [yield* makeTensor(memory, "float32", [1000]), yield* makeTensor(memory, "bfloat16", [1000])]
        const meet = all([a.initPair(oneEach("a", "b")), b.initPair(oneEach("b", "a"))])
        const register = all([
          a.registerTensors({ batch: "weights", tensors: [["p", x]] }),
          b.registerTensors({ batch: "weights", tensors: [["p", y]] })
        ])
        const values = (step: number) => Array.from({ length: 1000 }, (_, at) => ((at * 3 + step) % 50) + 1)
        yield* meet
        yield* register
        for (let step = 0; step < 5; step++) {
          const [from, to] = step % 2 === 0 ? [x, y] : [y, x]
          fill(from, values(step))
          to.storage.bytes!.fill(0xa5)
          yield* all([
            a.transfer("weights", step % 2 === 0 ? "send" : "recv"),
            b.transfer("weights", step % 2 === 0 ? "recv" : "send")
          ])
          assert.isUndefined(faultOf(to, values(step)), `step ${step}`)
        }

        const sending = yield* Effect.forkChild(Effect.flip(a.transfer("weights", "send")), { startImmediately: true })
        while (!(yield* b.transferSignal("weights"))) yield* Effect.sleep("10 millis")
        yield* kill(children[1]!, "SIGKILL")
        const broken = yield* Fiber.join(sending)
        assert.strictEqual(broken.reason._tag, "PairBroken", broken.message)
        assert.include(broken.message, `agent ${firstRank + 1}`)
        const gone = yield* Effect.flip(b.transfer("weights", "recv"))
        assert.strictEqual(gone.reason._tag, "AgentGone", gone.message)

        const again = yield* startAgent({ rank: firstRank + 1, folder, port, deadlineMillis: 10_000 })
        yield* meet
        yield* register
        fill(x, values(7))
        yield* all([a.transfer("weights", "send"), b.transfer("weights", "recv")])
        assert.isUndefined(faultOf(y, values(7)))

        for (const child of [again.child, children[0]!]) assert.strictEqual(yield* kill(child, "SIGTERM"), 0)
        assert.deepStrictEqual(readdirSync(folder), [])
        assert.deepStrictEqual(
          readdirSync("/dev/shm").filter((name) => name.includes(`agent_rank${firstRank}`)),
          []
        )
      })
    )
  )

  it.live("a client killed while its tensors travel leaves nothing behind", () =>
    inScope((folder) =>
      Effect.gen(function* () {
        const memory = yield* HostMemory
        const { children } = yield* startAgents(2, folder, 30_000)
        const [a, b] = [yield* clientOf(0, folder), yield* clientOf(1, folder)]
        yield* all([a.initPair(oneEach("a", "b")), b.initPair(oneEach("b", "a"))])
        const before = foreignMaps(children[0]!)
        const y = yield* makeTensor(memory, "float32", [2 ** 21])
        // Processes may take longer to start than agents wait for each other.
        const registering = yield* Effect.forkChild(
          Effect.retry(b.registerTensors({ batch: "doomed", tensors: [["p", y]] }), {
            while: ({ reason }) => reason._tag === "RemoteMissing",
            times: 50
          })
        )
        const dying = yield* run("dying-client.ts", [`${firstRank}`, folder, "p", "doomed"])
        yield* Fiber.join(registering)
        assert.isAbove(foreignMaps(children[0]!), before)
        yield* kill(dying.child, "SIGKILL")
        const dropped = Effect.gen(function* () {
          while (foreignMaps(children[0]!) > before) yield* Effect.sleep("50 millis")
        })
        yield* Effect.timeout(dropped, "20 seconds")
        const unknown = yield* Effect.flip(a.cleanupBatch("doomed"))
        assert.strictEqual(unknown.reason._tag, "UnknownBatch")
        const [time, alone] = yield* Effect.timed(Effect.flip(b.transfer("doomed", "recv")))
        assert.strictEqual(alone.reason._tag, "BatchGone", alone.message)
        assert.include(
          alone.message,
          `agent ${firstRank} dropped it: its client, process ${dying.child.pid}, has exited`
        )
        assert.isBelow(Duration.toMillis(time), 1_000)
        // The pair goes on.
        yield* b.cleanupBatch("doomed")
        const [x, z] = [yield* makeTensor(memory, "float32", [4]), yield* makeTensor(memory, "float32", [4])]
        yield* all([
          a.registerTensors({ batch: "next", tensors: [["p", x]] }),
          b.registerTensors({ batch: "next", tensors: [["p", z]] })
        ])
        fill(x, [1, 2, 3, 4])
        yield* all([a.transfer("next", "send"), b.transfer("next", "recv")])
        assert.isUndefined(faultOf(z, [1, 2, 3, 4]))
      })
    )
  )

  it.live.skipIf(pythonLmdb === undefined)(
    `a client in Python is told of completion, well or not${pythonLmdb === undefined ? ` (skipped: ${pythonLmdbMissing})` : ""}`,
    () =>
      inScope((folder) =>
        Effect.gen(function* () {
          yield* startAgents(1, folder, 300)
          const place = placeOf(firstRank, folder)
          const program = [
            "import sys; sys.path.insert(0, sys.argv[1])",
            "from bus_client import Client",
            "import time",
            "client = Client(sys.argv[2], sys.argv[3])",
            "print(client.call('CleanupBatch', batch_id='none'))",
            "print(client.call('InitPair', pair_name='p', local_name='a', expected_world_size=1, remote_name='b', mesh_shape_payload=b'\\x80\\x04K\\x01\\x85.', placements_payload=None))",
            "beat = float(client.get('agent:heartbeat')); print(abs(time.time() - beat) < 5)"
          ].join("\n")
          const output = yield* Effect.callback<string>((resume) => {
            const child = spawn(pythonLmdb!, ["-c", program, script(""), place.commandPath, place.statePath])
            let text = ""
            for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (text += String(chunk)))
            child.once("close", () => resume(Effect.succeed(text)))
            return Effect.sync(() => child.kill("SIGKILL"))
          })
          const [unknown, missing, isAlive] = output.split("\n")
          assert.match(unknown ?? "", /UnknownBatch/, output)
          assert.match(missing ?? "", /RemoteMissing/, output)
          assert.strictEqual(isAlive, "True", output)
        })
      )
  )
})
