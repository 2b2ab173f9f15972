// Captions of what is recorded, over /v1/audio/transcriptions/stream, while the microphone is open.

import { openSocket } from "./server.js";
import { RATE, toPcm16 } from "./audio.js";
import { h } from "./ui.js";

const COLOURS = 6; // of speakers, in the style sheet
const MAX_UNSENT_BYTES = 60 * 2 * RATE; // a server that is so far behind is not waited for

// The class of a speaker's colour; `names` are all speakers so far, in the order in which they spoke.
export const colourOf = (names, name) => `speaker-${(names.indexOf(name) % COLOURS) + 1}`;

export class Captions {
  // Captions appear in `place`; `onTrouble` is called once with why no more of them come.
  constructor(place, options, onTrouble) {
    this.place = place;
    this.onTrouble = onTrouble;
    this.segments = new Map(); // number -> { stable, unstable, start, end, text, parts }, parts if it is known who speaks
    this.names = []; // of speakers, in the order in which they spoke
    this.last = null; // who spoke last
    this.early = []; // audio that came before the socket was open
    this.done = new Promise((resolve) => { this.resolve = resolve; });
    place.replaceChildren();
    this.socket = openSocket("/v1/audio/transcriptions/stream");
    this.socket.onopen = () => {
      this.socket.send(JSON.stringify({ type: "session.config", sample_rate: RATE, ...options }));
      for (const bytes of this.early) this.socket.send(bytes);
      this.early = [];
    };
    this.socket.onmessage = ({ data }) => this.receive(JSON.parse(data));
    this.socket.onclose = ({ reason }) => this.stop(reason || "the connection was closed");
  }

  hear(samples) {
    const bytes = toPcm16(samples);
    if (this.socket.readyState === WebSocket.CONNECTING) this.early.push(bytes);
    else if (this.socket.bufferedAmount > MAX_UNSENT_BYTES) this.stop("the server is too far behind");
    else if (this.socket.readyState === WebSocket.OPEN) this.socket.send(bytes);
  }

  receive(event) {
    if (event.type === "transcript.partial") this.show(event.segment, event.stable, event.unstable, event);
    else if (event.type === "transcript.segment" && event.speaker) this.showPart(event);
    else if (event.type === "transcript.segment") this.show(event.segment, event.text, "", event);
    else if (event.type === "transcript.done") this.resolve();
    else if (event.type === "error") this.stop(event.error.message);
  }

  // Words that stay are added, so that a screen reader says each of them once.
  show(number, stable, unstable, { start, end }) {
    if (!this.segments.has(number)) {
      const made = { stable: h("span", { class: "caption" }), unstable: h("span", { class: "caption unstable", "aria-hidden": "true" }) };
      this.place.append(made.stable, made.unstable, " ");
      this.segments.set(number, made);
    }
    const segment = this.segments.get(number);
    const shown = segment.stable.textContent;
    if (stable.startsWith(shown)) segment.stable.append(stable.slice(shown.length));
    else segment.stable.textContent = stable;
    segment.unstable.textContent = unstable;
    Object.assign(segment, { start, end, text: stable.trim() });
  }

  // What a speaker said, after a name if it is another speaker; a segment of several has several parts.
  showPart({ segment: number, speaker, text, start, end }) {
    if (!this.segments.get(number)?.parts) {
      this.show(number, "", "", { start, end });
      this.segments.get(number).parts = [];
    }
    const segment = this.segments.get(number);
    segment.parts.push({ start, end, text: text.trim(), speaker });
    if (!this.names.includes(speaker)) this.names.push(speaker);
    const colour = colourOf(this.names, speaker);
    if (segment.parts.length > 1) segment.unstable.before(" ");
    if (speaker !== this.last) segment.unstable.before(h("span", { class: `who ${colour}` }, speaker));
    this.last = speaker;
    segment.unstable.before(h("span", { class: `caption ${colour}` }, text.trim()));
  }

  // All words, once the server has written the end down: as the answer to a file has them.
  async finish() {
    if (this.socket.readyState !== WebSocket.OPEN) this.resolve();
    else this.socket.send(JSON.stringify({ type: "input.done" }));
    await this.done;
    this.close();
    const segments = [...this.segments.values()].flatMap(({ start, end, text, parts }) => parts ?? [{ start, end, text }]).filter(({ text }) => text);
    return { text: segments.map(({ text }) => text).join(" "), segments, duration: segments.at(-1)?.end ?? 0 };
  }

  stop(why) {
    this.close();
    this.onTrouble(why);
  }

  close() {
    this.socket.onclose = this.socket.onmessage = null;
    this.socket.close(1000);
    this.resolve();
  }
}
