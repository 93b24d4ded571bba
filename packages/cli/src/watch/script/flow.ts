// SPDX-License-Identifier: Apache-2.0
/**
 * The trees of an update as rows of bars, each member within the width of the one that it gets bytes from; and the links in a
 * table. Nodes are used again from update to update.
 */

export const flowScript = `
let shape = null, fill = [], chosenTree = 0, isReshaped = true, isRefilled = true, isFilling = false;
const links = new Map();
const tree = byId("tree"), treeChoice = byId("treeChoice");
let treeWidth = tree.parentElement.clientWidth;
const nodes = [];
const nodesOf = new Map();
const mostNodes = 4000;

const linkTable = makeLiveTable(byId("linkTable"), {
  label: "links", empty: "No update has moved anything since members started.", sorting: { column: 2, down: true },
  columns: [
    { name: "from", kind: "text", width: "26%", text: (row) => row.from },
    { name: "to", kind: "text", width: "26%", text: (row) => row.to },
    { name: "bytes", kind: "number", width: "17%", text: (row) => bytesText(row.bytes), value: (row) => row.bytes },
    { name: "arrived", kind: "number", width: "13%", text: (row) => partText(row.bytes === 0 ? 0 : row.done / row.bytes), value: (row) => row.done / row.bytes },
    { name: "now", kind: "number", width: "18%", text: (row) => rateText(row.rate), value: (row) => row.rate }
  ]
});

const giversOf = (id) => [...links.values()].filter(({ key }) => key.endsWith(" " + id)).map(({ from }) => from).join(", ");

const node = (at) => {
  if (nodes[at] === undefined) {
    const made = element("div", { className: "node" }, element("span"));
    made.addEventListener("click", () => pick(made.memberId));
    nodes[at] = made;
    tree.append(made);
    work.writes += 1;
  }
  return nodes[at];
};

const labelOf = (id, rank, width) => {
  if (width < 26) return "";
  const host = members.get(id)?.host;
  const long = "rank " + rank + (host ? " on " + host : "");
  if (rank < 0) return width > 90 ? "gone" : "";
  return long.length * 7.2 + 16 < width ? long : width > 70 ? "rank " + rank : String(rank).length * 8 + 10 < width ? String(rank) : "";
};

const markNodes = () => {
  for (const made of nodes) if (!made.hidden) setAttribute(made, "data-picked", String(picked !== null && made.memberId === picked));
};

const reshape = () => {
  const { trees } = shape ?? { trees: [] };
  chosenTree = Math.min(chosenTree, Math.max(0, trees.length - 1));
  if (treeChoice.childElementCount !== (trees.length > 1 ? trees.length : 0)) {
    treeChoice.replaceChildren(...(trees.length > 1 ? trees : []).map((_, at) => {
      const button = element("button", { type: "button", textContent: "tree " + (at + 1) });
      button.addEventListener("click", () => { chosenTree = at; isReshaped = true; schedule(); });
      return button;
    }));
    work.writes += 1;
  }
  [...treeChoice.children].forEach((button, at) => setAttribute(button, "aria-pressed", String(at === chosenTree)));
  const { depth, nodes: all } = trees[chosenTree] ?? { depth: 0, nodes: [] };
  const shown = all.slice(0, mostNodes), width = treeWidth, height = depth > 12 ? 18 : 26;
  setStyle(tree, "height", depth * height + "px");
  setHidden(tree, shown.length === 0);
  nodesOf.clear();
  shown.forEach(([id, rank, row, start, end], at) => {
    const made = node(at);
    made.memberId = id;
    nodesOf.set(id, made);
    setHidden(made, false);
    setAttribute(made, "data-root", String(row === 0));
    setStyle(made, "left", start * 100 + "%");
    setStyle(made, "width", (end - start) * 100 + "%");
    setStyle(made, "top", row * height + "px");
    setStyle(made, "height", height - 2 + "px");
    setText(made.lastChild, labelOf(id, rank, (end - start) * width));
  });
  for (let at = shown.length; at < nodes.length; at++) setHidden(nodes[at], true);
  setAttribute(tree, "data-many", String(shown.length > 100));
  markNodes();
};

/** Nodes that are to be filled, from this one on. */
let nextFill = 0;
const refill = () => {
  const all = shape?.trees[chosenTree]?.nodes ?? [], parts = fill[chosenTree] ?? [], count = Math.min(all.length, mostNodes);
  for (; nextFill < count && hasTime(nextFill); nextFill++) {
    const [, rank, , , , bytes] = all[nextFill], part = parts[nextFill] ?? 0, made = nodes[nextFill];
    setStyle(made, "background-size", part / 10 + "% 100%");
    if (count <= 100) setAttribute(made, "title", "rank " + rank + (bytes === 0 ? ", had it" : ": " + partText(part / 1000) + " of " + bytesText(bytes)));
  }
  if (nextFill < count) return false;
  const receivers = all.filter(([, , , , , bytes]) => bytes > 0).length;
  const whole = all.filter(([, , , , , bytes], at) => bytes > 0 && (parts[at] ?? 0) >= 1000).length;
  setAttribute(tree, "aria-label", all.length === 0 ? "No tree" : "Tree of " + counted(all.length, "member") + " in " + counted(shape.trees[chosenTree].depth, "row") + ": " + whole + " of " + receivers + " have everything");
  return true;
};

const drawFlow = () => {
  if (isReshaped) reshape();
  if (isReshaped || isRefilled) nextFill = 0;
  if (isReshaped || isRefilled || isFilling) isFilling = !refill();
  isReshaped = isRefilled = false;
  if (isFilling) schedule();
  linkTable.draw();
};
new ResizeObserver(([{ contentRect }]) => {
  if (treeWidth === contentRect.width) return;
  treeWidth = contentRect.width;
  isReshaped = true;
  schedule();
}).observe(tree.parentElement);
`
