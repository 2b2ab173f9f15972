// Voices: list, preview, clone, delete.

import { call, failureOf, known, modelsOf, onLists, refresh, request, sendJson } from "./server.js";
import { Player, Recorder } from "./sound.js";
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

export function hide() { player?.close(); }

function list() {
  const shown = known.voices.filter(({ kind }) => kind !== "alias");
  byId("voice-list").replaceChildren(...shown.map((voice) => h("li", {},
    h("strong", {}, voice.name),
    h("span", {}, h("span", { class: "tag" }, voice.kind === "cloned" ? "cloned" : voice.model ?? "built in")),
    h("div", { class: "actions" },
      h("button", { type: "button", onclick: () => preview(voice), "aria-label": `Listen to ${voice.name}` }, "Listen"),
      voice.kind === "cloned" ? h("button", { type: "button", class: "ghost", onclick: () => remove(voice), "aria-label": `Delete ${voice.name}` }, "Delete") : null))));
}

async function preview(voice) {
  player?.close();
  player = new Player();
  const mine = player;
  note("voices-note", `${voice.name} is speaking`);
  try {
    const model = voice.model ?? modelsOf("speech")[0]?.id;
    const response = await sendJson("/v1/audio/speech", { model, voice: voice.name, input: SENTENCE, response_format: "pcm" });
    const reader = response.body.getReader();
    for (;;) {
      const { done, value } = await reader.read();
      if (done || player !== mine) break;
      mine.push(value);
    }
    mine.addEventListener("ended", () => note("voices-note", ""));
    mine.finish();
  } catch (error) {
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
    preview({ ...voice, model: undefined });
  } catch (error) {
    note("clone-note", error.message, true);
  }
}
