// Metrics: the figures of /metrics, read every two seconds while the tab is shown.

import { request } from "./server.js";
import { drawLine } from "./audio.js";
import { byId, h, note } from "./ui.js";

const EVERY_MS = 2000, KEPT = 60;
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
  tile("Requests a second", rate("izwi_http_requests_total"), (value) => value.toFixed(1));
  tile("Live sessions", figures.value("izwi_websocket_sessions"), (value) => value.toFixed(0));
  const prepared = figures.value("izwi_live_prepared_answers_total"), wasted = figures.value("izwi_live_prepared_answers_total", { outcome: "discarded" });
  tile("Early answers used", prepared ? 1 - wasted / prepared : 0, (value) => (prepared ? `${(100 * value).toFixed(0)} %` : "–"));
  tile("Running sequences", engine("running"), (value) => value.toFixed(0));
  tile("Waiting sequences", engine("waiting"), (value) => value.toFixed(0));
  tile("Steps a second", rate("izwi_engine_steps_total"), (value) => value.toFixed(0));
  const slacks = figures.all("izwi_engine_least_slack_seconds").map(({ value }) => value).filter(Number.isFinite);
  tile("Least slack", slacks.length ? Math.min(...slacks) : 0, (value) => (slacks.length ? `${value.toFixed(1)} s` : "–"));
  tile("Gaps in audio", engine("gap_seconds_total"), (value) => `${value.toFixed(1)} s`);
  tile("KV memory in use", pages ? 1 - engine("available_pages") / pages : 0, (value) => `${(100 * value).toFixed(0)} %`);
  tile("Prefix hit rate", askedFor ? engine("prefix_positions_hit_total") / askedFor : 0, (value) => `${(100 * value).toFixed(0)} %`);
  latencies(figures);
  before = figures;
}

function tile(label, value, format) {
  if (!series.has(label)) {
    const number = h("b", {}), canvas = h("canvas", { height: 34, "aria-hidden": "true" });
    byId("tiles").append(h("div", { class: "tile" }, number, h("span", {}, label), canvas));
    series.set(label, { number, canvas, values: [] });
  }
  const { number, canvas, values } = series.get(label);
  values.push(value);
  if (values.length > KEPT) values.shift();
  number.textContent = format(value);
  drawLine(canvas, values);
}

// A path that a narrow column breaks behind its slashes and underscores.
function breakable(path) {
  return path.split(/(?<=[/_])/).flatMap((part) => [h("wbr"), part]);
}

function latencies(figures) {
  const routes = [...new Set(figures.all("izwi_http_first_byte_seconds_count").map(({ labels }) => labels.route))].filter((route) => route.startsWith("/v1"));
  const ms = (seconds) => (seconds === null ? "–" : `${(1000 * seconds).toFixed(0)} ms`);
  byId("latency").tBodies[0].replaceChildren(...routes.map((route) => {
    const buckets = figures.all("izwi_http_first_byte_seconds_bucket", { route });
    return h("tr", {}, h("td", {}, ...breakable(route)), h("td", {}, String(figures.value("izwi_http_first_byte_seconds_count", { route }))),
      h("td", {}, ms(quantile(buckets, 0.5))), h("td", {}, ms(quantile(buckets, 0.95))));
  }));
}
