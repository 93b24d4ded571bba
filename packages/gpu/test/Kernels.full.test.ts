// SPDX-License-Identifier: Apache-2.0
/**
 * Kernels and the compiler of batches: as plain C++ against a naive reference, and as machine code where nvcc is installed.
 * None of it needs a GPU.
 */
import { mkdirSync, readdirSync, readFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { packageFolder } from "../src/Addon.ts"

import { inTemporaryFolder, isInstalled, run, runProgram, writeSource } from "./kernelPrograms.ts"

describe("kernels", () => {
  // Takes minutes to build; the conformance kit runs the same kernels over the simulator every time.
  it("do as plain C++ what a naive reference does", () => {
    const folder = join(packageFolder, "build/kernels-test")
    mkdirSync(folder, { recursive: true })
    assert.match(runProgram(folder), /\n[1-9]\d{3,} checks, 0 failures\n$/)
  }, 300_000)

  it(
    "touch no memory but that of their regions",
    () => inTemporaryFolder((folder) => runProgram(folder, "-DSANITIZE=address,undefined")),
    900_000
  )
})

describe.skipIf(!isInstalled("nvcc"))("machine code of the kernels", () => {
  it(
    "keeps everything in registers, and many wide loads under way",
    () =>
      inTemporaryFolder((folder) => {
        const file = join(folder, "kernels.cu")
        writeSource(folder)
        const options = ["-std=c++17", "--fmad=false", "-Xptxas", "-v", "-Werror", "all-warnings"]
        const architectures = ["arch=compute_80,code=sm_80", "arch=compute_90,code=[sm_90,compute_90]"]
        const targets = architectures.flatMap((architecture) => ["-gencode", architecture])
        const kept = ["--keep", "--keep-dir", folder, "-o", join(folder, "kernels.fatbin")]
        const said = run("nvcc", "-fatbin", ...targets, ...options, ...kept, file)
        for (const architecture of ["sm_80", "sm_90"]) {
          for (const kernel of [
            "move",
            "reduce",
            "quantize",
            "forms",
            "tiles",
            "groups",
            "compare",
            "changes",
            "products",
            "digest",
            "ring",
            "spin"
          ].map((name) => `tensorferry_${name}`)) {
            const from = said.indexOf(`Compiling entry function '${kernel}' for '${architecture}'`)
            assert.isAtLeast(from, 0, `${kernel} for ${architecture}\n${said}`)
            const properties = said
              .slice(from)
              .match(/(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads/)
            assert.deepStrictEqual(
              properties?.slice(1),
              ["0", "0", "0"],
              `${kernel} for ${architecture}: ${properties?.[0]}`
            )
            const registers = said.slice(from).match(/Used (\d+) registers/)
            const threads = { tensorferry_digest: 512, tensorferry_products: 512 }[kernel] ?? 1024
            assert.isAtMost(
              Number(registers?.[1]),
              Math.floor(65_536 / threads / 8) * 8,
              `${kernel} for ${architecture}: ${threads} threads run on a processor at once`
            )
          }
        }
        const assembly = readdirSync(folder).filter((name) => name.endsWith(".ptx"))
        assert.isNotEmpty(assembly)
        for (const name of assembly) {
          const text = readFileSync(join(folder, name), "utf8")
          const body = text.slice(text.indexOf(".entry tensorferry_move("))
          const move = body.slice(0, body.indexOf("\n}"))
          const accesses = move.match(/(ld|st)\.(global\.)?(v4\.u32|u\d+|v2\.u\d+)/g) ?? []
          const four = [
            "ld.global.v4.u32",
            "ld.global.v4.u32",
            "ld.global.v4.u32",
            "ld.global.v4.u32",
            "st.global.v4.u32"
          ]
          const runs = accesses.filter((_, at) => four.every((access, k) => accesses[at + k] === access)).length
          assert.isAtLeast(runs, 2, `${name}: runs and pieces read four vectors before they write one`)
          assert.notMatch(move, /\.local|\.shared|bar\.|fma\.rn|\.ftz/, name)
          const entry = (kernel: string): string => {
            const from = text.slice(text.indexOf(`.entry tensorferry_${kernel}(`))
            return from.slice(0, from.indexOf("\n}"))
          }
          const longestRun = (kernel: string): number => {
            const reads = entry(kernel).match(/ld\.global\.cs\.v4|shfl\.sync|st\.global\.cs\.b(32|64)/g) ?? []
            const runs = reads.join(" ").split(/(?:shfl|st)\S*/)
            return Math.max(...runs.map((part) => part.trim().split(/ld/).length - 1))
          }
          // A team reads its share of 32 blocks, 64 or 128 bytes to a thread, before it looks at any of them.
          assert.isAtLeast(longestRun("quantize"), 8, `${name}: wide loads under way at once`)
          // All that a thread holds of a block of 128 by 128, before it is asked for the largest magnitude.
          assert.isAtLeast(longestRun("tiles"), 8, `${name}: wide loads of a tile under way at once`)
          // A thread's group, and the one that it takes next.
          assert.isAtLeast(longestRun("groups"), 4, `${name}: wide loads of groups under way at once`)
          for (const kernel of ["forms", "tiles", "groups"])
            assert.notMatch(entry(kernel), /\.local|fma\.rn\.ftz|\.approx/, name)
          for (const kernel of ["quantize", "forms", "tiles", "groups"])
            assert.strictEqual(
              /cvt\.rn\.satfinite\.e4m3x2/.test(entry(kernel)),
              name.includes("90"),
              `${name}: converts by itself`
            )
        }
      }),
    900_000
  )
})
