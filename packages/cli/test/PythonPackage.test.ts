// SPDX-License-Identifier: Apache-2.0
/** The Python package by its own tests, with this clone's command as its agents. What needs torch runs in full runs. */
import { spawnSync } from "node:child_process"
import { assert, it } from "@effect/vitest"
import { pytestOf, pythonFolder, pythonWith } from "./support/python.ts"

const python = pythonWith("pytest")
const reason = python === undefined ? " (skipped: no Python 3.10 with pytest; TENSORFERRY_PYTHON names one)" : ""

it.skipIf(python === undefined)(`passes what needs no torch${reason}`, { timeout: 300_000 }, () => {
  const ended = pytestOf(
    python!,
    "tests/test_msgpack.py",
    "tests/test_job.py",
    "tests/test_ferry.py",
    "tests/test_load.py"
  )
  assert.strictEqual(ended.status, 0, ended.output)
  assert.match(ended.output, /\d+ passed/)
})

it.skipIf(python === undefined)(`needs nothing but Python${reason}`, () => {
  const program =
    "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; import tensorferry; print('ok')"
  const ended = spawnSync(python!, ["-I", "-c", `import sys; sys.path.insert(0, 'src'); ${program}`], {
    cwd: pythonFolder,
    encoding: "utf8"
  })
  assert.strictEqual(ended.stdout, "ok\n", ended.stderr)
})

const tools = pythonWith("mypy", "ruff")
const noTools = tools === undefined ? " (skipped: no Python with mypy and ruff; TENSORFERRY_PYTHON names one)" : ""

it.skipIf(tools === undefined)(`is typed, linted and formatted${noTools}`, { timeout: 120_000 }, () => {
  for (const args of [
    ["mypy", "--no-incremental"],
    ["ruff", "check"],
    ["ruff", "format", "--check"]
  ]) {
    const ended = spawnSync(tools!, ["-m", ...args], {
      cwd: pythonFolder,
      encoding: "utf8",
      env: { ...process.env, MYPYPATH: "src" }
    })
    assert.strictEqual(ended.status, 0, `${ended.stdout}${ended.stderr}`)
  }
})
