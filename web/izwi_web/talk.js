// Talk: a live session over /v1/realtime, with captions, barge-in and the times of the last turn.
// Over WebRTC where the server offers it, else over a WebSocket.

import { LiveCall } from "./live.js";
import { known, modelsOf, onLists, openSocket, voicesOf } from "./server.js";
import { Microphone, Player, RATE, drawLevels, fromBase64, level, toBase64, toPcm16 } from "./audio.js";
import { byId, fill, h, note } from "./ui.js";

const STATES = {
  off: "Ready when you are", connecting: "Connecting", listening: "Listening", hearing: "You are speaking",
  thinking: "Thinking", speaking: "Speaking", muted: "Muted",
};
// What the models that come with izwi can answer; others are asked what they like.
const HINTS = { "izwi-tiny-chat": "Try: What is seven plus five? · How many metres are two kilometres?" };
let session = null;

// A voice at rest: what the meter shows before the first audio.
const atRest = (place) => 0.6 * Math.exp(-6 * place * place) * (0.55 + 0.45 * Math.cos(place * 41));

export function start() {
  byId("talk-start").addEventListener("click", () => (session ? session.close() : open()));
  byId("talk-mute").addEventListener("click", () => session?.toggleMute());
  byId("talk-model").addEventListener("change", hint);
  for (const name of ["talk-voice", "talk-turns", "talk-instructions"]) {
    byId(name).addEventListener("change", () => session?.configure());
  }
  showPhases({});
  onLists(() => {
    const models = modelsOf("chat");
    fill(byId("talk-model"), models.map(({ id }) => ({ value: id })));
    const speech = modelsOf("speech")[0]?.id;
    fill(byId("talk-voice"), voicesOf(speech).map(({ name }) => ({ value: name })));
    hint();
    const possible = models.length > 0;
    byId("talk-start").disabled = !possible && !session;
    if (!possible) note("talk-note", "No chat model is loaded. Load one in the Models tab, or start the server with izwi serve --model NAME.");
    else if (!session) note("talk-note", "");
  });
  setInterval(draw, 50);
}

function hint() { byId("talk-hint").textContent = HINTS[byId("talk-model").value] ?? ""; }

function showOpen(isOpen) {
  byId("talk-start").textContent = isOpen ? "End" : "Start talking";
  byId("talk-start").classList.toggle("ends", isOpen);
  byId("talk-model").disabled = isOpen;
}

// Each phase as a bar on one scale, so that the eye sees where the time goes.
function showPhases({ stopped, transcribed, created, text, audio }) {
  const rows = [["Transcript", transcribed], ["Answer begun", created], ["First words", text], ["First audio", audio]];
  const times = rows.map(([, at]) => (at && stopped ? Math.max(0, at - stopped) : null));
  const longest = Math.max(1, ...times);
  byId("phases").replaceChildren(...rows.map(([name], i) => {
    const bar = h("span", { class: times[i] === null ? "" : "bar", "aria-hidden": "true" });
    bar.style.width = `${(100 * (times[i] ?? 0)) / longest}%`;
    return h("div", {}, h("dt", {}, name), bar, h("dd", {}, times[i] === null ? "–" : duration(times[i])));
  }));
}

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

async function open() {
  note("talk-note", "");
  show("connecting");
  const mine = new Session();
  session = mine;
  showOpen(true);
  try {
    await mine.open();
  } catch (error) {
    mine.close();
    note("talk-note", error.message, true);
  }
}

function show(state) {
  byId("talk-state").textContent = STATES[state];
  byId("talk-state").dataset.state = state;
}

function draw() {
  const speaking = session?.playing;
  if (!speaking && byId("talk-state").dataset.state === "speaking" && session?.answer?.done) session.rest();
  if (byId("talk").hidden) return;
  const levels = speaking ? session.outLevels : session?.levels;
  drawLevels(byId("talk-meter"), levels ?? [], speaking ? "--amber" : "--action", session ? undefined : atRest);
}

class Session {
  constructor() {
    this.levels = [];
    this.outLevels = [];
    this.muted = false;
    this.captions = new Map(); // item id -> its line
    this.turn = {}; // times of the last turn, ms
  }

  async open() {
    this.player = new Player();
    this.answer = null; // { itemId, from }: the answer that plays, and where it begins in the player
    this.microphone = await Microphone.open((samples) => this.hear(samples));
    const model = byId("talk-model").value;
    this.serverPlays = false; // over WebRTC the server plays the answer
    const lost = () => {
      if (session !== this) return;
      this.close();
      note("talk-note", "The connection to the server was lost. Start again.", true);
    };
    const call = await LiveCall.open(model, this.microphone.stream, (event) => this.receive(event), lost);
    if (session !== this) { // ended meanwhile
      call?.close();
      return;
    }
    this.call = call;
    if (!call) await this.openSocket(model);
    this.configure();
    byId("talk-mute").disabled = false;
    show("listening");
  }

