// SPDX-License-Identifier: Apache-2.0
/**
 * Groups of processes: real sockets, real signals.
 */
import { createHash } from "node:crypto"
import { connect } from "node:net"
import { afterEach, assert, describe, it, vi } from "@effect/vitest"
import { freePort } from "@tensorferry/testing/machine/freePort"
import * as Effect from "effect/Effect"
import * as Logger from "effect/Logger"
import * as Result from "effect/Result"
import { challenge, encodeArrive, frameType, hello, proof } from "../../src/group/internal/frames.ts"
import { freshNonce, proofOf, protocolName, protocolVersion } from "../../src/group/internal/handshake.ts"
import { make as makeTcp } from "../../src/group/ProcessGroupTcp.ts"
import { killAll, type Step, startJob, startWorker, type Worker } from "../fixtures/process-group-harness.ts"
import { dialRaw, listenRaw, unusedPort } from "../fixtures/process-group-raw.ts"

vi.setConfig({ testTimeout: 60_000 })
afterEach(killAll)

const each = <A>(workers: ReadonlyArray<Worker>, read: (worker: Worker) => Promise<A>) => Promise.all(workers.map(read))

/** Every step succeeded, the scope ended, and the process went by itself. */
const assertFinished = (workers: ReadonlyArray<Worker>, steps: number) =>
  each(workers, async (worker) => {
    for (let step = 0; step < steps; step++) assert.deepStrictEqual(await worker.next(), { event: "step", ok: true })
    assert.deepStrictEqual(await worker.next(), { event: "closed" })
    assert.strictEqual(await worker.exit, 0)
  })

const assertError = async (worker: Worker, tag: string, ranks: ReadonlyArray<number>) => {
  const line = await worker.next()
  assert.deepInclude(line, { event: "error", tag, ranks })
  return line.event === "error" ? line.message : ""
}

/** A listener of its own kind: what a peer without manners sends. */
const sendGarbage = (port: number, garbage: Uint8Array) =>
  new Promise<void>((resolve) => {
    const socket = connect({ host: "127.0.0.1", port }, () => socket.end(garbage))
    socket.on("error", () => undefined)
    socket.on("data", () => undefined)
    socket.on("close", () => resolve())
  })

