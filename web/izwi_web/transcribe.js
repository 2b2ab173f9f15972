// Transcribe: a file or a recording becomes text whose words light up as the audio plays. What is
// recorded has captions while it is spoken.

import { Captions } from "./captions.js";
import { events, modelsOf, onLists, request } from "./server.js";
import { Recorder, drawLevels, level } from "./audio.js";
import { byId, clock, copyText, fill, h, note, saveFile, takesFiles } from "./ui.js";

let recorder = null, captions = null, leaving = null, answer = null, spans = [], source = null;
const levels = [];

export function start() {
  takesFiles(byId("drop"), byId("choose"), byId("file"), (file) => {
    if (recorder) note("transcribe-note", "Stop the recording first.", true);
    else transcribe(file);
  });
  byId("record").addEventListener("click", record);
  byId("transcribe-cancel").addEventListener("click", () => leaving?.abort());
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => save(button.dataset.save, button));
  }
  byId("transcript-audio").addEventListener("play", light);
  byId("transcript-audio").addEventListener("seeked", lightOnce);
  onLists(() => fill(byId("transcribe-model"), modelsOf("transcription").map(({ id }) => ({ value: id }))));
}

// A microphone that nobody sees is not left open.
export function hide() {
  byId("transcript-audio").pause();
  if (recorder) stopRecording();
}

async function record() {
  if (recorder) {
    stopRecording();
    return;
  }
  leaving?.abort();
  byId("record").disabled = true;
  try {
    levels.length = 0;
    recorder = await Recorder.start(hear);
    if (byId("transcribe").hidden) { // left meanwhile
      recorder.stop();
      recorder = null;
      return;
    }
    showRecording(true);
    note("transcribe-note", "Recording. Press Stop when you have finished.");
    showCard(false);
    captions = new Captions(byId("transcript"), wanted(), (why) => {
      note("transcribe-note", `Recording without captions (${why}). The text comes after Stop.`);
    });
  } catch (error) {
    note("transcribe-note", error.message, true);
  } finally {
    byId("record").disabled = false;
  }
}

function hear(samples) {
  levels.push(level(samples));
  drawLevels(byId("record-meter"), levels, "--amber");
  captions?.hear(samples);
}

function stopRecording() {
  const file = recorder.stop(), spoken = captions;
  recorder = captions = null;
  showRecording(false);
  transcribe(file, spoken);
}

function showRecording(on) {
  byId("record").textContent = on ? "Stop" : "Record";
  byId("record").setAttribute("aria-pressed", String(on));
  byId("record-meter").hidden = !on;
  byId("choose").disabled = on;
}

// The card of the text; the player and the buttons come with the audio.
function showCard(whole) {
  byId("transcript-card").hidden = false;
  byId("transcript-audio").hidden = !whole;
  byId("transcript-save").hidden = !whole;
}

// What was chosen, without what was left empty.
function wanted() {
  const values = {
    model: byId("transcribe-model").value, language: byId("transcribe-language").value.trim(),
    prompt: byId("transcribe-prompt").value.trim(),
  };
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
}

// `spoken` are the captions of a recording: they stay until its text has come, or instead of it.
async function transcribe(file, spoken = null) {
  leaving?.abort();
  const left = new AbortController();
  leaving = left;
  byId("transcribe-cancel").disabled = false;
  byId("transcribe-progress").hidden = false;
  byId("transcribe-progress").value = 0;
  showSource(file);
  if (!spoken) showText("");
  note("transcribe-note", `Transcribing ${file.name}`);
  const form = new FormData();
  const values = { ...wanted(), stream: "true", response_format: "verbose_json" };
  for (const [name, value] of Object.entries(values)) form.append(name, value);
  for (const kind of ["segment", "word"]) form.append("timestamp_granularities[]", kind);
  form.append("file", file);
  const begunMs = performance.now();
  try {
    const response = await request("/v1/audio/transcriptions", { method: "POST", body: form, signal: left.signal });
    let text = "";
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") {
        text += event.delta;
        if (!spoken) showText(text);
      } else if (event.type === "transcript.text.segment" && event.duration) {
        byId("transcribe-progress").value = event.end / event.duration;
      } else if (event.type === "transcript.text.done") {
        answer = event;
        showWords(event);
      }
    }
    const tookS = (performance.now() - begunMs) / 1000;
    const empty = answer.text.trim() ? "" : "No speech was found. ";
    note("transcribe-note", `${empty}${(answer.duration ?? 0).toFixed(1)} s of audio in ${tookS.toFixed(2)} s${answer.language ? ` · ${answer.language}` : ""}`);
  } catch (error) {
    if (error.name === "AbortError") note("transcribe-note", "Cancelled");
    else {
      const kept = await spoken?.finish();
      if (kept?.text) answer = kept;
      note("transcribe-note", `${error.message}${kept?.text ? " The captions are kept." : ""}`, true);
    }
  } finally {
    spoken?.close();
    if (leaving === left) {
      byId("transcribe-cancel").disabled = true;
      byId("transcribe-progress").hidden = true;
    }
  }
}

function showSource(file) {
  if (source) URL.revokeObjectURL(source);
  source = URL.createObjectURL(file);
  byId("transcript-audio").src = source;
  answer = null;
  spans = [];
  showCard(true);
}

function showText(text) { byId("transcript").textContent = text; }

function showWords({ text, words, segments }) {
  const audio = byId("transcript-audio");
  if (!words?.length) {
    showText(text);
    return;
  }
  const begins = new Set((segments ?? []).map(({ start }) => start));
  const parts = [];
  spans = words.map((word) => ({ ...word, element: h("span", { onclick: () => { audio.currentTime = word.start; audio.play(); } }, word.word) }));
  let stamped = -Infinity;
  for (const word of spans) {
    const segment = [...begins].find((at) => at <= word.start + 0.01 && at > stamped);
    if (segment !== undefined && begins.size > 1) {
      stamped = Math.max(...[...begins].filter((at) => at <= word.start + 0.01));
      parts.push(h("span", { class: "stamp" }, clock(word.start)));
    }
    parts.push(word.element, " ");
  }
  byId("transcript").replaceChildren(...parts);
}

function lightOnce() {
  const at = byId("transcript-audio").currentTime;
  for (const { start: from, end, element } of spans) element.classList.toggle("now", from <= at && at < end);
}

function light() {
  lightOnce();
  if (!byId("transcript-audio").paused) requestAnimationFrame(light);
}

const stamp = (seconds, mark) => {
  const ms = Math.round(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(Math.floor(ms / 3_600_000))}:${two(Math.floor(ms / 60_000) % 60)}:${two(Math.floor(ms / 1000) % 60)}${mark}${String(ms % 1000).padStart(3, "0")}`;
};

function save(format, button) {
  if (!answer) return;
  const segments = answer.segments?.length ? answer.segments : [{ start: 0, end: answer.duration ?? 0, text: answer.text }];
  if (format === "copy") copyText(answer.text, button);
  else if (format === "json") saveFile(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }), "transcript.json");
  else if (format === "txt") saveFile(new Blob([`${answer.text}\n`]), "transcript.txt");
  else {
    const mark = format === "srt" ? "," : ".";
    const cues = segments.map(({ start: from, end, text }, i) =>
      `${format === "srt" ? `${i + 1}\n` : ""}${stamp(from, mark)} --> ${stamp(end, mark)}\n${text.trim()}\n`);
    saveFile(new Blob([(format === "vtt" ? "WEBVTT\n\n" : "") + cues.join("\n")]), `transcript.${format}`);
  }
}
