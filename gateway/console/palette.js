// Colours for canvases, out of the style sheet, and one steady colour for each tenant.

let cache = null;

export function colours() {
  if (cache) return cache;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  cache = {
    text: of("text"), muted: of("muted"), faint: of("faint"), line: of("line"), panel: of("panel"), lane: of("lane"),
    prefill: of("prefill"), decode: of("decode"), swapped: of("swapped"), recomputed: of("recomputed"),
    accent: of("accent"), good: of("good"), bad: of("bad"), ink: of("ink"),
    interactive: of("interactive"), standard: of("standard"), batch: of("batch"),
    isDark: of("is-dark") === "1",
  };
  return cache;
}

export const repaint = () => { cache = null; };

const hues = new Map();

// Golden-angle steps keep neighbours in the order of arrival apart, also with a hundred of them.
function hueOf(tenant) {
  if (!hues.has(tenant)) hues.set(tenant, Math.round((200 + hues.size * 137.508) % 360));
  return hues.get(tenant);
}

export function tenantColour(tenant) {
  if (!tenant) return colours().muted;
  const place = [...tenant].reduce((sum, letter) => sum + letter.charCodeAt(0), 0) % 3;
  const light = colours().isDark ? [64, 70, 58][place] : [46, 40, 52][place];
  return `hsl(${hueOf(tenant)} 62% ${light}%)`;
}

export const classColour = (name) => colours()[name] ?? colours().muted;

// A canvas of this CSS size, sharp on any screen; returns its context, in CSS pixels, cleared.
export function sized(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.round(width * ratio);
  const h = Math.round(height * ratio);
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// The newest value at the right edge; `least` values fill the width, fewer leave room at the left.
export function sparkline(canvas, values, colour, { top = null, least = 40 } = {}) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight || 28;
  if (!width) return;
  const context = sized(canvas, width, height);
  if (values.length < 2) return;
  const most = Math.max(top ?? 0, ...values, 1e-9);
  const places = Math.max(least, values.length) - 1;
  const x = (at) => width - ((values.length - 1 - at) / places) * width;
  const y = (value) => height - 1.5 - (value / most) * (height - 4);
  context.beginPath();
  values.forEach((value, at) => (at ? context.lineTo(x(at), y(value)) : context.moveTo(x(at), y(value))));
  context.strokeStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.stroke();
  context.lineTo(width, height);
  context.lineTo(x(0), height);
  context.closePath();
  context.globalAlpha = 0.14;
  context.fillStyle = colour;
  context.fill();
  context.globalAlpha = 1;
}
