// What all panels share: elements, tables, numbers. Text becomes text: nothing here takes a string for markup.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : document.createTextNode(child ?? ""))));
  return made;
}

export const byId = (id) => document.getElementById(id);

// Renews a panel only if what it shows has changed, so that a selection in it stays.
const drawn = new Map();
export function renew(id, data, draw) {
  const section = byId(id), key = JSON.stringify(data);
  if (drawn.get(id) === key) return;
  drawn.set(id, key);
  const content = draw();
  section.hidden = content === null && !section.querySelector(":scope > .note");
  section.querySelector(":scope > div, :scope > details > div").replaceChildren(...[content ?? []].flat());
}

export function forget(id) {
  drawn.delete(id);
}

// columns: [heading, row => text or node, {text: left aligned, sort: name}]
export function table(columns, rows, sorting) {
  const heads = columns.map(([heading, , how = {}]) =>
    el("th", {class: how.text || how.long || how.brief ? "text" : ""},
      how.sort && sorting
        ? el("button", {"aria-pressed": String(sorting.by === how.sort), onclick: () => sorting.choose(how.sort)}, heading)
        : heading));
  const lines = rows.map((row) => el("tr", {}, ...columns.map(([, cell, how = {}]) =>
    el("td", {class: how.long ? "text long" : how.brief ? "text brief" : how.text ? "text" : ""}, cell(row)))));
  return el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...lines));
}

// Details that stay open when their panel is drawn anew.
const open = new Set();
export function details(key, summary, ...content) {
  const made = el("details", {open: open.has(key)}, el("summary", {}, summary), ...content);
  made.addEventListener("toggle", () => (made.open ? open.add(key) : open.delete(key)));
  return made;
}

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const short = new Intl.NumberFormat("en", {notation: "compact", maximumFractionDigits: 1});

export const NONE = "–";
export const isNone = (value) => value === null || value === undefined;
export const count = (value) => (isNone(value) ? NONE : whole.format(value));
export const rate = (value) =>
  isNone(value) ? NONE : value >= 9_999.5 ? short.format(value) : value >= 99.5 || value === 0 ? whole.format(value) : value.toPrecision(2);
export const percent = (value) => (isNone(value) ? NONE : `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`);
export const bytes = (value) => (isNone(value) ? NONE : value < 1e6 ? `${whole.format(value / 1e3)} kB` : value < 1e9 ? `${(value / 1e6).toFixed(1)} MB` : `${(value / 1e9).toFixed(2)} GB`);
export function ms(value) {
  if (isNone(value)) return NONE;
  if (value === 0) return "0 ms";
  if (value >= 999.5) return `${(value / 1000).toFixed(value < 99_950 ? 1 : 0)} s`;
  return `${value >= 99.5 ? whole.format(value) : value.toPrecision(2)} ms`;
}
export function span(seconds) {
  if (isNone(seconds)) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
}
export const clock = (epoch) => (isNone(epoch) ? NONE : new Date(epoch).toLocaleTimeString("en-GB"));
