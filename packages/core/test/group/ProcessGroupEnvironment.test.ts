// SPDX-License-Identifier: Apache-2.0
/**
 * What launchers set, and what they must not leave out.
 */
import { assert, describe, it } from "@effect/vitest"
import { freePort } from "@tensorferry/testing/machine/freePort"
import * as ConfigProvider from "effect/ConfigProvider"
import * as Duration from "effect/Duration"
import * as Effect from "effect/Effect"
import * as Redacted from "effect/Redacted"
import { firstHost, layer, readEnvironment } from "../../src/group/ProcessGroupEnvironment.ts"
import { ProcessGroup } from "../../src/service/ProcessGroup.ts"

type Variables = { readonly [name: string]: string }

const withEnvironment = (variables: Variables) =>
  Effect.provide(ConfigProvider.layer(ConfigProvider.fromEnvRecord(variables)))
const read = (variables: Variables) => readEnvironment.pipe(withEnvironment(variables))

const torchrun = {
  RANK: "3",
  WORLD_SIZE: "8",
  LOCAL_RANK: "1",
  LOCAL_WORLD_SIZE: "2",
  MASTER_ADDR: "host1",
  MASTER_PORT: "29500"
}
const slurm = {
  SLURM_PROCID: "5",
  SLURM_NTASKS: "8",
  SLURM_LOCALID: "1",
  SLURM_STEP_NODELIST: "node[03-04,7]",
  SLURM_LAUNCH_NODE_IPADDR: "10.0.0.9",
  TENSORFERRY_PORT: "4000"
}
const openmpi = {
  OMPI_COMM_WORLD_RANK: "1",
  OMPI_COMM_WORLD_SIZE: "2",
  OMPI_COMM_WORLD_LOCAL_RANK: "1",
  OMPI_COMM_WORLD_LOCAL_SIZE: "2",
  TENSORFERRY_PORT: "4000"
}
const without = (variables: Variables, ...names: ReadonlyArray<string>): Variables =>
  Object.fromEntries(Object.entries(variables).filter(([name]) => !names.includes(name)))

