// SPDX-License-Identifier: Apache-2.0
/**
 * What the page of a run does in the browser: tables that sort and filter, and the part of the timeline that is shown.
 *
 * Invariants: data becomes text, never markup; a table has only those rows in the document that are in view.
 */

export const pageScript = `
"use strict";
const rowHeight = 30, margin = 12;
const collator = new Intl.Collator("en", { numeric: true });

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

/** Cells are text, or [text, number]: what is shown and what it is sorted by. */
const textOf = (cell) => (Array.isArray(cell) ? cell[0] : cell);

const makeTable = (root, { label, columns, rows }) => {
  const texts = rows.map((row) => row.map(textOf).join(" ").toLowerCase());
  let shown = rows.map((_, at) => at);
  let sorting = { column: -1, down: false };
  const filter = element("input", { type: "search", placeholder: "Filter", spellcheck: false });
  filter.setAttribute("aria-label", "Filter " + label);
  const count = element("span", { className: "quiet" });
  count.setAttribute("role", "status");
  const body = element("tbody");
  const headers = columns.map(({ name, kind, width }, at) => {
    const header = element("th", { scope: "col", className: kind }, element("button", { type: "button", textContent: name }));
    header.style.width = width;
    header.firstChild.addEventListener("click", () => {
      sorting = { column: at, down: sorting.column === at ? !sorting.down : kind === "number" };
      update();
    });
    return header;
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...headers)), body);
  table.setAttribute("aria-label", label);
  const view = element("div", { className: "view", tabIndex: 0 }, table);
  view.setAttribute("role", "region");
  view.setAttribute("aria-label", label);
  const spacer = (height) => {
    const cell = element("td", { colSpan: columns.length });
    cell.style.height = height + "px";
    const row = element("tr", { className: "spacer" }, cell);
    row.setAttribute("aria-hidden", "true");
    return row;
  };
  const draw = () => {
    const first = Math.max(0, Math.floor(view.scrollTop / rowHeight) - margin);
    const last = Math.min(shown.length, Math.ceil((view.scrollTop + 460) / rowHeight) + margin);
    const lines = shown.slice(first, last).map((at, offset) => {
      const line = element("tr", {}, ...rows[at].map((cell, column) => {
        const made = element("td", { className: columns[column].kind, textContent: textOf(cell) });
        if (columns[column].kind !== "number") made.title = textOf(cell);
        return made;
      }));
      line.setAttribute("aria-rowindex", String(first + offset + 2));
      return line;
    });
    body.replaceChildren(spacer(first * rowHeight), ...lines, spacer((shown.length - last) * rowHeight));
  };
  const update = () => {
    const words = filter.value.toLowerCase().split(/\\s+/).filter((word) => word !== "");
    shown = [];
    for (let at = 0; at < rows.length; at++) if (words.every((word) => texts[at].includes(word))) shown.push(at);
    const { column, down } = sorting;
    if (column >= 0) {
      const isNumber = columns[column].kind === "number";
      const compare = (a, b) => {
        const [x, y] = [rows[a][column], rows[b][column]];
        return isNumber ? x[1] - y[1] : collator.compare(textOf(x), textOf(y));
      };
      shown.sort((a, b) => (down ? compare(b, a) : compare(a, b)) || a - b);
    }
    headers.forEach((header, at) => {
      if (at === column) header.setAttribute("aria-sort", down ? "descending" : "ascending");
      else header.removeAttribute("aria-sort");
    });
    table.setAttribute("aria-rowcount", String(shown.length + 1));
    count.textContent = shown.length === rows.length ? rows.length + " rows" : shown.length + " of " + rows.length + " rows";
    view.scrollTop = 0;
    draw();
  };
  filter.addEventListener("input", update);
  let isWaiting = false;
  view.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => { isWaiting = false; draw(); });
  });
  root.replaceChildren(element("div", { className: "tools" }, filter, count), view);
  update();
};

for (const root of document.querySelectorAll("[data-table]")) {
  makeTable(root, JSON.parse(document.getElementById(root.dataset.table).textContent));
}

const seconds = (value) => (value >= 10 ? value.toFixed(1) + " s" : value >= 1 ? value.toFixed(2) + " s" : (value * 1000).toFixed(1) + " ms");
const timeline = document.querySelector(".timeline");
const buttons = [...document.querySelectorAll(".views button")];
for (const button of buttons) {
  button.addEventListener("click", () => {
    const start = Number(button.dataset.start), span = Number(button.dataset.span) || 1;
    const whole = Number(timeline.dataset.whole);
    timeline.style.setProperty("--t0", String(start));
    timeline.style.setProperty("--tn", String(span));
    timeline.querySelectorAll(".ticks span").forEach((tick, at) => { tick.textContent = seconds((start + span * at / 5) * whole); });
    for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
  });
}
`
