// SPDX-License-Identifier: Apache-2.0
/**
 * The state of the source tree in figures, some of them held to a limit.
 *   node scripts/house.ts [--root DIR] [--against DIR] [--json] [--check] [--duplicates]
 * --root measures another checkout and --against one more beside it. --check fails where a limit is exceeded.
 * --duplicates lists the pairs of files that share most lines.
 */
import * as path from "node:path"
import { parseArgs } from "node:util"
import { circles } from "./house/circles.ts"
import { definitions } from "./house/definitions.ts"
import { type Duplicates, duplicates } from "./house/duplicates.ts"
import { isOver, type Measure } from "./house/measure.ts"
import { privacy } from "./house/privacy.ts"
import { type AreaLines, areaLines, kitAndTests, sizes } from "./house/size.ts"
import { areaTable, measureTable, pairTable, placeLists } from "./house/table.ts"
import { readTree } from "./house/tree.ts"

interface State {
  readonly areas: ReadonlyArray<AreaLines>
  readonly measures: ReadonlyArray<Measure>
  readonly pairs: Duplicates["pairs"]
}

const stateOf = (root: string): State => {
  const tree = readTree(path.resolve(root))
  const twice = duplicates(tree)
  const measures = [sizes, definitions, circles, privacy, kitAndTests].flatMap((measure) => measure(tree))
  return { areas: areaLines(tree), measures: [...measures, ...twice.measures], pairs: twice.pairs }
}

const { values } = parseArgs({
  options: {
    root: { type: "string", default: path.resolve(import.meta.dirname, "..") },
    against: { type: "string" },
    json: { type: "boolean", default: false },
    check: { type: "boolean", default: false },
    duplicates: { type: "boolean", default: false }
  }
})

const own = stateOf(values.root)
const other = values.against === undefined ? undefined : stateOf(values.against)
const pairs = values.duplicates ? own.pairs(15) : undefined

if (values.json) {
  const plain = ({ areas, measures }: State): object => ({
    lines: areas,
    measures: measures.map((each) => ({ ...each, title: each.title.trim(), over: isOver(each) }))
  })
  const against = other === undefined ? {} : { against: plain(other) }
  console.log(JSON.stringify({ ...plain(own), ...(pairs === undefined ? {} : { pairs }), ...against }, undefined, 2))
} else {
  console.log(measureTable(own.measures, other?.measures))
  console.log(`\n${areaTable(own.areas, other?.areas)}`)
  console.log(placeLists(own.measures))
  if (pairs !== undefined) console.log(`\n${pairTable(pairs)}`)
}
if (values.check && own.measures.some(isOver)) process.exitCode = 1
