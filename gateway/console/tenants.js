// Who gets what: shares against weights, over all tenants at once and one by one.

import { $, count, duration, el, keyed, percent, short, write } from "./format.js";
import { classColour, colours, sized, tenantColour } from "./palette.js";

const CLASSES = ["interactive", "standard", "batch"];
const HEIGHT = 150;
const SPAN = 8; // the scale ends at an eighth and at eight times the fair share

const ORDERS = {
  waiting: (a, b) => waitingOf(b) - waitingOf(a) || b.tokens - a.tokens,
  tokens: (a, b) => b.tokens - a.tokens,
  ratio: (a, b) => (ratioOf(a) ?? Infinity) - (ratioOf(b) ?? Infinity),
  weight: (a, b) => b.weight - a.weight,
  name: () => 0,
};

const waitingOf = (tenant) => Object.values(tenant.waiting).reduce((sum, jobs) => sum + jobs, 0);

// What it got beside what its weight promises among those that wait; null: it waits for nothing.
const ratioOf = (tenant) => (tenant.due ? tenant.fair / tenant.due : null);

export class Tenants {
  constructor() {
    this.figures = null;
    this.bars = [];
    for (const id of ["tenant-filter", "tenant-order"]) $(id).addEventListener("input", () => this.draw());
    new ResizeObserver(() => this.draw()).observe($("balance").parentElement);
    $("balance").addEventListener("pointermove", (event) => this.#point(event));
  }

  take(figures) {
    this.figures = figures;
    this.draw();
  }

  draw() {
    if ($("tenants").hidden || !this.figures) return;
    const { tenants, at_ms: now } = this.figures;
    const waiting = tenants.filter((tenant) => tenant.due);
    const served = waiting.reduce((sum, tenant) => sum + tenant.tokens, 0);
    // A share among those that wait: who waits for nothing leaves its part to them.
    for (const tenant of tenants) tenant.fair = served ? tenant.tokens / served : 0;
    write($("tenants-line"), `${count(tenants.length)} tenants, ${count(waiting.length)} of them wait`);
    this.#drawJain(waiting, served);
    this.#drawBalance(waiting, served);
    const wanted = $("tenant-filter").value.trim().toLowerCase();
    const shown = tenants.filter((tenant) => tenant.tenant.toLowerCase().includes(wanted));
    shown.sort((a, b) => ORDERS[$("tenant-order").value](a, b) || a.tenant.localeCompare(b.tenant));
    const most = Math.max(0.01, ...tenants.map((tenant) => Math.max(tenant.share, tenant.due ?? 0)));
    const rows = [{ tenant: "", isHead: true }, ...shown];
    keyed($("tenant-rows"), rows, (row) => row.tenant, makeRow, (element, row) => row.isHead || fill(element, row, most, now));
  }

  // (Σx)² ÷ n·Σx² over service by weight: 1 when all are served alike, 1/n when one has it all.
  #drawJain(waiting, served) {
    const ratios = waiting.map(ratioOf);
    const sum = ratios.reduce((total, ratio) => total + ratio, 0);
    const squares = ratios.reduce((total, ratio) => total + ratio * ratio, 0);
    const isKnown = served > 0 && waiting.length > 1 && squares > 0;
    write($("jain"), isKnown ? `Jain index ${((sum * sum) / (waiting.length * squares)).toFixed(3)}` : "Jain index –");
  }

