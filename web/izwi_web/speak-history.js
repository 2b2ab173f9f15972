// What was spoken in this tab, kept until the tab is closed: a reload loses nothing.

import { fromBase64, toBase64, toPcm16 } from "./audio.js";

const KEY = "spoken", TEXT_KEY = "speak-text";
const KEPT = 20; // utterances
const MAX_CHARACTERS = 3_500_000; // browsers keep about 5 million

// The newest first: { values, samples }, where samples are null if there was no room for them.
export function load() {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "[]").map(({ values, pcm }) => ({ values, samples: pcm ? samplesOf(pcm) : null }));
  } catch {
    return [];
  }
}

// Keep the newest; the audio of older ones is left out where it does not fit. Returns what is kept.
export function save(entries) {
  const kept = entries.slice(0, KEPT);
  let left = MAX_CHARACTERS;
  const written = kept.map(({ values, samples }) => {
    const size = samples ? Math.ceil((samples.length * 8) / 3) : 0;
    const fits = samples && size <= left;
    if (fits) left -= size;
    return { values, pcm: fits ? toBase64(toPcm16(samples)) : null };
  });
  try {
    sessionStorage.setItem(KEY, JSON.stringify(written));
  } catch { // the browser has less room
    sessionStorage.removeItem(KEY);
  }
  return kept;
}

export const loadText = () => sessionStorage.getItem(TEXT_KEY);
export const saveText = (text) => sessionStorage.setItem(TEXT_KEY, text);

function samplesOf(pcm) {
  const bytes = fromBase64(pcm);
  return Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
}
