// Audio in the browser: a player of PCM that is still arriving, a microphone, WAV files, pictures.

export const RATE = 24_000; // Hz, of response_format "pcm" and of live sessions

const LEAD_S = 0.06; // hides the jitter of the network at the start and after a gap

// Plays mono 16-bit PCM while it arrives; it can be paused and moved to any place that has arrived.
export class Player extends EventTarget {
  constructor() {
    super();
    this.context = new AudioContext({ sampleRate: RATE });
    this.samples = new Float32Array(RATE * 8);
    this.length = 0;
    this.whole = false; // nothing more arrives
    this.ended = false;
    this.odd = null; // half a sample
    this.sources = []; // scheduled: { source, startS, from, count }
    this.next = 0; // the first sample that is not scheduled
    this.freeS = 0; // context time at which that one may begin
  }

  get duration() { return this.length / RATE; }

  get paused() { return this.context.state === "suspended"; }

  // Seconds of audio that have been played, counted from its beginning.
  get position() {
    const now = this.context.currentTime;
    for (let i = this.sources.length - 1; i >= 0; i--) {
      const { startS, from, count } = this.sources[i];
      if (now >= startS) return (from + Math.min(count, (now - startS) * RATE)) / RATE;
    }
    return (this.sources[0]?.from ?? this.next) / RATE;
  }

  // In how many milliseconds a sample is heard: one that is scheduled, or was played already.
  untilHeardMs(sample) {
    const entry = this.sources.findLast(({ from }) => from <= sample);
    const atS = entry ? entry.startS + (sample - entry.from) / RATE : this.context.currentTime;
    return 1000 * (atS - this.context.currentTime + (this.context.outputLatency || 0));
  }

  push(bytes) {
    let data = bytes;
    if (this.odd !== null) {
      data = new Uint8Array(bytes.length + 1);
      data[0] = this.odd;
      data.set(bytes, 1);
    }
    this.odd = data.length % 2 ? data[data.length - 1] : null;
    const count = data.length >> 1;
    if (this.length + count > this.samples.length) {
      const larger = new Float32Array(2 * (this.length + count));
      larger.set(this.samples.subarray(0, this.length));
      this.samples = larger;
    }
    const view = new DataView(data.buffer, data.byteOffset, 2 * count);
    for (let i = 0; i < count; i++) this.samples[this.length + i] = view.getInt16(2 * i, true) / 32768;
    this.length += count;
    this.schedule();
  }

  finish() {
    this.whole = true;
    this.settle();
  }

  schedule() {
    const count = this.length - this.next;
    if (count <= 0) return;
    const buffer = this.context.createBuffer(1, count, RATE);
    buffer.copyToChannel(this.samples.subarray(this.next, this.length), 0);
    const source = this.context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.context.destination);
    const startS = Math.max(this.freeS, this.context.currentTime + (this.freeS ? 0 : LEAD_S));
    source.start(startS);
    const entry = { source, startS, from: this.next, count };
    source.onended = () => this.settle();
    this.sources.push(entry);
    this.freeS = startS + count / RATE;
    this.next = this.length;
  }

  settle() {
    if (!this.whole || this.ended || this.next < this.length) return;
    if (this.context.currentTime + 0.02 < this.freeS) return;
    this.ended = true;
    this.dispatchEvent(new Event("ended"));
  }

  seek(seconds) {
    this.silence();
    this.next = Math.max(0, Math.min(this.length, Math.round(seconds * RATE)));
    this.ended = false;
    this.schedule();
    this.settle(); // at the end there is nothing to play
  }

  // Forget what is scheduled; returns the seconds that were played.
  silence() {
    const position = this.position;
    for (const { source } of this.sources) {
      source.onended = null;
      source.stop();
    }
    this.sources = [];
    this.freeS = 0;
    return position;
  }

  async toggle() {
    if (this.ended) this.seek(0);
    else if (this.paused) await this.context.resume();
    else await this.context.suspend();
  }

  wav() { return wav(this.samples.subarray(0, this.length), RATE); }

  close() {
    this.silence();
    if (this.context.state !== "closed") this.context.close();
  }
}

export function wav(samples, rate) {
  const bytes = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const tag = (at, text) => [...text].forEach((c, i) => bytes.setUint8(at + i, c.charCodeAt(0)));
  tag(0, "RIFF"); bytes.setUint32(4, 36 + 2 * samples.length, true); tag(8, "WAVEfmt ");
  bytes.setUint32(16, 16, true); bytes.setUint16(20, 1, true); bytes.setUint16(22, 1, true);
  bytes.setUint32(24, rate, true); bytes.setUint32(28, 2 * rate, true);
  bytes.setUint16(32, 2, true); bytes.setUint16(34, 16, true);
  tag(36, "data"); bytes.setUint32(40, 2 * samples.length, true);
  samples.forEach((value, i) => bytes.setInt16(44 + 2 * i, Math.round(Math.max(-1, Math.min(1, value)) * 32767), true));
  return new Blob([bytes], { type: "audio/wav" });
}