describe("TCP group", () => {
  for (const size of [1, 2, 3, 5]) {
    it(`moves payloads between ${size} ranks and leaves nothing open`, async () => {
      const steps: ReadonlyArray<Step> = [
        { do: "gather", label: "empty", bytes: 0 },
        { do: "gather", label: "small", bytes: 13 },
        { do: "broadcast", label: "config", root: size - 1, bytes: 1009 },
        { do: "barrier", label: "middle" },
        { do: "subgroup", ranks: [size - 1], step: { do: "gather", label: "alone", bytes: 5 } },
        { do: "subgroup", ranks: [size - 1, 0].slice(0, size), step: { do: "gather", label: "ends", bytes: 7 } },
        { do: "rounds", count: 200 },
        { do: "barrier", label: "end" }
      ]
      const { workers } = await startJob(size, {}, () => steps)
      await assertFinished(workers, steps.length)
    })
  }

  it("moves payloads of 8 MiB", async () => {
    const bytes = 8 * 2 ** 20
    const { workers } = await startJob(3, {}, () => [
      { do: "gather", label: "large", bytes },
      { do: "broadcast", label: "large", root: 1, bytes: bytes + 1 }
    ])
    await assertFinished(workers, 2)
  })

  it("fails a payload beyond the limit on all ranks, and goes on", async () => {
    const { workers } = await startJob(2, { maxFrameBytes: 10_000 }, (rank) => [
      { do: "gather", label: "large", bytes: rank === 1 ? 10_000 : 1 },
      { do: "gather", label: "sum", bytes: 6000 },
      { do: "gather", label: "fits", bytes: 4000 }
    ])
    await each(workers, async (worker) => {
      await assertError(worker, "ProtocolViolation", [1])
      await assertError(worker, "ProtocolViolation", [1])
    })
    await assertFinished(workers, 1)
  })

  it("names a killed member on every survivor, and the others go on", async () => {
    const steps: ReadonlyArray<Step> = [
      { do: "barrier", label: "never" },
      { do: "barrier", label: "later" },
      { do: "subgroup", ranks: [0, 1], step: { do: "barrier", label: "survivors" } }
    ]
    const { workers } = await startJob(3, {}, (rank) => (rank === 2 ? [{ do: "command" }] : steps))
    workers[2]!.child.kill("SIGKILL")
    const survivors = workers.slice(0, 2)
    await each(survivors, async (worker) => {
      await assertError(worker, "PeerGone", [2])
      await assertError(worker, "PeerGone", [2])
    })
    await assertFinished(survivors, 1)
  })

  it("names rank 0 on every survivor when it is killed", async () => {
    const steps: ReadonlyArray<Step> = [
      { do: "barrier", label: "never" },
      { do: "subgroup", ranks: [1, 2], step: { do: "barrier", label: "later" } }
    ]
    const { workers } = await startJob(3, {}, (rank) => (rank === 0 ? [{ do: "command" }] : steps))
    workers[0]!.child.kill("SIGKILL")
    const survivors = workers.slice(1)
    await each(survivors, async (worker) => {
      assert.include(await assertError(worker, "PeerGone", [0]), "was lost")
      await assertError(worker, "PeerGone", [0])
    })
    await assertFinished(survivors, 0)
  })

  it("says so when a rank left in order", async () => {
    for (const leaver of [0, 1]) {
      const { workers } = await startJob(3, {}, (rank) => (rank === leaver ? [] : [{ do: "barrier", label: "never" }]))
      await assertFinished([workers[leaver]!], 0)
      const others = workers.filter((_, rank) => rank !== leaver)
      await each(others, async (worker) => {
        assert.include(await assertError(worker, "PeerGone", [leaver]), "left the group")
      })
      await assertFinished(others, 0)
    }
  })

  it("names a stopped member after the deadline, on all ranks, and goes on when it runs again", async () => {
    const { workers } = await startJob(3, { deadline: 1000 }, (rank) => [
      ...(rank === 2 ? [{ do: "command" } as const] : []),
      { do: "barrier", label: "stopped" },
      { do: "barrier", label: "again" }
    ])
    const [, , stopped] = workers
    stopped!.child.kill("SIGSTOP")
    await each(workers.slice(0, 2), (worker) => assertError(worker, "DeadlineExceeded", [2]))
    stopped!.child.kill("SIGCONT")
    stopped!.command()
    assert.deepStrictEqual(await stopped!.next(), { event: "step", ok: true })
    await assertError(stopped!, "DeadlineExceeded", [2])
    await assertFinished(workers, 1)
  })

  it("names rank 0 when it is stopped, on all others", async () => {
    const { workers } = await startJob(3, { deadline: 1000 }, (rank) => [
      ...(rank === 0 ? [{ do: "command" } as const] : []),
      { do: "barrier", label: "stopped" },
      { do: "barrier", label: "again" }
    ])
    workers[0]!.child.kill("SIGSTOP")
    await each(workers.slice(1), async (worker) => {
      await assertError(worker, "DeadlineExceeded", [0])
      assert.include(await assertError(worker, "PeerGone", [0]), "sent nothing")
    })
    await assertFinished(workers.slice(1), 0)
  })

  it("names a member that is alive but neither arrives nor reports", async () => {
    const { workers } = await startJob(2, { deadline: 500 }, (rank) => {
      const steps: ReadonlyArray<Step> = [{ do: "barrier", label: "idle" }, { do: "command" }]
      return rank === 1 ? [{ do: "command" }, ...steps] : steps
    })
    await assertError(workers[0]!, "DeadlineExceeded", [1])
    workers[1]!.command()
    assert.deepStrictEqual(await workers[1]!.next(), { event: "step", ok: true })
    await assertError(workers[1]!, "DeadlineExceeded", [1])
    for (const worker of workers) worker.command()
    await assertFinished(workers, 1)
  })

  it("outlives a pause shorter than the deadline, of a member and of rank 0", async () => {
    for (const paused of [0, 1]) {
      const { workers } = await startJob(2, { deadline: 3000 }, (rank) => [
        ...(rank === paused ? [{ do: "command" } as const] : []),
        { do: "rounds", count: 20 }
      ])
      const worker = workers[paused]!
      worker.child.kill("SIGSTOP")
      await new Promise((resolve) => setTimeout(resolve, 300))
      worker.child.kill("SIGCONT")
      worker.command()
      assert.deepStrictEqual(await worker.next(), { event: "step", ok: true })
      await assertFinished(workers, 1)
    }
  })

  it("does not blame others for the time in which it was stopped itself", async () => {
    const { workers } = await startJob(2, { deadline: 600 }, (rank) => [
      rank === 0 ? { do: "keepAlive" } : { do: "barrier", label: "first" },
      { do: "barrier", label: rank === 0 ? "first" : "second" },
      ...(rank === 0 ? [{ do: "barrier", label: "second" } as const] : [])
    ])
    const pause = (millis: number) => new Promise((resolve) => setTimeout(resolve, millis))
    // The pauses are the matter of this test: long enough to wait, then more than two deadlines without hearing.
    await pause(200)
    workers[1]!.child.kill("SIGSTOP")
    await pause(1500)
    workers[1]!.child.kill("SIGCONT")
    workers[0]!.command()
    await Promise.all([assertFinished([workers[0]!], 3), assertFinished([workers[1]!], 2)])
  })

  it("waits beyond the deadline for ranks that are kept alive, rank 0 too", async () => {
    for (const busy of [0, 1]) {
      // Rank 2 runs into its deadline with the idle rank 3 twice; so long at least the others wait for the busy one.
      const absent: Step = { do: "subgroup", ranks: [2, 3], step: { do: "barrier", label: "absent" } }
      const before: ReadonlyArray<ReadonlyArray<Step>> = [[], [], [absent, absent], [{ do: "command" }, absent, absent]]
      const { workers } = await startJob(4, { deadline: 1000 }, (rank) => [
        ...(rank === busy ? [{ do: "keepAlive" } as const] : before[rank]!),
        { do: "barrier", label: "end" }
      ])
      const [, , waiting, idle] = workers
      for (let time = 0; time < 2; time++) await assertError(waiting!, "DeadlineExceeded", [3])
      idle!.command()
      assert.deepStrictEqual(await idle!.next(), { event: "step", ok: true })
      for (let time = 0; time < 2; time++) await assertError(idle!, "DeadlineExceeded", [3])
      workers[busy]!.command()
      assert.deepStrictEqual(await workers[busy]!.next(), { event: "step", ok: true })
      await assertFinished(workers, 1)
    }
  })

  it("fails all ranks that meet in different collectives, and goes on", async () => {
    const { workers } = await startJob(3, {}, (rank) => [
      { do: "barrier", label: rank === 1 ? "save" : "load" },
      { do: "barrier", label: "same" }
    ])
    const messages = await each(workers, async (worker) => {
      const line = await worker.next()
      assert.deepInclude(line, { event: "error", tag: "CollectiveMismatch" })
      return line.event === "error" ? line.message : ""
    })
    for (const message of messages) {
      assert.include(message, 'rank 1 in barrier "save"')
      assert.include(message, 'in barrier "load"')
    }
    await assertFinished(workers, 1)
  })
})

