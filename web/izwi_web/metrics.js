// Metrics: the figures of /metrics, read every two seconds while the tab is shown.

import { request } from "./server.js";
import { chart } from "./chart.js";
import { duration, turns } from "./latency.js";
import { byId, h, note } from "./ui.js";

const EVERY_MS = 2000, KEPT = 300;
// Endpoints as a person knows them.
const ENDPOINTS = {
  "/v1/audio/speech": "Speech", "/v1/audio/transcriptions": "Transcription", "/v1/chat/completions": "Chat",
  "/v1/audio/voices": "Voices", "/v1/models": "Models", "/v1/audio/align": "Word times", "/v1/audio/convert": "Audio formats",
  "/v1/realtime/calls": "Live voice (WebRTC)", "/v1/responses": "Responses", "/v1/audio/translations": "Translation",
};
let timer = null, before = null;
const series = new Map();

// Prometheus text: samples by name with their labels.
export class Figures {
  constructor(text) {
    this.readAtMs = performance.now();
    this.samples = [];
    for (const line of text.split("\n")) {
      const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
      if (!match) continue;
      const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, k, v]) => [k, v]));
      this.samples.push({ name: match[1], labels, value: Number(match[3]) });
    }
  }

  all(name, labels = {}) {
    return this.samples.filter((sample) => sample.name === name && Object.entries(labels).every(([k, v]) => sample.labels[k] === v));
  }

  value(name, labels) { return this.all(name, labels).reduce((sum, { value }) => sum + value, 0); }
}

export async function readMetrics() { return new Figures(await (await request("/metrics")).text()); }

// A quantile of a Prometheus histogram, in its unit; linear within a bucket.
export function quantile(buckets, share) {
  const sorted = buckets.map(({ labels, value }) => ({ top: labels.le === "+Inf" ? Infinity : Number(labels.le), value })).sort((a, b) => a.top - b.top);
  const total = sorted.at(-1)?.value ?? 0;
  if (!total) return null;
  let low = 0, below = 0;
  for (const { top, value } of sorted) {
    if (value >= share * total) return top === Infinity ? low : low + (top - low) * ((share * total - below) / Math.max(1, value - below));
    low = top;
    below = value;
  }
  return low;
}

export function start() {}

export function show() {
  update();
  timer = setInterval(update, EVERY_MS);
}

export function hide() { clearInterval(timer); }

async function update() {
  showTurns();
  let figures;
  try {
    figures = await readMetrics();
    note("metrics-note", "");
  } catch (error) {
    note("metrics-note", error.message, true);
    return;
  }
  const elapsedS = before ? (figures.readAtMs - before.readAtMs) / 1000 : 0;
  const rate = (name) => (before && elapsedS ? Math.max(0, figures.value(name) - before.value(name)) / elapsedS : 0);
  const engine = (name) => figures.value(`izwi_engine_${name}`);
  const pages = engine("pages"), askedFor = engine("prefix_positions_asked_total");
  const whole = (value) => value.toFixed(0), share = (value) => `${(100 * value).toFixed(0)} %`, seconds = (value) => `${value.toFixed(1)} s`;
  const slacks = figures.all("izwi_engine_least_slack_seconds").map(({ value }) => value).filter(Number.isFinite);
  const prepared = figures.value("izwi_live_prepared_answers_total"), wasted = figures.value("izwi_live_prepared_answers_total", { outcome: "discarded" });
  tile("Requests a second", "answered by this server", rate("izwi_http_requests_total"), (value) => value.toFixed(1));
  tile("Live connections", "conversations and captions that are open", figures.value("izwi_websocket_sessions"), whole);
  tile("Being answered", "texts, answers and transcripts in work", engine("running"), whole);
  tile("Waiting", "for room on the processor or GPU", engine("waiting"), whole);
  tile("Audio in reserve", "of the listener who has the least; below 0 speech stutters", slacks.length ? Math.min(...slacks) : null, seconds);
  tile("Silence by stutter", "that listeners have heard since the start", engine("gap_seconds_total"), seconds);
  tile("Memory in use", "of what is set aside for running work", pages ? 1 - engine("available_pages") / pages : null, share);
  tile("Work saved", "input that was known from before", askedFor ? engine("prefix_positions_hit_total") / askedFor : null, share);
  tile("Early answers used", "of those prepared while a user paused", prepared ? 1 - wasted / prepared : null, share);
  tile("Steps a second", "passes through the models", rate("izwi_engine_steps_total"), whole);
  const ratio = (value, of) => (of ? value / of : null), ms = (value) => duration(1000 * value);
  const grown = (name, labels) => (before ? Math.max(0, figures.value(name, labels) - before.value(name, labels)) : 0);
  const heard = { until: "audio" }, gpus = figures.all("hw_gpu_utilization_ratio").map(({ value }) => value);
  tile("Batch", "texts, answers and transcripts in one step", ratio(grown("izwi_engine_rows_total"), grown("izwi_engine_steps_total")), (value) => value.toFixed(1));
  tile("Answer heard after", "a user's last word, on average since the last reading", ratio(grown("izwi_live_latency_seconds_sum", heard), grown("izwi_live_latency_seconds_count", heard)), ms);
  tile("Turns", "of users in conversations, since the start", figures.value("izwi_live_turns_total"), whole);
  tile("Interruptions", "answers that a user cut short, since the start", figures.value("izwi_live_interruptions_total", { outcome: "confirmed" }), whole);
  const drafted = engine("drafted_total");
  if (drafted) tile("Right guesses", "of the tokens that were guessed", engine("accepted_total") / drafted, share);
  if (gpus.length) tile("GPUs busy", "on average over this machine's GPUs", gpus.reduce((sum, value) => sum + value, 0) / gpus.length, share);
  latencies(figures);
  before = figures;
}