  #drawBalance(waiting, served) {
    const canvas = $("balance");
    const width = canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(canvas.parentElement).paddingLeft);
    if (width <= 0) return;
    const c = colours();
    const context = sized(canvas, width, HEIGHT);
    const middle = HEIGHT / 2;
    const left = 40;
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    for (const times of [4, 2, 1, 0.5, 0.25]) {
      const y = heightOf(times);
      context.fillStyle = times === 1 ? c.muted : c.line;
      context.fillRect(left, y, width - left, 1);
      context.fillStyle = c.muted;
      context.fillText({ 0.5: "½ ×", 0.25: "¼ ×" }[times] ?? `${times} ×`, 4, y + 4);
    }
    this.bars = [];
    if (!waiting.length || !served) {
      context.fillText(waiting.length ? "Nothing was served yet." : "Nobody waits: everybody gets what they ask for.", left + 12, middle - 14);
      return;
    }
    const ordered = [...waiting].sort((a, b) => ratioOf(a) - ratioOf(b) || a.tenant.localeCompare(b.tenant));
    const step = Math.min(44, (width - left) / ordered.length);
    ordered.forEach((tenant, at) => {
      const y = heightOf(ratioOf(tenant));
      const x = left + at * step;
      const bar = Math.max(1, step - (step > 4 ? 2 : 0.5));
      context.fillStyle = tenantColour(tenant.tenant);
      context.fillRect(x, Math.min(y, middle), bar, Math.max(2, Math.abs(y - middle)));
      this.bars.push({ x, step, tenant });
    });
  }

  #point(event) {
    const x = event.clientX - $("balance").getBoundingClientRect().left;
    const bar = this.bars.find((each) => x >= each.x && x < each.x + each.step);
    $("balance").title = bar ? `${bar.tenant.tenant}: ${ratioOf(bar.tenant).toFixed(2)} × its share (weight ${bar.tenant.weight})` : "";
  }
}

function heightOf(ratio) {
  const part = Math.log2(Math.min(SPAN, Math.max(1 / SPAN, ratio))) / Math.log2(SPAN);
  return HEIGHT / 2 - part * (HEIGHT / 2 - 8);
}

function makeRow(row) {
  if (row.isHead) {
    const titles = ["Tenant", "Weight", "Share of the last minute · | fair", "", "Waiting", "Running", "Tokens / min", "Oldest"];
    return el("div", { class: "row head" }, ...titles.map((title) => el("span", { textContent: title })));
  }
  const name = el("span", { class: "name" }, el("i"), el("b", { textContent: row.tenant, title: row.tenant }));
  name.querySelector("i").style.background = tenantColour(row.tenant);
  const bullet = el("span", { class: "bullet" }, el("i"), el("em"));
  bullet.querySelector("i").style.background = tenantColour(row.tenant);
  const waiting = el("span", { class: "waiting" }, el("b"), el("span", { class: "mini" }, ...CLASSES.map(() => el("i"))));
  const cell = (kind) => el("span", { class: `number ${kind}` });
  return el("div", { class: "row" }, name, cell("weight"), bullet, cell("share"), waiting, cell("running"), cell("tokens"), cell("oldest"));
}

function fill(element, tenant, most, now) {
  const total = waitingOf(tenant);
  write(element.querySelector(".weight"), `× ${tenant.weight}`);
  write(element.querySelector(".share"), percent(tenant.share, 1));
  write(element.querySelector(".running"), tenant.running ? count(tenant.running) : "·");
  write(element.querySelector(".tokens"), short(tenant.tokens));
  write(element.querySelector(".oldest"), tenant.oldest_ms ? duration(now - tenant.oldest_ms) : "·");
  write(element.querySelector(".waiting b"), total ? count(total) : "·");
  element.querySelector(".bullet i").style.width = `${(100 * tenant.share) / most}%`;
  const due = element.querySelector(".bullet em");
  due.hidden = !tenant.due;
  due.style.left = `${(100 * (tenant.due ?? 0)) / most}%`;
  element.querySelector(".bullet").title = tenant.due ? `fair share ${percent(tenant.due, 1)}` : "waits for nothing";
  [...element.querySelector(".mini").children].forEach((part, at) => {
    const jobs = tenant.waiting[CLASSES[at]] ?? 0;
    part.style.flexGrow = jobs;
    part.style.background = classColour(CLASSES[at]);
    part.hidden = !jobs;
  });
}
