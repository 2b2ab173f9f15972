// The page's only script: it speaks and transcribes through the same endpoints as any client.

const RATE = 24000; // what response_format "pcm" always is
const byId = (id) => document.getElementById(id);

function note(id, text, bad = false) {
  byId(id).textContent = text;
  byId(id).classList.toggle("bad", bad);
}

// A server with keys answers 401 to those without: ask once, and keep the key for this tab.
async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem("key");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  const response = await fetch(path, { ...options, headers });
  if (response.status !== 401) return response;
  const typed = prompt("This server asks for a key:");
  if (!typed) return response;
  sessionStorage.setItem("key", typed.trim());
  return call(path, options);
}

async function failureOf(response) {
  const body = await response.json().catch(() => null);
  return new Error(body?.error?.message ?? `the server answered ${response.status}`);
}

async function getJson(path) {
  const response = await call(path);
  if (!response.ok) throw await failureOf(response);
  return response.json();
}

function fill(select, entries) {
  select.replaceChildren(...entries.map(({ value, label }) => new Option(label ?? value, value)));
}

// ---- speak ---------------------------------------------------------------------------------

// Plays 16-bit PCM as it arrives: each piece is scheduled right after the one before it.
class Player {
  constructor() {
    this.context = new AudioContext({ sampleRate: RATE });
    this.endsAt = 0;
    this.odd = new Uint8Array(0);
    this.pieces = [];
  }

  push(bytes) {
    const joined = new Uint8Array(this.odd.length + bytes.length);
    joined.set(this.odd);
    joined.set(bytes, this.odd.length);
    const whole = joined.length - (joined.length % 2);
    this.odd = joined.slice(whole);
    if (whole === 0) return;
    const pcm = new Int16Array(joined.buffer.slice(0, whole));
    this.pieces.push(pcm);
    const buffer = this.context.createBuffer(1, pcm.length, RATE);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < pcm.length; i++) channel[i] = pcm[i] / 32768;
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    // A little lead at the start, or after a gap, hides the jitter of the network.
    const now = this.context.currentTime;
    if (this.endsAt < now) this.endsAt = now + 0.05;
    source.start(this.endsAt);
    this.endsAt += buffer.duration;
  }

  async finished() {
    const wait = Math.max(0, this.endsAt - this.context.currentTime);
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }

  wav() {
    const size = this.pieces.reduce((sum, pcm) => sum + pcm.byteLength, 0);
    const header = new DataView(new ArrayBuffer(44));
    const tag = (at, text) => [...text].forEach((c, i) => header.setUint8(at + i, c.charCodeAt(0)));
    tag(0, "RIFF"); header.setUint32(4, size + 36, true); tag(8, "WAVEfmt ");
    header.setUint32(16, 16, true); header.setUint16(20, 1, true); header.setUint16(22, 1, true);
    header.setUint32(24, RATE, true); header.setUint32(28, RATE * 2, true);
    header.setUint16(32, 2, true); header.setUint16(34, 16, true);
    tag(36, "data"); header.setUint32(40, size, true);
    return new Blob([header, ...this.pieces], { type: "audio/wav" });
  }

  close() {
    if (this.context.state !== "closed") this.context.close();
  }
}

let speaking = null;

async function speak() {
  const began = performance.now();
  const left = new AbortController();
  const player = new Player();
  speaking = { left, player };
  byId("stop").disabled = false;
  byId("save").hidden = true;
  note("speak-note", "asking");
  const response = await call("/v1/audio/speech", {
    method: "POST",
    signal: left.signal,
    headers: { "content-type": "application/json" },
    body: JSON.stringify({
      model: byId("speech-model").value,
      input: byId("text").value,
      voice: byId("voice").value || null,
      speed: Number(byId("speed").value) || 1,
      response_format: "pcm",
    }),
  });
  if (!response.ok) throw await failureOf(response);
  const reader = response.body.getReader();
  for (let first = true; ; first = false) {
    const { done, value } = await reader.read();
    if (done) break;
    player.push(value);
    if (first) note("speak-note", `first sound after ${Math.round(performance.now() - began)} ms`);
  }
  const save = byId("save");
  if (save.href) URL.revokeObjectURL(save.href);
  save.href = URL.createObjectURL(player.wav());
  save.hidden = false;
  await player.finished();
}