// A figure with its history; null where there is none.
function tile(label, meaning, value, format) {
  if (!series.has(label)) {
    const number = h("b", {}), lines = h("div", { class: "lines" });
    byId("tiles").append(h("div", { class: "tile" }, number, h("span", {}, label), h("small", {}, meaning), lines));
    series.set(label, { number, lines, points: [] });
  }
  const { number, lines, points } = series.get(label);
  points.push({ atMs: performance.now(), value });
  if (points.length > KEPT) points.shift();
  number.textContent = value === null ? "–" : format(value);
  const minutes = Math.round((points.at(-1).atMs - points[0].atMs) / 60_000);
  const shown = points.filter((point) => point.value !== null).map((point) => point.value);
  lines.replaceChildren(chart(points, format, label),
    h("small", { class: "scale", "aria-hidden": "true" }, h("span", {}, minutes ? `last ${minutes} min` : "just now"), h("span", {}, shown.length ? `at most ${format(Math.max(...shown))}` : "")));
}

// The turns of conversations in this tab.
function showTurns() {
  const sorted = turns.map(({ totalMs }) => totalMs).sort((a, b) => a - b);
  byId("turns-empty").hidden = turns.length > 0;
  byId("turns-text").textContent = sorted.length ? `${sorted.length} ${sorted.length === 1 ? "turn" : "turns"}, median ${duration(sorted[Math.floor(sorted.length / 2)])}, longest ${duration(sorted.at(-1))}` : "";
  const points = turns.map(({ at, totalMs }) => ({ atMs: at.getTime(), value: totalMs }));
  byId("turns-chart").replaceChildren(...(points.length ? [chart(points, duration, "Answer time")] : []));
}

// A path that a narrow column breaks behind its slashes and underscores.
function breakable(path) {
  return path.split(/(?<=[/_])/).flatMap((part) => [h("wbr"), part]);
}

function latencies(figures) {
  const routes = [...new Set(figures.all("izwi_http_first_byte_seconds_count").map(({ labels }) => labels.route))].filter((route) => route.startsWith("/v1"));
  const ms = (seconds) => (seconds === null ? "–" : duration(1000 * seconds));
  byId("latency").tBodies[0].replaceChildren(...routes.map((route) => {
    const buckets = figures.all("izwi_http_first_byte_seconds_bucket", { route });
    const named = ENDPOINTS[route] ? [h("strong", {}, ENDPOINTS[route]), " "] : [];
    return h("tr", {}, h("td", {}, ...named, h("small", {}, ...breakable(route))), h("td", {}, String(figures.value("izwi_http_first_byte_seconds_count", { route }))),
      h("td", {}, ms(quantile(buckets, 0.5))), h("td", {}, ms(quantile(buckets, 0.95))));
  }));
}
