// The server behind the page: requests with the key, lists of models and voices, its state.

import { byId } from "./ui.js";

const listeners = new Set(), watchers = new Set();
export const known = { models: [], voices: [], manageable: false, webrtc: false, images: null };

export class ServerError extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export const apiKey = () => sessionStorage.getItem("key");

// Ask for the key in a form; resolves to whether one was given.
export function askForKey(reason = "This server asks for a key. It is kept in this tab only.") {
  const dialog = byId("key-dialog");
  byId("key-reason").textContent = reason;
  byId("key").value = apiKey() ?? "";
  if (!dialog.open) dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const given = dialog.returnValue === "use";
      if (given) {
        const typed = byId("key").value.trim();
        if (typed) sessionStorage.setItem("key", typed);
        else sessionStorage.removeItem("key");
      }
      resolve(given);
    }, { once: true });
  });
}

let asking = null; // one form for all requests that were refused

export async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    setCondition("gone", "Not reachable");
    throw new ServerError("The server cannot be reached. Is it still running?", 0);
  }
  if (response.status !== 401) return response;
  asking ??= askForKey(apiKey() ? "The server did not accept this key." : undefined)
    .finally(() => { asking = null; });
  return (await asking) ? call(path, options) : response;
}

export async function failureOf(response) {
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
  return new ServerError(message, response.status, body?.error?.param);
}

export async function request(path, options) {
  const response = await call(path, options);
  if (!response.ok) throw await failureOf(response);
  return response;
}

export const getJson = async (path) => (await request(path)).json();

export const sendJson = (path, body, options = {}) =>
  request(path, { ...options, method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json", ...options.headers } });

// Events of a text/event-stream body, as they come: parsed JSON.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += value ?? "";
    const parts = rest.split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).trimStart()).join("\n");
      if (!data || data === "[DONE]") continue;
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error.message ?? "The server failed.", 200, event.error.param);
      yield event;
    }
    if (done) return;
  }
}

// Open a WebSocket; a browser cannot send headers, so the key travels as a subprotocol.
export function openSocket(path) {
  const url = new URL(path, location.href);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  const protocols = ["realtime"];
  if (apiKey()) protocols.push(`openai-insecure-api-key.${apiKey()}`);
  return new WebSocket(url, protocols);
}

export function onLists(listener) {
  listeners.add(listener);
  if (known.models.length) listener(known);
}

export const modelsOf = (task) =>
  known.models.filter((model) => (model.capabilities ?? [model.task]).includes(task));

export const languagesOf = (model) => known.models.find(({ id }) => id === model)?.languages ?? [];

// Voices that a speech model can speak with, stored ones first.
export function voicesOf(model) {
  const root = known.models.find((entry) => entry.id === model)?.root ?? model;
  const fitting = known.voices.filter((voice) => voice.kind !== "alias" && (!voice.model || voice.model === root));
  return fitting.sort((a, b) => (b.kind === "cloned") - (a.kind === "cloned"));
}

export async function refresh() {
  const models = await getJson("/v1/models");
  known.models = models.data;
  known.manageable = models.manageable === true;
  known.webrtc = models.webrtc === true;
  known.images = models.images ?? null;
  known.voices = (await getJson("/v1/audio/voices")).data;
  for (const listener of listeners) listener(known);
}

let condition = "connecting"; // "ready", "draining", "unavailable" or "gone"

// `watcher` is called with the server's condition, now and when it changes.
export function onCondition(watcher) {
  watchers.add(watcher);
  watcher(condition);
}

// Resolves when the server accepts work; with false when the signal aborts first.
export function untilReady(signal) {
  return new Promise((resolve) => {
    const settle = (value) => {
      watchers.delete(watcher);
      resolve(value);
    };
    const watcher = (now) => { if (now === "ready") settle(true); };
    if (signal.aborted) settle(false);
    signal.addEventListener("abort", () => settle(false), { once: true });
    watchers.add(watcher);
    condition = "connecting"; // what was last seen may be old
    lookNow?.();
  });
}

function setCondition(now, text) {
  byId("status").dataset.state = now === "ready" ? "ok" : "bad";
  byId("status-text").textContent = text;
  if (now === condition) return;
  condition = now;
  for (const watcher of [...watchers]) watcher(now);
}

let lookNow = null; // ends the pause between two looks

// Watch whether the server is ready, and read its lists again when it comes back.
export async function watch() {
  for (;;) {
    await look();
    await new Promise((resolve) => {
      lookNow = resolve;
      setTimeout(resolve, condition === "ready" ? 3000 : 1000);
    });
  }
}

async function look() {
  try {
    const response = await fetch("/readyz");
    if (response.ok) {
      if (condition !== "ready") await refresh();
      setCondition("ready", "Ready");
    } else {
      const { status } = await response.json().catch(() => ({}));
      if (status === "draining") setCondition("draining", "Shutting down");
      else setCondition("unavailable", "Not ready");
    }
  } catch (error) {
    if (!(error instanceof ServerError) || error.status === 0) setCondition("gone", "Not reachable");
  }
}
