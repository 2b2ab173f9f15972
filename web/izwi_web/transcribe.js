// Transcribe: a file or a recording becomes text whose words light up as the audio plays. What is
// recorded has captions while it is spoken.

import { Captions, colourOf } from "./captions.js";
import { events, languagesOf, modelsOf, onLists, request } from "./server.js";
import { Recorder, drawLevels, level } from "./audio.js";
import { bindSettings } from "./settings.js";
import * as snippets from "./snippets.js";
import { estimateCues, subtitleFile, textBySpeaker, wordsInText } from "./subtitles.js";
import { byId, clock, copyText, fill, fillLanguages, h, note, saveFile, takesFiles } from "./ui.js";

const CONTROLS = { model: "transcribe-model", language: "transcribe-language", context: "transcribe-prompt", speakers: "transcribe-speakers" };
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
  byId("transcript").addEventListener("keydown", moveAmongWords);
  byId("transcribe-model").addEventListener("change", listLanguages);
  bindSettings("transcribe", CONTROLS);
  snippets.addSnippets(byId("transcribe-snippets"), {
    curl: () => snippets.transcriptCurl({ ...wanted(), ...(withSpeakers() && { speakers: "true" }) }),
    python: () => snippets.transcriptPython(wantedOfSdk()), javascript: () => snippets.transcriptScript(wantedOfSdk()),
  });
  onLists(() => {
    fill(byId("transcribe-model"), modelsOf("transcription").map(({ id }) => ({ value: id })));
    listLanguages();
  });
}

// What keys do here: see shortcuts.js.
export const shortcuts = {
  main: () => { if (!byId("record").disabled) record(); },
  stop: () => {
    leaving?.abort();
    byId("transcript-audio").pause();
  },
};

function listLanguages() { fillLanguages(byId("transcribe-language"), languagesOf(byId("transcribe-model").value)); }

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
    const options = { ...wanted(), ...(withSpeakers() && { speakers: true }) };
    captions = new Captions(byId("transcript"), options, (why) => {
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
    model: byId("transcribe-model").value, language: byId("transcribe-language").value,
    prompt: byId("transcribe-prompt").value.trim(),
  };
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
}

const withSpeakers = () => byId("transcribe-speakers").checked;

function wantedOfSdk() { return { ...wanted(), ...(withSpeakers() && { response_format: "diarized_json" }) }; }

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
  const begunMs = performance.now();
  try {
    await read(file, left.signal, spoken, !withSpeakers() && modelsOf("alignment").length > 0);
    const tookS = (performance.now() - begunMs) / 1000;
    const empty = answer.text.trim() ? "" : "No speech was found. ";
    note("transcribe-note", `${empty}${(answer.duration ?? 0).toFixed(1)} s of audio in ${tookS.toFixed(2)} s${answer.language ? ` · ${answer.language}` : ""}`);
  } catch (error) {
    const kept = error.name === "AbortError" ? null : await spoken?.finish();
    if (kept?.text) {
      const text = kept.segments.some(({ speaker }) => speaker) ? textBySpeaker(kept.segments) : kept.text;
      answer = { ...kept, text, cues: estimateCues(kept.segments) };
    }
    if (!kept?.text && leaving === left) hideCard();
    if (error.name === "AbortError") note("transcribe-note", "Cancelled");
    else note("transcribe-note", `${error.message}${kept?.text ? " The captions are kept." : ""}`, true);
  } finally {
    spoken?.close();
    if (leaving === left) {
      byId("transcribe-cancel").disabled = true;
      byId("transcribe-progress").hidden = true;
    }
  }
}

