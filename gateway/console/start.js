// Starts the console: pages by the address's hash, colours, keys, and the feed that all pages share.

import { $, write } from "./format.js";
import { Feed, keyOf, setKey } from "./feed.js";
import { Jobs } from "./jobs.js";
import { Live } from "./live.js";
import { repaint } from "./palette.js";
import { Tenants } from "./tenants.js";
import { Try } from "./try.js";

const PAGES = ["live", "tenants", "jobs", "try"];
const THEMES = ["auto", "dark", "light"];
const STATES = { connecting: "connecting", live: "live", away: "asking again", paused: "paused", locked: "locked" };

let lockedWhy = "";

const live = new Live((jobId) => { location.hash = `#/jobs/${encodeURIComponent(jobId)}`; });
const tenants = new Tenants();
const jobs = new Jobs((jobId) => live.marksOf(jobId), lock);
const attempt = new Try(() => openKeys());

const feed = new Feed({
  figures(figures) {
    trouble("");
    live.take(figures);
    tenants.take(figures);
  },
  steps: (worker, view) => live.takeSteps(worker, view),
  trouble,
  locked: lock,
  state(name) {
    $("status").dataset.state = name;
    write($("status").lastElementChild, STATES[name]);
  },
});

function trouble(message) {
  $("trouble").hidden = !message;
  write($("trouble"), message);
}

function lock(why) {
  lockedWhy = why;
  $("status").dataset.state = "locked";
  write($("status").lastElementChild, STATES.locked);
  trouble("");
  route();
}

function route() {
  const [wanted, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const page = PAGES.includes(wanted) ? wanted : "live";
  const isLocked = Boolean(lockedWhy) && page !== "try";
  // Another page, or another job's timeline, begins at its top.
  if ($(page).hidden || rest.length) scrollTo(0, 0);
  for (const name of PAGES) {
    $(name).hidden = name !== page || isLocked;
    document.querySelector(`.tabs a[href="#/${name}"]`).toggleAttribute("aria-current", name === page);
  }
  $("locked").hidden = !isLocked;
  write($("locked-why"), lockedWhy);
  live.draw();
  tenants.draw();
  jobs.show(page === "jobs" && !isLocked, decodeURIComponent(rest.join("/")));
  attempt.show(page === "try").catch(() => trouble("the gateway cannot be reached"));
}

function useTheme(name) {
  document.documentElement.dataset.theme = name;
  localStorage.setItem("headway-theme", name);
  $("theme").title = `Colours: ${name === "auto" ? "as the system" : name}`;
  write($("theme"), { auto: "◐", dark: "●", light: "○" }[name]);
  colour();
}

function colour() {
  repaint();
  for (const page of [live, jobs, attempt]) page.repaint();
  tenants.draw();
}

function openKeys() {
  $("key-admin").value = keyOf("admin");
  $("key-api").value = keyOf("api");
  if (!$("key-box").open) $("key-box").showModal();
}

function useKeys(admin, api) {
  setKey("admin", admin);
  setKey("api", api);
  $("key-box").close();
  lockedWhy = "";
  route();
  feed.restart();
}

$("theme").addEventListener("click", () => useTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % 3]));
$("keys").addEventListener("click", openKeys);
$("unlock").addEventListener("click", openKeys);
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKeys($("key-admin").value.trim(), $("key-api").value.trim());
});
$("key-forget").addEventListener("click", () => useKeys("", ""));
$("key-box").addEventListener("click", (event) => event.target === $("key-box") && $("key-box").close());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colour);
window.addEventListener("hashchange", route);

useTheme(localStorage.getItem("headway-theme") ?? "auto");
route();
feed.start();
