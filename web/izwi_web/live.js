// A live session over WebRTC, where the server offers it: the browser removes echoes and evens out the network.

import { RATE, captureFrom } from "./audio.js";
import { ServerError, call, failureOf } from "./server.js";

const CONNECT_MS = 5000;

export class LiveCall {
  // Resolves to a call, or to null where there is none to be had: then the WebSocket does. Fails with the
  // server's reason where no session can be had at all. `onSamples` gets the answers as they are played.
  static async open(model, stream, onEvent, onEnd, onSamples) {
    if (!globalThis.RTCPeerConnection) return null;
    const made = new LiveCall(stream, onSamples);
    try {
      return (await made.connect(model, onEvent, onEnd)) ? made : null;
    } catch (error) {
      if (error instanceof ServerError) throw error;
      return null;
    } finally {
      if (!made.connected) made.close();
    }
  }

  constructor(stream, onSamples) {
    this.onSamples = onSamples;
    this.peer = new RTCPeerConnection();
    this.audio = new Audio();
    this.audio.autoplay = true;
    this.channel = this.peer.createDataChannel("oai-events");
    for (const track of stream.getAudioTracks()) this.peer.addTrack(track, stream);
    this.peer.ontrack = ({ track }) => this.play(new MediaStream([track]));
  }

  async connect(model, onEvent, onEnd) {
    const early = []; // events that come before anybody looks
    this.channel.onmessage = ({ data }) => early.push(data);
    const open = new Promise((resolve) => {
      this.channel.onopen = () => resolve(true);
      setTimeout(() => resolve(false), CONNECT_MS);
    });
    await this.peer.setLocalDescription(await this.peer.createOffer());
    await this.gathered();
    const response = await call(`/v1/realtime/calls?model=${encodeURIComponent(model)}`, {
      method: "POST", body: this.peer.localDescription.sdp, headers: { "content-type": "application/sdp" },
    });
    if ([401, 429, 503].includes(response.status)) throw await failureOf(response);
    if (response.status !== 201) return false;
    await this.peer.setRemoteDescription({ type: "answer", sdp: await response.text() });
    if (!(await open)) return false;
    this.connected = true;
    for (const data of early) onEvent(JSON.parse(data));
    this.channel.onmessage = ({ data }) => onEvent(JSON.parse(data));
    this.channel.onclose = () => onEnd();
    return true;
  }

  // The offer goes in one piece, so all addresses have to be known.
  gathered() {
    if (this.peer.iceGatheringState === "complete") return Promise.resolve();
    return new Promise((resolve) => {
      this.peer.addEventListener("icegatheringstatechange", () => {
        if (this.peer.iceGatheringState === "complete") resolve();
      });
      setTimeout(resolve, CONNECT_MS);
    });
  }

  play(stream) {
    this.audio.srcObject = stream;
    this.context = new AudioContext({ sampleRate: RATE });
    captureFrom(this.context, stream, this.onSamples).catch(() => {}); // closed meanwhile
  }

  send(event) { if (this.channel.readyState === "open") this.channel.send(JSON.stringify(event)); }

  close() {
    this.channel.onclose = null;
    this.audio.srcObject = null;
    this.context?.close();
    this.peer.close();
  }
}
