// SPDX-License-Identifier: Apache-2.0
/**
 * C++ is formatted as `.clang-format` says. With --write it is formatted.
 *   node scripts/check-clang-format.ts [--write]
 *
 * Versions of clang-format differ in what they do with the same settings, so one major version is used: the npm package's
 * binary, or one on the path. Where there is neither, nothing is checked and a line says so.
 */
import { execFileSync, spawnSync } from "node:child_process"
import { existsSync } from "node:fs"
import { createRequire } from "node:module"
import * as path from "node:path"

const major = 22
const root = path.resolve(import.meta.dirname, "..")

const packaged = (): ReadonlyArray<string> => {
  try {
    const folder = path.dirname(createRequire(import.meta.url).resolve("clang-format-node/package.json"))
    return [path.join(folder, "bin", `cfn-${process.platform}-${process.arch}`, "clang-format")]
  } catch {
    return []
  }
}

const isRight = (program: string): boolean =>
  new RegExp(`version ${major}\\.`).test(spawnSync(program, ["--version"], { encoding: "utf8" }).stdout ?? "")

const program = [...packaged(), `clang-format-${major}`, "clang-format"].find(isRight)

const listed = execFileSync(
  "git",
  ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "*.cc", "*.h", "*.cu"],
  {
    cwd: root,
    encoding: "utf8"
  }
)
const files = listed.split("\0").filter((file) => file !== "" && existsSync(path.join(root, file)))

if (program === undefined) {
  console.log(`clang-format: skipped; there is no clang-format ${major} (pnpm install brings one for common machines)`)
} else if (process.argv.includes("--write")) {
  execFileSync(program, ["-i", "--style=file", ...files], { cwd: root, stdio: "inherit" })
  console.log(`clang-format: formatted ${files.length} files`)
} else {
  const { stderr, status } = spawnSync(program, ["--dry-run", "--Werror", "--style=file", ...files], {
    cwd: root,
    encoding: "utf8",
    maxBuffer: 1 << 28
  })
  const faults = [...new Set([...stderr.matchAll(/^(\S+):\d+:\d+: error/gm)].map(([, file]) => file!))]
  if (status === 0) console.log(`clang-format: ${files.length} files, no fault`)
  else {
    console.error(
      `${faults.join("\n") || stderr}\nclang-format: ${faults.length} files are not formatted; pnpm format does it`
    )
    process.exitCode = 1
  }
}
