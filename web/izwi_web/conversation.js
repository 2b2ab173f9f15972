// The conversation on the Talk tab: its lines, what of an answer was not heard, and its text for a file.

import { byId, h } from "./ui.js";

const NAMES = { user: "You", assistant: "izwi" };
const lines = []; // { id, who, text, heard, element, body, session }, or { divider }
const byItem = new Map();
let session = 0;

export const isEmpty = () => !lines.some(({ who }) => who);

// Words that were transcribed or made of an item, shown in its line.
export function append(itemId, who, text) {
  const line = lineOf(itemId, who);
  line.text += text;
  line.body.append(text);
  scroll();
}

export function setText(itemId, who, text) {
  const line = lineOf(itemId, who);
  line.text = text;
  line.body.textContent = text;
  scroll();
}

// A picture that the user shows. Its text stands for it in files, and it is not sent again.
export function setPicture(itemId, canvas) {
  const line = lineOf(itemId, "user");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "A picture");
  line.isPicture = true;
  line.text = "[picture]";
  line.body.replaceChildren(canvas);
  scroll();
}

export function lineOf(itemId, who) {
  if (!byItem.has(itemId)) {
    const body = h("span", { class: "words" });
    const element = h("li", { class: who }, h("span", { class: "who" }, NAMES[who]), body);
    byId("captions").append(element);
    const line = { id: itemId, who, text: "", heard: null, element, body, session };
    lines.push(line);
    byItem.set(itemId, line);
    showEmpty();
    scroll();
  }
  return byItem.get(itemId);
}

// The answer was interrupted.
export function cut(itemId) { byItem.get(itemId)?.element.classList.add("cut"); }

// An interrupted answer: `heard` is what was played of it, the rest is grey.
export function showHeard(itemId, heard) {
  const line = byItem.get(itemId);
  if (!line) return;
  line.heard = heardLength(line.text, heard);
  const rest = line.text.slice(line.heard);
  const unheard = h("span", { class: "unheard" }, h("span", { class: "spoken-only" }, " Not heard: "), rest);
  line.body.replaceChildren(line.text.slice(0, line.heard), ...(rest.trim() ? [unheard] : []));
  cut(itemId);
}

// How much of a text was heard, in characters. Spaces may differ between the two.
export function heardLength(text, heard) {
  let place = 0;
  for (const letter of heard) {
    if (/\s/.test(letter)) continue;
    while (place < text.length && /\s/.test(text[place])) place++;
    if (text[place] !== letter && text.codePointAt(place) !== letter.codePointAt(0)) break;
    place += letter.length;
  }
  return place;
}

// A line across the conversation, where another session begins; one that `continues` knows what was
// said before.
export function divide(label, continues = false) {
  if (isEmpty()) return;
  if (!continues) session++;
  lines.push({ divider: label });
  byId("captions").append(h("li", { class: "divider" }, h("span", {}, label)));
  scroll();
}

export function clear() {
  lines.length = 0;
  byItem.clear();
  byId("captions").replaceChildren();
  showEmpty();
}

// The last lines of this session as items for a new one: what was said, and what of it was heard.
export function historyItems(most = 20) {
  return lines.filter((line) => line.who && line.session === session && !line.isPicture && said(line)).slice(-most).map((line) => ({
    type: "message", role: line.who,
    content: [{ type: line.who === "user" ? "input_text" : "output_text", text: said(line) }],
  }));
}

const said = ({ text, heard }) => (heard === null ? text : text.slice(0, heard)).trim();

export function asText() {
  return lines.map((line) => {
    if (line.divider) return `--- ${line.divider} ---`;
    const rest = line.heard === null ? "" : line.text.slice(line.heard).trim();
    return `${NAMES[line.who]}: ${said(line)}${rest ? ` [interrupted; not heard: ${rest}]` : ""}`;
  }).join("\n\n") + "\n";
}

function showEmpty() {
  byId("captions-empty").hidden = !isEmpty();
  byId("captions").hidden = isEmpty();
  for (const name of ["talk-copy", "talk-save", "talk-clear"]) byId(name).hidden = isEmpty();
}

// The last words stay in sight, also when a phone shows its keyboard.
export function start() { new ResizeObserver(scroll).observe(byId("captions")); }

function scroll() { byId("captions").scrollTop = byId("captions").scrollHeight; }
