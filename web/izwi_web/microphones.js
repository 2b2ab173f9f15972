// Which microphone to use, and how loud it is.

import { Microphone, level } from "./audio.js";
import { byId, fill, note } from "./ui.js";

const TEST_MS = 15_000;
let tested = null, timer = null;

export function start() {
  byId("talk-test").addEventListener("click", () => (tested ? stopTest() : test()));
  byId("talk-microphone").addEventListener("change", () => { if (tested) stopTest(); });
  navigator.mediaDevices?.addEventListener?.("devicechange", list);
  list();
}

export const chosen = () => byId("talk-microphone").value || byId("talk-microphone").dataset.wanted || "";

// The browser names microphones only to pages that were allowed to use one.
export async function list() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  const inputs = devices.filter(({ kind, deviceId, label }) => kind === "audioinput" && label && !["default", ""].includes(deviceId));
  fill(byId("talk-microphone"), [{ value: "", label: "The browser's usual one" }, ...inputs.map(({ deviceId, label }) => ({ value: deviceId, label }))]);
}

export function showLevel(samples) {
  const meter = byId("talk-level");
  meter.value = Math.max(level(samples), meter.value * 0.85);
}

async function test() {
  try {
    tested = await Microphone.open(showLevel, chosen());
  } catch (error) {
    note("talk-note", error.message, true);
    return;
  }
  await list();
  byId("talk-test").textContent = "Stop test";
  byId("talk-test").setAttribute("aria-pressed", "true");
  timer = setTimeout(stopTest, TEST_MS);
}

export function stopTest() {
  clearTimeout(timer);
  tested?.close();
  tested = null;
  byId("talk-level").value = 0;
  byId("talk-test").textContent = "Test";
  byId("talk-test").setAttribute("aria-pressed", "false");
}
