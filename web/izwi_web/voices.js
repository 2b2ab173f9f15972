// Voices: list, preview, clone, delete.

import { call, failureOf, known, modelsOf, onLists, refresh, request, sendJson } from "./server.js";
import { Player, Recorder } from "./audio.js";
import { byId, h, note, takesFiles } from "./ui.js";
import { describe } from "./voice-notes.js";

let clip = null, recorder = null, player = null;

export function start() {
  takesFiles(byId("clone-drop"), byId("clone-choose"), byId("clone-input"), use);
  byId("clone-record").addEventListener("click", record);
  byId("clone-form").addEventListener("submit", (event) => {
    event.preventDefault();
    clone();
  });
  onLists(list);
}

// A microphone that nobody sees is not left open.
export function hide() {
  player?.close();
  player = null;
  note("voices-note", "");
  showSpeaking(null);
  if (recorder) record();
}

// A mark of its own for each voice, from its name: bars as of a waveform.
function print(name) {
  let hash = 2166136261;
  for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619) >>> 0;
  const bars = [4, 8, 12, 16, 20].map((x) => {
    hash = Math.imul(hash ^ (hash >>> 13), 1274126177) >>> 0;
    const half = 2 + (hash % 80) / 10;
    return `M${x} ${(12 - half).toFixed(1)}V${(12 + half).toFixed(1)}`;
  });
  const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of [["class", "print"], ["viewBox", "0 0 24 24"], ["aria-hidden", "true"]]) drawn.setAttribute(key, value);
  const path = document.createElementNS(drawn.namespaceURI, "path");
  path.setAttribute("d", bars.join(""));
  drawn.append(path);
  return drawn;
}

function showSpeaking(name) {
  for (const item of byId("voice-list").children) item.classList.toggle("now", item.dataset.name === name);
}

function list() {
  const shown = known.voices.filter(({ kind }) => kind !== "alias");
  const several = new Set(shown.map(({ model }) => model).filter(Boolean)).size > 1;
  byId("voice-list").replaceChildren(...shown.map((voice) => h("li", { "data-name": voice.name },
    print(voice.name),
    h("div", {}, h("strong", {}, voice.name), h("span", { class: "tag" }, voice.kind === "cloned" ? "cloned" : (several && voice.model) || "built in")),
    h("p", { class: "about-voice" }, describe(voice)),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "listen", onclick: () => preview(voice), "aria-label": `Listen to ${voice.name}` }, "Listen"),
      voice.kind === "cloned" ? h("button", { type: "button", class: "ghost", onclick: () => remove(voice), "aria-label": `Delete ${voice.name}` }, "Delete") : null))));
}

// What keys do here: see shortcuts.js.
export const shortcuts = { stop: () => {
  player?.close();
  player = null;
  note("voices-note", "");
  showSpeaking(null);
} };

async function preview(voice) {
  player?.close();
  player = new Player();
  const mine = player;
  note("voices-note", `${voice.name} is speaking`);
  showSpeaking(voice.name);
  try {
    const model = voice.model ?? modelsOf("speech")[0]?.id;
    const response = await sendJson("/v1/audio/speech", { model, voice: voice.name, input: sample(voice), response_format: "pcm" });
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || player !== mine) break;
      mine.push(value);
    }
    mine.addEventListener("ended", () => {
      if (player !== mine) return;
      note("voices-note", "");
      showSpeaking(null);
    });
    mine.finish();
  } catch (error) {
    showSpeaking(null);
    note("voices-note", error.message, true);
  }
}

const sample = ({ name }) => byId("voice-sample").value.trim() || `Hello, I am ${name}. This is how I sound when I read a sentence aloud.`;

