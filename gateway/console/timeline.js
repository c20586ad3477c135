// A job's timeline: one row for its waiting, one for each worker that had it, drawn over one axis of time.

import { count, duration } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const ROW = 30;
const LEFT = 132;
const NARROW_LEFT = 84;
const AXIS = 26;

// Stretches of time by row: {row, kind, from, to}.
function stretchesOf(job) {
  const end = job.finished_ms ?? Math.max(job.at_ms, job.created_ms + 1);
  const claims = job.history.map((claim) => ({ worker: claim.worker, from: claim.claimed_ms, to: claim.ended_ms, outcome: claim.outcome }));
  if (job.worker && job.claimed_ms) claims.push({ worker: job.worker, from: job.claimed_ms, to: end, outcome: job.status === "finished" ? "ended" : "running" });
  const stretches = [];
  let waitsFrom = job.created_ms;
  for (const claim of claims) {
    stretches.push({ row: "queue", kind: "wait", from: waitsFrom, to: claim.from });
    const first = job.first_token_ms;
    const split = first && first >= claim.from && first <= claim.to ? first : first && first < claim.from ? claim.from : claim.to;
    stretches.push({ row: claim.worker, kind: "prefill", from: claim.from, to: split });
    stretches.push({ row: claim.worker, kind: "decode", from: split, to: claim.to, outcome: claim.outcome });
    waitsFrom = claim.to;
  }
  if (!claims.length || !job.worker) stretches.push({ row: "queue", kind: "wait", from: waitsFrom, to: end });
  return { stretches: stretches.filter((stretch) => stretch.to > stretch.from), end };
}

