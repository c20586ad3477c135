// Who gets what: shares against weights, over all tenants at once and one by one.

import { Balance, jainIndex } from "./balance.js";
import { $, count, duration, el, keyed, percent, short, write } from "./format.js";
import { shortened } from "./lane_words.js";
import { classColour, colours, sized, tenantColour } from "./palette.js";

const CLASSES = ["interactive", "standard", "batch"];
const HEIGHT = 150;
const LEFT = 40;
const SPAN = 8; // the scale ends at an eighth and at eight times the mean

const ORDERS = {
  waiting: (a, b) => waitingOf(b) - waitingOf(a) || b.tokens - a.tokens,
  tokens: (a, b) => b.tokens - a.tokens,
  below: (a, b) => (a.due ? a.share / a.due : Infinity) - (b.due ? b.share / b.due : Infinity),
  weight: (a, b) => b.weight - a.weight,
  name: () => 0,
};

const waitingOf = (tenant) => Object.values(tenant.waiting).reduce((sum, jobs) => sum + jobs, 0);

export class Tenants {
  constructor() {
    this.figures = null;
    this.balance = new Balance();
    this.band = null; // null: the class that got the most service
    this.bars = [];
    for (const id of ["tenant-filter", "tenant-order"]) $(id).addEventListener("input", () => this.draw());
    new ResizeObserver(() => this.draw()).observe($("balance").parentElement);
    $("balance").addEventListener("pointermove", (event) => this.#point(event));
    $("band").addEventListener("click", (event) => {
      this.band = event.target.dataset.band ?? this.band;
      this.draw();
    });
  }

  take(figures) {
    this.figures = figures;
    this.balance.add(figures);
    this.draw();
  }

  draw() {
    if ($("tenants").hidden || !this.figures) return;
    const { tenants, at_ms: now } = this.figures;
    write($("tenants-line"), `${count(tenants.length)} ${tenants.length === 1 ? "tenant" : "tenants"}, ${count(tenants.filter((tenant) => tenant.due).length)} wait`);
    this.#drawBalance();
    const wanted = $("tenant-filter").value.trim().toLowerCase();
    const shown = tenants.filter((tenant) => tenant.tenant.toLowerCase().includes(wanted));
    shown.sort((a, b) => ORDERS[$("tenant-order").value](a, b) || a.tenant.localeCompare(b.tenant));
    const most = Math.max(0.01, ...tenants.map((tenant) => Math.max(tenant.share, tenant.due ?? 0)));
    const rows = [{ tenant: "", isHead: true }, ...shown];
    keyed($("tenant-rows"), rows, (row) => row.tenant, makeRow, (element, row) => row.isHead || fill(element, row, most, now));
  }

  #drawBalance() {
    const byBand = new Map(CLASSES.map((name) => [name, this.balance.entries(name)]));
    const served = (name) => byBand.get(name).reduce((sum, { gain }) => sum + gain, 0);
    const band = this.band ?? CLASSES.reduce((best, name) => (served(name) > served(best) ? name : best));
    for (const button of $("band").children) {
      button.setAttribute("aria-pressed", String(button.dataset.band === band));
      write(button, `${button.dataset.band} ${byBand.get(button.dataset.band).length}`);
    }
    const entries = byBand.get(band);
    const index = jainIndex(entries);
    write($("jain"), index === null ? "Jain index –" : `Jain index ${index.toFixed(3)} over ${Math.round(this.balance.seconds)} s`);
    this.#drawBars(entries, band);
  }

  #drawBars(entries, band) {
    const canvas = $("balance");
    const width = canvas.parentElement.clientWidth - 2 * parseFloat(getComputedStyle(canvas.parentElement).paddingLeft);
    if (width <= 0) return;
    const c = colours();
    const context = sized(canvas, width, HEIGHT);
    const middle = HEIGHT / 2;
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    context.textAlign = "left";
    for (const times of [4, 2, 1, 0.5, 0.25]) {
      const y = heightOf(times);
      context.fillStyle = times === 1 ? c.muted : c.line;
      context.fillRect(LEFT, y, width - LEFT, 1);
      context.fillStyle = c.muted;
      context.fillText({ 0.5: "½ ×", 0.25: "¼ ×" }[times] ?? `${times} ×`, 4, y + 4);
    }
    this.bars = [];
    if (!entries.length) {
      const isEarly = this.balance.seconds < 3;
      const words = [`No two ${band} tenants waited all the time:`, "each gets what it asks for."];
      if (isEarly) context.fillText("Looking…", LEFT + 12, middle - 6);
      else words.forEach((line, at) => context.fillText(line, LEFT + 12, middle - 6 + 20 * at));
      return;
    }
    const step = (width - LEFT) / entries.length;
    context.textAlign = "center";
    entries.forEach((entry, at) => {
      const y = heightOf(entry.ratio);
      const x = LEFT + at * step;
      const bar = Math.min(56, Math.max(1, step - (step > 4 ? 2 : 0.5)));
      context.fillStyle = tenantColour(entry.tenant);
      context.fillRect(x + (step - bar) / 2, Math.min(y, middle), bar, Math.max(2, Math.abs(y - middle)));
      context.fillStyle = c.muted;
      // Beyond the line, where its bar is not.
      if (step >= 56) context.fillText(shortened(context, entry.tenant, step - 6), x + step / 2, y < middle ? middle + 15 : middle - 7);
      this.bars.push({ x, step, entry });
    });
  }

  #point(event) {
    const x = event.clientX - $("balance").getBoundingClientRect().left;
    const entry = this.bars.find((each) => x >= each.x && x < each.x + each.step)?.entry;
    $("balance").title = entry ? `${entry.tenant}: ${entry.ratio.toFixed(2)} × the mean, by weight (${entry.model})` : "";
  }
}

function heightOf(ratio) {
  const part = Math.log2(Math.min(SPAN, Math.max(1 / SPAN, ratio))) / Math.log2(SPAN);
  return HEIGHT / 2 - part * (HEIGHT / 2 - 8);
}

function makeRow(row) {
  if (row.isHead) {
    const titles = ["Tenant", "Weight", "Share of the last minute, and its due", "", "Waiting", "Running", "Tokens / min", "Oldest"];
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
  write(element.querySelector(".share"), percent(tenant.share, tenant.share < 0.9995 ? 1 : 0)); // a phone has no room for 100.0 %
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