async function remove(voice) {
  const place = [...byId("voice-list").children].findIndex(({ dataset }) => dataset.name === voice.name);
  if (!confirm(`Delete the voice ${voice.name}? Its clip is deleted with it.`)) return;
  try {
    await request(`/v1/audio/voices/${encodeURIComponent(voice.id)}`, { method: "DELETE" });
    await refresh();
    note("voices-note", `${voice.name} was deleted`);
    // the button that had the focus is gone
    const items = byId("voice-list").children;
    (items[Math.min(place, items.length - 1)]?.querySelector(".listen") ?? byId("voice-sample")).focus();
  } catch (error) {
    note("voices-note", error.message, true);
  }
}

// A clip was chosen: say how good it is before a voice is made from it.
async function use(file) {
  clear();
  clip = file;
  byId("clone-file").textContent = file.name;
  note("clone-note", "Checking the clip");
  const form = new FormData();
  form.append("audio_sample", file);
  try {
    const report = await (await request("/v1/audio/voices/check", { method: "POST", body: form })).json();
    if (clip !== file) return;
    byId("clone-audio").src = URL.createObjectURL(file);
    byId("clone-audio").hidden = false;
    showReport(report);
    note("clone-note", report.faults.length ? "A voice can be made from it, but these faults will be heard." : "A good clip for a voice.");
  } catch (error) {
    if (clip !== file) return;
    clear();
    note("clone-note", `${file.name} cannot be used: ${error.message}`, true);
  }
}

// The figures of a clip, each with the fault that it has.
function showReport({ duration, speech, level_dbfs, snr_db, clipped_share, faults }) {
  const rows = [
    ["length", "Length", `${duration.toFixed(1)} s, ${speech.toFixed(1)} s of it speech`], ["level", "Level", `${level_dbfs.toFixed(0)} dBFS`],
    ["noise", "Above the noise", `${snr_db.toFixed(0)} dB`], ["clipping", "Cut off at the top", `${(100 * clipped_share).toFixed(1)} %`],
  ];
  byId("clone-report").hidden = false;
  byId("clone-report").replaceChildren(...rows.map(([name, label, value]) => {
    const fault = faults.find((each) => each.name === name);
    return h("div", { class: fault ? "fault" : "fine" }, h("dt", {}, label), h("dd", {}, `${value} ${fault ? "–" : "✓"}`),
      fault ? h("dd", { class: "why" }, fault.message) : null);
  }));
}

function clear() {
  clip = null;
  byId("clone-audio").pause();
  byId("clone-audio").removeAttribute("src");
  byId("clone-audio").hidden = true;
  byId("clone-report").hidden = true;
  byId("clone-file").replaceChildren(h("strong", {}, "Drop a clip here"));
}

async function record() {
  if (recorder) {
    const recording = recorder.stop();
    recorder = null;
    use(recording);
    byId("clone-text").value = byId("consent-text").textContent.trim();
  } else {
    try {
      recorder = await Recorder.start();
      note("clone-note", "Read the sentence above, then press Stop.");
    } catch (error) {
      note("clone-note", error.message, true);
      return;
    }
  }
  byId("clone-record").textContent = recorder ? "Stop" : "Record the sentence";
  byId("clone-record").setAttribute("aria-pressed", String(Boolean(recorder)));
}

async function clone() {
  if (!clip) {
    note("clone-note", "Choose or record a clip first.", true);
    return;
  }
  note("clone-note", "Adding the voice");
  const form = new FormData();
  form.append("name", byId("clone-name").value.trim());
  form.append("consent", byId("consent-text").textContent.trim());
  const said = byId("clone-text").value.trim();
  if (said) form.append("ref_text", said);
  form.append("audio_sample", clip);
  try {
    const response = await call("/v1/audio/voices", { method: "POST", body: form });
    if (!response.ok) throw await failureOf(response);
    const voice = await response.json();
    await refresh();
    note("clone-note", `${voice.name} was added.`);
    clear();
    byId("clone-form").reset();
    preview({ ...voice, model: undefined });
  } catch (error) {
    note("clone-note", error.message, true);
  }
}
