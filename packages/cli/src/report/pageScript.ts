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
/** A name that a bar has room for: whole, without what it is part of, or none. */
const barPadding = 10, ruler = document.createElement("canvas").getContext("2d"), textWidths = new Map();
const textWidth = (text) => {
  if (!textWidths.has(text)) textWidths.set(text, ruler.measureText(text).width);
  return textWidths.get(text);
};
const labelFor = (name, width) =>
  [name, name.slice(name.lastIndexOf(".") + 1)].find((text) => textWidth(text) + barPadding <= width) || "";
const partOf = (bar, name) => Number(bar.style.getPropertyValue(name));
const labelBars = (chart) => {
  const lane = chart.querySelector(".lane");
  if (!lane) return;
  const width = lane.clientWidth / (Number(chart.style.getPropertyValue("--tn")) || 1);
  const bars = chart.querySelectorAll(".bar");
  if (bars.length > 0) ruler.font = getComputedStyle(bars[0]).font;
  for (const bar of bars) {
    const label = labelFor(bar.dataset.name, partOf(bar, "--d") * width);
    if (bar.textContent !== label) bar.textContent = label;
  }
};
const charts = [...document.querySelectorAll(".waterfall, .timeline")];
const labelAll = () => charts.forEach(labelBars);

const timeline = document.querySelector(".timeline");
const buttons = [...document.querySelectorAll(".views button")];
const show = (start, span) => {
  const tn = Math.min(1, Math.max(1e-5, span)), t0 = Math.min(1 - tn, Math.max(0, start));
  const whole = Number(timeline.dataset.whole);
  timeline.style.setProperty("--t0", String(t0));
  timeline.style.setProperty("--tn", String(tn));
  timeline.querySelectorAll(".ticks span").forEach((tick, at) => { tick.textContent = seconds((t0 + tn * at / 5) * whole); });
  for (const button of buttons) {
    const isShown = Number(button.dataset.start) === t0 && (Number(button.dataset.span) || 1) === tn;
    button.setAttribute("aria-pressed", String(isShown));
  }
  labelBars(timeline);
};
for (const button of buttons) {
  button.addEventListener("click", () => show(Number(button.dataset.start), Number(button.dataset.span) || 1));
}

/** The chosen bar: its numbers stand below, for those who cannot point. */
let chosen;
const choose = (bar) => {
  if (!bar) return;
  if (chosen) chosen.classList.remove("isChosen");
  chosen = bar;
  bar.classList.add("isChosen");
  const lane = bar.parentElement.previousElementSibling;
  document.querySelector(".chosen").textContent = lane.textContent + ": " + bar.title;
  const t0 = Number(timeline.style.getPropertyValue("--t0")), tn = Number(timeline.style.getPropertyValue("--tn"));
  const [start, length] = [partOf(bar, "--s"), partOf(bar, "--d")];
  if (start + length < t0 || start > t0 + tn) show(start - tn / 10, tn);
  bar.scrollIntoView({ block: "nearest", inline: "nearest" });
};
const laneOf = (bar) => [...bar.parentElement.querySelectorAll(".bar")];
/** The bar of another lane or row that begins nearest to this one. */
const nearest = (bars, bar) => bars.reduce((best, one) => {
  const far = (some) => Math.abs(partOf(some, "--s") - partOf(bar, "--s"));
  return !best || far(one) < far(best) ? one : best;
}, undefined);
const move = (key) => {
  if (!chosen) return choose(timeline.querySelector(".bar"));
  const bars = laneOf(chosen), row = partOf(chosen, "--r");
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const order = bars.filter((bar) => partOf(bar, "--r") === row).sort((a, b) => partOf(a, "--s") - partOf(b, "--s"));
    return choose(order[order.indexOf(chosen) + (key === "ArrowRight" ? 1 : -1)]);
  }
  const down = key === "ArrowDown", step = down ? 1 : -1;
  const own = bars.filter((bar) => partOf(bar, "--r") === row + step);
  if (own.length > 0) return choose(nearest(own, chosen));
  const lanes = [...timeline.querySelectorAll(".lane")];
  const next = lanes[lanes.indexOf(chosen.parentElement) + step];
  if (!next) return;
  const all = [...next.querySelectorAll(".bar")], rows = all.map((bar) => partOf(bar, "--r"));
  const edge = down ? Math.min(...rows) : Math.max(...rows);
  choose(nearest(all.filter((bar) => partOf(bar, "--r") === edge), chosen));
};
if (timeline) {
  timeline.addEventListener("click", ({ target }) => { if (target.classList.contains("bar")) choose(target); });
  timeline.addEventListener("keydown", (event) => {
    const t0 = Number(timeline.style.getPropertyValue("--t0")), tn = Number(timeline.style.getPropertyValue("--tn"));
    const zoom = (factor) => {
      const middle = chosen ? partOf(chosen, "--s") + partOf(chosen, "--d") / 2 : t0 + tn / 2;
      show(middle - tn * factor / 2, tn * factor);
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key.startsWith("Arrow")) move(event.key);
    else if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "0") show(0, 1);
    else return;
    event.preventDefault();
  });
}
labelAll();
addEventListener("resize", () => requestAnimationFrame(labelAll));
`
