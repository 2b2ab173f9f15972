// Speak: text to speech that plays while it is made.

import { apiKey, failureOf, call, modelsOf, onLists, request, voicesOf } from "./server.js";
import { Player, drawWave } from "./audio.js";
import { byId, clock, copyText, fill, h, note, saveFile } from "./ui.js";

const KEPT = 20; // utterances of the history
let player = null, asked = null, leaving = null;
const history = [];

export function start() {
  byId("text").addEventListener("input", count);
  count();
  byId("speak-speed").addEventListener("input", () => {
    byId("speed-value").textContent = `${Number(byId("speak-speed").value).toFixed(2)}×`;
  });
  byId("speak-model").addEventListener("change", fillVoices);
  byId("speak-form").addEventListener("submit", (event) => {
    event.preventDefault();
    speak();
  });
  byId("speak-stop").addEventListener("click", stop);
  byId("play").addEventListener("click", () => player?.toggle().then(showPlayer));
  byId("download").addEventListener("click", download);
  byId("wave").addEventListener("pointerdown", (event) => {
    const box = event.target.getBoundingClientRect();
    player?.seek(((event.clientX - box.left) / box.width) * player.duration);
  });
  byId("wave").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step && player) player.seek(Math.max(0, player.position + step));
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", () => copyText(button.dataset.copy === "curl" ? curl(body()) : python(body()), button));
  }
  onLists(() => {
    fill(byId("speak-model"), modelsOf("speech").map(({ id }) => ({ value: id })));
    fillVoices();
  });
}

function count() { byId("count").textContent = byId("text").value.length.toLocaleString("en"); }

function fillVoices() {
  fill(byId("speak-voice"), voicesOf(byId("speak-model").value).map(({ name, kind }) =>
    ({ value: name, label: kind === "cloned" ? `${name} (cloned)` : name })));
}

function body() {
  const values = {
    model: byId("speak-model").value,
    input: byId("text").value,
    voice: byId("speak-voice").value || undefined,
    speed: Number(byId("speak-speed").value),
    seed: Number(byId("speak-seed").value) || 0,
    language: byId("speak-language").value.trim() || undefined,
    instructions: byId("speak-instructions").value.trim() || undefined,
  };
  return JSON.parse(JSON.stringify(values));
}

function post(values, signal) {
  return call("/v1/audio/speech", {
    method: "POST", signal, headers: { "content-type": "application/json" }, body: JSON.stringify(values),
  });
}

async function speak() {
  stop();
  player?.close();
  const mine = new Player();
  player = mine;
  asked = body();
  leaving = new AbortController();
  byId("speak-stop").disabled = false;
  byId("player").hidden = true;
  note("speak-note", "Waiting for the first audio");
  const begunMs = performance.now();
  try {
    const response = await post({ ...asked, response_format: "pcm" }, leaving.signal);
    if (!response.ok) throw await failureOf(response);
    const reader = response.body.getReader();
    for (let first = true; ; ) {
      const { done, value } = await reader.read();
      if (done) break;
      mine.push(value);
      if (first) {
        first = false;
        note("speak-note", `First audio after ${Math.round(performance.now() - begunMs)} ms`);
        byId("player").hidden = false;
        follow(mine);
      }
    }
    mine.finish();
    const tookS = (performance.now() - begunMs) / 1000;
    const rate = mine.duration / tookS;
    byId("speak-note").textContent += ` · ${mine.duration.toFixed(1)} s of audio in ${tookS.toFixed(1)} s (${rate.toFixed(1)}× real time)`;
    keep(asked, mine);
  } catch (error) {
    mine.finish();
    if (error.name === "AbortError") note("speak-note", "Stopped");
    else note("speak-note", error.message, true);
  } finally {
    if (player === mine) byId("speak-stop").disabled = true;
  }
}

function stop() {
  leaving?.abort();
  player?.silence();
}

// Draw while this player is the one shown.
function follow(mine) {
  if (player !== mine) return;
  if (!byId("speak").hidden) showPlayer();
  requestAnimationFrame(() => follow(mine));
}

function showPlayer() {
  const share = player.length ? player.position / player.duration : 0;
  drawWave(byId("wave"), player.samples.subarray(0, player.length), share);
  byId("wave").setAttribute("aria-valuemax", player.duration.toFixed(1));
  byId("wave").setAttribute("aria-valuenow", player.position.toFixed(1));
  byId("clock").textContent = `${clock(player.position)} / ${clock(player.duration)}`;
  const still = player.paused || player.ended;
  byId("play").textContent = still ? "▶" : "❚❚";
  byId("play").setAttribute("aria-label", still ? "Play" : "Pause");
}

async function download() {
  const format = byId("speak-format").value;
  if (format === "wav") {
    saveFile(player.wav(), "speech.wav");
    return;
  }
  try {
    const response = await request("/v1/audio/speech", {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...asked, response_format: format }),
    });
    saveFile(await response.blob(), `speech.${format}`);
  } catch (error) {
    note("speak-note", error.message, true);
  }
}

function keep(values, player) {
  history.unshift({ values, samples: player.samples.slice(0, player.length), blob: player.wav() });
  history.length = Math.min(history.length, KEPT);
  byId("history-empty").hidden = true;
  byId("history").replaceChildren(...history.map((entry) => h("li", {},
    h("div", { class: "what" }, h("strong", {}, entry.values.input), h("small", {}, `${entry.values.voice ?? "default voice"} · ${(entry.samples.length / 24000).toFixed(1)} s`)),
    h("button", { type: "button", onclick: () => again(entry) }, "Play"),
    h("button", { type: "button", class: "ghost", onclick: () => saveFile(entry.blob, "speech.wav") }, "Save"))));
}

function again(entry) {
  stop();
  player?.close();
  player = new Player();
  asked = entry.values;
  const pcm = new Int16Array(entry.samples.length);
  entry.samples.forEach((value, i) => { pcm[i] = value * 32768; });
  player.push(new Uint8Array(pcm.buffer));
  player.finish();
  byId("player").hidden = false;
  follow(player);
}

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function curl(values) {
  const key = apiKey() ? ` \\\n  -H "Authorization: Bearer $IZWI_API_KEY"` : "";
  return `curl ${location.origin}/v1/audio/speech${key} \\\n  -H "Content-Type: application/json" \\\n  -d ${shellQuoted(JSON.stringify({ ...values, response_format: "wav" }))} \\\n  -o speech.wav\n`;
}

function python(values) {
  const { model, input, voice, speed, instructions, ...rest } = values;
  const lines = [`model=${JSON.stringify(model)},`, `input=${JSON.stringify(input)},`, `voice=${JSON.stringify(voice ?? "alloy")},`];
  if (speed !== 1) lines.push(`speed=${speed},`);
  if (instructions) lines.push(`instructions=${JSON.stringify(instructions)},`);
  lines.push(`response_format="wav",`, `extra_body=${JSON.stringify(rest)},`);
  const key = apiKey() ? `os.environ["IZWI_API_KEY"]` : `"none"`;
  return `import os\n\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${location.origin}/v1", api_key=${key})\nwith client.audio.speech.with_streaming_response.create(\n${lines.map((line) => `    ${line}`).join("\n")}\n) as response:\n    response.stream_to_file("speech.wav")\n`;
}
