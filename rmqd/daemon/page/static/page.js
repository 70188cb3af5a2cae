// Keeps the status page up to date: fetches its main part, changes only what differs, draws charts, pauses and resumes.
// No framework, and no request but to the daemon that served the page.

const RENEW_MS = 2000;
const HISTORY_MS = 5000;
const live = document.getElementById("live");
const byId = (id) => document.getElementById(id);
const groupsShown = () => [...live.querySelectorAll(".group")];
const opened = new Set(groupsShown().filter((group) => group.querySelector(".toggle").ariaExpanded === "true")
  .map((group) => group.dataset.group));

// ---- changing only what differs -------------------------------------------------------------------------------------

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset.key || "" : "");
const isSame = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName
  && keyOf(one) === keyOf(other);

// Attributes that the reader or this script has set, and that the daemon knows nothing of.
const isOwn = (element, name) => name === "open" || (name === "hidden" && element.matches("[data-switch], .group"))
  || (name === "disabled" && element.matches("[data-switch]"));

function morph(from, to) {
  if (from.nodeType !== 1) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  for (const { name, value } of [...to.attributes]) {
    if (!isOwn(from, name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!isOwn(from, name) && !to.hasAttribute(name)) from.removeAttribute(name);
  }
  if (!from.hasAttribute("data-keep")) morphChildren(from, to);
}

function morphChildren(from, to) {
  const keyed = new Map([...from.children].filter(keyOf).map((child) => [keyOf(child), child]));
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const known = keyed.get(keyOf(wanted));
    keyed.delete(keyOf(wanted));
    if (known && known !== at && isSame(known, wanted)) {
      from.insertBefore(known, at);
      morph(known, wanted);
    } else if (at && isSame(at, wanted)) {
      const next = at.nextSibling;
      morph(at, wanted);
      at = next;
    } else {
      from.insertBefore(wanted, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

// ---- the figures ------------------------------------------------------------------------------------------------------

let answeredAt = Date.now();
let renewing = null;

async function fetched(path, as) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
  if (!answer.ok) throw new Error(`HTTP status ${answer.status}`);
  return answer[as]();
}

async function renew() {
  const query = new URLSearchParams([...opened].map((name) => ["open", name]));
  const parsed = new DOMParser().parseFromString(await fetched(`/live?${query}`, "text"), "text/html");
  morphChildren(live, parsed.body);
  answeredAt = Date.now();
  dress();
}

// One renewal at a time; one that is asked for meanwhile follows.
function renewNow() {
  renewing = (renewing || Promise.resolve()).then(renew).then(() => showOutage(""), (error) => showOutage(error.message));
  return renewing;
}

function showOutage(reason) {
  const seconds = Math.round((Date.now() - answeredAt) / 1000);
  const outage = byId("outage");
  byId("freshness").classList.toggle("lost", Boolean(reason));
  byId("freshness").classList.toggle("live", !reason);
  byId("freshness").textContent = reason ? "not live" : "live";
  const text = reason ? "The daemon does not answer. What is shown is old; the page goes on asking." : "";
  outage.hidden = !reason;
  if (outage.textContent !== text) outage.textContent = text;
  outage.title = reason ? `${reason}, ${seconds} s ago` : "";
}

// What the daemon does not render: buttons that need this script, and what the reader filters by.
function dress() {
  for (const button of live.querySelectorAll("[data-switch][hidden]")) button.hidden = false;
  const wanted = byId("filter").value.trim().toLowerCase();
  for (const group of groupsShown()) {
    const is = !group.dataset.group.toLowerCase().includes(wanted);
    if (group.hidden !== is) group.hidden = is;
  }
  const findings = live.querySelectorAll(".attention .finding").length;
  const title = `${findings ? `(${findings}) ` : ""}rmqd on ${document.querySelector(".where").textContent}`;
  if (document.title !== title) document.title = title;
  drawAll();
}

live.addEventListener("click", (event) => {
  const toggle = event.target.closest(".toggle");
  const button = event.target.closest("[data-switch]");
  if (toggle) open(toggle.closest(".group").dataset.group, toggle.ariaExpanded !== "true");
  if (button) change(button);
  const link = event.target.closest('a[href^="#group-"]');
  if (link) open(decodeURIComponent(link.getAttribute("href").slice("#group-".length)), true);
});

function open(name, is) {
  if (is) opened.add(name); else opened.delete(name);
  sessionStorage.setItem("rmqd-open", JSON.stringify([...opened]));
  const group = byId(`group-${name}`);
  if (!group) return;
  group.querySelector(".toggle").ariaExpanded = String(is);
  group.querySelector(".body").hidden = !is;
  renewNow();
}

// ---- charts -----------------------------------------------------------------------------------------------------------

const SPANS = [300, 900, 1800, 3600];  // seconds that charts show: as much as there is, up to an hour
const history = { times: [], groups: {} };

async function renewHistory() {
  const since = history.times.at(-1) || 0;
  const more = await fetched(`/api/v1/history?since=${since}`, "json");
  const before = history.times.length;
  history.times.push(...more.times);
  for (const name of new Set([...Object.keys(history.groups), ...Object.keys(more.groups)])) {
    const columns = history.groups[name] || (history.groups[name] = {});
    const fresh = more.groups[name] || {};
    for (const column of ["lag", "lag_seconds", "received", "handled", "failed"]) {
      const values = columns[column] || (columns[column] = Array(before).fill(null));
      values.push(...(fresh[column] || Array(more.times.length).fill(null)));
    }
  }
  const old = history.times.length - more.most_points;
  if (old > 0) {
    history.times.splice(0, old);
    for (const columns of Object.values(history.groups)) for (const one of Object.values(columns)) one.splice(0, old);
  }
  drawAll();
}

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function short(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (value >= 1e4) return `${(value / 1e3).toPrecision(3)}k`;
  return value >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

// The next of 1, 2, 5, 10, 20, … above the highest value.
function top(highest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(highest, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= highest) || 1;
}

// Lines of a column, broken where nothing is known, or nothing was asked for longer than a while.
function runs(values, x, y) {
  const found = [];
  let run = null;
  values.forEach((value, i) => {
    const gap = i && history.times[i] - history.times[i - 1] > 30;
    if (value === null) { run = null; return; }
    if (!run || gap) found.push(run = []);
    run.push([x(history.times[i]), y(value)]);
  });
  return found;
}

const path = (run) => run.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

function draw(box) {
  const columns = history.groups[box.closest(".group").dataset.group];
  const width = Math.round(box.clientWidth);
  if (!columns || !width || !history.times.length) return;
  const kind = box.dataset.chart;
  const stamp = `${history.times.at(-1)} ${width}`;
  if (box.dataset.stamp === stamp) return;
  box.dataset.stamp = stamp;
  box.replaceChildren(kind === "spark" ? spark(columns.lag, width) : chart(kind, columns, width));
}

function drawAll() {
  for (const box of live.querySelectorAll("[data-chart]")) draw(box);
}

const end = () => history.times.at(-1);
const span = () => SPANS.find((seconds) => end() - history.times[0] <= seconds) || SPANS.at(-1);

function spark(values, width) {
  const height = 32;
  const highest = Math.max(1, ...values.filter((value) => value !== null));
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  const known = values.filter((value) => value !== null);
  svg.append(element("title", {}, `Lag in the last ${span() / 60} minutes: now ${short(known.at(-1))}, at most ${short(Math.max(0, ...known))}`));
  const x = (at) => width - ((end() - at) / span()) * width;
  const y = (value) => height - 2 - (value / highest) * (height - 6);
  for (const run of runs(values, x, y)) lineAndArea(svg, run, height - 2, "lag");
  return svg;
}

function lineAndArea(svg, run, ground, name) {
  if (name === "lag") {
    svg.append(element("path", { class: "area", d: `${path(run)}L${run.at(-1)[0].toFixed(1)} ${ground}L${run[0][0].toFixed(1)} ${ground}Z` }));
  }
  svg.append(element("path", { class: `line ${name}`, d: run.length > 1 ? path(run) : `${path(run)}h2` }));
}

const LINES = { lag: ["lag"], throughput: ["received", "handled", "failed"] };
const WORDS = { lag: "lag", received: "in", handled: "out", failed: "failed" };

function chart(kind, columns, width) {
  const height = 144, left = 40, bottom = 20, plot = document.createElement("div");
  const names = LINES[kind];
  const highest = top(Math.max(0, ...names.flatMap((name) => columns[name].filter((value) => value !== null))));
  const x = (at) => width - ((end() - at) / span()) * (width - left);
  const y = (value) => height - bottom - (value / highest) * (height - bottom - 8);
  const now = names.map((name) => `${WORDS[name]} ${short(columns[name].at(-1))}`).join(", ");
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${kind} in the last ${span() / 60} minutes; now ${now}; scale to ${short(highest)}` });
  for (const share of [0, 0.5, 1]) {
    svg.append(element("line", { class: "grid", x1: left, x2: width, y1: y(highest * share), y2: y(highest * share) }));
    svg.append(element("text", { x: left - 6, y: y(highest * share) + 4, "text-anchor": "end" }, short(highest * share)));
  }
  for (const share of [1, 0.5, 0]) {
    const anchor = share === 1 ? "start" : share ? "middle" : "end";
    const at = new Date((end() - share * span()) * 1000);
    const text = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });
    svg.append(element("text", { x: x(end() - share * span()), y: height - 4, "text-anchor": anchor }, text));
  }
  for (const name of names) {
    const isShown = name !== "failed" || columns[name].some((value) => value);
    if (isShown) for (const run of runs(columns[name], x, y)) lineAndArea(svg, run, y(0), name);
  }
  plot.className = "plot";
  plot.append(svg);
  pointer(plot, svg, names, columns, x, width, left, height - bottom);
  return plot;
}

function pointer(plot, svg, names, columns, x, width, left, ground) {
  const cursor = element("line", { class: "cursor", y1: 0, y2: ground, visibility: "hidden" });
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  svg.append(cursor);
  plot.append(tip);
  svg.addEventListener("pointermove", (event) => {
    const wanted = end() - (1 - (event.offsetX - left) / (width - left)) * span();
    let i = history.times.findIndex((at) => at >= wanted);
    if (i < 0) i = history.times.length - 1;
    const at = x(history.times[i]);
    cursor.setAttribute("x1", at);
    cursor.setAttribute("x2", at);
    cursor.setAttribute("visibility", at < left ? "hidden" : "visible");
    tip.textContent = `${new Date(history.times[i] * 1000).toLocaleTimeString()}  ${names.map((name) => `${WORDS[name]} ${short(columns[name][i])}`).join("  ")}`;
    tip.hidden = at < left;
    tip.style.left = `${Math.max(0, Math.min(at + 8, width - tip.offsetWidth))}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
}

// ---- changes ----------------------------------------------------------------------------------------------------------

let token = sessionStorage.getItem("rmqd-token") || "";

function say(text, isBad) {
  const said = byId("said");
  said.textContent = text;
  said.classList.toggle("bad", Boolean(isBad));
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { said.textContent = ""; }, isBad ? 20000 : 8000);
}

// Show a dialog, and wait for its button; true for yes.
function answerOf(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}

function asks(title, text, yes) {
  byId("question-title").textContent = title;
  byId("question-text").textContent = text;
  byId("question-yes").textContent = yes;
  return answerOf(byId("question"));
}

async function typedToken(reason) {
  if (reason) byId("credentials-text").textContent = reason;
  byId("token").value = "";
  const is = await answerOf(byId("credentials"));
  token = is ? byId("token").value.trim() : "";
  byId("token").value = "";
  if (token && byId("remember").checked) sessionStorage.setItem("rmqd-token", token);
  return Boolean(token);
}

// POST, with the token where one is needed, which is asked for once more if it is wrong. Null if the reader gives up.
async function post(path) {
  if (!token && document.body.dataset.tokenRequired === "yes" && !(await typedToken(""))) return null;
  for (;;) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const answer = await fetch(path, { method: "POST", headers });
    const document = await answer.json().catch(() => ({}));
    if (answer.status !== 401) return { ok: answer.ok, document };
    token = "";
    sessionStorage.removeItem("rmqd-token");
    if (!(await typedToken(`${document.error || "It was refused"}.`))) return null;
  }
}

async function change(button) {
  const name = button.closest(".group").dataset.group;
  const action = button.dataset.switch;
  if (action === "pause" && !(await asks(`Pause ${name}?`,
    "It keeps its queues, finishes what it has, and pulls no more until it is resumed. Messages wait meanwhile.", "Pause"))) return;
  button.disabled = true;
  try {
    const result = await post(`/api/v1/groups/${encodeURIComponent(name)}/${action}`);
    if (result) say(result.ok ? `${name} is ${result.document.result}` : result.document.error || "It was refused", !result.ok);
  } catch (error) {
    say(`The daemon did not answer: ${error.message}`, true);
  }
  button.disabled = false;
  await renewNow();
  const now = byId(`group-${name}`);
  if (now && !document.activeElement.closest("[data-group]")) now.querySelector("[data-switch]").focus();
}

async function reload() {
  if (!(await asks("Reload the configuration?",
    "The daemon reads its files again. Groups that changed take it over or start anew; with problems nothing changes.", "Reload"))) return;
  byId("reload").disabled = true;
  try {
    say("Reloading: groups that changed finish what they have first …");
    const result = await post("/api/v1/reload");
    if (!result) say("");
    if (result) {
      const told = ["updated", "restarted", "started", "stopped", "unchanged"].filter((key) => (result.document[key] || []).length)
        .map((key) => `${key}: ${result.document[key].join(", ")}`).join("; ");
      say(result.ok ? `Reloaded. ${told || "no groups"}` : [result.document.error, ...(result.document.problems || [])].join("\n"), !result.ok);
    }
  } catch (error) {
    say(`The daemon did not answer: ${error.message}`, true);
  }
  byId("reload").disabled = false;
  renewNow();
}

// ---- start ------------------------------------------------------------------------------------------------------------

function every(milliseconds, work) {
  const turn = async () => {
    if (!document.hidden) await work().catch((error) => showOutage(error.message));
    setTimeout(turn, milliseconds);
  };
  turn();
}

const remembered = JSON.parse(sessionStorage.getItem("rmqd-open") || "null");
if (remembered) {
  opened.clear();
  remembered.forEach((name) => opened.add(name));
}
byId("filter").hidden = false;
byId("reload").hidden = false;
byId("filter").addEventListener("input", dress);
byId("reload").addEventListener("click", reload);
for (const cancel of document.querySelectorAll("[data-cancel]")) {
  cancel.addEventListener("click", () => cancel.closest("dialog").close("no"));
}
addEventListener("resize", drawAll);
document.addEventListener("visibilitychange", () => { if (!document.hidden) renewNow(); });
dress();
every(RENEW_MS, renewNow);
every(HISTORY_MS, renewHistory);