function draw(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

export function drawTimeline(parent, job, marks) {
  const { stretches, end } = stretchesOf(job);
  const rows = [...new Set(["queue", ...stretches.map((stretch) => stretch.row)])];
  const width = Math.max(280, parent.clientWidth);
  const left = width < 480 ? NARROW_LEFT : LEFT;
  const height = rows.length * ROW + AXIS;
  const late = job.deadline_ms && job.deadline_ms < end + (end - job.created_ms) * 0.5 ? job.deadline_ms : 0;
  const last = Math.max(end, late);
  const span = Math.max(1, last - job.created_ms);
  const x = (at) => left + ((at - job.created_ms) / span) * (width - left - 10);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Timeline of the job" });
  rows.forEach((row, at) => {
    svg.append(draw("rect", { class: "track", x: left, y: at * ROW + 4, width: width - left - 10, height: ROW - 10, rx: 4 }));
    svg.append(draw("text", { class: "row-name", x: 0, y: at * ROW + ROW / 2 + 3 }, shortened(row, (left - 10) / 7.2)));
  });
  for (const { row, kind, from, to, outcome } of stretches) {
    const y = rows.indexOf(row) * ROW + 4;
    const bar = draw("rect", { class: `stretch ${kind}`, x: x(from), y, width: Math.max(2, x(to) - x(from)), height: ROW - 10, rx: 3 });
    bar.append(draw("title", {}, `${kind} ${duration(to - from)}`));
    svg.append(bar);
    if (outcome === "lost") svg.append(draw("rect", { class: "lost", x: x(to) - 3, y: y - 2, width: 3, height: ROW - 6 }));
    if (x(to) - x(from) > 64) svg.append(draw("text", { class: "inside", x: x(from) + 6, y: y + ROW / 2 - 1 }, duration(to - from)));
  }
  for (const { kind, from, to } of awayOf(marks, end)) {
    const row = rows.indexOf(stretches.find((each) => each.row !== "queue" && each.from <= from && from <= each.to)?.row);
    if (row < 0) continue;
    const bar = draw("rect", { class: `stretch ${kind}`, x: x(from), y: row * ROW + 4, width: Math.max(2, x(to) - x(from)), height: ROW - 10 });
    bar.append(draw("title", {}, `${MARKS[kind]}: ${duration(to - from)}`));
    svg.append(bar);
  }
  if (job.first_token_ms) svg.append(markAt(x(job.first_token_ms), height, "first", "first token"));
  if (late) svg.append(markAt(x(late), height, "deadline", "deadline"));
  axis(svg, { span, left, width, height });
  parent.replaceChildren(svg);
}

// From each time that it gave way to when it was back, or to its end.
function awayOf(marks, end) {
  return marks.filter((mark) => mark.kind !== "resumed").map((mark) => ({
    kind: mark.kind,
    from: mark.at,
    to: marks.find((next) => next.kind === "resumed" && next.at >= mark.at)?.at ?? end,
  }));
}

function markAt(x, height, kind, title) {
  const line = draw("line", { class: `mark ${kind}`, x1: x, x2: x, y1: 0, y2: height - AXIS + 2 });
  line.append(draw("title", {}, title));
  return line;
}

function axis(svg, { span, left, width, height }) {
  const room = width - left - 10;
  const wanted = (span / Math.max(2, Math.floor(room / 90))) || 1;
  const size = 10 ** Math.floor(Math.log10(wanted));
  const step = [1, 2, 5, 10].map((times) => times * size).find((each) => each >= wanted);
  for (let at = 0; at <= span; at += step) {
    const x = left + (at / span) * room;
    svg.append(draw("line", { class: "tick", x1: x, x2: x, y1: height - AXIS, y2: height - AXIS + 5 }));
    const anchor = !at ? "start" : x > width - 28 ? "end" : "middle";
    svg.append(draw("text", { class: "tick-name", x: anchor === "end" ? width : x, y: height - 6, "text-anchor": anchor }, at ? duration(at) : "0"));
  }
}

function shortened(text, letters) {
  return text.length <= letters ? text : `…${text.slice(-Math.floor(letters - 1))}`;
}

export function factsOf(job) {
  const first = job.first_token_ms;
  const end = job.finished_ms ?? job.at_ms;
  const decodes = first ? Math.max(1, end - first) : null;
  const facts = [
    ["Tenant", job.tenant],
    ["Class", job.priority],
    ["Model", job.model],
    ["Waited", duration((job.history[0]?.claimed_ms ?? job.claimed_ms ?? job.at_ms) - job.created_ms)],
    ["First token after", first ? duration(first - job.created_ms) : "–"],
    ["Total", duration(end - job.created_ms)],
    ["Tokens", count(job.committed_tokens)],
    ["Per second", decodes && job.committed_tokens > 1 ? (((job.committed_tokens - 1) * 1000) / decodes).toFixed(1) : "–"],
  ];
  if (job.attempts) facts.push(["Workers lost", String(job.attempts)]);
  if (job.deadline_ms) facts.push(["Deadline after", duration(job.deadline_ms - job.created_ms)]);
  if (job.retry_of) facts.push(["Again", job.retry_of]);
  if (job.cancel_reason) facts.push(["Cancelled", job.cancel_reason]);
  return facts;
}

const MARKS = { swapped: "swapped out", recomputed: "gave way, to be recomputed", resumed: "back in the batch" };

export function stepsOf(job, marks) {
  const steps = [{ at: job.created_ms, kind: "accepted", title: "accepted", detail: `${job.tenant}, ${job.priority}` }];
  let tokens = 0;
  const claimed = (at, worker) => steps.push({ at, kind: "claimed", title: tokens ? "continued" : "claimed", detail: worker + (tokens ? `, from token ${tokens}` : "") });
  for (const claim of job.history) {
    claimed(claim.claimed_ms, claim.worker);
    tokens = claim.committed_tokens;
    const title = claim.outcome === "lost" ? "worker lost" : "handed back";
    steps.push({ at: claim.ended_ms, kind: claim.outcome, title, detail: `${claim.worker}, ${count(tokens)} tokens committed` });
  }
  if (job.worker && job.claimed_ms) claimed(job.claimed_ms, job.worker);
  if (job.first_token_ms) steps.push({ at: job.first_token_ms, kind: "first", title: "first token", detail: "" });
  for (const mark of marks) steps.push({ at: mark.at, kind: mark.kind, title: MARKS[mark.kind], detail: mark.detail ? `${mark.detail} tokens computed` : "" });
  if (job.finished_ms) steps.push({ at: job.finished_ms, kind: "ended", title: "ended", detail: `${job.reason}, ${count(job.committed_tokens)} tokens` });
  return steps.sort((a, b) => a.at - b.at);
}
