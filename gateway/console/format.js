// Numbers, times and elements, as all pages write them.

const groups = new Intl.NumberFormat("en");

export const count = (value) => groups.format(Math.round(value ?? 0));

export function short(value) {
  const size = Math.abs(value);
  if (size >= 999_500) return `${(value / 1e6).toFixed(size >= 9.95e6 ? 0 : 1)}M`;
  if (size >= 9_950) return `${Math.round(value / 1e3)}k`;
  if (size >= 1_000) return `${(value / 1e3).toFixed(1)}k`;
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export const percent = (part, digits = 0) => `${(100 * (part || 0)).toFixed(digits)} %`;

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms <= 0) return "0 ms";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 100) return `${ms.toFixed(ms < 10 ? 1 : 0)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${String(Math.round(seconds % 60)).padStart(2, "0")} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  return `${Math.floor(seconds / 86_400)} d ${Math.floor((seconds % 86_400) / 3600)} h`;
}

export const clock = (ms) => new Date(ms).toISOString().slice(11, 23);

// The last part of a job's id tells jobs apart; the parts before it name model and shard.
export const jobKey = (id) => id.slice(id.lastIndexOf(":") + 1);

// "lane:key#choice" is how a worker calls one choice of a job.
export const jobOf = (request) => request.split("#")[0];

export function el(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key === "data") Object.assign(made.dataset, value);
    else if (key.startsWith("aria-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

export const $ = (id) => document.getElementById(id);

// Keeps one element per key in the order of the items; `make` and `update` are told the item.
export function keyed(parent, items, keyOf, make, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let child = old.get(key);
    if (child) old.delete(key);
    else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}

export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
