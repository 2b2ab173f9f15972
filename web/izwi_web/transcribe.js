// Transcribe: a file or a recording becomes text whose words light up as the sound plays.

import { events, modelsOf, onLists, request } from "./server.js";
import { Recorder, drawLevels } from "./sound.js";
import { byId, clock, copyText, fill, h, note, saveFile, takesFiles } from "./ui.js";

let recorder = null, leaving = null, answer = null, spans = [], source = null;
const levels = [];

export function start() {
  takesFiles(byId("drop"), byId("choose"), byId("file"), transcribe);
  byId("record").addEventListener("click", record);
  byId("transcribe-cancel").addEventListener("click", () => leaving?.abort());
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => save(button.dataset.save, button));
  }
  byId("transcript-audio").addEventListener("play", light);
  byId("transcript-audio").addEventListener("seeked", lightOnce);
  onLists(() => fill(byId("transcribe-model"), modelsOf("transcription").map(({ id }) => ({ value: id }))));
}

export function hide() {
  byId("transcript-audio").pause();
}

async function record() {
  if (recorder) {
    const file = recorder.stop();
    recorder = null;
    showRecording(false);
    transcribe(file);
    return;
  }
  try {
    recorder = await Recorder.start((value) => {
      levels.push(value);
      drawLevels(byId("record-meter"), levels, "--amber");
    });
    showRecording(true);
    note("transcribe-note", "Recording. Press Stop when you have finished.");
  } catch (error) {
    note("transcribe-note", error.message, true);
  }
}

function showRecording(on) {
  byId("record").textContent = on ? "Stop" : "Record";
  byId("record").setAttribute("aria-pressed", String(on));
  byId("record-meter").hidden = !on;
}

async function transcribe(file) {
  leaving?.abort();
  const left = new AbortController();
  leaving = left;
  byId("transcribe-cancel").disabled = false;
  byId("transcribe-progress").hidden = false;
  byId("transcribe-progress").value = 0;
  showSource(file);
  note("transcribe-note", `Transcribing ${file.name}`);
  const form = new FormData();
  const values = {
    model: byId("transcribe-model").value, stream: "true", response_format: "verbose_json",
    language: byId("transcribe-language").value.trim(), prompt: byId("transcribe-prompt").value.trim(),
  };
  for (const [name, value] of Object.entries(values)) if (value) form.append(name, value);
  for (const kind of ["segment", "word"]) form.append("timestamp_granularities[]", kind);
  form.append("file", file);
  const begunMs = performance.now();
  try {
    const response = await request("/v1/audio/transcriptions", { method: "POST", body: form, signal: left.signal });
    let text = "";
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") {
        text += event.delta;
        showText(text);
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
    else note("transcribe-note", error.message, true);
  } finally {
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
  showText("");
  byId("transcript-card").hidden = false;
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
