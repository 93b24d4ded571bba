// SPDX-License-Identifier: Apache-2.0
/**
 * Memory of every rank: what the program had, what the plan said that it would need, and the most that there was. Memory of
 * other ranks that a rank maps is apart: it is resident in both and exists once.
 */
import { formatBytes } from "../text/Table.ts"
import { fraction } from "./html.ts"
import type { RunRecord } from "./RunRecord.ts"

export const memoryChart = ({ ranks }: RunRecord): string => {
  const most = ranks.reduce((largest, { memory }) => Math.max(largest, memory.peak, memory.before + memory.estimate), 1)
  const rows = ranks.map(({ rank, memory: { before, estimate, peak, mapped = 0 } }) => {
    const style = `--before:${fraction(before, most)};--estimate:${fraction(estimate, most)};--peak:${fraction(peak, most)};--mapped:${fraction(mapped, most)}`
    const growth = Math.max(0, peak - before - mapped)
    return `<tr><th scope="row">rank ${rank}</th><td class="memoryCell"><div class="memory" style="${style}" aria-hidden="true"><i class="before"></i><i class="estimate"></i><i class="mapped"></i><i class="peak"></i></div></td><td>${formatBytes(before)}</td><td>${formatBytes(estimate)}</td><td>${formatBytes(growth)}</td><td>${formatBytes(mapped)}</td><td>${formatBytes(peak)}</td></tr>`
  })
  return `<ul class="legend"><li><span class="swatch before"></span>program, when the job began</li><li><span class="swatch estimate"></span>estimate: tensors and buffers of the plan</li><li><span class="swatch mapped"></span>memory of other ranks, mapped</li><li><span class="swatch peak"></span>peak, resident</li></ul>
<div class="scroller" tabindex="0" role="region" aria-label="Memory by rank"><table class="plain memories"><thead><tr><th scope="col">rank</th><th scope="col"><span class="hidden">chart</span></th><th scope="col">program</th><th scope="col">estimate</th><th scope="col">peak, its own</th><th scope="col">of other ranks</th><th scope="col">peak</th></tr></thead><tbody>
${rows.join("\n")}</tbody></table></div>`
}
