// SPDX-License-Identifier: Apache-2.0
/**
 * What all parts of the page's script use: elements, words, and writes that are left out where nothing changes. Writes are
 * counted, so that tests can tell how much a frame does on any machine.
 */

export const elementsScript = `
const work = { frames: 0, writes: 0, millis: 0 };
globalThis.tensorferryWatch = work;
const byId = (id) => document.getElementById(id);
const collator = new Intl.Collator("en", { numeric: true });

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};
/** Data becomes text, never markup. */
const setText = (node, text) => {
  if (node.shownText === text) return;
  node.shownText = text;
  node.textContent = text;
  work.writes += 1;
};
const setAttribute = (node, name, value) => {
  const shown = node.shownAttributes ?? (node.shownAttributes = new Map());
  if (shown.get(name) === value) return;
  shown.set(name, value);
  node.setAttribute(name, value);
  work.writes += 1;
};
const setStyle = (node, name, value) => {
  const shown = node.shownStyles ?? (node.shownStyles = new Map());
  if (shown.get(name) === value) return;
  shown.set(name, value);
  node.style.setProperty(name, value);
  work.writes += 1;
};
const setHidden = (node, isHidden) => {
  if (node.hidden === isHidden) return;
  node.hidden = isHidden;
  work.writes += 1;
};

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const bytesText = (bytes) => {
  let value = bytes, unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return unit === 0 ? value + " B" : value.toFixed(value >= 100 ? 0 : 1) + " " + units[unit];
};
const rateText = (rate) => rate === 0 ? "–" : rate < 1e8 ? (rate / 1e6).toFixed(1) + " MB/s" : (rate / 1e9).toFixed(2) + " GB/s";
const secondsText = (seconds) => seconds === null ? "–" : seconds < 10 ? seconds.toFixed(1) + " s" : seconds < 120 ? Math.round(seconds) + " s"
  : seconds < 7200 ? Math.round(seconds / 60) + " min" : Math.round(seconds / 3600) + " h";
const partText = (part) => (part >= 1 ? 100 : Math.min(99, Math.floor(part * 100))) + "%";
const counted = (count, one) => count.toLocaleString("en") + " " + one + (count === 1 ? "" : "s");
`
