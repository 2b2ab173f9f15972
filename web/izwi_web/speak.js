// Speak: text to speech that plays while it is made.

import { failureOf, call, languagesOf, modelsOf, onLists, request, voicesOf } from "./server.js";
import { Player, RATE, drawWave, toPcm16, wav } from "./audio.js";
import { bindSettings } from "./settings.js";
import * as snippets from "./snippets.js";
import * as kept from "./speak-history.js";
import { byId, clock, fill, fillLanguages, h, note, saveFile } from "./ui.js";

const CONTROLS = {
  model: "speak-model", voice: "speak-voice", language: "speak-language", speed: "speak-speed", seed: "speak-seed",
  instructions: "speak-instructions",
};
let player = null, leaving = null, history = [];

export function start() {
  byId("text").value = kept.loadText() ?? byId("text").value;
  byId("text").addEventListener("input", () => {
    kept.saveText(byId("text").value);
    count();
  });
  count();
  byId("speak-speed").addEventListener("input", showSpeed);
  byId("speak-model").addEventListener("change", fillChoices);
  bindSettings("speak", CONTROLS, showSpeed);
  byId("speak-form").addEventListener("submit", (event) => {
    event.preventDefault();
    speak();
  });
  byId("speak-stop").addEventListener("click", stop);
  byId("play").addEventListener("click", () => player?.toggle().then(showPlayer));
  byId("download").addEventListener("click", download);
  bindWave();
  snippets.addSnippets(byId("speak-snippets"), {
    curl: () => snippets.speechCurl(body()), python: () => snippets.speechPython(body()), javascript: () => snippets.speechScript(body()),
  });
  history = kept.load();
  showHistory();
  onLists(() => {
    fill(byId("speak-model"), modelsOf("speech").map(({ id }) => ({ value: id })));
    fillChoices();
  });
}

// What keys do here: see shortcuts.js.
export const shortcuts = { main: () => byId("speak-form").requestSubmit(), stop };

function count() { byId("count").textContent = byId("text").value.length.toLocaleString("en"); }

function showSpeed() { byId("speed-value").textContent = `${Number(byId("speak-speed").value).toFixed(2)}×`; }

function fillChoices() {
  const model = byId("speak-model").value;
  fill(byId("speak-voice"), voicesOf(model).map(({ name, kind }) =>
    ({ value: name, label: kind === "cloned" ? `${name} (cloned)` : name })));
  fillLanguages(byId("speak-language"), languagesOf(model));
}

// The place of the player by pointer and by key, as a slider has it.
function bindWave() {
  const wave = byId("wave");
  wave.addEventListener("pointerdown", (event) => {
    const box = wave.getBoundingClientRect();
    player?.seek(((event.clientX - box.left) / box.width) * player.duration);
  });
  wave.addEventListener("keydown", (event) => {
    if (!player) return;
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5 };
    if (event.key === " ") player.toggle().then(showPlayer);
    else if (event.key === "Home") player.seek(0);
    else if (event.key === "End") player.seek(player.duration);
    else if (event.key in steps) player.seek(player.position + steps[event.key]);
    else return;
    event.preventDefault();
  });
}

function body() {
  const values = {
    model: byId("speak-model").value,
    input: byId("text").value,
    voice: byId("speak-voice").value || undefined,
    speed: Number(byId("speak-speed").value),
    seed: Number(byId("speak-seed").value) || 0,
    language: byId("speak-language").value || undefined,
    instructions: byId("speak-instructions").value.trim() || undefined,
  };
  return JSON.parse(JSON.stringify(values));
}

async function speak() {
  stop();
  player?.close();
  const mine = new Player(), asked = body();
  player = mine;
  leaving = new AbortController();
  byId("speak-stop").disabled = false;
  byId("player").hidden = true;
  note("speak-note", "Waiting for the first audio");
  const begunMs = performance.now();
  try {
    const response = await call("/v1/audio/speech", {
      method: "POST", signal: leaving.signal, headers: { "content-type": "application/json" },
      body: JSON.stringify({ ...asked, response_format: "pcm" }),
    });
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
    keep(asked, mine.samples.slice(0, mine.length));
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
  const share = player.length ? player.position / player.duration : 0, wave = byId("wave");
  drawWave(wave, player.samples.subarray(0, player.length), share);
  const now = Math.min(player.position, player.duration).toFixed(1), most = player.duration.toFixed(1);
  if (wave.getAttribute("aria-valuenow") !== now || wave.getAttribute("aria-valuemax") !== most) {
    wave.setAttribute("aria-valuemax", most);
    wave.setAttribute("aria-valuenow", now);
    wave.setAttribute("aria-valuetext", `${clock(player.position)} of ${clock(player.duration)}`);
    byId("clock").textContent = `${clock(player.position)} / ${clock(player.duration)}`;
  }
  const still = player.paused || player.ended, label = still ? "Play" : "Pause";
  if (byId("play").getAttribute("aria-label") === label) return;
  byId("play").textContent = still ? "▶" : "❚❚";
  byId("play").setAttribute("aria-label", label);
}

// The audio that is here, in another format: nothing is spoken again.
async function download() {
  const format = byId("speak-format").value, mine = player;
  if (format === "wav") saveFile(mine.wav(), "speech.wav");
  else if (format === "pcm") saveFile(new Blob([toPcm16(mine.samples.subarray(0, mine.length))]), "speech.pcm");
  else await convert(mine.wav(), format);
}

async function convert(file, format) {
  const form = new FormData();
  form.append("response_format", format);
  form.append("file", file, "speech.wav");
  byId("download").disabled = true;
  byId("download-progress").hidden = false;
  note("download-note", `Encoding ${format}`);
  try {
    const response = await request("/v1/audio/convert", { method: "POST", body: form });
    const made = await response.blob();
    saveFile(made, `speech.${format}`);
    note("download-note", `speech.${format}, ${Math.ceil(made.size / 1024)} KiB`);
  } catch (error) {
    note("download-note", error.message, true);
  } finally {
    byId("download").disabled = false;
    byId("download-progress").hidden = true;
  }
}

// -- history ---------------------------------------------------------------------------------------
function keep(values, samples) {
  history = kept.save([{ values, samples }, ...history]);
  showHistory();
}

function showHistory() {
  byId("history-empty").hidden = history.length > 0;
  byId("history").replaceChildren(...history.map((entry) => {
    const { values, samples } = entry;
    const length = samples ? `${(samples.length / RATE).toFixed(1)} s` : "audio not kept";
    return h("li", {},
      h("div", { class: "what" }, h("strong", {}, values.input), h("small", {}, `${values.voice ?? "default voice"} · ${length}`)),
      samples ? h("button", { type: "button", onclick: () => again(entry), "aria-label": `Play: ${values.input}` }, "Play") : null,
      samples ? h("button", { type: "button", class: "ghost", onclick: () => saveFile(wav(samples, RATE), "speech.wav"), "aria-label": `Save: ${values.input}` }, "Save") : null);
  }));
}

function again({ samples }) {
  stop();
  player?.close();
  player = new Player();
  player.push(toPcm16(samples));
  player.finish();
  byId("player").hidden = false;
  note("download-note", "");
  follow(player);
}
