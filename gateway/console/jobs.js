// Jobs in their three stages, and one job's way from its arrival to its last token.

import { $, clock, count, duration, el, jobKey, keyed, write } from "./format.js";
import { ask } from "./feed.js";
import { drawTimeline, factsOf, stepsOf } from "./timeline.js";

const EVERY_MS = 2000;
const TITLES = {
  running: ["Job", "Tenant", "Class", "Age", "Tokens", "Worker"],
  waiting: ["Job", "Tenant", "Class", "Waits", "Tries", "Deadline"],
  ended: ["Job", "Tenant", "Class", "Took", "Tokens", "End"],
};

export class Jobs {
  constructor(marksOf, locked) {
    this.marksOf = marksOf;
    this.locked = locked;
    this.stage = "running";
    this.found = null;
    this.jobId = null;
    this.job = null;
    this.timer = null;
    $("stage").addEventListener("click", (event) => this.#choose(event.target.dataset.stage));
    $("job-tenant").addEventListener("change", () => this.#look());
    $("job-find").addEventListener("submit", (event) => {
      event.preventDefault();
      const id = $("job-id").value.trim();
      if (id) location.hash = `#/jobs/${encodeURIComponent(id)}`;
    });
    new ResizeObserver(() => this.#drawJob()).observe($("job"));
  }

  // Called when the page comes and goes; `jobId` may be empty.
  show(isShown, jobId = "") {
    clearTimeout(this.timer);
    if (!isShown) return;
    if (jobId !== this.jobId) {
      this.jobId = jobId || this.jobId;
      this.job = null;
      if (jobId) $("job").replaceChildren(el("p", { class: "empty", textContent: "Looking…" }));
    }
    $("jobs").classList.toggle("has-job", Boolean(this.jobId));
    this.#look();
  }

  repaint() {
    this.#drawJob();
  }

  #choose(stage) {
    if (!stage) return;
    this.stage = stage;
    for (const button of $("stage").children) button.setAttribute("aria-pressed", String(button.dataset.stage === stage));
    this.#drawRows();
  }

  async #look() {
    clearTimeout(this.timer);
    const tenant = $("job-tenant").value.trim();
    const id = this.jobId;
    try {
      this.found = await ask(`api/jobs?limit=200${tenant ? `&tenant=${encodeURIComponent(tenant)}` : ""}`);
      this.#drawRows();
      if (id) {
        const job = await ask(`api/jobs/${encodeURIComponent(id)}`);
        if (id === this.jobId) {
          this.job = job;
          this.#drawJob();
        }
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403) this.locked(error.message);
      else if (id && !this.job) $("job").replaceChildren(el("p", { class: "empty", textContent: error.message }));
    }
    if (!$("jobs").hidden && !document.hidden) this.timer = setTimeout(() => this.#look(), EVERY_MS);
    else if (document.hidden) document.addEventListener("visibilitychange", () => !$("jobs").hidden && this.#look(), { once: true });
  }

  #drawRows() {
    if (!this.found) return;
    const jobs = this.found[this.stage];
    const now = this.found.at_ms;
    const rows = [{ id: `head ${this.stage}` }, ...jobs];
    keyed($("job-rows"), rows, (row) => row.id, (row) => makeRow(row), (element, row) => {
      const texts = row.tenant === undefined ? TITLES[this.stage] : cells(this.stage, row, now);
      texts.forEach((text, at) => write(element.children[at], text));
      element.classList.toggle("chosen", row.id === this.jobId);
      if (row.class) element.dataset.class = row.class;
      if (row.reason) element.dataset.reason = row.reason;
    });
    for (const button of $("stage").children) {
      const title = button.dataset.stage[0].toUpperCase() + button.dataset.stage.slice(1);
      const size = this.found[button.dataset.stage].length;
      write(button, `${title} ${size >= 200 ? "200+" : size}`);
    }
  }

  #drawJob() {
    if (!this.job || $("jobs").hidden) return;
    const { job } = this;
    const facts = el("dl", { class: "facts" });
    for (const [name, value] of factsOf(job)) facts.append(el("div", {}, el("dt", { textContent: name }), el("dd", { textContent: value })));
    const table = el("ol", { class: "happenings" });
    for (const step of stepsOf(job, this.marksOf(job.id))) {
      table.append(el("li", { data: { kind: step.kind } }, el("time", { textContent: clock(step.at), title: new Date(step.at).toISOString() }), el("span", { textContent: `+${duration(step.at - job.created_ms)}` }), el("b", { textContent: step.title }), el("span", { textContent: step.detail })));
    }
    const head = el("div", { class: "job-head" }, el("code", { textContent: job.id }), el("span", { class: "state", data: { state: job.reason ?? job.status }, textContent: job.reason ?? job.status }));
    const chart = el("div", { class: "chart" });
    $("job").replaceChildren(head, chart, facts, el("h3", { textContent: "What happened" }), table);
    drawTimeline(chart, job, this.marksOf(job.id));
    if (job.error) $("job").insertBefore(el("p", { class: "trouble", textContent: `${job.error.code}: ${job.error.message}` }), chart);
  }
}

function makeRow(row) {
  const isHead = row.tenant === undefined;
  const element = el(isHead ? "div" : "a", { class: isHead ? "row head" : "row" }, ...Array.from({ length: 6 }, () => el("span")));
  if (!isHead) {
    element.href = `#/jobs/${encodeURIComponent(row.id)}`;
    element.title = row.id;
  }
  return element;
}

function cells(stage, row, now) {
  const about = [`…${jobKey(row.id).slice(-8)}`, row.tenant, row.class];
  if (stage === "running") return [...about, duration(now - row.created_ms), count(row.tokens), row.worker ?? "–"];
  if (stage === "waiting") return [...about, duration(now - row.created_ms), row.attempts ? String(row.attempts) : "·", row.deadline_ms ? duration(Math.max(0, row.deadline_ms - now)) : "·"];
  return [...about, duration(row.ended_ms - row.created_ms), count(row.tokens), row.reason];
}