describe("TCP rendezvous", () => {
  const solo = { host: "127.0.0.1", port: 0, steps: [] }

  const startRankZero = async (options: {
    readonly size: number
    readonly port?: number
    readonly token?: string
    readonly connectDeadline?: number
  }) => {
    const worker = startWorker({ ...solo, rank: 0, ...options })
    const line = await worker.next()
    assert.strictEqual(line.event, "port")
    return { worker, port: line.event === "port" ? line.port : 0 }
  }

  it("lets members wait for rank 0 to start", async () => {
    const { worker, port } = await startRankZero({ size: 1 })
    await worker.next()
    await assertFinished([worker], 0)
    const early = startWorker({ ...solo, rank: 1, size: 2, port, steps: [{ do: "barrier", label: "x" }] })
    const late = startWorker({ ...solo, rank: 0, size: 2, port, steps: [{ do: "barrier", label: "x" }] })
    assert.deepStrictEqual(await late.next(), { event: "port", port })
    for (const rank of [early, late]) assert.deepStrictEqual(await rank.next(), { event: "joined" })
    await assertFinished([early, late], 1)
  })

  it("forms a group with equal tokens, and none with different or missing ones", async () => {
    const good = await startJob(2, { token: "secret" }, () => [{ do: "barrier", label: "x" }])
    await assertFinished(good.workers, 1)
    for (const token of ["wrong", undefined]) {
      // The stranger starts first: rank 0 waits no longer than its deadline, and a process may take as long to start.
      const port = await unusedPort()
      const stranger = startWorker({ ...solo, rank: 1, size: 2, port, ...(token === undefined ? {} : { token }) })
      const { worker } = await startRankZero({ size: 2, port, token: "secret", connectDeadline: 4000 })
      const message = await assertError(stranger, "RendezvousFailed", [1])
      assert.include(message, "TENSORFERRY_TOKEN")
      assert.include(await assertError(worker, "RendezvousFailed", [1]), "The tokens of rank 1 and rank 0 differ")
      await assertFinished([stranger, worker], 0)
    }
  })

  it("needs a token beyond loopback", async () => {
    for (const rank of [0, 1]) {
      const worker = startWorker({ ...solo, host: "0.0.0.0", rank, size: 2 })
      assert.include(await assertError(worker, "RendezvousFailed", [rank]), "Set TENSORFERRY_TOKEN")
      await assertFinished([worker], 0)
    }
    const open = startWorker({ ...solo, host: "0.0.0.0", rank: 0, size: 1, token: "secret" })
    assert.strictEqual((await open.next()).event, "port")
  })

  it("fails on both sides for a wrong size and for a rank that exists twice", async () => {
    const sized = await startRankZero({ size: 3 })
    const wrong = startWorker({ ...solo, rank: 1, size: 2, port: sized.port })
    for (const worker of [wrong, sized.worker]) {
      assert.include(await assertError(worker, "RendezvousFailed", [1]), "Rank 1 of 2 tried to join a group of 3")
    }
    await assertFinished([wrong, sized.worker], 0)

    const twice = await startRankZero({ size: 3 })
    const twins = [1, 1].map((rank) => startWorker({ ...solo, rank, size: 3, port: twice.port }))
    for (const worker of [...twins, twice.worker]) {
      assert.include(await assertError(worker, "RendezvousFailed", [1]), "Two processes claim rank 1")
    }
    await assertFinished([...twins, twice.worker], 0)
  })

  it("names ranks that never join, on those that did", async () => {
    const port = await unusedPort()
    const member = startWorker({ ...solo, rank: 1, size: 3, port })
    const { worker } = await startRankZero({ size: 3, port, connectDeadline: 4000 })
    for (const rank of [worker, member]) await assertError(rank, "RendezvousFailed", [2])
    await assertFinished([worker, member], 0)
  })

  it("says that nobody listens", async () => {
    const { worker, port } = await startRankZero({ size: 1 })
    await worker.exit
    const member = startWorker({ ...solo, rank: 1, size: 2, port, connectDeadline: 300 })
    assert.include(await assertError(member, "RendezvousFailed", [0]), "ECONNREFUSED")
    await assertFinished([member], 0)
  })

  it("says that the port is taken", async () => {
    const { port } = await startRankZero({ size: 2 })
    const second = startWorker({ ...solo, rank: 0, size: 2, port })
    assert.include(await assertError(second, "RendezvousFailed", [0]), "EADDRINUSE")
  })

  it("turns away what answers in rank 0's place without the token", async () => {
    const impostor = await listenRaw((peer) => {
      void peer.next().then(() => {
        peer.send(frameType.challenge, challenge.encode({ nonce: freshNonce() }))
        void peer.next().then(() => peer.send(frameType.welcome, proof.encode({ code: freshNonce() })))
      })
    })
    const member = startWorker({ ...solo, rank: 1, size: 2, port: impostor.port, token: "secret" })
    assert.include(await assertError(member, "RendezvousFailed", [0]), "does not know the token")
    await assertFinished([member], 0)
    await impostor.close()
  })

  it("treats a member that breaks the protocol as lost", async () => {
    const arrival = (members: ReadonlyArray<number>) =>
      encodeArrive({ call: 1, circle: { members, lane: "" }, label: 'barrier "x"', payload: new Uint8Array(0) })
    const breaches: ReadonlyArray<readonly [number, ReadonlyArray<Uint8Array>]> = [
      [frameType.arrive, [new Uint8Array(7)]],
      [frameType.arrive, arrival([0, 0, 1])],
      [frameType.arrive, arrival([0])],
      [frameType.arrive, arrival([1, 2])],
      [frameType.hello, []],
      [255, []]
    ]
    for (const [type, parts] of breaches) {
      const worker = startWorker({ ...solo, rank: 0, size: 2, token: "secret", steps: [{ do: "barrier", label: "x" }] })
      const line = await worker.next()
      const peer = await dialRaw(line.event === "port" ? line.port : 0)
      const claim = { protocol: protocolName, version: protocolVersion, size: 2, rank: 1, nonce: freshNonce() }
      peer.send(frameType.hello, hello.encode(claim))
      const { nonce } = Result.getOrThrow(challenge.decode((await peer.next()).body))
      peer.send(frameType.proof, proof.encode({ code: proofOf("secret", "member", claim, nonce) }))
      const { code } = Result.getOrThrow(proof.decode((await peer.next()).body))
      assert.strictEqual(code, proofOf("secret", "hub", claim, nonce))
      assert.strictEqual((await peer.next()).type, frameType.ready)
      assert.deepStrictEqual(await worker.next(), { event: "joined" })
      peer.send(type, ...parts)
      assert.include(await assertError(worker, "PeerGone", [1]), "broke the protocol")
      await assertFinished([worker], 0)
    }
  })

  it("outlives garbage on its port, and turns late ranks away", async () => {
    const { workers, port } = await startJob(2, {}, (rank) => [
      ...(rank === 1 ? [{ do: "keepAlive" } as const] : []),
      { do: "rounds", count: 20 }
    ])
    const hello = new TextEncoder().encode('{"protocol":"tensorferry-process-group","version":1}')
    const frame = (type: number, announced: number, body: Uint8Array) => {
      const header = Buffer.alloc(5)
      header.writeUInt32LE(announced, 0)
      header.writeUInt8(type, 4)
      return Buffer.concat([header, body])
    }
    // Reproducible noise of many lengths, raw and as the body of frames of every type.
    const noise = (seed: number) =>
      createHash("sha512")
        .update(`${seed}`)
        .digest()
        .subarray(0, (seed * 7) % 65)
    const garbage = [
      Buffer.alloc(0),
      Buffer.from("GET / HTTP/1.1\r\n\r\n"),
      frame(1, 2 ** 32 - 1, Buffer.alloc(0)),
      frame(1, 4097, Buffer.alloc(4097)),
      frame(1, 100, Buffer.alloc(3)),
      frame(1, hello.byteLength, hello),
      ...Array.from({ length: 60 }, (_, seed) => noise(seed)),
      ...Array.from({ length: 60 }, (_, seed) => frame(seed % 24, noise(seed).byteLength, noise(seed)))
    ]
    for (const bytes of garbage) await sendGarbage(port, bytes)

    const late = startWorker({ ...solo, rank: 1, size: 2, port })
    assert.include(await assertError(late, "RendezvousFailed", [1]), "Two processes claim rank 1")
    await assertFinished([late], 0)

    workers[1]!.command()
    assert.deepStrictEqual(await workers[1]!.next(), { event: "step", ok: true })
    await assertFinished(workers, 1)
  })
})

