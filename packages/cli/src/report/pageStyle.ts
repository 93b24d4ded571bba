// SPDX-License-Identifier: Apache-2.0
/** How the page of a run looks, in light and dark. */
import { baseStyle } from "./baseStyle.ts"

export const pageStyle = `${baseStyle}
.split { display: grid; grid-template-columns: fit-content(55%) minmax(340px, 1fr); gap: 28px; align-items: start; } .heatSide { width: var(--w); max-width: 100%; }
h3 { font-size: 14px; margin: 18px 0 4px; }
@media (max-width: 900px) { .split { grid-template-columns: minmax(0, 1fr); } main, header { padding-inline: 12px; } }
.heat { max-width: 100%; height: auto; display: block; font: 12px system-ui, "DejaVu Sans", sans-serif; }
.heat .grid { fill: color-mix(in oklab, var(--line) 45%, var(--surface)); }
.heat text { fill: var(--soft); text-anchor: middle; font-variant-numeric: tabular-nums; } .heat .end { text-anchor: end; }
.heat .axisName { fill: var(--text); font-weight: 600; } .heat .cellText { fill: var(--text); } .heat .onShade { fill: light-dark(#fff, #0b1016); }
.heat .ownRank { stroke: var(--local); stroke-width: 2; stroke-dasharray: 4 3; }
${[12, 24, 36, 48, 61, 74, 87, 100].map((part, at) => `.shade${at + 1} { fill: color-mix(in oklab, var(--accent) ${part}%, var(--surface)); background: color-mix(in oklab, var(--accent) ${part}%, var(--surface)); }`).join("\n")}
.scale, .legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; padding: 0; margin: 10px 0 12px; font-size: 12.5px; color: var(--soft); }
.scale { gap: 0; margin-left: 4px; flex-wrap: nowrap; max-width: 560px; } .scale li { flex: 1; min-width: 0; white-space: nowrap; } .scale .swatch { width: 100%; display: block; border-radius: 0; margin: 0; }
.scale b { display: flex; justify-content: flex-end; font-weight: 400; }
.swatch { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px; vertical-align: -1px; }
${["wire", "local", "stage", "agree", "plan", "file", "verify", "frame"].map((kind) => `.swatch.${kind} { background: var(--${kind}); } .bar.${kind} { --c: var(--${kind}); }`).join("\n")}
.views { display: flex; flex-wrap: wrap; gap: 6px; margin-top: 8px; }
.waterfall { display: grid; grid-template-columns: 72px minmax(0, 1fr) minmax(90px, auto); --t0: 0; --tn: 1; border: 1px solid var(--line); border-radius: 8px; border-top: 0; }
.laneNote { padding: 5px 10px; border-top: 1px solid var(--line); border-left: 1px solid var(--line); font-size: 13px; font-variant-numeric: tabular-nums; }
.laneNote .badge { white-space: nowrap; font-size: 12px; }
.timeline { display: grid; grid-template-columns: 72px minmax(0, 1fr); max-height: 72vh; overflow-y: auto; border: 1px solid var(--line); border-radius: 8px; }
.laneName { padding: 5px 10px; color: var(--soft); font-size: 13px; border-top: 1px solid var(--line); white-space: nowrap; }
.lane { position: relative; height: calc(var(--rows) * 20px + 10px); border-top: 1px solid var(--line); border-left: 1px solid var(--line); overflow: hidden;
  background: repeating-linear-gradient(90deg, var(--line) 0 1px, transparent 1px 20%); }
.bar { position: absolute; top: calc(var(--r) * 20px + 5px); height: 18px; left: calc((var(--s) - var(--t0)) / var(--tn) * 100%); width: max(2px, calc(var(--d) / var(--tn) * 100%));
  overflow: hidden; white-space: nowrap; font-size: 11.5px; line-height: 18px; text-indent: 6px; border-radius: 3px; color: var(--text);
  background: color-mix(in oklab, var(--c) 32%, var(--surface)); box-shadow: inset 3px 0 0 var(--c); }
.bar.isChosen { outline: 2px solid var(--text); outline-offset: -2px; } .chosen { margin: 8px 0 0; min-height: 1.5em; overflow-wrap: anywhere; }
.bar:hover { background: color-mix(in oklab, var(--c) 55%, var(--surface)); }
.ticks { position: sticky; top: 0; z-index: 1; height: 26px; font-size: 12px; color: var(--soft); background: var(--surface); font-variant-numeric: tabular-nums; }
.ticks span { position: absolute; top: 4px; left: calc(var(--at) * 100%); padding: 0 6px; white-space: nowrap; transform: translateX(calc(var(--at) * -100%)); }
@media (max-width: 700px) { .ticks span:nth-child(even) { display: none; } .timeline, .waterfall { grid-template-columns: 56px minmax(0, 1fr); } .laneName { padding-inline: 6px; } .laneNote { grid-column: 2; border-top: 0; padding-top: 0; } }
.timeline > .laneName:first-child { border: 0; position: sticky; top: 0; background: var(--surface); z-index: 1; }
.scroller { max-height: 60vh; overflow: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); white-space: nowrap; } td, th { padding: 4px 10px; border-bottom: 1px solid var(--line); }
thead th { position: sticky; top: 0; background: var(--surface); z-index: 1; }
.plain td, .plain thead th:nth-child(n + 3) { text-align: right; white-space: nowrap; }
.ranks thead th:nth-child(2) { text-align: right; } .ranks td, .ranks th { padding-inline: 6px; }
.memoryCell { width: 42%; min-width: 140px; } .plain th:first-child { position: sticky; left: 0; background: var(--surface); z-index: 2; } .memory { position: relative; height: 14px; background: color-mix(in oklab, var(--line) 45%, var(--surface)); border-radius: 4px; overflow: hidden; }
.memory i { position: absolute; inset-block: 0; } .memory .before { left: 0; width: calc(var(--before) * 100%); }
.memory .estimate { left: calc(var(--before) * 100%); width: max(2px, calc(var(--estimate) * 100%)); } .memory .peak { left: calc(var(--peak) * 100% - 3px); width: 3px; }
.memory .mapped { left: calc((var(--peak) - var(--mapped)) * 100%); width: calc(var(--mapped) * 100%); }
.before { background: var(--frame); } .mapped { background: repeating-linear-gradient(135deg, var(--wire) 0 3px, transparent 3px 6px); } .estimate { background: var(--accent); } .peak { background: var(--verify); }
.runs { list-style: none; padding: 0; margin: 8px 0 0; color: var(--soft); overflow-wrap: anywhere; } .runs b { color: var(--text); margin-right: 6px; }
.compared td.good { color: var(--good); font-weight: 600; } .compared td.warn { color: var(--warn); font-weight: 600; } .compared .partOf th { padding-left: 26px; font-weight: 400; }
.compared tbody th { white-space: normal; min-width: 150px; } .compared .pair { width: 40%; min-width: 120px; } .pair i { display: block; height: 6px; margin: 2px 0; border-radius: 2px; width: max(1px, calc(var(--d) * 100%)); } .pair .first { background: var(--frame); } .pair .second { background: var(--accent); }
@media (max-width: 700px) { .compared .pair, .compared thead th:nth-child(2) { display: none; } }
.differing td, .differing th { vertical-align: top; white-space: normal; overflow-wrap: anywhere; min-width: 110px; }
.data .tools { display: flex; gap: 12px; align-items: center; margin: 8px 0; flex-wrap: wrap; }
.data .view { max-height: 460px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
/* Narrow screens scroll within the table: a number that is cut is a wrong number. */
.data table { table-layout: fixed; min-width: 720px; } .data:has(td.code) table { min-width: 760px; } .data td, .data th { height: 30px; padding: 0 10px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.data th { padding: 0; } .data th button { border: 0; border-radius: 0; width: 100%; height: 34px; text-align: inherit; font-weight: 600; color: var(--soft); overflow: hidden; text-overflow: ellipsis; }
.data th[aria-sort] button { color: var(--text); } .data th[aria-sort="ascending"] button::after { content: " ↑"; } .data th[aria-sort="descending"] button::after { content: " ↓"; }
.data tbody tr:hover td { background: color-mix(in oklab, var(--accent) 8%, var(--surface)); } .data .spacer td { padding: 0; border: 0; height: auto; }
.data .number { text-align: right; } .data td.code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.facts { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 2px 20px; margin: 10px 0 0; font-size: 14px; } .facts dt { color: var(--soft); overflow-wrap: anywhere; } .facts dd { margin: 0; overflow-wrap: anywhere; }
`
