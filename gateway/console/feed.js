// What the gateway tells: one stream for the live pages, plain calls for the rest; keys live in this tab only.

const KEYS = { admin: "headway-admin-key", api: "headway-api-key" };

export const keyOf = (kind) => sessionStorage.getItem(KEYS[kind]) ?? "";

export function setKey(kind, text) {
  if (text) sessionStorage.setItem(KEYS[kind], text);
  else sessionStorage.removeItem(KEYS[kind]);
}

export function headersWith(kind, more = {}) {
  const key = keyOf(kind);
  return key ? { authorization: `Bearer ${key}`, ...more } : more;
}

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function refusal(response) {
  const body = await response.json().catch(() => null);
  return new Refused(response.status, body?.error?.message ?? `HTTP ${response.status}`);
}

export async function ask(path, kind = "admin") {
  const response = await fetch(path, { headers: headersWith(kind) });
  if (!response.ok) throw await refusal(response);
  return response.json();
}

// The events of a stream, as they come. A browser's own EventSource cannot send a key.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const parts = buffer.split("\n\n");
      buffer = parts.pop();
      for (const part of parts) {
        const event = { name: "message", data: "" };
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) event.name = line.slice(7);
          else if (line.startsWith("data: ")) event.data += line.slice(6);
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Follows the live stream for as long as the page is seen; `on` hears figures, steps, trouble, state and locked.
export class Feed {
  constructor(on) {
    this.on = on;
    this.abort = null;
    this.isRunning = false;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.start()));
  }

  start() {
    if (!this.isRunning) {
      this.isRunning = true;
      this.#follow();
    }
  }

  stop() {
    this.isRunning = false;
    this.abort?.abort();
  }

  restart() {
    this.stop();
    setTimeout(() => this.start(), 0);
  }

  async #follow() {
    let pause = 500;
    const abort = (this.abort = new AbortController());
    while (!abort.signal.aborted) {
      try {
        this.on.state("connecting");
        const response = await fetch("api/live", { headers: headersWith("admin"), signal: abort.signal });
        if (!response.ok) throw await refusal(response);
        this.on.state("live");
        for await (const event of events(response)) {
          pause = 500;
          const content = JSON.parse(event.data);
          if (event.name === "figures") this.on.figures(content);
          else if (event.name === "steps") this.on.steps(content.worker, content.view);
          else this.on.trouble(content.message ?? content.error?.message ?? "the stream was cut off");
        }
      } catch (error) {
        if (abort.signal.aborted) break;
        if (error.status === 401 || error.status === 403) {
          this.isRunning = false;
          this.on.locked(error.message);
          return;
        }
        this.on.trouble(error instanceof Refused ? error.message : "the gateway cannot be reached; asking again");
      }
      if (abort.signal.aborted) break;
      this.on.state("away");
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 10_000);
    }
    this.on.state("paused");
  }
}
