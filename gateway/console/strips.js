// Below the lanes, over the same steps: the KV blocks in use, and the time that each step took.

import { duration, percent } from "./format.js";
import { colours } from "./palette.js";

export const STRIP = 46;
export const GAP = 10;

// `x` gives the left edge of a step's column.
export function drawStrips(context, view, worker, x) {
  const c = colours();
  const shown = worker.steps.slice(view.first);
  // By what was, not by what was feared: a prediction beyond it is drawn at the top. By the root, since one long prompt
  // would press all other steps to the ground.
  const slowest = 1.1 * Math.max(1, ...shown.map((step) => step.real));
  const part = (micros) => Math.sqrt(Math.min(1, micros / slowest));
  context.save();
  context.font = "10.5px ui-sans-serif, system-ui, sans-serif";
  context.fillStyle = c.lane;
  context.fillRect(view.gutter, view.kvTop, view.right - view.gutter, STRIP);
  context.fillRect(view.gutter, view.timeTop, view.right - view.gutter, STRIP);
  words(context, view, worker, slowest);
  context.beginPath();
  context.rect(view.gutter, view.kvTop, view.right - view.gutter, view.height);
  context.clip();
  shown.forEach((step, place) => {
    const left = x(view.first + place);
    drawUse(context, view, left, worker.blocks ? Math.min(1, step.blocks / worker.blocks) : 0);
    drawTime(context, view, left, part(step.real), part(step.predicted));
  });
  context.restore();
}

function drawUse(context, view, left, part) {
  const height = part * (STRIP - 2);
  context.fillStyle = part > 0.95 ? colours().bad : colours().accent;
  context.globalAlpha = 0.45;
  context.fillRect(left, view.kvTop + STRIP - height, view.column, height);
  context.globalAlpha = 1;
  context.fillRect(left, view.kvTop + STRIP - height, view.column, 1.25);
}

function drawTime(context, view, left, real, predicted) {
  const height = real * (STRIP - 4);
  context.fillStyle = colours().faint;
  context.fillRect(left, view.timeTop + STRIP - height, Math.max(1, view.column - 1), height);
  if (!predicted) return;
  context.fillStyle = colours().prefill;
  context.fillRect(left, view.timeTop + STRIP - 1 - predicted * (STRIP - 4), view.column, 1.5);
}

function words(context, view, worker, slowest) {
  const c = colours();
  const isWide = view.gutter > 60;
  context.fillStyle = c.text;
  context.fillText(percent(worker.blocks ? worker.last.blocks / worker.blocks : 0), 4, view.kvTop + 13);
  context.fillText(duration(worker.last.real / 1000), 4, view.timeTop + 13);
  context.fillStyle = c.muted;
  context.fillText(isWide ? "KV blocks" : "KV", 4, view.kvTop + 27);
  context.fillText(isWide ? "step time" : "step", 4, view.timeTop + 27);
  if (isWide) context.fillText(`top ${duration(slowest / 1100)}`, 4, view.timeTop + 41);
}
