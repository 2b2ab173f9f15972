// Talk: a conversation by voice or by typing, its settings, and what is shown of its state.

import { drawLevels, Microphone } from "./audio.js";
import * as conversation from "./conversation.js";
import { showTurn, turns } from "./latency.js";
import * as microphones from "./microphones.js";
import * as pictures from "./pictures.js";
import { modelsOf, onCondition, onLists, untilReady, voicesOf } from "./server.js";
import { Session } from "./session.js";
import { bindSettings } from "./settings.js";
import * as snippets from "./snippets.js";
import { byId, clock, copyText, fill, h, note, saveFile } from "./ui.js";

const STATES = {
  off: "Ready when you are", connecting: "Connecting", reconnecting: "Reconnecting", listening: "Listening",
  hearing: "You are speaking", thinking: "Thinking", speaking: "Speaking", muted: "Muted",
  typing: "Type a message", waiting: "Hold to talk",
};
const CONDITIONS = {
  draining: "The server is shutting down. This conversation reconnects when a server is back.",
  unavailable: "The server is starting: it accepts no conversations yet.",
  gone: "The server cannot be reached. This page tries again every second.",
};
// What the models that come with izwi can answer; others are asked what they like.
const PROMPTS = {
  "izwi-tiny-chat": ["What is seven plus five?", "How many metres are two kilometres?", "What day comes after Monday?"],
};
const ANY_PROMPTS = ["Tell me a very short story.", "What can you help me with?", "Explain rain to a child."];
const GIVE_UP_MS = 300_000;
const CONTROLS = { model: "talk-model", voice: "talk-voice", turns: "talk-turns", instructions: "talk-instructions" };

let session = null, leaving = null, startedMs = 0, isFresh = true, isShown = false;

// A voice at rest: what the meter shows before the first audio.
const atRest = (place) => 0.6 * Math.exp(-6 * place * place) * (0.55 + 0.45 * Math.cos(place * 41));

export function start() {
  byId("talk-start").addEventListener("click", startOrEnd);
  byId("talk-end").addEventListener("click", end);
  byId("live-end").addEventListener("click", end);
  byId("talk-mute").addEventListener("click", toggleMute);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("typed").value.trim();
    if (!text || session?.isOver) return; // what is typed while it reconnects is kept
    byId("typed").value = "";
    type(text);
  });
  bindHold();
  byId("talk-copy").addEventListener("click", () => copyText(conversation.asText(), byId("talk-copy")));
  byId("talk-save").addEventListener("click", () => saveFile(new Blob([conversation.asText()], { type: "text/plain" }), "conversation.txt"));
  byId("talk-clear").addEventListener("click", () => {
    conversation.clear();
    byId("typed").focus();
  });
  byId("talk-model").addEventListener("change", showPrompts);
  bindSettings("talk", CONTROLS, configure);
  for (const id of Object.values(CONTROLS)) byId(id).addEventListener("change", configure);
  snippets.addSnippets(byId("talk-snippets"), {
    curl: () => snippets.talkCurl(settings()), python: () => snippets.talkPython(settings()), javascript: () => snippets.talkScript(settings()),
  });
  microphones.start();
  pictures.start(showPicture);
  conversation.start();
  showTurn({});
  showOpen();
  onLists(list);
  onCondition(showCondition);
  addEventListener("beforeunload", (event) => { if (session) event.preventDefault(); });
  setInterval(draw, 50);
}

export function show() {
  isShown = true;
  showBadge();
}

// The conversation goes on beside another tab: the navigation says so.
export function hide() {
  isShown = false;
  microphones.stopTest();
  showBadge();
}

// What keys do here: see shortcuts.js.
export const shortcuts = {
  main: startOrEnd,
  stop: () => session?.stopAnswer(),
  mute: () => { if (session?.microphone) toggleMute(); },
};

