// Runs before the page's own scripts: a microphone that plays what a test says, and counts what
// the page has played.

globalThis.microphone = (() => {
  const RATE = 24_000;
  const context = new AudioContext({ sampleRate: RATE });
  const out = context.createMediaStreamDestination();
  out.channelCount = 1;
  // a room is never silent
  const hum = context.createOscillator(), quiet = context.createGain();
  hum.frequency.value = 100;
  quiet.gain.value = 0.001;
  hum.connect(quiet).connect(out);
  hum.start();
  navigator.mediaDevices.getUserMedia = async () => out.stream;

  // Over the WebSocket the page plays buffers.
  let playedS = 0;
  const start = AudioBufferSourceNode.prototype.start;
  AudioBufferSourceNode.prototype.start = function (...when) {
    if (this.context !== context) this.addEventListener("ended", () => { playedS += this.buffer.duration; });
    return start.apply(this, when);
  };

  // Over WebRTC the browser plays a track. It never ends: what is louder than its noise counts.
  const LEAST_POWER = 1e-5;
  const peers = [];
  let before = null;
  globalThis.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...args) {
      super(...args);
      peers.push(this);
    }
  };
  async function receive() {
    for (const peer of peers) {
      for (const stats of (await peer.getStats()).values()) {
        if (stats.type !== "inbound-rtp") continue;
        const now = { energy: stats.totalAudioEnergy, durationS: stats.totalSamplesDuration };
        const lengthS = before ? now.durationS - before.durationS : 0;
        if (before && now.energy - before.energy > LEAST_POWER * lengthS) playedS += lengthS;
        before = now;
      }
    }
  }

  return {
    // Say 16-bit PCM at 24 kHz, in base64.
    say(base64) {
      const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
      const samples = Float32Array.from(new Int16Array(bytes.buffer), (value) => value / 32768);
      const buffer = context.createBuffer(1, samples.length, RATE);
      buffer.copyToChannel(samples, 0);
      const source = context.createBufferSource();
      source.buffer = buffer;
      source.connect(out);
      source.start();
    },

    // Seconds of audio that the page has played since it was first asked.
    async heard() {
      await receive();
      return playedS;
    },
  };
})();
