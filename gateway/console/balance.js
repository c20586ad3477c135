// How evenly those are served that wait: what each one's virtual time gained, beside the others of its class.
//
// A virtual time is service by weight. While its tenant waits it only grows by service, so equal gains mean equal
// service by weight, whatever each one asked for. The exported Jain index is made the same way.

const KEPT_MS = 60_000;

export class Balance {
  constructor() {
    this.looks = [];
  }

  add(figures) {
    const times = new Map();
    for (const lane of figures.models) {
      for (const [band, tenants] of Object.entries(lane.virtual_times ?? {})) {
        for (const [tenant, time] of Object.entries(tenants)) times.set(`${band} ${lane.model} ${tenant}`, { band, model: lane.model, tenant, time });
      }
    }
    this.looks.push({ at: figures.at_ms, times });
    while (figures.at_ms - this.looks[0].at > KEPT_MS) this.looks.shift();
  }

  get seconds() {
    return this.looks.length ? (this.looks.at(-1).at - this.looks[0].at) / 1000 : 0;
  }

  // Of a class: {tenant, model, ratio} of all that waited at every look, the worst served first.
  entries(band) {
    const last = this.looks.at(-1)?.times ?? new Map();
    const first = this.looks[0]?.times;
    const waited = [...last].filter(([key, entry]) => entry.band === band && this.looks.every((look) => look.times.has(key)));
    const found = [];
    for (const model of new Set(waited.map(([, entry]) => entry.model))) {
      const gains = waited.filter(([, entry]) => entry.model === model).map(([key, { tenant, time }]) => ({ tenant, model, gain: Math.max(0, time - first.get(key).time) }));
      const mean = gains.reduce((sum, { gain }) => sum + gain, 0) / gains.length;
      if (mean > 0) found.push(...gains.map((entry) => ({ ...entry, ratio: entry.gain / mean })));
    }
    return found.sort((a, b) => a.ratio - b.ratio || a.tenant.localeCompare(b.tenant));
  }
}

// (Σx)² ÷ n·Σx²: 1 when all are served alike, 1/n when one has it all; null with nobody to compare.
export function jainIndex(entries) {
  const squares = entries.reduce((sum, { ratio }) => sum + ratio * ratio, 0);
  if (entries.length < 2 || !squares) return null;
  return entries.reduce((sum, { ratio }) => sum + ratio, 0) ** 2 / (entries.length * squares);
}