function stopSpeaking() {
  speaking?.left.abort();
  speaking?.player.close();
  speaking = null;
  byId("stop").disabled = true;
}

byId("speak").addEventListener("submit", async (event) => {
  event.preventDefault();
  stopSpeaking();
  try {
    await speak();
  } catch (error) {
    if (error.name !== "AbortError") note("speak-note", error.message, true);
  }
});
byId("stop").addEventListener("click", () => {
  stopSpeaking();
  note("speak-note", "stopped");
});

// ---- transcribe ----------------------------------------------------------------------------

async function transcribe(blob, name) {
  const form = new FormData();
  form.append("file", blob, name);
  form.append("model", byId("listen-model").value);
  form.append("stream", "true");
  byId("transcript").textContent = "";
  note("listen-note", "listening");
  const response = await call("/v1/audio/transcriptions", { method: "POST", body: form });
  if (!response.ok) throw await failureOf(response);
  for await (const event of eventsOf(response.body)) {
    if (event.error) throw new Error(event.error.message);
    if (event.type === "transcript.text.delta") byId("transcript").textContent += event.delta;
    if (event.type === "transcript.text.done") byId("transcript").textContent = event.text;
  }
  note("listen-note", byId("transcript").textContent ? "" : "no speech was heard");
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: ")) yield JSON.parse(block.slice(6));
    }
  }
}

async function listenTo(blob, name) {
  try {
    await transcribe(blob, name);
  } catch (error) {
    note("listen-note", error.message, true);
  }
}

byId("transcribe").addEventListener("submit", (event) => {
  event.preventDefault();
  const [file] = byId("file").files;
  if (file) listenTo(file, file.name);
  else note("listen-note", "choose a file, or record", true);
});

let recorder = null;
byId("record").addEventListener("click", async () => {
  if (recorder) {
    recorder.stop();
    return;
  }
  try {
    const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
    const parts = [];
    recorder = new MediaRecorder(microphone);
    recorder.ondataavailable = (event) => parts.push(event.data);
    recorder.onstop = () => {
      microphone.getTracks().forEach((track) => track.stop());
      const type = recorder.mimeType;
      recorder = null;
      byId("record").textContent = "Record";
      listenTo(new Blob(parts, { type }), type.includes("mp4") ? "speech.mp4" : "speech.webm");
    };
    recorder.start();
    byId("record").textContent = "Stop and transcribe";
    note("listen-note", "recording");
  } catch (error) {
    recorder = null;
    note("listen-note", `no microphone: ${error.message}`, true);
  }
});

// ---- start ---------------------------------------------------------------------------------

let voices = [];

function showVoices() {
  const model = byId("speech-model").value;
  const fitting = voices.filter((voice) => voice.kind === "cloned" || voice.model === model);
  fill(byId("voice"), fitting.map((voice) => ({
    value: voice.id,
    label: voice.kind === "cloned" ? `${voice.name} (cloned)` : voice.name,
  })));
}

try {
  const models = (await getJson("/v1/models")).data;
  voices = (await getJson("/v1/audio/voices")).data;
  const ofTask = (task) => models.filter((m) => m.task === task).map((m) => ({ value: m.id }));
  fill(byId("speech-model"), ofTask("speech"));
  fill(byId("listen-model"), ofTask("transcription"));
  byId("speech-model").addEventListener("change", showVoices);
  showVoices();
  note("state", "ready");
} catch (error) {
  note("state", error.message, true);
}
