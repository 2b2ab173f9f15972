// The same request as code: curl, Python and JavaScript for what the page does.

import { apiKey } from "./server.js";
import { copyText } from "./ui.js";

const LANGUAGES = { curl: "curl", python: "Python", javascript: "JavaScript" };

// Fill `place` with a button for each language; `texts` has a function for each of them.
export function addSnippets(place, texts) {
  place.replaceChildren("Copy as", ...Object.entries(LANGUAGES).map(([language, name]) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "ghost";
    button.dataset.copy = language;
    button.textContent = name;
    button.setAttribute("aria-label", `Copy as ${name}`);
    button.addEventListener("click", () => copyText(texts[language](), button));
    return button;
  }));
}

const shellQuoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;
const json = (value) => JSON.stringify(value);
const curlKey = () => (apiKey() ? ` \\\n  -H "Authorization: Bearer $IZWI_API_KEY"` : "");
const pythonKey = () => (apiKey() ? `os.environ["IZWI_API_KEY"]` : `"none"`);
const scriptKey = () => (apiKey() ? `process.env.IZWI_API_KEY` : `"none"`);

const pythonClient = (kind = "OpenAI") => `import os\n\nfrom openai import ${kind}\n\nclient = ${kind}(base_url="${location.origin}/v1", api_key=${pythonKey()})\n`;
const scriptClient = () => `import OpenAI from "openai";\nimport fs from "node:fs";\n\nconst client = new OpenAI({ baseURL: "${location.origin}/v1", apiKey: ${scriptKey()} });\n`;

// -- speech: `values` is the body of the request ---------------------------------------------------
export function speechCurl(values) {
  const body = json({ ...values, response_format: "wav" });
  return `curl ${location.origin}/v1/audio/speech${curlKey()} \\\n  -H "Content-Type: application/json" \\\n  -d ${shellQuoted(body)} \\\n  -o speech.wav\n`;
}

export function speechPython(values) {
  const { model, input, voice, speed, instructions, ...rest } = values;
  const lines = [`model=${json(model)},`, `input=${json(input)},`, `voice=${json(voice ?? "alloy")},`];
  if (speed !== 1) lines.push(`speed=${speed},`);
  if (instructions) lines.push(`instructions=${json(instructions)},`);
  lines.push(`response_format="wav",`, `extra_body=${json(rest)},`);
  return `${pythonClient()}with client.audio.speech.with_streaming_response.create(\n${indented(lines)}\n) as response:\n    response.stream_to_file("speech.wav")\n`;
}

export function speechScript(values) {
  const body = json({ ...values, voice: values.voice ?? "alloy", response_format: "wav" });
  return `${scriptClient()}const response = await client.audio.speech.create(${body});\nfs.writeFileSync("speech.wav", Buffer.from(await response.arrayBuffer()));\n`;
}

// -- transcription: `values` are the fields of the form ---------------------------------------------
export function transcriptCurl(values) {
  const fields = Object.entries(values).map(([name, value]) => ` \\\n  -F ${shellQuoted(`${name}=${value}`)}`).join("");
  return `curl ${location.origin}/v1/audio/transcriptions${curlKey()}${fields} \\\n  -F response_format=srt \\\n  -F file=@recording.wav\n`;
}

export function transcriptPython(values) {
  const lines = [...Object.entries(values).map(([name, value]) => `${name}=${json(value)},`), `file=open("recording.wav", "rb"),`];
  return `${pythonClient()}transcript = client.audio.transcriptions.create(\n${indented(lines)}\n)\nprint(transcript.text)\n`;
}

export function transcriptScript(values) {
  const fields = Object.entries(values).map(([name, value]) => `${name}: ${json(value)}, `).join("");
  return `${scriptClient()}const file = fs.createReadStream("recording.wav");\nconst transcript = await client.audio.transcriptions.create({ ${fields}file });\nconsole.log(transcript.text);\n`;
}

// -- talk: `values` are model, voice and instructions ------------------------------------------------
export function talkCurl({ model, voice, instructions }) {
  const messages = [...(instructions ? [{ role: "system", content: instructions }] : []), { role: "user", content: "What is seven plus five?" }];
  const body = { model, modalities: ["text", "audio"], audio: { voice: voice || "alloy", format: "wav" }, messages };
  return `# One question and its spoken answer. A live conversation is a WebSocket: see Python and JavaScript.\ncurl ${location.origin}/v1/chat/completions${curlKey()} \\\n  -H "Content-Type: application/json" \\\n  -d ${shellQuoted(json(body))}\n`;
}

export function talkPython({ model, voice, instructions }) {
  const output = voice ? `, "audio": {"output": {"voice": ${json(voice)}}}` : "";
  const asked = instructions ? `, "instructions": ${json(instructions)}` : "";
  return `import asyncio\nimport base64\n${pythonClient("AsyncOpenAI")}

async def main():
    async with client.realtime.connect(model=${json(model)}) as live:
        await live.session.update(session={"type": "realtime"${asked}${output}})
        content = [{"type": "input_text", "text": "What is seven plus five?"}]
        await live.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await live.response.create()
        with open("answer.pcm", "wb") as file:  # 16 bit, mono, 24 kHz
            async for event in live:
                if event.type == "response.output_audio.delta":
                    file.write(base64.b64decode(event.delta))
                elif event.type == "response.done":
                    break


asyncio.run(main())
`;
}

export function talkScript({ model, voice, instructions }) {
  const session = { type: "realtime", ...(instructions ? { instructions } : {}), ...(voice ? { audio: { output: { voice } } } : {}) };
  const url = `${location.origin.replace("http", "ws")}/v1/realtime?model=${encodeURIComponent(model)}`;
  const protocols = apiKey() ? `["realtime", \`openai-insecure-api-key.\${key}\`]` : `["realtime"]`;
  return `const socket = new WebSocket(${json(url)}, ${protocols});
const send = (event) => socket.send(JSON.stringify(event));
socket.onopen = () => {
  send({ type: "session.update", session: ${json(session)} });
  const content = [{ type: "input_text", text: "What is seven plus five?" }];
  send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  send({ type: "response.create" });
};
socket.onmessage = ({ data }) => {
  const event = JSON.parse(data);
  if (event.type === "response.output_audio_transcript.delta") console.log(event.delta);
  if (event.type === "response.done") socket.close();
};
`;
}

const indented = (lines) => lines.map((line) => `    ${line}`).join("\n");
