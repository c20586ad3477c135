// One worker's last iterations: which request was in which, in lanes that are used again once they are free.

const STEPS_KEPT = 1200;
const GONE_AFTER_STEPS = 400;

export class WorkerSteps {
  constructor() {
    this.steps = []; // {n, at, real, predicted, blocks, waiting, skips}
    this.requests = new Map();
    this.lanes = []; // lane -> the request that has it, or the step after which it is free
    this.blocks = 0;
    this.base = 0; // steps that were here and are forgotten
  }

  get last() {
    return this.steps.at(-1) ?? null;
  }

  // Index of a step, or of the first one after it.
  indexOf(step) {
    const steps = this.steps;
    let low = 0;
    let high = steps.length;
    if (high && step > steps[high - 1].n) return high;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle].n < step) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  add(view) {
    this.blocks = view.blocks;
    const seen = this.last?.n ?? 0;
    // A worker that began anew counts from one again.
    if (view.steps.length && view.steps.at(-1)[0] < seen) this.clear();
    const after = this.last?.n ?? 0;
    view.steps.forEach(([n, at, real, predicted, blocks, waiting], place) => {
      if (n > after) {
        const skips = place === 0 ? view.skipped : 0;
        this.steps.push({ n, at, real, predicted, blocks, waiting, skips, tokens: 0, requests: 0 });
      }
    });
    const moves = [];
    for (const [id, epoch, tenant, cls, runs] of view.requests) {
      const request = this.#request(id, epoch, tenant, cls);
      for (const run of runs) {
        if (run[0] + run[1] - 1 <= after) continue;
        this.#extend(request, run);
        this.#count(run);
      }
      moves.push([runs[0][0], 1, () => this.#join(request, runs[0][0])]);
    }
    for (const [id, epoch, kind, step, at, detail] of view.events) {
      const request = this.requests.get(`${id} ${epoch}`);
      if (request) moves.push([step, 0, () => this.#happen(request, kind, step, at, detail)]);
    }
    moves.sort((a, b) => a[0] - b[0] || a[1] - b[1]).forEach(([, , move]) => move());
    this.#forget();
  }

  clear() {
    this.base += this.steps.length;
    this.steps = [];
    this.requests.clear();
    this.lanes = [];
  }

  #request(id, epoch, tenant, cls) {
    const key = `${id} ${epoch}`;
    let request = this.requests.get(key);
    if (!request) {
      request = { key, id, tenant, cls, lane: -1, runs: [], marks: [], first: 0, end: null, away: null, last: 0 };
      this.requests.set(key, request);
    }
    request.tenant ||= tenant;
    request.cls ||= cls;
    return request;
  }

  #extend(request, run) {
    const [first, steps, tokens, decodes] = run;
    const before = request.runs.at(-1);
    if (before && before[2] === tokens && before[3] === decodes && this.#follows(before[0] + before[1] - 1, first)) {
      before[1] = first + steps - before[0];
    } else request.runs.push([first, steps, tokens, decodes]);
    request.first ||= first;
    request.last = first + steps - 1;
  }

  #follows(step, next) {
    return this.indexOf(next) - this.indexOf(step) === 1;
  }

  #count([first, steps, tokens]) {
    for (let at = this.indexOf(first); at < this.steps.length && this.steps[at].n < first + steps; at += 1) {
      this.steps[at].tokens += tokens;
      this.steps[at].requests += 1;
    }
  }

  #join(request, step) {
    request.away = null;
    if (request.lane >= 0) return;
    let lane = this.lanes.findIndex((holder) => typeof holder === "number" && holder < step);
    if (lane < 0) lane = this.lanes.push(0) - 1;
    this.lanes[lane] = request;
    request.lane = lane;
  }

  #happen(request, kind, step, at, detail) {
    if (kind === "finished") {
      // The last token may come with a step after the one that was planned when its end was told.
      request.end = { step: Math.max(step, request.last), reason: detail, at };
      if (request.lane >= 0 && this.lanes[request.lane] === request) this.lanes[request.lane] = request.end.step;
    } else if (kind === "swapped" || kind === "recomputed") {
      request.away = kind;
      request.marks.push({ kind, step, at, detail });
    } else if (kind === "resumed") request.marks.push({ kind, step, at, detail });
  }

  #forget() {
    const surplus = this.steps.length - STEPS_KEPT;
    if (surplus > 0) {
      this.steps.splice(0, surplus);
      this.base += surplus;
    }
    const oldest = this.steps[0]?.n ?? 0;
    const newest = this.last?.n ?? 0;
    for (const [key, request] of this.requests) {
      const isOver = request.end ? request.end.step < oldest : !request.away && request.last < newest - GONE_AFTER_STEPS;
      if (!isOver) {
        if (request.runs.length > 1 && request.runs[1][0] < oldest) request.runs.shift();
        continue;
      }
      if (request.lane >= 0 && this.lanes[request.lane] === request) this.lanes[request.lane] = request.last;
      this.requests.delete(key);
    }
  }
}
