// Draws one worker's batch: requests as lanes over iterations, below them KV use and the time of each step.

import { jobOf } from "./format.js";
import { classColour, colours, sized, tenantColour } from "./palette.js";
import { GAP, STRIP, drawStrips } from "./strips.js";
import { shortened, told } from "./lane_words.js";

const AXIS = 18;
const LEAST_LANES = 8;
const ARRIVES_MS = 400; // new steps slide in over the time until the next ones come

export class Lanes {
  constructor(canvas, tip, opened) {
    this.canvas = canvas;
    this.tip = tip;
    this.paint = "phase";
    this.isPaused = false;
    this.worker = null;
    this.head = 0; // the step at the right edge, counted from the first ever; between two while sliding
    this.lanes = LEAST_LANES;
    this.pointer = null;
    this.isAsked = false;
    this.drawnAt = 0;
    this.isStill = matchMedia("(prefers-reduced-motion: reduce)");
    new ResizeObserver(() => this.ask()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => this.#point(event));
    canvas.addEventListener("pointerdown", (event) => this.#point(event));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("click", (event) => {
      this.#point(event);
      const { request } = this.#under() ?? {};
      if (request) opened(jobOf(request.id));
    });
  }

  show(worker) {
    if (worker !== this.worker) {
      this.worker = worker;
      this.head = worker ? worker.base + worker.steps.length : 0;
      this.lanes = LEAST_LANES;
    }
    this.ask();
  }

  ask() {
    if (this.isAsked) return;
    this.isAsked = true;
    requestAnimationFrame((now) => {
      this.isAsked = false;
      this.#draw(now);
    });
  }

  #draw(now) {
    const width = this.canvas.parentElement.clientWidth;
    if (!this.worker || !width || !this.worker.steps.length) return;
    this.#slide(now);
    const isNarrow = width < 640;
    const view = this.#layout(width, isNarrow);
    const context = sized(this.canvas, width, view.height);
    this.view = view;
    this.#ground(context, view);
    for (const request of this.worker.requests.values()) this.#lane(context, view, request);
    this.#labels(context, view);
    drawStrips(context, view, this.worker, (index) => this.#x(view, index));
    this.#cursor(context, view);
    this.#explain();
    const target = this.worker.base + this.worker.steps.length;
    if (!this.isPaused && this.head < target) this.ask();
  }

