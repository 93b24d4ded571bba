// SPDX-License-Identifier: Apache-2.0
/** How the page of a fleet looks, in light and dark. */
import { baseStyle } from "../report/baseStyle.ts"

/** Colours by state of a member. */
const stateColors: Readonly<Record<string, string>> = {
  serving: "light-dark(#1f9d5c, #3fbf7f)",
  receiving: "light-dark(#1b66c9, #5aa2ff)",
  staged: "light-dark(#0f8aa3, #45c6de)",
  paused: "light-dark(#c98a12, #e9b549)",
  switching: "light-dark(#d06a1f, #f0935a)",
  behind: "light-dark(#7a4fd0, #ab8bf5)",
  empty: "light-dark(#aab4bf, #566372)",
  joining: "light-dark(#7d8fa3, #8296ab)",
  silent: "light-dark(#c8322f, #ff6b66)",
  source: "light-dark(#2c3846, #d5dde6)"
}

export const watchStyle = `${baseStyle}
[hidden] { display: none !important; }
h3 { font-size: 15px; margin: 0 0 6px; }
.badge.open { color: var(--accent); } .badge { white-space: nowrap; }
#trouble { margin: 12px 0 0; padding: 8px 14px; border: 1px solid var(--warn); border-radius: 8px; color: var(--warn); overflow-wrap: anywhere; }
.views { display: flex; flex-wrap: wrap; gap: 6px; margin: 8px 0 12px; } .views:empty { display: none; }
.views button { display: inline-flex; align-items: center; gap: 6px; } .views b { font-variant-numeric: tabular-nums; }
#meter { height: 10px; border-radius: 5px; background: color-mix(in oklab, var(--line) 60%, var(--surface)); overflow: hidden; margin: 4px 0 14px; }
#meter i { display: block; height: 100%; background: var(--accent); transform-origin: left; transform: scaleX(0); transition: transform .8s linear; }
.treeView { max-height: 400px; overflow-y: auto; border-radius: 6px; } #tree { position: relative; min-width: 100%; }
/* How far it is, as the size of a background: a layer that moves would leave the text behind. */
.node { position: absolute; border-radius: 4px; overflow: hidden; cursor: pointer; border-inline-end: 2px solid var(--surface); background-clip: padding-box;
  --part: color-mix(in oklab, var(--accent) 45%, var(--surface)); background-color: color-mix(in oklab, var(--line) 55%, var(--surface));
  background-image: linear-gradient(var(--part), var(--part)); background-repeat: no-repeat; background-size: 0% 100%; transition: background-size .8s linear; }
.node[data-root="true"] { --part: color-mix(in oklab, var(--file) 40%, var(--surface)); }
#tree[data-many="true"] .node { border-inline-end-width: 1px; border-radius: 2px; transition: none; }
.node span { display: block; padding: 0 7px; font-size: 12.5px; line-height: 24px; white-space: nowrap; overflow: hidden; }
.node[data-picked="true"]::after { content: ""; position: absolute; inset: 0; border: 2px solid var(--text); border-radius: inherit; }
.split { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); gap: 24px; align-items: start; }
#field { display: grid; grid-template-columns: repeat(auto-fill, minmax(var(--cell), 1fr)); gap: 4px; --cell: 34px; border-radius: 4px; max-height: 420px; overflow-y: auto; padding: 2px; }
#field[data-size="middle"] { --cell: 18px; } #field[data-size="small"] { --cell: 11px; gap: 2px; }
.cell { aspect-ratio: 1; max-height: 34px; border-radius: 4px; background: var(--c); cursor: pointer; } #field[data-size="small"] .cell { border-radius: 2px; }
.cell[aria-selected="true"] { outline: 3px solid var(--text); outline-offset: -1px; }
.swatch { display: inline-block; width: 11px; height: 11px; border-radius: 3px; background: var(--c); }
${Object.entries(stateColors)
  .map(([state, color]) => `[data-state="${state}"] { --c: ${color}; }`)
  .join("\n")}
/* Not by colour alone: those that give no sign of life are crossed out, those without a version are hollow. */
.cell[data-state="silent"], .swatch[data-state="silent"] { background: repeating-linear-gradient(135deg, var(--c) 0 3px, var(--surface) 3px 5px); box-shadow: inset 0 0 0 2px var(--c); }
.cell[data-state="empty"], .cell[data-state="joining"], .swatch[data-state="empty"], .swatch[data-state="joining"] { background: none; box-shadow: inset 0 0 0 2px var(--c); }
.cell[data-state="source"], .swatch[data-state="source"] { border-radius: 50%; }
#hint { margin: 12px 0 0; font-size: 13.5px; } #detail { margin-top: 16px; padding: 12px 16px; border: 1px solid var(--line); border-radius: 8px; background: var(--ground); }
.facts { display: grid; grid-template-columns: fit-content(40%) minmax(0, 1fr); gap: 2px 16px; margin: 0; font-size: 13.5px; } .facts dt { color: var(--soft); } .facts dd { margin: 0; overflow-wrap: anywhere; }
.tools { display: flex; gap: 12px; align-items: center; margin: 0 0 8px; flex-wrap: wrap; font-size: 13.5px; } .none { margin: 8px 0; }
.view { max-height: 460px; overflow: auto; border: 1px solid var(--line); border-radius: 8px; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; table-layout: fixed; min-width: 600px; }
th { text-align: left; } td, th { border-bottom: 1px solid var(--line); height: 30px; padding: 0 10px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
thead th { position: sticky; top: 0; background: var(--surface); z-index: 1; padding: 0; }
th button { border: 0; border-radius: 0; width: 100%; height: 34px; text-align: inherit; font-weight: 600; color: var(--soft); overflow: hidden; text-overflow: ellipsis; }
th[aria-sort] button { color: var(--text); } th[aria-sort="ascending"] button::after { content: " ↑"; } th[aria-sort="descending"] button::after { content: " ↓"; }
.spacer td { padding: 0; border: 0; height: 0; } .number { text-align: right; } tbody tr:not(.spacer):hover td { background: color-mix(in oklab, var(--accent) 8%, var(--surface)); }
tr.troubled td { color: light-dark(#b3261e, #ff8a85); font-weight: 600; }
.pick { border: 0; background: none; padding: 0 4px; font-size: inherit; color: var(--accent); font-variant-numeric: tabular-nums; }
#history { list-style: none; margin: 0; padding: 0; } #history li { padding: 12px 0; border-top: 1px solid var(--line); } #history li:first-child { border-top: 0; padding-top: 0; }
#history .line { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; } #history .line b { font-variant-numeric: tabular-nums; white-space: nowrap; }
#history .label { overflow-wrap: anywhere; } #history time { color: var(--soft); font-size: 13px; margin-left: auto; font-variant-numeric: tabular-nums; }
#history p { margin: 4px 0 0; font-size: 13.5px; overflow-wrap: anywhere; } .why { color: var(--warn); }
.bar { display: flex; height: 8px; margin: 8px 0 2px; border-radius: 4px; overflow: hidden; background: color-mix(in oklab, var(--line) 45%, var(--surface)); }
.bar .staging { background: var(--accent); } .bar .pause { background: var(--agree); min-width: 2px; } .bar .pause[style*="width: 0"] { min-width: 0; }
@media (max-width: 900px) { .split { grid-template-columns: minmax(0, 1fr); } main, header { padding-inline: 12px; } section { padding: 16px 14px; }
  .figures { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 8px; } .figures div:first-child { grid-column: 1 / -1; } .figures dd { font-size: 18px; } }
@media (prefers-reduced-motion: reduce) { #meter i, .node { transition: none; } }
@media (forced-colors: active) { .cell, .swatch, .node, #meter i, .bar i { forced-color-adjust: none; } }
`