describe("TCP options", () => {
  for (const port of [-1, 65_536, 1.5, Number.NaN]) {
    it.effect(`port ${port} is refused on every rank before anything is opened`, () =>
      Effect.gen(function* () {
        for (const rank of [0, 1]) {
          const error = yield* Effect.flip(Effect.scoped(makeTcp({ rank, size: 2, host: "127.0.0.1", port })))
          assert.strictEqual(error.reason._tag, "RendezvousFailed")
          assert.include(error.message, `${port} is not a port`)
          assert.include(error.reason.remedy, "TENSORFERRY_PORT")
        }
      })
    )
  }

  it("refuses times that are not valid", async () => {
    for (const time of ["soon" as "1 second", 0, -5, Number.NaN]) {
      for (const option of ["deadline", "connectDeadline"] as const) {
        const made = makeTcp({ rank: 0, size: 1, host: "127.0.0.1", port: 0, [option]: time })
        const { reason } = await Effect.runPromise(Effect.flip(Effect.scoped(made)))
        assert.strictEqual(reason._tag, "RendezvousFailed")
        assert.include(reason.detail, `${option} is`)
      }
    }
  })
})

describe("a wait that takes long", () => {
  it("is told with those who are missing: first to join, then in a collective", async () => {
    const said: Array<string> = []
    const logger = Logger.make(({ message }) => void said.push(String(message)))
    const port = Promise.withResolvers<number>()
    const told = (words: string) =>
      Effect.repeat(Effect.sleep("50 millis"), { until: () => said.some((text) => text.includes(words)) })
    const common = { size: 2, host: "127.0.0.1", deadline: "30 seconds" } as const
    const first = Effect.gen(function* () {
      const onListening = (bound: number) => Effect.sync(() => port.resolve(bound))
      const group = yield* makeTcp({ ...common, rank: 0, port: 0, onListening })
      yield* group.barrier("loaded")
    })
    const second = Effect.gen(function* () {
      const bound = yield* Effect.promise(() => port.promise)
      yield* told("for rank 1 to join")
      const group = yield* makeTcp({ ...common, rank: 1, port: bound })
      yield* told("in barrier")
      yield* group.barrier("loaded")
    })
    const both = Effect.all([Effect.scoped(first), Effect.scoped(second)], { concurrency: 2 })
    await Effect.runPromise(Effect.provide(both, Logger.layer([logger])))
    assert.match(said[0]!, /^Rank 0 has waited 3 s on 127\.0\.0\.1:\d+ for rank 1 to join; this fails in \d+ s\.$/)
    assert.match(
      said[1]!,
      /^rank 0 waited 3 s in barrier "loaded" for rank 1; without a sign of progress this fails in \d+ s\.$/
    )
    assert.lengthOf(said, 2)
  })

  it("is told by a rank that finds nobody at the address of rank 0, with the address, until rank 0 comes", async () => {
    const said: Array<string> = []
    const logger = Logger.make(({ message }) => void said.push(String(message)))
    const port = await freePort()
    const common = { size: 2, host: "127.0.0.1", port, deadline: "30 seconds", connectDeadline: "50 seconds" } as const
    const early = Effect.asVoid(makeTcp({ ...common, rank: 1 }))
    const late = Effect.gen(function* () {
      yield* Effect.repeat(Effect.sleep("50 millis"), { until: () => said.length > 0 })
      yield* makeTcp({ ...common, rank: 0 })
    })
    const both = Effect.all([Effect.scoped(early), Effect.scoped(late)], { concurrency: 2 })
    await Effect.runPromise(Effect.provide(both, Logger.layer([logger])))
    // The second in which it looks is the first after three that a busy machine leaves it.
    const [, waited, left] =
      new RegExp(
        `^Rank 1 has waited (\\d+) s to join rank 0 on 127\\.0\\.0\\.1:${port} \\(ECONNREFUSED\\); this fails in (\\d+) s\\.$`
      ).exec(said[0]!) ?? []
    assert.isAtLeast(Number(waited), 3, said[0])
    assert.strictEqual(Number(waited) + Number(left), 50, said[0])
    assert.lengthOf(said, 1)
  })
})