  #slide(now) {
    const target = this.worker.base + this.worker.steps.length;
    const passed = Math.min(100, now - this.drawnAt);
    this.drawnAt = now;
    if (this.isPaused) return;
    const left = target - this.head;
    const isFar = left > 400 || left < 0 || this.isStill.matches;
    this.head = isFar || left < 0.02 ? target : this.head + Math.max(left * (passed / ARRIVES_MS), passed / 500);
    this.head = Math.min(this.head, target);
  }

  #layout(width, isNarrow) {
    const gutter = isNarrow ? 44 : 92;
    const column = isNarrow ? 3 : 4;
    const right = width - 6;
    const columns = Math.ceil((right - gutter) / column) + 1;
    const first = Math.max(0, Math.floor(this.head) - columns - this.worker.base);
    let used = LEAST_LANES;
    const oldest = this.worker.steps[Math.min(first, this.worker.steps.length - 1)]?.n ?? 0;
    for (const request of this.worker.requests.values()) {
      if ((request.end?.step ?? Infinity) >= oldest) used = Math.max(used, request.lane + 1);
    }
    this.lanes = used;
    const room = isNarrow ? 340 : 512;
    const row = Math.min(isNarrow ? 16 : 20, Math.max(isNarrow ? 1.4 : 2, room / used));
    const lanesHeight = Math.round(row * used);
    const kvTop = lanesHeight + AXIS + GAP;
    const timeTop = kvTop + STRIP + GAP;
    return { width, gutter, column, right, first, row, lanesHeight, kvTop, timeTop, oldest, height: timeTop + STRIP + 4 };
  }

  #x(view, index) {
    return view.right - (this.head - (this.worker.base + index)) * view.column;
  }

  #ground(context, view) {
    const c = colours();
    context.save();
    context.fillStyle = c.lane;
    context.fillRect(view.gutter, 0, view.right - view.gutter, view.lanesHeight);
    if (view.row >= 7) {
      context.fillStyle = c.panel;
      for (let lane = 1; lane < this.lanes; lane += 1) context.fillRect(view.gutter, lane * view.row - 0.5, view.right - view.gutter, 1);
    }
    context.font = "10px ui-monospace, SFMono-Regular, Menlo, monospace";
    context.fillStyle = c.muted;
    context.textAlign = "center";
    const every = [10, 20, 50, 100, 200, 500].find((steps) => steps * view.column >= 76) ?? 1000;
    this.worker.steps.forEach((step, index) => {
      if (index < view.first) return;
      const x = this.#x(view, index);
      if (x < view.gutter || x > view.right) return;
      if (step.skips) {
        context.fillStyle = c.accent;
        context.fillRect(x - 1, 0, 1, view.lanesHeight);
        context.fillStyle = c.muted;
      }
      if (step.n % every === 0) {
        context.fillStyle = c.line;
        context.fillRect(x, 0, 1, view.lanesHeight + 4);
        context.fillStyle = c.muted;
        if (x > view.gutter + 12 && x < view.right - 14) context.fillText(String(step.n), x, view.lanesHeight + 15);
      }
    });
    context.textAlign = "left";
    context.fillText("step", 4, view.lanesHeight + 15);
    context.restore();
  }

  #lane(context, view, request) {
    if (request.lane < 0 || (request.end && request.end.step < view.oldest)) return;
    const { top, tall } = this.#place(view, request.lane);
    const worker = this.worker;
    context.save();
    context.beginPath();
    context.rect(view.gutter, top, view.right - view.gutter, view.row);
    context.clip();
    this.#away(context, view, request, top, tall);
    for (const [first, steps, tokens, decodes] of request.runs) {
      if (first + steps - 1 < view.oldest) continue;
      const from = this.#x(view, worker.indexOf(first));
      const to = this.#x(view, worker.indexOf(first + steps - 1) + 1);
      context.fillStyle = this.#colour(request, decodes);
      context.globalAlpha = this.#strength(tokens, decodes);
      context.fillRect(from, top, Math.max(0.75, to - from), tall);
    }
    context.globalAlpha = 1;
    if (view.row >= 4) this.#edges(context, view, request, top, tall);
    context.restore();
  }

  // On whole pixels of the screen, or thin lanes would run into each other.
  #place(view, lane) {
    const ratio = window.devicePixelRatio || 1;
    const top = Math.round(lane * view.row * ratio) / ratio;
    const below = Math.round((lane + 1) * view.row * ratio) / ratio;
    return { top, tall: Math.max(1 / ratio, below - top - (view.row >= 4 ? 1 : 0)) };
  }

  #colour(request, decodes) {
    if (this.paint === "tenant") return tenantColour(request.tenant);
    if (this.paint === "class") return classColour(request.cls);
    return decodes ? colours().decode : colours().prefill;
  }

  #strength(tokens, decodes) {
    if (this.paint !== "phase") return decodes ? 0.62 : 1;
    if (decodes) return tokens > 1 ? 1 : 0.78;
    return 0.55 + 0.45 * Math.min(1, Math.log2(Math.max(1, tokens)) / 9);
  }

  // Where a request had to give way: hatched until it computes again.
  #away(context, view, request, top, tall) {
    for (const mark of request.marks) {
      if (mark.kind === "resumed") continue;
      const next = request.runs.find(([first]) => first > mark.step);
      const from = this.#x(view, this.worker.indexOf(mark.step));
      const to = next ? this.#x(view, this.worker.indexOf(next[0])) : request.end ? this.#x(view, this.worker.indexOf(request.end.step) + 1) : view.right;
      if (to <= view.gutter || to <= from) continue;
      context.fillStyle = colours()[mark.kind];
      context.globalAlpha = view.row >= 6 ? 0.28 : 0.6;
      context.fillRect(from, top, to - from, tall);
      context.globalAlpha = 1;
      const step = Math.max(4, view.row / 2);
      if (view.row >= 6) {
        for (let x = Math.max(from, view.gutter - step); x < to; x += step) context.fillRect(x, top + tall / 2 - 0.5, step / 2, 1);
      }
      context.fillRect(from, top, 2, tall);
    }
  }

  #edges(context, view, request, top, tall) {
    const c = colours();
    if (request.first >= view.oldest) {
      context.fillStyle = c.ink;
      context.fillRect(this.#x(view, this.worker.indexOf(request.first)), top, 1.5, tall);
    }
    if (request.end && request.end.step >= view.oldest) {
      const isGood = request.end.reason === "stop" || request.end.reason === "length";
      const x = this.#x(view, this.worker.indexOf(request.end.step) + 1);
      context.fillStyle = isGood ? c.panel : c.bad;
      context.fillRect(x - (isGood ? 1 : 3), top, isGood ? 1.5 : 3, tall);
    }
  }

  // Whose lanes reach the right edge as it is drawn: newer steps still slide in, and what they tell of lanes is not seen yet.
  #atTheEdge() {
    const { steps, base, requests } = this.worker;
    const seen = steps[Math.max(0, Math.min(steps.length, Math.floor(this.head) - base) - 1)].n;
    const isThere = ({ lane, first, end }) => lane >= 0 && lane < this.lanes && first <= seen && seen <= (end?.step ?? Infinity);
    return [...requests.values()].filter(isThere);
  }

  #labels(context, view) {
    const c = colours();
    context.font = "11px ui-sans-serif, system-ui, sans-serif";
    context.textAlign = "left";
    context.textBaseline = "middle";
    const isRoomy = view.row >= 12 && view.gutter > 60;
    for (const holder of this.#atTheEdge()) {
      const { top, tall } = this.#place(view, holder.lane);
      context.fillStyle = this.paint === "tenant" ? tenantColour(holder.tenant) : classColour(holder.cls);
      context.fillRect(view.gutter - 4, top, 3, tall);
      if (isRoomy) {
        context.fillStyle = c.muted;
        context.fillText(shortened(context, holder.tenant || "–", view.gutter - 14), 4, top + view.row / 2);
      }
    }
    if (!isRoomy) {
      context.fillStyle = c.muted;
      context.fillText(`${this.#atTheEdge().length}`, 4, 9);
      context.fillText(view.gutter > 60 ? "requests" : "req.", 4, 23);
    }
    context.textBaseline = "alphabetic";
  }

  #point(event) {
    if (event) {
      const box = this.canvas.getBoundingClientRect();
      this.pointer = { x: event.clientX - box.left, y: event.clientY - box.top };
    } else this.pointer = null;
    this.ask();
  }

  // The step and the request below the pointer.
  #under() {
    const { view, pointer, worker } = this;
    if (!pointer || !view || !worker?.steps.length || pointer.x < view.gutter || pointer.x > view.right) return null;
    const index = Math.floor(this.head - worker.base - (view.right - pointer.x) / view.column);
    const step = worker.steps[index];
    if (!step) return null;
    let request = null;
    if (pointer.y < view.lanesHeight) {
      const lane = Math.floor(pointer.y / view.row);
      for (const each of worker.requests.values()) {
        if (each.lane === lane && each.first <= step.n && step.n <= (each.end?.step ?? Infinity)) request = each;
      }
    }
    return { index, step, request };
  }

  #cursor(context, view) {
    const under = this.#under();
    if (!under) return;
    const c = colours();
    context.fillStyle = c.ink;
    context.globalAlpha = 0.35;
    context.fillRect(this.#x(view, under.index) + view.column / 2, 0, 1, view.height);
    context.globalAlpha = 1;
    if (under.request) {
      context.strokeStyle = c.ink;
      context.lineWidth = 1;
      context.strokeRect(view.gutter + 0.5, under.request.lane * view.row - 0.5, view.right - view.gutter - 1, view.row);
    }
  }

  #explain() {
    const under = this.#under();
    this.tip.hidden = !under;
    this.canvas.style.cursor = under?.request ? "pointer" : "default";
    if (!under) return;
    this.tip.replaceChildren(...told(under.step, under.request, this.worker.blocks));
    const width = this.tip.offsetWidth;
    const x = this.pointer.x + 14 + width > this.view.width ? this.pointer.x - width - 14 : this.pointer.x + 14;
    this.tip.style.transform = `translate(${Math.max(0, x)}px, ${Math.max(0, this.pointer.y - 20)}px)`;
  }
}
