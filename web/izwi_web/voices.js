// Voices: list, preview, clone, delete.

import { call, failureOf, known, modelsOf, onLists, refresh, request, sendJson } from "./server.js";
import { Player, Recorder } from "./audio.js";
import { byId, h, note, takesFiles } from "./ui.js";

const SENTENCE = "Hello. This is how I sound when I read a sentence aloud.";
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
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => preview(voice), "aria-label": `Listen to ${voice.name}` }, "Listen"),
      voice.kind === "cloned" ? h("button", { type: "button", class: "ghost", onclick: () => remove(voice), "aria-label": `Delete ${voice.name}` }, "Delete") : null))));
}

async function preview(voice) {
  player?.close();
  player = new Player();
  const mine = player;
  note("voices-note", `${voice.name} is speaking`);
  showSpeaking(voice.name);
  try {
    const model = voice.model ?? modelsOf("speech")[0]?.id;
    const response = await sendJson("/v1/audio/speech", { model, voice: voice.name, input: SENTENCE, response_format: "pcm" });
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

async function remove(voice) {
  if (!confirm(`Delete the voice ${voice.name}? Its clip is deleted with it.`)) return;
  try {
    await request(`/v1/audio/voices/${encodeURIComponent(voice.id)}`, { method: "DELETE" });
    await refresh();
    note("voices-note", `${voice.name} was deleted`);
  } catch (error) {
    note("voices-note", error.message, true);
  }
}

function use(file) {
  clip = file;
  byId("clone-file").textContent = file.name;
  byId("clone-audio").src = URL.createObjectURL(file);
  byId("clone-audio").hidden = false;
}

function clear() {
  clip = null;
  byId("clone-form").reset();
  byId("clone-audio").hidden = true;
  byId("clone-file").replaceChildren(h("strong", {}, "Drop a clip here"));
}

async function record() {
  if (recorder) {
    use(recorder.stop());
    recorder = null;
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
    preview({ ...voice, model: undefined });
  } catch (error) {
    note("clone-note", error.message, true);
  }
}
