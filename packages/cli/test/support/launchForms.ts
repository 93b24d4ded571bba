// SPDX-License-Identifier: Apache-2.0
/**
 * The variables of each launcher, and of a script where there is none; wrong ones with their remedies.
 */
import { join } from "node:path"
import { afterEach, assert, describe, it } from "@effect/vitest"
import { endAll, failuresOf, freePort, run, scratch, start } from "./command.ts"
import { assertSameModel, mnist, mnistRules } from "./models.ts"

afterEach(endAll)

type Variables = Readonly<Record<string, string>>

const size = 2

export const forms: { readonly [name: string]: (rank: number, port: number) => Variables } = {
  torchrun: (rank, port) => ({
    RANK: `${rank}`,
    WORLD_SIZE: `${size}`,
    LOCAL_RANK: `${rank}`,
    LOCAL_WORLD_SIZE: `${size}`,
    GROUP_RANK: "0",
    ROLE_RANK: `${rank}`,
    MASTER_ADDR: "a-host-that-nobody-needs-here.invalid",
    // Its own store listens here.
    MASTER_PORT: `${port - 1}`,
    TORCHELASTIC_RUN_ID: "none"
  }),
  Slurm: (rank, port) => ({
    SLURM_PROCID: `${rank}`,
    SLURM_NTASKS: `${size}`,
    SLURM_LOCALID: `${rank}`,
    SLURM_STEP_NODELIST: "node07",
    SLURM_NODELIST: "node[01-09]",
    SLURM_LAUNCH_NODE_IPADDR: "192.0.2.1",
    TENSORFERRY_PORT: `${port}`
  }),
  "Open MPI": (rank, port) => ({
    OMPI_COMM_WORLD_RANK: `${rank}`,
    OMPI_COMM_WORLD_SIZE: `${size}`,
    OMPI_COMM_WORLD_LOCAL_RANK: `${rank}`,
    OMPI_COMM_WORLD_LOCAL_SIZE: `${size}`,
    PMIX_RANK: `${rank}`,
    TENSORFERRY_PORT: `${port}`
  }),
  "a script with a host": (rank, port) => ({
    RANK: `${rank}`,
    WORLD_SIZE: `${size}`,
    MASTER_ADDR: "127.0.0.1",
    TENSORFERRY_PORT: `${port}`
  })
}

const reshard = (...more: ReadonlyArray<string>) => [
  ...["reshard", mnist, "--to", "tp=2", "--rules", mnistRules, "--json"],
  ...more
]

/** One test for each launcher. */
export const describeForms = (names: ReadonlyArray<string>) =>
  describe("a launch by", () => {
    for (const name of names) {
      const variables = forms[name]!
      it(name, async () => {
        using folder = scratch()
        const out = join(folder.path, "out")
        const port = await freePort()
        const commands = Array.from({ length: size }, (_, rank) =>
          start(reshard("--out", out), { env: variables(rank, port), limit: 60_000 })
        )
        const ended = await Promise.all(commands.map((command) => command.ended))
        for (const end of ended) assert.strictEqual(end.code, 0, end.stdout + end.stderr)
        assert.strictEqual((JSON.parse(ended[0]!.stdout) as { readonly ranks: number }).ranks, size)
        assert.strictEqual(ended[1]!.stdout, "")
        await assertSameModel(out, mnist)
      })
    }
  })

/** Of each a command is started. */
export const wrong: ReadonlyArray<readonly [what: string, Variables, detail: RegExp, remedy: RegExp]> = [
  ["no size", { RANK: "0" }, /WORLD_SIZE is not set/, /Start the ranks with a launcher/],
  ["no rank", { WORLD_SIZE: "2" }, /RANK is not set/, /Start the ranks with a launcher/],
  ["no number", { RANK: "zero", WORLD_SIZE: "2" }, /RANK is "zero"/, /whole number from 0/],
  ["too high a rank", { RANK: "2", WORLD_SIZE: "2" }, /RANK is 2, but WORLD_SIZE is 2/, /from 0 to size - 1/],
  ["no host", { RANK: "0", WORLD_SIZE: "2", TENSORFERRY_PORT: "9" }, /MASTER_ADDR is not set/, /host of rank 0/],
  [
    "no port",
    { SLURM_PROCID: "0", SLURM_NTASKS: "2", SLURM_STEP_NODELIST: "n1" },
    /TENSORFERRY_PORT is not set/,
    /free port/
  ],
  [
    "no size of Slurm",
    { SLURM_PROCID: "0", SLURM_STEP_NODELIST: "n1", TENSORFERRY_PORT: "9" },
    /SLURM_NTASKS is not set/,
    /launcher/
  ],
  ["no rank of Open MPI", { OMPI_COMM_WORLD_SIZE: "2" }, /OMPI_COMM_WORLD_RANK is not set/, /launcher/],
  [
    "a port beyond all",
    { RANK: "0", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "2", TENSORFERRY_PORT: "70000" },
    /TENSORFERRY_PORT is "70000"/,
    /65535/
  ]
]
export const describeWrong = (chosen: typeof wrong) =>
  describe("variables that are wrong:", () => {
    it.each(chosen)("%s", async (_, variables, detail, remedy) => {
      const ended = await run(reshard(), { env: variables })
      assert.strictEqual(ended.code, 1, ended.stdout)
      const [failure] = failuresOf(ended)
      assert.strictEqual(failure!.reason, "InvalidEnvironment")
      assert.match(failure!.message, detail)
      assert.match(failure!.fields!.remedy, remedy)
    })
  })