  async openSocket(model) {
    const socket = openSocket(`/v1/realtime?model=${encodeURIComponent(model)}`);
    this.socket = socket;
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    socket.onclose = ({ code, reason }) => {
      if (session !== this) return;
      const why = { 1001: "The server is shutting down.", 1012: "The server restarted. Start again.", 1013: "The server is busy. Try again soon." };
      this.close();
      if (code !== 1000 && code !== 1005) note("talk-note", why[code] ?? (reason || `The connection was closed (${code}).`), true);
    };
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = () => reject(new Error("No live session could be opened: the server is full, or needs a key. Try again soon, or enter a key with the button at the edge of the page."));
    });
  }

  configure() {
    const turns = byId("talk-turns").value;
    const input = {
      format: { type: "audio/pcm", rate: RATE }, transcription: { model: modelsOf("transcription")[0]?.id },
      turn_detection: { type: turns, create_response: true, interrupt_response: true },
    };
    const output = { format: { type: "audio/pcm", rate: RATE } };
    if (byId("talk-voice").value) output.voice = byId("talk-voice").value;
    const update = { type: "realtime", output_modalities: ["audio"], audio: { input, output } };
    update.instructions = byId("talk-instructions").value.trim();
    this.send({ type: "session.update", session: update });
  }

  get playing() {
    if (this.call) return this.serverPlays;
    return Boolean(this.answer) && this.player.length > 0 && !this.player.ended && this.player.position < this.player.duration;
  }

  send(event) {
    this.call?.send(event);
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  hear(samples) {
    this.levels.push(this.muted ? 0 : level(samples));
    if (this.levels.length > 200) this.levels.shift();
    if (this.call) {
      if (this.playing) this.outLevels.push(level(this.call.samples()));
      if (this.outLevels.length > 200) this.outLevels.shift();
      return;
    }
    this.send({ type: "input_audio_buffer.append", audio: toBase64(toPcm16(samples)) });
    if (this.playing) {
      const at = Math.round(this.player.position * RATE);
      this.outLevels.push(level(this.player.samples.subarray(at, at + 960)));
      if (this.outLevels.length > 200) this.outLevels.shift();
    }
  }

  receive(event) {
    const handle = this[`on_${event.type.replaceAll(".", "_")}`];
    handle?.call(this, event);
  }

  rest() { show(this.muted ? "muted" : "listening"); }

  on_error({ error }) { note("talk-note", error.message, true); }

  on_input_audio_buffer_speech_started({ item_id }) {
    show("hearing");
    this.interrupt();
    this.line(item_id, "user");
  }

  on_input_audio_buffer_speech_stopped() {
    this.turn = { stopped: performance.now() };
    show("thinking");
  }

  on_conversation_item_input_audio_transcription_delta({ item_id, delta }) {
    this.line(item_id, "user").append(delta);
    this.scroll();
  }

  on_conversation_item_input_audio_transcription_completed({ item_id, transcript }) {
    this.turn.transcribed ??= performance.now();
    const line = this.line(item_id, "user");
    line.textContent = transcript.trim() || "…";
    this.scroll();
  }

  on_conversation_item_input_audio_transcription_failed({ item_id, error }) {
    this.line(item_id, "user").textContent = "(not understood)";
    note("talk-note", error.message, true);
  }

  on_response_created() { this.turn.created = performance.now(); }

  on_response_output_item_added({ item }) {
    if (item.type !== "message") return;
    this.said = item.id;
    this.line(item.id, "assistant");
  }

  on_response_output_audio_transcript_delta({ item_id, delta }) {
    this.turn.text ??= performance.now();
    this.line(item_id, "assistant").append(delta);
    this.scroll();
  }

  on_response_output_audio_delta({ item_id, delta }) {
    if (this.answer?.itemId !== item_id) {
      if (!this.playing) this.player.silence();
      this.player.next = this.player.length;
      this.player.ended = false;
      this.answer = { itemId: item_id, from: this.player.duration, done: false };
      this.turn.audio = performance.now();
      showPhases(this.turn);
      show("speaking");
    }
    this.player.push(fromBase64(delta));
  }

  on_response_output_audio_done({ item_id }) {
    if (this.answer?.itemId === item_id) this.answer.done = true;
  }

  // Over WebRTC the server plays the audio itself and reports when it starts and stops.
  on_output_audio_buffer_started() {
    this.serverPlays = true;
    this.turn.audio = performance.now();
    showPhases(this.turn);
    show("speaking");
  }

  on_output_audio_buffer_stopped() {
    this.serverPlays = false;
    this.rest();
  }

  on_output_audio_buffer_cleared() {
    this.serverPlays = false;
    this.captions.get(this.said)?.parentElement.classList.add("cut");
  }

  on_response_done({ response }) {
    if (response.status === "failed") note("talk-note", response.status_details?.error?.message ?? "The answer failed.", true);
    if (!this.playing) this.rest();
  }

  // The user speaks over the answer: stop playback and tell the server how much was played.
  // It may be silent already: a server that is not sure yet pauses the answer first.
  interrupt() {
    if (this.call || !this.answer || (this.answer.done && !this.playing)) return;
    const played = this.player.silence() - this.answer.from;
    this.player.next = this.player.length;
    this.captions.get(this.answer.itemId)?.parentElement.classList.add("cut");
    this.send({ type: "conversation.item.truncate", item_id: this.answer.itemId, content_index: 0, audio_end_ms: Math.max(0, Math.floor(played * 1000)) });
    this.answer = null;
  }

  line(itemId, who) {
    if (!this.captions.has(itemId)) {
      const text = h("span", {});
      byId("captions").append(h("li", { class: who }, h("span", { class: "who" }, who === "user" ? "You" : "izwi"), text));
      this.captions.set(itemId, text);
      byId("captions-empty").hidden = true;
      this.scroll();
    }
    return this.captions.get(itemId);
  }

  scroll() { byId("captions").scrollTop = byId("captions").scrollHeight; }

  toggleMute() {
    this.muted = !this.muted;
    this.microphone.muted = this.muted;
    byId("talk-mute").setAttribute("aria-pressed", String(this.muted));
    this.rest();
  }

  close() {
    if (session === this) session = null;
    this.microphone?.close();
    this.player?.close();
    this.call?.close();
    this.socket?.close(1000);
    showOpen(false);
    byId("talk-mute").disabled = true;
    byId("talk-mute").setAttribute("aria-pressed", "false");
    byId("talk-start").disabled = !modelsOf("chat").length && Boolean(known.models.length);
    show("off");
  }
}
