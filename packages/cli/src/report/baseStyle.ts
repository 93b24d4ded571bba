// SPDX-License-Identifier: Apache-2.0
/** What all pages of the command look alike in: colours in light and dark, text, figures, buttons. */

export const baseStyle = `
:root { color-scheme: light dark;
  --ground: light-dark(#f4f6f8, #0e1217); --surface: light-dark(#ffffff, #161c23); --line: light-dark(#dde3ea, #2a333e);
  --text: light-dark(#17202a, #e4eaf1); --soft: light-dark(#566270, #9aa7b5); --accent: light-dark(#1b66c9, #5aa2ff);
  --good: light-dark(#0d7a43, #45c585); --warn: light-dark(#96590a, #e3a748);
  --wire: light-dark(#1b66c9, #5aa2ff); --local: light-dark(#12876a, #3ecfa6); --stage: light-dark(#0f8aa3, #45c6de);
  --agree: light-dark(#b97a0b, #e9b549); --plan: light-dark(#7a4fd0, #ab8bf5); --file: light-dark(#66707c, #93a0ae);
  --verify: light-dark(#c2417c, #f083b2); --frame: light-dark(#98a4b1, #566372); }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main, header { max-width: 1240px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 32px; }
h1 { font-size: 26px; line-height: 1.25; margin: 4px 0 2px; overflow-wrap: anywhere; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0 0 4px; }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; padding: 20px 22px; margin: 18px 0; }
p { margin: 0 0 12px; } .quiet, .lead { color: var(--soft); } .lead { margin: 0; overflow-wrap: anywhere; }
.brand { color: var(--soft); font-size: 13px; letter-spacing: .02em; display: flex; gap: 10px; align-items: center; }
.badge { border-radius: 99px; padding: 1px 10px; border: 1px solid currentColor; font-weight: 600; }
.badge.good { color: var(--good); } .badge.warn { color: var(--warn); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(148px, 1fr)); gap: 12px; margin: 20px 0 0; padding: 0; }
.figures div { background: var(--surface); border: 1px solid var(--line); border-radius: 12px; padding: 12px 16px; }
.figures dt { color: var(--soft); font-size: 13px; } .figures dd { margin: 0; font-size: 20px; font-weight: 650; letter-spacing: -0.01em; font-variant-numeric: tabular-nums; }
.figures dd, .figures small { overflow-wrap: anywhere; } .figures small { display: block; color: var(--soft); font-size: 12.5px; font-weight: 400; letter-spacing: 0; }
button { font: inherit; font-size: 13px; color: var(--text); background: var(--surface); border: 1px solid var(--line); border-radius: 8px; padding: 3px 11px; cursor: pointer; }
button:hover { border-color: var(--accent); } button[aria-pressed="true"] { background: var(--accent); border-color: var(--accent); color: light-dark(#fff, #0b1016); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
input { font: inherit; font-size: 14px; color: var(--text); background: var(--ground); border: 1px solid var(--line); border-radius: 8px; padding: 4px 10px; min-width: min(320px, 100%); }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
footer { max-width: 1240px; margin: 0 auto; padding: 4px 24px 40px; color: var(--soft); font-size: 13px; }
`
