// Holds one session of @openai/agents-realtime, step by step, and says as JSON what came of it.
// Usage: NODE_PATH=... node realtime_session.cjs URL STEPS; test_agents_js.py lists the steps.
const fs = require("node:fs");
const { RealtimeAgent, RealtimeSession, tool } = require("@openai/agents-realtime");

const [url, steps] = [process.argv[2], JSON.parse(process.argv[3])];
const heard = { called: [], errors: [], interruptions: 0, history: [] };
const audio = [];
const waiting = [];
const numSeen = {};

const setTimer = tool({
  name: "set_timer",
  description: "Start a timer.",
  parameters: {
    type: "object",
    properties: { seconds: { type: "integer" } },
    required: ["seconds"],
    additionalProperties: false,
  },
  strict: true,
  execute: async ({ seconds }) => {
    heard.called.push(seconds);
    return JSON.stringify({ ok: true });
  },
});

const numBytes = () => audio.reduce((sum, piece) => sum + piece.length, 0);

// Looks after each event whether what is waited for has happened.
function look() {
  while (waiting.length && waiting[0].isSo()) waiting.shift().resolve();
}

const until = (isSo) =>
  new Promise((resolve) => {
    waiting.push({ isSo, resolve });
    look();
  });

// What each step does; a step is [name, value].
const DO = {
  say: (session, text) => session.sendMessage(text),
  speak: (session, path) => {
    const pcm = fs.readFileSync(path);
    for (let at = 0; at < pcm.length; at += 4800) {
      const piece = pcm.subarray(at, at + 4800);
      session.sendAudio(piece.buffer.slice(piece.byteOffset, piece.byteOffset + piece.length));
    }
  },
  interrupt: (session) => session.interrupt(),
  // [event, how many of them there have been since the session began]
  until: (_, [event, count]) => until(() => (numSeen[event] ?? 0) >= count),
  hear: async (_, count) => {
    const before = numBytes();
    await until(() => numBytes() - before >= count);
  },
};

async function main() {
  const agent = new RealtimeAgent({
    name: "home",
    instructions: "You are a helpful assistant.",
    tools: [setTimer],
  });
  const session = new RealtimeSession(agent, { transport: "websocket", tracingDisabled: true });
  session.on("audio", ({ data }) => audio.push(Buffer.from(data)));
  session.on("audio_interrupted", () => (heard.interruptions += 1));
  session.on("error", ({ error }) => heard.errors.push(JSON.stringify(error)));
  session.on("transport_event", ({ type }) => {
    numSeen[type] = (numSeen[type] ?? 0) + 1;
    setImmediate(look);
  });
  await session.connect({ apiKey: "none", url });
  for (const [name, value] of steps) await DO[name](session, value);
  for (const item of session.history.filter(({ type }) => type === "message")) {
    heard.history.push([item.role, item.content.map((c) => c.transcript ?? c.text).join("")]);
  }
  heard.audio = Buffer.concat(audio).toString("base64");
  session.close();
  process.stdout.write(JSON.stringify(heard), () => process.exit());
}

main();
