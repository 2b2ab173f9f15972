// The times of a turn: from the user's last word to the first sound of the answer. The first part is
// pure; `showTurn` draws it.

import { byId, h } from "./ui.js";

const STEP_S = 0.01;
const AUDIBLE_RMS = 0.01; // -40 dBFS, over 10 ms; a start transient of a voice is shorter or quieter
const BELOW_SPEECH = 10 ** (-25 / 20), ABOVE_NOISE = 10 ** (8 / 20);

// The phases in their order: the name of each, and the time of a turn at which it ends.
export const PHASES = [
  ["End of turn noticed", "stopped"], ["Your words transcribed", "transcribed"], ["Answer's first words", "text"],
  ["First audio here", "audio"], ["First sound you hear", "audible"],
];

// Turns of this page that were heard: { at: Date, totalMs }.
export const turns = [];

function rms(samples, from, to) {
  let sum = 0;
  for (let i = from; i < to; i++) sum += samples[i] * samples[i];
  return Math.sqrt(sum / Math.max(1, to - from));
}

// Where the first audible 10 ms of samples begin, in seconds; null if all of them are silent.
export function firstAudible(samples, rate) {
  const step = Math.round(STEP_S * rate);
  for (let from = 0; from + step <= samples.length; from += step) {
    if (rms(samples, from, from + step) > AUDIBLE_RMS) return from / rate;
  }
  return null;
}

// Remembers how loud the microphone was, to tell when the last word ended.
export class SpokenLevels {
  constructor(keptS = 20) {
    this.kept = Math.round(keptS / STEP_S);
    this.levels = []; // { endMs, rms } of each 10 ms
  }

  // Samples whose last one was heard at `nowMs`.
  push(samples, rate, nowMs) {
    const step = Math.round(STEP_S * rate);
    for (let from = 0; from + step <= samples.length; from += step) {
      const endMs = nowMs - ((samples.length - from - step) / rate) * 1000;
      this.levels.push({ endMs, rms: rms(samples, from, from + step) });
    }
    if (this.levels.length > this.kept) this.levels.splice(0, this.levels.length - this.kept);
  }

  // When speech ended before `untilMs`: the last 10 ms that were clearly louder than the noise.
  lastSpeechMs(untilMs) {
    const before = this.levels.filter(({ endMs }) => endMs <= untilMs);
    if (!before.length) return null;
    const sorted = before.map((level) => level.rms).sort((a, b) => a - b);
    const noise = sorted[Math.floor(sorted.length * 0.1)], speech = sorted[Math.floor(sorted.length * 0.98)];
    const least = Math.max(speech * BELOW_SPEECH, Math.min(noise * ABOVE_NOISE, speech / 2), 1e-4);
    for (let i = before.length - 1; i >= 0; i--) if (before[i].rms > least) return before[i].endMs;
    return null;
  }
}

// The phases of a turn, as bars that follow each other: { name, fromMs, toMs }, null where unknown.
export function phasesOf(turn) {
  let reachedMs = 0;
  return PHASES.map(([name, key]) => {
    if (turn.lastWord == null || turn[key] == null) return { name, fromMs: null, toMs: null };
    const toMs = Math.max(0, turn[key] - turn.lastWord);
    const phase = { name, fromMs: Math.min(reachedMs, toMs), toMs };
    reachedMs = Math.max(reachedMs, toMs);
    return phase;
  });
}

export const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`);

export function showTurn(turn) {
  const phases = phasesOf(turn), wholeMs = Math.max(1, ...phases.map(({ toMs }) => toMs ?? 0));
  const heardMs = phases.at(-1).toMs;
  byId("turn-total").textContent = heardMs === null ? "–" : duration(heardMs);
  byId("phases").replaceChildren(...phases.map(({ name, fromMs, toMs }) => {
    const bar = h("span", { class: "bar", "aria-hidden": "true" });
    if (toMs !== null) {
      bar.style.marginLeft = `${(100 * fromMs) / wholeMs}%`;
      bar.style.width = `${(100 * (toMs - fromMs)) / wholeMs}%`;
    }
    bar.hidden = toMs === null;
    return h("div", {}, h("dt", {}, name), h("dd", {}, toMs === null ? "–" : duration(toMs)), bar);
  }));
}
