// SPDX-License-Identifier: Apache-2.0
/**
 * Members on the page: a cell for each in a field that arrow keys walk through, counts by state that filter, the table, and
 * what is known of the member that was picked.
 */

export const membersScript = `
const states = ["serving", "receiving", "staged", "paused", "switching", "behind", "empty", "joining", "silent", "source"];
const members = new Map();
const cells = new Map();
let order = [], picked = null, areCountsDue = true;
const changedMembers = new Set();
const field = byId("field"), legend = byId("legend"), detail = byId("detail");

const memberTable = makeLiveTable(byId("memberTable"), {
  label: "members", empty: "The fleet has no members.", sorting: { column: 0, down: false },
  onPick: (key) => pick(key),
  columns: [
    { name: "rank", kind: "number", width: "12%", text: (row) => String(row.rank), value: (row) => row.rank },
    { name: "role", kind: "text", width: "12%", text: (row) => row.role },
    { name: "host", kind: "text", width: "20%", text: (row) => row.host || "–" },
    { name: "version", kind: "text", width: "19%", text: (row) => row.version },
    { name: "state", kind: "text", width: "20%", text: (row) => row.said, about: (row) => row.failure || row.said },
    { name: "heartbeat", kind: "number", width: "17%", text: (row) => row.silent === 0 ? "now" : secondsText(row.silent), value: (row) => row.silent }
  ]
});

const legendButtons = new Map(states.map((state) => {
  const count = element("b", { textContent: "0" });
  const swatch = element("i", { className: "swatch" });
  swatch.dataset.state = state;
  const button = element("button", { type: "button" }, swatch, state + " ", count);
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const isOn = button.getAttribute("aria-pressed") !== "true";
    for (const other of legendButtons.values()) other.button.setAttribute("aria-pressed", String(other.button === button && isOn));
    memberTable.filterBy(isOn ? state : "");
  });
  legend.append(button);
  return [state, { button, count }];
}));

const nameOf = (row) => "rank " + row.rank + (row.host ? " on " + row.host : "");
const lineOf = (row) => nameOf(row) + ", " + (row.role === "source" ? "source" : row.said + (row.serial ? ", version " + row.version : ""))
  + (row.silent ? ", silent for " + secondsText(row.silent) : "");
/** What a cell is called: only what changes seldom, since there may be thousands. */
const labelOfCell = (row) => nameOf(row) + ", " + row.state;

const pick = (id) => {
  const before = cells.get(picked);
  if (before) setAttribute(before, "aria-selected", "false");
  picked = members.has(id) ? id : null;
  const cell = cells.get(picked);
  if (cell) {
    setAttribute(cell, "aria-selected", "true");
    setAttribute(field, "aria-activedescendant", cell.id);
    memberTable.reveal(id);
  }
  markNodes();
  showDetail();
};

const showDetail = () => {
  const row = members.get(picked);
  setHidden(detail, row === undefined);
  setHidden(byId("hint"), row !== undefined || members.size === 0);
  if (row === undefined) return;
  const facts = [["member", row.id], ["process", row.process === null ? "–" : String(row.process)], ["host", row.host || "–"],
    ["version", row.version], ["state", row.said], ["received", bytesText(row.received)], ["gets it from", giversOf(row.id) || "–"]];
  if (row.silent) facts.push(["silent for", secondsText(row.silent)]);
  if (row.failure) facts.push(["failed last with", row.failure]);
  const key = JSON.stringify(facts);
  if (detail.shownKey === key) return;
  detail.shownKey = key;
  work.writes += 1;
  detail.replaceChildren(element("h3", { textContent: nameOf(row) }),
    element("dl", { className: "facts" }, ...facts.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })])));
};

/** Cells in the order of ranks, made anew only where members came or went. */
const placeCells = () => {
  const next = [...members.values()].sort((a, b) => a.rank - b.rank || collator.compare(a.id, b.id)).map(({ id }) => id);
  if (next.length === order.length && next.every((id, at) => id === order[at])) return;
  order = next;
  for (const [id, cell] of cells) if (!members.has(id)) { cell.remove(); cells.delete(id); }
  const made = order.map((id) => {
    const known = cells.get(id);
    if (known) return known;
    const cell = element("div", { id: "member-" + id, className: "cell" });
    cell.setAttribute("role", "option");
    cell.setAttribute("aria-selected", "false");
    cells.set(id, cell);
    changedMembers.add(id);
    return cell;
  });
  field.replaceChildren(...made);
  setAttribute(field, "data-size", order.length > 400 ? "small" : order.length > 48 ? "middle" : "large");
  work.writes += 1;
};

field.addEventListener("mouseover", (event) => {
  const row = members.get(event.target.id?.slice("member-".length));
  if (row) event.target.title = lineOf(row);
});
field.addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (cell) pick(cell.id.slice("member-".length));
});
field.addEventListener("keydown", (event) => {
  if (order.length === 0) return;
  const at = order.indexOf(picked);
  const across = Math.max(1, Math.floor((field.clientWidth + 4) / (cells.get(order[0]).offsetWidth + 4)));
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
  const to = event.key === "Home" ? 0 : event.key === "End" ? order.length - 1
    : event.key in steps ? (at < 0 ? 0 : at + steps[event.key]) : event.key === "Escape" ? -1 : undefined;
  if (to === undefined) return;
  event.preventDefault();
  if (event.key === "Escape") pick(null);
  else pick(order[Math.max(0, Math.min(order.length - 1, to))]);
});

const setMember = (row) => {
  const before = members.get(row.id);
  members.set(row.id, row);
  changedMembers.add(row.id);
  areCountsDue = true;
  memberTable.set({ ...row, key: row.id, mark: row.isTroubled ? "troubled" : "" });
  if (before && !before.isTroubled && row.isTroubled) announce(lineOf(row) + (row.failure ? ": " + row.failure : ""));
};
const removeMember = (id) => {
  const row = members.get(id);
  members.delete(id);
  areCountsDue = true;
  memberTable.remove(id);
  if (row) announce(nameOf(row) + " is gone");
  if (picked === id) pick(null);
};

const drawMembers = () => {
  placeCells();
  const isNews = areCountsDue;
  areCountsDue = false;
  let drawn = 0;
  for (const id of changedMembers) {
    if (!hasTime(drawn++)) break;
    changedMembers.delete(id);
    const row = members.get(id), cell = cells.get(id);
    if (row === undefined || cell === undefined) continue;
    setAttribute(cell, "data-state", row.state);
    setAttribute(cell, "aria-label", labelOfCell(row));
  }
  if (changedMembers.size > 0) schedule();
  if (isNews) {
    const counts = new Map(), versions = new Map();
    for (const { state, role, version } of members.values()) {
      counts.set(state, (counts.get(state) ?? 0) + 1);
      if (role !== "source") versions.set(version, (versions.get(version) ?? 0) + 1);
    }
    for (const [state, { button, count }] of legendButtons) {
      setText(count, (counts.get(state) ?? 0).toLocaleString("en"));
      setHidden(button, !counts.has(state) && button.getAttribute("aria-pressed") !== "true");
    }
    const said = [...versions].sort((a, b) => b[1] - a[1]).slice(0, 5).map(([version, count]) => (version === "–" ? "no version" : "version " + version) + " by " + count.toLocaleString("en"));
    setText(byId("versions"), said.length === 0 ? "No replicas." : "In use: " + said.join(", ") + ".");
    const replicas = [...members.values()].filter(({ role }) => role === "replica");
    setText(byId("figureServing"), replicas.filter(({ isServing }) => isServing).length.toLocaleString("en") + " of " + replicas.length.toLocaleString("en"));
    const troubled = [...members.values()].filter((row) => row.isTroubled);
    setText(byId("figureTrouble"), String(troubled.length));
    setText(byId("figureTroubleAbout"), troubled.length === 0 ? "all give signs of life" : troubled.slice(0, 3).map((row) => "rank " + row.rank).join(", ") + (troubled.length > 3 ? " and others" : ""));
  }
  memberTable.draw();
  showDetail();
};
`