function list() {
  const models = modelsOf("chat");
  fill(byId("talk-model"), models.map(({ id }) => ({ value: id })));
  fill(byId("talk-voice"), voicesOf(modelsOf("speech")[0]?.id).map(({ name }) => ({ value: name })));
  showPrompts();
  pictures.showButton();
  const possible = models.length > 0;
  byId("talk-start").disabled = !possible && !session;
  byId("typed").disabled = byId("talk-send").disabled = !possible;
  if (!possible) note("talk-note", "No chat model is loaded. Load one in the Models tab, or start the server with izwi serve --model NAME.");
  else if (!session) note("talk-note", "");
}

function showPrompts() {
  byId("prompts").replaceChildren(...(PROMPTS[byId("talk-model").value] ?? ANY_PROMPTS).map((text) =>
    h("button", { type: "button", onclick: () => type(text) }, text)));
}

// -- the session ---------------------------------------------------------------------------------
function settings() {
  return {
    model: byId("talk-model").value, voice: byId("talk-voice").value,
    turns: byId("talk-turns").value === "hold" ? "" : byId("talk-turns").value,
    instructions: byId("talk-instructions").value.trim(),
  };
}

function hooks(mine) {
  const ifMine = (use) => (...values) => { if (session === mine()) use(...values); };
  return {
    onState: ifMine(showState),
    onNote: ifMine((text, bad = false) => note("talk-note", text, bad)),
    onTurn: ifMine((turn) => {
      showTurn(turn);
      if (turn.audible == null || turn.isCounted) return;
      turn.isCounted = true;
      turns.push({ at: new Date(), totalMs: turn.audible - turn.lastWord });
    }),
    onEnd: ifMine(lost),
  };
}

function newSession() {
  const made = new Session(settings(), hooks(() => made));
  return made;
}

async function begin(withMicrophone) {
  note("talk-note", "");
  microphones.stopTest();
  const history = isFresh ? [] : conversation.historyItems();
  if (isFresh) conversation.divide(`New conversation, ${timeOfDay()}`);
  isFresh = false;
  const mine = newSession();
  session = mine;
  startedMs = Date.now();
  showOpen();
  showState("connecting");
  try {
    const microphone = withMicrophone ? await openMicrophone(mine) : null;
    if (session === mine) await mine.open(microphone, history);
  } catch (error) {
    if (session !== mine) return;
    end();
    note("talk-note", error.message, true);
    return;
  }
  if (session === mine) showOpen();
}

async function openMicrophone(mine) {
  const microphone = await Microphone.open(undefined, microphones.chosen());
  if (session !== mine) microphone.close();
  else microphones.list();
  return microphone;
}

async function startOrEnd() {
  if (!session) {
    if (!byId("talk-start").disabled) await begin(true);
  } else if (session.microphone || !session.player) end();
  else await speakToo(session);
}

// A microphone for a conversation that was typed so far.
async function speakToo(mine) {
  try {
    const microphone = await openMicrophone(mine);
    if (session !== mine) return;
    mine.attach(microphone);
    mine.rest();
    showOpen();
  } catch (error) {
    note("talk-note", error.message, true);
  }
}

async function type(text) {
  if (!session) await begin(false);
  if (session && !session.isOver) session.say(text);
}

async function showPicture(url, canvas) {
  if (!session) await begin(false);
  if (session && !session.isOver) session.show(url, canvas);
}

function end() {
  leaving?.abort();
  session?.close();
  session = null;
  isFresh = true;
  showOpen();
  showState("off");
}

function configure() { if (session && !session.isOver) session.configure(settings()); showOpen(); }

function toggleMute() {
  session.toggleMute();
  showOpen();
}

// -- a connection that is lost --------------------------------------------------------------------
async function lost({ why, returns, plain }) {
  if (returns) {
    await reconnect(session);
    return;
  }
  end();
  isFresh = false; // what is typed next goes on from here
  if (!plain || why) note("talk-note", why, !plain);
}