// Read the transcript of a file as it comes; with the times of its words, unless their language has none.
async function read(file, signal, spoken, withWords) {
  const form = new FormData();
  const values = { ...wanted(), stream: "true", response_format: "verbose_json" };
  for (const [name, value] of Object.entries(values)) form.append(name, value);
  const speakers = withSpeakers(), kinds = speakers ? ["segment"] : ["segment", "cue", ...(withWords ? ["word"] : [])];
  if (speakers) form.append("speakers", "true");
  for (const kind of kinds) form.append("timestamp_granularities[]", kind);
  form.append("file", file);
  let text = "";
  try {
    const response = await request("/v1/audio/transcriptions", { method: "POST", body: form, signal });
    for await (const event of events(response)) {
      if (event.type === "transcript.text.delta") {
        text += event.delta;
        if (!spoken) showText(text);
      } else if (event.type === "transcript.text.segment" && event.duration) {
        byId("transcribe-progress").value = event.end / event.duration;
      } else if (event.type === "transcript.text.done") {
        answer = speakers ? { ...event, text: textBySpeaker(event.segments), cues: estimateCues(event.segments) } : event;
        if (speakers) showSpeakers(event);
        else showWords(event);
      }
    }
  } catch (error) {
    if (!withWords || error.param !== "timestamp_granularities") throw error;
    await read(file, signal, spoken, false);
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

// A file that cannot be played leaves no player behind.
function hideCard() {
  byId("transcript-card").hidden = true;
  byId("transcript-audio").removeAttribute("src");
}

function showText(text) { byId("transcript").textContent = text; }

// The text, word by word: each one plays from its place, by pointer or by key.
function showWords({ text, words, segments }) {
  spans = wordsInText(text, words ?? []).map((word) => ({
    ...word, element: h("span", { role: "button", tabindex: "-1", onclick: () => playFrom(word) }, word.text),
  }));
  if (!spans.length) {
    showText(text);
    return;
  }
  spans[0].element.tabIndex = 0;
  const begins = [...new Set((segments ?? []).filter((segment) => segment.text.trim()).map(({ start }) => start))];
  const parts = [];
  let next = 0;
  for (const word of spans) {
    if (begins.length > 1 && next < begins.length && begins[next] <= word.start + 0.01) {
      parts.push(h("span", { class: "stamp" }, clock(word.start)));
      while (next < begins.length && begins[next] <= word.start + 0.01) next++;
    }
    parts.push(word.element, word.space);
  }
  byId("transcript").replaceChildren(...parts);
}

// The text by speaker, each in a colour of their own; each segment plays from its place.
function showSpeakers({ segments }) {
  const said = segments.filter(({ text }) => text.trim()), names = [...new Set(said.map(({ speaker }) => speaker))];
  const colour = (name) => colourOf(names, name);
  spans = said.map((segment) => ({
    ...segment, element: h("span", { class: colour(segment.speaker), role: "button", tabindex: "-1", onclick: () => playFrom(segment) }, segment.text.trim()),
  }));
  if (spans.length) spans[0].element.tabIndex = 0;
  byId("transcript").replaceChildren(...spans.flatMap(({ speaker, start, element }, i) => [
    ...(speaker === spans[i - 1]?.speaker ? [] : [h("span", { class: `who ${colour(speaker)}` }, `${speaker} · ${clock(start)}`)]), element, " ",
  ]));
}

function playFrom({ start }) {
  byId("transcript-audio").currentTime = start;
  byId("transcript-audio").play();
}

// One word takes the focus; arrows move it.
function moveAmongWords(event) {
  const place = spans.findIndex(({ element }) => element === document.activeElement);
  if (place < 0) return;
  if (["Enter", " "].includes(event.key)) {
    event.preventDefault();
    playFrom(spans[place]);
    return;
  }
  const next = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: spans.length - 1 }[event.key];
  if (next === undefined || !spans[next]) return;
  event.preventDefault();
  spans[place].element.tabIndex = -1;
  spans[next].element.tabIndex = 0;
  spans[next].element.focus();
}

function lightOnce() {
  const at = byId("transcript-audio").currentTime;
  for (const { start: from, end, element } of spans) element.classList.toggle("now", from <= at && at < end);
}

function light() {
  lightOnce();
  if (!byId("transcript-audio").paused) requestAnimationFrame(light);
}

function save(format, button) {
  if (!answer) return;
  if (format === "copy") copyText(answer.text, button);
  else if (format === "json") saveFile(new Blob([JSON.stringify(answer, null, 2)], { type: "application/json" }), "transcript.json");
  else if (format === "txt") saveFile(new Blob([`${answer.text}\n`]), "transcript.txt");
  else saveFile(new Blob([subtitleFile(answer.cues, format)]), `transcript.${format}`);
}
