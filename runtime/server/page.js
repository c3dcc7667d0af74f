// The page of pi-run --serve: a conversation, and where its neurons are computed. Everything that comes from the model or the server is shown as text.
"use strict";

const el = (id) => document.getElementById(id);
const POLL_MS = 1000;
const WINDOW = 4; // polls that the live figures are of
const messages = []; // of the conversation, as the API takes them
let running = null; // AbortController of the answer that is being made
let key = sessionStorage.getItem("pi-key") || "";

// ---- requests

// A key goes as the bytes of its UTF-8; headers take no other characters.
const headers = () => (key ? { Authorization: "Bearer " + String.fromCharCode(...new TextEncoder().encode(key)) } : {});

// What went wrong, in words: the API's message, or the status.
async function failure(response) {
  try {
    const { message, code } = (await response.json()).error;
    const full = code === "context_length_exceeded" && messages.length > 1;
    return full ? message + ". Clear starts a new conversation." : message;
  } catch {
    return "the server answers with status " + response.status;
  }
}

// A promise of fetch() or a reader, whose own words for a network that fails are of no help.
async function reach(promise, words) {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(words);
  }
}

let keyAsked = null; // a promise while the box is open
let keyDeclined = false; // it was closed without a key: only a question opens it again
function askKey(wrong) {
  keyAsked ||= new Promise((resolve) => {
    const box = el("key_box");
    if (wrong) el("key_why").textContent = "That key was not accepted.";
    el("key").value = "";
    box.returnValue = "";
    box.addEventListener("close", () => {
      keyAsked = null;
      keyDeclined = box.returnValue !== "use";
      if (!keyDeclined) {
        key = el("key").value;
        sessionStorage.setItem("pi-key", key);
      }
      resolve();
    }, { once: true });
    box.showModal();
  });
  return keyAsked;
}

// fetch() with the key; if asks, then for one as often as the server wants another.
async function call(path, options = {}, asks = true) {
  for (;;) {
    const used = key;
    const sent = fetch(path, { ...options, headers: { ...options.headers, ...headers() } });
    const response = await reach(sent, "the server cannot be reached");
    if (response.status !== 401) return response;
    if (used === key && asks) await askKey(used !== "");
    if (used === key) return response; // there is no other
  }
}

// Calls event(object) for each server-sent event of a response, and after() behind those that came together.
async function readEvents(response, event, after) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reach(reader.read(), "the connection broke off");
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) event(JSON.parse(line.slice(6)));
    }
    after();
  }
}

// ---- the conversation

const atEnd = () => {
  const log = el("log");
  const own = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  const page = document.documentElement;
  return own && page.scrollHeight - page.scrollTop - page.clientHeight < 120;
};
const toEnd = () => {
  el("log").scrollTop = el("log").scrollHeight;
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
};

function addTurn(role, text) {
  const turn = document.createElement("article");
  const name = document.createElement("h2");
  const body = document.createElement("div");
  turn.className = "turn " + role;
  name.textContent = role === "user" ? "You" : "Model";
  body.className = "text";
  body.textContent = text;
  turn.append(name, body);
  el("empty").hidden = true;
  el("log").append(turn);
  toEnd();
  return turn;
}

function note(turn, text, wrong) {
  const p = document.createElement("p");
  p.className = wrong ? "figures error" : "figures";
  if (wrong) p.setAttribute("role", "alert");
  p.textContent = text;
  turn.append(p);
}

const numberOf = (id) => (el(id).value === "" ? undefined : Number(el(id).value));

function requestBody() {
  const system = el("system").value;
  return JSON.stringify({
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    temperature: numberOf("temperature"),
    max_tokens: numberOf("max_tokens"),
    seed: numberOf("seed"),
    stream: true,
    stream_options: { include_usage: true },
  });
}

const reasons = { length: "cut at its length", stop: "ended by the model" };

function figures(answer) {
  const parts = [];
  if (answer.usage) {
    const n = answer.usage.completion_tokens;
    parts.push(n + (n === 1 ? " token" : " tokens"));
    if (n > 1 && answer.last > answer.first) {
      parts.push(((n - 1) / ((answer.last - answer.first) / 1000)).toFixed(1) + " tokens/s");
    }
  }
  if (answer.stopped) parts.push("stopped");
  else if (answer.finish) parts.push(reasons[answer.finish] || answer.finish);
  return parts.join(" · ");
}

