// The live page: figures with their last minutes, the queue by class and tenant, and the workers' batches.

import { $, count, duration, el, keyed, percent, short, write } from "./format.js";
import { Lanes } from "./lanes.js";
import { classColour, colours, sparkline, tenantColour } from "./palette.js";
import { WorkerSteps } from "./steps.js";

const CLASSES = ["interactive", "standard", "batch"];
const HISTORY = 180;
const MOST_PARTS = 128; // of one class's bar; the tenants beyond share one part, as do those with too thin a one
const THINNEST = 1 / 250;

const TILES = [
  ["waiting", "Waiting", (at) => short(at.waiting), "interactive"],
  ["running", "With workers", (at) => short(at.running), "decode"],
  ["rate", "Tokens / s", (at) => short(at.rate), "good"],
  ["wait", "Predicted wait", (at) => (at.wait === null ? "–" : at.wait ? duration(at.wait * 1000) : "none"), "prefill"],
  ["kv", "KV in use", (at) => percent(at.kv), "accent"],
  ["workers", "Workers ready", (at) => `${at.workers} / ${at.cards}`, "muted"],
];

export class Live {
  constructor(openJob) {
    this.history = [];
    this.workers = new Map();
    this.chosen = null;
    this.figures = null;
    this.lanes = new Lanes($("lanes"), $("lanes-tip"), openJob);
    $("tiles").append(...TILES.map(([key, title]) => el("div", { class: "tile", data: { key } }, el("span", { textContent: title }), el("b", { textContent: "–" }), el("canvas"))));
    $("paint").addEventListener("click", (event) => this.#paint(event.target.dataset.paint));
    $("pause").addEventListener("click", () => this.#pause());
    this.#legend();
  }

  repaint() {
    this.#legend();
    this.draw();
  }

  take(figures) {
    this.figures = figures;
    const cards = figures.workers;
    const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);
    const waits = figures.models.map((lane) => lane.wait_seconds).filter((seconds) => seconds !== null);
    this.history.push({
      waiting: sum(figures.models, (lane) => sum(Object.values(lane.waiting), (jobs) => jobs)),
      running: sum(figures.models, (lane) => lane.running),
      rate: sum(figures.models, (lane) => lane.tokens_per_second),
      wait: waits.length ? Math.max(...waits) : null,
      kv: cards.length ? sum(cards, (card) => card.kv_used_fraction) / cards.length : 0,
      workers: cards.filter((card) => card.state === "ready").length,
      cards: cards.length,
    });
    if (this.history.length > HISTORY) this.history.shift();
    for (const id of this.workers.keys()) if (!cards.some((card) => card.worker_id === id)) this.workers.delete(id);
    if (!cards.some((card) => card.worker_id === this.chosen)) this.chosen = cards[0]?.worker_id ?? null;
    this.draw();
  }

  takeSteps(id, view) {
    if (!this.workers.has(id)) this.workers.set(id, new WorkerSteps());
    this.workers.get(id).add(view);
    this.chosen ??= id;
    if (id === this.chosen && !$("live").hidden) this.#drawLanes();
  }

  // What the engines told of a job's requests, for its timeline.
  marksOf(jobId) {
    const marks = [];
    for (const worker of this.workers.values()) {
      for (const request of worker.requests.values()) if (request.id.startsWith(`${jobId}#`)) marks.push(...request.marks);
    }
    return marks;
  }

  draw() {
    if ($("live").hidden || !this.figures) return;
    this.#drawTiles();
    this.#drawQueue();
    this.#drawWorkers();
    this.#drawLanes();
  }

  #drawTiles() {
    const now = this.history.at(-1);
    for (const [key, , show, colour] of TILES) {
      const tile = $("tiles").querySelector(`[data-key="${key}"]`);
      write(tile.querySelector("b"), show(now));
      sparkline(tile.querySelector("canvas"), this.history.map((at) => at[key] ?? 0), colours()[colour], { top: key === "kv" ? 1 : null });
    }
  }

