// Keys for what is done most. Those of a single letter can be switched off.

import { byId, isTyping } from "./ui.js";

const LETTERS = "letter-keys";

// `current` returns the tab that is shown; `talk` is its module, whose microphone any tab can mute.
export function bindShortcuts(current, talk) {
  byId("keys-button").addEventListener("click", () => byId("keys-dialog").showModal());
  byId("letter-keys").checked = localStorage.getItem(LETTERS) !== "off";
  byId("letter-keys").addEventListener("change", ({ target }) => localStorage.setItem(LETTERS, target.checked ? "on" : "off"));
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
    const actions = current().shortcuts ?? {};
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event, actions.main);
    else if (event.key === "Escape") run(event, actions.stop);
    else if (!event.ctrlKey && !event.metaKey && !event.altKey && !isTyping(event) && byId("letter-keys").checked) letter(event, talk);
  });
}

function letter(event, talk) {
  if (event.key === "m" || event.key === "M") run(event, talk.shortcuts.mute);
  else if (event.key === "?") run(event, () => byId("keys-dialog").showModal());
}

function run(event, action) {
  if (!action) return;
  event.preventDefault();
  action();
}
