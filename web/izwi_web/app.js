// The page's frame: tabs, theme and key; each tab is a module of its own.

import { askForKey, known, onLists, refresh, watch } from "./server.js";
import * as images from "./images.js";
import * as metrics from "./metrics.js";
import * as models from "./models.js";
import * as speak from "./speak.js";
import * as talk from "./talk.js";
import * as transcribe from "./transcribe.js";
import { bindShortcuts } from "./shortcuts.js";
import { fragment, readSettings, tabOf } from "./settings.js";
import { byId } from "./ui.js";
import * as voices from "./voices.js";

const panels = { talk, speak, transcribe, images, voices, models, metrics };
const tabs = [...document.querySelectorAll("[role=tab]")];
let shown = null;

// Not by location.hash: following a fragment moves the focus into the panel.
function go(name) {
  history.pushState(null, "", fragment(name));
  show(name);
}

function show(name) {
  if (!(name in panels)) name = "talk";
  if (name === shown) return;
  if (shown) panels[shown].hide?.();
  shown = name;
  for (const tab of tabs) {
    const selected = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !selected;
  }
  document.title = `${name[0].toUpperCase()}${name.slice(1)} · izwi`;
  panels[name].show?.();
}

byId("tabs").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) go(tab.getAttribute("aria-controls"));
});
byId("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
  const there = tabs.filter((tab) => !tab.hidden);
  const place = there.indexOf(document.activeElement);
  let next = step === undefined ? undefined : (place + step + there.length) % there.length;
  if (event.key === "Home") next = 0;
  if (event.key === "End") next = there.length - 1;
  if (next === undefined) return;
  event.preventDefault();
  there[next].focus();
  go(there[next].getAttribute("aria-controls"));
});
addEventListener("popstate", () => {
  show(tabOf(location.hash));
  readSettings();
});
// What lies on another tab, from within the page.
for (const link of document.querySelectorAll("[data-go]")) {
  link.addEventListener("click", () => {
    go(link.dataset.go);
    byId(`tab-${link.dataset.go}`).focus();
  });
}

const dark = matchMedia("(prefers-color-scheme: dark)");
function applyTheme() {
  const chosen = localStorage.getItem("theme");
  document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
}
dark.addEventListener("change", applyTheme);
byId("theme-button").addEventListener("click", () => {
  localStorage.setItem("theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  applyTheme();
});
byId("key-button").addEventListener("click", async () => {
  if (await askForKey("The key is kept in this tab only. Leave it empty to send none.")) await refresh();
});

// The models that come with izwi are small: say so, and how to have larger ones.
onLists(() => {
  byId("about-models").hidden = !known.models.length || !known.models.every(({ id, root = id }) => root.startsWith("izwi-tiny-"));
});

// Most servers draw nothing.
onLists(() => {
  byId("tab-images").hidden = !known.images;
  if (shown === "images" && !known.images) show("talk");
});

applyTheme();
for (const panel of Object.values(panels)) panel.start();
bindShortcuts(() => panels[shown], talk);
show(tabOf(location.hash) || "talk");
watch();
