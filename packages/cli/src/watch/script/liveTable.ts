// SPDX-License-Identifier: Apache-2.0
/**
 * A table whose rows come, change and go. Only rows in view are in the document, and they are written again only where they
 * differ, so that a change of all of a thousand rows costs as much as of thirty.
 */

export const liveTableScript = `
const rowHeight = 30, margin = 6;

const makeLiveTable = (root, { label, empty, columns, sorting: first, onPick }) => {
  const rows = new Map();
  // Asking for it would make the browser lay the page out in the middle of a frame.
  let scrolled = 0;
  let shown = [], sorting = first, isDue = true;
  const filter = element("input", { type: "search", placeholder: "Filter", spellcheck: false });
  filter.setAttribute("aria-label", "Filter " + label);
  const count = element("span", { className: "quiet" });
  count.setAttribute("role", "status");
  const above = element("tr", { className: "spacer" }, element("td", { colSpan: columns.length }));
  const below = element("tr", { className: "spacer" }, element("td", { colSpan: columns.length }));
  for (const spacer of [above, below]) spacer.setAttribute("aria-hidden", "true");
  const body = element("tbody", {}, above, below);
  const headers = columns.map(({ name, kind, width }, at) => {
    const header = element("th", { scope: "col", className: kind }, element("button", { type: "button", textContent: name }));
    header.style.width = width;
    header.firstChild.addEventListener("click", () => {
      sorting = { column: at, down: sorting.column === at ? !sorting.down : kind === "number" };
      isDue = true;
      schedule();
    });
    return header;
  });
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...headers)), body);
  table.setAttribute("aria-label", label);
  const view = element("div", { className: "view", tabIndex: 0 }, table);
  view.setAttribute("role", "region");
  view.setAttribute("aria-label", label);
  const lines = [];
  const line = (at) => {
    if (lines[at] === undefined) {
      const cells = columns.map(({ kind }, column) => element("td", { className: kind }, ...(column === 0 && onPick ? [element("button", { type: "button", className: "pick" })] : [])));
      const made = element("tr", {}, ...cells);
      if (onPick) cells[0].firstChild.addEventListener("click", () => onPick(made.rowKey));
      lines[at] = made;
      body.insertBefore(made, below);
      work.writes += 1;
    }
    return lines[at];
  };
  const order = () => {
    const words = filter.value.toLowerCase().split(/\\s+/).filter((word) => word !== "");
    shown = [...rows.values()];
    if (words.length > 0) shown = shown.filter((row) => {
      const text = columns.map(({ text: of }) => of(row)).join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const { column, down } = sorting;
    const { kind, value, text } = columns[column];
    const compare = kind === "number" ? (a, b) => value(a) - value(b) : (a, b) => collator.compare(text(a), text(b));
    shown.sort((a, b) => (down ? compare(b, a) : compare(a, b)) || collator.compare(a.key, b.key));
    headers.forEach((header, at) => {
      if (at === column) setAttribute(header, "aria-sort", down ? "descending" : "ascending");
      else if (header.hasAttribute("aria-sort")) { header.removeAttribute("aria-sort"); header.shownAttributes?.delete("aria-sort"); }
    });
    setAttribute(table, "aria-rowcount", String(shown.length + 1));
    setText(count, shown.length === rows.size ? counted(rows.size, "row") : shown.length + " of " + counted(rows.size, "row"));
    setText(none, rows.size === 0 ? empty : "Nothing fits the filter.");
    setHidden(none, shown.length > 0);
  };
  const draw = () => {
    if (isDue) order();
    isDue = false;
    const from = Math.max(0, Math.floor(scrolled / rowHeight) - margin);
    const to = Math.min(shown.length, Math.ceil((scrolled + 460) / rowHeight) + margin);
    setStyle(above.firstChild, "height", from * rowHeight + "px");
    setStyle(below.firstChild, "height", (shown.length - to) * rowHeight + "px");
    for (let at = from; at < to; at++) {
      const row = shown[at], made = line(at - from);
      made.rowKey = row.key;
      setHidden(made, false);
      setAttribute(made, "aria-rowindex", String(at + 2));
      setAttribute(made, "class", row.mark ?? "");
      columns.forEach(({ text, about, kind }, column) => {
        const cell = made.children[column];
        setText(column === 0 && onPick ? cell.firstChild : cell, text(row));
        if (about) setAttribute(cell, "title", about(row));
        else if (kind !== "number") setAttribute(cell, "title", text(row));
      });
    }
    for (let at = to - from; at < lines.length; at++) setHidden(lines[at], true);
  };
  const none = element("p", { className: "quiet none", textContent: empty });
  filter.addEventListener("input", () => { isDue = true; view.scrollTop = 0; schedule(); });
  view.addEventListener("scroll", () => { scrolled = view.scrollTop; schedule(); });
  root.replaceChildren(element("div", { className: "tools" }, filter, count), none, view);
  return {
    set: (row) => { rows.set(row.key, row); isDue = true; },
    remove: (key) => { isDue = rows.delete(key) || isDue; },
    clear: () => { rows.clear(); isDue = true; },
    filterBy: (text) => { filter.value = text; isDue = true; view.scrollTop = 0; schedule(); },
    reveal: (key) => {
      if (isDue) order();
      isDue = false;
      const at = shown.findIndex((row) => row.key === key);
      if (at >= 0 && (at * rowHeight < view.scrollTop || at * rowHeight > view.scrollTop + view.clientHeight - 2 * rowHeight)) view.scrollTop = Math.max(0, (at - 3) * rowHeight);
      schedule();
    },
    draw
  };
};
`
