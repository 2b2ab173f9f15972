// One live session over /v1/realtime: events in and out, playback, barge-in and the times of a turn.
// Over WebRTC where the server offers it, else over a WebSocket.

import { LiveCall } from "./live.js";
import { known, modelsOf, openSocket } from "./server.js";
import { Player, RATE, fromBase64, level, toBase64, toPcm16 } from "./audio.js";
import * as conversation from "./conversation.js";
import { SpokenLevels, firstAudible } from "./latency.js";

const KEPT_LEVELS = 200;
const LEAST_HELD_MS = 300; // of a button that is held to talk
const RETURNS = new Set([1001, 1006, 1012]); // close codes after which the server may come back
// Errors with which the server ends a session: it would not go on for longer.
const ENDINGS = new Set(["session_expired", "idle_timeout", "unread_output", "too_many_errors", "internal_error"]);
const REFUSED = "No live session could be opened: the server is full, or needs a key. Try again soon, or enter a key with the button at the edge of the page.";

const newItemId = () => `item_${crypto.getRandomValues(new Uint32Array(3)).join("")}`.slice(0, 32);

export class Session {
  // `settings` are model, voice, turns ("" if a button is held to talk) and instructions. The hooks:
  // onState(name), onNote(text, bad), onTurn(turn), onEnd({ why, returns }).
  constructor(settings, hooks) {
    this.settings = settings;
    this.hooks = hooks;
    this.levels = [];
    this.outLevels = [];
    this.muted = false;
    this.held = null; // since when the button is held, ms
    this.spoken = new SpokenLevels();
    this.turn = {}; // times of the last turn, ms
    this.answer = null; // { itemId, from }: the answer that plays, and where it begins in the player
    this.isOver = false;
  }

  get byHand() { return this.settings.turns === ""; }

  // `history` are items of a session before this one. Without a microphone the user types.
  async open(microphone, history = []) {
    this.player = new Player();
    this.serverPlays = false; // over WebRTC the server plays the answer
    if (microphone) this.attach(microphone);
    const onEnd = () => this.lose({ why: this.ending ?? "The connection to the server was lost.", returns: !this.ending });
    if (microphone && known.webrtc) {
      const call = await LiveCall.open(this.settings.model, microphone.stream, (event) => this.receive(event), onEnd, (samples) => this.hearAnswer(samples));
      if (this.isOver) call?.close();
      else this.call = call;
    }
    if (this.isOver) return;
    if (!this.call) await this.openSocket();
    if (this.isOver) return;
    this.configure(this.settings);
    for (const item of history) this.send({ type: "conversation.item.create", item });
    this.rest();
  }

  async openSocket() {
    const socket = openSocket(`/v1/realtime?model=${encodeURIComponent(this.settings.model)}`);
    this.socket = socket;
    socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    await new Promise((resolve, reject) => {
      socket.onopen = resolve;
      socket.onerror = socket.onclose = () => reject(new Error(REFUSED));
    });
    socket.onerror = null;
    socket.onclose = ({ code, reason }) => {
      const busy = code === 1013 ? "The server is busy. Try again soon." : "";
      const plain = !this.ending && (code === 1000 || code === 1005);
      const why = this.ending ?? (plain ? reason : busy || reason || `The connection was closed (${code}).`);
      this.lose({ why, returns: !this.ending && RETURNS.has(code), plain });
    };
  }

  attach(microphone) {
    this.microphone = microphone;
    microphone.onSamples = (samples) => this.hear(samples);
    this.listenWhen();
  }

  configure(settings) {
    this.settings = { ...settings, model: this.settings.model };
    const turns = { type: settings.turns, create_response: true, interrupt_response: true };
    const input = {
      format: { type: "audio/pcm", rate: RATE }, transcription: { model: modelsOf("transcription")[0]?.id },
      turn_detection: this.byHand ? null : turns,
    };
    const output = { format: { type: "audio/pcm", rate: RATE } };
    if (settings.voice) output.voice = settings.voice;
    const update = { type: "realtime", output_modalities: ["audio"], audio: { input, output } };
    update.instructions = settings.instructions;
    this.send({ type: "session.update", session: update });
    this.listenWhen();
  }

  get playing() {
    if (this.call) return this.serverPlays;
    return Boolean(this.answer) && this.player.length > 0 && !this.player.ended && this.player.position < this.player.duration;
  }