function take(answer, event) {
  if (event.error) throw new Error(event.error.message);
  if (event.usage) answer.usage = event.usage;
  const choice = event.choices && event.choices[0];
  if (!choice) return;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  if (!choice.delta || !choice.delta.content) return;
  answer.text += choice.delta.content;
  answer.last = performance.now();
  answer.first ||= answer.last;
}

function show(answer) {
  const follow = atEnd();
  answer.body.textContent = answer.text.trimStart(); // formats leave a space in front
  if (follow) toEnd();
}

async function fetchAnswer(answer) {
  const response = await call("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: requestBody(),
    signal: running.signal,
  });
  if (!response.ok) throw new Error(await failure(response));
  await readEvents(response, (event) => take(answer, event), () => show(answer));
  if (!answer.finish) throw new Error("the connection broke off");
}

function busy(on) {
  el("send").disabled = on;
  el("clear").disabled = on;
  el("stop").disabled = !on;
}

async function send(text) {
  if (running || text.trim() === "") return;
  addTurn("user", text);
  messages.push({ role: "user", content: text });
  const turn = addTurn("assistant", "");
  const answer = { text: "", body: turn.querySelector(".text") };
  turn.setAttribute("aria-busy", "true");
  running = new AbortController();
  busy(true);
  try {
    await fetchAnswer(answer);
  } catch (error) {
    if (error.name === "AbortError") answer.stopped = true;
    else note(turn, error.message, true);
    running.abort(); // what may still come is not wanted
  }
  turn.removeAttribute("aria-busy");
  running = null;
  busy(false);
  if (answer.finish || answer.stopped) note(turn, figures(answer), false);
  if (answer.text) messages.push({ role: "assistant", content: answer.text });
  else giveBack(text);
  turn.dataset.done = answer.finish || (answer.stopped ? "stopped" : "error");
  if (atEnd()) toEnd();
}

// A question without an answer is none: it goes back to be changed.
function giveBack(text) {
  messages.pop();
  if (el("prompt").value === "") el("prompt").value = text;
}

function clearAll() {
  messages.length = 0;
  for (const turn of document.querySelectorAll(".turn")) turn.remove();
  el("empty").hidden = false;
  el("prompt").focus();
}

// ---- where neurons run

const history = []; // the last answers of /status, oldest first
const percent = (x) => (100 * x).toFixed(x < 0.0995 ? 1 : 0) + " %";

function cell(tag, className, text) {
  const c = document.createElement(tag);
  c.className = className;
  c.textContent = text;
  return c;
}

function makeRows(n) {
  const rows = [];
  for (let i = 0; i < n; i++) {
    const tr = document.createElement("tr");
    const head = cell("th", "", String(i));
    const bar = cell("td", "bar", "");
    const track = cell("div", "track", "");
    head.scope = "row";
    track.append(cell("i", "hot", ""), cell("i", "cold", ""));
    bar.append(track);
    tr.append(head, bar, cell("td", "figure share", "–"), cell("td", "figure density", "–"));
    rows.push(tr);
  }
  el("layers").replaceChildren(...rows);
}

// Active neurons of a layer between two answers, for each unit and step.
function layerLoad(now, before, i) {
  const a = now.neurons.layers[i];
  const b = before ? before.neurons.layers[i] : { hot_active: 0, cold_active: 0 };
  const steps = now.neurons.steps - (before ? before.neurons.steps : 0);
  const n = steps * now.neurons.per_layer;
  return { hot: (a.hot_active - b.hot_active) / n, cold: (a.cold_active - b.cold_active) / n };
}

