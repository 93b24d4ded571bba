// SPDX-License-Identifier: Apache-2.0
/**
 * The page's loop: events come over one request that carries the token, change what is known, and are drawn together in the
 * next frame. A connection that ends is opened again.
 */

/** What other parts call before they are defined. */
export const scheduleScript = `
let isScheduled = false, drawAll = () => {}, frameEnd = 0;
/** A frame that has much to write leaves the rest to the next one: no more than so many milliseconds of work on cells and nodes. */
const frameBudget = 6;
const hasTime = (count) => count % 32 !== 0 || performance.now() < frameEnd;
const schedule = () => {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    const begun = performance.now();
    frameEnd = begun + frameBudget;
    drawAll();
    work.frames += 1;
    work.millis = performance.now() - begun;
  });
};
/** For those who do not see the page. */
let said = [];
const announce = (text) => { said.push(text); schedule(); };
`

export const mainScript = `
let head = null, updates = [], isHeadChanged = false, isHistoryChanged = false;
const badge = byId("link"), history = byId("history");

const setBadge = (kind, text) => {
  setAttribute(badge, "class", "badge " + kind);
  setText(badge, text);
};

const drawHead = () => {
  const { name, version, open, bytes, done, rate, proposedAt, removed, trouble } = head;
  document.title = (open ? partText(bytes === 0 ? 0 : done / bytes) + " · " : "") + name + " · tensorferry";
  setText(byId("title"), name);
  setText(byId("figureVersion"), version === "–" ? "none yet" : version);
  const since = open && proposedAt !== null ? Math.max(0, (Date.now() - proposedAt) / 1000) : null;
  setText(byId("figureUpdate"), open ? open.phase + (since === null ? "" : ", " + secondsText(since)) : "none open");
  setText(byId("figureUpdateAbout"), open ? open.name + ", policy " + open.policy : updates.length > 0 ? "last: version " + updates[0].serial + " " + updates[0].said : "nothing was published yet");
  setText(byId("figureRate"), rate === 0 ? "idle" : rateText(rate));
  setText(byId("flowHead"), open ? "Update " + open.name : updates.length > 0 ? "Last update" : "Update");
  const part = bytes === 0 ? 0 : done / bytes;
  setText(byId("flowAbout"), bytes === 0 ? (open ? "Nothing has been asked for yet." : "Nothing has moved since members started.")
    : partText(part) + " of " + bytesText(bytes) + " between members has arrived" + (open ? ", policy " + open.policy + (open.phase === "stopping" ? ", replicas stop serving" : "") : "") + ". Each member lies below the one that it gets bytes from.");
  const meter = byId("meter");
  setHidden(meter, bytes === 0);
  setAttribute(meter, "aria-valuenow", String(Math.floor(part * 100)));
  setStyle(meter.firstChild, "transform", "scaleX(" + part + ")");
  setHidden(byId("removed"), removed.length === 0);
  setText(byId("removed"), "Lately: " + removed.join(" "));
  setHidden(byId("trouble"), trouble === "");
  setText(byId("troubleText"), trouble);
  if (isConnected) setBadge(trouble === "" ? "good" : "warn", trouble === "" ? "live" : "store away");
};

const drawHistory = () => {
  const longest = updates.reduce((most, { seconds }) => Math.max(most, seconds ?? 0), 0);
  setText(byId("historyNone"), "Nothing was published yet.");
  setHidden(byId("historyNone"), updates.length > 0);
  history.replaceChildren(...updates.map((update) => {
    const { serial, label, policy, outcome, said: how, seconds, staging, pause, slow, why, endedAt } = update;
    const kind = outcome === "committed" ? "good" : outcome === "open" ? "open" : "warn";
    const bar = element("div", { className: "bar" });
    bar.setAttribute("aria-hidden", "true");
    const [first, second] = [element("i", { className: "staging" }), element("i", { className: "pause" })];
    first.style.width = (longest === 0 ? 0 : 100 * (staging ?? 0) / longest) + "%";
    second.style.width = (longest === 0 ? 0 : 100 * (pause ?? 0) / longest) + "%";
    bar.append(first, second);
    const times = seconds === null ? "" : secondsText(seconds) + (pause === null ? "" : ", replicas stood still for " + secondsText(pause));
    const when = endedAt === null ? null : element("time", { dateTime: new Date(endedAt).toISOString(), textContent: new Date(endedAt).toLocaleTimeString("en", { hour12: false }) });
    const line = element("div", { className: "line" }, element("b", { textContent: "version " + serial }), element("span", { className: "label", textContent: label }),
      element("span", { className: "badge " + kind, textContent: how }), element("span", { className: "quiet", textContent: "policy " + policy + (times === "" ? "" : ", " + times) }), ...(when === null ? [] : [when]));
    const slowest = slow.map(([who, taken, part]) => who + " " + (taken === null ? part : secondsText(taken))).join(", ");
    return element("li", {}, line, ...(seconds === null ? [] : [bar]),
      ...(why === "" ? [] : [element("p", { className: "why", textContent: why })]),
      ...(slowest === "" ? [] : [element("p", { className: "quiet", textContent: "slowest: " + slowest })]));
  }));
  work.writes += updates.length;
};

drawAll = () => {
  if (head === null) return;
  if (isHistoryChanged) drawHistory();
  if (isHeadChanged) drawHead();
  isHeadChanged = isHistoryChanged = false;
  drawMembers();
  drawFlow();
  if (said.length > 0) setText(byId("said"), said.length > 3 ? said.slice(0, 2).join(". ") + ". And " + (said.length - 2) + " more changes." : said.join(". ") + ".");
  said = [];
};

const announceUpdates = (next) => {
  const before = new Map(updates.map((update) => [update.serial, update]));
  for (const { serial, outcome, why, seconds, policy } of next) {
    const known = before.get(serial);
    if (known?.outcome === outcome) continue;
    if (outcome === "open") announce("Update to version " + serial + " has begun, policy " + policy);
    else if (known !== undefined || serial > (updates[0]?.serial ?? 0)) announce("Version " + serial + (outcome === "committed" ? " is committed after " + secondsText(seconds) : " was given up: " + why));
  }
};

const take = ({ head: nextHead, members: rows, gone, updates: nextUpdates, shape: nextShape, fill: nextFill, links: nextLinks }) => {
  if (nextHead !== undefined) { head = nextHead; isHeadChanged = true; }
  for (const id of gone ?? []) removeMember(id);
  for (const row of rows ?? []) setMember(row);
  if (nextUpdates !== undefined) {
    if (updates.length > 0 || isConnected) announceUpdates(nextUpdates);
    updates = nextUpdates;
    isHeadChanged = isHistoryChanged = true;
  }
  if (nextShape !== undefined) {
    shape = nextShape;
    isReshaped = true;
    links.clear();
    linkTable.clear();
  }
  if (nextFill !== undefined) { fill = nextFill; isRefilled = true; }
  for (const row of nextLinks ?? []) { links.set(row.key, row); linkTable.set(row); }
  schedule();
};

let isConnected = false;
const receive = ({ whole, change }) => {
  if (whole !== undefined) {
    const ids = new Set(whole.members.map(({ id }) => id));
    take({ ...whole, gone: [...members.keys()].filter((id) => !ids.has(id)) });
    isConnected = true;
    isHeadChanged = true;
  } else take(change);
};

const token = new URLSearchParams(location.hash.slice(1)).get("token") ?? "";
/** Milliseconds without a sign of the server after which the connection counts as lost. */
const patience = 40000;

/** Ends when the connection does; true where it is no use to try again. */
const listen = async () => {
  const lost = new AbortController();
  let timer = setTimeout(() => lost.abort(), patience);
  const response = await fetch("/events", { headers: { Authorization: "Bearer " + token }, cache: "no-store", signal: lost.signal });
  if (response.status === 401) {
    setBadge("warn", "no token");
    setHidden(byId("trouble"), false);
    setText(byId("troubleText"), await response.text());
    return true;
  }
  if (!response.ok) return false;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return false;
    clearTimeout(timer);
    timer = setTimeout(() => lost.abort(), patience);
    text += value;
    const parts = text.split("\\n\\n");
    text = parts.pop();
    for (const part of parts) if (part.startsWith("data: ")) receive(JSON.parse(part.slice(6)));
  }
};

const run = async () => {
  for (let wait = 250; ; wait = Math.min(8000, wait * 2)) {
    const begun = performance.now();
    try {
      if (await listen()) return;
    } catch { /* Said below. */ }
    if (performance.now() - begun > 10000) wait = 250;
    if (isConnected) announce("The connection to tensorferry watch is lost");
    isConnected = false;
    setBadge("warn", "connection lost");
    schedule();
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
};
setInterval(() => { if (head?.open) { isHeadChanged = true; schedule(); } }, 1000);
run();
`