// The microphone: calls `onSamples` with Float32Array pieces of 40 ms at RATE.
export class Microphone {
  // `deviceId` is one of the browser's; without it the browser's usual one.
  static async open(onSamples = () => {}, deviceId = "") {
    if (!navigator.mediaDevices?.getUserMedia) {
      throw new Error("The browser gives no microphone to pages without HTTPS. Open this page over HTTPS or at localhost (izwi serve --tls-cert --tls-key).");
    }
    const wanted = { echoCancellation: true, noiseSuppression: true, autoGainControl: true, channelCount: 1 };
    if (deviceId) wanted.deviceId = { exact: deviceId };
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: wanted });
    } catch (error) {
      if (error.name === "NotAllowedError") throw new Error("The microphone was not allowed. Allow it in the browser's address bar and try again.");
      if (error.name === "NotFoundError") throw new Error("No microphone was found.");
      if (error.name === "OverconstrainedError") throw new Error("That microphone is not connected. Choose another one.");
      throw error;
    }
    const context = new AudioContext({ sampleRate: RATE });
    const microphone = new Microphone(stream, context, onSamples);
    await captureFrom(context, stream, (samples) => microphone.onSamples(samples));
    return microphone;
  }

  constructor(stream, context, onSamples) {
    this.stream = stream;
    this.context = context;
    this.onSamples = onSamples;
  }

  set muted(value) { for (const track of this.stream.getAudioTracks()) track.enabled = !value; }

  close() {
    for (const track of this.stream.getTracks()) track.stop();
    if (this.context.state !== "closed") this.context.close();
  }
}

// Call `onSamples` with the samples of a stream, 40 ms at a time, at the rate of the context.
export async function captureFrom(context, stream, onSamples) {
  await context.audioWorklet.addModule("/page/capture-worklet.js");
  const node = new AudioWorkletNode(context, "capture", { numberOfOutputs: 0 });
  node.port.onmessage = ({ data }) => onSamples(data);
  context.createMediaStreamSource(stream).connect(node);
}

// A recording until `stop`, as a WAV file; `onSamples` gets its pieces as they come.
export class Recorder {
  static async start(onSamples) {
    const recorder = new Recorder();
    recorder.pieces = [];
    recorder.microphone = await Microphone.open((samples) => {
      recorder.pieces.push(samples);
      onSamples?.(samples);
    });
    return recorder;
  }

  stop() {
    this.microphone.close();
    const all = new Float32Array(this.pieces.reduce((sum, piece) => sum + piece.length, 0));
    let at = 0;
    for (const piece of this.pieces) { all.set(piece, at); at += piece.length; }
    return new File([wav(all, RATE)], "recording.wav", { type: "audio/wav" });
  }
}

export function level(samples) {
  let sum = 0;
  for (const value of samples) sum += value * value;
  return Math.min(1, Math.sqrt(sum / Math.max(1, samples.length)) * 6);
}

export function toPcm16(samples) {
  const pcm = new Int16Array(samples.length);
  for (let i = 0; i < samples.length; i++) pcm[i] = Math.round(Math.max(-1, Math.min(1, samples[i])) * 32767);
  return new Uint8Array(pcm.buffer);
}

export function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Fit a canvas to its size on the screen; returns its context, width and height in CSS pixels.
function surface(canvas) {
  const scale = devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
  if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// A waveform as bars; what was played is green.
export function drawWave(canvas, samples, playedShare, wholeShare = 1) {
  const { context, width, height } = surface(canvas);
  const bars = Math.max(1, Math.floor(width / 4));
  const used = Math.max(1, Math.round(bars * wholeShare));
  for (let bar = 0; bar < used; bar++) {
    const from = Math.floor((bar / used) * samples.length), to = Math.floor(((bar + 1) / used) * samples.length);
    let peak = 0;
    for (let i = from; i < to; i += Math.max(1, (to - from) >> 6)) peak = Math.max(peak, Math.abs(samples[i]));
    const tall = Math.max(2, Math.sqrt(peak) * (height - 6));
    context.fillStyle = bar / used < playedShare ? colour("--action") : colour("--edge");
    context.beginPath();
    context.roundRect(bar * 4, (height - tall) / 2, 2.5, tall, 1.2);
    context.fill();
  }
}

// The last levels (0 to 1) as bars around the middle. `rest`, of a place from -1 to 1, is what is
// seen where there is no level.
export function drawLevels(canvas, levels, name = "--action", rest = () => 0) {
  const { context, width, height } = surface(canvas);
  const count = Math.floor(width / 6);
  context.fillStyle = colour(name);
  for (let bar = 0; bar < count; bar++) {
    const value = levels[levels.length - count + bar] ?? rest((2 * bar) / Math.max(1, count - 1) - 1);
    const tall = Math.max(3, value * (height - 4));
    context.beginPath();
    context.roundRect(bar * 6, (height - tall) / 2, 4, tall, 2);
    context.fill();
  }
}