  #drawQueue() {
    const { models, tenants } = this.figures;
    const totals = CLASSES.map((name) => models.reduce((sum, lane) => sum + (lane.waiting[name] ?? 0), 0));
    const most = Math.max(1, ...totals);
    const dead = models.reduce((sum, lane) => sum + lane.dead_letters, 0);
    write($("queue-sum"), dead ? `${count(dead)} given up: headway dlq list` : "");
    const rows = CLASSES.map((name, at) => ({ name, total: totals[at], parts: partsOf(tenants, name, totals[at]) }));
    keyed($("queue"), rows, (row) => row.name, makeClass, (element, row) => {
      write(element.querySelector(".class-total"), count(row.total));
      const bar = element.querySelector(".class-bar");
      bar.style.width = `${(100 * row.total) / most}%`;
      keyed(bar, row.parts, (part) => part.key, () => el("span"), (span, part) => {
        span.style.flexGrow = part.jobs;
        span.style.background = part.colour;
        span.title = `${part.label}: ${count(part.jobs)} waiting`;
        // A name that does not fit would be cut to a letter; it is in the title.
        const width = (element.querySelector(".class-track").clientWidth * part.jobs) / most;
        write(span, width > 18 + 7 * part.label.length ? part.label : "");
      });
    });
  }

  #drawWorkers() {
    const cards = this.figures.workers;
    keyed($("workers"), cards, (card) => card.worker_id, (card) => this.#chip(card.worker_id), (chip, card) => {
      chip.setAttribute("aria-selected", String(card.worker_id === this.chosen));
      chip.dataset.state = card.state;
      write(chip.querySelector("b"), card.worker_id);
      write(chip.querySelector("span"), `${card.running} / ${card.max_running}`);
      chip.querySelector("i").style.setProperty("--part", card.kv_used_fraction);
      chip.title = `${card.model} on ${card.host}, ${card.state}, KV ${percent(card.kv_used_fraction)}`;
    });
    const card = cards.find((each) => each.worker_id === this.chosen);
    write($("worker-line"), card ? `${card.model} · ${card.state} · ${card.running} of ${card.max_running} places · ${short(card.tokens_per_second)} tokens/s` : "no worker");
  }

  #chip(id) {
    const chip = el("button", { type: "button", class: "chip" }, el("i"), el("b"), el("span"));
    chip.setAttribute("role", "tab");
    chip.addEventListener("click", () => {
      this.chosen = id;
      this.draw();
    });
    return chip;
  }

  #drawLanes() {
    const worker = this.workers.get(this.chosen) ?? null;
    const isEmpty = !worker?.steps.length;
    $("lanes-empty").hidden = !isEmpty;
    $("lanes").hidden = isEmpty;
    this.lanes.show(worker);
  }

  #paint(mode) {
    if (!mode) return;
    this.lanes.paint = mode;
    for (const button of $("paint").children) button.setAttribute("aria-pressed", String(button.dataset.paint === mode));
    this.#legend();
    this.lanes.ask();
  }

  #pause() {
    this.lanes.isPaused = !this.lanes.isPaused;
    $("pause").setAttribute("aria-pressed", String(this.lanes.isPaused));
    write($("pause"), this.lanes.isPaused ? "Go on" : "Pause");
    this.lanes.ask();
  }

  #legend() {
    const c = colours();
    const phases = [["prefill", c.prefill], ["decode", c.decode]];
    const classes = CLASSES.map((name) => [name, classColour(name)]);
    const first = { phase: phases, class: classes, tenant: [["each tenant has a colour", "linear-gradient(90deg, #5aa9ff, #c084fc, #f472b6, #fbbf24)"]] }[this.lanes.paint];
    const items = [...first, ["swapped out", c.swapped], ["to be recomputed", c.recomputed], ["joined", c.ink], ["predicted time", c.prefill, "line"]];
    $("legend").replaceChildren(...items.map(([name, colour, shape = "block"]) => {
      const dot = el("i", { class: shape });
      dot.style.background = colour;
      return el("span", {}, dot, name);
    }));
  }
}

function makeClass(row) {
  const dot = el("i");
  dot.style.background = `var(--${row.name})`;
  return el("div", { class: "class-row" }, el("span", { class: "class-name" }, dot, row.name), el("b", { class: "class-total" }), el("div", { class: "class-track" }, el("div", { class: "class-bar" })));
}

// The largest tenants one by one, the others together.
function partsOf(tenants, name, total) {
  const waiting = tenants.map((tenant) => ({ label: tenant.tenant, jobs: tenant.waiting[name] ?? 0 })).filter((part) => part.jobs).sort((a, b) => b.jobs - a.jobs);
  const parts = waiting.filter((part, at) => at < MOST_PARTS && part.jobs >= total * THINNEST).map((part) => ({ ...part, key: part.label, colour: tenantColour(part.label) }));
  const named = parts.reduce((sum, part) => sum + part.jobs, 0);
  // Jobs that came back from a dead worker are in no tenant's backlog, but in the total.
  const rest = Math.max(0, total - named);
  const others = waiting.length - parts.length;
  if (rest) parts.push({ key: "\u0000rest", label: others > 0 ? `${others} others` : "handed back", jobs: rest, colour: colours().faint });
  return parts;
}