function showLayers(now, before) {
  const loads = now.neurons.layers.map((_, i) => layerLoad(now, before, i));
  const most = Math.max(...loads.map((x) => x.hot + x.cold));
  const split = now.neurons.hot_unit !== null;
  const sum = { hot: 0, cold: 0 };
  loads.forEach((x, i) => {
    const tr = el("layers").children[i];
    const all = x.hot + x.cold;
    tr.querySelector(".hot").style.width = (most > 0 ? (100 * x.hot) / most : 0) + "%";
    tr.querySelector(".cold").style.width = (most > 0 ? (100 * x.cold) / most : 0) + "%";
    tr.querySelector(".share").textContent = split && all > 0 ? percent(x.hot / all) : "–";
    tr.querySelector(".density").textContent = percent(all);
    tr.title = "Layer " + i + ", " + now.neurons.layers[i].mode + ": " + percent(all) + " of " + now.neurons.per_layer + " neurons";
    sum.hot += x.hot;
    sum.cold += x.cold;
  });
  const all = sum.hot + sum.cold;
  el("total").textContent =
    percent(all / loads.length) + " of all neurons were active" + (split && all > 0 ? ", " + percent(sum.hot / all) + " of those hot." : ".");
}

const unitName = (unit) => (unit.startsWith("gpu") ? "GPU (hot neurons)" : "second unit on the CPU (hot neurons)");

function showFacts(s) {
  const unit = s.neurons.hot_unit;
  if (el("model").textContent !== s.model) document.title = s.model + " – pi-run";
  el("model").textContent = s.model;
  el("facts").textContent = [s.device, s.mode, "context " + s.context, s.chat_format + " format"].join(" · ");
  el("slots").textContent = s.slots.active + " of " + s.slots.all + " slots" + (s.slots.waiting ? ", " + s.slots.waiting + " wait" : "");
  el("legend").hidden = unit === null;
  if (unit !== null) el("hot_name").textContent = unitName(unit);
  if (el("layers").children.length !== s.neurons.layers.length) makeRows(s.neurons.layers.length);
}

// Tokens a second while steps were computed, between two answers; idle time does not count.
function showSpeed(now, before) {
  const tokens = now.decode.tokens - before.decode.tokens;
  const seconds = now.decode.seconds - before.decode.seconds;
  el("speed").textContent = tokens > 0 && seconds > 0 ? (tokens / seconds).toFixed(1) + " tokens/s" : "idle";
}

const noteSplit = "A bar is the layer's active neurons, against the layer with most. Density is their share of the layer.";
const noteWhole = noteSplit + " All are on the CPU: this run has no placement (see pi-place).";

function showStatus(s) {
  showFacts(s);
  if (history.length && s.uptime_seconds < history[0].uptime_seconds) history.length = 0; // another server
  const before = history[0];
  if (before) showSpeed(s, before);
  if (s.neurons.steps > 0) {
    const live = before && s.neurons.steps > before.neurons.steps;
    const moved = !history.length || live;
    if (moved) showLayers(s, live ? before : null);
    el("note").textContent = s.neurons.hot_unit !== null ? noteSplit : noteWhole;
  }
  history.push(s);
  if (history.length > WINDOW) history.shift();
}

async function poll() {
  try {
    const response = await call("status", {}, !keyDeclined);
    if (!response.ok) throw new Error(await failure(response));
    showStatus(await response.json());
  } catch (error) {
    el("speed").textContent = "no figures";
    el("slots").textContent = error.message;
  }
  setTimeout(pollWhenSeen, POLL_MS);
}

function pollWhenSeen() {
  if (!document.hidden) poll();
  else document.addEventListener("visibilitychange", pollWhenSeen, { once: true });
}

// ---- keys and buttons

el("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = el("prompt").value;
  if (running || text.trim() === "") return;
  el("prompt").value = "";
  send(text);
});
el("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  el("ask").requestSubmit();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running && !el("key_box").open) running.abort();
});
el("stop").addEventListener("click", () => running && running.abort());
el("clear").addEventListener("click", clearAll);

const settings = ["system", "temperature", "max_tokens", "seed"];
for (const id of settings) {
  el(id).value = sessionStorage.getItem("pi-" + id) || "";
  el(id).addEventListener("change", () => sessionStorage.setItem("pi-" + id, el(id).value));
}
if (matchMedia("(max-width: 55rem)").matches) el("load").open = false;

// An address may carry a question, which is asked at once, and settings: #ask=TEXT&seed=1&temperature=0&max_tokens=20&system=TEXT
const given = new URLSearchParams(location.hash.slice(1));
for (const id of settings) {
  if (given.has(id)) el(id).value = given.get(id);
}
poll();
if (given.has("ask")) send(given.get("ask"));
