// Try it: one conversation with a model, streamed, with the times that its reader feels.

import { $, count, duration, el, write } from "./format.js";
import { events, headersWith, refusal } from "./feed.js";
import { colours, sized } from "./palette.js";

export class Try {
  constructor(locked) {
    this.locked = locked;
    this.messages = [];
    this.abort = null;
    this.gaps = [];
    $("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    $("ask-text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) this.#send();
    });
    $("ask-stop").addEventListener("click", () => this.abort?.abort());
    $("ask-clear").addEventListener("click", () => this.#clear());
    new ResizeObserver(() => this.#drawGaps()).observe($("ask-gaps").parentElement);
    this.#figures({});
  }

  async show(isShown) {
    if (!isShown) return;
    const [models, about] = await Promise.all([fetch("../v1/models", { headers: headersWith("api") }), fetch("../")]);
    const { open_mode: isOpen } = await about.json();
    // Where keys are asked for, the key alone decides on the tenant.
    $("ask-tenant").disabled = isOpen === false;
    if (!models.ok) return this.locked((await refusal(models)).message);
    const { data } = await models.json();
    const chosen = $("ask-model").value;
    $("ask-model").replaceChildren(...data.map((model) => el("option", { value: model.id, textContent: model.ready_workers ? model.id : `${model.id} (no worker now)` })));
    if (data.some((model) => model.id === chosen)) $("ask-model").value = chosen;
  }

  repaint() {
    this.#drawGaps();
  }

  #clear() {
    this.abort?.abort();
    this.messages = [];
    this.gaps = [];
    $("talk").replaceChildren();
    write($("ask-job"), "");
    this.#figures({});
    this.#drawGaps();
  }

  async #send() {
    const text = $("ask-text").value.trim();
    if (!text || this.abort) return;
    this.messages.push({ role: "user", content: text });
    const answer = el("p");
    $("talk").append(el("div", { class: "said user" }, el("p", { textContent: text })), el("div", { class: "said model" }, answer));
    answer.parentElement.classList.add("writes");
    this.#busy(true);
    const said = await this.#stream(answer).catch((error) => this.#failed(answer, error));
    answer.parentElement.classList.remove("writes");
    this.#busy(false);
    if (said) {
      this.messages.push({ role: "assistant", content: said });
      $("ask-text").value = "";
    } else this.messages.pop();
  }

  #body() {
    const system = $("ask-system").value.trim();
    return {
      model: $("ask-model").value,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...this.messages],
      max_tokens: Number($("ask-tokens").value) || 200,
      temperature: Number($("ask-temperature").value),
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  async #stream(answer) {
    const times = { sent: performance.now(), first: 0, last: 0, usage: null, end: null };
    this.gaps = [];
    this.abort = new AbortController();
    const terms = { "content-type": "application/json", "x-priority": $("ask-class").value };
    if (!$("ask-tenant").disabled) terms["x-tenant"] = $("ask-tenant").value.trim() || "console";
    const response = await fetch("../v1/chat/completions", { method: "POST", headers: headersWith("api", terms), body: JSON.stringify(this.#body()), signal: this.abort.signal });
    if (!response.ok) throw await refusal(response);
    this.#link(response.headers.get("x-headway-job-id"));
    let said = "";
    try {
      for await (const event of events(response)) {
        if (event.data === "[DONE]") break;
        const chunk = JSON.parse(event.data);
        if (chunk.error) throw new Error(chunk.error.message);
        times.usage = chunk.usage ?? times.usage;
        const choice = chunk.choices?.[0];
        times.end = choice?.finish_reason ?? times.end;
        const piece = (choice?.delta?.reasoning_content ?? "") + (choice?.delta?.content ?? "");
        if (!piece) continue;
        this.#came(times);
        said += piece;
        answer.append(piece);
        $("talk").scrollTop = $("talk").scrollHeight;
        this.#figures(times);
      }
    } catch (error) {
      if (!this.abort.signal.aborted) throw error;
      times.end = "stopped";
    }
    this.#figures(times);
    return said;
  }

  #came(times) {
    const now = performance.now();
    if (times.first) this.gaps.push(now - times.last);
    else times.first = now;
    times.last = now;
    this.#drawGaps();
  }

  #failed(answer, error) {
    answer.parentElement.classList.add("failed");
    answer.textContent = this.abort?.signal.aborted ? "Stopped." : error.message;
    if (error.status === 401) this.locked(error.message);
    return "";
  }

  #busy(isBusy) {
    $("ask-send").disabled = isBusy;
    $("ask-stop").disabled = !isBusy;
    if (!isBusy) this.abort = null;
  }

  #link(jobId) {
    $("ask-job").replaceChildren();
    if (jobId) $("ask-job").append("job ", el("a", { href: `#/jobs/${encodeURIComponent(jobId)}`, textContent: jobId }));
  }

  #figures({ sent, first, last, usage, end }) {
    const tokens = usage?.completion_tokens ?? (first ? this.gaps.length + 1 : null);
    const rate = first && last > first ? ((usage?.completion_tokens ?? this.gaps.length + 1) - 1) / ((last - first) / 1000) : null;
    const shown = [
      ["First token", first ? duration(first - sent) : "–"],
      ["Tokens", tokens === null ? "–" : count(tokens)],
      ["Per second", rate === null ? "–" : rate.toFixed(1)],
      ["Longest gap", this.gaps.length ? duration(Math.max(...this.gaps)) : "–"],
      ["Prompt", usage ? count(usage.prompt_tokens) : "–"],
      ["End", end ?? "–"],
    ];
    $("ask-figures").replaceChildren(...shown.map(([name, value]) => el("div", {}, el("span", { textContent: name }), el("b", { textContent: value }))));
  }

  #drawGaps() {
    const canvas = $("ask-gaps");
    const width = canvas.clientWidth;
    if (!width) return;
    const context = sized(canvas, width, 44);
    const gaps = this.gaps.slice(-Math.floor(width / 4));
    const most = Math.max(1, ...gaps);
    context.fillStyle = colours().decode;
    gaps.forEach((gap, at) => context.fillRect(at * 4, 42 - (gap / most) * 38, 3, Math.max(1.5, (gap / most) * 38)));
    context.fillStyle = colours().line;
    context.fillRect(0, 43, width, 1);
  }
}