  send(event) {
    this.call?.send(event);
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(event));
  }

  // -- what the user does ----------------------------------------------------------------------
  hear(samples) {
    const isSent = !this.muted && (!this.byHand || this.held !== null);
    this.spoken.push(samples, RATE, performance.now());
    this.levels.push(isSent ? level(samples) : 0);
    if (this.levels.length > KEPT_LEVELS) this.levels.shift();
    if (this.call) return;
    if (!this.byHand || this.held !== null) this.send({ type: "input_audio_buffer.append", audio: toBase64(toPcm16(samples)) });
    if (this.playing) {
      const at = Math.round(this.player.position * RATE);
      this.showAnswer(this.player.samples.subarray(at, at + 960));
    }
  }

  // Type instead of speaking.
  say(text) {
    this.stopAnswer();
    const id = newItemId();
    conversation.setText(id, "user", text);
    this.turn = { lastWord: performance.now() };
    this.send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content: [{ type: "input_text", text }] } });
    this.send({ type: "response.create" });
    this.hooks.onState("thinking");
  }

  // Show a picture: what is said or typed next is about it.
  show(url, canvas) {
    const id = newItemId();
    conversation.setPicture(id, canvas);
    this.send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content: [{ type: "input_image", image_url: url }] } });
  }

  // Hold a button to talk: what is said while it is held is one turn.
  hold() {
    if (this.held !== null || !this.byHand || !this.microphone) return;
    this.stopAnswer();
    this.send({ type: "input_audio_buffer.clear" });
    this.held = performance.now();
    this.listenWhen();
    this.hooks.onState("hearing");
  }

  release() {
    if (this.held === null) return;
    const heldMs = performance.now() - this.held;
    this.held = null;
    this.listenWhen();
    if (heldMs < LEAST_HELD_MS) {
      this.send({ type: "input_audio_buffer.clear" });
      this.hooks.onNote("Hold the button for as long as you speak.");
      this.rest();
      return;
    }
    const stopped = performance.now();
    this.turn = { stopped, lastWord: this.spoken.lastSpeechMs(stopped) ?? stopped };
    this.send({ type: "input_audio_buffer.commit" });
    this.send({ type: "response.create" });
    this.hooks.onState("thinking");
  }

  toggleMute() {
    this.muted = !this.muted;
    this.listenWhen();
    this.rest();
  }

  // A muted track is silence, for the server too.
  listenWhen() {
    if (this.microphone) this.microphone.muted = this.muted || (this.byHand && this.held === null);
  }

  // Stop the answer that plays or is being made.
  stopAnswer() {
    if (!this.playing && !this.answer && !this.isAnswering) return;
    this.send({ type: "response.cancel" });
    if (this.call) this.send({ type: "output_audio_buffer.clear" });
    this.interrupt();
    this.rest();
  }

  // The user speaks over the answer: stop playback and tell the server how much was played.
  // It may be silent already: a server that is not sure yet pauses the answer first.
  interrupt() {
    if (this.call || !this.answer || (this.answer.done && !this.playing)) return;
    const played = this.player.silence() - this.answer.from, { itemId } = this.answer;
    this.player.next = this.player.length;
    conversation.cut(itemId);
    this.send({ type: "conversation.item.truncate", item_id: itemId, content_index: 0, audio_end_ms: Math.max(0, Math.floor(played * 1000)) });
    this.send({ type: "conversation.item.retrieve", item_id: itemId }); // says what was heard
    this.answer = null;
  }

  rest() {
    if (!this.microphone) this.hooks.onState("typing");
    else if (this.muted) this.hooks.onState("muted");
    else this.hooks.onState(this.byHand ? "waiting" : "listening");
  }

  // -- what the server says --------------------------------------------------------------------
  receive(event) {
    const handle = this[`on_${event.type.replaceAll(".", "_")}`];
    if (!this.isOver) handle?.call(this, event);
  }

  on_error({ error }) {
    if (ENDINGS.has(error.code)) this.ending = error.message;
    if (error.code !== "response_cancel_not_active") this.hooks.onNote(error.message, true);
  }

  on_input_audio_buffer_speech_started({ item_id }) {
    this.hooks.onState("hearing");
    this.interrupt();
    conversation.lineOf(item_id, "user");
  }

  // The server says how long it was silent; where it does not, the microphone's levels tell.
  on_input_audio_buffer_speech_stopped({ silence_ms }) {
    const stopped = performance.now();
    this.turn = { stopped, lastWord: silence_ms > 0 ? stopped - silence_ms : this.spoken.lastSpeechMs(stopped) ?? stopped };
    this.hooks.onState("thinking");
  }

  on_conversation_item_input_audio_transcription_delta({ item_id, delta }) {
    conversation.append(item_id, "user", delta);
  }

  on_conversation_item_input_audio_transcription_completed({ item_id, transcript }) {
    this.turn.transcribed ??= performance.now();
    conversation.setText(item_id, "user", transcript.trim() || "…");
  }

  on_conversation_item_input_audio_transcription_failed({ item_id, error }) {
    conversation.setText(item_id, "user", "(not understood)");
    this.hooks.onNote(error.message, true);
  }

  on_conversation_item_retrieved({ item }) {
    conversation.showHeard(item.id, item.content?.[0]?.transcript ?? "");
  }

  on_response_created() { this.isAnswering = true; }

  on_response_output_item_added({ item }) {
    if (item.type !== "message") return;
    this.said = item.id;
    conversation.lineOf(item.id, "assistant");
  }

  on_response_output_audio_transcript_delta({ item_id, delta }) {
    this.turn.text ??= performance.now();
    conversation.append(item_id, "assistant", delta);
  }

  on_response_output_audio_delta({ item_id, delta }) {
    if (this.answer?.itemId !== item_id) {
      if (!this.playing) this.player.silence();
      this.player.next = this.player.length;
      this.player.ended = false;
      this.answer = { itemId: item_id, from: this.player.duration, done: false };
      this.turn.audio ??= performance.now();
      this.hooks.onTurn(this.turn);
      this.hooks.onState("speaking");
    }
    const bytes = fromBase64(delta), from = this.player.length;
    this.player.push(bytes);
    if (this.turn.audible === undefined) this.findSound(from);
  }

  // When the first sound from this sample on is heard: the player knows when it plays it.
  findSound(from) {
    const at = firstAudible(this.player.samples.subarray(from, this.player.length), RATE);
    if (at !== null) this.sound(performance.now() + this.player.untilHeardMs(from + Math.round(at * RATE)));
  }

  // Over WebRTC the answer's samples come as they are played.
  hearAnswer(samples) {
    if (this.playing) this.showAnswer(samples);
    const at = this.turn.audible === undefined && this.turn.text !== undefined ? firstAudible(samples, RATE) : null;
    if (at !== null) this.sound(performance.now() - (samples.length / RATE - at) * 1000);
  }

  sound(atMs) {
    this.turn.audible = atMs;
    this.hooks.onTurn(this.turn);
  }

  showAnswer(samples) {
    this.outLevels.push(level(samples));
    if (this.outLevels.length > KEPT_LEVELS) this.outLevels.shift();
  }

  on_response_output_audio_done({ item_id }) {
    if (this.answer?.itemId === item_id) this.answer.done = true;
  }

  // Over WebRTC the server plays the audio itself and reports when it starts and stops.
  on_output_audio_buffer_started() {
    this.serverPlays = true;
    this.turn.audio ??= performance.now();
    this.hooks.onTurn(this.turn);
    this.hooks.onState("speaking");
  }

  on_output_audio_buffer_stopped() {
    this.serverPlays = false;
    this.rest();
  }

  on_output_audio_buffer_cleared() {
    this.serverPlays = false;
    conversation.cut(this.said);
    this.send({ type: "conversation.item.retrieve", item_id: this.said }); // says what was heard
  }

  on_response_done({ response }) {
    this.isAnswering = false;
    if (response.status === "failed") this.hooks.onNote(response.status_details?.error?.message ?? "The answer failed.", true);
    if (response.status === "cancelled") this.greyUnheard(response.output ?? []);
    if (!this.playing) this.rest();
  }

  // The items of a response that was cancelled have what was heard of them.
  greyUnheard(items) {
    for (const { type, id, content } of items) {
      if (type === "message") conversation.showHeard(id, content?.[0]?.transcript ?? "");
    }
  }

  // -- the end -----------------------------------------------------------------------------------
  lose(end) {
    if (this.isOver) return;
    this.close({ keepMicrophone: end.returns });
    this.hooks.onEnd(end);
  }

  close({ keepMicrophone = false } = {}) {
    this.isOver = true;
    if (!keepMicrophone) this.microphone?.close();
    this.player?.close();
    this.call?.close();
    if (this.socket) this.socket.onclose = null;
    this.socket?.close(1000);
  }
}
