// What is said of a lane: below the pointer, and beside it.

import { duration, el, percent } from "./format.js";

// The lines of the tip: a request if there is one, and the step.
export function told(step, request, blocks) {
  const lines = [
    `step ${step.n} · ${step.requests} requests · ${step.tokens} tokens`,
    `${duration(step.real / 1000)}, predicted ${step.predicted ? duration(step.predicted / 1000) : "–"}`,
    `KV ${percent(blocks ? step.blocks / blocks : 0, 1)} · ${step.waiting} wait in the engine`,
  ].map((line) => el("span", { textContent: line }));
  if (!request) return lines;
  const about = `${request.tenant || "unknown tenant"} · ${request.cls || "–"} · ${phaseAt(request, step.n)}`;
  return [el("b", { textContent: about }), ...lines];
}

function phaseAt(request, step) {
  const run = request.runs.find(([first, steps]) => first <= step && step < first + steps);
  if (run) return run[3] ? (run[2] > 1 ? `decodes, ${run[2] - 1} guessed` : "decodes") : `prefills ${run[2]} tokens`;
  const mark = request.marks.filter((each) => each.step <= step).at(-1);
  if (mark && mark.kind !== "resumed") return mark.kind === "swapped" ? "swapped out" : "gave way, to be computed again";
  return "rests";
}

export function shortened(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return `${kept}…`;
}
