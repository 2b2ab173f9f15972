// Collects microphone samples into pieces of 40 ms and posts them to the page.

const PIECE = Math.round(sampleRate * 0.04);

class Capture extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Float32Array(PIECE);
    this.filled = 0;
  }

  process([[channel]]) {
    if (!channel) return true;
    for (const value of channel) {
      this.piece[this.filled++] = value;
      if (this.filled === PIECE) {
        this.port.postMessage(this.piece, [this.piece.buffer]);
        this.piece = new Float32Array(PIECE);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("capture", Capture);