async function reconnect(old) {
  leaving = new AbortController();
  const { signal } = leaving, giveUp = setTimeout(() => leaving.abort("late"), GIVE_UP_MS);
  showState("reconnecting");
  note("talk-note", "The connection was lost. The conversation goes on when the server is back.");
  const history = conversation.historyItems();
  while (session === old && (await untilReady(signal))) {
    const mine = newSession();
    try {
      await mine.open(old.microphone, history);
    } catch {
      await new Promise((resolve) => setTimeout(resolve, 1000));
      continue;
    }
    if (session !== old || signal.aborted) {
      mine.close();
      break;
    }
    session = mine;
    mine.muted = old.muted;
    mine.listenWhen();
    mine.rest();
    conversation.divide(`Reconnected, ${timeOfDay()}`, true);
    note("talk-note", "");
    showOpen();
  }
  clearTimeout(giveUp);
  if (signal.reason !== "late" || session !== old) return;
  end();
  note("talk-note", "The server did not come back within five minutes. Start again when it has.", true);
}

function showCondition(now) {
  const text = CONDITIONS[now] ?? "";
  byId("talk-banner").hidden = !text;
  byId("talk-banner").textContent = text;
}

// -- what is shown --------------------------------------------------------------------------------
const timeOfDay = () => new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

function showOpen() {
  const talks = Boolean(session && (session.microphone || !session.player));
  byId("talk-start").textContent = talks ? "End" : "Start talking";
  byId("talk-start").classList.toggle("ends", talks);
  byId("talk-start").disabled = !session && !modelsOf("chat").length;
  byId("talk-end").hidden = !session || talks;
  byId("talk-mute").hidden = Boolean(session) && !talks;
  byId("talk-mute").disabled = !session?.microphone;
  byId("talk-mute").setAttribute("aria-pressed", String(Boolean(session?.muted)));
  byId("talk-model").disabled = Boolean(session);
  const byHand = byId("talk-turns").value === "hold";
  byId("talk-hold").hidden = !byHand;
  byId("talk-hold").disabled = !session?.microphone;
  showBadge();
}

function showBadge() {
  const isSeen = Boolean(session?.microphone) && !isShown;
  byId("live").hidden = !isSeen;
  if (isSeen) byId("live-text").textContent = session.muted ? "Muted" : "Microphone on";
}

function showState(state) {
  byId("talk-state").textContent = STATES[state];
  byId("talk-state").dataset.state = state;
}

function draw() {
  const speaking = session?.playing;
  if (!speaking && byId("talk-state").dataset.state === "speaking" && session?.answer?.done) session.rest();
  if (session?.microphone) byId("live-time").textContent = clock((Date.now() - startedMs) / 1000);
  if (byId("talk").hidden) return;
  if (session?.microphone) byId("talk-level").value = session.levels.at(-1) ?? 0;
  const levels = speaking ? session.outLevels : session?.levels;
  drawLevels(byId("talk-meter"), levels ?? [], speaking ? "--amber" : "--action", session?.microphone ? undefined : atRest);
}

// The button that is held to talk, by pointer or by key.
function bindHold() {
  const button = byId("talk-hold");
  const set = (isHeld) => {
    if (isHeld) session?.hold();
    else session?.release();
    button.setAttribute("aria-pressed", String(Boolean(session?.held)));
  };
  button.addEventListener("pointerdown", (event) => {
    button.setPointerCapture(event.pointerId);
    set(true);
  });
  for (const kind of ["pointerup", "pointercancel", "blur"]) button.addEventListener(kind, () => set(false));
  button.addEventListener("keydown", (event) => {
    if (![" ", "Enter"].includes(event.key) || event.repeat) return;
    event.preventDefault();
    set(true);
  });
  button.addEventListener("keyup", ({ key }) => { if ([" ", "Enter"].includes(key)) set(false); });
}
