// Settings in the address: "#talk?voice=hugo" opens the tab with that voice, and what is changed is
// written there, so that a link or a bookmark has it.

import { byId } from "./ui.js";

const bound = new Map(); // tab -> { name: id of its control }
const listeners = new Map(); // tab -> called when the address changes its settings

// Bind controls of a tab to names in the address, and read those that are there now.
export function bindSettings(tab, controls, onChange = () => {}) {
  bound.set(tab, controls);
  listeners.set(tab, onChange);
  for (const id of Object.values(controls)) {
    byId(id).addEventListener("change", () => {
      delete byId(id).dataset.wanted;
      if (tabOf(location.hash) === tab) history.replaceState(null, "", fragment(tab));
    });
  }
  readSettings();
}

export const tabOf = (hash) => hash.slice(1).split("?")[0];

// "#talk?voice=hugo": a tab, and those of its settings that differ from what it starts with.
export function fragment(tab) {
  const values = new URLSearchParams();
  for (const [name, id] of Object.entries(bound.get(tab) ?? {})) {
    const value = valueOf(byId(id));
    if (value !== null) values.set(name, value);
  }
  return `#${tab}${values.size ? `?${values}` : ""}`;
}

export function readSettings() {
  const tab = tabOf(location.hash), values = new URLSearchParams(location.hash.split("?")[1] ?? "");
  let isChanged = false;
  for (const [name, id] of Object.entries(bound.get(tab) ?? {})) {
    if (!values.has(name)) continue;
    const control = byId(id), value = values.get(name);
    isChanged = true;
    if (control.type === "checkbox") control.checked = value === "1";
    else if (control.tagName !== "SELECT") control.value = value;
    else if ([...control.options].some((option) => option.value === value)) control.value = value;
    else control.dataset.wanted = value; // a list that has yet to come
  }
  if (isChanged) listeners.get(tab)();
}

// The value of a control as text; null if it is what the control starts with.
function valueOf(control) {
  if (control.dataset.wanted !== undefined) return control.dataset.wanted;
  if (control.type === "checkbox") return control.checked ? "1" : null;
  if (control.tagName === "SELECT") return control.selectedIndex > 0 ? control.value : null;
  return control.value === control.defaultValue ? null : control.value;
}