describe("process group environment", () => {
  const cases: ReadonlyArray<readonly [string, Variables, unknown]> = [
    ["torchrun", torchrun, ["torchrun", 3, 8, 1, { host: "host1", port: 29501 }]],
    ["a port of its own", { ...torchrun, TENSORFERRY_PORT: "7" }, ["torchrun", 3, 8, 1, { host: "host1", port: 7 }]],
    [
      "torchrun on one machine",
      { ...torchrun, LOCAL_WORLD_SIZE: "8" },
      ["torchrun", 3, 8, 1, { host: "127.0.0.1", port: 29501 }]
    ],
    ["torchrun before Slurm", { ...slurm, ...torchrun }, ["torchrun", 3, 8, 1, { host: "host1", port: 4000 }]],
    ["one rank", { RANK: "0", WORLD_SIZE: "1" }, ["torchrun", 0, 1, 0, undefined]],
    ["Slurm", slurm, ["slurm", 5, 8, 1, { host: "node03", port: 4000 }]],
    [
      "Slurm with an address",
      { ...slurm, MASTER_ADDR: "m", MASTER_PORT: "1" },
      ["slurm", 5, 8, 1, { host: "m", port: 4000 }]
    ],
    [
      "Slurm without a node list",
      without(slurm, "SLURM_STEP_NODELIST"),
      ["slurm", 5, 8, 1, { host: "10.0.0.9", port: 4000 }]
    ],
    [
      "Slurm on one machine",
      { ...slurm, SLURM_STEP_NODELIST: "node7" },
      ["slurm", 5, 8, 1, { host: "127.0.0.1", port: 4000 }]
    ],
    ["a shell inside a Slurm allocation", { SLURM_NTASKS: "8" }, ["none", 0, 1, 0, undefined]],
    ["Open MPI on one machine", openmpi, ["openmpi", 1, 2, 1, { host: "127.0.0.1", port: 4000 }]],
    [
      "Open MPI on several machines",
      { ...openmpi, OMPI_COMM_WORLD_LOCAL_SIZE: "1", MASTER_ADDR: "m" },
      ["openmpi", 1, 2, 1, { host: "m", port: 4000 }]
    ],
    ["nothing", {}, ["none", 0, 1, 0, undefined]],
    ["empty variables", { RANK: "", WORLD_SIZE: "" }, ["none", 0, 1, 0, undefined]]
  ]
  for (const [name, variables, expected] of cases) {
    it.effect(`understands ${name}`, () =>
      Effect.gen(function* () {
        const { launcher, rank, size, localRank, address } = yield* read(variables)
        assert.deepStrictEqual([launcher, rank, size, localRank, address], expected)
      })
    )
  }

  const mistakes: ReadonlyArray<readonly [string, Variables]> = [
    ["WORLD_SIZE", without(torchrun, "WORLD_SIZE")],
    ["RANK", without(torchrun, "RANK")],
    ["RANK", { ...torchrun, RANK: "8" }],
    ["RANK", { ...torchrun, RANK: "-1" }],
    ["RANK", { ...torchrun, RANK: "1.5" }],
    ["WORLD_SIZE", { ...torchrun, WORLD_SIZE: "eight" }],
    ["RANK", { ...torchrun, RANK: "0", WORLD_SIZE: "0" }],
    ["LOCAL_RANK", { ...torchrun, LOCAL_RANK: "x" }],
    ["LOCAL_RANK", { ...torchrun, LOCAL_RANK: "8" }],
    ["MASTER_ADDR", without(torchrun, "MASTER_ADDR")],
    ["TENSORFERRY_PORT", without(torchrun, "MASTER_PORT")],
    ["MASTER_PORT", { ...torchrun, MASTER_PORT: "65535" }],
    ["TENSORFERRY_PORT", { ...torchrun, TENSORFERRY_PORT: "65536" }],
    ["SLURM_NTASKS", without(slurm, "SLURM_NTASKS")],
    ["SLURM_STEP_NODELIST", { ...slurm, SLURM_STEP_NODELIST: "[1-2]" }],
    ["TENSORFERRY_PORT", without(slurm, "TENSORFERRY_PORT")],
    ["OMPI_COMM_WORLD_RANK", without(openmpi, "OMPI_COMM_WORLD_RANK")],
    ["MASTER_ADDR", without(openmpi, "OMPI_COMM_WORLD_LOCAL_SIZE")],
    ["TENSORFERRY_DEADLINE", { TENSORFERRY_DEADLINE: "soon" }],
    ["TENSORFERRY_DEADLINE", { TENSORFERRY_DEADLINE: "0" }]
  ]
  for (const [at, [name, variables]] of mistakes.entries()) {
    it.effect(`names ${name} (${at})`, () =>
      Effect.gen(function* () {
        const error = yield* Effect.flip(read(variables))
        assert.strictEqual(error.reason._tag, "InvalidEnvironment")
        assert.match(error.reason.detail, new RegExp(`^${name} `))
        assert.notStrictEqual(error.reason.remedy, "")
      })
    )
  }

  it.effect(
    "names what is missing where all ranks may be on one machine: the address of rank 0, or their number here",
    () =>
      Effect.gen(function* () {
        const variables = { RANK: "0", WORLD_SIZE: "2", LOCAL_RANK: "0", TENSORFERRY_PORT: "29600" }
        const { reason } = yield* Effect.flip(read(variables))
        assert.include(reason.detail, "LOCAL_WORLD_SIZE is not set either")
        assert.include(reason.remedy, "set LOCAL_WORLD_SIZE to 2 instead")
        const some = yield* Effect.flip(read({ ...variables, LOCAL_WORLD_SIZE: "1" }))
        assert.include(some.reason.detail, "LOCAL_WORLD_SIZE is 1 of 2 ranks")
        const { address } = yield* read({ ...variables, LOCAL_WORLD_SIZE: "2" })
        assert.strictEqual(address?.host, "127.0.0.1")
      })
  )

  it.effect("reads deadlines as seconds and as text, and keeps the token out of sight", () =>
    Effect.gen(function* () {
      for (const [text, millis] of [
        ["90", 90_000],
        ["0.5", 500],
        ["2 minutes", 120_000]
      ] as const) {
        const { deadline } = yield* read({ TENSORFERRY_DEADLINE: text })
        assert.strictEqual(deadline === undefined ? undefined : Duration.toMillis(deadline), millis)
      }
      const { token } = yield* read({ TENSORFERRY_TOKEN: "hidden" })
      assert.notInclude(String(token), "hidden")
      assert.strictEqual(token === undefined ? undefined : Redacted.value(token), "hidden")
    })
  )

  it("expands the first host of node lists", () => {
    const lists: ReadonlyArray<readonly [string, string | undefined]> = [
      ["node1", "node1"],
      ["a,b", "a"],
      ["node[01-04,7]", "node01"],
      ["node[7,9],other", "node7"],
      ["rack[2-3]-ib", "rack2-ib"],
      ["", undefined],
      ["node[", undefined],
      ["node[x]", undefined]
    ]
    for (const [list, host] of lists) assert.strictEqual(firstHost(list), host, list)
  })

  it.effect("makes a group of one where nothing is set", () =>
    Effect.gen(function* () {
      const group = yield* ProcessGroup
      assert.deepStrictEqual([group.rank, group.size], [0, 1])
      assert.strictEqual(Duration.toMillis(group.deadline), 5000)
      yield* group.barrier("alone")
    }).pipe(Effect.provide(layer), withEnvironment({ TENSORFERRY_DEADLINE: "5" }))
  )

  it.live("forms a group over sockets", () =>
    Effect.gen(function* () {
      const port = yield* Effect.promise(freePort)
      const ranks = ["0", "1"].map((rank) =>
        Effect.gen(function* () {
          const group = yield* ProcessGroup
          const gathered = yield* group.allGather("x", Uint8Array.of(group.rank))
          yield* group.barrier("end")
          return gathered.map((payload) => payload[0])
        }).pipe(
          Effect.provide(layer, { local: true }),
          withEnvironment({ RANK: rank, WORLD_SIZE: "2", MASTER_ADDR: "127.0.0.1", TENSORFERRY_PORT: `${port}` })
        )
      )
      assert.deepStrictEqual(yield* Effect.all(ranks, { concurrency: 2 }), [
        [0, 1],
        [0, 1]
      ])
    })
  )
})
