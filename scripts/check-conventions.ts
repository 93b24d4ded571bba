// SPDX-License-Identifier: Apache-2.0
/**
 * Habits that the type checker does not see: a header on every file, one service per file under the key that its path
 * gives, no untyped failure, no barrel imports of effect.
 */
import { readdirSync, readFileSync } from "node:fs"
import * as path from "node:path"

const packages = path.resolve(import.meta.dirname, "../packages")
const faults: Array<string> = []

for (const name of readdirSync(packages)) {
  const root = path.join(packages, name, "src")
  let files: ReadonlyArray<string> = []
  try {
    files = readdirSync(root, { recursive: true, encoding: "utf8" })
  } catch {
    continue
  }
  for (const file of files) {
    if (!file.endsWith(".ts")) continue
    const text = readFileSync(path.join(root, file), "utf8")
    const where = `${name}/src/${file}`
    const body = text.replace(/^#!.*\n/, "").replace(/^\/\/ SPDX-.*\n/, "")
    if (!body.startsWith("/**")) faults.push(`${where}: begins without a comment that says what it owns`)
    const services = [...text.matchAll(/Context\.Service<[^>]*>\(\)\(\s*"([^"]+)"/g)].map((match) => match[1])
    if (services.length > 1) faults.push(`${where}: declares ${services.length} services`)
    const key = `@tensorferry/${name}/${file.replace(/\.ts$/, "")}`
    if (services.length === 1 && services[0] !== key)
      faults.push(`${where}: service key ${services[0]} should be ${key}`)
    for (const [at, line] of text.split("\n").entries()) {
      if (/^\s*(\/\/|\*|\/\*)/.test(line)) continue
      if (/\bthrow\b|\bnew Error\(|\bas any\b|: any\b|@ts-ignore|@ts-expect-error|\bTODO\b/.test(line)) {
        faults.push(`${where}:${at + 1}: ${line.trim()}`)
      }
      if (/from "(effect|@effect\/platform-node)"/.test(line)) faults.push(`${where}:${at + 1}: imports a barrel`)
    }
  }
}
if (faults.length > 0) {
  console.error(faults.join("\n"))
  process.exitCode = 1
} else console.log("conventions: no fault")
